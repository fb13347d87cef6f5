package attest

import (
	"fmt"
	"strconv"
	"time"
)

// VerifiedCapability is a host capability that passed VerifyCapability: a
// commitment of the signer, no evidence that anything ran.
type VerifiedCapability struct {
	Payload       []byte // the exact verified bytes
	PayloadSHA256 string // what a receipt links
	SignerID      string // of the key that verified the signature
	ExecutorID    string
	IssuedAt      time.Time
	ExpiresAt     time.Time

	invocation map[string]any // equal to the caller's
}

// VerifyCapability validates a host capability against the caller's own context
// in the protocol's order ("Validator contract") and requires it to be current:
// issuedAt ≤ now < expiresAt. It returns nil and an error that wraps one
// sentinel of this package, naming the failed claim, if anything does not hold.
func VerifyCapability(envelope []byte, e Expected, verify SignatureVerifier, now time.Time) (*VerifiedCapability, error) {
	if err := e.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrExpected, err)
	}
	c, err := verifyCapability(envelope, e, verify)
	if err != nil {
		return nil, err
	}
	if err := c.checkCurrent(now); err != nil {
		return nil, err
	}
	return c, nil
}

// verifyCapability is steps 1 to 5 without freshness, which a receipt does not
// ask for: it may be checked long after the capability expired.
func verifyCapability(envelope []byte, e Expected, verify SignatureVerifier) (*VerifiedCapability, error) {
	opened, err := openFrom(envelope, e.SignerID, verify) // steps 1 to 3
	if err != nil {
		return nil, err
	}
	c, err := checkCapability(opened.Payload, e)
	if err != nil {
		return nil, err
	}
	c.SignerID = opened.SignerID
	return c, nil
}

// openFrom is steps 1 and 2, the signer of step 3 and the payload type of
// step 4. The payload is decoded here and nowhere else.
func openFrom(envelope []byte, signerID string, verify SignatureVerifier) (*Opened, error) {
	e, err := ParseEnvelope(envelope) // step 1
	if err != nil {
		return nil, err
	}
	signer, err := e.authenticate(verify) // step 2
	if err != nil {
		return nil, err
	}
	if signer != signerID { // step 3
		return nil, fmt.Errorf("%w: %s", ErrSigner, strconv.QuoteToASCII(clip(signer)))
	}
	if err := e.checkPayloadType(PayloadType); err != nil { // step 4
		return nil, err
	}
	return &Opened{PayloadType: e.PayloadType, Payload: e.Payload, SignerID: signer}, nil
}

// checkCapability is steps 3 to 5 for an authentic payload. e must be valid.
func checkCapability(payload []byte, e Expected) (*VerifiedCapability, error) {
	s, err := readStatement(payload, CapabilityPredicate, capabilityPredicateKeys) // step 4
	if err != nil {
		return nil, err
	}
	want, err := e.invocation()
	if err != nil {
		return nil, err
	}
	c := &VerifiedCapability{
		Payload: payload, PayloadSHA256: SHA256Hex(payload), ExecutorID: e.ExecutorID, invocation: want,
	}
	if err := s.checkExecutor(e.ExecutorID); err != nil { // step 3
		return nil, err
	}
	if err := checkInvocation(s.predicate["invocation"], want); err != nil { // step 5
		return nil, err
	}
	if err := s.checkSubject(CapabilitySubject, e.InputTree); err != nil {
		return nil, err
	}
	if c.IssuedAt, err = s.time("issuedAt"); err != nil {
		return nil, err
	}
	if c.ExpiresAt, err = s.time("expiresAt"); err != nil {
		return nil, err
	}
	if err := c.checkLifetime(); err != nil {
		return nil, err
	}
	return c, nil
}

// checkExecutor: the signed executor is the caller's.
func (s *statement) checkExecutor(id string) error {
	return same(ErrExecutor, "executor", s.predicate["executor"], map[string]any{"id": id})
}

// checkSubject: the one subject is the named tree.
func (s *statement) checkSubject(name, tree string) error {
	return same(ErrSubject, "subject", s.subject, subjectOf(name, tree))
}

// invocationClaims are the members of an invocation, each with its sentinel.
var invocationClaims = []struct {
	key   string
	claim error
}{
	{"session", ErrSession},
	{"sourceBundle", ErrSourceBundle},
	{"action", ErrAction},
	{"job", ErrJob},
	{"jobDigest", ErrJobDigest},
	{"inputTree", ErrInputTree},
	{"sandbox", ErrSandbox},
}

// checkInvocation: got equals want, whose digests were recomputed, in
// structure and type. Key order never matters.
func checkInvocation(got any, want map[string]any) error {
	invocation, ok := got.(map[string]any)
	if !ok {
		return fmt.Errorf("%w: not an object", ErrInvocation)
	}
	if err := checkTarget(invocation["target"], want["target"].(map[string]any)); err != nil {
		return fmt.Errorf("%w: %w", ErrInvocation, err)
	}
	for _, c := range invocationClaims {
		if at := difference(c.key, invocation[c.key], want[c.key]); at != "" {
			return fmt.Errorf("%w: %w: %s", ErrInvocation, c.claim, at)
		}
	}
	return same(ErrInvocation, "invocation", got, want) // missing or unknown fields
}

// checkTarget compares the document field by field and then its digest; equal
// digests alone prove nothing.
func checkTarget(got any, want map[string]any) error {
	target, ok := got.(map[string]any)
	if !ok {
		return fmt.Errorf("%w: not an object", ErrTarget)
	}
	if at := difference("target.document", target["document"], want["document"]); at != "" {
		return fmt.Errorf("%w: %s", ErrTarget, at)
	}
	if at := difference("target.digest", target["digest"], want["digest"]); at != "" {
		return fmt.Errorf("%w: %s", ErrTargetDigest, at)
	}
	return nil
}

func (s *statement) time(key string) (time.Time, error) {
	text, ok := s.predicate[key].(string)
	if !ok {
		return time.Time{}, fmt.Errorf("%s: %w: not text", key, ErrTimestamp)
	}
	t, err := ParseTimestamp(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %w", key, err)
	}
	return t, nil
}

// checkLifetime: expiresAt is later than issuedAt by at most 300 seconds.
func (c *VerifiedCapability) checkLifetime() error {
	if lifetime := c.ExpiresAt.Sub(c.IssuedAt); lifetime <= 0 || lifetime > MaxCapabilityLifetime {
		return fmt.Errorf("%w: %v", ErrLifetime, lifetime)
	}
	return nil
}

// checkCurrent: issuedAt ≤ now < expiresAt.
func (c *VerifiedCapability) checkCurrent(now time.Time) error {
	if now.Before(c.IssuedAt) || !now.Before(c.ExpiresAt) {
		return fmt.Errorf("%w: valid from %s until before %s, now %s", ErrNotCurrent,
			FormatTimestamp(c.IssuedAt), FormatTimestamp(c.ExpiresAt), FormatTimestamp(now))
	}
	return nil
}
