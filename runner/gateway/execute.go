package gateway

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"underwrite/attest"
	"underwrite/runner/wire"
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
	var gone bool // a client that stalls once gets no more events, or it would hold up its own outcome
	outcome, stderr, err := Execution{
		Program: s.Execute, ConfigPath: s.ConfigPath, RequestPath: sp.requestPath, BundlePath: sp.bundlePath,
		EvidenceDir: filepath.Join(s.config.Outbox, attest.SHA256Hex(sp.request)), Diagnostics: s.config.Diagnostics,
		Events: func(e wire.Event) { gone = gone || s.reply(conn, wire.Reply{Event: &e}) != nil },
	}.Run(ctx)
	if len(stderr) > 0 {
		s.Log.Warn().Bytes("stderr", stderr).Msg("execution")
	}
	return outcome, err
}
