package attest

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func testRequest() Request {
	e := testExpectation()
	return Request{
		Version: 1, ProfileName: "unit-tests",
		Profile: Profile{
			Version: 1, KeyID: "sha256:" + digits("a"), SignerID: e.SignerID, ExecutorID: e.ExecutorID,
			Job: e.Job, Sandbox: e.Sandbox, ExitCode: 0,
		},
		SessionID: e.SessionID, Challenge: e.Challenge, Target: e.Target, Action: e.Action,
	}
}

func TestRequestRoundTrip(t *testing.T) {
	want := testRequest()
	data, err := want.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseRequest(data)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestParseRequestRefuses(t *testing.T) {
	data, err := testRequest().Canonical()
	if err != nil {
		t.Fatal(err)
	}
	replace := func(old, new string) []byte {
		t.Helper()
		if !bytes.Contains(data, []byte(old)) {
			t.Fatalf("no %s in the request", old)
		}
		return bytes.Replace(data, []byte(old), []byte(new), 1)
	}
	for _, row := range []struct {
		name string
		data []byte
		want error
	}{
		{"trailing newline", append(bytes.Clone(data), '\n'), ErrNotCanonical},
		{"white space", replace(`"action":`, `"action": `), ErrNotCanonical},
		{"escaped letter", replace(`"unit-tests"`, `"\u0075nit-tests"`), ErrNotCanonical},
		{"minus zero", replace(`"exitCode":0`, `"exitCode":-0`), ErrNotCanonical},
		{"unknown field", replace(`{"action"`, `{"aaa":1,"action"`), ErrSchema},
		{"duplicate field", replace(`"version":1}`, `"version":1,"version":1}`), ErrJSON},
		{"missing field", replace(`"profileName":"unit-tests",`, ``), ErrSchema},
		{"version 2", replace(`"version":1}`, `"version":2}`), ErrSchema},
		{"profile name with a slash", replace(`"unit-tests"`, `"unit/tests"`), ErrSchema},
		{"profile name that is hidden", replace(`"unit-tests"`, `".unit-tests"`), ErrSchema},
		{"profile is invalid", replace(`"stdin":"closed"`, `"stdin":"open"`), ErrSchema},
		{"upper-case session", replace(`"3f0d`, `"3F0D`), ErrSchema},
		{"attempt 0", replace(`"attempt":1`, `"attempt":0`), ErrSchema},
		{"target is invalid", replace(`"state":"open"`, `"state":"merged"`), ErrSchema},
		{"too long", bytes.Repeat([]byte(" "), MaxRequestBytes+1), ErrJSON},
		{"empty", nil, ErrJSON},
		{"null", []byte("null"), ErrSchema},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, err := ParseRequest(row.data); !errors.Is(err, row.want) {
				t.Errorf("got %v, want %v", err, row.want)
			}
		})
	}
}

// The longest requests come from text that needs no escape in the vector's
// limit but six bytes for each byte in JSON.
func TestSizeLimits(t *testing.T) {
	grow := func(n int) Request {
		r := testRequest()
		r.Profile.Job.Argv = append(r.Profile.Job.Argv, strings.Repeat("\x01", n))
		return r
	}
	if _, err := grow(40_000).Profile.Canonical(); err != nil {
		t.Errorf("240 KB of escapes: %v", err)
	}
	if _, err := grow(44_000).Profile.Canonical(); !errors.Is(err, ErrSchema) {
		t.Errorf("264 KB of escapes: %v", err)
	}
	r := grow(40_000)
	r.Target.HeadRef = strings.Repeat("x", 200_000)
	if _, err := r.Canonical(); !errors.Is(err, ErrSchema) {
		t.Errorf("request of 440 KB: %v", err)
	}
	if err := r.Validate(); !errors.Is(err, ErrSchema) {
		t.Errorf("request of 440 KB is valid: %v", err)
	}
}

func TestValidateChecksGoValues(t *testing.T) {
	for name, invalid := range map[string]error{
		"empty target":         Target{}.Validate(),
		"empty job":            Job{}.Validate(),
		"empty sandbox":        Sandbox{}.Validate(),
		"no limits":            NewSandbox(Limits{}).Validate(),
		"empty profile":        Profile{}.Validate(),
		"empty request":        Request{}.Validate(),
		"empty expectation":    Expected{}.Validate(),
		"empty receipt":        ExpectedReceipt{}.Validate(),
		"integer out of range": NewSandbox(Limits{MaxInteger + 1, 1, 1, 1, 1, 1}).Validate(),
	} {
		if !errors.Is(invalid, ErrSchema) {
			t.Errorf("%s: %v", name, invalid)
		}
		var field *FieldError
		if !errors.As(invalid, &field) || field.Field == "" {
			t.Errorf("%s names no field: %v", name, invalid)
		}
	}
}

// A job without environment may hold a nil map.
func TestNilEnvironment(t *testing.T) {
	j := testExpectation().Job
	j.Environment = nil
	data, err := j.Canonical()
	if err != nil || !bytes.Contains(data, []byte(`"environment":{}`)) {
		t.Errorf("%s, %v", data, err)
	}
}

func TestVectorBytes(t *testing.T) {
	j := Job{Argv: []string{"/a", "é"}, Environment: map[string]string{"A": "bc"}}
	// Pointers: two arguments, one variable, two NULL. Strings: "/a", "é" of two
	// bytes, "A=bc", each with its NUL.
	if got, want := j.VectorBytes(), 5*8+3+3+5; got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}

func TestParseExpected(t *testing.T) {
	e := testExpectation()
	got, err := ParseExpectedReceipt(canonicalJSON(t, e.value()))
	if err != nil || !reflect.DeepEqual(got, e) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := ParseExpected(canonicalJSON(t, e.value())); !errors.Is(err, ErrSchema) {
		t.Errorf("receipt fields in a capability's context: %v", err)
	}
}
