package gittree_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"underwrite/app/bench/ratio"
	"underwrite/attest/gittree"
)

// BenchmarkTree measures 19,900 files of 65 MB in 100 directories, the most
// that version 1 allows, against hashing the same files with sha256sum.
func BenchmarkTree(b *testing.B) {
	const directories, files, size = 100, 199, 65_000_000 / (100 * 199)
	dir := b.TempDir()
	content := make([]byte, size)
	for d := range directories {
		sub := filepath.Join(dir, fmt.Sprintf("d%02d", d))
		if err := os.Mkdir(sub, 0o755); err != nil {
			b.Fatal(err)
		}
		for f := range files {
			copy(content, fmt.Sprintf("%d/%d", d, f))
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("f%03d", f)), content, 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	limits := gittree.DefaultLimits(1 << 30)
	anchor := func() error {
		return exec.Command("sh", "-c", `find "$1" -type f -print0 | xargs -0 sha256sum >/dev/null`, "sh", dir).Run()
	}
	ours := func() error {
		_, stats, err := gittree.Measure(b.Context(), dir, limits)
		if err == nil && stats.Files != directories*files {
			return fmt.Errorf("measured %d files", stats.Files)
		}
		return err
	}
	ratio.Compare(b, anchor, ours)
}
