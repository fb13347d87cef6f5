package evidence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"underwrite/attest"
	"underwrite/runner/quarantine"
	"underwrite/store/blob"
)

// ErrInvalid: the evidence is not what was expected. It must never be shown as
// a result. The wrapped error says why.
var ErrInvalid = errors.New("invalid evidence")

// Inspector derives descriptors from the bytes of bundles. *Quarantine is the
// one; tests of callers may have another.
type Inspector interface {
	// InputTree checks the source bundle against the target and returns the
	// synthetic tree of its head.
	InputTree(ctx context.Context, bundlePath string, target attest.Target) (string, error)
	// Source is InputTree that also looks for the repository-relative directories
	// in which jobs are to start. refused tells of each in which none can, why.
	Source(ctx context.Context, bundlePath string, target attest.Target, cwds []string) (tree string, refused Refused, err error)
	// Output derives the descriptor of an output bundle. What is wrong with the
	// bundle is a *quarantine.RefusedError.
	Output(ctx context.Context, bundlePath string) (attest.Bundle, error)
}

// Refused are the reasons why no job can start in a directory, by directory.
type Refused map[string]*quarantine.RefusedError

// Expectation is what the caller knows by itself.
type Expectation struct {
	Request      []byte // the canonical request as it was reserved
	SourceBundle string // file with the frozen bundle
	Trust        Trust
	Inspector    Inspector
	Now          time.Time // of consumption: keys are judged by it
}

// Step is one step of a verification.
type Step struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"` // what was compared, or why it failed
}

// Result is what a verification established. Only Steps is set if it failed.
type Result struct {
	Steps        []Step
	Request      attest.Request
	Receipt      *attest.VerifiedReceipt
	KeyID        string // fingerprint of the key that verified
	InputTree    string
	Output       attest.Bundle
	Stdout       attest.Stream
	Stderr       attest.Stream
	ExitCode     int64 // as signed
	Predicted    int64
	Contradicted bool // authentic, but ExitCode is not Predicted
}

// Verify verifies evidence against the caller's own expectation. ErrInvalid
// says that it failed; any other error says that it could not be checked. The
// result is never nil, and its steps are those that were done.
//
// If the signed exit code alone is not the predicted one, the evidence is
// verified again with the signed code expected: it is then authentic evidence
// that contradicts the prediction, not a failure.
func Verify(ctx context.Context, f *Files, blobs *blob.Store, e Expectation) (*Result, error) {
	v := &verification{files: f, blobs: blobs, expect: e, result: &Result{}}
	for _, step := range []struct {
		name string
		do   func(ctx context.Context) (detail string, err error)
	}{
		{"request", v.request},
		{"trust", v.trust},
		{"source bundle", v.source},
		{"output bundle", v.output},
		{"streams", v.streams},
		{"capability and receipt", v.envelopes},
	} {
		detail, err := step.do(ctx)
		if err != nil {
			v.note(step.name, false, err.Error())
			return &Result{Steps: v.result.Steps}, fmt.Errorf("%s: %w", step.name, err)
		}
		v.note(step.name, true, detail)
	}
	return v.result, nil
}

type verification struct {
	files    *Files
	blobs    *blob.Store
	expect   Expectation
	verifier attest.SignatureVerifier
	result   *Result
}

func (v *verification) note(name string, ok bool, detail string) {
	v.result.Steps = append(v.result.Steps, Step{name, ok, detail})
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// request: the request is byte for byte the reserved one. From here on only
// the caller's own copy is used.
func (v *verification) request(context.Context) (string, error) {
	reserved, err := attest.ParseRequest(v.expect.Request)
	if err != nil {
		return "", fmt.Errorf("reserved request: %w", err)
	}
	if !bytes.Equal(v.files.Request, v.expect.Request) {
		return "", invalid("request is not the reserved one: %s", difference(v.files.Request, v.expect.Request))
	}
	v.result.Request, v.result.Predicted = reserved, reserved.Profile.ExitCode
	return "SHA-256 " + attest.SHA256Hex(v.expect.Request), nil
}

// trust: the profile's key, signer, executor and sandbox policy are allowed
// together, and the key is valid now.
func (v *verification) trust(context.Context) (detail string, err error) {
	p := v.result.Request.Profile
	if p.Sandbox.Policy != attest.SandboxPolicy {
		return "", invalid("sandbox policy %q: %w", p.Sandbox.Policy, ErrUntrusted)
	}
	if v.verifier, err = v.expect.Trust.verifier(p, v.expect.Now); err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	v.result.KeyID = p.KeyID
	return fmt.Sprintf("key %s of signer %s for executor %s, valid at %s", p.KeyID, p.SignerID, p.ExecutorID, attest.FormatTimestamp(v.expect.Now)), nil
}

// source: the frozen bundle has the target's digest and commits, and the tree
// of its head is the input. A failure is none of the evidence's fault.
func (v *verification) source(ctx context.Context) (detail string, err error) {
	t := v.result.Request.Target
	if v.result.InputTree, err = v.expect.Inspector.InputTree(ctx, v.expect.SourceBundle, t); err != nil {
		return "", fmt.Errorf("frozen source: %w", err)
	}
	return fmt.Sprintf("SHA-256 %s, head %s, tree %s", t.ObjectBundleSHA256, t.HeadSHA, v.result.InputTree), nil
}

// output: the output bundle's descriptor from its own bytes and objects.
func (v *verification) output(ctx context.Context) (detail string, err error) {
	if err := v.blobs.Check(v.files.Output); err != nil {
		return "", err
	}
	got, err := v.expect.Inspector.Output(ctx, v.blobs.Path(v.files.Output))
	if refused(err) {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err != nil {
		return "", err
	}
	if got.SHA256 != v.files.Output.SHA256 || got.Bytes != v.files.Output.Bytes {
		return "", errors.New("output bundle changed in the blob store")
	}
	v.result.Output = got
	return fmt.Sprintf("SHA-256 %s, tree %s", got.SHA256, got.GitTree), nil
}

// streams: digests and lengths of the exact bytes, which Read hashed and the
// blob store still holds.
func (v *verification) streams(context.Context) (string, error) {
	for _, s := range []struct {
		ref  blob.Ref
		into *attest.Stream
	}{{v.files.Stdout, &v.result.Stdout}, {v.files.Stderr, &v.result.Stderr}} {
		if err := v.blobs.Check(s.ref); err != nil {
			return "", err
		}
		*s.into = attest.Stream{SHA256: s.ref.SHA256, Bytes: s.ref.Bytes}
	}
	limit := v.result.Request.Profile.Sandbox.Limits.OutputBytes
	if sum := v.result.Stdout.Bytes + v.result.Stderr.Bytes; sum > limit {
		return "", invalid("streams: %w: %d bytes, at most %d", attest.ErrOutputLimit, sum, limit)
	}
	return fmt.Sprintf("stdout %d bytes, stderr %d bytes", v.result.Stdout.Bytes, v.result.Stderr.Bytes), nil
}

// envelopes: the protocol's validator, against an expected context made from
// the reserved request and the descriptors derived above.
func (v *verification) envelopes(context.Context) (string, error) {
	expected := v.expected()
	receipt, err := attest.VerifyReceipt(v.files.Capability, v.files.Receipt, expected, v.verifier, v.expect.Now)
	var exit *attest.ExitCodeError
	if errors.As(err, &exit) {
		expected.ExitCode = exit.Observed
		receipt, err = attest.VerifyReceipt(v.files.Capability, v.files.Receipt, expected, v.verifier, v.expect.Now)
	}
	if errors.Is(err, attest.ErrExpected) {
		return "", err // our own context: nothing was checked
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	r := v.result
	r.Receipt, r.ExitCode, r.Contradicted = receipt, receipt.ExitCode, receipt.ExitCode != r.Predicted
	return fmt.Sprintf("exit code %d, predicted %d", r.ExitCode, r.Predicted), nil
}

func (v *verification) expected() attest.ExpectedReceipt {
	r := v.result
	p := r.Request.Profile
	return attest.ExpectedReceipt{
		Expected: attest.Expected{
			SignerID: p.SignerID, ExecutorID: p.ExecutorID,
			SessionID: r.Request.SessionID, Challenge: r.Request.Challenge,
			Target: r.Request.Target, Action: r.Request.Action, Job: p.Job, InputTree: r.InputTree, Sandbox: p.Sandbox,
		},
		OutputTree: r.Output.GitTree, OutputBundle: r.Output, Stdout: r.Stdout, Stderr: r.Stderr, ExitCode: r.Predicted,
	}
}
