package evidence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"underwrite/attest"
	"underwrite/runner/quarantine"
)

// Quarantine derives descriptors by importing bundles into throw-away
// repositories.
type Quarantine struct {
	Scratch      string // private directory
	SourceLimits quarantine.Limits
	ResultLimits quarantine.Limits // of output bundles
}

var _ Inspector = (*Quarantine)(nil)

// QuarantineFor bounds both bundles for a job with these limits. bundleBytes
// bounds the source bundle.
func QuarantineFor(scratch string, bundleBytes int64, l attest.Limits) *Quarantine {
	return &Quarantine{
		Scratch:      scratch,
		SourceLimits: quarantine.Limits{BundleBytes: bundleBytes, WorkspaceBytes: l.WorkspaceBytes},
		ResultLimits: quarantine.Limits{BundleBytes: LimitsFor(l).OutputBundle, WorkspaceBytes: l.WorkspaceBytes},
	}
}

// InputTree implements Inspector. A hostile or unsupported source is a
// *quarantine.RefusedError.
func (q *Quarantine) InputTree(ctx context.Context, bundlePath string, target attest.Target) (tree string, err error) {
	tree, _, err = q.Source(ctx, bundlePath, target, nil)
	return tree, err
}

// Source implements Inspector, with the errors of InputTree.
func (q *Quarantine) Source(ctx context.Context, bundlePath string, target attest.Target, cwds []string) (tree string, refused Refused, err error) {
	dir, err := os.MkdirTemp(q.Scratch, "source-*")
	if err != nil {
		return "", nil, fmt.Errorf("inspect source: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := quarantine.ImportSource(ctx, filepath.Join(dir, "source.git"), bundlePath, target, q.SourceLimits)
	if err != nil {
		return "", nil, err
	}
	t, err := s.Walk(ctx, s.Head, q.SourceLimits)
	if err != nil {
		return "", nil, err
	}
	refused = Refused{}
	for _, cwd := range cwds {
		var r *quarantine.RefusedError
		if err := t.CheckDirectory(cwd); errors.As(err, &r) {
			refused[cwd] = r
		} else if err != nil {
			return "", nil, err
		}
	}
	tree, err = s.GitTree(ctx, t)
	return tree, refused, err
}

// Output implements Inspector.
func (q *Quarantine) Output(ctx context.Context, bundlePath string) (b attest.Bundle, err error) {
	dir, err := os.MkdirTemp(q.Scratch, "output-*")
	if err != nil {
		return attest.Bundle{}, fmt.Errorf("inspect output: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return quarantine.VerifyOutput(ctx, bundlePath, dir, nil, q.ResultLimits)
}

func refused(err error) bool {
	var r *quarantine.RefusedError
	return errors.As(err, &r)
}
