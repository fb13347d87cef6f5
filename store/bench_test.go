package store_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"underwrite/app/bench/ratio"
	"underwrite/handlers"
	"underwrite/store"
)

const (
	benchSecret = "a webhook secret for tests"
	// benchBody has the size of a usual pull_request delivery.
	benchBodyBytes = 24 << 10
	// benchBatch is how many deliveries one side takes by turns.
	benchBatch = 40
	// benchSenders send at the same time, as GitHub does.
	benchSenders = 4
)

// BenchmarkIntake receives signed deliveries over the HTTP handler into a real
// database, against a bare loop that inserts the same two rows per delivery in
// one transaction, with the same durability. The rate is the inverse of the
// ratio: a ratio of 1.4 is 0.7 of the loop's rate.
func BenchmarkIntake(b *testing.B) {
	ctx := b.Context()
	s := openBench(b, "ours.db")
	intake, err := handlers.NewIntake(keeper{s}, benchSecret)
	if err != nil {
		b.Fatal(err)
	}
	body := benchBody()
	loop := newBareLoop(b, body)
	guid := 0
	ratio.Compare(b, func() error { return loop.insert(ctx, benchBatch) }, func() error {
		var senders errgroup.Group
		senders.SetLimit(benchSenders)
		for range benchBatch {
			guid++
			r := benchDelivery(guid, body)
			senders.Go(func() error {
				w := httptest.NewRecorder()
				intake.ServeHTTP(w, r)
				if w.Code != http.StatusAccepted {
					return fmt.Errorf("%s: %d %s", r.Header.Get("X-GitHub-Delivery"), w.Code, w.Body)
				}
				return nil
			})
		}
		return senders.Wait()
	})
	pending, err := s.Pending(ctx)
	if err != nil || len(pending) != guid {
		b.Fatalf("%d deliveries left %d jobs (%v)", guid, len(pending), err)
	}
}

// keeper is the controller's way of keeping deliveries, without a controller.
type keeper struct{ *store.Store }

func (k keeper) SaveDelivery(ctx context.Context, d handlers.Delivery) (handlers.Saved, error) {
	saved, err := k.Store.SaveDelivery(ctx, store.Delivery{
		GUID: d.GUID, Event: d.Event, Action: d.Action, InstallationID: d.InstallationID, Repo: d.Repo, Number: d.Number,
		Body: d.Body, BodySHA256: d.BodySHA256, ReceivedAt: d.ReceivedAt,
	})
	if err == nil && saved != store.SavedNew {
		err = fmt.Errorf("delivery %s is known", d.GUID)
	}
	return handlers.New, err
}

func openBench(b *testing.B, name string) *store.Store {
	b.Helper()
	path := filepath.Join(b.TempDir(), name)
	if err := store.Create(b.Context(), path); err != nil {
		b.Fatal(err)
	}
	s, err := store.Open(b.Context(), path, store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

func benchBody() string {
	head := `{"action":"opened","number":7,"pull_request":{"number":7,"body":"`
	tail := `"},"repository":{"full_name":"octo-org/shop"},"installation":{"id":42}}`
	return head + strings.Repeat("x", benchBodyBytes-len(head)-len(tail)) + tail
}

func benchDelivery(n int, body string) *http.Request {
	mac := hmac.New(sha256.New, []byte(benchSecret))
	mac.Write([]byte(body))
	r := httptest.NewRequest(http.MethodPost, "/webhook", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-GitHub-Delivery", benchGUID(n))
	r.Header.Set("X-GitHub-Event", "pull_request")
	r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	return r
}

func benchGUID(n int) string { return fmt.Sprintf("%08x-cc78-11e3-81ab-4c9367dc0958", n) }

// A bareLoop inserts rows into a database of the same schema by prepared
// statements, and does nothing else.
type bareLoop struct {
	db   *sql.DB
	body []byte
	sum  string
	n    int
}

func newBareLoop(b *testing.B, body string) *bareLoop {
	b.Helper()
	path := filepath.Join(b.TempDir(), "bare.db")
	if err := store.Create(b.Context(), path); err != nil {
		b.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_pragma=journal_mode(WAL)")
	if err != nil {
		b.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	b.Cleanup(func() { db.Close() })
	sum := sha256.Sum256([]byte(body))
	return &bareLoop{db: db, body: []byte(body), sum: hex.EncodeToString(sum[:])}
}

func (l *bareLoop) insert(ctx context.Context, count int) error {
	for range count {
		l.n++
		if err := l.one(ctx); err != nil {
			return fmt.Errorf("bare loop: %w", err)
		}
	}
	return nil
}

func (l *bareLoop) one(ctx context.Context) error {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	guid := benchGUID(l.n)
	_, err = tx.ExecContext(ctx, `INSERT INTO deliveries
		(guid, event, action, installation_id, repo, number, body, body_sha256, state, received_at)
		VALUES ($1, 'pull_request', 'opened', 42, 'octo-org/shop', 7, $2, $3, 'received', $4)`,
		guid, l.body, l.sum, time.Now().UnixMicro())
	if err != nil {
		return err
	}
	key := sha256.Sum256([]byte(guid))
	_, err = tx.ExecContext(ctx, `INSERT INTO river_job (args, kind, max_attempts, queue, state, unique_key, unique_states)
		VALUES ($1, 'dispatch', 50, 'dispatch', 'available', $2, $3)`, `{"guid":"`+guid+`"}`, key[:], 0xf5)
	if err != nil {
		return err
	}
	return tx.Commit()
}
