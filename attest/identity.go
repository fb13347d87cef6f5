package attest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// TargetDigest validates t and returns SHA-256 of its canonical JSON, in hex
// ("Frozen target"). Errors wrap ErrSchema.
func TargetDigest(t Target) (string, error) { return digest(t.Canonical()) }

// JobDigest validates j and returns SHA-256 of its canonical JSON, in hex
// ("Job"). Errors wrap ErrSchema.
func JobDigest(j Job) (string, error) { return digest(j.Canonical()) }

func digest(canonical []byte, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return SHA256Hex(canonical), nil
}

// ReplayKey names the one execution that these values allow ("Session and
// replay identity"): SHA-256, in hex, of the canonical JSON object of the eight.
// jobDigest is what JobDigest returns. Errors wrap ErrSchema.
func ReplayKey(signerID, executorID, sessionID, challenge string, a Action, jobDigest string) (string, error) {
	key, err := digest(CanonicalJSON(map[string]any{
		"signerId": signerID, "executorId": executorID, "sessionId": sessionID, "challenge": challenge,
		"seq": a.Seq, "beat": a.Beat, "attempt": a.Attempt, "jobDigest": jobDigest,
	}))
	if err != nil {
		return "", fmt.Errorf("replay key: %w", err)
	}
	return key, nil
}

// ReplayKey is the replay key of the execution that r reserves. Errors wrap
// ErrSchema.
func (r Request) ReplayKey() (string, error) {
	jobDigest, err := JobDigest(r.Profile.Job)
	if err != nil {
		return "", err
	}
	return ReplayKey(r.Profile.SignerID, r.Profile.ExecutorID, r.SessionID, r.Challenge, r.Action, jobDigest)
}

// Expected is the context of a capability for r over a measured input tree. Both
// sides derive it here, each from the request that it holds itself.
func (r Request) Expected(inputTree string) Expected {
	return Expected{
		SignerID: r.Profile.SignerID, ExecutorID: r.Profile.ExecutorID,
		SessionID: r.SessionID, Challenge: r.Challenge, Target: r.Target, Action: r.Action,
		Job: r.Profile.Job, InputTree: inputTree, Sandbox: r.Profile.Sandbox,
	}
}

// NewChallenge returns 32 random bytes as 64 lower-case hex digits ("Session
// and replay identity"). It must be used for one attempt only.
func NewChallenge() string {
	var b [32]byte
	rand.Read(b[:]) // never fails: it ends the process instead
	return hex.EncodeToString(b[:])
}

// NewUUID returns a random UUID (RFC 9562, version 4) in canonical form.
func NewUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
