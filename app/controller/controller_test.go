package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"underwrite/app/evidence"
	"underwrite/app/evidence/evidencetest"
	"underwrite/attest"
	"underwrite/handlers/checks"
	"underwrite/handlers/freeze"
	"underwrite/runner/quarantine"
	"underwrite/runner/wire"
	"underwrite/store"
	"underwrite/store/storetest"
)

// TestEndings: how an execution ends, and what GitHub shows then.
func TestEndings(t *testing.T) {
	limits := evidencetest.New(t).Profile().Sandbox.Limits
	for name, c := range map[string]struct {
		ends []ending // the last one repeats
		want string
		jobs int
	}{
		"passes":     {[]ending{{}}, "success: passed", 1},
		"other exit": {[]ending{{exit: 3}}, "failure: exit 3, expected 0", 1},
		"timed out":  {[]ending{{fault: &wire.Fault{Kind: wire.FaultWall, Limit: limits.WallSeconds}}}, "timed_out: timed out after 60 s", 1},
		"out of CPU": {[]ending{{fault: &wire.Fault{Kind: wire.FaultCPU}}}, "timed_out: timed out after 30 s", 1},
		"memory":     {[]ending{{fault: &wire.Fault{Kind: wire.FaultMemory}}}, "failure: out of memory", 1},
		"unsupported output": {[]ending{{fault: &wire.Fault{Kind: wire.FaultUnsupportedOutput, Detail: "empty directory", Path: "build"}}},
			"failure: unsupported output: empty directory build", 1},
		"refused input":      {[]ending{{fault: &wire.Fault{Kind: wire.FaultRefusedInput, Detail: "too large"}}}, "failure: cannot run: too large", 1},
		"our fault once":     {[]ending{{failed: "interrupted"}, {}}, "success: passed", 2},
		"our fault for ever": {[]ending{{failed: "disk is full"}}, "action_required: could not run: disk is full", 5},
		"unknown fault":      {[]ending{{fault: &wire.Fault{Kind: "new-kind"}}, {exit: 1}}, "failure: exit 1", 2},
		"expired":            {[]ending{{fault: &wire.Fault{Kind: wire.FaultExpired}}, {}}, "success: passed", 2},
		"policy":             {[]ending{{fault: &wire.Fault{Kind: wire.FaultPolicy, Detail: "no such profile"}}}, "action_required: could not run: not allowed by the gateway's policy: no such profile", 1},
		"retry":              {[]ending{{retry: "busy"}, {}}, "success: passed", 1},
		"evidence for another job": {[]ending{{edit: func(e *attest.ExpectedReceipt) { e.Job.Cwd = "src" }}},
			"action_required: could not run: the gateway's evidence does not verify", 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var asked int
			w.gateway.script = func(_ string, n int) ending {
				asked++
				if c.ends[0].retry != "" {
					n = asked - 1
				}
				return c.ends[min(n, len(c.ends)-1)]
			}
			w.hub.open(1, sha("a"))
			w.deliver("g1", "opened", 1)
			w.drain()
			w.want(sha("a"), c.want)
			if n := w.gateway.count(sha("a")); n != c.jobs {
				t.Errorf("%d executions, want %d", n, c.jobs)
			}
			if !strings.Contains(name, "another job") { // that directory is kept for people
				w.finished()
			}
		})
	}
}

// TestShownProgress: a check run goes from queued over in progress to completed.
func TestShownProgress(t *testing.T) {
	w := newWorld(t)
	w.hub.open(1, sha("a"))
	w.deliver("g1", "opened", 1)
	w.drain()
	for _, r := range w.hub.runs {
		if !slices.IsSorted(order(r.history)) || r.history[0] != "queued" || r.history[len(r.history)-1] != "completed success" {
			t.Errorf("history %q", r.history)
		}
		if !strings.Contains(r.Text, "3 passed") || r.Name != "underwrite/tests" || !strings.Contains(r.Summary, w.gateway.signer.KeyID) {
			t.Errorf("check run shows %+v", r.Run)
		}
	}
}

func order(history []string) (n []int) {
	for _, h := range history {
		n = append(n, slices.Index([]string{"queued", "in_progress", "completed success"}, h))
	}
	return n
}

// TestLiveOutputIsShownWithoutReceipt: what the job wrote before it timed out.
func TestLiveOutputIsShownWithoutReceipt(t *testing.T) {
	w := newWorld(t)
	w.gateway.script = func(string, int) ending { return ending{fault: &wire.Fault{Kind: wire.FaultWall}} }
	w.hub.open(1, sha("a"))
	w.deliver("g1", "opened", 1)
	w.drain()
	for _, r := range w.hub.runs {
		if !strings.Contains(r.Text, "live") {
			t.Errorf("text %q", r.Text)
		}
	}
}

// TestSupersede: a push, a retarget and a close stop the running job, and its
// check run is completed as cancelled.
func TestSupersede(t *testing.T) {
	for name, c := range map[string]struct {
		action string
		edit   func(*freeze.PullRequest)
		old    []string
		head   string
		now    []string
	}{
		"push": {"synchronize", func(pr *freeze.PullRequest) { pr.HeadSHA = sha("c") }, []string{"cancelled: superseded by " + sha("c")}, sha("c"), []string{"success: passed"}},
		"retarget": {"edited", func(pr *freeze.PullRequest) { pr.BaseSHA = sha("c") },
			[]string{"cancelled: superseded by " + sha("a"), "success: passed"}, sha("a"), []string{"cancelled: superseded", "success: passed"}},
		"close": {"closed", func(pr *freeze.PullRequest) { pr.State = "closed" }, []string{"cancelled: cancelled by closing"}, sha("a"), []string{"cancelled"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.gateway.script = func(_ string, n int) ending { return ending{blocks: len(w.gateway.executions) == 0} }
			w.hub.open(1, sha("a"))
			w.deliver("g1", "opened", 1)
			drained := make(chan bool)
			go func() { w.drain(); close(drained) }()
			<-w.gateway.started
			w.hub.edit(1, c.edit)
			w.deliver("g2", c.action, 1)
			// The queue has other workers; drain has only one, which is blocked.
			must(t, w.ctl.Dispatch(t.Context(), "g2"))
			<-drained
			w.drain()
			w.want(sha("a"), c.old...)
			w.want(c.head, c.now...)
			w.finished()
		})
	}
}

// TestSupersededEvidence: evidence that arrives after the push is not a result.
func TestSupersededEvidence(t *testing.T) {
	w := newWorld(t)
	w.hub.open(1, sha("a"))
	w.deliver("g1", "opened", 1)
	w.gateway.script = func(head string, _ int) ending {
		if head == sha("a") { // the push comes while the job is ending
			w.hub.edit(1, func(pr *freeze.PullRequest) { pr.HeadSHA = sha("c") })
			must(t, w.ctl.Sync(context.Background(), 1, w.hub.pulls[1]))
		}
		return ending{}
	}
	w.drain()
	w.want(sha("a"), "cancelled: superseded by "+sha("c"))
	w.want(sha("c"), "success: passed")
	w.finished()
}

func TestReopenedKeepsResults(t *testing.T) {
	w := newWorld(t)
	w.hub.open(1, sha("a"))
	w.deliver("g1", "opened", 1)
	w.drain()
	w.hub.edit(1, func(pr *freeze.PullRequest) { pr.State = "closed" })
	w.deliver("g2", "closed", 1)
	w.drain()
	w.hub.edit(1, func(pr *freeze.PullRequest) { pr.State = "open" })
	w.deliver("g3", "reopened", 1)
	w.drain()
	w.want(sha("a"), "success: passed")
	w.finished()
}

// TestFreezeEnds: what cannot be frozen is refused, or tried again.
func TestFreezeEnds(t *testing.T) {
	for name, c := range map[string]struct {
		fails []error
		want  string
		jobs  int
	}{
		"refused":          {[]error{&freeze.RefusedError{Reason: "diff is too large", Path: "a\nb"}}, `failure: cannot run: diff is too large "a\nb"`, 0},
		"not yet":          {[]error{freeze.ErrNotYet, freeze.ErrNotYet, nil}, "success: passed", 1},
		"moved":            {[]error{freeze.ErrMoved, nil}, "success: passed", 1},
		"broken for ever":  {[]error{errors.New("mirror is broken")}, "action_required: could not run: freeze octo-org/shop#1: mirror is broken", 0},
		"hostile tree":     {[]error{fmt.Errorf("look: %w", &quarantine.RefusedError{Reason: "entry .git", Path: ".git"})}, "failure: cannot run: entry .git .git", 0},
		"broken for a bit": {[]error{errors.New("disk is full"), nil}, "success: passed", 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var n int
			w.hub.freezes = func(int64) error {
				n++
				w.now = w.now.Add(time.Minute) // so that "for ever" is over soon
				return c.fails[min(n, len(c.fails))-1]
			}
			w.hub.open(1, sha("a"))
			w.deliver("g1", "opened", 1)
			w.drain()
			w.want(sha("a"), c.want)
			if got := w.gateway.count(sha("a")); got != c.jobs {
				t.Errorf("%d executions, want %d", got, c.jobs)
			}
			w.finished()
		})
	}
}

// TestWorkingDirectoryRefused: a check that can never start spends no number,
// and the gateway never hears of it; the others run.
func TestWorkingDirectoryRefused(t *testing.T) {
	w := newWorld(t)
	elsewhere := w.gateway.signer.Profile()
	elsewhere.Job.Cwd = "docs"
	w.checks = append(w.checks, Check{Name: "docs", ProfileName: "docs", Profile: elsewhere, Group: "docs", Concurrency: 1})
	w.gateway.inspector = evidencetest.Inspector{Tree: w.gateway.signer.InputTree, Refused: evidence.Refused{
		"docs": {Reason: "working directory goes through a symbolic link", Path: "do\ncs"},
	}}
	w.hub.open(1, sha("a"))
	w.deliver("g1", "opened", 1)
	w.drain()
	w.want(sha("a"), `failure: cannot run: working directory goes through a symbolic link "do\ncs"`, "success: passed")
	if got := w.gateway.count(sha("a")); got != 1 {
		t.Errorf("%d executions, want 1", got)
	}
	w.finished()
}

// TestFrozenOther: the pull request moves before it is frozen, and no event
// says so.
func TestFrozenOther(t *testing.T) {
	w := newWorld(t)
	w.hub.open(1, sha("a"))
	w.deliver("g1", "opened", 1)
	var once bool
	w.hub.freezes = func(int64) error {
		if !once {
			once = true
			w.hub.edit(1, func(pr *freeze.PullRequest) { pr.HeadSHA = sha("c") })
		}
		return nil
	}
	w.drain()
	w.want(sha("a"), "cancelled: superseded by "+sha("c"))
	w.want(sha("c"), "success: passed")
	w.finished()
}

// TestGatewayIsAway: nothing is known for longer than anybody waits.
func TestGatewayIsAway(t *testing.T) {
	w := newWorld(t)
	w.hub.open(1, sha("a"))
	w.deliver("g1", "opened", 1)
	w.gateway.script = func(string, int) ending {
		w.now = w.now.Add(10 * time.Minute)
		return ending{retry: "no memory left"}
	}
	w.drain()
	w.want(sha("a"), "action_required: could not run: execution 1: no memory left")
	w.finished()
}

// TestSharedHead: one commit heads two pull requests, and the worst result
// counts for both.
func TestSharedHead(t *testing.T) {
	w := newWorld(t)
	w.gateway.script = func(_ string, n int) ending { return ending{exit: int64(n)} } // the second one fails
	w.hub.open(1, sha("a"))
	w.hub.open(2, sha("a"))
	w.deliver("g1", "opened", 1)
	w.deliver("g2", "opened", 2)
	w.drain()
	got := w.conclusions(sha("a"))
	if len(got) != 2 || !strings.HasPrefix(got[0], "failure") || !strings.HasPrefix(got[1], "failure") {
		t.Errorf("shown: %q", got)
	}
	w.finished()
}

// TestSharedHeadClosed: a held success is shown when the other pull request is
// closed.
func TestSharedHeadClosed(t *testing.T) {
	w := newWorld(t)
	w.hub.open(1, sha("a"))
	w.hub.open(2, sha("a"))
	w.hub.freezes = func(n int64) error {
		if n == 2 {
			return freeze.ErrNotYet
		}
		return nil
	}
	w.deliver("g1", "opened", 1)
	w.deliver("g2", "opened", 2)
	for range 20 { // drain would wait for the second one
		jobs, err := w.store.Pending(t.Context())
		must(t, err)
		for _, j := range jobs {
			j.Do(t.Context(), w.ctl)
		}
	}
	if got := w.conclusions(sha("a")); slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "success") }) {
		t.Errorf("shown while the other is open: %q", got)
	}
	w.hub.edit(2, func(pr *freeze.PullRequest) { pr.State = "closed" })
	w.deliver("g3", "closed", 2)
	w.drain()
	w.want(sha("a"), "cancelled: cancelled by closing", "success: passed")
	w.finished()
}

func TestUndeliverable(t *testing.T) {
	w := newWorld(t)
	w.hub.gone = true
	w.hub.open(1, sha("a"))
	w.deliver("g1", "opened", 1)
	for range 30 {
		jobs, err := w.store.Pending(t.Context())
		must(t, err)
		if len(jobs) == 0 {
			break
		}
		for _, j := range jobs {
			j.Do(t.Context(), w.ctl)
		}
		w.now = w.now.Add(time.Minute)
	}
	runs, err := w.store.CheckRuns(t.Context(), repo, 1)
	must(t, err)
	if len(runs) != 1 || !strings.Contains(runs[0].Undeliverable, checks.ErrGone.Error()) {
		t.Errorf("check runs %+v", runs)
	}
}

func TestIgnoredDeliveries(t *testing.T) {
	w := newWorld(t)
	w.hub.open(1, sha("a"))
	w.deliver("g1", "labeled", 1)
	w.drain()
	d, err := w.store.Delivery(t.Context(), "g1")
	must(t, err)
	if d.State != store.Ignored || !strings.Contains(d.Note, "labeled") || len(w.hub.runs) != 0 {
		t.Errorf("delivery %s: %s", d.State, d.Note)
	}
}

// TestReplayedEvidence: consuming the same evidence again changes nothing, other
// evidence is refused.
func TestReplayedEvidence(t *testing.T) {
	w := newWorld(t)
	w.hub.open(1, sha("a"))
	w.deliver("g1", "opened", 1)
	w.drain()
	x, err := w.store.Execution(t.Context(), 1)
	must(t, err)
	before, err := w.store.Evidence(t.Context(), x.ID)
	must(t, err)
	request, err := attest.ParseRequest(x.Request)
	must(t, err)
	again := func(files map[string][]byte) {
		t.Helper()
		dir := t.TempDir() + "/evidence"
		evidencetest.Write(t, dir, files)
		if err := w.ctl.consume(t.Context(), x, request, &run{}, dir); err != nil {
			t.Error(err)
		}
		after, err := w.store.Evidence(t.Context(), x.ID)
		must(t, err)
		if after.ReceiptSHA256 != before.ReceiptSHA256 || !after.ConsumedAt.Equal(before.ConsumedAt) || after.Transport != before.Transport {
			t.Errorf("evidence became %+v", after)
		}
	}
	for _, e := range w.gateway.executions {
		again(e.files)
		again(w.gateway.signer.Files(t, evidencetest.Run{Request: x.Request, ExitCode: 9, Output: "other", Issued: w.now.Add(-time.Minute)}))
	}
	w.finished()
}

// TestBrokenBundleIsNotTheAuthorsFault: the frozen bundle is damaged on our disk.
func TestBrokenBundleIsNotTheAuthorsFault(t *testing.T) {
	w := newWorld(t)
	w.hub.open(1, sha("a"))
	w.deliver("g1", "opened", 1)
	must(t, w.ctl.Dispatch(t.Context(), "g1"))
	jobs, err := w.store.Pending(t.Context())
	must(t, err)
	for _, j := range jobs {
		must(t, j.Do(t.Context(), w.ctl))
	}
	x, err := w.store.Execution(t.Context(), 1)
	must(t, err)
	request, err := attest.ParseRequest(x.Request)
	must(t, err)
	must(t, os.Remove(w.ctl.Blobs.Path(bundleRef(request.Target))))
	if err := w.ctl.Execute(t.Context(), x.ID); err == nil {
		t.Fatal("executed without a source bundle")
	}
	w.now = w.now.Add(2 * Patience)
	w.drain()
	w.want(sha("a"), "action_required: could not run: execution 1: blob is missing")
	w.finished()
}

// TestConcurrency: executions beyond a check's concurrency wait.
func TestConcurrency(t *testing.T) {
	w := newWorld(t)
	w.checks[0].Concurrency = 1
	w.gateway.script = func(string, int) ending { return ending{blocks: true} }
	w.hub.open(1, sha("a"))
	w.hub.open(2, sha("c"))
	must(t, w.ctl.Sync(t.Context(), 1, w.hub.pulls[1]))
	must(t, w.ctl.Sync(t.Context(), 1, w.hub.pulls[2]))
	jobs, err := w.store.Pending(t.Context())
	must(t, err)
	for _, j := range jobs {
		must(t, j.Do(t.Context(), w.ctl))
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() { first <- w.ctl.Execute(ctx, 1) }()
	<-w.gateway.started
	var snooze *store.SnoozeError
	if err := w.ctl.Execute(t.Context(), 2); !errors.As(err, &snooze) {
		t.Errorf("second execution: %v, want it to wait", err)
	}
	if err := w.ctl.Execute(t.Context(), 1); !errors.As(err, &snooze) {
		t.Errorf("the same execution again: %v, want it to wait", err)
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("stopped execution: %v", err)
	}
	x, err := w.store.Execution(t.Context(), 1)
	must(t, err)
	if x.State != store.Running {
		t.Errorf("after a stop of the process it is %s, want running", x.State)
	}
}

// story is what happens in TestEveryFailure: one pull request that passes and is
// pushed to, and one whose first proof fails by our fault.
func story(w *world) {
	w.gateway.script = func(head string, n int) ending {
		switch {
		case head == sha("d") && n == 0:
			return ending{failed: "interrupted"}
		case head == sha("d"):
			return ending{exit: 2}
		}
		return ending{}
	}
	w.hub.open(1, sha("a"))
	w.deliver("g1", "opened", 1)
	w.drain()
	w.hub.edit(1, func(pr *freeze.PullRequest) { pr.HeadSHA = sha("c") })
	w.hub.open(2, sha("d"))
	w.deliver("g2", "synchronize", 1)
	w.deliver("g3", "opened", 2)
	w.drain()
	w.want(sha("a"), "success: passed")
	w.want(sha("c"), "success: passed")
	w.want(sha("d"), "failure: exit 2, expected 0")
	w.finished()
}

// inMemory puts the test's files on a memory file system if there is room: what
// is synced does not matter here, and hundreds of worlds sync a lot.
func inMemory(t *testing.T) {
	const dir, room = "/dev/shm", 256 << 20
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) == nil && int64(s.Bavail)*s.Bsize >= room && unix.Access(dir, unix.W_OK) == nil {
		t.Setenv("TMPDIR", dir)
	}
}

// TestEveryFailure lets each write and each call to the outside fail, in every
// way: what failed is repeated or recovered after a restart, and in the end
// everything is as if nothing had failed.
func TestEveryFailure(t *testing.T) {
	inMemory(t)
	for _, mode := range storetest.Modes {
		for n := 1; ; n += everyNth {
			var hit string
			ok := t.Run(fmt.Sprintf("%s/%d", mode, n), func(t *testing.T) {
				w := newWorld(t)
				w.faults.Arm(n, mode)
				story(w)
				hit = w.faults.Where()
			})
			if hit == "" {
				if ok && n < 30 {
					t.Errorf("only %d calls could fail: the story is too short to show anything", n-1)
				}
				break
			}
		}
	}
}
