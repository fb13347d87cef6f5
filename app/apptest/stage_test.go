package apptest_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"underwrite/app/apptest"
	"underwrite/app/hubsim"
	"underwrite/app/stage"
)

const shop = "octo-org/shop"

// scriptProfile runs run.sh of the repository.
const scriptProfile = `{argv: [/bin/sh, run.sh], environment: {PATH: "/usr/bin:/bin"}, root: host, ` +
	`limits: {wallSeconds: 50, cpuSeconds: 20, memoryBytes: 268435456, processes: 16, workspaceBytes: 16777216, outputBytes: 65536}}`

// play is a stage with one repository. Its check runs run.sh, which waits for
// ever in a pull request that says so.
type play struct {
	*stage.Stage
	t   *testing.T
	ctx context.Context
}

func newPlay(t *testing.T) *play {
	t.Helper()
	return newPlayOf(t, stage.Check{Name: "tests", Profile: scriptProfile})
}

func newPlayOf(t *testing.T, checks ...stage.Check) *play {
	t.Helper()
	requireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	s, err := stage.New(ctx, stage.Options{
		Self: apptest.Binary(t), Dir: t.TempDir(), Accounts: []string{"octo-org"},
		Checks: checks,
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &play{Stage: s, t: t, ctx: ctx}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for _, v := range s.Hub.Violations() {
			t.Errorf("violation: %s", v)
		}
		if left := leftovers(t, s.Dir); len(left) > 0 {
			t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		}
		if t.Failed() {
			t.Logf("logs:\n%s", logs(t, s.Dir))
		}
	})
	must(t, s.Start(ctx))
	_, err = s.Hub.CreateRepo(shop, hubsim.File("run.sh", "exit 0\n"))
	must(t, err)
	_, err = s.Hub.Install("octo-org")
	must(t, err)
	t.Cleanup(func() {
		if !t.Failed() {
			p.settled()
		}
	})
	return p
}

const (
	quick   = "exit 0\n"
	slow    = "sleep 15\n" // long enough to be caught running, and run again
	waiting = "sleep 45\n" // is never waited for
)

func (p *play) open(branch, script string) (number int64, head string) {
	p.t.Helper()
	number, err := p.Hub.OpenPullRequest(hubsim.NewPullRequest{
		Repo: shop, Branch: branch, Changes: []hubsim.Change{hubsim.File("run.sh", "# "+branch+"\n"+script)},
	})
	must(p.t, err)
	pr, err := p.Hub.PullRequest(shop, number)
	must(p.t, err)
	return number, pr.HeadSHA
}

// until waits until the check run on a head satisfies ok.
func (p *play) until(head, what string, ok func(hubsim.CheckRun) bool) hubsim.CheckRun {
	p.t.Helper()
	var last hubsim.CheckRun
	err := p.Hub.WaitFor(p.ctx, func() bool {
		for _, run := range p.Hub.CheckRuns(shop, head) {
			if last = run; ok(run) {
				return true
			}
		}
		return false
	})
	if err != nil {
		p.t.Fatalf("%.8s: waiting until %s: %v; last %s %s: %s", head, what, err, last.Status, last.Conclusion, last.Title)
	}
	return last
}

func (p *play) untilRunning(head string) {
	p.t.Helper()
	run := p.until(head, "the job runs", func(run hubsim.CheckRun) bool {
		return strings.HasPrefix(run.Title, "running") || run.Status == "completed"
	})
	if run.Status == "completed" {
		p.t.Fatalf("%.8s was never seen running: %s", head, run.Title)
	}
}

func (p *play) untilCompleted(head, conclusion, title string) {
	p.t.Helper()
	run := p.until(head, "it is completed", func(run hubsim.CheckRun) bool { return run.Status == "completed" })
	if run.Conclusion != conclusion || !strings.HasPrefix(run.Title, title) {
		p.t.Errorf("%.8s: %s: %s, want %s: %s", head, run.Conclusion, run.Title, conclusion, title)
	}
	if runs := p.Hub.CheckRuns(shop, head); len(runs) != 1 {
		p.t.Errorf("%.8s has %d check runs, want 1", head, len(runs))
	}
}

// execution finds the process of `underwrite execute` that the gateway started.
func (p *play) execution() int {
	p.t.Helper()
	running := p.executions()
	if len(running) == 0 {
		p.t.Fatal("no execution is running")
	}
	return running[0]
}

// executions are the processes of `underwrite execute`, also of a gateway that
// was killed.
func (p *play) executions() (pids []int) {
	p.t.Helper()
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(p.t, err)
	for _, path := range commands {
		b, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(b, []byte("\x00execute\x00")) || !bytes.Contains(b, []byte(p.Dir)) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		must(p.t, err)
		pids = append(pids, pid)
	}
	return pids
}

// TestExecutionKilled kills the execution itself while its job runs.
func TestExecutionKilled(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	_, head := p.open("slow", slow)
	p.untilRunning(head)
	must(t, syscall.Kill(p.execution(), syscall.SIGKILL))
	p.untilCompleted(head, "success", "passed")
}

// TestPushWhileRunning supersedes the older run, which must stop.
func TestPushWhileRunning(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	number, old := p.open("waits", waiting)
	p.untilRunning(old)
	head, err := p.Hub.Push(shop, number, hubsim.File("run.sh", quick))
	must(t, err)
	p.untilCompleted(old, "cancelled", "superseded by "+head[:7])
	p.untilCompleted(head, "success", "passed")
}

// TestCloseWhileRunning cancels, and a reopened pull request is proven anew.
func TestCloseWhileRunning(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	number, head := p.open("waits", waiting)
	p.untilRunning(head)
	must(t, p.Hub.ClosePullRequest(shop, number))
	p.untilCompleted(head, "cancelled", "")
	next, err := p.Hub.Push(shop, number, hubsim.File("run.sh", quick))
	must(t, err)
	must(t, p.Hub.ReopenPullRequest(shop, number))
	p.untilCompleted(next, "success", "passed")
}

// TestDeliveriesDoubledAndLate redelivers every delivery, the oldest last.
func TestDeliveriesDoubledAndLate(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	number, first := p.open("doubled", quick)
	p.untilCompleted(first, "success", "passed")
	second, err := p.Hub.Push(shop, number, hubsim.File("run.sh", "# again\n"+quick))
	must(t, err)
	p.untilCompleted(second, "success", "passed")
	deliveries := p.Hub.Deliveries()
	for i := len(deliveries) - 1; i >= 0; i-- {
		_, err := p.Hub.Redeliver(deliveries[i].ID)
		must(t, err)
	}
	must(t, p.Hub.Flush(p.ctx))
	_, marker := p.open("marker", quick) // is handled after all of them
	p.untilCompleted(marker, "success", "passed")
	p.untilCompleted(first, "success", "passed")
	p.untilCompleted(second, "success", "passed")
}

// TestManyPullRequests opens more than can run at once.
func TestManyPullRequests(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	var heads []string
	for i := range 20 {
		_, head := p.open(fmt.Sprintf("many-%d", i), quick)
		heads = append(heads, head)
	}
	for _, head := range heads {
		p.untilCompleted(head, "success", "passed")
	}
}

// TestNoWorkingDirectory: where a check cannot start, it fails before the gateway
// hears of it.
func TestNoWorkingDirectory(t *testing.T) {
	t.Parallel()
	p := newPlayOf(t, stage.Check{Name: "docs", Profile: strings.Replace(scriptProfile, "{argv:", "{cwd: docs, argv:", 1)})
	number, head := p.open("missing", quick)
	p.untilCompleted(head, "failure", "cannot run: working directory is missing docs")
	head, err := p.Hub.Push(shop, number, hubsim.File("real/run.sh", quick), hubsim.Symlink("docs", "real"))
	must(t, err)
	p.untilCompleted(head, "failure", "cannot run: working directory goes through a symbolic link docs")
	if heard := bytes.Count(readFile(t, p.Path("gateway.log")), []byte("execution ended")); heard != 0 {
		t.Errorf("the gateway heard of it %d times", heard)
	}
	head, err = p.Hub.Push(shop, number, hubsim.Remove("docs"), hubsim.File("docs/run.sh", quick))
	must(t, err)
	p.untilCompleted(head, "success", "passed")
	if heard := bytes.Count(readFile(t, p.Path("gateway.log")), []byte("execution ended")); heard != 1 {
		t.Errorf("the gateway ended %d executions, want 1", heard)
	}
}

// TestDeletedFork proves a pull request whose fork is gone: GitHub keeps its
// head.
func TestDeletedFork(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	p.Gateway.Kill() // so that the fork is gone before anything runs
	fork, err := p.Hub.Fork(shop, "mona")
	must(t, err)
	number, err := p.Hub.OpenPullRequest(hubsim.NewPullRequest{
		Repo: shop, HeadRepo: fork, Branch: "gone", Changes: []hubsim.Change{hubsim.File("run.sh", "# fork\n"+quick)},
	})
	must(t, err)
	pr, err := p.Hub.PullRequest(shop, number)
	must(t, err)
	must(t, p.Hub.DeleteRepo(fork))
	must(t, p.StartGateway(p.ctx))
	p.untilCompleted(pr.HeadSHA, "success", "passed")
}
