package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// RunState is where an execution, or the check run that shows it, stands.
type RunState string

// The states. Reserved and Running are an execution's, Queued and InProgress a
// check run's; the others are terminal and common to both.
const (
	Reserved     RunState = "reserved" // request and challenge are durable
	Running      RunState = "running"  // the gateway may have got the request
	Queued       RunState = "queued"
	InProgress   RunState = "in_progress"
	Passed       RunState = "passed"
	Contradicted RunState = "contradicted" // authentic, another exit code than predicted
	Faulted      RunState = "faulted"      // ended without a receipt
	Refused      RunState = "refused"      // the target cannot be run
	Superseded   RunState = "superseded"
	Cancelled    RunState = "cancelled"
	OurFault     RunState = "our_fault"
)

// Terminal reports whether the state is final.
func (s RunState) Terminal() bool {
	return s != Reserved && s != Running && s != Queued && s != InProgress
}

// Execution is one proof.
type Execution struct {
	ID            int64
	SessionID     string
	Seq           int64
	Beat          int64
	Attempt       int64
	CheckRunID    int64
	Challenge     string
	Request       []byte
	RequestSHA256 string
	Predicted     int64
	State         RunState
	Fault         []byte // JSON, nil if there is none
	Tails         Tails
	ReservedAt    time.Time
	StartedAt     time.Time // zero until it started
	FinishedAt    time.Time // zero until it is terminal
}

// Tails are the ends of the live output: hostile, bounded by the caller.
type Tails struct{ Stdout, Stderr []byte }

// Again says how our own faults are followed by new proofs.
type Again struct {
	Most  int64         // proofs of one check run
	Delay time.Duration // before the second one, doubled each time
}

// reserveMissing reserves an execution for each queued check run of a frozen
// session that has none.
func (s *Store) reserveMissing(ctx context.Context, tx *sql.Tx, sess Session, build Builder, now time.Time) error {
	for _, c := range sess.Checks {
		runs, err := all(ctx, tx, scanInt, `SELECT id FROM check_runs WHERE session_id = $1 AND beat = $2 AND state = 'queued'
			AND NOT EXISTS (SELECT 1 FROM executions WHERE check_run_id = check_runs.id) ORDER BY id`, sess.ID, c.Beat)
		if err != nil {
			return err
		}
		for _, run := range runs {
			if err := s.reserve(ctx, tx, sess, c, run, build, now, time.Time{}); err != nil {
				return fmt.Errorf("reserve an execution of %s: %w", c.Name, err)
			}
		}
	}
	return nil
}

// reserve inserts the next execution of a session. Its number is never used
// again, and its request is durable before the gateway sees it.
func (s *Store) reserve(ctx context.Context, tx *sql.Tx, sess Session, c Check, run int64, build Builder, now, notBefore time.Time) error {
	seq, err := one(ctx, tx, scanInt, `SELECT COALESCE(MAX(seq), 0) + 1 FROM executions WHERE session_id = $1`, sess.ID)
	if err != nil {
		return err
	}
	r, err := build(sess, c, seq)
	if err != nil {
		return err
	}
	var id int64
	err = tx.QueryRowContext(ctx, `INSERT INTO executions
		(session_id, seq, beat, attempt, check_run_id, challenge, request, request_sha256, predicted, state, reserved_at)
		VALUES ($1, $2, $3, 1, $4, $5, $6, $7, $8, 'reserved', $9) RETURNING id`,
		sess.ID, seq, c.Beat, run, r.Challenge, r.Request, r.RequestSHA256, r.Predicted, micros(now)).Scan(&id)
	if err != nil {
		return err
	}
	return s.enqueueAt(ctx, tx, executeJob{ExecutionID: id}, notBefore)
}

// StartExecution allows the execution to be given to the gateway: reserved →
// running, and its check run is in progress.
func (s *Store) StartExecution(ctx context.Context, id int64, now time.Time) error {
	return s.write(ctx, "start execution", func(tx *sql.Tx) error {
		err := swap(ctx, tx, `UPDATE executions SET state = 'running', started_at = $2
			WHERE id = $1 AND state = 'reserved'`, id, micros(now))
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE check_runs SET state = 'in_progress', version = version + 1, updated_at = $2
			WHERE state = 'queued' AND id = (SELECT check_run_id FROM executions WHERE id = $1)`, id, micros(now))
		if err != nil {
			return err
		}
		return s.enqueuePostOf(ctx, tx, id)
	})
}

// EndExecution ends an execution without a receipt as faulted, refused or
// cancelled, and its check run with it: reserved or running → to.
func (s *Store) EndExecution(ctx context.Context, id int64, to RunState, fault []byte, tails Tails, now time.Time) error {
	return s.write(ctx, "end execution", func(tx *sql.Tx) error {
		if err := endExecution(ctx, tx, id, to, fault, tails, now); err != nil {
			return err
		}
		return s.endCheckRunOf(ctx, tx, id, to, fault, now)
	})
}

// EndOurFault ends an execution that failed without the job's fault: reserved
// or running → our_fault. A new proof with its own number and challenge is
// reserved, and its job inserted for after.Delay, while the check run has had
// fewer than after.Most; then the check run ends as our_fault too.
func (s *Store) EndOurFault(ctx context.Context, id int64, fault []byte, tails Tails, after Again, build Builder, now time.Time) (again bool, err error) {
	err = s.write(ctx, "end execution by our fault", func(tx *sql.Tx) error {
		if err := endExecution(ctx, tx, id, OurFault, fault, tails, now); err != nil {
			return err
		}
		e, err := execution(ctx, tx, id)
		if err != nil {
			return err
		}
		proofs, err := one(ctx, tx, scanInt, `SELECT count(*) FROM executions WHERE check_run_id = $1`, e.CheckRunID)
		if err != nil {
			return err
		}
		if again = proofs < after.Most; !again {
			return s.endCheckRunOf(ctx, tx, id, OurFault, fault, now)
		}
		sess, err := session(ctx, tx, e.SessionID)
		if err != nil {
			return err
		}
		for _, c := range sess.Checks {
			if c.Beat == e.Beat {
				return s.reserve(ctx, tx, sess, c, e.CheckRunID, build, now, now.Add(after.Delay<<(proofs-1)))
			}
		}
		return fmt.Errorf("session %s has no beat %d", sess.ID, e.Beat)
	})
	return again, err
}

func endExecution(ctx context.Context, tx *sql.Tx, id int64, to RunState, fault []byte, tails Tails, now time.Time) error {
	return swap(ctx, tx, `UPDATE executions SET state = $2, fault = $3, stdout_tail = $4, stderr_tail = $5, finished_at = $6
		WHERE id = $1 AND state IN ('reserved', 'running')`, id, to, nullJSON(fault), tails.Stdout, tails.Stderr, micros(now))
}

// Execution reads one execution.
func (s *Store) Execution(ctx context.Context, id int64) (e Execution, err error) {
	err = s.view(ctx, "read execution", func(tx *sql.Tx) error {
		e, err = execution(ctx, tx, id)
		return err
	})
	return e, err
}

const executionColumns = `id, session_id, seq, beat, attempt, check_run_id, challenge, request, request_sha256, predicted, state,
	COALESCE(fault, ''), stdout_tail, stderr_tail, reserved_at, started_at, finished_at`

func execution(ctx context.Context, tx *sql.Tx, id int64) (Execution, error) {
	return one(ctx, tx, scanExecution, `SELECT `+executionColumns+` FROM executions WHERE id = $1`, id)
}

// latestExecution is the check run's execution that counts.
func latestExecution(ctx context.Context, tx *sql.Tx, run int64) (Execution, error) {
	return one(ctx, tx, scanExecution, `SELECT `+executionColumns+` FROM executions
		WHERE check_run_id = $1 ORDER BY seq DESC LIMIT 1`, run)
}

func scanExecution(row scanner) (e Execution, err error) {
	var reserved, started, finished sql.NullInt64
	var fault string
	err = row.Scan(&e.ID, &e.SessionID, &e.Seq, &e.Beat, &e.Attempt, &e.CheckRunID, &e.Challenge, &e.Request, &e.RequestSHA256,
		&e.Predicted, &e.State, &fault, &e.Tails.Stdout, &e.Tails.Stderr, &reserved, &started, &finished)
	if fault != "" {
		e.Fault = []byte(fault)
	}
	e.ReservedAt, e.StartedAt, e.FinishedAt = fromMicros(reserved), fromMicros(started), fromMicros(finished)
	return e, err
}
