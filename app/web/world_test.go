package web

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"underwrite/app/controller"
	"underwrite/app/evidence/evidencetest"
	"underwrite/attest"
	"underwrite/handlers"
	"underwrite/runner/wire"
	"underwrite/store"
	"underwrite/store/blob"
)

const external = "https://checks.example.com"

var (
	now          = time.Date(2026, 8, 29, 12, 0, 0, 0, time.UTC)
	headSHA      = strings.Repeat("a", 40)
	sourceBundle = []byte("# v2 git bundle\n")
)

// emptyDatabase is an empty database, made once.
var emptyDatabase = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "underwrite-web-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "template.db")
	if err := store.Create(context.Background(), path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// world is a real store and a real controller's reports, behind the pages.
type world struct {
	t       *testing.T
	store   *store.Store
	blobs   *blob.Store
	gateway *evidencetest.Gateway
	profile attest.Profile
	server  *httptest.Server
	log     bytes.Buffer
	options Options
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, gateway: evidencetest.New(t)}
	w.profile = w.gateway.Profile()
	w.profile.Sandbox.Limits.OutputBytes = 64 << 20
	w.profile.Sandbox.Limits.MemoryBytes = 1 << 30
	dir := t.TempDir()
	b, err := emptyDatabase()
	must(t, err)
	path := filepath.Join(dir, "underwrite.db")
	must(t, os.WriteFile(path, b, 0o600))
	w.store, err = store.Open(t.Context(), path, store.Options{})
	must(t, err)
	t.Cleanup(func() { w.store.Close() })
	w.blobs, err = blob.Create(filepath.Join(dir, "blobs"))
	must(t, err)
	scratch := filepath.Join(dir, "scratch")
	must(t, os.Mkdir(scratch, 0o700))
	reporter, err := controller.New(controller.Config{Store: w.store, Blobs: w.blobs, Scratch: scratch},
		func(handlers.Sessions) (controller.Dispatcher, error) { return nil, nil })
	must(t, err)
	w.options = Options{
		Records: w.store, Reporter: reporter, Blobs: w.blobs, ExternalURL: external, Version: "v1.2.3",
		Log: slog.New(slog.NewTextHandler(&w.log, nil)),
	}
	w.serve()
	return w
}

// serve starts the server with the present options.
func (w *world) serve() {
	w.server = httptest.NewServer(New(w.options))
	w.t.Cleanup(w.server.Close)
}

// pull freezes a pull request with one check and returns its check run.
func (w *world) pull(number int64, change func(*store.Pull)) store.CheckRun {
	w.t.Helper()
	p := store.Pull{Repo: "octo-org/shop", Number: number, InstallationID: 1, Open: true, BaseSHA: strings.Repeat("b", 40), HeadSHA: headSHA}
	if change != nil {
		change(&p)
	}
	profile, err := w.profile.Canonical()
	must(w.t, err)
	checks := []store.Check{{Name: "tests", ProfileName: "python", Profile: profile}}
	_, err = w.store.Sync(w.t.Context(), p, checks, build, now)
	must(w.t, err)
	return w.last(p)
}

func (w *world) last(p store.Pull) store.CheckRun {
	w.t.Helper()
	runs, err := w.store.CheckRuns(w.t.Context(), p.Repo, p.Number)
	must(w.t, err)
	return runs[len(runs)-1]
}

// again reads the check run once more.
func (w *world) again(run store.CheckRun) store.CheckRun {
	w.t.Helper()
	run, _, err := w.store.CheckRun(w.t.Context(), run.ID)
	must(w.t, err)
	return run
}

func build(s store.Session, c store.Check, seq int64) (store.Reservation, error) {
	profile, err := attest.ParseProfile(c.Profile)
	if err != nil {
		return store.Reservation{}, err
	}
	target, err := attest.ParseTarget(s.Target)
	if err != nil {
		return store.Reservation{}, err
	}
	request := attest.Request{
		Version: 1, ProfileName: c.ProfileName, Profile: profile, SessionID: s.ID, Challenge: attest.NewChallenge(),
		Target: target, Action: attest.Action{Seq: seq, Beat: c.Beat, Attempt: 1},
	}
	b, err := request.Canonical()
	return store.Reservation{
		Challenge: request.Challenge, Request: b, RequestSHA256: attest.SHA256Hex(b), Predicted: profile.ExitCode,
	}, err
}

// running freezes the pull request and starts its execution.
func (w *world) running(number int64) store.CheckRun {
	w.t.Helper()
	run := w.pull(number, nil)
	target := evidencetest.Target(headSHA, sourceBundle)
	target.Number = number
	b, err := target.Canonical()
	must(w.t, err)
	w.put(sourceBundle)
	must(w.t, w.store.SetReady(w.t.Context(), run.Session.ID, store.Frozen{
		Target: b, TargetSHA256: attest.SHA256Hex(b), InputTree: w.gateway.InputTree,
	}, build, now.Add(time.Second)))
	run = w.again(run)
	must(w.t, w.store.StartExecution(w.t.Context(), run.Execution.ID, now.Add(2*time.Second)))
	return w.again(run)
}

func (w *world) put(b []byte) blob.Ref {
	w.t.Helper()
	ref, err := w.blobs.Put(bytes.NewReader(b), int64(len(b)))
	must(w.t, err)
	return ref
}

// proven ends an execution with signed evidence.
func (w *world) proven(number, exit int64, stdout, stderr string) (store.CheckRun, map[string][]byte) {
	w.t.Helper()
	run := w.running(number)
	files := w.gateway.Files(w.t, evidencetest.Run{
		Request: run.Execution.Request, ExitCode: exit, Stdout: stdout, Stderr: stderr, Output: "an output bundle", Issued: now.Add(3 * time.Second),
	})
	state := store.Passed
	if exit != 0 {
		state = store.Contradicted
	}
	e := store.Evidence{
		ExecutionID: run.Execution.ID, Capability: files[wire.CapabilityFile], Receipt: files[wire.ReceiptFile],
		CapabilitySHA256: attest.SHA256Hex(files[wire.CapabilityFile]), ReceiptSHA256: attest.SHA256Hex(files[wire.ReceiptFile]),
		SignerID: evidencetest.SignerID, ExecutorID: evidencetest.ExecutorID, KeyID: w.gateway.KeyID, ExitCode: exit,
		InputTree: w.gateway.InputTree, OutputTree: evidencetest.OutputTree,
		StartedAt: now.Add(4 * time.Second), FinishedAt: now.Add(5 * time.Second),
		Output: w.put(files[wire.OutputFile]), Stdout: w.put(files[wire.StdoutFile]), Stderr: w.put(files[wire.StderrFile]),
		Validation: []byte("{}"), Transport: "/var/lib/gateway/secret-path",
	}
	_, err := w.store.Consume(w.t.Context(), e, state, now.Add(6*time.Second))
	must(w.t, err)
	return w.again(run), files
}

// faulted ends an execution without a receipt.
func (w *world) faulted(number int64, f wire.Fault, tails store.Tails) store.CheckRun {
	w.t.Helper()
	run := w.running(number)
	b, err := json.Marshal(f)
	must(w.t, err)
	must(w.t, w.store.EndExecution(w.t.Context(), run.Execution.ID, store.Faulted, b, tails, now.Add(9*time.Second)))
	return w.again(run)
}

type answer struct {
	*http.Response
	body string
}

func (w *world) do(method, path string, header ...string) answer {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.server.URL+path, nil)
	must(w.t, err)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := w.server.Client().Do(r)
	must(w.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must(w.t, err)
	return answer{res, string(body)}
}

// get reads a page that must be there.
func (w *world) get(path string) answer {
	w.t.Helper()
	a := w.do(http.MethodGet, path)
	if a.StatusCode != http.StatusOK {
		w.t.Fatalf("GET %s = %d: %s", path, a.StatusCode, a.body)
	}
	return a
}

func (w *world) page(run store.CheckRun) string {
	w.t.Helper()
	return w.get(ExecutionPath(run.ExternalID)).body
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, s := range want {
		if !strings.Contains(text, s) {
			t.Errorf("the page lacks %q", s)
		}
	}
}

func lacks(t *testing.T, text string, bad ...string) {
	t.Helper()
	for _, s := range bad {
		if strings.Contains(text, s) {
			t.Errorf("the page has %q", s)
		}
	}
}
