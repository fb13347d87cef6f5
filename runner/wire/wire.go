package wire

import "time"

// Status is the outcome of one handled request (protocol, "Linked
// implementation evidence transport").
type Status string

// The three outcomes, with the exit codes 0, 1 and 2 of `underwrite execute`.
const (
	Complete Status = "complete" // EvidenceDir holds the six files
	Retry    Status = "retry"    // the exact request and bundle must be tried again
	Failed   Status = "failed"   // this replay identity can never produce a receipt
)

// Outcome is the one JSON line on standard output. Version is 1; EvidenceDir
// is set for Complete, Reason for the others.
type Outcome struct {
	Version     int    `json:"version"`
	Status      Status `json:"status"`
	EvidenceDir string `json:"evidenceDir,omitempty"`
	Reason      string `json:"reason,omitempty"` // one line that a person can act on
}

// Event is one line of the event stream. It is never trusted: it serves
// people who watch and the choice of a check run's title when there is no
// receipt.
type Event struct {
	Time  time.Time `json:"time"`
	Phase string    `json:"phase,omitempty"` // a Phase constant, when a phase begins
	Usage *Usage    `json:"usage,omitempty"`
	Fault *Fault    `json:"fault,omitempty"` // why there will be no receipt
	// Stdout and Stderr carry the live output, bounded in bytes and rate.
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
}

// The phases of an execution, in their order.
const (
	PhaseQueue       = "queue" // only from a gateway: waiting for its turn
	PhasePolicy      = "policy"
	PhaseReserve     = "reserve"
	PhaseQuarantine  = "quarantine"
	PhaseMaterialize = "materialize"
	PhaseMeasure     = "measure-input"
	PhaseCapability  = "sign-capability"
	PhaseSandbox     = "sandbox"
	PhaseRun         = "run"
	PhaseTeardown    = "teardown"
	PhaseOutput      = "measure-output"
	PhaseReceipt     = "sign-receipt"
	PhasePublish     = "publish"
)

// Usage is what the job has used so far.
type Usage struct {
	WallMillis     int64 `json:"wallMillis"`
	CPUMillis      int64 `json:"cpuMillis"`
	MemoryBytes    int64 `json:"memoryBytes"`
	Processes      int64 `json:"processes"`
	WorkspaceBytes int64 `json:"workspaceBytes"`
	OutputBytes    int64 `json:"outputBytes"`
}

// Fault says why an execution has no receipt. Kind is a sandbox.FaultKind or
// one of the kinds below.
type Fault struct {
	Kind     string `json:"kind"`
	Path     string `json:"path,omitempty"` // escaped with strconv.Quote where it is not plain
	Detail   string `json:"detail,omitempty"`
	Measured int64  `json:"measured,omitempty"`
	Limit    int64  `json:"limit,omitempty"`
}

// The sandbox's fault kinds, for those who must not import it; the meaning of
// Measured and Limit is documented there.
const (
	FaultWall      = "wall"
	FaultCPU       = "cpu"
	FaultMemory    = "memory"
	FaultProcesses = "processes"
	FaultWorkspace = "workspace"
	FaultOutput    = "output"
	FaultSignal    = "signal"
	FaultCancelled = "cancelled"
	FaultExpired   = "expired"
)

// DetailFiles is the Detail of a FaultWorkspace whose Measured and Limit are
// files, directories and links, not bytes.
const DetailFiles = "files"

// Fault kinds beside those of the sandbox.
const (
	FaultRefusedInput      = "refused-input"      // hostile or unsupported tree, too large
	FaultUnsupportedOutput = "unsupported-output" // empty directory, hard link, special file
	FaultPolicy            = "policy"             // the gateway does not accept such a request
	FaultInternal          = "internal"           // our own fault
)

// Diagnostic is the signed statement about an attempt without a receipt
// (predicate type DiagnosticPredicate; it is not a protocol receipt).
type Diagnostic struct {
	Version    int    `json:"version"` // 1
	ExecutorID string `json:"executorId"`
	SessionID  string `json:"sessionId"`
	Challenge  string `json:"challenge"`
	Fault      Fault  `json:"fault"`
	Usage      Usage  `json:"usage"`
	IssuedAt   string `json:"issuedAt"` // protocol timestamp
}

// DiagnosticPredicate is the predicate type of a Diagnostic.
const DiagnosticPredicate = "urn:underwrite:diagnostic:v1"

// The six files of an evidence directory, and nothing else.
const (
	RequestFile    = "request.json"
	CapabilityFile = "capability.dsse.json"
	ReceiptFile    = "receipt.dsse.json"
	OutputFile     = "output.bundle"
	StdoutFile     = "stdout"
	StderrFile     = "stderr"
)

// EvidenceFiles lists the exact file set.
var EvidenceFiles = []string{RequestFile, CapabilityFile, ReceiptFile, OutputFile, StdoutFile, StderrFile}
