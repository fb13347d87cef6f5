package store

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestCheckRunByExternalID(t *testing.T) {
	s := newStore(t)
	running(t, s)
	want := checkRuns(t, s)[1]
	run, others, err := s.CheckRunByExternalID(t.Context(), want.ExternalID)
	must(t, err)
	if run.ID != want.ID || len(others) != 0 {
		t.Errorf("check run %d with %d others, want %d", run.ID, len(others), want.ID)
	}
	twin := pull
	twin.Number++
	sync(t, s, twin)
	if _, others, err = s.CheckRunByExternalID(t.Context(), want.ExternalID); err != nil || len(others) != 1 {
		t.Errorf("with a twin: %d others, %v", len(others), err)
	}
	if _, _, err := s.CheckRunByExternalID(t.Context(), "nobody"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown id: %v, want ErrNotFound", err)
	}
}

func TestLatestCheckRuns(t *testing.T) {
	s := newStore(t)
	if list, err := s.LatestCheckRuns(t.Context(), 3); err != nil || len(list) != 0 {
		t.Errorf("empty: %d, %v", len(list), err)
	}
	sync(t, s, pull)
	next := pull
	next.Number++
	sync(t, s, next)
	list, err := s.LatestCheckRuns(t.Context(), 3)
	must(t, err)
	if len(list) != 3 || list[0].Session.Number != next.Number || list[2].Session.Number != pull.Number || list[0].ID < list[1].ID {
		t.Errorf("not the newest three, newest first: %+v", list)
	}
}

func TestStats(t *testing.T) {
	s := newStore(t)
	x := running(t, s)
	_, err := s.Consume(t.Context(), proof(x), Passed, now.Add(3*time.Second))
	must(t, err)
	d := Delivery{GUID: "1", Event: "pull_request", Body: []byte("{}"), BodySHA256: hex64("a"), ReceivedAt: now}
	_, err = s.SaveDelivery(t.Context(), d)
	must(t, err)
	d.BodySHA256 = hex64("b")
	_, err = s.SaveDelivery(t.Context(), d)
	must(t, err)

	st, err := s.Stats(t.Context())
	must(t, err)
	if st.Executions[Passed] != 1 || st.Executions[Reserved] != 1 || st.Deliveries[Received] != 1 || st.DeliveryConflicts != 1 {
		t.Errorf("counts: %+v", st)
	}
	if st.Unposted != 2 || st.Undeliverable != 0 || st.EvidenceConflicts != 0 {
		t.Errorf("check runs and conflicts: %+v", st)
	}
	if n := st.Jobs[JobKey{"dispatch", "available"}]; n != 1 {
		t.Errorf("%d dispatch jobs of %v", n, st.Jobs)
	}
	// Started when it was reserved, over three seconds later.
	if st.Wait.Count != 1 || st.Wait.Sum != 0 || st.Wait.Below[0] != 1 {
		t.Errorf("wait: %+v", st.Wait)
	}
	if st.Duration.Count != 1 || st.Duration.Sum != 3*time.Second {
		t.Errorf("duration: %+v", st.Duration)
	}
	for i, bound := range DurationBounds {
		if got := st.Duration.Below[i] == 1; got != (bound >= 3*time.Second) {
			t.Errorf("at most %s: %d", bound, st.Duration.Below[i])
		}
	}
}

// TestCountingIsCheap: the counts never read the large rows.
func TestCountingIsCheap(t *testing.T) {
	s := newStore(t)
	for query, index := range map[string]string{
		`SELECT state, count(*) FROM deliveries GROUP BY state`:                                                     "deliveries_state",
		`SELECT state, count(*) FROM executions GROUP BY state`:                                                     "executions_",
		`SELECT count(*), sum(finished_at - started_at) FROM executions WHERE finished_at - started_at IS NOT NULL`: "executions_times",
	} {
		rows, err := s.read.Query(`EXPLAIN QUERY PLAN ` + query)
		must(t, err)
		for rows.Next() {
			var a, b, c int
			var plan string
			must(t, rows.Scan(&a, &b, &c, &plan))
			if !strings.Contains(plan, "COVERING INDEX "+index) {
				t.Errorf("%s: %s", query, plan)
			}
		}
		must(t, rows.Close())
	}
}

func TestHealth(t *testing.T) {
	s := newStore(t)
	if err := s.Health(t.Context(), now); !errors.Is(err, ErrUnhealthy) {
		t.Errorf("without Work: %v, want ErrUnhealthy", err)
	}
	s.working.Store(true) // as Work does
	must(t, s.Health(t.Context(), now))
	_, err := s.SaveDelivery(t.Context(), Delivery{GUID: "1", Event: "ping", Body: []byte("{}"), BodySHA256: hex64("a"), ReceivedAt: now})
	must(t, err)
	must(t, s.Health(t.Context(), time.Now()))
	if err := s.Health(t.Context(), time.Now().Add(2*stalledAfter)); !errors.Is(err, ErrUnhealthy) {
		t.Errorf("with a delivery that nobody takes: %v, want ErrUnhealthy", err)
	}
	_, err = s.db.Exec(`UPDATE river_job SET state = 'retryable'`)
	must(t, err)
	if err := s.Health(t.Context(), time.Now().Add(2*stalledAfter)); err != nil {
		t.Errorf("with a delivery that waits for its next try: %v", err)
	}
}

// TestHealthOfTheWriter: a writer that never comes free is no health, and the
// asking ends with its context.
func TestHealthOfTheWriter(t *testing.T) {
	s := newStore(t)
	s.working.Store(true)
	tx, err := s.db.Begin()
	must(t, err)
	defer tx.Rollback()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Health(ctx, now); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Health = %v, want a deadline", err)
	}
}

// TestHealthWhileWorking: Work counts as running exactly while it runs.
func TestHealthWhileWorking(t *testing.T) {
	path := newPath(t)
	lock, err := AcquireLock(path)
	must(t, err)
	defer lock.Release()
	s := openAt(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Work(ctx, lock, nil, Workers{1, 1, 1, 1, 1}, time.Second) }()
	for s.Health(t.Context(), time.Now()) != nil {
		select {
		case err := <-done:
			t.Fatal("Work returned: ", err)
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	must(t, <-done)
	if err := s.Health(t.Context(), time.Now()); !errors.Is(err, ErrUnhealthy) {
		t.Errorf("after Work: %v, want ErrUnhealthy", err)
	}
}
