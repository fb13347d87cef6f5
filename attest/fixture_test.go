package attest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"strings"
	"testing"
	"time"
)

const (
	testSigner   = "https://gateway.example.com/hosts/one"
	testExecutor = "urn:underwrite:executor:test"
)

var (
	testIssued   = time.Date(2026, 8, 29, 12, 0, 0, 0, time.UTC)
	testExpires  = testIssued.Add(5 * time.Minute)
	testStarted  = testIssued.Add(time.Second)
	testFinished = testIssued.Add(11 * time.Second)
	testNow      = testIssued.Add(time.Minute)
)

func digits(c string) string { return strings.Repeat(c, 64) }

// testExpectation is a valid context with nothing special about it.
func testExpectation() ExpectedReceipt {
	repo, id := "octo-fork/shop", int64(1234)
	return ExpectedReceipt{
		Expected: Expected{
			SignerID: testSigner, ExecutorID: testExecutor,
			SessionID: "3f0d6c52-7a0e-4e0b-9a55-0d6f5f3c2b11", Challenge: digits("1"),
			Target: Target{
				Version: 1, Kind: "github_pr", Repo: "octo-org/shop", Number: 17, State: "open",
				BaseSHA: strings.Repeat("a", 40), HeadSHA: strings.Repeat("b", 40), MergeBaseSHA: strings.Repeat("a", 40),
				HeadRepo: &repo, HeadRepoID: &id, HeadRef: "feature", ChangedFiles: 3,
				DiffSHA256: digits("2"), DiffBytes: 2048, TrustedContextSHA256: digits("3"), TrustedContextBytes: 512,
				ObjectBundleSHA256: digits("4"), ObjectBundleBytes: 8192,
			},
			Action: Action{Seq: 12, Beat: 3, Attempt: 1},
			Job: Job{
				Argv: []string{"/usr/bin/python3", "-m", "pytest", "é"}, Cwd: ".", Stdin: "closed",
				Environment: map[string]string{"LANG": "C.UTF-8"},
				Executable:  Executable{Path: "/usr/bin/python3", SHA256: digits("5"), Bytes: 6839896},
			},
			InputTree: digits("6"),
			Sandbox: NewSandbox(Limits{
				WallSeconds: 60, CPUSeconds: 30, MemoryBytes: 1 << 27, Processes: 16,
				WorkspaceBytes: 1 << 26, OutputBytes: 1 << 20,
			}),
		},
		OutputTree:   digits("7"),
		OutputBundle: Bundle{GitTree: digits("7"), SHA256: digits("8"), Bytes: 8192},
		Stdout:       Stream{SHA256: digits("9"), Bytes: 6},
		Stderr:       Stream{SHA256: digits("0"), Bytes: 0},
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func signWith(key *ecdsa.PrivateKey) func([]byte) ([]byte, error) {
	return func(pae []byte) ([]byte, error) {
		digest := sha256.Sum256(pae)
		return ecdsa.SignASN1(rand.Reader, key, digest[:])
	}
}

func verifierFor(t testing.TB, key *ecdsa.PrivateKey) SignatureVerifier {
	t.Helper()
	verify, err := NewVerifier(TrustedKey{SignerID: testSigner, Key: &key.PublicKey})
	if err != nil {
		t.Fatal(err)
	}
	return verify
}

func seal(t testing.TB, key *ecdsa.PrivateKey, payloadType string, payload []byte) []byte {
	t.Helper()
	envelope, err := Seal(payloadType, payload, "hint", signWith(key))
	if err != nil {
		t.Fatal(err)
	}
	return envelope
}

// testPayloads are the statements of testExpectation.
func testPayloads(t testing.TB, e ExpectedReceipt) (capability, receipt []byte) {
	t.Helper()
	capability, err := NewCapability(e.Expected, testIssued, testExpires)
	if err != nil {
		t.Fatal(err)
	}
	c, err := checkCapability(capability, e.Expected)
	if err != nil {
		t.Fatal(err)
	}
	receipt, err = NewReceipt(e, c, testStarted, testFinished)
	if err != nil {
		t.Fatal(err)
	}
	return capability, receipt
}
