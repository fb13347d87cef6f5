package attest

import (
	"bytes"
	"crypto/ecdsa"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// forgery is a valid pair of statements that a test spoils before both are
// correctly signed.
type forgery struct {
	e             ExpectedReceipt
	cap, rec      map[string]any // statements
	capEnvelope   func([]byte) []byte
	payloadType   string
	key           *ecdsa.PrivateKey
	keepLink      bool // leave the receipt's link alone
	rawCapability []byte
	now           time.Time
}

// at returns the object at a path of keys.
func at(m map[string]any, keys ...string) map[string]any {
	for _, key := range keys {
		m = m[key].(map[string]any)
	}
	return m
}

func (f *forgery) capInvocation(keys ...string) map[string]any {
	return at(f.cap, append([]string{"predicate", "invocation"}, keys...)...)
}

func (f *forgery) receipt(keys ...string) map[string]any {
	return at(f.rec, append([]string{"predicate"}, keys...)...)
}

func newForgery(t *testing.T, key *ecdsa.PrivateKey) *forgery {
	t.Helper()
	e := testExpectation()
	capability, receipt := testPayloads(t, e)
	return &forgery{
		e: e, cap: readObject(t, capability), rec: readObject(t, receipt),
		payloadType: PayloadType, key: key, now: testNow,
		capEnvelope: func(b []byte) []byte { return b },
	}
}

func readObject(t *testing.T, data []byte) map[string]any {
	t.Helper()
	v, err := ReadJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	return v.(map[string]any)
}

// envelopes signs both statements as they now are.
func (f *forgery) envelopes(t *testing.T) (capability, receipt []byte) {
	t.Helper()
	payload := f.rawCapability
	if payload == nil {
		payload = canonicalJSON(t, f.cap)
	}
	if predicate, ok := f.rec["predicate"].(map[string]any); ok && !f.keepLink {
		predicate["capability"] = map[string]any{"payloadSha256": SHA256Hex(payload)}
	}
	return f.capEnvelope(seal(t, f.key, f.payloadType, payload)), seal(t, f.key, PayloadType, canonicalJSON(t, f.rec))
}

func canonicalJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := CanonicalJSON(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// spoilt has at least one row for each sentinel of the validator.
var spoilt = []struct {
	name  string
	spoil func(*testing.T, *forgery)
	want  error
}{
	{"expected session", func(_ *testing.T, f *forgery) { f.e.SessionID = "x" }, ErrExpected},
	{"expected bundle exposes another tree", func(_ *testing.T, f *forgery) { f.e.OutputBundle.GitTree = digits("1") }, ErrExpected},
	{"expected streams over the limit", func(_ *testing.T, f *forgery) { f.e.Stdout.Bytes = 1<<20 + 1 }, ErrExpected},
	{"expected text is not UTF-8", func(_ *testing.T, f *forgery) { f.e.Job.Argv[3] = "\xff" }, ErrExpected},
	{"expected environment name is not UTF-8", func(_ *testing.T, f *forgery) { f.e.Job.Environment["\xff"] = "" }, ErrExpected},
	{"two signatures", func(_ *testing.T, f *forgery) {
		f.capEnvelope = func(b []byte) []byte {
			i, j := bytes.LastIndexByte(b, '['), bytes.LastIndexByte(b, ']')
			return slices.Concat(b[:j], []byte(","), b[i+1:j], b[j:])
		}
	}, ErrEnvelope},
	{"other key", func(t *testing.T, f *forgery) { f.key = newKey(t) }, ErrSignature},
	{"other signer", func(_ *testing.T, f *forgery) { f.e.SignerID = "https://gateway.example.com/hosts/two" }, ErrSigner},
	{"other executor", func(_ *testing.T, f *forgery) { f.e.ExecutorID = "other" }, ErrExecutor},
	{"receipt of another executor", func(_ *testing.T, f *forgery) { f.receipt("executor")["id"] = "other" }, ErrExecutor},
	{"other payload type", func(_ *testing.T, f *forgery) { f.payloadType = "application/json" }, ErrPayloadType},
	{"duplicate key in the payload", func(t *testing.T, f *forgery) {
		f.rawCapability = append([]byte(`{"_type":"x",`), canonicalJSON(t, f.cap)[1:]...)
	}, ErrPayload},
	{"payload is an array", func(_ *testing.T, f *forgery) { f.rawCapability = []byte("[]") }, ErrPayload},
	{"unknown statement field", func(_ *testing.T, f *forgery) { f.cap["x"] = nil }, ErrStatement},
	{"other statement type", func(_ *testing.T, f *forgery) { f.cap["_type"] = "https://in-toto.io/Statement/v0.1" }, ErrStatementType},
	{"receipt as capability", func(_ *testing.T, f *forgery) { f.cap = f.rec }, ErrPredicateType},
	{"missing predicate field", func(_ *testing.T, f *forgery) { delete(at(f.cap, "predicate"), "issuedAt") }, ErrPredicate},
	{"predicate is null", func(_ *testing.T, f *forgery) { f.rec["predicate"] = nil }, ErrPredicate},
	{"capability subject", func(_ *testing.T, f *forgery) { f.cap["subject"] = subjectOf(CapabilitySubject, digits("1")) }, ErrSubject},
	{"receipt subject", func(_ *testing.T, f *forgery) { f.rec["subject"] = subjectOf(ReceiptSubject, digits("6")) }, ErrSubject},
	{"unknown invocation field", func(_ *testing.T, f *forgery) { f.capInvocation()["x"] = nil }, ErrInvocation},
	{"receipt invocation differs", func(_ *testing.T, f *forgery) { f.receipt("invocation", "action")["seq"] = int64(13) }, ErrInvocation},
	{"challenge", func(_ *testing.T, f *forgery) { f.e.Challenge = digits("2") }, ErrSession},
	{"target number", func(_ *testing.T, f *forgery) { f.e.Target.Number = 18 }, ErrTarget},
	{"target version is true", func(_ *testing.T, f *forgery) { f.capInvocation("target", "document")["version"] = true }, ErrTarget},
	{"target digest", func(_ *testing.T, f *forgery) { f.capInvocation("target", "digest")["sha256"] = digits("1") }, ErrTargetDigest},
	{"source bundle", func(_ *testing.T, f *forgery) { f.capInvocation("sourceBundle")["bytes"] = int64(1) }, ErrSourceBundle},
	{"action", func(_ *testing.T, f *forgery) { f.e.Action.Beat = 4 }, ErrAction},
	{"argument order", func(_ *testing.T, f *forgery) {
		f.e.Job.Argv[1], f.e.Job.Argv[2] = f.e.Job.Argv[2], f.e.Job.Argv[1]
	}, ErrJob},
	{"job digest", func(_ *testing.T, f *forgery) { f.capInvocation("jobDigest")["sha256"] = digits("1") }, ErrJobDigest},
	{"input tree", func(_ *testing.T, f *forgery) { f.capInvocation("inputTree")["gitTree"] = digits("1") }, ErrInputTree},
	{"sandbox limit", func(_ *testing.T, f *forgery) { f.e.Sandbox.Limits.Processes = 17 }, ErrSandbox},
	{"issuedAt with offset", func(_ *testing.T, f *forgery) { at(f.cap, "predicate")["issuedAt"] = "2026-08-29T12:00:00+00:00" }, ErrTimestamp},
	{"lifetime of 300.000001 s", func(_ *testing.T, f *forgery) {
		at(f.cap, "predicate")["expiresAt"] = "2026-08-29T12:05:00.000001Z"
	}, ErrLifetime},
	{"link to the envelope", func(_ *testing.T, f *forgery) {
		f.keepLink = true
		f.receipt("capability")["payloadSha256"] = digits("1")
	}, ErrLink},
	{"started at expiry", func(_ *testing.T, f *forgery) {
		f.receipt()["startedAt"], f.receipt()["finishedAt"] = FormatTimestamp(testExpires), FormatTimestamp(testExpires)
		f.now = testExpires.Add(time.Hour)
	}, ErrStarted},
	{"finished before it started", func(_ *testing.T, f *forgery) { f.receipt()["finishedAt"] = FormatTimestamp(testIssued) }, ErrFinished},
	{"finished in the future", func(_ *testing.T, f *forgery) { f.now = testFinished.Add(-time.Microsecond) }, ErrFinished},
	{"wall limit by 1 µs", func(_ *testing.T, f *forgery) {
		f.receipt()["finishedAt"] = FormatTimestamp(testStarted.Add(60*time.Second + time.Microsecond))
		f.now = testNow.Add(time.Hour)
	}, ErrWallLimit},
	{"killed by a signal", func(_ *testing.T, f *forgery) { f.receipt("result")["signal"] = int64(9) }, ErrResult},
	{"exit code 256", func(_ *testing.T, f *forgery) { f.receipt("result")["exitCode"] = int64(256) }, ErrResult},
	{"result is missing", func(_ *testing.T, f *forgery) { f.receipt()["result"] = nil }, ErrResult},
	{"exit code", func(_ *testing.T, f *forgery) { f.receipt("result")["exitCode"] = int64(3) }, ErrExitCode},
	{"stream digest", func(_ *testing.T, f *forgery) { f.receipt("streams", "stdout")["sha256"] = digits("1") }, ErrStreams},
	{"truncated stream", func(_ *testing.T, f *forgery) { f.receipt("streams", "stderr")["truncated"] = true }, ErrStreams},
	{"output limit", func(_ *testing.T, f *forgery) { f.receipt("streams", "stdout")["bytes"] = int64(1<<20 + 1) }, ErrOutputLimit},
	{"output limit does not overflow", func(_ *testing.T, f *forgery) {
		f.receipt("streams", "stdout")["bytes"], f.receipt("streams", "stderr")["bytes"] = MaxInteger, MaxInteger
	}, ErrOutputLimit},
	{"output bundle", func(_ *testing.T, f *forgery) { f.receipt("outputBundle")["bytes"] = int64(1) }, ErrOutputBundle},
	{"output tree", func(_ *testing.T, f *forgery) { f.receipt("outputTree")["gitTree"] = digits("1") }, ErrOutputTree},
}

func TestVerifyReceiptClaims(t *testing.T) {
	key := newKey(t)
	for _, row := range spoilt {
		t.Run(row.name, func(t *testing.T) {
			f := newForgery(t, key)
			row.spoil(t, f)
			capability, receipt := f.envelopes(t)
			r, err := VerifyReceipt(capability, receipt, f.e, verifierFor(t, key), f.now)
			if r != nil || !errors.Is(err, row.want) {
				t.Fatalf("got %v, %v; want %v", r, err, row.want)
			}
			for _, other := range sentinels {
				if other != row.want && other != ErrInvocation && errors.Is(err, other) && row.want != ErrInvocation {
					t.Errorf("%v also wraps %v", err, other)
				}
			}
		})
	}
}

// sentinels are the validator's claims.
var sentinels = []error{
	ErrExpected, ErrEnvelope, ErrSignature, ErrSigner, ErrExecutor, ErrPayloadType, ErrPayload, ErrStatement,
	ErrStatementType, ErrPredicateType, ErrPredicate, ErrSubject, ErrInvocation, ErrSession, ErrTarget,
	ErrTargetDigest, ErrSourceBundle, ErrAction, ErrJob, ErrJobDigest, ErrInputTree, ErrSandbox, ErrTimestamp,
	ErrLifetime, ErrLink, ErrStarted, ErrFinished, ErrWallLimit, ErrResult, ErrExitCode, ErrStreams,
	ErrOutputLimit, ErrOutputTree, ErrOutputBundle,
}

func TestEveryClaimHasABadReceipt(t *testing.T) {
	for _, s := range sentinels {
		if !slices.ContainsFunc(spoilt, func(row struct {
			name  string
			spoil func(*testing.T, *forgery)
			want  error
		}) bool {
			return row.want == s
		}) {
			t.Errorf("no row for %v", s)
		}
	}
}

func TestVerifyReceipt(t *testing.T) {
	key := newKey(t)
	f := newForgery(t, key)
	capability, receipt := f.envelopes(t)
	r, err := VerifyReceipt(capability, receipt, f.e, verifierFor(t, key), testFinished) // the earliest possible moment
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(r.Payload, canonicalJSON(t, f.rec)) || r.PayloadSHA256 != SHA256Hex(r.Payload) {
		t.Error("not the payload that was signed")
	}
	if r.SignerID != testSigner || r.Capability.SignerID != testSigner || r.ExecutorID != testExecutor || r.ExitCode != 0 {
		t.Errorf("wrong identities: %+v", r)
	}
	if !r.StartedAt.Equal(testStarted) || !r.FinishedAt.Equal(testFinished) || !r.Capability.ExpiresAt.Equal(testExpires) {
		t.Errorf("wrong times: %+v", r)
	}
}

// The exit code is compared after everything else, so the caller may try again
// with the observed one and needs no other information.
func TestExitCodeFailsLast(t *testing.T) {
	key := newKey(t)
	f := newForgery(t, key)
	f.receipt("result")["exitCode"] = int64(3)
	capability, receipt := f.envelopes(t)
	_, err := VerifyReceipt(capability, receipt, f.e, verifierFor(t, key), testNow)
	var exit *ExitCodeError
	if !errors.As(err, &exit) || exit.Observed != 3 || exit.Expected != 0 {
		t.Fatalf("got %v", err)
	}
	f.e.ExitCode = exit.Observed
	if _, err := VerifyReceipt(capability, receipt, f.e, verifierFor(t, key), testNow); err != nil {
		t.Fatal(err)
	}

	f.e.ExitCode = 0
	f.rec["subject"] = subjectOf(ReceiptSubject, digits("1")) // the last claim of step 8
	capability, receipt = f.envelopes(t)
	_, err = VerifyReceipt(capability, receipt, f.e, verifierFor(t, key), testNow)
	if !errors.Is(err, ErrSubject) || errors.Is(err, ErrExitCode) {
		t.Fatalf("got %v", err)
	}
}

func TestVerifyCapabilityFreshness(t *testing.T) {
	key := newKey(t)
	e := testExpectation().Expected
	payload, _ := testPayloads(t, testExpectation())
	envelope := seal(t, key, PayloadType, payload)
	for _, row := range []struct {
		name string
		now  time.Time
		want error
	}{
		{"at issue", testIssued, nil},
		{"just before issue", testIssued.Add(-1), ErrNotCurrent},
		{"just before expiry", testExpires.Add(-1), nil},
		{"at expiry", testExpires, ErrNotCurrent},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, err := VerifyCapability(envelope, e, verifierFor(t, key), row.now); !errors.Is(err, row.want) {
				t.Errorf("got %v, want %v", err, row.want)
			}
		})
	}
}

// The bytes that were verified are the bytes that are parsed and returned, even
// if the verifier overwrites everything that it can reach.
func TestPayloadIsDecodedOnce(t *testing.T) {
	key := newKey(t)
	e := testExpectation().Expected
	good, _ := testPayloads(t, testExpectation())
	envelope := seal(t, key, PayloadType, good)
	other := e
	other.Challenge = digits("f")
	bad, err := NewCapability(other, testIssued, testExpires)
	if err != nil {
		t.Fatal(err)
	}
	replacement := seal(t, key, PayloadType, bad)
	calls := 0
	inner := verifierFor(t, key)
	verify := func(pae []byte, keyID string, signature []byte) (string, error) {
		calls++
		signer, err := inner(pae, keyID, signature)
		copy(envelope, replacement)
		for i := range pae {
			pae[i] = 'x'
		}
		clear(signature)
		return signer, err
	}
	c, err := VerifyCapability(envelope, e, verify, testNow)
	if err != nil {
		t.Fatal(err)
	}
	if calls != 1 || !bytes.Equal(c.Payload, good) {
		t.Errorf("%d calls, payload %q", calls, c.Payload)
	}
	if _, err := VerifyCapability(replacement, e, inner, testNow); !errors.Is(err, ErrSession) {
		t.Errorf("the replacement must not pass: %v", err)
	}
}

// A payload is never parsed before its signature was verified.
func TestSignatureComesBeforeParsing(t *testing.T) {
	key := newKey(t)
	envelope := seal(t, key, PayloadType, []byte("{ not JSON"))
	e := testExpectation().Expected
	if _, err := VerifyCapability(envelope, e, verifierFor(t, newKey(t)), testNow); !errors.Is(err, ErrSignature) {
		t.Errorf("unsigned: %v", err)
	}
	if _, err := VerifyCapability(envelope, e, verifierFor(t, key), testNow); !errors.Is(err, ErrPayload) {
		t.Errorf("signed: %v", err)
	}
	e.SignerID = "https://gateway.example.com/hosts/two"
	if _, err := VerifyCapability(envelope, e, verifierFor(t, key), testNow); !errors.Is(err, ErrSigner) {
		t.Errorf("signed by another than the expected one: %v", err)
	}
}

// Capability and receipt have the same signer, although both keys are trusted.
func TestReceiptOfAnotherSigner(t *testing.T) {
	one, two := newKey(t), newKey(t)
	verify, err := NewVerifier(TrustedKey{testSigner, &one.PublicKey}, TrustedKey{"https://gateway.example.com/hosts/two", &two.PublicKey})
	if err != nil {
		t.Fatal(err)
	}
	capability, receipt := newForgery(t, one).envelopes(t)
	if _, err := VerifyReceipt(capability, receipt, testExpectation(), verify, testNow); err != nil {
		t.Fatalf("both by one: %v", err)
	}
	otherCapability, otherReceipt := newForgery(t, two).envelopes(t)
	for name, pair := range map[string][2][]byte{
		"receipt": {capability, otherReceipt}, "capability": {otherCapability, receipt}, "both": {otherCapability, otherReceipt},
	} {
		if _, err := VerifyReceipt(pair[0], pair[1], testExpectation(), verify, testNow); !errors.Is(err, ErrSigner) {
			t.Errorf("%s by two: %v, want ErrSigner", name, err)
		}
	}
}

func TestVerifierThatNamesNobody(t *testing.T) {
	payload, _ := testPayloads(t, testExpectation())
	envelope := seal(t, newKey(t), PayloadType, payload)
	nobody := func([]byte, string, []byte) (string, error) { return "", nil }
	for _, verify := range []SignatureVerifier{nil, nobody} {
		if _, err := VerifyCapability(envelope, testExpectation().Expected, verify, testNow); !errors.Is(err, ErrSignature) {
			t.Errorf("got %v", err)
		}
	}
}

func TestNewStatementsRefuseWhatTheValidatorRefuses(t *testing.T) {
	e := testExpectation()
	capability, _ := testPayloads(t, e)
	c, err := checkCapability(capability, e.Expected)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewCapability(e.Expected, testIssued, testIssued.Add(301*time.Second)); !errors.Is(err, ErrLifetime) {
		t.Errorf("lifetime: %v", err)
	}
	if _, err := NewCapability(Expected{}, testIssued, testExpires); !errors.Is(err, ErrExpected) {
		t.Errorf("context: %v", err)
	}
	if _, err := NewReceipt(e, nil, testStarted, testFinished); !errors.Is(err, ErrLink) {
		t.Errorf("no capability: %v", err)
	}
	if _, err := NewReceipt(e, c, testExpires, testExpires); !errors.Is(err, ErrStarted) {
		t.Errorf("start: %v", err)
	}
	other := testExpectation()
	other.Action.Seq++
	if _, err := NewReceipt(other, c, testStarted, testFinished); !errors.Is(err, ErrInvocation) {
		t.Errorf("other invocation: %v", err)
	}
	other = testExpectation()
	other.ExecutorID = "other"
	if _, err := NewReceipt(other, c, testStarted, testFinished); !errors.Is(err, ErrExecutor) {
		t.Errorf("other executor: %v", err)
	}
}

// A wall limit beyond what a time.Duration holds must not wrap around.
func TestHugeWallLimit(t *testing.T) {
	e := testExpectation()
	e.Sandbox.Limits.WallSeconds = MaxInteger
	testPayloads(t, e)
}

func TestClaimedReceipt(t *testing.T) {
	key := newKey(t)
	f := newForgery(t, key)
	capability, receipt := f.envelopes(t)
	claimed, err := ClaimedReceipt(capability, receipt)
	if err != nil {
		t.Fatal(err)
	}
	if claimed.SignerID != "" {
		t.Errorf("an envelope cannot name its signer: %q", claimed.SignerID)
	}
	claimed.SignerID = testSigner
	if _, err := VerifyReceipt(capability, receipt, claimed, verifierFor(t, key), testNow); err != nil {
		t.Error(err)
	}
	if _, err := ClaimedReceipt(receipt, capability); !errors.Is(err, ErrPredicateType) {
		t.Errorf("swapped: %v", err)
	}
}

// Errors name what failed, and hostile text in them is escaped and short.
func TestErrorsNameTheField(t *testing.T) {
	key := newKey(t)
	f := newForgery(t, key)
	f.e.Target.HeadSHA = strings.Repeat("c", 40)
	capability, receipt := f.envelopes(t)
	_, err := VerifyReceipt(capability, receipt, f.e, verifierFor(t, key), testNow)
	if err == nil || !strings.Contains(err.Error(), "target.document.head_sha") {
		t.Errorf("got %v", err)
	}
	target := f.e.Target.value().(map[string]any)
	hostile := maps.Clone(target)
	hostile["\x1b[31m"+strings.Repeat("x", 1000)] = nil
	_, err = ParseTarget(canonicalJSON(t, hostile))
	if err == nil || strings.Contains(err.Error(), "\x1b") || len(err.Error()) > 200 {
		t.Errorf("got %q", err)
	}
}
