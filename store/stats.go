package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrUnhealthy: the queue does not do its work.
var ErrUnhealthy = errors.New("queue does not work")

// stalledAfter is how long a delivery may be due for dispatching before the
// queue counts as stuck. Dispatching takes seconds, and a delivery that waits
// for its next try is not due.
const stalledAfter = 10 * time.Minute

// Health is nil if the database answers, its writer is free within the context's
// time, and the queue works: Work is running and deliveries do not pile up.
func (s *Store) Health(ctx context.Context, now time.Time) error {
	if err := s.write(ctx, "check the writer", func(*sql.Tx) error { return nil }); err != nil {
		return err
	}
	if !s.working.Load() {
		return fmt.Errorf("%w: it is not running", ErrUnhealthy)
	}
	return s.view(ctx, "check the queue", func(tx *sql.Tx) error {
		// A delivery that fails again and again is not the queue's fault.
		waiting, err := one(ctx, tx, scanInt, `SELECT count(*) FROM river_job
			WHERE queue = $1 AND state = 'available' AND scheduled_at < $2`,
			dispatchJob{}.Kind(), riverTime(now.Add(-stalledAfter)))
		if err != nil {
			return err
		}
		if waiting > 0 {
			return fmt.Errorf("%w: %d deliveries are due for more than %s", ErrUnhealthy, waiting, stalledAfter)
		}
		return nil
	})
}

// riverTime writes a time as River's columns hold it, so that text compares as
// time does.
func riverTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000") }

// JobKey says which jobs are counted together.
type JobKey struct{ Queue, State string }

// Stats are counts of what the database holds, as of one moment.
type Stats struct {
	Executions        map[RunState]int64
	Deliveries        map[DeliveryState]int64
	DeliveryConflicts int64
	EvidenceConflicts int64
	Jobs              map[JobKey]int64 // in the queue, not finished
	Unposted          int64            // check runs of which GitHub does not show the latest version
	Undeliverable     int64            // check runs that can never be posted
	Wait              Histogram        // from the reservation to the gateway
	Duration          Histogram        // from the gateway to the end
}

// Histogram counts durations. Below[i] is how many are at most DurationBounds[i].
type Histogram struct {
	Count int64
	Sum   time.Duration
	Below []int64
}

// DurationBounds are the buckets' upper bounds.
var DurationBounds = []time.Duration{
	500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour,
}

// Stats counts.
func (s *Store) Stats(ctx context.Context) (st Stats, err error) {
	err = s.view(ctx, "count", func(tx *sql.Tx) error {
		st = Stats{Executions: map[RunState]int64{}, Deliveries: map[DeliveryState]int64{}, Jobs: map[JobKey]int64{}}
		if err := countBy(ctx, tx, st.Executions, `SELECT state, count(*) FROM executions GROUP BY state`); err != nil {
			return err
		}
		if err := countBy(ctx, tx, st.Deliveries, `SELECT state, count(*) FROM deliveries GROUP BY state`); err != nil {
			return err
		}
		if err := countJobs(ctx, tx, st.Jobs); err != nil {
			return err
		}
		for n, query := range map[*int64]string{
			&st.DeliveryConflicts: `SELECT count(*) FROM delivery_conflicts`,
			&st.EvidenceConflicts: `SELECT count(*) FROM evidence_conflicts`,
			&st.Unposted:          `SELECT count(*) FROM check_runs WHERE posted_version < version AND undeliverable = ''`,
			&st.Undeliverable:     `SELECT count(*) FROM check_runs WHERE undeliverable <> ''`,
		} {
			if *n, err = one(ctx, tx, scanInt, query); err != nil {
				return err
			}
		}
		if st.Wait, err = histogram(ctx, tx, `started_at - reserved_at`); err != nil {
			return err
		}
		st.Duration, err = histogram(ctx, tx, `finished_at - started_at`)
		return err
	})
	return st, err
}

func countBy[K ~string](ctx context.Context, tx *sql.Tx, counts map[K]int64, query string) error {
	_, err := all(ctx, tx, func(row scanner) (n int64, err error) {
		var key K
		err = row.Scan(&key, &n)
		counts[key] = n
		return n, err
	}, query)
	return err
}

func countJobs(ctx context.Context, tx *sql.Tx, counts map[JobKey]int64) error {
	_, err := all(ctx, tx, func(row scanner) (n int64, err error) {
		var key JobKey
		err = row.Scan(&key.Queue, &key.State, &n)
		counts[key] = n
		return n, err
	}, `SELECT queue, state, count(*) FROM river_job WHERE finalized_at IS NULL GROUP BY queue, state`)
	return err
}

// histogram counts a difference of two columns of executions, where both are
// known. A clock that was set back makes no negative durations.
func histogram(ctx context.Context, tx *sql.Tx, difference string) (h Histogram, err error) {
	var columns strings.Builder
	args := make([]any, len(DurationBounds))
	h.Below = make([]int64, len(DurationBounds))
	dest := []any{&h.Count, (*int64)(&h.Sum)}
	for i, bound := range DurationBounds {
		fmt.Fprintf(&columns, ", COALESCE(SUM(CASE WHEN d <= $%d THEN 1 ELSE 0 END), 0)", i+1)
		args[i] = bound.Microseconds()
		dest = append(dest, &h.Below[i])
	}
	row := tx.QueryRowContext(ctx, `SELECT count(*), COALESCE(SUM(d), 0)`+columns.String()+` FROM (
		SELECT CASE WHEN `+difference+` < 0 THEN 0 ELSE `+difference+` END AS d
		FROM executions WHERE `+difference+` IS NOT NULL) AS durations`, args...)
	err = row.Scan(dest...)
	h.Sum *= time.Microsecond
	return h, err
}
