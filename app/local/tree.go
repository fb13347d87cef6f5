package local

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"underwrite/attest/gittree"
)

// Tree returns the synthetic tree of the directory dir, as receipts name it.
func Tree(ctx context.Context, dir string) (string, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("tree: %w", err)
	}
	tree, _, err := gittree.Measure(ctx, real, gittree.DefaultLimits(Ceilings.WorkspaceBytes))
	var e *gittree.Error
	if errors.As(err, &e) && e.Kind == gittree.GitMetadata {
		return "", fmt.Errorf("%s has %q: a tree holds no git metadata, so measure a copy without it", dir, e.Path)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	return tree, nil
}
