package apptest_test

import (
	"context"
	"strconv"
	"syscall"
	"testing"
	"time"

	"underwrite/app/serve"
	"underwrite/store/storetest"
)

// settled waits until nothing is left to do or runs, and checks the invariants
// of the database and that every check run has ended.
func (p *play) settled() {
	p.t.Helper()
	database := serve.Database(p.Path("controller"))
	ctx := context.WithoutCancel(p.ctx) // which has ended when a test is cleaned up
	eventually(p.t, "all work is done", func() bool {
		left, err := storetest.Unfinished(ctx, database)
		return err == nil && len(left) == 0
	})
	wrong, err := storetest.Check(ctx, database)
	must(p.t, err)
	for _, what := range wrong {
		p.t.Error(what)
	}
	eventually(p.t, "no execution runs", func() bool { return len(p.executions()) == 0 })
	for _, run := range p.Hub.CheckRunHistory() {
		if runs := p.Hub.CheckRuns(shop, run.HeadSHA); runs[len(runs)-1].Status != "completed" {
			p.t.Errorf("%.8s: the check run is left %s", run.HeadSHA, runs[len(runs)-1].Status)
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in %v not true: %s", patience, what)
		}
	}
}

// TestExecutionPaused stops an execution for a while, as a debugger or a
// suspended machine would.
func TestExecutionPaused(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	_, head := p.open("slow", slow)
	p.untilRunning(head)
	execution := p.execution()
	must(t, syscall.Kill(execution, syscall.SIGSTOP))
	time.Sleep(time.Second)
	must(t, syscall.Kill(execution, syscall.SIGCONT))
	p.untilCompleted(head, "success", "passed")
}

// TestGatewayKilled kills the gateway, as a power failure would, while a job
// runs: its execution dies with it, leaves no cgroup, and the check is proven anew.
func TestGatewayKilled(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	_, head := p.open("slow", slow)
	p.untilRunning(head)
	pid := strconv.Itoa(p.execution())
	start := startOf("/proc/" + pid)
	if start == "" || len(cgroupsOf(t, pid)) == 0 {
		t.Fatal("the execution has ended, or has no cgroup, while its job runs")
	}
	p.Gateway.Kill()
	must(t, p.StartGateway(p.ctx))
	p.untilCompleted(head, "success", "passed")
	eventually(t, "the execution has ended", func() bool { return startOf("/proc/"+pid) != start })
	if left := cgroupsOf(t, pid); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
