package attest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"underwrite/attest"
)

// A consumer verifies a receipt against what it knows itself: the target that
// it froze, the job that it asked for, and descriptors that it derived from the
// returned artifacts. A prediction that was not met shows as ErrExitCode, and
// only if everything else holds.
func ExampleVerifyReceipt() {
	expected := expectation() // from the consumer's own records and artifacts
	key, capability, receipt := gateway(expected, 1)

	verify, err := attest.NewVerifier(attest.TrustedKey{SignerID: expected.SignerID, Key: key})
	if err != nil {
		log.Fatal(err)
	}
	now := time.Date(2026, 8, 29, 12, 1, 0, 0, time.UTC)

	_, err = attest.VerifyReceipt(capability, receipt, expected, verify, now)
	var exit *attest.ExitCodeError
	if errors.As(err, &exit) {
		fmt.Printf("expected exit code %d, got %d\n", exit.Expected, exit.Observed)
		expected.ExitCode = exit.Observed
	}
	verified, err := attest.VerifyReceipt(capability, receipt, expected, verify, now)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("signed by", verified.SignerID)
	fmt.Println("ran for", verified.FinishedAt.Sub(verified.StartedAt))

	expected.Target.HeadSHA = strings.Repeat("c", 40)
	_, err = attest.VerifyReceipt(capability, receipt, expected, verify, now)
	fmt.Println("another head:", errors.Is(err, attest.ErrTarget))
	// Output:
	// expected exit code 0, got 1
	// signed by https://gateway.example.com
	// ran for 2.5s
	// another head: true
}

// gateway is the other side: it signs a capability before the job and a receipt
// after it.
func gateway(e attest.ExpectedReceipt, exitCode int64) (key *ecdsa.PublicKey, capability, receipt []byte) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	keyID, err := attest.KeyID(&private.PublicKey)
	if err != nil {
		log.Fatal(err)
	}
	seal := func(payload []byte, err error) []byte {
		if err != nil {
			log.Fatal(err)
		}
		envelope, err := attest.Seal(attest.PayloadType, payload, keyID, func(pae []byte) ([]byte, error) {
			digest := sha256.Sum256(pae)
			return ecdsa.SignASN1(rand.Reader, private, digest[:])
		})
		if err != nil {
			log.Fatal(err)
		}
		return envelope
	}
	verify, err := attest.NewVerifier(attest.TrustedKey{SignerID: e.SignerID, Key: &private.PublicKey})
	if err != nil {
		log.Fatal(err)
	}
	issued := time.Date(2026, 8, 29, 12, 0, 0, 0, time.UTC)
	capability = seal(attest.NewCapability(e.Expected, issued, issued.Add(time.Minute)))
	c, err := attest.VerifyCapability(capability, e.Expected, verify, issued)
	if err != nil {
		log.Fatal(err)
	}
	e.ExitCode = exitCode
	started := issued.Add(time.Second)
	receipt = seal(attest.NewReceipt(e, c, started, started.Add(2500*time.Millisecond)))
	return &private.PublicKey, capability, receipt
}

func expectation() attest.ExpectedReceipt {
	sha1, sha256 := strings.Repeat("a", 40), strings.Repeat("a", 64)
	return attest.ExpectedReceipt{
		Expected: attest.Expected{
			SignerID: "https://gateway.example.com", ExecutorID: "urn:example:executor",
			SessionID: "3f0d6c52-7a0e-4e0b-9a55-0d6f5f3c2b11", Challenge: sha256,
			Target: attest.Target{
				Version: 1, Kind: "github_pr", Repo: "octo-org/shop", Number: 7, State: "open",
				BaseSHA: sha1, HeadSHA: sha1, MergeBaseSHA: sha1, HeadRef: "feature",
				DiffSHA256: sha256, TrustedContextSHA256: sha256, TrustedContextBytes: 2,
				ObjectBundleSHA256: sha256, ObjectBundleBytes: 4096,
			},
			Action: attest.Action{Seq: 1, Beat: 1, Attempt: 1},
			Job: attest.Job{
				Argv: []string{"/usr/bin/python3", "-m", "pytest"}, Cwd: ".", Stdin: "closed",
				Executable: attest.Executable{Path: "/usr/bin/python3", SHA256: sha256, Bytes: 6839896},
			},
			InputTree: sha256,
			Sandbox: attest.NewSandbox(attest.Limits{
				WallSeconds: 60, CPUSeconds: 60, MemoryBytes: 1 << 30, Processes: 64,
				WorkspaceBytes: 1 << 28, OutputBytes: 1 << 20,
			}),
		},
		OutputTree:   sha256,
		OutputBundle: attest.Bundle{GitTree: sha256, SHA256: sha256, Bytes: 4096},
		Stdout:       attest.Stream{SHA256: sha256, Bytes: 10},
		Stderr:       attest.Stream{SHA256: sha256},
	}
}
