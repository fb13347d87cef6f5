package checks

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"underwrite/runner/wire"
)

// The conclusions that are used. Neutral and skipped are not among them:
// GitHub accepts both for a required check.
const (
	Success        = "success"
	Failure        = "failure"
	TimedOut       = "timed_out"
	CancelledRun   = "cancelled"
	ActionRequired = "action_required"
)

// verdict is what a check run says in one line.
type verdict struct {
	status     string // "queued", "in_progress", "completed"
	conclusion string // only of completed
	title      string
}

// Verdict is what a check run says at a glance.
type Verdict struct {
	Status     string // "queued", "in_progress", "completed"
	Conclusion string // empty unless completed
	Title      string // one line, Visible, at most 200 bytes
}

// Judge is the part of Render that needs no streams.
func Judge(r Report) Verdict { return worst(judge(r), r.OtherResults).visible() }

func (v verdict) visible() Verdict {
	return Verdict{Status: v.status, Conclusion: v.conclusion, Title: firstBytes(Visible(v.title, false), maxTitleBytes)}
}

func completed(conclusion, format string, args ...any) verdict {
	return verdict{status: "completed", conclusion: conclusion, title: fmt.Sprintf(format, args...)}
}

// judge maps a report to its verdict, alone, without other pull requests
// (table in docs/architecture.md). What it does not know is our own fault.
func judge(r Report) verdict {
	switch r.State {
	case Queued:
		return verdict{status: "queued", title: "queued"}
	case InProgress:
		return verdict{status: "in_progress", title: phaseTitle(r.Phase)}
	case Passed:
		return completed(Success, "passed: exit %d as expected%s", r.ExitCode, duration(r))
	case Contradicted:
		return completed(Failure, "exit %d, expected %d", r.ExitCode, r.Predicted)
	case Faulted:
		return judgeFault(r)
	case Refused:
		return completed(Failure, "cannot run: %s", reason(r.Fault, "the pull request cannot be frozen"))
	case Superseded:
		return completed(CancelledRun, "superseded by %s", shown(r.By, "a newer head"))
	case Cancelled:
		return judgeCancelled(r.By)
	case OurFault:
		return ourFault(reason(r.Fault, "internal error"))
	default:
		return ourFault("unknown state " + strconv.Quote(string(r.State)))
	}
}

// judgeFault maps the fault of a run without a receipt.
func judgeFault(r Report) verdict {
	f := r.Fault
	switch f.Kind {
	case wire.FaultWall:
		return completed(TimedOut, "timed out after %d s (wall limit)", limitOr(f, r.Limits.WallSeconds))
	case wire.FaultCPU:
		return completed(TimedOut, "timed out after %d s (CPU limit)", limitOr(f, r.Limits.CPUSeconds))
	case wire.FaultMemory:
		return completed(Failure, "out of memory (limit %s)", Size(limitOr(f, r.Limits.MemoryBytes)))
	case wire.FaultProcesses:
		return completed(Failure, "too many processes (limit %d)", limitOr(f, r.Limits.Processes))
	case wire.FaultWorkspace:
		if f.Detail == wire.DetailFiles {
			return completed(Failure, "workspace full (limit %d files)", f.Limit)
		}
		return completed(Failure, "workspace full (limit %s)", Size(limitOr(f, r.Limits.WorkspaceBytes)))
	case wire.FaultOutput:
		return completed(Failure, "too much output (limit %s)", Size(limitOr(f, r.Limits.OutputBytes)))
	case wire.FaultSignal:
		return completed(Failure, "killed by %s", signalName(f.Measured))
	case wire.FaultCancelled:
		return judgeCancelled(r.By)
	case wire.FaultExpired:
		return ourFault("the job could not start before its capability expired")
	case wire.FaultUnsupportedOutput:
		return completed(Failure, "unsupported output: %s", reason(f, "a file that a receipt cannot express"))
	case wire.FaultRefusedInput:
		return completed(Failure, "cannot run: %s", reason(f, "the tree is not supported"))
	case wire.FaultPolicy:
		return ourFault("not allowed by the gateway's policy: " + reason(f, "no reason given"))
	case wire.FaultInternal:
		return ourFault(reason(f, "internal error"))
	default:
		return ourFault("unknown fault " + reason(f, f.Kind))
	}
}

func judgeCancelled(by string) verdict {
	if by == "closed" {
		return completed(CancelledRun, "cancelled by closing the pull request")
	}
	return completed(CancelledRun, "cancelled by %s", shown(by, "an operator"))
}

func ourFault(why string) verdict { return completed(ActionRequired, "could not run: %s", why) }

// reason is the fault's detail, then its path, as in "symbolic link leaves the
// tree docs/a".
func reason(f wire.Fault, otherwise string) string {
	return strings.TrimSpace(firstBytes(shown(f.Detail, otherwise), maxTitleBytes/2) + " " + f.Path)
}

func shown(s, otherwise string) string {
	if strings.TrimSpace(s) == "" {
		return otherwise
	}
	return s
}

func limitOr(f wire.Fault, limit int64) int64 {
	if f.Limit > 0 {
		return f.Limit
	}
	return limit
}

func signalName(n int64) string {
	if n < 1 || n > 64 {
		return "a signal"
	}
	return fmt.Sprintf("signal %d (%s)", n, syscall.Signal(n))
}

// phaseTitles put the phases into words. The phase comes from the event
// stream: an unknown one is not shown.
var phaseTitles = map[string]string{
	wire.PhaseQueue:       "waiting for the gateway",
	wire.PhasePolicy:      "checking the request",
	wire.PhaseReserve:     "checking the request",
	wire.PhaseQuarantine:  "importing the source",
	wire.PhaseMaterialize: "writing the source tree",
	wire.PhaseMeasure:     "measuring the source tree",
	wire.PhaseCapability:  "signing the capability",
	wire.PhaseSandbox:     "starting the sandbox",
	wire.PhaseRun:         "running",
	wire.PhaseTeardown:    "tearing the sandbox down",
	wire.PhaseOutput:      "measuring the output tree",
	wire.PhaseReceipt:     "signing the receipt",
	wire.PhasePublish:     "publishing the evidence",
}

func phaseTitle(phase string) string { return shown(phaseTitles[phase], "preparing") }

// severity orders the conclusions for one that speaks for several pull
// requests. An unknown one is the worst.
func severity(conclusion string) int {
	order := map[string]int{Success: 0, CancelledRun: 1, ActionRequired: 2, TimedOut: 3, Failure: 4}
	if n, ok := order[conclusion]; ok {
		return n
	}
	return 5
}

// worst combines the report's own verdict with those of the other open pull
// requests of the same commit, for GitHub keys required checks by commit and
// name. A success is held back, in progress, while another result is
// outstanding; anything else stands by itself.
func worst(own verdict, others []OtherResult) verdict {
	if own.status != "completed" {
		return own
	}
	result, waiting := own, int64(0)
	for _, o := range others {
		v := judge(Report{State: o.State})
		if o.State == Faulted { // its kind is not known here, its title is
			v = completed(faultedConclusion(o.Title), "%s", o.Title)
		}
		if v.status != "completed" {
			waiting = o.Number
			continue
		}
		if severity(v.conclusion) > severity(result.conclusion) {
			result = completed(v.conclusion, "%s (pull request #%d has the same head)", shown(o.Title, v.title), o.Number)
		}
	}
	if result.conclusion == Success && waiting != 0 {
		return verdict{status: "in_progress", title: fmt.Sprintf("passed here, waiting for pull request #%d with the same head", waiting)}
	}
	return result
}

// faultedConclusion tells the two conclusions of a faulted run apart by the
// title that judgeFault gave it.
func faultedConclusion(title string) string {
	switch {
	case strings.HasPrefix(title, "timed out"):
		return TimedOut
	case strings.HasPrefix(title, "could not run"):
		return ActionRequired
	case strings.HasPrefix(title, "cancelled"):
		return CancelledRun
	}
	return Failure
}
