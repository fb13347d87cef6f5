package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"underwrite/attest"
	"underwrite/runner/wire"
)

const (
	// stopGrace is how long a child may take to tear its sandbox down after
	// SIGTERM, before it is killed and the next execution sweeps.
	stopGrace      = 30 * time.Second
	maxChildOutput = 64 << 10 // bytes of stdout, and of stderr kept for the log
	eventsFD       = 3        // of the child: the first of exec.Cmd.ExtraFiles
)

// execute receives one request and runs it. A returned error was not answered yet.
func (s *server) execute(ctx context.Context, conn *net.UnixConn, r *bufio.Reader, h wire.Header) error {
	sp, err := s.receive(conn, r, h)
	if err != nil {
		return err
	}
	defer sp.remove()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // the client says nothing more: whatever comes is its end
		conn.SetReadDeadline(time.Time{})
		r.ReadByte()
		cancel()
	}()
	release, err := s.admit(ctx, conn, sp.request)
	if err != nil {
		return err
	}
	defer release()
	outcome, err := s.child(ctx, conn, sp)
	if err != nil {
		return err
	}
	s.Log.Info().Str("request", attest.SHA256Hex(sp.request)).Str("status", string(outcome.Status)).Str("reason", outcome.Reason).Msg("execution ended")
	s.reply(conn, wire.Reply{Outcome: &outcome})
	return nil
}

// admit waits until one more execution fits the budgets.
func (s *server) admit(ctx context.Context, conn net.Conn, request []byte) (release func(), err error) {
	bytes := s.config.Ceilings.MemoryBytes // a request that is refused anyway needs no better guess
	if req, err := attest.ParseRequest(request); err == nil {
		bytes = min(bytes, req.Profile.Sandbox.Limits.MemoryBytes)
	}
	if !s.slots.TryAcquire(1) {
		s.reply(conn, wire.Reply{Event: &wire.Event{Time: time.Now().UTC(), Phase: wire.PhaseQueue}})
		if err := s.slots.Acquire(ctx, 1); err != nil {
			return nil, fmt.Errorf("stopped while waiting for a free place: %w", err)
		}
	}
	if err := s.memory.Acquire(ctx, bytes); err != nil {
		s.slots.Release(1)
		return nil, fmt.Errorf("stopped while waiting for free memory: %w", err)
	}
	return func() { s.memory.Release(bytes); s.slots.Release(1) }, nil
}

// child runs `underwrite execute` on what was received and relays its events.
func (s *server) child(ctx context.Context, conn net.Conn, sp *spool) (wire.Outcome, error) {
	events, childEnd, err := os.Pipe()
	if err != nil {
		return wire.Outcome{}, fmt.Errorf("event stream: %w", err)
	}
	defer events.Close()
	defer childEnd.Close()
	relayed := make(chan struct{})
	go func() {
		defer close(relayed)
		var gone bool // a client that stalls once gets no more events, or it would hold up its own outcome
		wire.ReadEvents(events, func(e wire.Event) {
			gone = gone || s.reply(conn, wire.Reply{Event: &e}) != nil
		})
	}()
	var stdout, stderr bounded
	evidence := filepath.Join(s.config.Outbox, attest.SHA256Hex(sp.request))
	cmd := exec.CommandContext(ctx, s.Execute[0], append(s.Execute[1:len(s.Execute):len(s.Execute)],
		"--config", s.ConfigPath, "--request", sp.requestPath, "--source-bundle", sp.bundlePath,
		"--evidence-dir", evidence, "--diagnostics", s.config.Diagnostics, "--events-fd", fmt.Sprint(eventsFD))...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.ExtraFiles = []*os.File{childEnd}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	// A gateway that dies takes its children along.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	err = runOnOwnThread(cmd, func() { childEnd.Close() })
	<-relayed
	if stderr.Len() > 0 {
		s.Log.Warn().Bytes("stderr", stderr.Bytes()).Msg("execution")
	}
	return outcomeOf(stdout.Bytes(), err, cmd.ProcessState)
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
