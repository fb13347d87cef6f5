package sandbox

import (
	"context"
	"os"
	"time"

	"underwrite/attest"
)

// Spec is one sealed run. Every path is absolute, exists and has no symbolic
// link in it; the caller owns all of them exclusively.
type Spec struct {
	ID         string        // unique on this host: [a-z0-9-]{1,64}
	StateDir   string        // private, empty directory for the runtime's own files
	RootFS     Root          // read-only root of the guest
	Workspace  string        // writable; see MountWorkspace
	Executable string        // host path of the pinned copy, bound read-only onto Job.Executable.Path
	Job        attest.Job    // argv, environment and cwd are executed exactly as given
	Limits     attest.Limits // each one enforced
	CPUs       int           // number of CPUs the guest may use, at least 1

	// Stdout and Stderr receive the raw streams (mode 0600 files owned by the
	// caller). They never receive more than Limits.OutputBytes together.
	Stdout, Stderr *os.File

	// BeforeLaunch is called when the sandbox stands, right before the job is
	// executed; an error means that the job never starts (the capability has
	// expired). It returns the trusted clock's time, which becomes StartedAt.
	BeforeLaunch func() (time.Time, error)

	// Progress, if not nil, is called with usage from time to time, never
	// concurrently, and must not block.
	Progress func(Usage)
}

// Root says what the guest sees as its read-only root.
type Root struct {
	Host bool   // bind the host's /usr and what belongs to it (demo, labelled)
	Path string // else: an unpacked image
	// Digest names the root for the executor's identity: "host" or sha256:….
	Digest string
}

// Usage is what was measured, in the units of attest.Limits.
type Usage struct {
	Wall           time.Duration // of the job alone
	CPU            time.Duration // job and all descendants
	MemoryBytes    int64         // peak
	Processes      int64         // peak number of tasks
	WorkspaceBytes int64         // peak seen
	OutputBytes    int64         // stdout and stderr together
}

// FaultKind says why a run has no receipt (DESIGN semantics, fault classes).
type FaultKind string

// The fault kinds. LimitX kinds carry Measured and Limit in the limit's unit.
const (
	FaultNone      FaultKind = ""
	FaultWall      FaultKind = "wall"      // seconds
	FaultCPU       FaultKind = "cpu"       // seconds
	FaultMemory    FaultKind = "memory"    // bytes
	FaultProcesses FaultKind = "processes" // tasks
	FaultWorkspace FaultKind = "workspace" // bytes
	FaultFiles     FaultKind = "files"     // the workspace has room for bytes, but for no more files
	FaultOutput    FaultKind = "output"    // bytes
	FaultSignal    FaultKind = "signal"    // Measured is the signal number
	FaultCancelled FaultKind = "cancelled" // the context was cancelled
	FaultExpired   FaultKind = "expired"   // BeforeLaunch refused
)

// Result is what one run measured. A receipt may be issued only if Exited,
// Fault is FaultNone and Teardown is proven.
type Result struct {
	Exited    bool
	ExitCode  int // 0 to 255, if Exited
	Fault     FaultKind
	Measured  int64
	Limit     int64
	StartedAt time.Time     // from BeforeLaunch; zero if the job never started
	Elapsed   time.Duration // monotonic, of the job alone
	Usage     Usage
	Teardown  bool // supervisor reaped, every cgroup empty and removed, both pipes at EOF
}

// Runtime runs one job sealed. An error means that the runtime itself failed
// (our own fault, never the job's); then the Result says only how far it got,
// and Teardown still tells whether everything is gone.
type Runtime interface {
	// Version names runtime and version, for the executor's identity.
	Version() string
	Run(ctx context.Context, spec Spec) (Result, error)
}
