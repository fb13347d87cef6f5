package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivertype"
)

// Worker does the jobs. Each method is idempotent, may be called again after a
// crash at any moment, and finds out by itself what is left to do. An error
// makes the job be tried again, a *SnoozeError after the time that it names.
type Worker interface {
	Dispatch(ctx context.Context, guid string) error           // a received delivery
	Freeze(ctx context.Context, sessionID string) error        // a session that is freezing
	Execute(ctx context.Context, executionID int64) error      // a reserved or running execution
	Post(ctx context.Context, checkRunID, version int64) error // a check run whose version is not posted
	Acknowledge(ctx context.Context, executionID int64) error  // consumed evidence
}

// SnoozeError says that a job cannot be done yet. It is no failure.
type SnoozeError struct{ For time.Duration }

func (e *SnoozeError) Error() string { return "not before " + e.For.String() }

// Workers are the numbers of jobs of each kind that run at once.
type Workers struct{ Dispatch, Freeze, Execute, Post, Acknowledge int }

// Times of the queue.
const (
	fetchCooldown   = 10 * time.Millisecond // at least between two looks for jobs
	fetchPoll       = time.Second           // looks without a notification
	reconcileEvery  = time.Minute
	retryFirst      = time.Second // doubled with each failure, up to retryLast
	retryLast       = time.Minute
	completedKept   = time.Hour           // finished jobs, for people who look
	stuckAfter      = 30 * 24 * time.Hour // only Work rescues: it holds the lock
	discardedKept   = 24 * time.Hour
	attemptsPerRow  = 50 // then the reconciler starts a fresh row
	insertAtOnceMax = 1000
)

// The jobs, one type for each kind. River finds a waiting job by its arguments,
// so a second insert of the same job does nothing.
type (
	dispatchJob struct {
		GUID string `json:"guid"`
	}
	freezeJob struct {
		SessionID string `json:"session"`
	}
	executeJob struct {
		ExecutionID int64 `json:"execution"`
	}
	// A post names the version, so that a change during a running post makes a
	// job of its own.
	postJob struct {
		CheckRunID int64 `json:"check_run"`
		Version    int64 `json:"version"`
	}
	acknowledgeJob struct {
		ExecutionID int64 `json:"execution"`
	}
)

func (dispatchJob) Kind() string    { return "dispatch" }
func (freezeJob) Kind() string      { return "freeze" }
func (executeJob) Kind() string     { return "execute" }
func (postJob) Kind() string        { return "post" }
func (acknowledgeJob) Kind() string { return "acknowledge" }

// enqueue inserts a job in the transaction, unless it is waiting or running.
func (s *Store) enqueue(ctx context.Context, tx *sql.Tx, args river.JobArgs) error {
	return s.enqueueAt(ctx, tx, args, time.Time{})
}

func (s *Store) enqueueAt(ctx context.Context, tx *sql.Tx, args river.JobArgs, notBefore time.Time) error {
	_, err := s.insert.InsertTx(ctx, tx, args, &river.InsertOpts{
		ScheduledAt: notBefore,
		Queue:       args.Kind(),
		MaxAttempts: attemptsPerRow,
		UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable,
			rivertype.JobStateRunning, rivertype.JobStateScheduled,
		}},
	})
	if err != nil {
		return fmt.Errorf("insert %s job: %w", args.Kind(), err)
	}
	return nil
}

// Job is something that the tables say is to be done.
type Job struct {
	args river.JobArgs
}

// String names the job for logs and tests.
func (j Job) String() string { return fmt.Sprintf("%s %+v", j.args.Kind(), j.args) }

// Do runs the job on w.
func (j Job) Do(ctx context.Context, w Worker) error {
	switch a := j.args.(type) {
	case dispatchJob:
		return w.Dispatch(ctx, a.GUID)
	case freezeJob:
		return w.Freeze(ctx, a.SessionID)
	case executeJob:
		return w.Execute(ctx, a.ExecutionID)
	case postJob:
		return w.Post(ctx, a.CheckRunID, a.Version)
	case acknowledgeJob:
		return w.Acknowledge(ctx, a.ExecutionID)
	}
	return fmt.Errorf("unknown job %s", j)
}

// Pending lists what the tables say is to be done, whatever the queue knows.
func (s *Store) Pending(ctx context.Context) (jobs []Job, err error) {
	err = s.view(ctx, "list pending work", func(tx *sql.Tx) error {
		jobs, err = pending(ctx, tx)
		return err
	})
	return jobs, err
}

func pending(ctx context.Context, tx *sql.Tx) ([]Job, error) {
	var jobs []Job
	for _, q := range []struct {
		query string
		scan  func(row scanner) (Job, error)
	}{
		{`SELECT guid FROM deliveries WHERE state = 'received' ORDER BY received_at`, func(row scanner) (Job, error) {
			guid, err := scanString(row)
			return Job{dispatchJob{guid}}, err
		}},
		{`SELECT id FROM sessions WHERE state = 'freezing' ORDER BY created_at`, func(row scanner) (Job, error) {
			id, err := scanString(row)
			return Job{freezeJob{id}}, err
		}},
		{`SELECT id FROM executions WHERE state IN ('reserved', 'running') ORDER BY id`, func(row scanner) (Job, error) {
			id, err := scanInt(row)
			return Job{executeJob{id}}, err
		}},
		{`SELECT id, version FROM check_runs WHERE posted_version < version AND undeliverable = '' ORDER BY id`,
			func(row scanner) (Job, error) {
				j, err := scanPost(row)
				return Job{j}, err
			}},
		{`SELECT execution_id FROM evidence WHERE acknowledged_at IS NULL ORDER BY execution_id`, func(row scanner) (Job, error) {
			id, err := scanInt(row)
			return Job{acknowledgeJob{id}}, err
		}},
	} {
		list, err := all(ctx, tx, q.scan, q.query)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, list...)
	}
	return jobs, nil
}

// Reconcile inserts the jobs that the tables want and the queue does not have.
func (s *Store) Reconcile(ctx context.Context) error {
	jobs, err := s.Pending(ctx)
	if err != nil {
		return err
	}
	for len(jobs) > 0 {
		n := min(len(jobs), insertAtOnceMax)
		err := s.write(ctx, "insert missing jobs", func(tx *sql.Tx) error {
			for _, j := range jobs[:n] {
				if err := s.enqueue(ctx, tx, j.args); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		jobs = jobs[n:]
	}
	return nil
}

// rescue makes jobs available again that a dead process was working on. The
// caller holds the lock, so nobody is working on them now.
func (s *Store) rescue(ctx context.Context) error {
	return s.write(ctx, "rescue running jobs", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE river_job SET state = 'available' WHERE state = 'running'`)
		return err
	})
}

// Work rescues, reconciles and then does jobs until ctx ends. Running jobs then
// get grace to finish before their context is cancelled; it returns when all
// have returned.
func (s *Store) Work(ctx context.Context, _ *Lock, w Worker, n Workers, grace time.Duration) error {
	if err := s.rescue(ctx); err != nil {
		return err
	}
	if err := s.Reconcile(ctx); err != nil {
		return err
	}
	client, err := s.client(w, n, grace)
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return fmt.Errorf("start queue: %w", err)
	}
	s.working.Store(true)
	defer s.working.Store(false)
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			<-client.Stopped()
			return nil
		case <-client.Stopped():
			return errors.New("queue stopped by itself")
		case <-tick.C:
			if err := s.Reconcile(ctx); err != nil && ctx.Err() == nil {
				s.log.Error("reconcile jobs", "error", err)
			}
		}
	}
}

func (s *Store) client(w Worker, n Workers, grace time.Duration) (*river.Client[*sql.Tx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, work[dispatchJob](w))
	river.AddWorker(workers, work[freezeJob](w))
	river.AddWorker(workers, work[executeJob](w))
	river.AddWorker(workers, work[postJob](w))
	river.AddWorker(workers, work[acknowledgeJob](w))
	client, err := river.NewClient(riversqlite.New(s.db), &river.Config{
		Queues: map[string]river.QueueConfig{
			dispatchJob{}.Kind():    {MaxWorkers: n.Dispatch},
			freezeJob{}.Kind():      {MaxWorkers: n.Freeze},
			executeJob{}.Kind():     {MaxWorkers: n.Execute},
			postJob{}.Kind():        {MaxWorkers: n.Post},
			acknowledgeJob{}.Kind(): {MaxWorkers: n.Acknowledge},
		},
		Workers:                     workers,
		Logger:                      s.log,
		FetchCooldown:               fetchCooldown,
		FetchPollInterval:           fetchPoll,
		JobTimeout:                  -1, // the jobs bound themselves
		RescueStuckJobsAfter:        stuckAfter,
		RetryPolicy:                 backoff{},
		SoftStopTimeout:             grace,
		CompletedJobRetentionPeriod: completedKept,
		DiscardedJobRetentionPeriod: discardedKept,
	})
	if err != nil {
		return nil, fmt.Errorf("open queue: %w", err)
	}
	return client, nil
}

// work adapts w to River.
func work[T river.JobArgs](w Worker) river.Worker[T] {
	return river.WorkFunc(func(ctx context.Context, j *river.Job[T]) error {
		err := Job{j.Args}.Do(ctx, w)
		var snooze *SnoozeError
		if errors.As(err, &snooze) {
			return river.JobSnooze(snooze.For)
		}
		return err
	})
}

// backoff retries after 1, 2, 4 … 60 seconds, with a little chance in it.
type backoff struct{}

func (backoff) NextRetry(j *rivertype.JobRow) time.Time {
	d := retryLast
	if n := len(j.Errors); n < 6 {
		d = retryFirst << n
	}
	return time.Now().Add(d - rand.N(d/4))
}
