package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"underwrite/runner/sandbox"
	"underwrite/runner/wire"
	"underwrite/store/ledger"
)

var errInjected = errors.New("injected")

// faultyStore fails the operation numbered at: lost (nothing happened) or
// persisted but reported lost. With kill set the process dies there instead.
type faultyStore struct {
	Store
	at        int
	persisted bool
	kill      bool
	n         int
	last      string
}

func (s *faultyStore) op(name string, do func() error) error {
	s.n++
	if s.n != s.at {
		return do()
	}
	s.last = name
	if s.persisted {
		if err := do(); err != nil {
			return err
		}
	}
	if s.kill {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return fmt.Errorf("%s: %w", name, errInjected)
}

func (s *faultyStore) Reserve(ctx context.Context, r ledger.Reservation, now time.Time) error {
	return s.op("reserve", func() error { return s.Store.Reserve(ctx, r, now) })
}
func (s *faultyStore) Refuse(ctx context.Context, r ledger.Reservation, f ledger.Failure, now time.Time) error {
	return s.op("refuse", func() error { return s.Store.Refuse(ctx, r, f, now) })
}
func (s *faultyStore) SetReady(ctx context.Context, key string, c []byte, p string, now time.Time) error {
	return s.op("ready", func() error { return s.Store.SetReady(ctx, key, c, p, now) })
}
func (s *faultyStore) SetExecuting(ctx context.Context, key string, now time.Time) error {
	return s.op("executing", func() error { return s.Store.SetExecuting(ctx, key, now) })
}
func (s *faultyStore) SetComplete(ctx context.Context, key string, c ledger.Completion, now time.Time) error {
	return s.op("complete", func() error { return s.Store.SetComplete(ctx, key, c, now) })
}
func (s *faultyStore) SetFailed(ctx context.Context, key string, f ledger.Failure, now time.Time) error {
	return s.op("failed", func() error { return s.Store.SetFailed(ctx, key, f, now) })
}
func (s *faultyStore) Release(ctx context.Context, key string) error {
	return s.op("release", func() error { return s.Store.Release(ctx, key) })
}
func (s *faultyStore) Get(ctx context.Context, key string) (e *ledger.Execution, err error) {
	err = s.op("get", func() error { e, err = s.Store.Get(ctx, key); return err })
	return e, err
}

// A plot is a run whose ledger operations are failed one after the other.
type plot struct {
	name string
	ends wire.Status // how it ends if nothing is injected
	job  func(context.Context, sandbox.Spec, *sandbox.Result) error
	// mountFails makes the first attempt's own fault.
	mountFails bool
}

var plots = []plot{
	{name: "job exits", ends: wire.Complete},
	{name: "job fails", ends: wire.Failed, job: func(_ context.Context, _ sandbox.Spec, r *sandbox.Result) error {
		r.Exited, r.Fault, r.Limit = false, sandbox.FaultWall, 30
		return nil
	}},
	{name: "own fault", ends: wire.Retry, mountFails: true},
}

// TestStoreFailures fails each ledger operation in both ways and then lets the
// controller try again, as it does after every retry.
func TestStoreFailures(t *testing.T) {
	for _, p := range plots {
		operations := countOperations(t, p)
		if operations < 2 {
			t.Fatalf("%s: only %d ledger operations", p.name, operations)
		}
		for at := 1; at <= operations; at++ {
			for _, persisted := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, operation %d, persisted %v", p.name, at, persisted), func(t *testing.T) {
					t.Parallel()
					storeFailure(t, p, persisted, at)
				})
			}
		}
	}
}

func (p plot) play(h *harness, store *faultyStore, in install, raw []byte) wire.Outcome {
	h.runtime.job = p.job
	h.Store = store
	if p.mountFails {
		mount := h.Mount
		h.Mount = func(dir string, bytes int64) error { h.Mount = mount; return errInjected }
	}
	return h.Execute(context.Background(), in.input(raw))
}

// countOperations plays without a failure.
func countOperations(t *testing.T, p plot) int {
	t.Helper()
	in, h := newHarness(t)
	store := &faultyStore{Store: h.Store}
	if o := p.play(h, store, in, in.request(t, h.Broker, 1, nil)); o.Status != p.ends {
		t.Errorf("without a failure: %+v", o)
	}
	return store.n
}

func storeFailure(t *testing.T, p plot, persisted bool, at int) {
	in, h := newHarness(t)
	raw := in.request(t, h.Broker, 1, nil)
	store := &faultyStore{Store: h.Store, at: at, persisted: persisted}
	o := p.play(h, store, in, raw)
	if store.last == "" {
		t.Fatalf("operation %d was not reached", at)
	}
	if o.Status != wire.Retry {
		t.Errorf("%s failed: outcome = %+v, want retry: nobody knows", store.last, o)
	}
	for range 3 {
		o = h.Execute(t.Context(), in.input(raw))
	}
	checkEnd(t, in, h, raw, o)
}

// checkEnd checks what must hold whatever failed: one start at most, and an
// outcome that the ledger and the outbox agree with and that stays.
func checkEnd(t *testing.T, in install, h *harness, raw []byte, o wire.Outcome) {
	t.Helper()
	if h.runtime.starts > 1 {
		t.Errorf("the job ran %d times", h.runtime.starts)
	}
	row := h.row(t, raw)
	_, statErr := os.Lstat(in.evidence())
	switch o.Status {
	case wire.Complete:
		if row.State != ledger.Complete {
			t.Errorf("complete, but the ledger says %s", row.State)
		}
		verifyEvidence(t, in, raw, in.evidence())
		checkPublished(t, in.evidence(), -1)
	case wire.Failed:
		if row.State != ledger.Failed || !errors.Is(statErr, os.ErrNotExist) {
			t.Errorf("failed, but the ledger says %s and evidence: %v", row.State, statErr)
		}
		if left, _ := os.ReadDir(h.Config.ResultsDir()); len(left) != 0 {
			t.Errorf("failed, but results are left: %v", left)
		}
	default:
		t.Errorf("the request never ends: %+v", o)
	}
	must(t, h.Sweep())
	checkClean(t, in)
	if again := h.Execute(t.Context(), in.input(raw)); again != o {
		t.Errorf("first %+v, then %+v", o, again)
	}
}

// crashEnv holds a crashPlan in JSON and makes the test binary play it.
const crashEnv = "UNDERWRITE_TEST_CRASH"

type crashPlan struct {
	Install   install
	Request   []byte
	At        int
	Persisted bool
	InJob     bool // die inside the job instead
}

// crashChild executes a request and dies on the way.
func crashChild() {
	var plan crashPlan
	if err := json.Unmarshal([]byte(os.Getenv(crashEnv)), &plan); err != nil {
		panic(err)
	}
	t := &testing.T{} // only its helpers' error paths are used, and they end the process
	h := openHarness(t, plan.Install)
	if plan.InJob {
		h.runtime.job = func(context.Context, sandbox.Spec, *sandbox.Result) error {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	h.Store = &faultyStore{Store: h.Store, at: plan.At, persisted: plan.Persisted, kill: true}
	o := h.Execute(context.Background(), plan.Install.input(plan.Request))
	os.Stdout.Write(o.Line())
	os.Exit(o.ExitCode())
}

// TestKilledAnywhere kills the process before and after each ledger operation,
// and inside the job. The next execution finds a request that ends the same way
// ever after, another request works, and nothing is left.
func TestKilledAnywhere(t *testing.T) {
	operations := countOperations(t, plots[0])
	for at := 1; at <= operations; at++ {
		for _, persisted := range []bool{false, true} {
			t.Run(fmt.Sprintf("operation %d, persisted %v", at, persisted), func(t *testing.T) {
				t.Parallel()
				crash(t, crashPlan{At: at, Persisted: persisted})
			})
		}
	}
	t.Run("in the job", func(t *testing.T) {
		t.Parallel()
		crash(t, crashPlan{InJob: true})
	})
}

func crash(t *testing.T, plan crashPlan) {
	in, h := newHarness(t)
	raw := in.request(t, h.Broker, 1, nil)
	plan.Install, plan.Request = in, raw
	env, err := json.Marshal(plan)
	must(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+string(env))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended with %v: %s", err, &out)
	}
	must(t, h.Sweep())
	checkClean(t, in)
	// The job may have run in the dead process: it must not run again.
	row := h.row(t, raw)
	mayRun := row == nil
	o := h.Execute(t.Context(), in.input(raw))
	if !mayRun && h.runtime.starts != 0 {
		t.Errorf("the job of a request in state %s ran again", row.State)
	}
	checkEnd(t, in, h, raw, o)
	next := in.request(t, h.Broker, 2, nil)
	i := in.input(next)
	i.EvidenceDir = filepath.Join(h.Config.Outbox, "next")
	if o := h.Execute(t.Context(), i); o.Status != wire.Complete {
		t.Errorf("the next request: %+v", o)
	}
}
