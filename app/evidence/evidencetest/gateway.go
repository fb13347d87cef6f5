// Package evidencetest signs evidence for tests, as a gateway would.
package evidencetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"underwrite/app/evidence"
	"underwrite/attest"
	"underwrite/runner/wire"
)

// Gateway holds a key made for the test.
type Gateway struct {
	key   *ecdsa.PrivateKey
	KeyID string
	// InputTree is the tree that the gateway measures for every source.
	InputTree string
}

// Identity of every test gateway.
const (
	SignerID   = "gateway-1"
	ExecutorID = "urn:underwrite:executor:test"
)

// OutputTree is the tree of every output bundle.
var OutputTree = strings.Repeat("e", 64)

// New makes a gateway with a fresh key.
func New(t testing.TB) *Gateway {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id, err := attest.KeyID(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return &Gateway{key: key, KeyID: id, InputTree: strings.Repeat("d", 64)}
}

// Public is the gateway's public key.
func (g *Gateway) Public() *ecdsa.PublicKey { return &g.key.PublicKey }

// Trust trusts the gateway without bounds in time.
func (g *Gateway) Trust() evidence.Trust {
	return evidence.Trust{{Public: g.Public(), SignerID: SignerID, ExecutorIDs: []string{ExecutorID}}}
}

// Profile is a profile of the gateway that predicts exit code 0.
func (g *Gateway) Profile() attest.Profile {
	return attest.Profile{
		Version: 1, KeyID: g.KeyID, SignerID: SignerID, ExecutorID: ExecutorID,
		Job: attest.Job{
			Argv: []string{"/usr/bin/python3", "-m", "pytest"}, Cwd: ".", Stdin: "closed",
			Environment: map[string]string{"LANG": "C.UTF-8"},
			Executable:  attest.Executable{Path: "/usr/bin/python3", SHA256: strings.Repeat("5", 64), Bytes: 6839896},
		},
		Sandbox: attest.NewSandbox(attest.Limits{
			WallSeconds: 60, CPUSeconds: 30, MemoryBytes: 1 << 27, Processes: 16, WorkspaceBytes: 1 << 26, OutputBytes: 1 << 10,
		}),
	}
}

// Target is a frozen target with the given bundle.
func Target(head string, bundle []byte) attest.Target {
	repo, id := "octo-fork/shop", int64(1234)
	return attest.Target{
		Version: 1, Kind: "github_pr", Repo: "octo-org/shop", Number: 7, State: "open",
		BaseSHA: strings.Repeat("b", 40), HeadSHA: head, MergeBaseSHA: strings.Repeat("b", 40),
		HeadRepo: &repo, HeadRepoID: &id, HeadRef: "feature", ChangedFiles: 3,
		DiffSHA256: attest.SHA256Hex([]byte("diff")), DiffBytes: 4, TrustedContextSHA256: attest.SHA256Hex([]byte("context")), TrustedContextBytes: 7,
		ObjectBundleSHA256: attest.SHA256Hex(bundle), ObjectBundleBytes: int64(len(bundle)),
	}
}

// Run is one finished job.
type Run struct {
	Request  []byte
	ExitCode int64
	Stdout   string
	Stderr   string
	Output   string    // bytes of the output bundle
	Issued   time.Time // of the capability; the job starts a second and ends two later
	// Edit changes what is signed, if not nil.
	Edit func(*attest.ExpectedReceipt)
}

// Files signs the run and returns the six files by name.
func (g *Gateway) Files(t testing.TB, r Run) map[string][]byte {
	t.Helper()
	request, err := attest.ParseRequest(r.Request)
	if err != nil {
		t.Fatal(err)
	}
	e := g.receipt(request, r)
	if r.Edit != nil {
		r.Edit(&e)
	}
	capability := g.seal(t)(attest.NewCapability(e.Expected, r.Issued, r.Issued.Add(time.Minute)))
	verify, err := attest.NewVerifier(attest.TrustedKey{SignerID: e.SignerID, Key: g.Public()})
	if err != nil {
		t.Fatal(err)
	}
	verified, err := attest.VerifyCapability(capability, e.Expected, verify, r.Issued)
	if err != nil {
		t.Fatal(err)
	}
	receipt := g.seal(t)(attest.NewReceipt(e, verified, r.Issued.Add(time.Second), r.Issued.Add(2*time.Second)))
	return map[string][]byte{
		wire.RequestFile: r.Request, wire.CapabilityFile: capability, wire.ReceiptFile: receipt,
		wire.OutputFile: []byte(r.Output), wire.StdoutFile: []byte(r.Stdout), wire.StderrFile: []byte(r.Stderr),
	}
}

func (g *Gateway) receipt(request attest.Request, r Run) attest.ExpectedReceipt {
	p := request.Profile
	return attest.ExpectedReceipt{
		Expected: attest.Expected{
			SignerID: p.SignerID, ExecutorID: p.ExecutorID, SessionID: request.SessionID, Challenge: request.Challenge,
			Target: request.Target, Action: request.Action, Job: p.Job, InputTree: g.InputTree, Sandbox: p.Sandbox,
		},
		OutputTree:   OutputTree,
		OutputBundle: attest.Bundle{GitTree: OutputTree, SHA256: attest.SHA256Hex([]byte(r.Output)), Bytes: int64(len(r.Output))},
		Stdout:       stream(r.Stdout), Stderr: stream(r.Stderr), ExitCode: r.ExitCode,
	}
}

func stream(s string) attest.Stream {
	return attest.Stream{SHA256: attest.SHA256Hex([]byte(s)), Bytes: int64(len(s))}
}

func (g *Gateway) seal(t testing.TB) func(payload []byte, err error) []byte {
	return func(payload []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		envelope, err := attest.Seal(attest.PayloadType, payload, g.KeyID, func(pae []byte) ([]byte, error) {
			digest := sha256.Sum256(pae)
			return ecdsa.SignASN1(rand.Reader, g.key, digest[:])
		})
		if err != nil {
			t.Fatal(err)
		}
		return envelope
	}
}

// Write makes dir an evidence directory with the files.
func Write(t testing.TB, dir string, files map[string][]byte) {
	t.Helper()
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	for name, data := range maps.All(files) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o640); err != nil {
			t.Fatal(err)
		}
	}
}

// Inspector answers without looking at objects: every source has Tree, every
// output bundle OutputTree. Digests and lengths are real.
type Inspector struct {
	Tree    string
	Refused evidence.Refused // of every source
	Err     error            // of all methods, if not nil
}

var _ evidence.Inspector = Inspector{}

// InputTree implements evidence.Inspector.
func (i Inspector) InputTree(_ context.Context, path string, target attest.Target) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if attest.SHA256Hex(b) != target.ObjectBundleSHA256 || int64(len(b)) != target.ObjectBundleBytes {
		return "", fmt.Errorf("%s is not the frozen bundle", path)
	}
	return i.Tree, i.Err
}

// Source implements evidence.Inspector.
func (i Inspector) Source(ctx context.Context, path string, target attest.Target, _ []string) (string, evidence.Refused, error) {
	tree, err := i.InputTree(ctx, path, target)
	return tree, i.Refused, err
}

// Output implements evidence.Inspector.
func (i Inspector) Output(_ context.Context, path string) (attest.Bundle, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return attest.Bundle{}, err
	}
	return attest.Bundle{GitTree: OutputTree, SHA256: attest.SHA256Hex(b), Bytes: int64(len(b))}, i.Err
}
