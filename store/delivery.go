package store

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// DeliveryState is what became of a delivery.
type DeliveryState string

// The states; Handled and Ignored are terminal.
const (
	Received DeliveryState = "received"
	Handled  DeliveryState = "handled"
	Ignored  DeliveryState = "ignored" // of no interest, or refused as malformed
)

// Delivery is one webhook delivery.
type Delivery struct {
	GUID           string
	Event          string
	Action         string
	InstallationID int64
	Repo           string
	Number         int64
	Body           []byte
	BodySHA256     string
	ReceivedAt     time.Time
	State          DeliveryState
	Note           string // why it was ignored
}

// Saved tells what SaveDelivery found.
type Saved int

// The outcomes of SaveDelivery.
const (
	SavedNew       Saved = iota // row and job are durable
	SavedDuplicate              // same GUID and body: nothing to do
	SavedConflict               // same GUID, other body: recorded, refused
)

// SaveDelivery makes the delivery and its job durable, once for each GUID.
func (s *Store) SaveDelivery(ctx context.Context, d Delivery) (saved Saved, err error) {
	err = s.write(ctx, "save delivery", func(tx *sql.Tx) error {
		known, err := one(ctx, tx, scanString, `SELECT body_sha256 FROM deliveries WHERE guid = $1`, d.GUID)
		switch {
		case err == nil && known == d.BodySHA256:
			saved = SavedDuplicate
			return nil
		case err == nil:
			saved = SavedConflict
			_, err = tx.ExecContext(ctx, `INSERT INTO delivery_conflicts (guid, body_sha256, event, received_at)
				VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`, d.GUID, d.BodySHA256, d.Event, micros(d.ReceivedAt))
			return err
		case !errors.Is(err, ErrNotFound):
			return err
		}
		saved = SavedNew
		_, err = tx.ExecContext(ctx, `INSERT INTO deliveries
			(guid, event, action, installation_id, repo, number, body, body_sha256, state, received_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'received', $9)`,
			d.GUID, d.Event, d.Action, d.InstallationID, d.Repo, d.Number, d.Body, d.BodySHA256, micros(d.ReceivedAt))
		if err != nil {
			return err
		}
		return s.enqueue(ctx, tx, dispatchJob{GUID: d.GUID})
	})
	return saved, err
}

// Delivery reads one delivery.
func (s *Store) Delivery(ctx context.Context, guid string) (d Delivery, err error) {
	err = s.view(ctx, "read delivery", func(tx *sql.Tx) error {
		d, err = one(ctx, tx, func(row scanner) (d Delivery, err error) {
			var received sql.NullInt64
			err = row.Scan(&d.GUID, &d.Event, &d.Action, &d.InstallationID, &d.Repo, &d.Number, &d.Body, &d.BodySHA256,
				&d.State, &d.Note, &received)
			d.ReceivedAt = fromMicros(received)
			return d, err
		}, `SELECT guid, event, action, installation_id, repo, number, body, body_sha256, state, note, received_at
			FROM deliveries WHERE guid = $1`, guid)
		return err
	})
	return d, err
}

// FinishDelivery ends a received delivery as handled or ignored.
func (s *Store) FinishDelivery(ctx context.Context, guid string, to DeliveryState, note string, now time.Time) error {
	return s.write(ctx, "finish delivery", func(tx *sql.Tx) error {
		return swap(ctx, tx, `UPDATE deliveries SET state = $2, note = $3, done_at = $4
			WHERE guid = $1 AND state = 'received'`, guid, to, note, micros(now))
	})
}
