package web

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"underwrite/app/evidence"
	"underwrite/app/evidence/evidencetest"
	"underwrite/attest"
	"underwrite/handlers/checks"
	"underwrite/runner/wire"
	"underwrite/store"
	"underwrite/store/blob"
)

func TestEmptyListSaysWhatToDo(t *testing.T) {
	w := newWorld(t)
	page := w.get("/").body
	wants(t, page, "No pull request has been checked yet", "Open or push to a pull request", "/healthz", "accounts")
	lacks(t, page, "<table", "refresh")
}

func TestList(t *testing.T) {
	w := newWorld(t)
	passed, _ := w.proven(7, 0, "", "")
	running := w.running(8)
	page := w.get("/").body
	wants(t, page, "underwrite/tests", "octo-org/shop#7", "octo-org/shop#8", ExecutionPath(passed.ExternalID), ExecutionPath(running.ExternalID),
		"passed: exit 0 as expected", ">success<", ">in progress<", "2026-08-29 12:00:06 UTC", `<th scope="col">`, `http-equiv="refresh"`)
	if strings.Index(page, "shop#8") > strings.Index(page, "shop#7") {
		t.Error("the newest is not first")
	}
}

func TestListIsBounded(t *testing.T) {
	w := newWorld(t)
	for n := range int64(listed + 5) {
		w.pull(n+1, nil)
	}
	if got := strings.Count(w.get("/").body, "/executions/"); got != listed {
		t.Errorf("%d rows, want %d", got, listed)
	}
}

func TestPassedExecution(t *testing.T) {
	w := newWorld(t)
	run, files := w.proven(7, 0, "3 passed\n", "a warning\n")
	page := w.page(run)
	wants(t, page, "/usr/bin/python3 -m pytest", "passed: exit 0 as expected", ">success<", "3 passed", "a warning",
		strings.Repeat("e", 64), strings.Repeat("d", 64), headSHA, evidencetest.SignerID, evidencetest.ExecutorID, w.gateway.KeyID,
		attest.SHA256Hex(files[wire.ReceiptFile]), attest.SHA256Hex(files[wire.CapabilityFile]), attest.SHA256Hex(files[wire.OutputFile]),
		"1 GiB", "64 MiB", "1.000 s", "2026-08-29 12:00:04.000 UTC", run.Execution.Challenge, run.Session.ID,
		checks.ScopeSentence, "underwrite verify --signer gateway-1",
		"--head "+headSHA+" --exit-code 0 --profile PROFILE --key KEY --source-bundle source.bundle evidence",
		"curl -fsSo evidence.tar "+external+ExecutionPath(run.ExternalID)+"/evidence.tar", "v1.2.3")
	lacks(t, page, "refresh", checks.NoReceipt, "/var/lib/gateway", w.options.ExternalURL+"//")
}

func TestContradictedExecution(t *testing.T) {
	w := newWorld(t)
	run, _ := w.proven(7, 3, "1 failed\n", "")
	wants(t, w.page(run), "exit 3, expected 0", ">failure<", "underwrite verify", "0 bytes")
}

func TestFaultedExecution(t *testing.T) {
	w := newWorld(t)
	run := w.faulted(7, wire.Fault{Kind: wire.FaultWall, Measured: 61, Limit: 60},
		store.Tails{Stdout: []byte("still working\n")})
	page := w.page(run)
	wants(t, page, "timed out after 60 s", ">timed out<", "exceeded: 61 s", "not recorded", "still working",
		"not signed", "nothing was recorded", checks.NoReceipt, checks.ScopeSentence)
	lacks(t, page, "underwrite verify", "evidence.tar", "refresh", "/stdout\"")
	if a := w.do(http.MethodGet, ExecutionPath(run.ExternalID)+"/stdout"); a.StatusCode != http.StatusNotFound {
		t.Errorf("stream without a receipt = %d", a.StatusCode)
	}
}

func TestRunningExecution(t *testing.T) {
	w := newWorld(t)
	run := w.running(7)
	page := w.page(run)
	wants(t, page, ">in progress<", `http-equiv="refresh"`, "Given to the gateway", "shown when the execution is over", "once the run has ended")
	lacks(t, page, run.Execution.Challenge, checks.NoReceipt, "underwrite verify")
}

func TestQueuedExecution(t *testing.T) {
	w := newWorld(t)
	page := w.page(w.pull(7, nil))
	wants(t, page, ">queued<", "Pull request seen", `http-equiv="refresh"`)
}

// TestTwins: the page shows what the check run does when one commit heads two
// pull requests.
func TestTwins(t *testing.T) {
	w := newWorld(t)
	run, _ := w.proven(7, 0, "", "")
	other := w.pull(8, nil)
	wants(t, w.page(run), "waiting for pull request #8", "passed: exit 0 as expected", "pull request 8: queued", `http-equiv="refresh"`)
	wants(t, w.page(other), ">queued<", "pull request 7: passed")
}

// hostile holds what a guest or a pull request may try in any text.
const hostile = "<script>alert(1)</script>\x1b[31mred\x1b[0m \u202egnp.exe\u2066 \xff\xfe \x00 <img src=x onerror=alert(1)> \" ' ` </pre></html>"

func TestHostileContent(t *testing.T) {
	w := newWorld(t)
	proven, _ := w.proven(7, 0, hostile, hostile)
	faulted := w.faulted(8, wire.Fault{Kind: wire.FaultUnsupportedOutput, Path: hostile, Detail: hostile},
		store.Tails{Stdout: []byte(hostile), Stderr: []byte(hostile)})
	named := w.pull(9, func(p *store.Pull) { p.Repo = "octo-org/<b>\u202e" })
	for _, page := range []string{w.page(proven), w.page(faulted), w.page(named), w.get("/").body} {
		inert(t, page)
	}
	wants(t, w.page(faulted), "&lt;script&gt;", `\u202e`, `\xff\xfe`, `\x00`)
	wants(t, w.page(proven), "&lt;script&gt;alert(1)&lt;/script&gt;red", `\u202egnp.exe\u2066`)
}

// inert fails if something in a page is active or hides.
func inert(t *testing.T, page string) {
	t.Helper()
	lacks(t, page, "<script", "<img", "onerror=alert(1)>", "<b>", "\x1b", "\x00", "\u202e", "\u2066")
	if !utf8.ValidString(page) || strings.Count(page, "</html>") != 1 || strings.Count(page, "<pre") != strings.Count(page, "</pre>") {
		t.Error("the page is no longer what the template makes")
	}
}

// FuzzPage: whatever ends up in streams, faults and names, the page stays inert.
func FuzzPage(f *testing.F) {
	f.Add(hostile, hostile, hostile)
	f.Add("</pre><script>", "\u2028{{.}}", "javascript:alert(1)")
	s := &site{Options: Options{Version: "v1", ExternalURL: external}}
	f.Fuzz(func(t *testing.T, stream, detail, name string) {
		run := store.CheckRun{ExternalID: "id", Execution: &store.Execution{State: store.Faulted}, State: store.Faulted}
		r := checks.Report{
			Repo: name, Name: name, Number: 7, State: checks.Faulted, By: name, Fault: wire.Fault{Kind: detail, Detail: detail, Path: name},
			Job: attest.Job{Argv: []string{name, detail}, Cwd: detail}, Limits: attest.Limits{WallSeconds: 1},
			StdoutTail: []byte(stream), StderrTail: []byte(detail), SignerID: name,
			OtherResults: []checks.OtherResult{{Number: 8, State: checks.Faulted, Title: name}},
		}
		rec := httptest.NewRecorder()
		s.render(rec, httptest.NewRequest(http.MethodGet, "/", nil), "execution.html", s.execution(run, r))
		if rec.Code != http.StatusOK {
			t.Fatalf("status %d", rec.Code)
		}
		inert(t, rec.Body.String())
	})
}

func TestLargeStreamIsBounded(t *testing.T) {
	w := newWorld(t)
	big := strings.Repeat("0123456789abcde\n", 10<<20/16) + "the very end"
	run, _ := w.proven(7, 0, big, strings.Repeat("\u202e", 100_000))
	page := w.page(run)
	wants(t, page, "the very end", fmt.Sprintf("%d bytes, of which these are the last", len(big)))
	if len(page) > 1<<20 {
		t.Errorf("page of %d bytes", len(page))
	}
	raw := w.get(ExecutionPath(run.ExternalID) + "/stdout")
	if raw.body != big {
		t.Errorf("raw stream has %d bytes, want %d", len(raw.body), len(big))
	}
}

func TestLongValuesAreBounded(t *testing.T) {
	long := strings.Repeat("é\u202e", 10_000)
	if got := shown(long); len(got) > 8*maxShownBytes || !strings.HasSuffix(got, "…") || !utf8.ValidString(got) {
		t.Errorf("%d bytes, ends with %q", len(got), got[len(got)-5:])
	}
	if got := shown("a\nb"); got != `a\nb` {
		t.Errorf("two lines: %q", got)
	}
}

func TestRawStreamsAreNeverPages(t *testing.T) {
	w := newWorld(t)
	run, files := w.proven(7, 0, hostile, "")
	a := w.get(ExecutionPath(run.ExternalID) + "/stdout")
	if a.body != hostile {
		t.Errorf("raw stream %q", a.body)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff",
		"Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
		"Content-Disposition":     `attachment; filename="stdout-` + run.ExternalID[:7] + `.txt"`,
		"Content-Length":          fmt.Sprint(len(hostile)),
		"Etag":                    `"` + attest.SHA256Hex([]byte(hostile)) + `"`,
	} {
		if got := a.Header.Get(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	for _, name := range []string{wire.ReceiptFile, wire.CapabilityFile, wire.RequestFile, wire.OutputFile} {
		a := w.get(ExecutionPath(run.ExternalID) + "/" + name)
		if a.body != string(files[name]) {
			t.Errorf("%s differs", name)
		}
		if a.Header.Get("Content-Type") != "application/octet-stream" || a.Header.Get("Content-Disposition") != `attachment; filename="`+name+`"` {
			t.Errorf("%s: %v", name, a.Header)
		}
	}
}

// TestArchiveVerifies: what the archive unpacks to is an evidence directory
// that verifies against the reader's own expectation.
func TestArchiveVerifies(t *testing.T) {
	w := newWorld(t)
	run, files := w.proven(7, 0, "out", strings.Repeat("e", 1000))
	a := w.get(ExecutionPath(run.ExternalID) + "/evidence.tar")
	if a.ContentLength != int64(len(a.body)) || a.Header.Get("Content-Type") != "application/x-tar" {
		t.Errorf("length %d, type %s", a.ContentLength, a.Header.Get("Content-Type"))
	}
	dir := untar(t, a.body)
	scratch, err := blob.Create(filepath.Join(t.TempDir(), "blobs"))
	must(t, err)
	read, err := evidence.Read(dir, scratch, evidence.LimitsFor(w.profile.Sandbox.Limits))
	must(t, err)
	source := filepath.Join(t.TempDir(), sourceFile)
	must(t, os.WriteFile(source, []byte(w.get(ExecutionPath(run.ExternalID)+"/"+sourceFile).body), 0o600))
	_, err = evidence.Verify(t.Context(), read, scratch, evidence.Expectation{
		Request: files[wire.RequestFile], SourceBundle: source, Trust: w.gateway.Trust(),
		Inspector: evidencetest.Inspector{Tree: w.gateway.InputTree}, Now: now.Add(time.Minute),
	})
	must(t, err)
	if again := w.get(ExecutionPath(run.ExternalID) + "/evidence.tar"); again.body != a.body {
		t.Error("the archive is not the same each time")
	}
}

func untar(t *testing.T, archive string) string {
	t.Helper()
	dir := t.TempDir()
	r := tar.NewReader(strings.NewReader(archive))
	var names []string
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		names = append(names, h.Name)
		if h.Typeflag == tar.TypeDir {
			must(t, os.Mkdir(filepath.Join(dir, h.Name), 0o700))
			continue
		}
		b, err := io.ReadAll(r)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, h.Name), b, 0o600))
	}
	if len(names) != 7 || names[0] != "evidence/" {
		t.Errorf("names %q", names)
	}
	return filepath.Join(dir, "evidence")
}

// TestDamagedBlob: a file that is not what the receipt names is not served.
func TestDamagedBlob(t *testing.T) {
	w := newWorld(t)
	run, _ := w.proven(7, 0, "good", "")
	path := w.blobs.Path(run.Evidence.Stdout)
	must(t, os.Chmod(path, 0o600))
	must(t, os.WriteFile(path, []byte("evil"), 0o600))
	for _, name := range []string{"stdout", "evidence.tar"} {
		a := w.do(http.MethodGet, ExecutionPath(run.ExternalID)+"/"+name)
		if a.StatusCode != http.StatusInternalServerError || strings.Contains(a.body, "evil") || a.Header.Get("Content-Disposition") != "" {
			t.Errorf("%s = %d %q", name, a.StatusCode, a.body)
		}
	}
}

func TestHeaders(t *testing.T) {
	w := newWorld(t)
	run, _ := w.proven(7, 0, "x", "")
	for _, path := range []string{"/", ExecutionPath(run.ExternalID), "/nothing", HealthPath, MetricsPath, stylePath} {
		a := w.do(http.MethodGet, path)
		csp := a.Header.Get("Content-Security-Policy")
		wants(t, csp, "default-src 'none'", "style-src 'self'", "frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'")
		lacks(t, csp, "unsafe", "script-src", "http")
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := a.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		if a.Header.Get("Cache-Control") == "" || a.Header.Get("Content-Type") == "" || a.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %v", path, a.Header)
		}
	}
}

// TestNothingFromElsewhere: pages load the style sheet and nothing else.
func TestNothingFromElsewhere(t *testing.T) {
	w := newWorld(t)
	run, _ := w.proven(7, 0, "x", "")
	for _, path := range []string{"/", ExecutionPath(run.ExternalID)} {
		page := w.get(path).body
		lacks(t, page, "src=", "style=", "http://", "href=\"https://", "url(")
		wants(t, page, `<link rel="stylesheet" href="`+stylePath+`">`, `<html lang="en">`, "<main", "<nav")
	}
	lacks(t, w.get(stylePath).body, "@import", "url(", "http")
}

func TestHeadAndCaching(t *testing.T) {
	w := newWorld(t)
	run, _ := w.proven(7, 0, "some output", "")
	base := ExecutionPath(run.ExternalID)
	for _, path := range []string{"/", base, base + "/stdout", base + "/evidence.tar", base + "/receipt.dsse.json", stylePath} {
		get, h := w.do(http.MethodGet, path), w.do(http.MethodHead, path)
		if h.StatusCode != http.StatusOK || h.body != "" {
			t.Errorf("HEAD %s = %d with %d bytes", path, h.StatusCode, len(h.body))
		}
		for _, name := range []string{"Content-Type", "Content-Length", "Etag", "Cache-Control", "Content-Disposition"} {
			if get.Header.Get(name) != h.Header.Get(name) {
				t.Errorf("%s: %s of GET is %q, of HEAD %q", path, name, get.Header.Get(name), h.Header.Get(name))
			}
		}
		if get.ContentLength != int64(len(get.body)) {
			t.Errorf("%s: announced %d bytes of %d", path, get.ContentLength, len(get.body))
		}
		if tag := get.Header.Get("Etag"); tag != "" {
			if a := w.do(http.MethodGet, path, "If-None-Match", tag); a.StatusCode != http.StatusNotModified || a.body != "" {
				t.Errorf("%s again = %d with %d bytes", path, a.StatusCode, len(a.body))
			}
		}
	}
	if cc := w.get(base).Header.Get("Cache-Control"); cc != "private, no-cache" {
		t.Errorf("page: %s", cc)
	}
	if cc := w.get(base + "/stdout").Header.Get("Cache-Control"); !strings.Contains(cc, "immutable") {
		t.Errorf("download: %s", cc)
	}
}

func TestErrors(t *testing.T) {
	w := newWorld(t)
	run, _ := w.proven(7, 0, "x", "")
	base := ExecutionPath(run.ExternalID)
	for _, c := range []struct {
		method, path string
		status       int
		want         string
	}{
		{"GET", "/nothing", 404, "nothing under this address"},
		{"GET", "/executions/", 404, "nothing under this address"},
		{"GET", ExecutionPath("00000000-0000-0000-0000-000000000000"), 404, "nothing under this address"},
		{"GET", ExecutionPath("%3Cscript%3E"), 404, "nothing under this address"},
		{"GET", base + "/nothing", 404, "nothing under this address"},
		{"GET", base + "/..%2f..%2fetc%2fpasswd", 404, "nothing under this address"},
		{"POST", "/", 405, "use GET or HEAD"},
		{"DELETE", base, 405, "use GET or HEAD"},
		{"PUT", base + "/stdout", 405, "use GET or HEAD"},
		{"POST", HealthPath, 405, "use GET or HEAD"},
	} {
		a := w.do(c.method, c.path)
		if a.StatusCode != c.status || !strings.Contains(a.body, c.want) || a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s = %d: %s", c.method, c.path, a.StatusCode, a.body)
		}
		if c.status == 405 && a.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s allows %q", c.method, c.path, a.Header.Get("Allow"))
		}
		lacks(t, a.body, "<script")
	}
}

// TestBrokenStore: readers learn that it is our fault, and nothing of the cause.
func TestBrokenStore(t *testing.T) {
	w := newWorld(t)
	run, _ := w.proven(7, 0, "x", "")
	must(t, w.store.Close())
	for _, path := range []string{"/", ExecutionPath(run.ExternalID), ExecutionPath(run.ExternalID) + "/stdout", MetricsPath} {
		a := w.do(http.MethodGet, path)
		if a.StatusCode != http.StatusInternalServerError || !strings.Contains(a.body, "log says why") || strings.Contains(a.body, "sql") {
			t.Errorf("%s = %d: %s", path, a.StatusCode, a.body)
		}
	}
	if a := w.do(http.MethodGet, HealthPath); a.StatusCode != http.StatusServiceUnavailable || strings.Contains(a.body, "sql") {
		t.Errorf("health = %d: %s", a.StatusCode, a.body)
	}
	w.server.Close() // or the log is written while it is read
	wants(t, w.log.String(), "database is closed", "unhealthy")
}

// TestWithoutExternalURL: the commands still make sense.
func TestWithoutExternalURL(t *testing.T) {
	w := newWorld(t)
	w.options.ExternalURL = ""
	w.serve()
	run, _ := w.proven(7, 0, "x", "")
	page := w.page(run)
	lacks(t, page, "curl")
	wants(t, page, "tar -xf evidence.tar", "evidence.tar\" download")
}

// TestPagesOfEveryState: each state that the store knows has a page.
func TestPagesOfEveryState(t *testing.T) {
	for _, state := range slices.Concat(endedStates, []store.RunState{store.Queued, store.InProgress}) {
		s := &site{}
		r := checks.Report{Repo: "octo-org/shop", Number: 7, Name: "tests", State: checks.State(state)}
		var page bytes.Buffer
		must(t, templates.ExecuteTemplate(&page, "execution.html", s.execution(store.CheckRun{State: state}, r)))
		if over := !strings.Contains(page.String(), "refresh"); over != state.Terminal() {
			t.Errorf("%s: over is %v", state, over)
		}
		class := markOf(checks.Judge(r)).Class
		if class != "mark-queued" && class != "mark-cancelled" && !bytes.Contains(styleSheet, []byte("."+class)) {
			t.Errorf("%s: the style sheet has no %s", state, class)
		}
	}
}
