package freeze

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"underwrite/app/bench/ratio"
	"underwrite/attest/gittree"
	"underwrite/runner/quarantine"
)

// BenchmarkLargeFreeze freezes a pull request on a repository of 10,000 files
// and 50 MB with a warm mirror, and imports the bundle as an execution does,
// against `git bundle create` and `git index-pack` by hand.
func BenchmarkLargeFreeze(b *testing.B) {
	const fileCount, bytes = 10_000, 50_000_000
	h := newHub(b)
	base := importFiles(h, fileCount, bytes/fileCount)
	parts := strings.Fields(h.git("ls-tree", base, "d000/f00"))
	if len(parts) != 4 {
		b.Fatalf("ls-tree says %q", parts)
	}
	head := h.commit(addToTree(h, base, "changed", parts[2]), base)
	h.open(1, base, head, 1)
	f := h.freezer()
	mustFreeze(b, f, 1)
	limits := quarantine.Limits{
		BundleBytes: 1 << 30, WorkspaceBytes: 1 << 30, BlobBytes: 1 << 30, Entries: gittree.MaxEntries, Depth: gittree.MaxDepth,
		PathBytes: gittree.MaxPathBytes, TotalPathBytes: gittree.MaxTotalPathBytes,
	}
	n := 0
	next := func(kind string) (string, error) {
		n++
		dir := filepath.Join(b.TempDir(), fmt.Sprint(kind, n))
		return dir, os.Mkdir(dir, 0o700)
	}
	ratio.Compare(b, func() error {
		dir, err := next("hand")
		if err != nil {
			return err
		}
		return byHand(h, base, head, dir)
	}, func() error {
		dir, err := next("ours")
		if err != nil {
			return err
		}
		frozen, err := f.Freeze(b.Context(), testRepo, 1, dir)
		if err != nil {
			return err
		}
		_, err = quarantine.ImportSource(b.Context(), filepath.Join(dir, "git"), frozen.BundlePath, frozen.Target, limits)
		return err
	})
}

// byHand bundles the two commits and indexes the pack in an empty repository.
func byHand(h *hub, base, head, dir string) error {
	script := `set -e
git -C "$1" update-ref refs/bench/base "$2"
git -C "$1" update-ref refs/bench/head "$3"
git -C "$1" bundle create -q "$4/bundle" refs/bench/base refs/bench/head
git init -q --bare --template= "$4/git"
sed '1,/^$/d' "$4/bundle" | git -C "$4/git" index-pack --stdin >/dev/null`
	cmd := exec.Command("sh", "-c", script, "sh", h.dir, base, head, dir)
	cmd.Env = append(cleanEnvironment(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("by hand: %w\n%s", err, out)
	}
	return nil
}

// importFiles makes a commit with many files, half of whose bytes compress.
func importFiles(h *hub, count, size int) string {
	h.t.Helper()
	var in strings.Builder
	in.WriteString("commit refs/heads/main\ncommitter Octo Cat <octo@example.com> 1700000000 +0000\ndata 4\nbase\n")
	x := uint64(88172645463325252)
	content := make([]byte, size)
	for i := range count {
		for j := range content {
			content[j] = "the quick brown fox\n"[j%20]
			if j < size/2 {
				x ^= x << 13
				x ^= x >> 7
				x ^= x << 17
				content[j] = byte(x)
			}
		}
		fmt.Fprintf(&in, "M 100644 inline d%03d/f%02d\ndata %d\n%s\n", i/100, i%100, size, content)
	}
	h.raw(in.String(), "fast-import", "--quiet")
	return h.git("rev-parse", "refs/heads/main")
}

// addToTree returns the tree of a commit with one more file.
func addToTree(h *hub, commit, path, blob string) string {
	h.t.Helper()
	index := "GIT_INDEX_FILE=" + filepath.Join(h.t.TempDir(), "index")
	h.withEnv(index, "", "read-tree", commit)
	h.withEnv(index, "", "update-index", "--add", "--cacheinfo", "100644,"+blob+","+path)
	return strings.TrimSpace(h.withEnv(index, "", "write-tree"))
}
