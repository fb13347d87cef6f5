package web

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"underwrite/attest"
	"underwrite/handlers/checks"
	"underwrite/runner/wire"
	"underwrite/store"
)

// row is one line of a table: a name and what is known. Value is Visible.
type row struct{ Name, Value string }

// limitRow is a limit and what is known of its use.
type limitRow struct{ Name, Allowed, Used string }

// streamData is the end of a stream.
type streamData struct {
	Name  string
	Note  string
	Text  string // Visible
	Href  string // of all of it; empty if only the end is there
	Label string
}

type executionData struct {
	head
	Check    string
	Repo     string
	PR       int64
	Mark     mark
	Over     bool
	Own      *mark // of this pull request alone, if others have a say
	Others   []checks.OtherResult
	Result   []row
	Timeline []row
	Limits   []limitRow
	Streams  []streamData
	Identity []row
	Files    []file
	Archive  string   // address of the archive of the evidence
	Fetch    []string // commands
	Verify   string   // empty without a receipt
	NoProof  string   // why there is no receipt; empty while it is not over
	Scope    string
}

// executionPage shows all that is known of the latest execution of a check run.
func (s *site) executionPage(w http.ResponseWriter, r *http.Request) {
	run, others, err := s.Records.CheckRunByExternalID(r.Context(), r.PathValue("id"))
	if errors.Is(err, store.ErrNotFound) {
		s.notFound(w, r)
		return
	}
	if err != nil {
		s.failed(w, r, err)
		return
	}
	report, err := s.Reporter.Report(run, others)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	s.render(w, r, "execution.html", s.execution(run, report))
}

func (s *site) execution(run store.CheckRun, report checks.Report) executionData {
	verdict := checks.Judge(report)
	name := shown(checks.NamePrefix + report.Name)
	data := executionData{
		head:  s.head(fmt.Sprintf("%s · %s#%d", name, shown(report.Repo), report.Number)),
		Check: name, Repo: shown(report.Repo), PR: report.Number,
		Mark: markOf(verdict), Over: verdict.Status == "completed",
		Result: result(report), Timeline: timeline(run), Limits: limits(report, run.Evidence),
		Identity: identity(run, report), Scope: checks.ScopeSentence,
	}
	if !data.Over {
		data.Refresh = refreshSeconds
	}
	if len(report.OtherResults) > 0 {
		alone := report
		alone.OtherResults = nil
		own := markOf(checks.Judge(alone))
		data.Own = &own
		for _, o := range report.OtherResults {
			o.Title = shown(cmp.Or(o.Title, string(o.State)))
			data.Others = append(data.Others, o)
		}
	}
	data.Streams = []streamData{
		stream(run, "Standard output", wire.StdoutFile, report.StdoutTail, report.StdoutBytes),
		stream(run, "Standard error", wire.StderrFile, report.StderrTail, report.StderrBytes),
	}
	s.proof(&data, run, report)
	return data
}

// proof fills in what a reader needs to verify the receipt, or why there is none.
func (s *site) proof(data *executionData, run store.CheckRun, report checks.Report) {
	if run.Evidence == nil {
		if run.State.Terminal() {
			data.NoProof = checks.NoReceipt
		}
		return
	}
	data.Files = files(run, report.Target)
	base := ExecutionPath(run.ExternalID)
	data.Archive = base + "/" + archiveFile
	if s.ExternalURL != "" {
		data.Fetch = []string{
			fmt.Sprintf("curl -fsSo %s %s%s/%s", archiveFile, s.ExternalURL, base, archiveFile),
			fmt.Sprintf("curl -fsSo %s %s%s/%s", sourceFile, s.ExternalURL, base, sourceFile),
		}
	}
	data.Fetch = append(data.Fetch, "tar -xf "+archiveFile)
	data.Verify = checks.VerifyCommand(report, sourceFile, archiveDir)
}

// rows collects the rows that have a value.
type rows []row

func (r *rows) add(name, value string) {
	if value != "" {
		*r = append(*r, row{name, value})
	}
}

func result(r checks.Report) []row {
	var list rows
	list.add("Command", checks.CommandLine(r.Job.Argv))
	if r.Job.Cwd != "." {
		list.add("In directory", shown(r.Job.Cwd))
	}
	list.add("Predicted exit code", fmt.Sprint(r.Predicted))
	if r.State == checks.Passed || r.State == checks.Contradicted {
		list.add("Exit code", fmt.Sprint(r.ExitCode))
	}
	list.add("Fault", shown(r.Fault.Kind))
	list.add("Detail", shown(r.Fault.Detail))
	list.add("Path", shown(r.Fault.Path))
	list.add("Superseded or cancelled by", shown(r.By))
	return list
}

// timeline lists the moments that are known, in their order. Those of the job
// are signed; they are by the gateway's clock.
func timeline(run store.CheckRun) []row {
	var list rows
	list.add("Pull request seen", instant(run.CreatedAt))
	x, e := run.Execution, run.Evidence
	if x != nil {
		list.add("Target frozen, number and challenge reserved", instant(x.ReservedAt))
		list.add("Given to the gateway", instant(x.StartedAt))
	}
	if e != nil {
		list.add("Job started (signed, the gateway's clock)", instant(e.StartedAt))
		list.add("Job ended (signed, the gateway's clock)", instant(e.FinishedAt))
		list.add("Evidence verified and recorded", instant(e.ConsumedAt))
	} else if x != nil {
		list.add("Execution over", instant(x.FinishedAt))
	}
	list.add("Result settled", instant(run.CompletedAt))
	return list
}

// instant is moment to the millisecond, since much of this happens within one
// second.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000 UTC")
}

// limits says of each limit what is known of its use. A receipt says that the
// job stayed within all of them; how far, only for what it measures.
func limits(r checks.Report, e *store.Evidence) []limitRow {
	l := r.Limits
	if l == (attest.Limits{}) {
		return nil
	}
	size := checks.Size
	seconds := func(n int64) string { return fmt.Sprintf("%d s", n) }
	list := []struct {
		name, kind string
		limit      int64
		unit       func(int64) string
	}{
		{"Wall time", wire.FaultWall, l.WallSeconds, seconds},
		{"CPU time", wire.FaultCPU, l.CPUSeconds, seconds},
		{"Memory", wire.FaultMemory, l.MemoryBytes, size},
		{"Processes and threads", wire.FaultProcesses, l.Processes, func(n int64) string { return fmt.Sprint(n) }},
		{"Workspace", wire.FaultWorkspace, l.WorkspaceBytes, size},
		{"Output of both streams", wire.FaultOutput, l.OutputBytes, size},
	}
	var rows []limitRow
	for _, x := range list {
		used := "not recorded"
		switch {
		case e != nil && x.kind == wire.FaultWall:
			used = seconds3(e.FinishedAt.Sub(e.StartedAt))
		case e != nil && x.kind == wire.FaultOutput:
			used = size(e.Stdout.Bytes + e.Stderr.Bytes)
		case e != nil:
			used = "within the limit"
		case r.Fault.Kind == x.kind && r.Fault.Detail == wire.DetailFiles:
			used = fmt.Sprintf("exceeded: %d files", r.Fault.Measured)
		case r.Fault.Kind == x.kind && r.Fault.Measured > 0:
			used = "exceeded: " + x.unit(r.Fault.Measured)
		case r.Fault.Kind == x.kind:
			used = "exceeded"
		}
		rows = append(rows, limitRow{x.name, x.unit(x.limit), used})
	}
	return rows
}

func seconds3(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()) }

// identity lists what exactly ran, and who says so. The challenge is shown once
// it can be of no use any more.
func identity(run store.CheckRun, r checks.Report) []row {
	var list rows
	list.add("Head commit", shown(r.HeadSHA))
	list.add("Base commit", shown(run.Session.BaseSHA))
	list.add("Merge base", shown(r.Target.MergeBaseSHA))
	list.add("Diff (SHA-256)", shown(r.Target.DiffSHA256))
	list.add("Trusted context (SHA-256)", shown(r.Target.TrustedContextSHA256))
	list.add("Source bundle (SHA-256)", shown(r.Target.ObjectBundleSHA256))
	list.add("Input tree", shown(r.InputTree))
	list.add("Output tree", shown(r.OutputTree))
	list.add("Receipt (SHA-256)", shown(r.ReceiptSHA))
	list.add("Signer", shown(r.SignerID))
	list.add("Executor", shown(r.ExecutorID))
	list.add("Key", shown(r.KeyID))
	list.add("Session", shown(run.Session.ID))
	if x := run.Execution; x != nil {
		list.add("Number in the session", fmt.Sprintf("seq %d, beat %d, attempt %d", x.Seq, x.Beat, x.Attempt))
		list.add("Request (SHA-256)", shown(x.RequestSHA256))
		if x.State.Terminal() {
			list.add("Challenge", shown(x.Challenge))
		}
	}
	return list
}

// stream prepares the end of one stream.
func stream(run store.CheckRun, name, file string, raw []byte, total int64) streamData {
	total = max(total, int64(len(raw)))
	d := streamData{Name: name, Text: checks.PlainTail(raw, total), Label: file}
	switch {
	case run.Evidence != nil && total == int64(len(raw)):
		d.Note = fmt.Sprintf("%d bytes", total)
	case run.Evidence != nil:
		d.Note = fmt.Sprintf("%d bytes, of which these are the last %d", total, len(raw))
	case d.Text != "":
		d.Note = "what the gateway reported last; not signed"
	case !run.State.Terminal():
		d.Note = "shown when the execution is over"
	default:
		d.Note = "nothing was recorded"
	}
	if run.Evidence != nil {
		d.Href = ExecutionPath(run.ExternalID) + "/" + file
	}
	return d
}
