package quarantine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"underwrite/runner/confine"
)

// importTimeout bounds each git process on hostile objects.
const importTimeout = 5 * time.Minute

// bigFile makes git stream blobs from this size on, in bytes, instead of
// holding them in memory.
const bigFile = "1m"

// newRepository writes an empty bare repository at dir, which must not exist:
// what git init would make of an empty template, with refs added by hand.
func newRepository(dir string, f Format, refs map[string]string) error {
	// Nothing in it outlives the execution, so nothing needs to reach the disk.
	config := "[core]\n\trepositoryformatversion = 0\n\tbare = true\n\tfsync = none\n"
	if f == SHA256 {
		config = "[core]\n\trepositoryformatversion = 1\n\tbare = true\n\tfsync = none\n[extensions]\n\tobjectFormat = sha256\n"
	}
	files := map[string]string{"HEAD": "ref: refs/underwrite/none\n", "config": config}
	for name, object := range refs {
		files[name] = object + "\n"
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, sub := range []string{"objects/pack", "objects/info", "refs/heads"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return err
		}
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// indexPack reads the pack from its file's position to its end into the
// repository. Given a regular file, git itself refuses anything after the pack.
func indexPack(ctx context.Context, gitDir string, pack *os.File, limit int64, strict bool) error {
	args := []string{"-c", "core.bigFileThreshold=" + bigFile, "index-pack", "--stdin", "--threads=1", fmt.Sprintf("--max-input-size=%d", limit)}
	if strict {
		args = append(args, "--strict")
	}
	spec := confine.Git(gitDir, args...)
	spec.Stdin, spec.Timeout = pack, importTimeout
	return gitRefused("pack", confine.Run(ctx, spec))
}

// checkConnected requires every object that the tips need to be there.
func checkConnected(ctx context.Context, gitDir string, tips ...string) error {
	spec := readOnlyGit(gitDir, append([]string{"rev-list", "--objects", "--quiet"}, tips...)...)
	spec.Timeout = importTimeout
	return gitRefused("history", confine.Run(ctx, spec))
}

// readOnlyGit is confine.Git for a command that only reads.
func readOnlyGit(gitDir string, args ...string) confine.Spec {
	spec := confine.Git(gitDir, args...)
	spec.ReadOnly, spec.ReadWrite = spec.ReadWrite, nil
	return spec
}
