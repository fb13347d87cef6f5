package store

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	stdsync "sync"
	"testing"
	"time"
)

// recorder is a Worker that notes its jobs and answers from a script.
type recorder struct {
	mu     stdsync.Mutex
	calls  []string
	answer func(job string, n int) error // n counts the calls of this job
	done   chan string
}

func (r *recorder) note(job string) error {
	r.mu.Lock()
	r.calls = append(r.calls, job)
	var n int
	for _, c := range r.calls {
		if c == job {
			n++
		}
	}
	r.mu.Unlock()
	var err error
	if r.answer != nil {
		err = r.answer(job, n)
	}
	r.done <- job
	return err
}

func (r *recorder) Dispatch(_ context.Context, guid string) error { return r.note("dispatch " + guid) }
func (r *recorder) Freeze(context.Context, string) error          { return r.note("freeze") }
func (r *recorder) Execute(context.Context, int64) error          { return r.note("execute") }
func (r *recorder) Post(context.Context, int64, int64) error      { return r.note("post") }
func (r *recorder) Acknowledge(context.Context, int64) error      { return r.note("acknowledge") }

var few = Workers{Dispatch: 1, Freeze: 1, Execute: 1, Post: 1, Acknowledge: 1}

// startWork runs Work until stop is called.
func startWork(t *testing.T, s *Store, path string, w Worker) (stop func()) {
	t.Helper()
	lock, err := AcquireLock(path)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Work(ctx, lock, w, few, time.Minute) }()
	stop = stdsync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		lock.Release()
	})
	t.Cleanup(stop)
	return stop
}

func expect(t *testing.T, r *recorder, want ...string) {
	t.Helper()
	left := map[string]int{}
	for _, w := range want {
		left[w]++
	}
	timeout := time.After(time.Minute)
	for range want {
		select {
		case got := <-r.done:
			if left[got]--; left[got] < 0 {
				t.Fatalf("unexpected job %q, want %q", got, want)
			}
		case <-timeout:
			t.Fatalf("still waiting for %v", left)
		}
	}
}

func TestWorkDoesEachJob(t *testing.T) {
	path := newPath(t)
	s := openAt(t, path)
	r := &recorder{done: make(chan string, 100)}
	startWork(t, s, path, r)
	_, err := s.SaveDelivery(t.Context(), Delivery{GUID: "g", Body: []byte("{}"), BodySHA256: hex64("a"), ReceivedAt: now})
	must(t, err)
	expect(t, r, "dispatch g")
	sync(t, s, pull)
	expect(t, r, "freeze", "post", "post")
	must(t, s.SetReady(t.Context(), current(t, s).ID, frozen, build, now))
	expect(t, r, "execute", "execute")
	x := *checkRuns(t, s)[0].Execution
	must(t, s.StartExecution(t.Context(), x.ID, now))
	expect(t, r, "post")
	_, err = s.Consume(t.Context(), proof(x), Passed, now)
	must(t, err)
	expect(t, r, "post", "acknowledge")
}

func TestWorkRetriesAndSnoozes(t *testing.T) {
	path := newPath(t)
	var log strings.Builder
	var mu stdsync.Mutex
	s, err := Open(t.Context(), path, Options{Logger: slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, nil))})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	r := &recorder{done: make(chan string, 100), answer: func(_ string, n int) error {
		switch n {
		case 1:
			return errors.New("no luck today")
		case 2:
			return &SnoozeError{For: 10 * time.Millisecond}
		}
		return nil
	}}
	_, err = s.SaveDelivery(t.Context(), Delivery{GUID: "g", Body: []byte("{}"), BodySHA256: hex64("a"), ReceivedAt: now})
	must(t, err)
	stop := startWork(t, s, path, r)
	expect(t, r, "dispatch g", "dispatch g", "dispatch g")
	stop()
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(log.String(), "no luck today") {
		t.Errorf("the log hides the failure: %s", log.String())
	}
}

type lockedWriter struct {
	mu *stdsync.Mutex
	w  *strings.Builder
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// TestWorkTakesOverAfterDeath: jobs that a dead process was running, and jobs
// that are not in the queue at all, are done after a restart.
func TestWorkTakesOverAfterDeath(t *testing.T) {
	path := newPath(t)
	s := openAt(t, path)
	for _, guid := range []string{"running", "lost", "waiting"} {
		_, err := s.SaveDelivery(t.Context(), Delivery{GUID: guid, Body: []byte("{}"), BodySHA256: hex64("a"), ReceivedAt: now})
		must(t, err)
	}
	for _, q := range []string{
		`UPDATE river_job SET state = 'running' WHERE json_extract(args, '$.guid') = 'running'`,
		`DELETE FROM river_job WHERE json_extract(args, '$.guid') = 'lost'`,
	} {
		res, err := s.db.Exec(q)
		must(t, err)
		if n, _ := res.RowsAffected(); n != 1 {
			t.Fatalf("%s changed %d rows", q, n)
		}
	}
	must(t, s.Close())
	s = openAt(t, path)
	r := &recorder{done: make(chan string, 100)}
	startWork(t, s, path, r)
	expect(t, r, "dispatch running", "dispatch lost", "dispatch waiting")
}

func TestReconcileAddsNothingTwice(t *testing.T) {
	s := newStore(t)
	running(t, s)
	count := func() (n int) {
		must(t, s.db.QueryRow(`SELECT count(*) FROM river_job`).Scan(&n))
		return n
	}
	before := count()
	must(t, s.Reconcile(t.Context()))
	if after := count(); after != before {
		t.Errorf("%d jobs became %d", before, after)
	}
	_, err := s.db.Exec(`DELETE FROM river_job`)
	must(t, err)
	must(t, s.Reconcile(t.Context()))
	jobs, err := s.Pending(t.Context())
	must(t, err)
	if n := count(); n != len(jobs) || n == 0 {
		t.Errorf("%d jobs for %v", n, jobs)
	}
}
