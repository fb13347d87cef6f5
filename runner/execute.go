package runner

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"underwrite/runner/internal/hostpath"
	"underwrite/runner/internal/signkey"
	"underwrite/runner/policy"
	"underwrite/runner/sandbox"
	"underwrite/runner/wire"
	"underwrite/store/ledger"
)

// ExecuteOptions are the arguments of `underwrite execute`.
type ExecuteOptions struct {
	ConfigPath  string // the gateway's configuration
	RequestPath string // canonical request, at most wire.MaxRequestBytes
	BundlePath  string // the source bundle
	EvidenceDir string // the evidence directory to make, directly below the outbox
	Diagnostics string // directory for signed diagnostics; empty for none
	EventsFD    int    // inherited descriptor for the event stream; 0 for none

	// NewRuntime returns the sandbox's runtime for the configured cgroup
	// parent. It is asked once the configuration is read.
	NewRuntime func(cgroupParent string) (sandbox.Runtime, error)

	Stdout io.Writer // receives the one JSON line
	Stderr io.Writer // receives lines for the operator
}

// Execute is `underwrite execute`: one request, one JSON line on Stdout, and
// the exit code that belongs to it. SIGTERM, SIGINT and the end of ctx stop the
// job and tear its sandbox down first.
func Execute(ctx context.Context, o ExecuteOptions) int {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	outcome := execute(ctx, o)
	if _, err := o.Stdout.Write(outcome.Line()); err != nil {
		fmt.Fprintf(o.Stderr, "write outcome: %v\n", err)
		return wire.NewOutcome(wire.Retry, "").ExitCode() // nobody read the outcome
	}
	return outcome.ExitCode()
}

func execute(ctx context.Context, o ExecuteOptions) wire.Outcome {
	b, closeAll, err := open(ctx, o)
	defer closeAll()
	if err != nil {
		fmt.Fprintln(o.Stderr, err)
		return retry(err)
	}
	if removed, err := sandbox.Sweep(b.Config.CgroupParent); err != nil {
		return retry(err)
	} else if len(removed) > 0 {
		fmt.Fprintf(o.Stderr, "removed what earlier executions left: %q\n", removed)
	}
	if err := b.Sweep(); err != nil {
		return retry(err)
	}
	request, err := hostpath.ReadFile(o.RequestPath, wire.MaxRequestBytes)
	if err != nil {
		return retry(fmt.Errorf("request: %w", err))
	}
	return b.Execute(ctx, Input{
		Request: request, BundlePath: o.BundlePath, EvidenceDir: o.EvidenceDir, Diagnostics: o.Diagnostics,
	})
}

// open builds the broker. The returned function closes what was opened, also
// after an error.
func open(ctx context.Context, o ExecuteOptions) (*Broker, func(), error) {
	var closers []func()
	closeAll := func() {
		for _, c := range closers {
			c()
		}
	}
	b := &Broker{Now: time.Now, Log: o.Stderr, Mount: sandbox.MountWorkspace, Unmount: sandbox.UnmountWorkspace}
	var err error
	if b.Config, err = policy.Load(o.ConfigPath); err != nil {
		return nil, closeAll, err
	}
	if o.EventsFD > 0 {
		w, err := eventStream(o.EventsFD)
		if err != nil {
			return nil, closeAll, err
		}
		b.Events = NewEvents(w)
		closers = append(closers, b.Events.Close)
	}
	if b.Runtime, err = o.NewRuntime(b.Config.CgroupParent); err != nil {
		return nil, closeAll, err
	}
	if b.Host, err = hostOf(b.Runtime, b.Config.ProgramPath()); err != nil {
		return nil, closeAll, err
	}
	l, err := ledger.Open(ctx, b.Config.LedgerPath())
	if err != nil {
		return nil, closeAll, err
	}
	closers = append(closers, func() { l.Close() })
	b.Store = l
	b.LoadKey = func() (Signer, error) { return signkey.Load(b.Config.Key) }
	return b, closeAll, nil
}

// eventStream takes the inherited descriptor over. Without blocking mode a
// reader that stalls can be given up on.
func eventStream(fd int) (*os.File, error) {
	if fd <= 2 {
		return nil, fmt.Errorf("--events-fd %d: want a descriptor above 2", fd)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		return nil, fmt.Errorf("--events-fd %d: %w", fd, err)
	}
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("--events-fd %d: %w", fd, err)
	}
	return os.NewFile(uintptr(fd), "events"), nil
}

// HostOf names this program and the runtime for the executor's identity.
func HostOf(runtime sandbox.Runtime) (policy.Host, error) { return hostOf(runtime, "") }

// hostOf is HostOf that remembers the program's digest in the file cache,
// unless that is empty.
func hostOf(runtime sandbox.Runtime, cache string) (policy.Host, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return policy.Host{}, fmt.Errorf("own program: %w", err)
	}
	defer f.Close()
	sum, err := programDigest(f, cache, time.Now)
	if err != nil {
		return policy.Host{}, fmt.Errorf("own program: %w", err)
	}
	return policy.Host{BinarySHA256: sum, Runtime: runtime.Version()}, nil
}

// Profile is `underwrite gateway profile`: the canonical JSON of the trusted
// profile that a controller must be given for the named profile. It reads the
// public key only.
func Profile(configPath, name string, runtime sandbox.Runtime) ([]byte, error) {
	c, err := policy.Load(configPath)
	if err != nil {
		return nil, err
	}
	keyID, err := c.KeyID()
	if err != nil {
		return nil, err
	}
	host, err := HostOf(runtime)
	if err != nil {
		return nil, err
	}
	p, err := c.Derive(name, keyID, host)
	if err != nil {
		return nil, err
	}
	return p.Canonical()
}
