package attest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"underwrite/attest/attesttest"
)

// answer fails the test if err does not fit what the vector expects.
func answer(t *testing.T, accept bool, err error) {
	t.Helper()
	if accept && err != nil {
		t.Errorf("refused: %v", err)
	}
	if !accept && err == nil {
		t.Error("accepted")
	}
}

func TestCanonicalJSONVectors(t *testing.T) {
	attesttest.Run(t, "canonical_json", func(t *testing.T, c attesttest.Case) {
		v, err := ReadJSON(c.Bytes(t, "input"))
		answer(t, c.Answer(t, "parse"), err)
		if err != nil {
			if !errors.Is(err, ErrJSON) {
				t.Errorf("error does not wrap ErrJSON: %v", err)
			}
			return
		}
		data, err := CanonicalJSON(v)
		answer(t, c.Accept, err)
		if err != nil || !c.Accept {
			return
		}
		sameBytes(t, data, c.Bytes(t, "canonical"))
		if got, want := SHA256Hex(data), c.Text(t, "sha256"); got != want {
			t.Errorf("sha256 %s, want %s", got, want)
		}
	})
}

func sameBytes(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("got %q, want %q", clip(string(got)), clip(string(want)))
	}
}

func TestPAEVectors(t *testing.T) {
	attesttest.Run(t, "pae", func(t *testing.T, c attesttest.Case) {
		sameBytes(t, PAE(c.Text(t, "payload_type"), c.Bytes(t, "payload")), c.Bytes(t, "pae"))
	})
}

func TestBase64Vectors(t *testing.T) {
	attesttest.Run(t, "base64", func(t *testing.T, c attesttest.Case) {
		var most int
		c.Decode(t, "maximum", &most)
		v, err := ReadJSON(c.Raw("value"))
		if err != nil {
			t.Fatal(err)
		}
		data, err := base64Field(map[string]any{"value": v}, "value", most)
		answer(t, c.Accept, err)
		if err == nil && c.Accept {
			sameBytes(t, data, c.Bytes(t, "decoded"))
		}
	})
}

func TestTimestampVectors(t *testing.T) {
	attesttest.Run(t, "timestamps", func(t *testing.T, c attesttest.Case) {
		v, err := ReadJSON(c.Raw("value"))
		if err != nil {
			t.Fatal(err)
		}
		s := statement{predicate: map[string]any{"value": v}}
		at, err := s.time("value")
		answer(t, c.Accept, err)
		var d decoder
		d.timestamp(v, "value")
		answer(t, c.Accept, d.err)
		if err != nil || !c.Accept {
			return
		}
		var micros int64
		c.Decode(t, "unix_microseconds", &micros)
		if at.UnixMicro() != micros {
			t.Errorf("%d µs, want %d", at.UnixMicro(), micros)
		}
		if got, want := FormatTimestamp(at), c.Text(t, "producer_text"); got != want {
			t.Errorf("writes %s, want %s", got, want)
		}
	})
}

func TestDocumentVectors(t *testing.T) {
	parsers := map[string]func([]byte) ([]byte, error){
		"target":  canonicalOf(ParseTarget),
		"job":     canonicalOf(ParseJob),
		"sandbox": canonicalOf(ParseSandbox),
		"profile": canonicalOf(ParseProfile),
	}
	for file, parse := range parsers {
		attesttest.Run(t, file, func(t *testing.T, c attesttest.Case) {
			data, err := parse(c.Bytes(t, "document"))
			answer(t, c.Accept, err)
			if err != nil || !c.Accept {
				return
			}
			sameBytes(t, data, c.Bytes(t, "canonical"))
			if got, want := SHA256Hex(data), c.Text(t, "sha256"); got != want {
				t.Errorf("sha256 %s, want %s", got, want)
			}
		})
	}
}

func canonicalOf[T interface{ Canonical() ([]byte, error) }](parse func([]byte) (T, error)) func([]byte) ([]byte, error) {
	return func(data []byte) ([]byte, error) {
		doc, err := parse(data)
		if err != nil {
			return nil, err
		}
		return doc.Canonical()
	}
}

func TestCapabilityVectors(t *testing.T) {
	attesttest.Run(t, "capability", func(t *testing.T, c attesttest.Case) { checkEnvelopes(t, c, c.Accept) })
}

func TestReceiptVectors(t *testing.T) {
	attesttest.Run(t, "receipt", func(t *testing.T, c attesttest.Case) { checkEnvelopes(t, c, c.Accept) })
}

// checkEnvelopes runs the validator on a case of either kind.
func checkEnvelopes(t *testing.T, c attesttest.Case, accept bool) {
	t.Helper()
	payload, digest, err := verifyCase(t, c)
	answer(t, accept, err)
	if err != nil || !accept {
		return
	}
	if want := c.Text(t, "payload_sha256"); digest != want || SHA256Hex(payload) != want {
		t.Errorf("payload digest %s, want %s", digest, want)
	}
}

func verifyCase(t *testing.T, c attesttest.Case) (payload []byte, digest string, err error) {
	t.Helper()
	key, err := ParsePublicKeyPEM(attesttest.File(t, c.Text(t, "public_key")))
	if err != nil {
		t.Fatal(err)
	}
	verify, err := NewVerifier(TrustedKey{SignerID: c.Text(t, "signer_id"), Key: key})
	if err != nil {
		t.Fatal(err)
	}
	now, err := time.Parse(time.RFC3339Nano, c.Text(t, "now"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Text(t, "kind") == "capability" {
		e, err := ParseExpected(c.Bytes(t, "expected"))
		if err != nil {
			return nil, "", err
		}
		v, err := VerifyCapability(c.Bytes(t, "capability_envelope"), e, verify, now)
		if err != nil {
			return nil, "", err
		}
		return v.Payload, v.PayloadSHA256, nil
	}
	e, err := ParseExpectedReceipt(c.Bytes(t, "expected"))
	if err != nil {
		return nil, "", err
	}
	v, err := VerifyReceipt(c.Bytes(t, "capability_envelope"), c.Bytes(t, "receipt_envelope"), e, verify, now)
	if err != nil {
		return nil, "", err
	}
	return v.Payload, v.PayloadSHA256, nil
}

// quirks decides each case where the reference and the text may differ: what is
// accepted is what both accept.
var quirks = map[string]struct {
	accept bool
	why    string
}{
	"timestamp-unicode-digits-in-year":   {false, "RFC 3339 digits are ASCII; the reference takes others in the year by accident"},
	"timestamp-unicode-digit-in-seconds": {false, "as above"},
	"timestamp-arabic-indic-digits":      {false, "neither accepts them"},
	"timestamp-fullwidth-digits":         {false, "neither accepts them"},
	"target-merged_at-unicode-digits":    {false, "neither accepts them"},
	"target-merged_at-with-offset":       {false, "RFC 3339 by the text, but the reference wants a protocol timestamp"},
	"repo-dotdot":                        {true, "the text gives no pattern beyond owner/name; GitHub is asked for the repository anyway"},
	"head_ref-newline-and-spaces":        {true, "any text that is not empty; it is never used as a ref or an argument"},
	"nil-uuid":                           {true, "canonical lower-case form is all that both ask for"},
	"cwd-c1-control":                     {false, "C1 controls are control characters, which the text forbids"},
	"cwd-u2028":                          {true, "a line separator is no control character (category Zl)"},
	"env-name-with-newline":              {true, "only NUL and = are excluded"},
	"env-credential-name":                {true, "which variables are credentials is the gateway's policy"},
	"cpu-over-wall":                      {true, "no rule between limits"},
	"state-open-with-merged_at":          {true, "no rule between these fields"},
	"minus-zero-int":                     {true, "-0 is the integer 0 in JSON"},
	"stderr-bytes-minus-zero":            {true, "-0 is the integer 0 in JSON"},
	"signer-id-with-newline":             {false, "not equal to the expected signer"},
	"executor-id-any-text":               {true, "any text that is not empty, without NUL"},
	"exec-string-131071-bytes":           {false, "with its pointers it exceeds the vector's limit"},
	"merged_at-year-0001":                {true, "a year of RFC 3339"},
}

func TestQuirkVectors(t *testing.T) {
	attesttest.Run(t, "quirks", func(t *testing.T, c attesttest.Case) {
		decided, ok := quirks[c.Name]
		if !ok {
			t.Fatal("nobody decided this one")
		}
		if decided.accept && !c.Accept {
			t.Fatal("must be refused: the reference refuses it")
		}
		checkEnvelopes(t, c, decided.accept)
	})
}
