package checks

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"underwrite/attest"
)

// GitHub's limits, in bytes where they are about text. maxBody keeps a margin
// below the 65,535 bytes that summary and text may have each.
const (
	maxBody       = 65_000
	maxTitleBytes = 200
	maxTailBytes  = 128 << 10 // of a stream, looked at before it is made safe
	maxValueBytes = 1024      // one hostile value in the summary
	maxArgvBytes  = 8 << 10
	maxOthers     = 50
	maxURLBytes   = 2000
)

// NamePrefix begins the name of every configured check's run.
const NamePrefix = "underwrite/"

// RerunAction is the identifier of the Re-run button.
const RerunAction = "rerun"

// Render makes the check run of a report, after the table in
// docs/architecture.md. Whatever the report contains, the result is valid
// UTF-8 within GitHub's limits, and hostile text stands only inside code
// spans, fences and the plain-text title.
//
// While another open pull request of the same head commit has no result yet, a
// success stays in progress: render and post it again when that result is
// known.
func Render(r Report) Run {
	own := judge(r)
	v := worst(own, r.OtherResults)
	judged := v.visible()
	run := Run{
		Repo: r.Repo, Name: NamePrefix + r.Name, HeadSHA: r.HeadSHA, ExternalID: r.ExternalID,
		DetailsURL: safeURL(r.DetailsURL), Status: judged.Status, Conclusion: judged.Conclusion,
		Title:   judged.Title,
		Summary: summary(r, own, v), Text: text(r),
	}
	if v.status != "queued" {
		run.StartedAt = r.StartedAt
	}
	if v.status == "completed" {
		run.CompletedAt = r.FinishedAt
	}
	if v.conclusion == ActionRequired {
		run.Actions = []Action{{Label: "Re-run", Description: "Run this check again", Identifier: RerunAction}}
	}
	return run
}

func safeURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || len(s) > maxURLBytes || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return ""
	}
	return s
}

func summary(r Report, own, v verdict) string {
	var b strings.Builder
	fmt.Fprintf(&b, "**Result**: %s\n\n", code(v.title, maxTitleBytes))
	if others := others(r, own); others != "" {
		b.WriteString(others + "\n")
	}
	facts(&b, r)
	b.WriteString("\n" + ScopeSentence + "\n\n")
	b.WriteString(howToVerify(r))
	return b.String()
}

// others lists what each open pull request of the same head commit has.
func others(r Report, own verdict) string {
	if len(r.OtherResults) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("This commit heads several open pull requests; the worst result counts for all of them.\n\n")
	fmt.Fprintf(&b, "- pull request %d: %s\n", r.Number, code(own.title, maxTitleBytes))
	for i, o := range r.OtherResults {
		if i == maxOthers {
			fmt.Fprintf(&b, "- and %d more\n", len(r.OtherResults)-i)
			break
		}
		fmt.Fprintf(&b, "- pull request %d: %s\n", o.Number, code(shown(o.Title, string(o.State)), maxTitleBytes))
	}
	return b.String()
}

// facts lists what is known of the run. Absent values are left out.
func facts(b *strings.Builder, r Report) {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(b, "- **%s**: %s\n", name, value)
		}
	}
	line("Command", command(r.Job))
	line("Exit code", exitCode(r))
	line("Fault", fault(r))
	line("Limits", limits(r.Limits))
	line("Pull request", pullRequest(r))
	line("Head", digest(r.HeadSHA))
	line("Base", digest(r.Target.BaseSHA))
	line("Merge base", digest(r.Target.MergeBaseSHA))
	line("Diff (SHA-256)", digest(r.Target.DiffSHA256))
	line("Trusted context (SHA-256)", digest(r.Target.TrustedContextSHA256))
	line("Source bundle (SHA-256)", digest(r.Target.ObjectBundleSHA256))
	line("Input tree", digest(r.InputTree))
	line("Output tree", digest(r.OutputTree))
	line("Receipt (SHA-256)", digest(r.ReceiptSHA))
	line("Signer", digest(r.SignerID))
	line("Executor", digest(r.ExecutorID))
	line("Key", digest(r.KeyID))
	line("Execution", execution(r.Action))
	line("Job started", timestamp(r.StartedAt))
	line("Job finished", timestamp(r.FinishedAt))
}

func digest(s string) string {
	if s == "" {
		return ""
	}
	return code(s, maxValueBytes)
}

func command(j attest.Job) string {
	if len(j.Argv) == 0 {
		return ""
	}
	s := code(shellLine(j.Argv), maxArgvBytes)
	if j.Cwd != "" && j.Cwd != "." {
		s += " in " + code(j.Cwd, maxValueBytes)
	}
	return s
}

// CommandLine writes a command the way a shell reads it, made Visible, at most
// 8 KiB of it.
func CommandLine(argv []string) string {
	return firstBytes(Visible(shellLine(argv), false), maxArgvBytes)
}

func shellLine(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = shellWord(a)
	}
	return strings.Join(words, " ")
}

// shellWord quotes an argument the way a shell reads it.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./=:,@%+", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func exitCode(r Report) string {
	switch r.State {
	case Passed, Contradicted:
		return fmt.Sprintf("%d, predicted %d", r.ExitCode, r.Predicted)
	case Queued, InProgress:
		return fmt.Sprintf("predicted %d", r.Predicted)
	}
	return ""
}

func fault(r Report) string {
	f := r.Fault
	if f.Kind == "" && f.Detail == "" && f.Path == "" {
		return ""
	}
	var parts []string
	for _, s := range []string{f.Kind, f.Detail, f.Path} {
		if s != "" {
			parts = append(parts, digest(s))
		}
	}
	if f.Measured != 0 || f.Limit != 0 {
		parts = append(parts, fmt.Sprintf("measured %d, limit %d", f.Measured, f.Limit))
	}
	return strings.Join(parts, " ")
}

func limits(l attest.Limits) string {
	if l == (attest.Limits{}) {
		return ""
	}
	return fmt.Sprintf("wall %d s, CPU %d s, memory %s, processes %d, workspace %s, output %s",
		l.WallSeconds, l.CPUSeconds, Size(l.MemoryBytes), l.Processes, Size(l.WorkspaceBytes), Size(l.OutputBytes))
}

func pullRequest(r Report) string {
	if r.Repo == "" {
		return ""
	}
	return code(fmt.Sprintf("%s#%d", r.Repo, r.Number), maxValueBytes)
}

func execution(a attest.Action) string {
	if a == (attest.Action{}) {
		return ""
	}
	return fmt.Sprintf("seq %d, beat %d, attempt %d", a.Seq, a.Beat, a.Attempt)
}

func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000 UTC")
}

func duration(r Report) string {
	d := r.FinishedAt.Sub(r.StartedAt)
	if r.StartedAt.IsZero() || d < 0 {
		return ""
	}
	return fmt.Sprintf(", %.1f s", d.Seconds())
}

// Size writes a number of bytes in the largest binary unit that divides it.
func Size(n int64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i < len(units)-1 {
		n /= 1024
		i++
	}
	return fmt.Sprintf("%d %s", n, units[i])
}

// NoReceipt says why a run that is over has no receipt.
const NoReceipt = "There is no receipt: one is signed only for a run that ended by itself, within its limits, in a sandbox that is proven gone."

// howToVerify says how a reader checks the receipt without trusting us or
// GitHub, or why there is none.
func howToVerify(r Report) string {
	switch r.State {
	case Passed, Contradicted:
	case Queued, InProgress:
		return ""
	default:
		return NoReceipt + "\n"
	}
	return "To verify offline, with the trusted profile and public key that you hold, run this on the evidence directory:\n\n" +
		fence(VerifyCommand(r, "SOURCE_BUNDLE", "EVIDENCE_DIR")) +
		"\nThe SHA-256 of its receipt.dsse.json is the receipt digest above.\n"
}

// VerifyCommand is the command line that verifies the receipt of a report
// offline, made Visible. PROFILE and KEY in it stand for what the reader must
// hold himself.
func VerifyCommand(r Report, sourceBundle, evidenceDir string) string {
	words := []string{"underwrite", "verify",
		"--signer", r.SignerID, "--executor", r.ExecutorID,
		"--repo", r.Repo, "--pr", fmt.Sprint(r.Number), "--head", r.HeadSHA,
		"--exit-code", fmt.Sprint(r.Predicted), "--profile", "PROFILE", "--key", "KEY",
		"--source-bundle", sourceBundle, evidenceDir}
	for i, w := range words {
		words[i] = firstBytes(shellWord(Visible(w, false)), maxValueBytes)
	}
	return strings.Join(words, " ")
}

// text shows the end of both streams. Each has half of the room, and what one
// does not need the other may use.
func text(r Report) string {
	out, err := PlainTail(r.StdoutTail, r.StdoutBytes), PlainTail(r.StderrTail, r.StderrBytes)
	if out == "" && err == "" {
		return ""
	}
	const frame = 2*(maxBackticks+1) + 256 // fence, caption
	room := maxBody - 2*frame
	outRoom := max(room/2, room-len(err))
	out = lastBytes(out, outRoom)
	err = lastBytes(err, room-len(out))
	return stream("Standard output", out, r.StdoutBytes, len(r.StdoutTail)) + "\n" +
		stream("Standard error", err, r.StderrBytes, len(r.StderrTail))
}

// PlainTail makes the end of a stream of total bytes readable: terminal
// sequences are removed, a carriage return ends its line, the rest is made
// Visible. At most the last 128 KiB of raw are looked at. A rune that the cut
// left incomplete at the start is dropped.
func PlainTail(raw []byte, total int64) string {
	cut := int64(len(raw)) < total
	if len(raw) > maxTailBytes {
		raw, cut = raw[len(raw)-maxTailBytes:], true
	}
	for i := 0; cut && i < 3 && len(raw) > 0 && raw[0]&0xc0 == 0x80; i++ {
		raw = raw[1:]
	}
	return plainStream(raw)
}

func stream(name, s string, total int64, have int) string {
	total = max(total, int64(have))
	if s == "" {
		return fmt.Sprintf("**%s** (%d bytes, nothing to show)\n", name, total)
	}
	return fmt.Sprintf("**%s** (%d bytes; its end, written by the job)\n\n%s", name, total, fence(s))
}
