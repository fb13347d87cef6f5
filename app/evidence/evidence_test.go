package evidence_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"underwrite/app/evidence"
	"underwrite/app/evidence/evidencetest"
	"underwrite/attest"
	"underwrite/runner/quarantine"
	"underwrite/runner/wire"
	"underwrite/store/blob"
)

var issued = time.Date(2026, 8, 29, 12, 0, 0, 0, time.UTC)

const sourceBundle = "source bundle"

// world is one finished execution and a consumer that waits for it.
type world struct {
	gateway *evidencetest.Gateway
	blobs   *blob.Store
	run     evidencetest.Run
	expect  evidence.Expectation
	dir     string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{gateway: evidencetest.New(t), dir: filepath.Join(t.TempDir(), "evidence")}
	blobs, err := blob.Create(filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	w.blobs = blobs
	request, err := attest.Request{
		Version: 1, ProfileName: "python", Profile: w.gateway.Profile(), SessionID: attest.NewUUID(), Challenge: attest.NewChallenge(),
		Target: evidencetest.Target(strings.Repeat("a", 40), []byte(sourceBundle)), Action: attest.Action{Seq: 1, Beat: 1, Attempt: 1},
	}.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(t.TempDir(), "pr.bundle")
	if err := os.WriteFile(source, []byte(sourceBundle), 0o600); err != nil {
		t.Fatal(err)
	}
	w.run = evidencetest.Run{Request: request, Stdout: "3 passed\n", Output: "output bundle", Issued: issued}
	w.expect = evidence.Expectation{
		Request: request, SourceBundle: source, Trust: w.gateway.Trust(), Now: issued.Add(time.Minute),
		Inspector: evidencetest.Inspector{Tree: w.gateway.InputTree},
	}
	return w
}

func (w *world) read(t *testing.T) (*evidence.Files, error) {
	t.Helper()
	return evidence.Read(w.dir, w.blobs, evidence.LimitsFor(w.gateway.Profile().Sandbox.Limits))
}

func (w *world) verify(t *testing.T) (*evidence.Result, error) {
	t.Helper()
	evidencetest.Write(t, w.dir, w.gateway.Files(t, w.run))
	f, err := w.read(t)
	if err != nil {
		t.Fatal(err)
	}
	return evidence.Verify(t.Context(), f, w.blobs, w.expect)
}

func TestVerify(t *testing.T) {
	for name, c := range map[string]struct {
		exit         int64
		contradicted bool
	}{"as predicted": {0, false}, "other exit code": {3, true}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.run.ExitCode = c.exit
			r, err := w.verify(t)
			if err != nil {
				t.Fatal(err)
			}
			if r.ExitCode != c.exit || r.Contradicted != c.contradicted || r.Predicted != 0 || r.KeyID != w.gateway.KeyID || r.Receipt.SignerID != evidencetest.SignerID {
				t.Errorf("result %+v", r)
			}
			if len(r.Steps) != 6 || !r.Steps[5].OK {
				t.Errorf("steps %+v", r.Steps)
			}
		})
	}
}

// TestVerifyRefuses: one changed thing for each claim, and the step that finds it.
func TestVerifyRefuses(t *testing.T) {
	broken := errors.New("disk is full")
	for name, c := range map[string]struct {
		change func(w *world)
		step   string
		want   error // nil: neither ErrInvalid
	}{
		"other request": {func(w *world) {
			w.expect.Request = bytes.Replace(w.expect.Request, []byte(`"seq":1`), []byte(`"seq":2`), 1)
		}, "request", evidence.ErrInvalid},
		"unknown key":           {func(w *world) { w.expect.Trust = nil }, "trust", evidence.ErrUntrusted},
		"key of another signer": {func(w *world) { w.expect.Trust[0].SignerID = "gateway-2" }, "trust", evidence.ErrUntrusted},
		"executor not allowed":  {func(w *world) { w.expect.Trust[0].ExecutorIDs = []string{"other"} }, "trust", evidence.ErrUntrusted},
		"key not valid yet":     {func(w *world) { w.expect.Trust[0].ValidFrom = w.expect.Now.Add(time.Second) }, "trust", evidence.ErrUntrusted},
		"key expired":           {func(w *world) { w.expect.Trust[0].ValidUntil = w.expect.Now }, "trust", evidence.ErrUntrusted},
		"key distrusted":        {func(w *world) { w.expect.Trust[0].DistrustFrom = w.expect.Now }, "trust", evidence.ErrUntrusted},
		"changed source bundle": {func(w *world) { os.WriteFile(w.expect.SourceBundle, []byte("other"), 0o600) }, "source bundle", nil},
		"other input tree": {func(w *world) {
			w.expect.Inspector = evidencetest.Inspector{Tree: strings.Repeat("0", 64)}
		}, "capability and receipt", attest.ErrInputTree},
		"refused output bundle": {func(w *world) {
			w.expect.Inspector = outputFails{w.expect.Inspector, &quarantine.RefusedError{Reason: "no bundle"}}
		}, "output bundle", evidence.ErrInvalid},
		"output not inspected": {func(w *world) { w.expect.Inspector = outputFails{w.expect.Inspector, broken} }, "output bundle", broken},
		"too much output": {func(w *world) {
			w.run.Stdout = strings.Repeat("x", 1000)
			w.run.Stderr = strings.Repeat("x", 25)
			w.run.Edit = shortStreams
		}, "streams", attest.ErrOutputLimit},
		"other stdout": {func(w *world) {
			w.run.Edit = func(e *attest.ExpectedReceipt) { e.Stdout.SHA256 = strings.Repeat("0", 64) }
		}, "capability and receipt", attest.ErrStreams},
		"other output bundle": {func(w *world) { w.run.Edit = func(e *attest.ExpectedReceipt) { e.OutputBundle.Bytes++ } }, "capability and receipt", attest.ErrOutputBundle},
		"other output tree": {func(w *world) {
			w.run.Edit = func(e *attest.ExpectedReceipt) {
				e.OutputTree = strings.Repeat("0", 64)
				e.OutputBundle.GitTree = e.OutputTree
			}
		}, "capability and receipt", evidence.ErrInvalid},
		"other challenge": {func(w *world) { w.run.Edit = func(e *attest.ExpectedReceipt) { e.Challenge = strings.Repeat("0", 64) } }, "capability and receipt", attest.ErrSession},
		"other head": {func(w *world) {
			w.run.Edit = func(e *attest.ExpectedReceipt) { e.Target.HeadSHA = strings.Repeat("0", 40) }
		}, "capability and receipt", attest.ErrTarget},
		"other executor":          {func(w *world) { w.run.Edit = func(e *attest.ExpectedReceipt) { e.ExecutorID = "other" } }, "capability and receipt", attest.ErrExecutor},
		"other job":               {func(w *world) { w.run.Edit = func(e *attest.ExpectedReceipt) { e.Job.Cwd = "src" } }, "capability and receipt", attest.ErrJob},
		"receipt from the future": {func(w *world) { w.expect.Now = issued.Add(time.Second) }, "capability and receipt", attest.ErrFinished},
		"exit code and stdout differ": {func(w *world) {
			w.run.ExitCode = 1
			w.run.Edit = func(e *attest.ExpectedReceipt) { e.Stdout.Bytes++ }
		}, "capability and receipt", attest.ErrStreams},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.change(w)
			r, err := w.verify(t)
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Fatalf("err = %v, want %v", err, c.want)
			}
			if could := c.want == nil || c.want == broken; errors.Is(err, evidence.ErrInvalid) == could {
				t.Errorf("err = %v, ErrInvalid: %v", err, !could)
			}
			last := r.Steps[len(r.Steps)-1]
			if last.Name != c.step || last.OK || r.Receipt != nil {
				t.Errorf("failed at %+v with receipt %v, want %s", last, r.Receipt, c.step)
			}
		})
	}
}

// TestVerifyForeignKey: an envelope by another key is refused although its
// keyid claims the pinned one.
func TestVerifyForeignKey(t *testing.T) {
	w := newWorld(t)
	forger := evidencetest.New(t)
	forger.KeyID, forger.InputTree = w.gateway.KeyID, w.gateway.InputTree
	evidencetest.Write(t, w.dir, forger.Files(t, w.run))
	f, err := w.read(t)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := evidence.Verify(t.Context(), f, w.blobs, w.expect); !errors.Is(err, attest.ErrSignature) || !errors.Is(err, evidence.ErrInvalid) {
		t.Errorf("err = %v, want ErrSignature", err)
	}
}

// shortStreams lets the gateway sign streams within the limit.
func shortStreams(e *attest.ExpectedReceipt) { e.Stdout.Bytes, e.Stderr.Bytes = 1, 1 }

type outputFails struct {
	evidence.Inspector
	err error
}

func (o outputFails) Output(context.Context, string) (attest.Bundle, error) {
	return attest.Bundle{}, o.err
}

func TestReadKeepsTheExactBytes(t *testing.T) {
	w := newWorld(t)
	files := w.gateway.Files(t, w.run)
	evidencetest.Write(t, w.dir, files)
	f, err := w.read(t)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]byte{wire.RequestFile: f.Request, wire.CapabilityFile: f.Capability, wire.ReceiptFile: f.Receipt}
	for name, ref := range map[string]blob.Ref{wire.OutputFile: f.Output, wire.StdoutFile: f.Stdout, wire.StderrFile: f.Stderr} {
		if got[name], err = os.ReadFile(w.blobs.Path(ref)); err != nil {
			t.Fatal(err)
		}
	}
	if !maps.EqualFunc(got, files, bytes.Equal) {
		t.Error("files differ from what was written")
	}
}

func TestReadRefuses(t *testing.T) {
	in := func(w *world, name string) string { return filepath.Join(w.dir, name) }
	for name, spoil := range map[string]func(t *testing.T, w *world){
		"missing file":     func(t *testing.T, w *world) { must(t, os.Remove(in(w, wire.StderrFile))) },
		"extra file":       func(t *testing.T, w *world) { must(t, os.WriteFile(in(w, "more"), nil, 0o600)) },
		"renamed file":     func(t *testing.T, w *world) { must(t, os.Rename(in(w, wire.StderrFile), in(w, "Stderr"))) },
		"many extra files": func(t *testing.T, w *world) { many(t, w) },
		"symbolic link": func(t *testing.T, w *world) {
			must(t, os.Rename(in(w, wire.StdoutFile), w.dir+"-stdout"))
			must(t, os.Symlink(w.dir+"-stdout", in(w, wire.StdoutFile)))
		},
		"hard link": func(t *testing.T, w *world) { must(t, os.Link(in(w, wire.ReceiptFile), w.dir+"-receipt")) },
		"directory": func(t *testing.T, w *world) {
			must(t, os.Remove(in(w, wire.StdoutFile)))
			must(t, os.Mkdir(in(w, wire.StdoutFile), 0o700))
		},
		"fifo": func(t *testing.T, w *world) {
			must(t, os.Remove(in(w, wire.StdoutFile)))
			must(t, unix.Mkfifo(in(w, wire.StdoutFile), 0o600))
		},
		"large request": func(t *testing.T, w *world) { must(t, os.Truncate(in(w, wire.RequestFile), attest.MaxRequestBytes+1)) },
		"large receipt": func(t *testing.T, w *world) { must(t, os.Truncate(in(w, wire.ReceiptFile), 1_000_001)) },
		"large stream":  func(t *testing.T, w *world) { must(t, os.Truncate(in(w, wire.StdoutFile), 1<<10+1)) },
		"no directory":  func(t *testing.T, w *world) { must(t, os.RemoveAll(w.dir)) },
		"linked directory": func(t *testing.T, w *world) {
			must(t, os.Rename(w.dir, w.dir+"-real"))
			must(t, os.Symlink(w.dir+"-real", w.dir))
		},
		"file instead of directory": func(t *testing.T, w *world) {
			must(t, os.RemoveAll(w.dir))
			must(t, os.WriteFile(w.dir, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			evidencetest.Write(t, w.dir, w.gateway.Files(t, w.run))
			spoil(t, w)
			if f, err := w.read(t); !errors.Is(err, evidence.ErrTransport) {
				t.Errorf("Read = %v, %v, want ErrTransport", f, err)
			}
		})
	}
}

func many(t *testing.T, w *world) {
	for i := range 100 {
		must(t, os.WriteFile(filepath.Join(w.dir, strings.Repeat("x", i+1)), nil, 0o600))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
