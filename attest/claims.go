package attest

import "fmt"

// ClaimedReceipt reads what a pair of envelopes says about itself, without
// verifying anything. The result is no expectation: validating the envelopes
// against it shows only that they are consistent with themselves. It is for
// saying what an authentic receipt claims when the reader has nothing to compare
// it with. SignerID is left empty, because no envelope can tell it. Errors wrap
// ErrEnvelope, ErrPayload or another sentinel of the validator.
func ClaimedReceipt(capabilityEnvelope, receiptEnvelope []byte) (ExpectedReceipt, error) {
	c, err := claimedStatement(capabilityEnvelope, CapabilityPredicate, capabilityPredicateKeys)
	if err != nil {
		return ExpectedReceipt{}, fmt.Errorf("capability: %w", err)
	}
	r, err := claimedStatement(receiptEnvelope, ReceiptPredicate, receiptPredicateKeys)
	if err != nil {
		return ExpectedReceipt{}, fmt.Errorf("receipt: %w", err)
	}
	var d decoder
	e := ExpectedReceipt{Expected: d.claimedInvocation(c.predicate)}
	d.claimedOutcome(&e, r.predicate)
	if d.err != nil {
		return ExpectedReceipt{}, fmt.Errorf("%w", d.err)
	}
	return e, nil
}

func claimedStatement(envelope []byte, predicateType string, keys []string) (*statement, error) {
	e, err := ParseEnvelope(envelope)
	if err != nil {
		return nil, err
	}
	if err := e.checkPayloadType(PayloadType); err != nil {
		return nil, err
	}
	return readStatement(e.Payload, predicateType, keys)
}

func (d *decoder) claimedInvocation(predicate map[string]any) Expected {
	m := d.object(predicate["invocation"], "invocation",
		"session", "target", "sourceBundle", "action", "job", "jobDigest", "inputTree", "sandbox")
	session := d.object(m["session"], "session", "id", "challenge")
	target := d.object(m["target"], "target", "document", "digest")
	return Expected{
		ExecutorID: d.filled(d.object(predicate["executor"], "executor", "id")["id"], "executor.id"),
		SessionID:  d.uuid(session["id"], "session.id"),
		Challenge:  d.sha256(session["challenge"], "session.challenge"),
		Target:     d.target(target["document"], "target.document"),
		Action:     d.action(m["action"], "action"),
		Job:        d.job(m["job"], "job"),
		InputTree:  d.tree(m["inputTree"], "inputTree"),
		Sandbox:    d.sandbox(m["sandbox"], "sandbox"),
	}
}

func (d *decoder) claimedOutcome(e *ExpectedReceipt, predicate map[string]any) {
	streams := d.object(predicate["streams"], "streams", "stdout", "stderr")
	bundle := d.object(predicate["outputBundle"], "outputBundle", "gitTree", "sha256", "bytes")
	result := d.object(predicate["result"], "result", "status", "exitCode", "signal", "timedOut",
		"resourceViolation", "isolationViolation", "survivingProcesses", "teardown")
	e.OutputTree = d.tree(predicate["outputTree"], "outputTree")
	e.OutputBundle = Bundle{
		GitTree: d.sha256(bundle["gitTree"], "outputBundle.gitTree"),
		SHA256:  d.sha256(bundle["sha256"], "outputBundle.sha256"),
		Bytes:   d.positive(bundle["bytes"], "outputBundle.bytes"),
	}
	e.Stdout = d.stream(streams["stdout"], "streams.stdout")
	e.Stderr = d.stream(streams["stderr"], "streams.stderr")
	e.ExitCode = d.exitCode(result["exitCode"], "result.exitCode")
}

func (d *decoder) tree(v any, at string) string {
	return d.sha256(d.object(v, at, "gitTree")["gitTree"], at+".gitTree")
}
