package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	stdsync "sync"
	"sync/atomic"
	"testing"
	"time"

	"underwrite/store/blob"
	"underwrite/store/storetest"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)

func hex64(c string) string { return strings.Repeat(c, 64) }
func hex40(c string) string { return strings.Repeat(c, 40) }

// template is an empty database, made once: migrating is most of a test's time.
var template = stdsync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "underwrite-store-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "template.db")
	if err := Create(context.Background(), path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

func newPath(t *testing.T) string {
	t.Helper()
	b, err := template()
	must(t, err)
	path := filepath.Join(t.TempDir(), "underwrite.db")
	must(t, os.WriteFile(path, b, 0o600))
	return path
}

func openAt(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func newStore(t *testing.T) *Store {
	t.Helper()
	return openAt(t, newPath(t))
}

var (
	pull   = Pull{Repo: "octo-org/shop", Number: 7, InstallationID: 1, Open: true, BaseSHA: hex40("b"), HeadSHA: hex40("a")}
	two    = []Check{{Name: "tests", ProfileName: "p", Profile: []byte("{}")}, {Name: "lint", ProfileName: "q", Profile: []byte("{}")}}
	frozen = Frozen{Target: []byte(`{"t":1}`), TargetSHA256: hex64("7"), InputTree: hex64("8")}
)

var challenges atomic.Int64

func build(_ Session, c Check, seq int64) (Reservation, error) {
	return Reservation{Challenge: fmt.Sprintf("%064x", challenges.Add(1)), Request: fmt.Appendf(nil, "%s %d", c.Name, seq), RequestSHA256: hex64("d")}, nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sync(t *testing.T, s *Store, p Pull) Stopped {
	t.Helper()
	stopped, err := s.Sync(t.Context(), p, two, build, now)
	must(t, err)
	return stopped
}

// current is the pull request's current session; its ID is empty if there is none.
func current(t *testing.T, s *Store) Session {
	t.Helper()
	var sess Session
	err := s.view(t.Context(), "current session", func(tx *sql.Tx) (err error) {
		sess, err = currentSession(t.Context(), tx, pull.Repo, pull.Number)
		return err
	})
	if err != nil && !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	return sess
}

// running brings the pull request to a running execution of its first check.
func running(t *testing.T, s *Store) Execution {
	t.Helper()
	sync(t, s, pull)
	must(t, s.SetReady(t.Context(), current(t, s).ID, frozen, build, now))
	runs := checkRuns(t, s)
	must(t, s.StartExecution(t.Context(), runs[0].Execution.ID, now))
	x, err := s.Execution(t.Context(), runs[0].Execution.ID)
	must(t, err)
	return x
}

func checkRuns(t *testing.T, s *Store) []CheckRun {
	t.Helper()
	runs, err := s.CheckRuns(t.Context(), pull.Repo, pull.Number)
	must(t, err)
	return runs
}

func proof(x Execution) Evidence {
	return Evidence{
		ExecutionID: x.ID, Capability: []byte("capability"), Receipt: []byte("receipt"), CapabilitySHA256: hex64("1"),
		ReceiptSHA256: hex64("2"), SignerID: "signer", ExecutorID: "executor", KeyID: "key", ExitCode: 0,
		InputTree: hex64("8"), OutputTree: hex64("9"), Output: blob.Ref{SHA256: hex64("3"), Bytes: 10},
		Stdout: blob.Ref{SHA256: hex64("4"), Bytes: 1}, Stderr: blob.Ref{SHA256: hex64("5")}, Validation: []byte("{}"), Transport: "/out/1",
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	foreign := write("foreign.db", "")
	db, err := sql.Open("sqlite", foreign)
	must(t, err)
	_, err = db.Exec(`CREATE TABLE customers (id INTEGER)`)
	must(t, err)
	must(t, db.Close())
	newer := newPath(t)
	s := openAt(t, newer)
	_, err = s.db.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)`)
	must(t, err)
	older := newPath(t)
	s2 := openAt(t, older)
	_, err = s2.db.Exec(`DELETE FROM river_migration WHERE version > 6`)
	must(t, err)
	damaged := newPath(t)
	must(t, os.Truncate(damaged, 8192))

	for name, c := range map[string]struct {
		path string
		want error
	}{
		"missing":        {filepath.Join(dir, "nothing.db"), ErrMissing},
		"directory":      {dir, ErrMissing},
		"empty file":     {write("empty.db", ""), ErrCorrupt},
		"text file":      {write("text.db", strings.Repeat("no database\n", 1000)), ErrCorrupt},
		"foreign":        {foreign, ErrCorrupt},
		"newer":          {newer, ErrVersion},
		"older queue":    {older, ErrVersion},
		"truncated file": {damaged, ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(t.Context(), c.path, Options{})
			if !errors.Is(err, c.want) {
				t.Errorf("Open = %v, want %v", err, c.want)
			}
			if err == nil {
				s.Close()
			} else if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.path) {
				t.Errorf("error %q is not one line that names the file", err)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(dir, "nothing.db")); !errors.Is(err, os.ErrNotExist) {
		t.Error("Open made a database")
	}
	if err := Create(t.Context(), newer); !errors.Is(err, ErrVersion) {
		t.Errorf("Create over a newer database = %v, want ErrVersion", err)
	}
	if err := Create(t.Context(), foreign); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Create over a foreign database = %v, want ErrCorrupt", err)
	}
}

func TestCreateIsRepeatableAndPrivate(t *testing.T) {
	path := newPath(t)
	sync(t, openAt(t, path), pull)
	must(t, Create(t.Context(), path))
	if current(t, openAt(t, path)).ID == "" {
		t.Error("a second Create lost the session")
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// TestPragmas: every connection of both handles has them.
func TestPragmas(t *testing.T) {
	s := newStore(t)
	for name, db := range map[string]*sql.DB{"writer": s.db, "reader": s.read} {
		for pragma, want := range map[string]string{"foreign_keys": "1", "synchronous": "2", "journal_mode": "wal", "busy_timeout": "5000"} {
			var got string
			if err := db.QueryRow(`PRAGMA ` + pragma).Scan(&got); err != nil || got != want {
				t.Errorf("%s: %s = %q, %v, want %q", name, pragma, got, err, want)
			}
		}
	}
	if _, err := s.read.Exec(`DELETE FROM deliveries`); err == nil {
		t.Error("the reading handle writes")
	}
}

func TestLock(t *testing.T) {
	path := newPath(t)
	l, err := AcquireLock(path)
	must(t, err)
	if _, err := AcquireLock(path); !errors.Is(err, ErrLocked) {
		t.Errorf("second lock: %v, want ErrLocked", err)
	}
	must(t, l.Release())
	l, err = AcquireLock(path)
	must(t, err)
	must(t, l.Release())
}

func TestSaveDelivery(t *testing.T) {
	s := newStore(t)
	d := Delivery{GUID: "g", Event: "pull_request", Body: []byte("{}"), BodySHA256: hex64("a"), ReceivedAt: now}
	for _, c := range []struct {
		sum  string
		want Saved
	}{{"a", SavedNew}, {"a", SavedDuplicate}, {"b", SavedConflict}, {"b", SavedConflict}, {"a", SavedDuplicate}} {
		d.BodySHA256 = hex64(c.sum)
		if got, err := s.SaveDelivery(t.Context(), d); err != nil || got != c.want {
			t.Errorf("body %s: %v, %v, want %v", c.sum, got, err, c.want)
		}
	}
	got, err := s.Delivery(t.Context(), "g")
	if err != nil || got.BodySHA256 != hex64("a") || got.State != Received || !got.ReceivedAt.Equal(now) {
		t.Errorf("Delivery = %+v, %v", got, err)
	}
	must(t, s.FinishDelivery(t.Context(), "g", Handled, "", now))
	if err := s.FinishDelivery(t.Context(), "g", Ignored, "", now); !errors.Is(err, ErrState) {
		t.Errorf("finishing twice: %v, want ErrState", err)
	}
	if _, err := s.Delivery(t.Context(), "other"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown delivery: %v", err)
	}
}

func TestSync(t *testing.T) {
	closed, pushed, retargeted := pull, pull, pull
	closed.Open = false
	pushed.HeadSHA = hex40("c")
	retargeted.BaseSHA = hex40("c")
	for _, c := range []struct {
		name    string
		then    []Pull
		new     bool // another session than the first one is current
		none    bool // no session is current
		state   RunState
		by      string
		stopped int // executions, by the last step
	}{
		{name: "same again", then: []Pull{pull}, state: InProgress},
		{name: "push", then: []Pull{pushed}, new: true, state: Superseded, by: pushed.HeadSHA, stopped: 2},
		{name: "retarget", then: []Pull{retargeted}, new: true, state: Superseded, by: pull.HeadSHA, stopped: 2},
		{name: "push and back", then: []Pull{pushed, pull}, new: true, state: Superseded, by: pushed.HeadSHA},
		{name: "close", then: []Pull{closed}, none: true, state: Cancelled, by: "closed", stopped: 2},
		{name: "close twice", then: []Pull{closed, closed}, none: true, state: Cancelled, by: "closed"},
		{name: "reopen what was cancelled", then: []Pull{closed, pull}, new: true, state: Cancelled, by: "closed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			x := running(t, s)
			var stopped Stopped
			for _, p := range c.then {
				stopped = sync(t, s, p)
			}
			if len(stopped.Executions) != c.stopped {
				t.Errorf("stopped %v, want %d executions", stopped, c.stopped)
			}
			sess := current(t, s)
			if (sess.ID == "") != c.none || !c.none && (sess.ID != x.SessionID) != c.new {
				t.Errorf("current session %q, first one %q", sess.ID, x.SessionID)
			}
			run := checkRuns(t, s)[0]
			if run.State != c.state || run.By != c.by {
				t.Errorf("first check run is %s by %q, want %s by %q", run.State, run.By, c.state, c.by)
			}
			if e := run.Execution.State; c.state.Terminal() && e != c.state {
				t.Errorf("its execution is %s, want %s", e, c.state)
			}
			invariants(t, s)
		})
	}
}

func TestReopenWithResults(t *testing.T) {
	s := newStore(t)
	x := running(t, s)
	finish(t, s, x)
	closed := pull
	closed.Open = false
	sync(t, s, closed)
	sync(t, s, pull)
	if sess := current(t, s); sess.ID != x.SessionID || sess.State != Ready {
		t.Errorf("reopened as %s %s, want the session with the results", sess.ID, sess.State)
	}
	sync(t, s, closed)
	moved := pull
	moved.BaseSHA = hex40("d")
	sync(t, s, moved)
	if sess := current(t, s); sess.ID == x.SessionID {
		t.Error("reopened with another base as the old session")
	}
	invariants(t, s)
}

// finish passes the first check and faults the other.
func finish(t *testing.T, s *Store, x Execution) {
	t.Helper()
	_, err := s.Consume(t.Context(), proof(x), Passed, now)
	must(t, err)
	must(t, s.EndExecution(t.Context(), checkRuns(t, s)[1].Execution.ID, Faulted, []byte(`{"kind":"wall"}`), Tails{}, now))
}

func TestSyncWithoutChecks(t *testing.T) {
	s := newStore(t)
	if _, err := s.Sync(t.Context(), pull, nil, build, now); err != nil {
		t.Fatal(err)
	}
	if sess := current(t, s); sess.ID != "" {
		t.Errorf("session %+v for a repository without checks", sess)
	}
}

func TestSyncAddsChecks(t *testing.T) {
	s := newStore(t)
	_, err := s.Sync(t.Context(), pull, two[:1], build, now)
	must(t, err)
	must(t, s.SetReady(t.Context(), current(t, s).ID, frozen, build, now))
	sync(t, s, pull)
	runs := checkRuns(t, s)
	if len(runs) != 2 || runs[1].Check.Beat != 2 || runs[1].Execution == nil || runs[1].Execution.Seq != 2 {
		t.Errorf("check runs = %+v", runs)
	}
	invariants(t, s)
}

// TestSetReadyRefuses: a check that can never run spends no number, and the
// other one gets its own.
func TestSetReadyRefuses(t *testing.T) {
	s := newStore(t)
	sync(t, s, pull)
	f := frozen
	f.Refused = map[int64][]byte{1: []byte(`{"kind":"refused-input"}`)}
	must(t, s.SetReady(t.Context(), current(t, s).ID, f, build, now))
	runs := checkRuns(t, s)
	if r := runs[0]; r.State != Refused || string(r.Fault) != `{"kind":"refused-input"}` || r.Execution != nil {
		t.Errorf("the refused check: %+v", r)
	}
	if r := runs[1]; r.State != Queued || r.Execution == nil || r.Execution.Seq != 1 {
		t.Errorf("the other check: %+v", r)
	}
	sync(t, s, pull) // another event changes nothing
	if again := checkRuns(t, s); len(again) != 2 || again[0].State != Refused || again[0].Execution != nil {
		t.Errorf("after another event: %+v", again)
	}
	invariants(t, s)
}

func TestFailSession(t *testing.T) {
	s := newStore(t)
	sync(t, s, pull)
	id := current(t, s).ID
	must(t, s.FailSession(t.Context(), id, Refused, []byte(`{"kind":"refused-input"}`), now))
	if err := s.SetReady(t.Context(), id, frozen, build, now); !errors.Is(err, ErrState) {
		t.Errorf("a failed session becomes ready: %v", err)
	}
	sync(t, s, pull)
	if got := current(t, s); got.ID != id || got.State != Failed {
		t.Errorf("another event made it %s %s", got.ID, got.State)
	}
	for _, run := range checkRuns(t, s) {
		if run.State != Refused || !strings.Contains(string(run.Fault), "refused-input") {
			t.Errorf("check run %s %s", run.State, run.Fault)
		}
	}
	invariants(t, s)
}

// TestExecutionTransitions tries every move from every state.
func TestExecutionTransitions(t *testing.T) {
	states := []RunState{Reserved, Running, Passed, Faulted, OurFault}
	bring := func(t *testing.T, s *Store, to RunState) Execution {
		x := running(t, s)
		switch to {
		case Reserved:
			x = *checkRuns(t, s)[1].Execution
		case Passed:
			_, err := s.Consume(t.Context(), proof(x), Passed, now)
			must(t, err)
		case Faulted:
			must(t, s.EndExecution(t.Context(), x.ID, Faulted, nil, Tails{}, now))
		case OurFault:
			_, err := s.EndOurFault(t.Context(), x.ID, nil, Tails{}, Again{Most: 3}, build, now)
			must(t, err)
		}
		return x
	}
	for _, m := range []struct {
		name string
		from map[RunState]bool
		do   func(context.Context, *Store, Execution) error
	}{
		{"start", map[RunState]bool{Reserved: true}, func(ctx context.Context, s *Store, x Execution) error { return s.StartExecution(ctx, x.ID, now) }},
		{"end", map[RunState]bool{Reserved: true, Running: true}, func(ctx context.Context, s *Store, x Execution) error {
			return s.EndExecution(ctx, x.ID, Refused, nil, Tails{}, now)
		}},
		{"our fault", map[RunState]bool{Reserved: true, Running: true}, func(ctx context.Context, s *Store, x Execution) error {
			_, err := s.EndOurFault(ctx, x.ID, nil, Tails{}, Again{Most: 1}, build, now)
			return err
		}},
		{"consume", map[RunState]bool{Running: true, Passed: true}, func(ctx context.Context, s *Store, x Execution) error {
			_, err := s.Consume(ctx, proof(x), Contradicted, now)
			return err
		}},
	} {
		for _, from := range states {
			t.Run(m.name+" from "+string(from), func(t *testing.T) {
				s := newStore(t)
				err := m.do(t.Context(), s, bring(t, s, from))
				if m.from[from] && err != nil || !m.from[from] && !errors.Is(err, ErrState) {
					t.Errorf("%v, allowed: %v", err, m.from[from])
				}
				invariants(t, s)
			})
		}
	}
}

func TestConsume(t *testing.T) {
	s := newStore(t)
	x := running(t, s)
	e := proof(x)
	first, err := s.Consume(t.Context(), e, Contradicted, now)
	must(t, err)
	again, err := s.Consume(t.Context(), e, Contradicted, now.Add(time.Hour))
	if err != nil || !again.ConsumedAt.Equal(first.ConsumedAt) {
		t.Errorf("replay = %v, %v, want the record of %v", again.ConsumedAt, err, first.ConsumedAt)
	}
	for name, change := range map[string]func(*Evidence){
		"receipt":    func(e *Evidence) { e.Receipt = []byte("other") },
		"capability": func(e *Evidence) { e.Capability = []byte("other") },
		"output":     func(e *Evidence) { e.Output.SHA256 = hex64("0") },
		"stdout":     func(e *Evidence) { e.Stdout.Bytes++ },
		"stderr":     func(e *Evidence) { e.Stderr.SHA256 = hex64("0") },
	} {
		other := e
		change(&other)
		if _, err := s.Consume(t.Context(), other, Passed, now); !errors.Is(err, ErrConflict) {
			t.Errorf("other %s: %v, want ErrConflict", name, err)
		}
	}
	run := checkRuns(t, s)[0]
	if run.State != Contradicted || run.Evidence == nil || string(run.Evidence.Receipt) != "receipt" {
		t.Errorf("check run is %s with %+v", run.State, run.Evidence)
	}
	must(t, s.SetAcknowledged(t.Context(), x.ID, now))
	must(t, s.SetAcknowledged(t.Context(), x.ID, now.Add(time.Hour)))
	if e, err := s.Evidence(t.Context(), x.ID); err != nil || !e.AcknowledgedAt.Equal(now) {
		t.Errorf("acknowledged at %v, %v", e.AcknowledgedAt, err)
	}
	invariants(t, s)
}

func TestOurFaultIsBounded(t *testing.T) {
	s := newStore(t)
	x := running(t, s)
	challenges := map[string]bool{}
	for n := int64(1); ; n++ {
		challenges[x.Challenge] = true
		again, err := s.EndOurFault(t.Context(), x.ID, []byte(`{"kind":"internal"}`), Tails{}, Again{Most: 3}, build, now)
		must(t, err)
		if again != (n < 3) {
			t.Fatalf("after %d proofs: again = %v", n, again)
		}
		if !again {
			break
		}
		next := *checkRuns(t, s)[0].Execution
		if next.ID == x.ID || next.Seq <= x.Seq || next.State != Reserved {
			t.Fatalf("next proof = %+v", next)
		}
		must(t, s.StartExecution(t.Context(), next.ID, now))
		x = next
	}
	if run := checkRuns(t, s)[0]; run.State != OurFault || len(challenges) != 3 {
		t.Errorf("check run is %s after %d challenges", run.State, len(challenges))
	}
	invariants(t, s)
}

// TestTriggers: what must not happen is refused by the database itself.
func TestTriggers(t *testing.T) {
	s := newStore(t)
	x := running(t, s)
	refuse := func(query string) {
		t.Helper()
		if _, err := s.db.Exec(query); err == nil {
			t.Errorf("accepted: %s", query)
		}
	}
	refuse(`UPDATE executions SET state = 'passed', finished_at = 1 WHERE state = 'running'`)
	refuse(`UPDATE executions SET request = x'00'`)
	refuse(`INSERT INTO executions (session_id, seq, beat, attempt, check_run_id, challenge, request, request_sha256, predicted, state, reserved_at)
		SELECT session_id, 99, beat, 1, check_run_id, 'ff' || substr(challenge, 3), request, request_sha256, 0, 'reserved', 1 FROM executions WHERE id = 1`)
	finish(t, s, x)
	refuse(`UPDATE executions SET state = 'running', finished_at = NULL`)
	refuse(`UPDATE evidence SET receipt = x'00'`)
	refuse(`INSERT INTO evidence SELECT 2, capability, receipt, capability_sha256, '` + hex64("f") + `', signer_id, executor_id, key_id,
		exit_code, input_tree, output_tree, started_at, finished_at, output_sha256, output_bytes, stdout_sha256, stdout_bytes, stderr_sha256, stderr_bytes,
		validation, transport, consumed_at, NULL FROM evidence`)
	refuse(`UPDATE check_runs SET state = 'queued', completed_at = NULL`)
	refuse(`UPDATE sessions SET state = 'done'`)
	refuse(`DELETE FROM sessions`)
}

func TestCheckRunOthers(t *testing.T) {
	s := newStore(t)
	sync(t, s, pull)
	twin, stranger, gone := pull, pull, pull
	twin.Number, stranger.Number, stranger.HeadSHA, gone.Number = 8, 9, hex40("e"), 10
	sync(t, s, twin)
	sync(t, s, stranger)
	sync(t, s, gone)
	gone.Open = false
	sync(t, s, gone)
	run, others, err := s.CheckRun(t.Context(), checkRuns(t, s)[1].ID)
	must(t, err)
	if len(others) != 1 || others[0].Session.Number != 8 || others[0].Check.Name != run.Check.Name || run.Check.Name != "lint" {
		t.Errorf("others of %s = %+v", run.Check.Name, others)
	}
}

// TestHeldResults: a result that waits for the same check of a twin is posted
// again when the twin's is over, however it ends, and never after it was shown.
func TestHeldResults(t *testing.T) {
	twin := pull
	twin.Number = 8
	closed := twin
	closed.Open = false
	for name, end := range map[string]func(t *testing.T, s *Store, id string){
		"failed": func(t *testing.T, s *Store, id string) { must(t, s.FailSession(t.Context(), id, Refused, nil, now)) },
		"closed": func(t *testing.T, s *Store, _ string) { sync(t, s, closed) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			x := running(t, s)
			sync(t, s, twin)
			finish(t, s, x)
			held, shown := checkRuns(t, s)[0], checkRuns(t, s)[1]
			must(t, s.SetPosted(t.Context(), held.ID, held.Version, 1, false, now))
			must(t, s.SetPosted(t.Context(), shown.ID, shown.Version, 2, true, now))
			runs, err := s.CheckRuns(t.Context(), twin.Repo, twin.Number)
			must(t, err)
			end(t, s, runs[0].Session.ID)
			after := checkRuns(t, s)
			if after[0].Version != held.Version+1 || after[1].Version != shown.Version {
				t.Errorf("versions %d and %d, want %d and %d", after[0].Version, after[1].Version, held.Version+1, shown.Version)
			}
			invariants(t, s)
		})
	}
}

func TestPosting(t *testing.T) {
	s := newStore(t)
	x := running(t, s)
	id := x.CheckRunID
	version := func() (v, posted int64) {
		run := checkRuns(t, s)[0]
		return run.Version, run.PostedVersion
	}
	must(t, s.Touch(t.Context(), id, now))
	if v, _ := version(); v != 3 {
		t.Errorf("version %d, want 3: queued, in progress, touched", v)
	}
	must(t, s.SetPosted(t.Context(), id, 2, 77, false, now))
	must(t, s.SetPosted(t.Context(), id, 1, 77, false, now))
	if _, posted := version(); posted != 2 {
		t.Errorf("posted version went to %d", posted)
	}
	finish(t, s, x)
	must(t, s.Touch(t.Context(), id, now))
	if v, _ := version(); v != 4 {
		t.Errorf("version %d, want 4: a completed check run is not touched", v)
	}
	must(t, s.SetUndeliverable(t.Context(), id, "repository is gone", now))
	jobs, err := s.Pending(t.Context())
	must(t, err)
	for _, j := range jobs {
		if p, ok := j.args.(postJob); ok && p.CheckRunID == id {
			t.Errorf("an undeliverable check run is pending: %s", j)
		}
	}
}

// invariants checks what must hold between any two transactions.
func invariants(t *testing.T, s *Store) {
	t.Helper()
	var path string
	must(t, s.read.QueryRowContext(t.Context(), `SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&path))
	wrong, err := storetest.Check(t.Context(), path)
	must(t, err)
	for _, w := range wrong {
		t.Error(w)
	}
}
