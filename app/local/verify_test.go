package local

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"underwrite/app/evidence"
	"underwrite/app/evidence/evidencetest"
	"underwrite/attest"
	"underwrite/runner/quarantine"
	"underwrite/runner/wire"
)

const bundle = "source bundle"

// world is finished evidence and a reader who asked for it.
type world struct {
	gateway *evidencetest.Gateway
	run     evidencetest.Run
	options VerifyOptions
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{gateway: evidencetest.New(t)}
	request, err := attest.Request{
		Version: 1, ProfileName: "python", Profile: w.gateway.Profile(), SessionID: attest.NewUUID(), Challenge: attest.NewChallenge(),
		Target: evidencetest.Target(strings.Repeat("a", 40), []byte(bundle)), Action: attest.Action{Seq: 1, Beat: 1, Attempt: 1},
	}.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	w.run = evidencetest.Run{Request: request, Stdout: "3 passed\n", Output: "output bundle", Issued: time.Now().Add(-time.Minute).Truncate(time.Microsecond)}
	w.options = VerifyOptions{
		EvidenceDir: filepath.Join(dir, "evidence"), PublicKey: filepath.Join(dir, "key.pub.pem"),
		SourceBundle: filepath.Join(dir, "source.bundle"), Expect: filepath.Join(dir, "expectation.json"),
		inspect: func(string, attest.Limits) evidence.Inspector {
			return evidencetest.Inspector{Tree: w.gateway.InputTree}
		},
	}
	writeFile(t, w.options.Expect, request)
	writeFile(t, w.options.SourceBundle, []byte(bundle))
	writeFile(t, w.options.PublicKey, publicPEM(t, w.gateway))
	return w
}

func publicPEM(t *testing.T, g *evidencetest.Gateway) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(g.Public())
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (w *world) verify(t *testing.T) *Report {
	t.Helper()
	evidencetest.Write(t, w.options.EvidenceDir, w.gateway.Files(t, w.run))
	r, err := Verify(t.Context(), w.options)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// trusted writes the trusted profile to a file.
func (w *world) trusted(t *testing.T) string {
	t.Helper()
	b, err := w.gateway.Profile().Canonical()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "profile.json")
	writeFile(t, path, b)
	return path
}

// claims is a whole expectation in single parts.
func (w *world) claims(t *testing.T) Claims {
	return Claims{
		Profile: w.trusted(t), Signer: evidencetest.SignerID, Executor: evidencetest.ExecutorID,
		Repo: "octo-org/shop", Number: 7, Head: strings.Repeat("a", 40),
	}
}

func TestVerifyVerdicts(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(t *testing.T, w *world)
		verdict string
		status  int
		open    int // things not checked
	}{
		"whole expectation": {func(t *testing.T, w *world) {}, Verified, 0, 0},
		"all parts":         {func(t *testing.T, w *world) { w.options.Expect, w.options.Claims = "", w.claims(t) }, Verified, 0, 0},
		"no source bundle":  {func(t *testing.T, w *world) { w.options.SourceBundle = "" }, SelfConsistent, 3, 1},
		"all parts but no source bundle": {func(t *testing.T, w *world) {
			w.options.Expect, w.options.SourceBundle, w.options.Claims = "", "", w.claims(t)
		}, SelfConsistent, 3, 1},
		"nothing known": {func(t *testing.T, w *world) { w.options.Expect, w.options.SourceBundle = "", "" }, SelfConsistent, 3, 7},
		"one part": {func(t *testing.T, w *world) {
			w.options.Expect, w.options.Claims = "", Claims{Number: 7}
		}, SelfConsistent, 3, 5},
		"other exit code": {func(t *testing.T, w *world) { w.run.ExitCode = 3 }, Contradicted, 1, 0},
		"other exit code and no source bundle": {func(t *testing.T, w *world) {
			w.run.ExitCode, w.options.SourceBundle = 3, ""
		}, Contradicted, 1, 1},
		"other exit code than the profile's": {func(t *testing.T, w *world) {
			w.run.ExitCode, w.options.Expect, w.options.Claims = 3, "", w.claims(t)
		}, Contradicted, 1, 0},
		"other exit code and nothing known": {func(t *testing.T, w *world) {
			w.run.ExitCode, w.options.Expect = 3, ""
		}, SelfConsistent, 3, 6},
		"other part": {func(t *testing.T, w *world) {
			w.options.Expect, w.options.Claims = "", w.claims(t)
			w.options.Claims.Number = 8
		}, Invalid, 1, 0},
		"other arguments": {func(t *testing.T, w *world) {
			w.options.Expect, w.options.Claims = "", w.claims(t)
			w.options.Claims.Args = []string{"-x"}
		}, Invalid, 1, 0},
		"other source bundle": {func(t *testing.T, w *world) {
			w.options.inspect = func(string, attest.Limits) evidence.Inspector {
				return evidencetest.Inspector{Err: &quarantine.RefusedError{Reason: "not the frozen bundle"}}
			}
		}, Invalid, 1, 0},
		"other input tree": {func(t *testing.T, w *world) {
			w.options.inspect = func(string, attest.Limits) evidence.Inspector {
				return evidencetest.Inspector{Tree: strings.Repeat("0", 64)}
			}
		}, Invalid, 1, 0},
		"other key": {func(t *testing.T, w *world) { writeFile(t, w.options.PublicKey, publicPEM(t, evidencetest.New(t))) }, Invalid, 1, 0},
		"signed by another": {func(t *testing.T, w *world) {
			forger := evidencetest.New(t)
			forger.KeyID, forger.InputTree = w.gateway.KeyID, w.gateway.InputTree
			w.gateway = forger
			w.options.Expect = ""
		}, Invalid, 1, 0},
		"other request": {func(t *testing.T, w *world) {
			w.run.Request = []byte(strings.Replace(string(w.run.Request), `"seq":1`, `"seq":2`, 1))
		}, Invalid, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.change(t, w)
			r := w.verify(t)
			if r.Verdict != c.verdict || r.Status() != c.status || len(r.NotChecked) != c.open {
				t.Errorf("verdict %s (%d), open %+v, want %s (%d), %d open; reason: %s", r.Verdict, r.Status(), r.NotChecked, c.verdict, c.status, c.open, r.Reason)
			}
			failed := slices.ContainsFunc(r.Checked, func(s evidence.Step) bool { return !s.OK })
			if authentic := c.verdict != Invalid; failed == authentic || (r.ExitCode != nil) != authentic || (r.ReceiptSHA256 != "") != authentic {
				t.Errorf("report %+v", r)
			}
		})
	}
}

// TestVerifyPutsNothingUnderTheReadersName: without a source bundle, no line
// of the report says that it was checked, and without a signer none names one.
func TestVerifyPutsNothingUnderTheReadersName(t *testing.T) {
	w := newWorld(t)
	w.options.Expect, w.options.SourceBundle = "", ""
	for _, s := range w.verify(t).Checked {
		if s.Name == sourceStep || s.Name == trustStep || strings.Contains(s.Detail, evidencetest.SignerID) {
			t.Errorf("step %+v", s)
		}
	}
}

// TestVerifyCouldNot: faults of the reader's or of the machine are no verdict.
func TestVerifyCouldNot(t *testing.T) {
	broken := errors.New("disk is full")
	for name, c := range map[string]struct {
		change func(t *testing.T, w *world)
		want   string
	}{
		"broken disk": {func(t *testing.T, w *world) {
			w.options.inspect = func(string, attest.Limits) evidence.Inspector { return evidencetest.Inspector{Err: broken} }
		}, "disk is full"},
		"expectation with an unknown field": {func(t *testing.T, w *world) {
			writeFile(t, w.options.Expect, []byte(strings.Replace(string(w.run.Request), `"version":1`, `"version":1,"x":1`, 1)))
		}, "--expect "},
		"expectation twice": {func(t *testing.T, w *world) {
			writeFile(t, w.options.Expect, append(w.run.Request, w.run.Request...))
		}, "--expect "},
		"large expectation": {func(t *testing.T, w *world) {
			writeFile(t, w.options.Expect, make([]byte, attest.MaxRequestBytes+1))
		}, "is larger than"},
		"expectation and part": {func(t *testing.T, w *world) { w.options.Claims.Number = 7 }, "leave out the flags"},
		"short head":           {func(t *testing.T, w *world) { w.options.Expect, w.options.Claims.Head = "", "aaaa" }, "want all 40 digits"},
		"prediction alone":     {func(t *testing.T, w *world) { w.options.Expect, w.options.Claims.ExitCode = "", 1 }, "give --profile too"},
		"no profile": {func(t *testing.T, w *world) {
			w.options.Expect, w.options.Claims.Profile = "", filepath.Join(t.TempDir(), "x")
		}, "--profile: "},
		"private key": {func(t *testing.T, w *world) {
			writeFile(t, w.options.PublicKey, []byte("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"))
		}, "public key "},
		"source bundle is a directory": {func(t *testing.T, w *world) { w.options.SourceBundle = t.TempDir() }, "--source-bundle: "},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.change(t, w)
			evidencetest.Write(t, w.options.EvidenceDir, w.gateway.Files(t, w.run))
			r, err := Verify(t.Context(), w.options)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("Verify = %+v, %v, want an error with %q", r, err, c.want)
			}
		})
	}
}

func TestVerifyInterrupted(t *testing.T) {
	w := newWorld(t)
	evidencetest.Write(t, w.options.EvidenceDir, w.gateway.Files(t, w.run))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := Verify(ctx, w.options); !errors.Is(err, ErrInterrupted) {
		t.Errorf("Verify = %+v, %v", r, err)
	}
}

// TestVerifyHostileRequest: what calls itself a request is parsed before its
// limits are used.
func TestVerifyHostileRequest(t *testing.T) {
	for name, request := range map[string]string{"empty": "", "not JSON": "x", "no request": `{"version":1}`, "deep": strings.Repeat("[", 100_000)} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			files := w.gateway.Files(t, w.run)
			files[wire.RequestFile] = []byte(request)
			evidencetest.Write(t, w.options.EvidenceDir, files)
			w.options.Expect = ""
			r, err := Verify(t.Context(), w.options)
			if err != nil || r.Verdict != Invalid {
				t.Errorf("Verify = %+v, %v, want invalid", r, err)
			}
		})
	}
}
