// Package gvisor runs jobs inside gVisor, which is linked into this binary. It
// is the one package that imports gVisor.
package gvisor

import (
	"context"
	"errors"

	"underwrite/runner/sandbox"
)

// Options configure a Runtime. The zero value is usable.
type Options struct {
	// CgroupParent is the cgroup, as a path from the root of each hierarchy,
	// below which every job gets its own. Empty means sandbox.DefaultCgroupParent.
	CgroupParent string
}

// Runtime implements sandbox.Runtime.
type Runtime struct{ opts Options }

// New returns a runtime, or an error that names what the host lacks.
func New(opts Options) (*Runtime, error) { return &Runtime{opts}, nil }

// Version names gVisor and its version.
func (r *Runtime) Version() string { return "gvisor" }

// Run implements sandbox.Runtime.
func (r *Runtime) Run(ctx context.Context, spec sandbox.Spec) (sandbox.Result, error) {
	return sandbox.Result{}, errors.New("gvisor: not built yet")
}

// MaybeExec turns this process into one of the sandbox's own processes if it
// was started as one, and never returns then. main, and TestMain of a package
// that links this one, call it before anything else, even before flags.
func MaybeExec() {}
