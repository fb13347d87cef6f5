package confine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
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

	Stdin  io.Reader // nil: /dev/null; an *os.File is handed over as it is
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

// Fixed environment of every tool: what a Spec's Env does not set itself.
const (
	toolPath = "/usr/local/bin:/usr/bin:/bin"
	toolHome = "/nonexistent"
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
	Signal int    // the signal that ended it, or 0
	Stderr string // its beginning, bounded, as the tool wrote it: escape before showing
}

func (e *ExitError) Error() string {
	how := fmt.Sprintf("exit code %d", e.Code)
	if e.Signal != 0 {
		how = fmt.Sprintf("signal %d", e.Signal)
	}
	return fmt.Sprintf("%s failed (%s): %q", e.Tool, how, e.Stderr)
}

// Run starts the tool, waits for it and for everything it started, and returns
// an *ExitError, ErrOutput, ErrTimeout or the context's error. When it returns,
// nothing that the tool started is alive.
func Run(ctx context.Context, spec Spec) error {
	_, err := runReported(ctx, spec)
	return err
}

func runReported(ctx context.Context, spec Spec) (Controls, error) {
	spec.setDefaults()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var out io.Writer
	if spec.Stdout != nil {
		out = &cappedWriter{w: spec.Stdout, left: spec.MaxStdout, over: cancel}
	}
	r, err := start(ctx, spec, stdio{in: spec.Stdin, out: out})
	if err != nil {
		return Controls{}, err
	}
	return r.wait()
}

func (s *Spec) check() error {
	if len(s.Argv) == 0 || s.Argv[0] == "" || strings.Contains(s.Argv[0], "/") {
		return errors.New("confine: Argv[0] must be a plain program name")
	}
	for _, p := range append(append([]string{}, s.ReadOnly...), s.ReadWrite...) {
		if !filepath.IsAbs(p) || filepath.Clean(p) != p || p == "/" {
			return fmt.Errorf("confine: path %q must be absolute and clean", p)
		}
	}
	if s.Dir != "" && !s.sees(s.Dir) {
		return fmt.Errorf("confine: working directory %q is below none of the given directories", s.Dir)
	}
	for _, e := range s.Env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
			return errors.New("confine: an environment entry is not NAME=VALUE")
		}
	}
	for _, text := range append(append([]string{}, s.Argv...), s.Env...) {
		if strings.Contains(text, "\x00") {
			return errors.New("confine: an argument or environment entry contains NUL")
		}
	}
	return nil
}

func (s *Spec) sees(path string) bool {
	for _, p := range append(append([]string{}, s.ReadOnly...), s.ReadWrite...) {
		if path == p || strings.HasPrefix(path, p+"/") {
			return true
		}
	}
	return false
}

// environment is Env after what confine sets itself, where Env does not.
func (s *Spec) environment() []string {
	var env []string
	for _, e := range []string{"PATH=" + toolPath, "HOME=" + toolHome, "LC_ALL=C"} {
		name, _, _ := strings.Cut(e, "=")
		if !hasName(s.Env, name) {
			env = append(env, e)
		}
	}
	return append(env, s.Env...)
}

func hasName(env []string, name string) bool {
	for _, e := range env {
		if strings.HasPrefix(e, name+"=") {
			return true
		}
	}
	return false
}

func (s *Spec) setDefaults() {
	setDefault(&s.MaxStdout, DefaultMaxStdout)
	setDefault(&s.MaxFileBytes, DefaultMaxFileBytes)
	setDefault(&s.MaxMemory, DefaultMaxMemory)
	if s.Timeout == 0 {
		s.Timeout = DefaultTimeout
	}
}

func setDefault(value *int64, def int64) {
	if *value == 0 {
		*value = def
	}
}
