package attest

import (
	"fmt"
	"maps"
)

// Keys of the expected context in JSON form ("Validator contract").
var (
	expectedKeys = []string{"signerId", "executorId", "sessionId", "challenge", "target", "action", "job", "inputTree", "sandbox"}
	receiptKeys  = append(expectedKeys[:len(expectedKeys):len(expectedKeys)], "outputTree", "outputBundle", "stdout", "stderr", "exitCode")
)

// ParseExpected reads the JSON form of a capability's expected context: exactly
// the protocol's fields. Errors wrap ErrJSON or ErrSchema.
func ParseExpected(data []byte) (Expected, error) {
	return parse(data, "expected", (*decoder).expected)
}

// ParseExpectedReceipt reads the JSON form of a receipt's expected context:
// exactly the protocol's fields, so outputBundle holds sha256 and bytes, and
// its tree is outputTree. Errors wrap ErrJSON or ErrSchema.
func ParseExpectedReceipt(data []byte) (ExpectedReceipt, error) {
	return parse(data, "expected", (*decoder).expectedReceipt)
}

// Validate checks the context before anything is compared with it. Errors wrap
// ErrSchema.
func (e Expected) Validate() error {
	_, err := check(e.value(), "expected", (*decoder).expected)
	return err
}

// Validate checks the context before anything is compared with it: also that
// the bundle exposes the output tree, and that the streams are within the
// output limit. Errors wrap ErrSchema.
func (e ExpectedReceipt) Validate() error {
	if _, err := check(e.value(), "expected", (*decoder).expectedReceipt); err != nil {
		return err
	}
	if e.OutputBundle.GitTree != e.OutputTree {
		return fmt.Errorf("%w: %w", ErrSchema,
			&FieldError{Field: "expected.outputBundle.gitTree", Reason: "must equal outputTree"})
	}
	return nil
}

func (d *decoder) expected(v any, at string) Expected {
	return d.expectedFields(d.object(v, at, expectedKeys...), at)
}

func (d *decoder) expectedFields(m map[string]any, at string) Expected {
	return Expected{
		SignerID:   d.filled(m["signerId"], at+".signerId"),
		ExecutorID: d.filled(m["executorId"], at+".executorId"),
		SessionID:  d.uuid(m["sessionId"], at+".sessionId"),
		Challenge:  d.sha256(m["challenge"], at+".challenge"),
		Target:     d.target(m["target"], at+".target"),
		Action:     d.action(m["action"], at+".action"),
		Job:        d.job(m["job"], at+".job"),
		InputTree:  d.sha256(m["inputTree"], at+".inputTree"),
		Sandbox:    d.sandbox(m["sandbox"], at+".sandbox"),
	}
}

func (d *decoder) expectedReceipt(v any, at string) ExpectedReceipt {
	m := d.object(v, at, receiptKeys...)
	e := ExpectedReceipt{
		Expected:   d.expectedFields(m, at),
		OutputTree: d.sha256(m["outputTree"], at+".outputTree"),
		Stdout:     d.stream(m["stdout"], at+".stdout"),
		Stderr:     d.stream(m["stderr"], at+".stderr"),
		ExitCode:   d.exitCode(m["exitCode"], at+".exitCode"),
	}
	bundle := d.object(m["outputBundle"], at+".outputBundle", "sha256", "bytes")
	e.OutputBundle = Bundle{
		GitTree: e.OutputTree,
		SHA256:  d.sha256(bundle["sha256"], at+".outputBundle.sha256"),
		Bytes:   d.positive(bundle["bytes"], at+".outputBundle.bytes"),
	}
	if d.err == nil && !withinOutputLimit(e.Stdout, e.Stderr, e.Sandbox.Limits) {
		d.fail(at+".stdout and stderr", "are %d bytes, above the output limit", e.Stdout.Bytes+e.Stderr.Bytes)
	}
	return e
}

func (d *decoder) stream(v any, at string) Stream {
	m := d.object(v, at, "sha256", "bytes", "truncated")
	if truncated, ok := m["truncated"].(bool); !ok || truncated {
		d.fail(at+".truncated", "must be false")
	}
	return Stream{SHA256: d.sha256(m["sha256"], at+".sha256"), Bytes: d.count(m["bytes"], at+".bytes")}
}

// withinOutputLimit cannot overflow: each count is at most MaxInteger.
func withinOutputLimit(stdout, stderr Stream, l Limits) bool {
	return stdout.Bytes+stderr.Bytes <= l.OutputBytes
}

func (s Stream) value() any {
	return map[string]any{"sha256": s.SHA256, "bytes": s.Bytes, "truncated": s.Truncated}
}

func (e Expected) value() map[string]any {
	return map[string]any{
		"signerId": e.SignerID, "executorId": e.ExecutorID, "sessionId": e.SessionID, "challenge": e.Challenge,
		"target": e.Target.value(), "action": e.Action.value(), "job": e.Job.value(),
		"inputTree": e.InputTree, "sandbox": e.Sandbox.value(),
	}
}

func (e ExpectedReceipt) value() map[string]any {
	m := e.Expected.value()
	maps.Copy(m, map[string]any{
		"outputTree":   e.OutputTree,
		"outputBundle": map[string]any{"sha256": e.OutputBundle.SHA256, "bytes": e.OutputBundle.Bytes},
		"stdout":       e.Stdout.value(), "stderr": e.Stderr.value(), "exitCode": e.ExitCode,
	})
	return m
}

// invocation is the object that both statements hold ("Invocation"), with both
// digests computed from the documents. e must be valid.
func (e Expected) invocation() (map[string]any, error) {
	targetDigest, err := TargetDigest(e.Target)
	if err != nil {
		return nil, err
	}
	jobDigest, err := JobDigest(e.Job)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"session":      map[string]any{"id": e.SessionID, "challenge": e.Challenge},
		"target":       map[string]any{"document": e.Target.value(), "digest": map[string]any{"sha256": targetDigest}},
		"sourceBundle": map[string]any{"sha256": e.Target.ObjectBundleSHA256, "bytes": e.Target.ObjectBundleBytes},
		"action":       e.Action.value(),
		"job":          e.Job.value(),
		"jobDigest":    map[string]any{"sha256": jobDigest},
		"inputTree":    gitTree(e.InputTree),
		"sandbox":      e.Sandbox.value(),
	}, nil
}

func gitTree(tree string) map[string]any { return map[string]any{"gitTree": tree} }
