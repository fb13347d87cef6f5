package attest

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"underwrite/attest/attesttest"
)

// Whatever is read and has a canonical form re-encodes to bytes that read to
// the same value and encode to themselves.
func FuzzReadJSON(f *testing.F) {
	for _, c := range attesttest.Load(f, "canonical_json") {
		if data := c.Bytes(f, "input"); len(data) < 4096 {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := ReadJSON(data)
		if err != nil {
			if !errors.Is(err, ErrJSON) {
				t.Fatalf("error does not wrap ErrJSON: %v", err)
			}
			return
		}
		canonical, err := CanonicalJSON(v)
		if err != nil {
			return // it holds a Float
		}
		again, err := ReadJSON(canonical)
		if err != nil || !reflect.DeepEqual(again, v) {
			t.Fatalf("%q reads as %#v, %v; not %#v", canonical, again, err, v)
		}
		if twice, err := CanonicalJSON(again); err != nil || !bytes.Equal(twice, canonical) {
			t.Fatalf("%q encodes as %q, %v", canonical, twice, err)
		}
	})
}

// Whatever parses as an envelope re-encodes to an equal envelope.
func FuzzParseEnvelope(f *testing.F) {
	for _, file := range []string{"capability", "receipt"} {
		for i, c := range attesttest.Load(f, file) {
			if data := c.Bytes(f, "capability_envelope"); len(data) < 16<<10 && i%8 == 0 {
				f.Add(data)
			}
		}
	}
	f.Add([]byte(`{"payload":"YQ==","payloadType":"t","signatures":[{"sig":"-_8=","keyid":"k"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := ParseEnvelope(data)
		if err != nil {
			if !errors.Is(err, ErrEnvelope) {
				t.Fatalf("error does not wrap ErrEnvelope: %v", err)
			}
			return
		}
		encoded, err := e.Encode()
		if err != nil {
			t.Fatalf("cannot encode what was parsed: %v", err)
		}
		again, err := ParseEnvelope(encoded)
		if err != nil || !reflect.DeepEqual(again, e) {
			t.Fatalf("parses as %+v, %v; not %+v", again, err, e)
		}
	})
}

// A payload that passes every claim is the expected statement in some spelling:
// its canonical form is the one payload that this package would build.
func FuzzStatements(f *testing.F) {
	e := testExpectation()
	capability, receipt := testPayloads(f, e)
	c, err := checkCapability(capability, e.Expected)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(capability)
	f.Add(receipt)
	f.Add(bytes.ReplaceAll(receipt, []byte(`":`), []byte(`" : `)))
	f.Add(bytes.ReplaceAll(capability, []byte("2026-08-29T12:00:00Z"), []byte("2026-08-29T12:00:00.5Z")))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if got, err := checkCapability(payload, e.Expected); err == nil {
			built, err := NewCapability(e.Expected, got.IssuedAt, got.ExpiresAt)
			sameStatement(t, payload, built, err)
		}
		if got, err := checkReceipt(payload, c, e, testNow); err == nil {
			built, err := NewReceipt(e, c, got.StartedAt, got.FinishedAt)
			sameStatement(t, payload, built, err)
		}
	})
}

// sameStatement compares statements but for the spelling of their times.
func sameStatement(t *testing.T, payload, built []byte, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("accepted but cannot be built: %v", err)
	}
	spelt, err := ReadJSON(payload)
	if err != nil {
		t.Fatal(err)
	}
	predicate := spelt.(map[string]any)["predicate"].(map[string]any)
	for _, key := range []string{"issuedAt", "expiresAt", "startedAt", "finishedAt"} {
		if text, ok := predicate[key].(string); ok {
			at, err := ParseTimestamp(text)
			if err != nil {
				t.Fatal(err)
			}
			predicate[key] = FormatTimestamp(at)
		}
	}
	canonical, err := CanonicalJSON(spelt)
	if err != nil || !bytes.Equal(canonical, built) {
		t.Fatalf("accepted %q, which is not %q (%v)", canonical, built, err)
	}
}

// Whatever parses as a document re-encodes to canonical bytes that parse to the
// same document.
func FuzzDocuments(f *testing.F) {
	for _, file := range []string{"target", "job", "sandbox", "profile"} {
		for i, c := range attesttest.Load(f, file) {
			if data := c.Bytes(f, "document"); len(data) < 4096 && i%4 == 0 {
				f.Add(data)
			}
		}
	}
	request, err := testRequest().Canonical()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(request)
	parsers := []func([]byte) ([]byte, error){
		canonicalOf(ParseTarget), canonicalOf(ParseJob), canonicalOf(ParseSandbox),
		canonicalOf(ParseProfile), canonicalOf(ParseRequest),
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, parse := range parsers {
			canonical, err := parse(data)
			if err != nil {
				continue
			}
			if twice, err := parse(canonical); err != nil || !bytes.Equal(twice, canonical) {
				t.Fatalf("%q encodes as %q, %v", canonical, twice, err)
			}
		}
	})
}
