package checks

import (
	"context"
	"errors"
	"time"

	"underwrite/attest"
	"underwrite/runner/wire"
)

// State is where an execution stands, as its check run shows it.
type State string

// The states. Those from Passed on complete the check run.
const (
	Queued       State = "queued"
	InProgress   State = "in_progress"
	Passed       State = "passed"       // receipt valid, prediction met
	Contradicted State = "contradicted" // receipt valid, another exit code than predicted
	Faulted      State = "faulted"      // no receipt: Fault says why
	Refused      State = "refused"      // cannot be frozen or run: Fault says why
	Superseded   State = "superseded"   // By is the newer head SHA
	Cancelled    State = "cancelled"    // By is who cancelled, or "closed"
	OurFault     State = "our_fault"    // after the retries
)

// Report is all that a check run says about one execution. Everything in it
// but the streams and Fault comes from verified evidence or our own records;
// streams and Fault are hostile.
type Report struct {
	Repo       string // base repository, owner/name
	Number     int64
	Name       string // configured name: the check run is underwrite/NAME
	HeadSHA    string
	ExternalID string // unique for the execution: finds the check run again
	DetailsURL string // page of the execution, may be empty

	State        State
	Phase        string // of InProgress, may be empty
	By           string
	Fault        wire.Fault
	Job          attest.Job
	Limits       attest.Limits
	Predicted    int64
	ExitCode     int64 // of Passed and Contradicted
	Target       attest.Target
	Action       attest.Action
	InputTree    string
	OutputTree   string
	ReceiptSHA   string // SHA-256 of the receipt envelope
	SignerID     string
	ExecutorID   string
	KeyID        string
	StartedAt    time.Time
	FinishedAt   time.Time
	StdoutTail   []byte // the end of the stream, hostile
	StderrTail   []byte
	StdoutBytes  int64 // of the whole stream
	StderrBytes  int64
	OtherResults []OtherResult // other open pull requests with the same head SHA
}

// OtherResult is the result of the same check for another pull request that
// the same SHA heads: the conclusion shown is the worst of all.
type OtherResult struct {
	Number int64
	State  State
	Title  string
}

// Run is a rendered check run, within GitHub's limits.
type Run struct {
	Repo        string
	Name        string
	HeadSHA     string
	ExternalID  string
	DetailsURL  string
	Status      string // "queued", "in_progress", "completed"
	Conclusion  string // empty unless completed
	Title       string
	Summary     string
	Text        string
	StartedAt   time.Time
	CompletedAt time.Time
	Actions     []Action
}

// Action is a button on a check run.
type Action struct{ Label, Description, Identifier string }

// ScopeSentence stands on every check run and receipt page.
const ScopeSentence = "A run proves that the pinned command ended so on this exact tree; it does not assess code quality, security or mergeworthiness."

// Poster creates and updates check runs.
type Poster interface {
	// Post brings the check run of run.ExternalID on run.HeadSHA to the given
	// state: it is created when it does not exist, updated else, and left alone
	// when it is completed already. knownID is the check run's id if the caller
	// has one, else 0. Repeating a call after a crash changes nothing.
	Post(ctx context.Context, run Run, knownID int64) (id int64, err error)
}

// ErrGone: the repository or its installation does not exist any more, or we
// may not write to it; retrying is of no use.
var ErrGone = errors.New("check run cannot be delivered")
