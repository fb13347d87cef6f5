package attest

import (
	"fmt"
	"time"
)

// VerifiedReceipt is an execution receipt that passed VerifyReceipt: evidence
// that one job ended as the caller's context says.
type VerifiedReceipt struct {
	Capability    *VerifiedCapability
	Payload       []byte // the exact verified bytes
	PayloadSHA256 string
	SignerID      string // of the key that verified the signature
	ExecutorID    string
	StartedAt     time.Time
	FinishedAt    time.Time
	ExitCode      int64
}

// VerifyReceipt validates a capability and the receipt linked to it against the
// caller's own context in the protocol's order ("Validator contract"). The
// receipt must not have finished after now; whether the capability has expired
// meanwhile does not matter.
//
// It returns nil and an error that wraps one sentinel of this package if
// anything does not hold. ErrExitCode (an *ExitCodeError with the signed code)
// is returned only if every other claim holds: the receipt would then pass with
// the observed code expected.
func VerifyReceipt(capabilityEnvelope, receiptEnvelope []byte, e ExpectedReceipt, verify SignatureVerifier, now time.Time) (*VerifiedReceipt, error) {
	if err := e.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrExpected, err)
	}
	c, err := verifyCapability(capabilityEnvelope, e.Expected, verify)
	if err != nil {
		return nil, fmt.Errorf("capability: %w", err)
	}
	opened, err := openFrom(receiptEnvelope, e.SignerID, verify) // steps 1 to 3
	if err != nil {
		return nil, fmt.Errorf("receipt: %w", err)
	}
	r, err := checkReceipt(opened.Payload, c, e, now)
	if err != nil {
		return nil, fmt.Errorf("receipt: %w", err)
	}
	r.SignerID = opened.SignerID
	return r, nil
}

// checkReceipt is steps 3 to 8 for an authentic payload. c and e must be valid.
func checkReceipt(payload []byte, c *VerifiedCapability, e ExpectedReceipt, now time.Time) (*VerifiedReceipt, error) {
	s, err := readStatement(payload, ReceiptPredicate, receiptPredicateKeys) // step 4
	if err != nil {
		return nil, err
	}
	if err := s.checkExecutor(c.ExecutorID); err != nil { // step 3: the same in both
		return nil, err
	}
	if err := s.checkLink(c); err != nil { // step 6
		return nil, err
	}
	r := &VerifiedReceipt{
		Capability: c, Payload: payload, PayloadSHA256: SHA256Hex(payload), ExecutorID: e.ExecutorID, ExitCode: e.ExitCode,
	}
	if err := s.checkRun(r, e, now); err != nil { // step 7
		return nil, err
	}
	if err := s.checkArtifacts(e); err != nil { // step 8
		return nil, err
	}
	// Last of step 7, so that a failure here says that all else holds.
	if err := s.checkExitCode(e.ExitCode); err != nil {
		return nil, err
	}
	return r, nil
}

// checkLink is step 6: the receipt names this very capability payload and holds
// the identical invocation.
func (s *statement) checkLink(c *VerifiedCapability) error {
	want := map[string]any{"payloadSha256": c.PayloadSHA256}
	if err := same(ErrLink, "capability", s.predicate["capability"], want); err != nil {
		return err
	}
	return checkInvocation(s.predicate["invocation"], c.invocation)
}

// checkRun is step 7 but for the exit code.
func (s *statement) checkRun(r *VerifiedReceipt, e ExpectedReceipt, now time.Time) (err error) {
	if r.StartedAt, err = s.time("startedAt"); err != nil {
		return err
	}
	if r.FinishedAt, err = s.time("finishedAt"); err != nil {
		return err
	}
	if err := r.checkStarted(); err != nil {
		return err
	}
	if err := r.checkFinished(now); err != nil {
		return err
	}
	if err := r.checkWallLimit(e.Sandbox.Limits.WallSeconds); err != nil {
		return err
	}
	if err := s.checkResult(); err != nil {
		return err
	}
	return s.checkOutputLimit(e.Sandbox.Limits)
}

// checkStarted: issuedAt ≤ startedAt < expiresAt.
func (r *VerifiedReceipt) checkStarted() error {
	if r.StartedAt.Before(r.Capability.IssuedAt) || !r.StartedAt.Before(r.Capability.ExpiresAt) {
		return fmt.Errorf("%w: startedAt %s", ErrStarted, FormatTimestamp(r.StartedAt))
	}
	return nil
}

// checkFinished: startedAt ≤ finishedAt ≤ now.
func (r *VerifiedReceipt) checkFinished(now time.Time) error {
	if r.FinishedAt.Before(r.StartedAt) || r.FinishedAt.After(now) {
		return fmt.Errorf("%w: finishedAt %s, now %s", ErrFinished, FormatTimestamp(r.FinishedAt), FormatTimestamp(now))
	}
	return nil
}

// checkWallLimit: finishedAt − startedAt ≤ wallSeconds, without tolerance. The
// limit may be larger than a time.Duration holds, so whole seconds and the rest
// are compared apart.
func (r *VerifiedReceipt) checkWallLimit(wallSeconds int64) error {
	micros := r.FinishedAt.UnixMicro() - r.StartedAt.UnixMicro()
	seconds, rest := micros/1e6, micros%1e6
	if seconds > wallSeconds || seconds == wallSeconds && rest > 0 {
		return fmt.Errorf("%w: %d.%06d s, at most %d s", ErrWallLimit, seconds, rest, wallSeconds)
	}
	return nil
}

// checkResult: the result is a clean exit with some exit code from 0 to 255.
func (s *statement) checkResult() error {
	var d decoder
	result, _ := s.predicate["result"].(map[string]any)
	exitCode := d.exitCode(result["exitCode"], "result.exitCode")
	if d.err != nil {
		return fmt.Errorf("%w: %w", ErrResult, d.err)
	}
	return same(ErrResult, "result", s.predicate["result"], cleanExit(exitCode))
}

// checkExitCode needs checkResult to have passed.
func (s *statement) checkExitCode(expected int64) error {
	result, _ := s.predicate["result"].(map[string]any)
	if observed, ok := result["exitCode"].(int64); !ok || observed != expected {
		return fmt.Errorf("%w", &ExitCodeError{Expected: expected, Observed: observed})
	}
	return nil
}

// checkOutputLimit: both signed streams are complete and together within
// outputBytes.
func (s *statement) checkOutputLimit(l Limits) error {
	var d decoder
	m := d.object(s.predicate["streams"], "streams", "stdout", "stderr")
	stdout, stderr := d.stream(m["stdout"], "streams.stdout"), d.stream(m["stderr"], "streams.stderr")
	if d.err != nil {
		return fmt.Errorf("%w: %w", ErrStreams, d.err)
	}
	if !withinOutputLimit(stdout, stderr, l) {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrOutputLimit, stdout.Bytes+stderr.Bytes, l.OutputBytes)
	}
	return nil
}

// checkArtifacts is step 8: the signed descriptors are those that the caller
// derived from the artifacts themselves.
func (s *statement) checkArtifacts(e ExpectedReceipt) error {
	streams := map[string]any{"stdout": e.Stdout.value(), "stderr": e.Stderr.value()}
	if err := same(ErrStreams, "streams", s.predicate["streams"], streams); err != nil {
		return err
	}
	if err := same(ErrOutputBundle, "outputBundle", s.predicate["outputBundle"], e.OutputBundle.value()); err != nil {
		return err
	}
	if err := same(ErrOutputTree, "outputTree", s.predicate["outputTree"], gitTree(e.OutputTree)); err != nil {
		return err
	}
	return s.checkSubject(ReceiptSubject, e.OutputTree)
}
