// Package gvisor runs jobs inside gVisor, which is linked into this binary. It
// is the one package that imports gVisor.
//
// Each job has a supervisor, this same binary under another name, which is the
// first process of its own pid namespace and lives, with all that it starts,
// in a cgroup made for the job. It runs gVisor as a library and reports on a
// pipe. The process that called Run watches the limits from outside, kills the
// supervisor when one is exceeded, and proves that nothing is left.
package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"underwrite/runner/sandbox"
)

// Options configure a Runtime. The zero value is usable.
type Options struct {
	// CgroupParent is the cgroup, as a path from the root of each hierarchy,
	// below which every job gets its own. Empty means sandbox.DefaultCgroupParent.
	CgroupParent string
}

// Runtime implements sandbox.Runtime. It may be used by several goroutines.
type Runtime struct{ opts Options }

// New returns a runtime, or an error with one line per thing that this host
// lacks (sandbox.CheckHost).
func New(opts Options) (*Runtime, error) {
	if opts.CgroupParent == "" {
		opts.CgroupParent = sandbox.DefaultCgroupParent
	}
	if p := opts.CgroupParent; !filepath.IsAbs(p) || filepath.Clean(p) != p || p == "/" {
		return nil, fmt.Errorf("cgroup parent %q is not an absolute, clean path below the root", p)
	}
	if err := sandbox.CheckHost(); err != nil {
		return nil, err
	}
	return &Runtime{opts}, nil
}

// version is the version of gvisor.dev/gvisor in go.mod. It is a constant
// because test binaries do not record their modules; a test compares the two.
const version = "v0.0.0-20260905035102-160fafc42237"

// Version names gVisor and the version that is linked in, with the platform
// that separates guest and host.
func (r *Runtime) Version() string { return "gvisor " + version + " systrap" }

const (
	startTimeout    = 60 * time.Second // for the sandbox to stand
	endTimeout      = 30 * time.Second // for the sandbox to be destroyed after the job's end
	teardownTimeout = 10 * time.Second // for the pipes to end once every process is dead
	watchInterval   = 50 * time.Millisecond
)

// Run implements sandbox.Runtime. An error wraps sandbox.ErrSpec if the job
// cannot be run as specified and sandbox.ErrNotExecuted if its executable could
// not be executed. Whatever happens, nothing of the job runs any more when Run
// returns with Result.Teardown set; without it, something may.
func (r *Runtime) Run(ctx context.Context, spec sandbox.Spec) (result sandbox.Result, err error) {
	if err := spec.Validate(); err != nil {
		return sandbox.Result{Teardown: true}, err
	}
	if err := sandbox.GiveWorkspace(spec.Workspace); err != nil {
		return sandbox.Result{Teardown: true}, err
	}
	cgroup, err := sandbox.NewCgroup(r.opts.CgroupParent, spec.ID, spec.Limits.MemoryBytes, spec.CPUs)
	if err != nil {
		return sandbox.Result{Teardown: true}, err
	}
	run := &run{spec: &spec, cgroup: cgroup}
	err = run.start()
	if err == nil {
		err = run.watch(ctx)
	}
	return run.finish(err)
}

// A run is one call of Run. Its fields are its goroutine's alone.
type run struct {
	spec    *sandbox.Spec
	cgroup  *sandbox.Cgroup
	capture *sandbox.Capture
	child   *child

	launched   time.Time // monotonic; zero before the job
	startedAt  time.Time // the trusted clock's
	cpuBefore  time.Duration
	cpuFinal   bool // facts.CPU is the job's own
	status     unix.WaitStatus
	errno      unix.Errno
	exited     bool  // status or errno is known
	done       bool  // the report is complete
	failure    error // what the supervisor says went wrong
	captureErr error // a byte of output was not read or stored
	facts      sandbox.Facts
}

// start begins to capture output and starts the supervisor.
func (r *run) start() (err error) {
	r.capture, err = sandbox.NewCapture(r.spec.Stdout, r.spec.Stderr, r.spec.Limits.OutputBytes)
	if err != nil {
		return err
	}
	defer r.capture.CloseWriters()
	r.child, err = startChild(r.spec, r.cgroup.Dirs(), r.capture)
	return err
}

// watch follows the supervisor's report and the limits until the report ends,
// which it does when the supervisor is dead.
func (r *run) watch(ctx context.Context) error {
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	cancelled, over := ctx.Done(), r.capture.Exceeded()
	for {
		select {
		case e, ok := <-r.child.events:
			if !ok {
				return r.child.readError()
			}
			if err := r.handle(e, deadline); err != nil {
				return err
			}
		case <-cancelled:
			cancelled = nil
			r.kill(sandbox.FaultCancelled)
		case <-over:
			over = nil
			r.kill(sandbox.FaultOutput)
		case <-deadline.C:
			if err := r.late(); err != nil {
				return err
			}
		case <-tick.C:
			if err := r.sample(); err != nil {
				return err
			}
		}
	}
}

// kill ends the run for a reason; the first one counts.
func (r *run) kill(reason sandbox.FaultKind) {
	if r.facts.Killed == sandbox.FaultNone && !r.facts.Refused {
		r.facts.Killed = reason
		if !r.launched.IsZero() && !r.exited {
			r.facts.Elapsed = time.Since(r.launched)
		}
	}
	r.child.kill()
}

// late is called when a phase takes too long: a wall limit only while the job
// runs, our own fault before and after.
func (r *run) late() error {
	switch {
	case r.launched.IsZero():
		return fmt.Errorf("the sandbox does not stand after %v", startTimeout)
	case r.exited:
		return fmt.Errorf("the sandbox is not destroyed after %v", endTimeout)
	}
	r.kill(sandbox.FaultWall)
	return nil
}

// handle takes one event of the report. An event out of order makes the report
// worthless.
func (r *run) handle(e event, deadline *time.Timer) error {
	switch {
	case e.Kind == eventError && r.failure == nil:
		r.failure = errors.New(e.Error)
	case e.Kind == eventReady && r.launched.IsZero() && !r.facts.Refused:
		return r.launch(deadline)
	case e.Kind == eventUsage && !r.launched.IsZero():
		r.facts.ProcessPeak = max(r.facts.ProcessPeak, e.Peak)
		r.facts.ProcessDenials = max(r.facts.ProcessDenials, e.Denials)
		if r.facts.ProcessDenials > 0 {
			r.kill(sandbox.FaultProcesses)
		}
	case e.Kind == eventExited && !r.launched.IsZero() && !r.exited:
		r.exited, r.status, r.errno = true, unix.WaitStatus(e.Status), unix.Errno(e.Errno)
		r.facts.Elapsed = time.Since(r.launched)
		deadline.Reset(endTimeout)
		return r.sample()
	case e.Kind == eventDone && r.exited && !r.done:
		r.done = true
	default:
		return fmt.Errorf("supervisor's report: %q out of order", e.Kind)
	}
	return nil
}

// launch asks the caller for the last time, notes the counters and lets the
// job go.
func (r *run) launch(deadline *time.Timer) error {
	if r.facts.Killed != sandbox.FaultNone {
		return nil
	}
	var err error
	if r.cpuBefore, err = r.cgroup.CPUTime(); err != nil {
		return fmt.Errorf("read CPU time: %w", err)
	}
	startedAt, err := r.spec.BeforeLaunch()
	if err != nil {
		r.facts.Refused = true
		r.child.kill()
		return nil
	}
	r.startedAt, r.launched = startedAt, time.Now()
	deadline.Reset(time.Duration(r.spec.Limits.WallSeconds) * time.Second)
	return r.child.launch()
}

// sample reads the host's counters and enforces the CPU limit.
func (r *run) sample() error {
	if r.launched.IsZero() {
		return nil
	}
	if !r.exited && r.facts.Killed == sandbox.FaultNone {
		r.facts.Elapsed = time.Since(r.launched)
	}
	if err := r.measure(); err != nil {
		return err
	}
	if r.facts.CPU > time.Duration(r.spec.Limits.CPUSeconds)*time.Second {
		r.kill(sandbox.FaultCPU)
	}
	if r.spec.Progress != nil {
		r.spec.Progress(r.usage())
	}
	return nil
}

// measure reads what the host counts about the job.
func (r *run) measure() error {
	cpu, err1 := r.cgroup.CPUTime()
	memory, err2 := r.cgroup.MemoryPeak()
	use, err3 := sandbox.MeasureWorkspace(r.spec.Workspace)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("measure the job: %w", err)
	}
	r.facts.MemoryPeak = memory
	r.facts.WorkspacePeak, r.facts.Workspace = max(r.facts.WorkspacePeak, use.Bytes), use
	r.facts.OutputBytes = r.capture.Produced()
	if !r.launched.IsZero() && !r.cpuFinal {
		r.facts.CPU = cpu - r.cpuBefore
		r.cpuFinal = r.exited // what follows is the sandbox's own end
	}
	return nil
}

func (r *run) usage() sandbox.Usage {
	return sandbox.Usage{
		Wall: r.facts.Elapsed, CPU: r.facts.CPU, MemoryBytes: r.facts.MemoryPeak, Processes: r.facts.ProcessPeak,
		WorkspaceBytes: r.facts.WorkspacePeak, OutputBytes: r.facts.OutputBytes,
	}
}

// finish ends everything, measures for the last time, proves the teardown and
// judges. cause is why start or watch gave up.
func (r *run) finish(cause error) (sandbox.Result, error) {
	teardown := r.end()
	var measured error
	if r.child != nil {
		measured = errors.Join(r.measure(), r.countKills())
	}
	teardown = errors.Join(teardown, r.cgroup.Remove())
	result := sandbox.Result{StartedAt: r.startedAt, Elapsed: r.facts.Elapsed, Teardown: teardown == nil}
	if r.exited && r.errno == 0 {
		if r.status.Signaled() {
			r.facts.Signal = int(r.status.Signal())
		}
		result.Exited, result.ExitCode = r.status.Exited(), max(r.status.ExitStatus(), 0)
	}
	result.Usage = r.usage()
	v := sandbox.Judge(r.facts, r.spec.Limits)
	result.Fault, result.Measured, result.Limit = v.Kind, v.Measured, v.Limit
	return result, errors.Join(cause, measured, r.captureErr, teardown, r.incomplete(v.Kind))
}

// countKills reads the out-of-memory counter. A kill for the host's sake,
// without the job being at its limit, is an error and not the job's fault.
func (r *run) countKills() error {
	kills, atLimit, err := r.cgroup.OOMKills()
	if err != nil {
		return fmt.Errorf("read out-of-memory kills: %w", err)
	}
	if kills > 0 && !atLimit {
		return errors.New("the host ran out of memory")
	}
	r.facts.OOMKills = kills
	return nil
}

// incomplete says why the report is not complete, nil if it is, or if it cannot
// be because of the verdict: the run was ended from outside, or the kernel
// killed for want of memory what should have reported.
func (r *run) incomplete(verdict sandbox.FaultKind) error {
	switch {
	case r.child == nil || r.done && r.errno == 0:
		return nil
	case r.facts.Killed != sandbox.FaultNone, verdict == sandbox.FaultExpired, verdict == sandbox.FaultMemory:
		return nil
	case r.errno != 0:
		return fmt.Errorf("%w: %s: %w", sandbox.ErrNotExecuted, r.spec.Job.Executable.Path, r.errno)
	case r.failure != nil:
		return r.failure
	}
	return errors.New("the supervisor died before its report was complete")
}

// end kills what is left, reaps the supervisor, waits for the end of both
// pipes and removes the runtime's files. An error means that the teardown is
// not proven.
func (r *run) end() error {
	var errs []error
	if r.child != nil {
		errs = append(errs, r.child.reap())
	}
	errs = append(errs, r.cgroup.Kill())
	if r.capture != nil {
		// A byte that could not be stored says nothing about the teardown.
		r.captureErr = r.capture.Wait(teardownTimeout)
		if errors.Is(r.captureErr, os.ErrDeadlineExceeded) {
			errs = append(errs, r.captureErr)
			r.captureErr = nil
		}
	}
	if r.child != nil {
		errs = append(errs, r.child.clean())
	}
	return errors.Join(errs...)
}
