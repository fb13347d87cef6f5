package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"underwrite/attest"
	"underwrite/attest/gittree"
	"underwrite/runner/quarantine"
	"underwrite/runner/sandbox"
	"underwrite/runner/wire"
)

// run does the work between the reservation and the ledger's last word. It
// returns a *fault for a definite end without a receipt, an error that wraps
// errUnknown if the ledger's state is unknown, and another error for the
// gateway's own fault.
func (a *attempt) run(ctx context.Context) error {
	if err := a.scratch.create(); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{a.input, a.certify} {
		if err := step(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("stopped before the job started: %w", err)
		}
	}
	result, err := a.launch(ctx)
	if err != nil {
		return err
	}
	bundle, err := a.measureOutput(ctx)
	if err != nil {
		return err
	}
	return a.receipt(result, bundle)
}

func (a *attempt) limits() quarantine.Limits {
	workspace := a.request.Profile.Sandbox.Limits.WorkspaceBytes
	return quarantine.Limits{
		BundleBytes: a.Config.SourceBundleBytes, WorkspaceBytes: workspace, BlobBytes: workspace,
		Entries: gittree.MaxEntries, Depth: gittree.MaxDepth, PathBytes: gittree.MaxPathBytes, TotalPathBytes: gittree.MaxTotalPathBytes,
	}
}

// input puts the frozen head into the workspace, without running anything of
// it. Its git process is gone when it returns.
func (a *attempt) input(ctx context.Context) error {
	a.phase(wire.PhaseQuarantine)
	source, release, err := quarantine.ImportAndHold(ctx, a.scratch.git(), a.in.BundlePath, a.request.Target, a.limits())
	if err != nil {
		return refusedInput(err)
	}
	defer release()
	a.source = source
	for _, step := range []func(context.Context) error{a.walk, a.materialize, a.measureInput} {
		if err := step(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("stopped before the job started: %w", err)
		}
	}
	return nil
}

// walk reads the head's tree.
func (a *attempt) walk(ctx context.Context) (err error) {
	a.tree, err = a.source.Walk(ctx, a.source.Head, a.limits())
	if err != nil {
		return refusedInput(err)
	}
	return refusedInput(a.tree.CheckDirectory(a.request.Profile.Job.Cwd))
}

// refusedInput turns the fault of an artifact's author into a definite end.
func refusedInput(err error) error {
	var r *quarantine.RefusedError
	if !errors.As(err, &r) {
		return err
	}
	return pathFault(wire.FaultRefusedInput, "cannot run: ", r)
}

func pathFault(kind, prefix string, r *quarantine.RefusedError) *fault {
	f := &fault{wire.Fault{Kind: kind, Detail: r.Reason}, prefix + r.Reason}
	if r.Path != "" {
		f.Path = plainPath(r.Path)
		f.reason += ": " + f.Path
	}
	return f
}

// plainPath escapes a hostile path for people.
func plainPath(p string) string {
	if q := strconv.QuoteToASCII(p); q != `"`+p+`"` {
		return q
	}
	return p
}

func (a *attempt) materialize(ctx context.Context) error {
	a.phase(wire.PhaseMaterialize)
	limit := a.request.Profile.Sandbox.Limits.WorkspaceBytes
	if err := a.Mount(a.scratch.workspace(), limit); err != nil {
		return err
	}
	err := a.source.Materialize(ctx, a.tree, a.scratch.workspace(), sandbox.HostUID, sandbox.HostUID)
	if errors.Is(err, unix.ENOSPC) {
		return &fault{
			wire.Fault{Kind: wire.FaultRefusedInput, Detail: "too large", Measured: a.tree.Bytes, Limit: limit},
			fmt.Sprintf("cannot run: the source tree of %d bytes does not fit into workspaceBytes %d", a.tree.Bytes, limit),
		}
	}
	return refusedInput(err)
}

// measureInput measures what really lies in the workspace and requires it to be
// what the frozen head's objects say.
func (a *attempt) measureInput(ctx context.Context) error {
	a.phase(wire.PhaseMeasure)
	objects, err := a.source.GitTree(ctx, a.tree)
	if err != nil {
		return refusedInput(err)
	}
	a.inputTree, err = a.measure(ctx)
	if err != nil {
		return fmt.Errorf("measure workspace: %w", err)
	}
	if a.inputTree != objects {
		return fmt.Errorf("the workspace measures %s but the head's objects say %s", a.inputTree, objects)
	}
	return nil
}

// measure computes the tree of what lies in the workspace.
func (a *attempt) measure(ctx context.Context) (string, error) {
	tree, _, err := gittree.Measure(ctx, a.scratch.workspace(), gittree.DefaultLimits(a.request.Profile.Sandbox.Limits.WorkspaceBytes))
	return tree, err
}

func (a *attempt) expected() attest.Expected {
	r := a.request
	return attest.Expected{
		SignerID: a.accepted.Trusted.SignerID, ExecutorID: a.accepted.Trusted.ExecutorID,
		SessionID: r.SessionID, Challenge: r.Challenge, Target: r.Target, Action: r.Action, Job: r.Profile.Job,
		InputTree: a.inputTree, Sandbox: a.accepted.Trusted.Sandbox,
	}
}

// certify pins the executable, signs the capability, verifies it as any
// consumer will, and stores it. A crash after leaves a row that fails.
func (a *attempt) certify(context.Context) error {
	a.phase(wire.PhaseCapability)
	if err := a.scratch.pin(a.request.Profile.Job.Executable); err != nil {
		return err
	}
	issued := a.nowMicro()
	lifetime := time.Duration(a.Config.CapabilityLifetimeSeconds) * time.Second
	payload, err := attest.NewCapability(a.expected(), issued, issued.Add(lifetime))
	if err != nil {
		return fmt.Errorf("capability: %w", err)
	}
	a.envelope, err = attest.Seal(attest.PayloadType, payload, a.signer.ID(), a.signer.Sign)
	if err != nil {
		return fmt.Errorf("capability: %w", err)
	}
	a.capability, err = attest.VerifyCapability(a.envelope, a.expected(), a.verify, issued)
	if err != nil {
		return fmt.Errorf("own capability does not verify: %w", err)
	}
	return a.write(func(ctx context.Context) error {
		return a.Store.SetReady(ctx, a.key, a.envelope, a.capability.PayloadSHA256, a.Now())
	})
}

// write changes the ledger; afterwards nobody but the next attempt can tell
// what is in it if that failed.
func (a *attempt) write(op func(ctx context.Context) error) error {
	if err := stored(op); err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	return nil
}

var errExpired = errors.New("the capability expired before the job could start: the host is overloaded or its clock was set")

// beforeLaunch is the last thing before the job. It never returns nil unless
// the ledger durably says executing and the capability is current.
func (a *attempt) beforeLaunch() (time.Time, error) {
	if !a.current(a.nowMicro()) {
		return time.Time{}, errExpired
	}
	a.started = true
	err := a.write(func(ctx context.Context) error { return a.Store.SetExecuting(ctx, a.key, a.Now()) })
	if err != nil {
		return time.Time{}, err
	}
	now := a.nowMicro() // the write may have taken its time
	if !a.current(now) {
		return time.Time{}, errExpired
	}
	a.phase(wire.PhaseRun)
	return now, nil
}

func (a *attempt) current(now time.Time) bool {
	return !now.Before(a.capability.IssuedAt) && now.Before(a.capability.ExpiresAt)
}

// launch runs the job and returns only if the receipt gate lets its result pass.
func (a *attempt) launch(ctx context.Context) (sandbox.Result, error) {
	a.phase(wire.PhaseSandbox)
	root, err := a.accepted.Profile.BuildRoot(a.scratch.root())
	if err != nil {
		return sandbox.Result{}, err
	}
	stdout, err := a.stream(wire.StdoutFile)
	if err != nil {
		return sandbox.Result{}, err
	}
	defer stdout.Close()
	stderr, err := a.stream(wire.StderrFile)
	if err != nil {
		return sandbox.Result{}, err
	}
	defer stderr.Close()
	stop, watched := make(chan struct{}), make(chan struct{})
	go func() { defer close(watched); a.Events.live(stdout, stderr, stop) }()
	var refusal error
	result, err := a.Runtime.Run(ctx, sandbox.Spec{
		ID: "uw-" + a.key[:40], StateDir: a.scratch.runtime(), RootFS: root,
		Workspace: a.scratch.workspace(), Executable: a.scratch.executable(),
		Job: a.request.Profile.Job, Limits: a.accepted.Trusted.Sandbox.Limits, CPUs: a.accepted.Profile.CPUs,
		Stdout: stdout, Stderr: stderr, Progress: a.progress(),
		BeforeLaunch: func() (now time.Time, err error) { now, refusal = a.beforeLaunch(); return now, refusal },
	})
	close(stop)
	<-watched
	a.phase(wire.PhaseTeardown)
	a.usage = usageOf(result.Usage)
	a.Events.send(wire.Event{Usage: &a.usage})
	if refusal != nil {
		return result, refusal
	}
	return result, a.gate(result, err)
}

func (a *attempt) stream(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(a.scratch.result(), name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("scratch: %w", err)
	}
	return f, nil
}

// progress passes usage on, at most four times a second.
func (a *attempt) progress() func(sandbox.Usage) {
	var last time.Time
	return func(u sandbox.Usage) {
		if now := time.Now(); now.Sub(last) >= liveInterval {
			last = now
			usage := usageOf(u)
			a.Events.send(wire.Event{Usage: &usage})
		}
	}
}

func usageOf(u sandbox.Usage) wire.Usage {
	return wire.Usage{
		WallMillis: u.Wall.Milliseconds(), CPUMillis: u.CPU.Milliseconds(), MemoryBytes: u.MemoryBytes,
		Processes: u.Processes, WorkspaceBytes: u.WorkspaceBytes, OutputBytes: u.OutputBytes,
	}
}

// gate is the receipt gate: it returns nil only for a job that exited by itself
// within every limit and left nothing behind.
func (a *attempt) gate(r sandbox.Result, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("sandbox: %w", err)
	case !a.started && r.Fault == sandbox.FaultCancelled:
		return errors.New("stopped before the job started")
	case !a.started:
		return fmt.Errorf("the sandbox ended before the job started (%s)", r.Fault)
	case !r.Teardown:
		return errors.New("it is not proven that nothing of the sandbox is left")
	case r.Fault != sandbox.FaultNone:
		return limitFault(r)
	case !r.Exited || r.ExitCode < 0 || r.ExitCode > 255:
		return errors.New("the sandbox reports neither an exit nor a fault")
	}
	limits := a.accepted.Trusted.Sandbox.Limits
	if wall := time.Duration(limits.WallSeconds) * time.Second; r.Elapsed > wall || r.Elapsed < 0 {
		return limitFault(sandbox.Result{Fault: sandbox.FaultWall, Measured: int64(r.Elapsed.Seconds()), Limit: limits.WallSeconds})
	}
	if cpu := time.Duration(limits.CPUSeconds) * time.Second; r.Usage.CPU > cpu {
		return limitFault(sandbox.Result{Fault: sandbox.FaultCPU, Measured: int64(r.Usage.CPU.Seconds()), Limit: limits.CPUSeconds})
	}
	return nil
}

// limitFault says which limit ended the job, in words for its author.
func limitFault(r sandbox.Result) *fault {
	var reason string
	switch r.Fault {
	case sandbox.FaultWall:
		reason = fmt.Sprintf("timed out after %d s", r.Limit)
	case sandbox.FaultCPU:
		reason = fmt.Sprintf("timed out after %d s of CPU time", r.Limit)
	case sandbox.FaultMemory:
		reason = fmt.Sprintf("out of memory: the limit is %d bytes", r.Limit)
	case sandbox.FaultProcesses:
		reason = fmt.Sprintf("too many processes and threads: the limit is %d", r.Limit)
	case sandbox.FaultWorkspace:
		reason = fmt.Sprintf("the workspace is full: the limit is %d bytes", r.Limit)
	case sandbox.FaultFiles:
		return &fault{
			wire.Fault{Kind: wire.FaultWorkspace, Detail: wire.DetailFiles, Measured: r.Measured, Limit: r.Limit},
			fmt.Sprintf("the workspace is full: the limit is %d files, directories and links", r.Limit),
		}
	case sandbox.FaultOutput:
		reason = fmt.Sprintf("too much output: the limit is %d bytes", r.Limit)
	case sandbox.FaultSignal:
		reason = fmt.Sprintf("killed by signal %d (%s)", r.Measured, unix.SignalName(unix.Signal(r.Measured)))
	case sandbox.FaultCancelled:
		reason = "cancelled while it ran"
	default:
		reason = fmt.Sprintf("ended by the sandbox: %s", r.Fault)
	}
	return &fault{wire.Fault{Kind: string(r.Fault), Measured: r.Measured, Limit: r.Limit}, reason}
}
