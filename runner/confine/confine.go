package confine

import (
	"context"
	"errors"
	"io"
	"time"
)

// Spec is one confined tool run.
type Spec struct {
	Argv      []string // Argv[0] is looked up in the fixed PATH, e.g. "git"
	Dir       string   // working directory; must be below one of ReadWrite or ReadOnly
	Env       []string // complete environment of the tool, beside what confine sets itself
	ReadOnly  []string // directories and files it may read, beside the system's programs and libraries
	ReadWrite []string // directories it may change
	Network   bool     // only a fetch sets it

	Stdin  io.Reader // nil: /dev/null
	Stdout io.Writer // nil: discarded
	// MaxStdout bounds Stdout in bytes: one more is ErrOutput. 0 means DefaultMaxStdout.
	MaxStdout int64

	Timeout      time.Duration // 0 means DefaultTimeout
	MaxFileBytes int64         // RLIMIT_FSIZE; 0 means DefaultMaxFileBytes
	MaxMemory    int64         // RLIMIT_AS in bytes; 0 means DefaultMaxMemory
}

// Defaults of a Spec.
const (
	DefaultTimeout      = 2 * time.Minute
	DefaultMaxStdout    = 64 << 20 // bytes
	DefaultMaxFileBytes = 4 << 30  // bytes
	DefaultMaxMemory    = 4 << 30  // bytes
	maxStderr           = 16 << 10 // bytes kept for the error message
)

// ErrOutput, ErrTimeout: the tool wrote or took more than its Spec allows.
var (
	ErrOutput  = errors.New("confined tool wrote too much")
	ErrTimeout = errors.New("confined tool took too long")
)

// ExitError is a tool that ended with another code than 0.
type ExitError struct {
	Tool   string
	Code   int    // exit code, or -1 for a signal
	Stderr string // its beginning, bounded, as the tool wrote it: escape before showing
}

func (e *ExitError) Error() string { return e.Tool + " failed: " + e.Stderr }

// Run starts the tool, waits for it and for everything it started, and returns
// an *ExitError, ErrOutput, ErrTimeout or the context's error.
func Run(ctx context.Context, spec Spec) error {
	return errors.New("confine: not built yet")
}

// Git returns a Spec that runs git hardened as DESIGN section 6 says: no system
// or global configuration, no hooks, no replace objects, no prompt. gitDir
// becomes --git-dir and is in ReadWrite.
func Git(gitDir string, args ...string) Spec {
	return Spec{}
}

// MaybeExec turns this process into the confined child if it was started as
// one, and never returns then. main and every TestMain of a package that uses
// confine call it first.
func MaybeExec() {}
