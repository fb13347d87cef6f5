package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"time"

	"underwrite/store/blob"
)

// Evidence is the verified evidence of one execution. The blobs that it names
// are durable.
type Evidence struct {
	ExecutionID      int64
	Capability       []byte // the exact envelopes
	Receipt          []byte
	CapabilitySHA256 string
	ReceiptSHA256    string
	SignerID         string
	ExecutorID       string
	KeyID            string
	ExitCode         int64
	InputTree        string
	OutputTree       string
	StartedAt        time.Time // of the job, as signed
	FinishedAt       time.Time
	Output           blob.Ref
	Stdout           blob.Ref
	Stderr           blob.Ref
	Validation       []byte // JSON
	Transport        string // the gateway's directory
	ConsumedAt       time.Time
	AcknowledgedAt   time.Time // zero until the gateway was told
}

// same reports whether both are the same evidence: every byte of the six files
// but the request, which is equal by its execution.
func (e Evidence) same(o Evidence) bool {
	return bytes.Equal(e.Capability, o.Capability) && bytes.Equal(e.Receipt, o.Receipt) &&
		e.Output == o.Output && e.Stdout == o.Stdout && e.Stderr == o.Stderr
}

// Consume records verified evidence and its result, Passed or Contradicted, in
// one transaction: running → to. If the execution has exactly this evidence
// already, the record is returned. If it has another one, that is noted and
// ErrConflict; if it ended otherwise, it is ErrState.
func (s *Store) Consume(ctx context.Context, e Evidence, to RunState, now time.Time) (recorded Evidence, err error) {
	var conflict bool
	err = s.write(ctx, "consume evidence", func(tx *sql.Tx) error {
		known, err := evidence(ctx, tx, e.ExecutionID)
		switch {
		case err == nil && known.same(e):
			recorded = known
			return nil
		case err == nil:
			conflict = true
			_, err := tx.ExecContext(ctx, `INSERT INTO evidence_conflicts (execution_id, receipt_sha256, capability_sha256, seen_at)
				VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`, e.ExecutionID, e.ReceiptSHA256, e.CapabilitySHA256, micros(now))
			return err
		case !errors.Is(err, ErrNotFound):
			return err
		}
		e.ConsumedAt = now
		recorded = e
		return s.consume(ctx, tx, e, to, now)
	})
	if err == nil && conflict {
		return Evidence{}, ErrConflict
	}
	return recorded, err
}

func (s *Store) consume(ctx context.Context, tx *sql.Tx, e Evidence, to RunState, now time.Time) error {
	x, err := execution(ctx, tx, e.ExecutionID)
	if err != nil {
		return err
	}
	if x.State != Running {
		return ErrState
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO evidence
		(execution_id, capability, receipt, capability_sha256, receipt_sha256, signer_id, executor_id, key_id, exit_code,
		input_tree, output_tree, output_sha256, output_bytes, stdout_sha256, stdout_bytes, stderr_sha256, stderr_bytes,
		validation, transport, consumed_at, started_at, finished_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)`,
		e.ExecutionID, e.Capability, e.Receipt, e.CapabilitySHA256, e.ReceiptSHA256, e.SignerID, e.ExecutorID, e.KeyID, e.ExitCode,
		e.InputTree, e.OutputTree, e.Output.SHA256, e.Output.Bytes, e.Stdout.SHA256, e.Stdout.Bytes, e.Stderr.SHA256, e.Stderr.Bytes,
		string(e.Validation), e.Transport, micros(now), micros(e.StartedAt), micros(e.FinishedAt))
	if err != nil {
		return err
	}
	if err := swap(ctx, tx, `UPDATE executions SET state = $2, finished_at = $3
		WHERE id = $1 AND state = 'running'`, e.ExecutionID, to, micros(now)); err != nil {
		return err
	}
	if err := s.endCheckRunOf(ctx, tx, e.ExecutionID, to, nil, now); err != nil {
		return err
	}
	return s.enqueue(ctx, tx, acknowledgeJob{ExecutionID: e.ExecutionID})
}

// Evidence reads the evidence of an execution.
func (s *Store) Evidence(ctx context.Context, id int64) (e Evidence, err error) {
	err = s.view(ctx, "read evidence", func(tx *sql.Tx) error {
		e, err = evidence(ctx, tx, id)
		return err
	})
	return e, err
}

// SetAcknowledged notes that the gateway knows that the evidence is durable.
func (s *Store) SetAcknowledged(ctx context.Context, id int64, now time.Time) error {
	return s.write(ctx, "note acknowledgement", func(tx *sql.Tx) error {
		return swap(ctx, tx, `UPDATE evidence SET acknowledged_at = COALESCE(acknowledged_at, $2)
			WHERE execution_id = $1`, id, micros(now))
	})
}

func evidence(ctx context.Context, tx *sql.Tx, id int64) (Evidence, error) {
	return one(ctx, tx, func(row scanner) (e Evidence, err error) {
		var consumed, acknowledged, started, finished sql.NullInt64
		err = row.Scan(&e.ExecutionID, &e.Capability, &e.Receipt, &e.CapabilitySHA256, &e.ReceiptSHA256, &e.SignerID, &e.ExecutorID,
			&e.KeyID, &e.ExitCode, &e.InputTree, &e.OutputTree, &e.Output.SHA256, &e.Output.Bytes, &e.Stdout.SHA256, &e.Stdout.Bytes,
			&e.Stderr.SHA256, &e.Stderr.Bytes, &e.Validation, &e.Transport, &consumed, &acknowledged, &started, &finished)
		e.StartedAt, e.FinishedAt = fromMicros(started), fromMicros(finished)
		e.ConsumedAt, e.AcknowledgedAt = fromMicros(consumed), fromMicros(acknowledged)
		return e, err
	}, `SELECT execution_id, capability, receipt, capability_sha256, receipt_sha256, signer_id, executor_id,
		key_id, exit_code, input_tree, output_tree, output_sha256, output_bytes, stdout_sha256, stdout_bytes,
		stderr_sha256, stderr_bytes, validation, transport, consumed_at, acknowledged_at, started_at, finished_at
		FROM evidence WHERE execution_id = $1`, id)
}
