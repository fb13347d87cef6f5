package gateway

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"underwrite/runner/wire"
)

const (
	// stopGrace is how long a child may take to tear its sandbox down after
	// SIGTERM, before it is killed and the next execution sweeps.
	stopGrace      = 30 * time.Second
	maxChildOutput = 64 << 10 // bytes of stdout, and of stderr kept for the log
	eventsFD       = 3        // of the child: the first of exec.Cmd.ExtraFiles
)

// An Execution is one `underwrite execute` as a process of its own. Its fields
// but the last are that command's arguments.
type Execution struct {
	Program     []string // e.g. {"/proc/self/exe", "execute"}
	ConfigPath  string
	RequestPath string
	BundlePath  string
	EvidenceDir string // to appear, directly below the configured outbox
	Diagnostics string
	Events      func(wire.Event) // called for each event, never concurrently; may be nil
}

// Run starts the process and waits for its end. The end of ctx, and that of
// this process, makes it stop its job and tear the sandbox down first. stderr
// is what it had to say to the operator, cut at 64 KiB. An error means that
// nothing is known about the request.
func (e Execution) Run(ctx context.Context) (outcome wire.Outcome, stderr []byte, err error) {
	events, childEnd, err := os.Pipe()
	if err != nil {
		return wire.Outcome{}, nil, fmt.Errorf("event stream: %w", err)
	}
	defer events.Close()
	defer childEnd.Close()
	relayed := make(chan struct{})
	go func() {
		defer close(relayed)
		wire.ReadEvents(events, func(v wire.Event) {
			if e.Events != nil {
				e.Events(v)
			}
		})
	}()
	var out, errs bounded
	cmd := e.command(ctx)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.ExtraFiles = []*os.File{childEnd}
	err = runOnOwnThread(cmd, func() { childEnd.Close() })
	<-relayed
	outcome, err = outcomeOf(out.Bytes(), err, cmd.ProcessState)
	return outcome, errs.Bytes(), err
}

func (e Execution) command(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, e.Program[0], append(e.Program[1:len(e.Program):len(e.Program)],
		"--config", e.ConfigPath, "--request", e.RequestPath, "--source-bundle", e.BundlePath,
		"--evidence-dir", e.EvidenceDir, "--diagnostics", e.Diagnostics, "--events-fd", fmt.Sprint(eventsFD))...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	// Whoever starts a child takes it along when it dies.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return cmd
}

// runOnOwnThread keeps the thread that started the child until it has ended:
// the kernel sends Pdeathsig when that thread ends, not the process.
func runOnOwnThread(cmd *exec.Cmd, started func()) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started()
		if err == nil {
			err = cmd.Wait()
		}
		result <- err
	}()
	return <-result
}

// outcomeOf believes a child only if its line and its exit code agree.
func outcomeOf(stdout []byte, err error, state *os.ProcessState) (wire.Outcome, error) {
	if state == nil {
		return wire.Outcome{}, fmt.Errorf("start execution: %w", err)
	}
	o, parseErr := wire.ParseOutcome(stdout)
	if parseErr != nil {
		return wire.Outcome{}, fmt.Errorf("execution ended (%s) without an outcome: %w", state, parseErr)
	}
	if o.ExitCode() != state.ExitCode() {
		return wire.Outcome{}, fmt.Errorf("execution says %s but ended with %s", o.Status, state)
	}
	return o, nil
}

// bounded keeps the first maxChildOutput bytes.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if room := maxChildOutput - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}
