package attest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Keys of the statements ("in-toto Statement", "Host capability", "Execution
// receipt").
var (
	statementKeys           = []string{"_type", "subject", "predicateType", "predicate"}
	capabilityPredicateKeys = []string{"executor", "issuedAt", "expiresAt", "invocation"}
	receiptPredicateKeys    = []string{"executor", "startedAt", "finishedAt", "invocation", "capability",
		"outputTree", "outputBundle", "result", "streams"}
)

// NewCapability builds the payload of a host capability for e. It is checked by
// the validator's own claims before it is returned, so nothing else can be
// signed. Times are cut to microseconds. e.SignerID is not part of the payload.
func NewCapability(e Expected, issuedAt, expiresAt time.Time) ([]byte, error) {
	if err := e.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrExpected, err)
	}
	invocation, err := e.invocation()
	if err != nil {
		return nil, err
	}
	payload, err := encodeStatement(CapabilityPredicate, CapabilitySubject, e.InputTree, map[string]any{
		"executor":   map[string]any{"id": e.ExecutorID},
		"issuedAt":   FormatTimestamp(issuedAt),
		"expiresAt":  FormatTimestamp(expiresAt),
		"invocation": invocation,
	})
	if err != nil {
		return nil, err
	}
	if _, err := checkCapability(payload, e); err != nil {
		return nil, err
	}
	return payload, nil
}

// NewReceipt builds the payload of an execution receipt for e, linked to the
// verified capability under which the job ran. Like NewCapability it returns
// nothing that the validator would refuse. e.ExitCode is the real exit code.
func NewReceipt(e ExpectedReceipt, c *VerifiedCapability, startedAt, finishedAt time.Time) ([]byte, error) {
	if err := e.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrExpected, err)
	}
	if c == nil {
		return nil, fmt.Errorf("%w: no capability", ErrLink)
	}
	invocation, err := e.invocation()
	if err != nil {
		return nil, err
	}
	payload, err := encodeStatement(ReceiptPredicate, ReceiptSubject, e.OutputTree, map[string]any{
		"executor":     map[string]any{"id": e.ExecutorID},
		"startedAt":    FormatTimestamp(startedAt),
		"finishedAt":   FormatTimestamp(finishedAt),
		"invocation":   invocation,
		"capability":   map[string]any{"payloadSha256": c.PayloadSHA256},
		"outputTree":   gitTree(e.OutputTree),
		"outputBundle": e.OutputBundle.value(),
		"result":       cleanExit(e.ExitCode),
		"streams":      map[string]any{"stdout": e.Stdout.value(), "stderr": e.Stderr.value()},
	})
	if err != nil {
		return nil, err
	}
	if _, err := checkReceipt(payload, c, e, finishedAt); err != nil {
		return nil, err
	}
	return payload, nil
}

func encodeStatement(predicateType, subject, tree string, predicate map[string]any) ([]byte, error) {
	payload, err := CanonicalJSON(map[string]any{
		"_type":         StatementType,
		"subject":       subjectOf(subject, tree),
		"predicateType": predicateType,
		"predicate":     predicate,
	})
	if err != nil {
		return nil, fmt.Errorf("statement: %w", err)
	}
	if len(payload) > MaxPayloadBytes {
		return nil, fmt.Errorf("statement: %w: %d bytes, at most %d", ErrSchema, len(payload), MaxPayloadBytes)
	}
	return payload, nil
}

func subjectOf(name, tree string) []any {
	return []any{map[string]any{"name": name, "digest": gitTree(tree)}}
}

func (b Bundle) value() any {
	return map[string]any{"gitTree": b.GitTree, "sha256": b.SHA256, "bytes": b.Bytes}
}

// cleanExit is the only result of a version 1 receipt.
func cleanExit(exitCode int64) map[string]any {
	return map[string]any{
		"status": "exited", "exitCode": exitCode, "signal": nil, "timedOut": false, "resourceViolation": nil,
		"isolationViolation": nil, "survivingProcesses": int64(0), "teardown": "complete",
	}
}

// statement is a payload after the first part of step 4: an exact Statement of
// the wanted kind with an exact predicate. Its members are unchecked.
type statement struct {
	payload   []byte
	subject   any
	predicate map[string]any
}

// readStatement is step 4 after the payload type: the exact payload bytes are
// parsed once, here.
func readStatement(payload []byte, predicateType string, predicateKeys []string) (*statement, error) {
	v, err := ReadJSON(payload)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPayload, err)
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%w", ErrPayload)
	}
	if err := exactKeys(ErrStatement, "statement", m, statementKeys); err != nil {
		return nil, err
	}
	if err := same(ErrStatementType, "_type", m["_type"], StatementType); err != nil {
		return nil, err
	}
	if err := same(ErrPredicateType, "predicateType", m["predicateType"], predicateType); err != nil {
		return nil, err
	}
	predicate, ok := m["predicate"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%w: predicate must be an object", ErrPredicate)
	}
	if err := exactKeys(ErrPredicate, "predicate", predicate, predicateKeys); err != nil {
		return nil, err
	}
	return &statement{payload: payload, subject: m["subject"], predicate: predicate}, nil
}

func exactKeys(claim error, field string, m map[string]any, keys []string) error {
	var d decoder
	if d.object(m, field, keys...); d.err != nil {
		return fmt.Errorf("%w: %w", claim, d.err)
	}
	return nil
}

// same requires got to equal want in structure and type, and names the first
// place where it does not.
func same(claim error, field string, got, want any) error {
	if at := difference(field, got, want); at != "" {
		return fmt.Errorf("%w: %s", claim, at)
	}
	return nil
}

// difference names the first place where two values of ReadJSON differ, by key
// order; "" if nowhere. A Float never equals anything, for want holds none.
func difference(at string, got, want any) string {
	if equal(got, want) {
		return "" // and nothing was spent on naming places
	}
	return firstDifference(at, got, want)
}

// equal reports whether difference finds nothing.
func equal(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok || len(got) != len(want) {
			return false
		}
		for key, w := range want {
			if g, ok := got[key]; !ok || !equal(g, w) {
				return false
			}
		}
		return true
	case []any:
		got, ok := got.([]any)
		return ok && slices.EqualFunc(got, want, equal)
	}
	switch got.(type) {
	case map[string]any, []any, Float:
		return false
	}
	return got == want
}

func firstDifference(at string, got, want any) string {
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok {
			return at + " is not an object"
		}
		return objectDifference(at, got, want)
	case []any:
		got, ok := got.([]any)
		if !ok || len(got) != len(want) {
			return fmt.Sprintf("%s is not an array of %d", at, len(want))
		}
		for i := range want {
			if d := firstDifference(at+"["+strconv.Itoa(i)+"]", got[i], want[i]); d != "" {
				return d
			}
		}
		return ""
	}
	switch got.(type) {
	case map[string]any, []any, Float:
		return at + " has another type"
	}
	if got != want {
		return at + " differs"
	}
	return ""
}

func objectDifference(at string, got, want map[string]any) string {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		member, ok := got[key]
		if !ok {
			return at + " is missing " + clip(key)
		}
		if d := firstDifference(at+"."+clip(key), member, want[key]); d != "" {
			return d
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			return at + " has an unknown field"
		}
	}
	return ""
}
