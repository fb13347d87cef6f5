package checks

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"underwrite/attest"
	"underwrite/runner/sandbox"
	"underwrite/runner/wire"
)

func report(state State) Report {
	start := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	return Report{
		Repo: "octo-org/shop", Number: 7, Name: "unit", HeadSHA: strings.Repeat("a", 40),
		ExternalID: "e-1", DetailsURL: "https://underwrite.example.com/e/1", State: state,
		Job:    attest.Job{Argv: []string{"/usr/bin/python3", "-m", "pytest", "-q"}, Cwd: "."},
		Limits: attest.Limits{WallSeconds: 20, CPUSeconds: 10, MemoryBytes: 512 << 20, Processes: 64, WorkspaceBytes: 64 << 20, OutputBytes: 1000},
		Target: attest.Target{BaseSHA: strings.Repeat("b", 40), MergeBaseSHA: strings.Repeat("c", 40), DiffSHA256: strings.Repeat("d", 64)},
		Action: attest.Action{Seq: 3, Beat: 1, Attempt: 1}, InputTree: strings.Repeat("1", 64), OutputTree: strings.Repeat("2", 64),
		ReceiptSHA: strings.Repeat("3", 64), SignerID: "octo-signer", ExecutorID: "octo-executor", KeyID: "sha256:" + strings.Repeat("4", 64),
		StartedAt: start, FinishedAt: start.Add(1500 * time.Millisecond),
	}
}

func faulted(kind string, f wire.Fault) Report {
	r := report(Faulted)
	f.Kind = kind
	r.Fault = f
	return r
}

func with(r Report, change func(*Report)) Report { change(&r); return r }

func TestRenderVerdicts(t *testing.T) {
	for _, c := range []struct {
		name                      string
		report                    Report
		status, conclusion, title string // title is a prefix
	}{
		{"queued", report(Queued), "queued", "", "queued"},
		{"in progress", with(report(InProgress), func(r *Report) { r.Phase = wire.PhaseRun }), "in_progress", "", "running"},
		{"in an unknown phase", with(report(InProgress), func(r *Report) { r.Phase = "@everyone" }), "in_progress", "", "preparing"},
		{"passed", report(Passed), "completed", Success, "passed"},
		{"passed as predicted", with(report(Passed), func(r *Report) { r.ExitCode, r.Predicted = 3, 3 }), "completed", Success, "passed: exit 3 as expected, 1.5 s"},
		{"contradicted", with(report(Contradicted), func(r *Report) { r.ExitCode = 1 }), "completed", Failure, "exit 1, expected 0"},
		{"wall", faulted("wall", wire.Fault{Measured: 21, Limit: 20}), "completed", TimedOut, "timed out after 20 s (wall limit)"},
		{"CPU without a limit in the fault", faulted("cpu", wire.Fault{}), "completed", TimedOut, "timed out after 10 s (CPU limit)"},
		{"memory", faulted("memory", wire.Fault{}), "completed", Failure, "out of memory (limit 512 MiB)"},
		{"processes", faulted("processes", wire.Fault{Limit: 8}), "completed", Failure, "too many processes (limit 8)"},
		{"files", faulted("workspace", wire.Fault{Detail: wire.DetailFiles, Measured: 16384, Limit: 16384}), "completed", Failure, "workspace full (limit 16384 files)"},
		{"workspace", faulted("workspace", wire.Fault{}), "completed", Failure, "workspace full (limit 64 MiB)"},
		{"output", faulted("output", wire.Fault{}), "completed", Failure, "too much output (limit 1000 bytes)"},
		{"signal", faulted("signal", wire.Fault{Measured: 9}), "completed", Failure, "killed by signal 9 (killed)"},
		{"strange signal", faulted("signal", wire.Fault{Measured: 1 << 40}), "completed", Failure, "killed by a signal"},
		{"cancelled while it ran", with(faulted("cancelled", wire.Fault{}), func(r *Report) { r.By = "mona" }), "completed", CancelledRun, "cancelled by mona"},
		{"expired", faulted("expired", wire.Fault{}), "completed", ActionRequired, "could not run: "},
		{"unsupported output", faulted(wire.FaultUnsupportedOutput, wire.Fault{Detail: "empty directory", Path: "out/empty"}), "completed", Failure, "unsupported output: empty directory out/empty"},
		{"refused input", faulted(wire.FaultRefusedInput, wire.Fault{Detail: "gitlink", Path: "vendor/x"}), "completed", Failure, "cannot run: gitlink vendor/x"},
		{"policy", faulted(wire.FaultPolicy, wire.Fault{Detail: "profile unit is not accepted"}), "completed", ActionRequired, "could not run: not allowed by the gateway's policy: profile unit"},
		{"internal", faulted(wire.FaultInternal, wire.Fault{Detail: "disk full"}), "completed", ActionRequired, "could not run: disk full"},
		{"unknown fault", faulted("flood", wire.Fault{}), "completed", ActionRequired, "could not run: unknown fault flood"},
		{"refused", with(report(Refused), func(r *Report) { r.Fault = wire.Fault{Detail: "more than one merge base"} }), "completed", Failure, "cannot run: more than one merge base"},
		{"superseded", with(report(Superseded), func(r *Report) { r.By = strings.Repeat("f", 40) }), "completed", CancelledRun, "superseded by " + strings.Repeat("f", 40)},
		{"closed", with(report(Cancelled), func(r *Report) { r.By = "closed" }), "completed", CancelledRun, "cancelled by closing"},
		{"cancelled", with(report(Cancelled), func(r *Report) { r.By = "mona" }), "completed", CancelledRun, "cancelled by mona"},
		{"our fault", with(report(OurFault), func(r *Report) { r.Fault.Detail = "gateway unreachable" }), "completed", ActionRequired, "could not run: gateway unreachable"},
		{"unknown state", report("flying"), "completed", ActionRequired, "could not run: "},
		{"no state", report(""), "completed", ActionRequired, "could not run: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := Render(c.report)
			if run.Status != c.status || run.Conclusion != c.conclusion || !strings.HasPrefix(run.Title, c.title) {
				t.Errorf("Render = %q %q %q, want %q %q %q…", run.Status, run.Conclusion, run.Title, c.status, c.conclusion, c.title)
			}
			if !strings.Contains(run.Summary, ScopeSentence) {
				t.Error("the scope sentence is missing")
			}
			if run.Name != "underwrite/unit" || run.HeadSHA != c.report.HeadSHA || run.ExternalID != "e-1" {
				t.Errorf("identity changed: %+v", run)
			}
			if (run.Conclusion == ActionRequired) != (len(run.Actions) == 1) {
				t.Errorf("%d actions with conclusion %q", len(run.Actions), run.Conclusion)
			}
			if (run.Status == "completed") == run.CompletedAt.IsZero() {
				t.Errorf("completed at %v with status %q", run.CompletedAt, run.Status)
			}
			checkLimits(t, run)
		})
	}
}

// TestEveryFaultKindHasATitle fails when a fault kind is added that no title is
// made for.
func TestEveryFaultKindHasATitle(t *testing.T) {
	kinds := []string{wire.FaultRefusedInput, wire.FaultUnsupportedOutput, wire.FaultPolicy, wire.FaultInternal}
	for _, k := range []sandbox.FaultKind{sandbox.FaultWall, sandbox.FaultCPU, sandbox.FaultMemory, sandbox.FaultProcesses,
		sandbox.FaultWorkspace, sandbox.FaultOutput, sandbox.FaultSignal, sandbox.FaultCancelled, sandbox.FaultExpired} {
		kinds = append(kinds, string(k))
	}
	for _, k := range kinds {
		if run := Render(faulted(k, wire.Fault{})); strings.Contains(run.Title, "unknown") || run.Conclusion == Success {
			t.Errorf("%s: %q %q", k, run.Conclusion, run.Title)
		}
	}
}

func TestWorstOfSeveralPullRequests(t *testing.T) {
	passed := OtherResult{Number: 8, State: Passed, Title: "passed: exit 0 as expected"}
	failed := OtherResult{Number: 9, State: Contradicted, Title: "exit 1, expected 0"}
	timedOut := OtherResult{Number: 10, State: Faulted, Title: "timed out after 20 s (wall limit)"}
	broken := OtherResult{Number: 11, State: Faulted, Title: "could not run: disk full"}
	running := OtherResult{Number: 12, State: InProgress, Title: "running"}
	for _, c := range []struct {
		name                      string
		own                       State
		others                    []OtherResult
		status, conclusion, title string
	}{
		{"all passed", Passed, []OtherResult{passed}, "completed", Success, "passed"},
		{"other failed", Passed, []OtherResult{passed, failed}, "completed", Failure, "exit 1, expected 0 (pull request #9"},
		{"failure beats a time limit", Passed, []OtherResult{timedOut, failed}, "completed", Failure, "exit 1"},
		{"other timed out", Passed, []OtherResult{timedOut}, "completed", TimedOut, "timed out after 20 s"},
		{"other could not run", Passed, []OtherResult{broken}, "completed", ActionRequired, "could not run: disk full"},
		{"other still runs", Passed, []OtherResult{running}, "in_progress", "", "passed here, waiting for pull request #12"},
		{"a failure does not wait", Contradicted, []OtherResult{running}, "completed", Failure, "exit 0, expected 0"},
		{"other's failure does not wait", Passed, []OtherResult{running, failed}, "completed", Failure, "exit 1"},
		{"own is worse", Contradicted, []OtherResult{timedOut}, "completed", Failure, "exit 0, expected 0"},
		{"unknown state of another", Passed, []OtherResult{{Number: 13, State: "flying"}}, "completed", ActionRequired, "could not run"},
		{"not finished itself", InProgress, []OtherResult{failed}, "in_progress", "", "preparing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := report(c.own)
			r.OtherResults = c.others
			run := Render(r)
			if run.Status != c.status || run.Conclusion != c.conclusion || !strings.HasPrefix(run.Title, c.title) {
				t.Errorf("Render = %q %q %q", run.Status, run.Conclusion, run.Title)
			}
			for _, o := range c.others {
				if !strings.Contains(run.Summary, fmt.Sprintf("- pull request %d: ", o.Number)) {
					t.Errorf("summary does not list pull request %d", o.Number)
				}
			}
		})
	}
}

func TestSummaryNamesTheEvidence(t *testing.T) {
	run := Render(report(Passed))
	for _, want := range []string{
		"`/usr/bin/python3 -m pytest -q`", "0, predicted 0", "wall 20 s, CPU 10 s, memory 512 MiB, processes 64",
		strings.Repeat("1", 64), strings.Repeat("2", 64), strings.Repeat("3", 64), strings.Repeat("4", 64),
		strings.Repeat("b", 40), strings.Repeat("d", 64), "octo-signer", "octo-executor", "seq 3, beat 1, attempt 1",
		"underwrite verify --signer octo-signer --executor octo-executor --repo octo-org/shop --pr 7 --head " + strings.Repeat("a", 40) +
			" --exit-code 0 --profile PROFILE --key KEY --source-bundle SOURCE_BUNDLE EVIDENCE_DIR",
	} {
		if !strings.Contains(run.Summary, want) {
			t.Errorf("summary lacks %q", want)
		}
	}
	if s := Render(faulted("wall", wire.Fault{})).Summary; !strings.Contains(s, "There is no receipt") || strings.Contains(s, "underwrite verify") {
		t.Error("a run without a receipt explains how to verify one")
	}
}

func TestTextKeepsTheEnd(t *testing.T) {
	r := report(Contradicted)
	r.StdoutTail = bytes.Repeat([]byte("é line\n"), 20_000)
	r.StdoutTail = append(r.StdoutTail, "the end of stdout"...)
	r.StdoutBytes = 1 << 30
	r.StderrTail = []byte("short stderr")
	run := Render(r)
	checkLimits(t, run)
	for _, want := range []string{"the end of stdout\n```", "short stderr\n```", fmt.Sprint(1 << 30)} {
		if !strings.Contains(run.Text, want) {
			t.Errorf("text lacks %q", want)
		}
	}
	if len(run.Text) < maxBody-1000 {
		t.Errorf("text has %d bytes: the room that stderr left is not used", len(run.Text))
	}
	if Render(report(Passed)).Text != "" {
		t.Error("text without any output")
	}
}

// TestTextOfFences: a stream of nothing but fences leaves room for our own.
func TestTextOfFences(t *testing.T) {
	r := report(Contradicted)
	r.StdoutTail = bytes.Repeat([]byte("`"), maxTailBytes)
	r.StderrTail = bytes.Repeat([]byte(strings.Repeat("`", maxBackticks)+"\n"), maxTailBytes/maxBackticks)
	run := Render(r)
	checkLimits(t, run)
	if rest := outside(t, run.Text); strings.Contains(rest, "`") || strings.Count(rest, "**") != 4 {
		t.Errorf("outside of the fences: %q", rest)
	}
}

func TestPlainStream(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"colour", "\x1b[1;31mred\x1b[0m", "red"},
		{"title", "a\x1b]0;evil\x07b", "ab"},
		{"hyperlink", "\x1b]8;;http://example.com\x1b\\text\x1b]8;;\x1b\\", "text"},
		{"device control", "a\x1bPq#0\x1b\\b", "ab"},
		{"charset", "\x1b(Bx", "x"},
		{"two bytes", "\x1bcx", "x"},
		{"unfinished control string", "\x1b]0;never ends\nvisible", "\\x1b]0;never ends\nvisible"},
		{"unfinished sequence at the end", "x\x1b[31", "x\\x1b[31"},
		{"lone escape", "x\x1b", "x\\x1b"},
		{"escape in a control string", "\x1b]0;a\x1b[31mb", "\\x1b]0;ab"},
		{"huge control string", "\x1b]" + strings.Repeat("x", maxEscapeBytes) + "\x07", "\\x1b]" + strings.Repeat("x", maxEscapeBytes) + "\\x07"},
		{"CRLF", "a\r\nb", "a\nb"},
		{"nothing is overwritten", "FAILED\rPASSED", "FAILED\nPASSED"},
		{"backspace", "ab\x08c", "ab\\x08c"},
		{"NUL", "a\x00b", "a\\x00b"},
		{"invalid UTF-8", "a\xff\xc3b", "a\\xff\\xc3b"},
		{"surrogate", "\xed\xa0\x80", "\\xed\\xa0\\x80"},
		{"C1 CSI", "\u009b31m", "\\u009b31m"},
		{"bidirectional", "a\u202eb\u2066c", "a\\u202eb\\u2066c"},
		{"marks and separators", "\u200e\u061c\u2028\ufeff\u200b", "\\u200e\\u061c\\u2028\\ufeff\\u200b"},
		{"tag characters", "\U000e0041", "\\U000e0041"},
		{"emoji", "👩‍💻 ü 漢", "👩‍💻 ü 漢"},
		{"tab", "a\tb", "a\tb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := plainStream([]byte(c.in)); got != c.want {
				t.Errorf("plainStream(%q) = %q, want %q", c.in, got, c.want)
			}
		})
	}
}

func TestHostileTextIsInert(t *testing.T) {
	hostile := "</code>`` @octocat ![x](https://example.com/x.png) <img src=x>\n```\n# heading\n|a|b|\r\n#1 \u202e"
	r := report(Contradicted)
	r.Job.Argv = []string{"/bin/sh", hostile}
	r.Job.Cwd = hostile
	r.Fault = wire.Fault{Kind: hostile, Path: hostile, Detail: hostile}
	r.SignerID, r.ExecutorID, r.By, r.Repo = hostile, hostile, hostile, hostile
	r.StdoutTail = []byte(hostile)
	r.StderrTail = []byte(strings.Repeat("`", 5000) + hostile)
	r.OtherResults = []OtherResult{{Number: 3, State: Faulted, Title: hostile}}
	r.DetailsURL = "javascript:alert(1)"
	run := Render(r)
	checkLimits(t, run)
	if run.DetailsURL != "" {
		t.Errorf("details URL %q", run.DetailsURL)
	}
	for _, body := range []string{run.Summary, run.Text} {
		rest := outside(t, body)
		for _, active := range []string{"@", "![", "<", "heading", "|", "example.com"} {
			if strings.Contains(rest, active) {
				t.Errorf("%q is active in %q", active, rest)
			}
		}
	}
}

func TestCodeSpan(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "`plain`", "a`b": "`` a`b ``", "``": "``` `` ```", "": "(empty)", " \t": "` \\t`", "  ": "(empty)", "a\nb": "`a\\nb`",
	} {
		if got := code(in, 100); got != want {
			t.Errorf("code(%q) = %q, want %q", in, got, want)
		}
	}
	if got := code(strings.Repeat("é", 100), 20); len(got) > 22 || !utf8.ValidString(got) || !strings.HasSuffix(got, "…`") {
		t.Errorf("long value: %q", got)
	}
}

// checkLimits holds a run to GitHub's limits and to our vocabulary.
func checkLimits(t *testing.T, run Run) {
	t.Helper()
	for name, s := range map[string]string{"summary": run.Summary, "text": run.Text, "title": run.Title} {
		if len(s) > 65_535 || !utf8.ValidString(s) {
			t.Errorf("%s: %d bytes, valid %v", name, len(s), utf8.ValidString(s))
		}
		if i := strings.IndexFunc(s, func(r rune) bool {
			return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
		}); i >= 0 {
			t.Errorf("%s has the control character %q", name, s[i:i+1])
		}
	}
	if run.Title == "" || len(run.Title) > maxTitleBytes || strings.Contains(run.Title, "\n") {
		t.Errorf("title %q", run.Title)
	}
	if run.Summary == "" || len(run.Summary) > maxBody || len(run.Text) > maxBody {
		t.Errorf("summary of %d and text of %d bytes", len(run.Summary), len(run.Text))
	}
	if !slices.Contains([]string{"queued", "in_progress", "completed"}, run.Status) {
		t.Errorf("status %q", run.Status)
	}
	if run.Status == "completed" != slices.Contains([]string{Success, Failure, TimedOut, CancelledRun, ActionRequired}, run.Conclusion) {
		t.Errorf("status %q with conclusion %q", run.Status, run.Conclusion)
	}
	for _, a := range run.Actions {
		if len(a.Label) > 20 || len(a.Identifier) > 20 || len(a.Description) > 40 {
			t.Errorf("action too long: %+v", a)
		}
	}
}

// outside returns what of a Markdown text stands outside of fences and code
// spans, read after CommonMark: a fence ends with a run at least as long as the
// one that opened it, a span with a run exactly as long.
func outside(t *testing.T, body string) string {
	t.Helper()
	var rest strings.Builder
	open := 0
	for line := range strings.Lines(body) {
		n := len(line) - len(strings.TrimLeft(line, "`"))
		switch {
		case open == 0 && n >= 3 && !strings.Contains(line[n:], "`"):
			open = n
		case open > 0:
			if n >= open && strings.TrimSpace(line[n:]) == "" {
				open = 0
			}
		default:
			rest.WriteString(outsideSpans(line))
		}
	}
	if open != 0 {
		t.Error("a fence is not closed")
	}
	return rest.String()
}

func outsideSpans(line string) string {
	var rest strings.Builder
	for line != "" {
		n := len(line) - len(strings.TrimLeft(line, "`"))
		if n == 0 {
			i := strings.IndexByte(line+"`", '`')
			rest.WriteString(line[:i])
			line = line[i:]
			continue
		}
		end := closing(line[n:], n)
		if end < 0 { // no span: the backticks are text
			rest.WriteString(line[:n])
			line = line[n:]
			continue
		}
		line = line[n+end+n:]
	}
	return rest.String()
}

// closing finds the next run of exactly n backticks.
func closing(s string, n int) int {
	for i := 0; i < len(s); {
		run := len(s[i:]) - len(strings.TrimLeft(s[i:], "`"))
		if run == n {
			return i
		}
		i += max(run, 1)
	}
	return -1
}

// FuzzRender: whatever the guest and our records contain, the run stays within
// the limits and no hostile text is active. The marker stands for a mention.
func FuzzRender(f *testing.F) {
	f.Add([]byte("\x1b[31mred\x1b[0m @m"), "a`b|c\n", "docs/\u202ex", uint8(3))
	f.Add([]byte(strings.Repeat("`", 300)+"\n~~~\n"), "``", "```", uint8(4))
	f.Add(bytes.Repeat([]byte{0xff, 0x1b, 0x5d}, 3000), "\\|", "\r", uint8(9))
	states := []State{Queued, InProgress, Passed, Contradicted, Faulted, Refused, Superseded, Cancelled, OurFault, "else"}
	f.Fuzz(func(t *testing.T, output []byte, value, path string, n uint8) {
		const marker = "@octocat<img>"
		r := report(states[int(n)%len(states)])
		r.StdoutTail = append(slices.Clone(output), marker...)
		r.StderrTail = append([]byte(marker), output...)
		r.StdoutBytes = int64(len(output)) * 3
		r.Job.Argv = []string{value, marker + value}
		r.Job.Cwd = path + marker
		r.Fault = wire.Fault{Kind: value + marker, Path: path + marker, Detail: marker + value}
		r.By, r.SignerID, r.DetailsURL = marker+value, path+marker, value
		r.OtherResults = []OtherResult{{Number: 9, State: r.State, Title: marker + path}}
		run := Render(r)
		checkLimits(t, run)
		if rest := outside(t, run.Summary) + outside(t, run.Text); strings.ContainsAny(rest, "@<") {
			t.Fatalf("active text: %q", rest)
		}
	})
}

// FuzzPlainStream: no control sequence survives, and what is plain is kept.
func FuzzPlainStream(f *testing.F) {
	f.Add([]byte("a\x1b[31mb\x1b]0;t\x07\x9b\xc2\x9b"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := plainStream(raw)
		if !utf8.ValidString(s) || strings.ContainsAny(s, "\x1b\x00\r\x08\u009b\u202e") {
			t.Fatalf("plainStream(%q) = %q", raw, s)
		}
		if again := plainStream([]byte(s)); longestRun(s) > maxBackticks || again != s {
			t.Fatalf("not stable: %q, then %q", s, again)
		}
	})
}
