package quarantine

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"underwrite/attest"
	"underwrite/attest/gittree"
)

func owner(t *testing.T, path string) (uid, gid int) {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	sys := st.Sys().(*syscall.Stat_t)
	return int(sys.Uid), int(sys.Gid)
}

// fill makes files below dir: a name ending in a slash is an empty directory,
// content beginning with "->" a symbolic link.
func fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, isLink := strings.CutPrefix(content, "->"); isLink {
			err = os.Symlink(target, path)
		} else if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o755)
		} else {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func pack(t *testing.T, dir string, l Limits) (string, attest.Bundle, error) {
	t.Helper()
	scratch := t.TempDir()
	path := filepath.Join(t.TempDir(), "output.bundle")
	b, err := PackOutput(t.Context(), dir, scratch, path, l)
	mustBeEmpty(t, scratch)
	if err != nil {
		mustBeEmpty(t, filepath.Dir(path))
	}
	return path, b, err
}

func TestPackOutput(t *testing.T) {
	noise := make([]byte, 3<<20)
	random := rand.NewChaCha8([32]byte{1})
	random.Read(noise)
	dir := t.TempDir()
	fill(t, dir, map[string]string{
		"a.txt": "one", "a/b/c": "one", "a/b/d": "two", "same": "one", "empty": "", "big": string(noise), "zeros": strings.Repeat("\x00", 1<<20),
		"link": "->../outside", "\xff\xfe": "x", "new\nline": "y", "sizes/15": strings.Repeat("s", 15), "sizes/16": strings.Repeat("s", 16),
		"sizes/2047": strings.Repeat("s", 2047), "sizes/2048": strings.Repeat("s", 2048), "copy/b/c": "one", "copy/b/d": "two",
	})
	os.Chmod(filepath.Join(dir, "same"), 0o755)
	path, got, err := pack(t, dir, testLimits)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	tree, _, err := gittree.Measure(t.Context(), dir, gittree.DefaultLimits(1<<30))
	if want := (attest.Bundle{GitTree: tree, SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(data))}); err != nil || got != want {
		t.Errorf("descriptor = %+v, want %+v, %v", got, want, err)
	}
	// Another git, unconfined and with its own idea of a clone, sees the same.
	clone := filepath.Join(t.TempDir(), "clone.git")
	r := &repo{t: t, dir: clone, format: SHA256}
	r.git(nil, "init", "--quiet", "--bare", "--template=", "--object-format=sha256", clone)
	r.git(nil, "bundle", "verify", "--quiet", path)
	r.git(nil, "fetch", "--quiet", path, OutputRef+":"+OutputRef)
	r.git(nil, "fsck", "--strict", "--full")
	if id := strings.TrimSpace(string(r.git(nil, "rev-parse", OutputRef+"^{tree}"))); id != tree {
		t.Errorf("git sees tree %s, want %s", id, tree)
	}
	const want = "author Underwrite Gateway <gateway@underwrite.invalid> 0 +0000\ncommitter Underwrite Gateway <gateway@underwrite.invalid> 0 +0000\n\nUnderwrite execution output\n"
	if commit := string(r.git(nil, "cat-file", "commit", OutputRef)); commit != "tree "+tree+"\n"+want {
		t.Errorf("commit = %q", commit)
	}
	if blob := r.git(nil, "cat-file", "blob", OutputRef+":big"); !bytes.Equal(blob, noise) {
		t.Error("the big file came out different")
	}
}

// TestPackOutputIsDeterministic packs equal trees that were made in another
// order, at another time, with other bits that do not count.
func TestPackOutputIsDeterministic(t *testing.T) {
	var first []byte
	for i := range 3 {
		dir := t.TempDir()
		for j := range 50 {
			k := (j*7 + i*13) % 50
			fill(t, dir, map[string]string{fmt.Sprintf("d%d/f%d", k%5, k): strings.Repeat("x", k*100)})
		}
		os.Chmod(filepath.Join(dir, "d0", "f0"), os.FileMode([]uint32{0o644, 0o600, 0o444}[i]))
		path, _, err := pack(t, dir, testLimits)
		if err != nil {
			t.Fatal(err)
		}
		data, _ := os.ReadFile(path)
		if first == nil {
			first = data
		}
		if !bytes.Equal(data, first) {
			t.Fatal("the same tree gave other bytes")
		}
	}
}

func TestUnsupportedOutput(t *testing.T) {
	tests := []struct {
		name   string
		make   func(t *testing.T, dir string)
		reason string
		path   string
	}{
		{"nothing", func(*testing.T, string) {}, "empty directory", ""},
		{"empty directory", files(map[string]string{"a/b/": "", "x": "1"}), "empty directory", "a/b"},
		{"hard link", func(t *testing.T, dir string) {
			fill(t, dir, map[string]string{"a/f": "1"})
			if err := os.Link(filepath.Join(dir, "a/f"), filepath.Join(dir, "a/g")); err != nil {
				t.Fatal(err)
			}
		}, "hard link", "a/f"},
		{"FIFO", func(t *testing.T, dir string) {
			if err := syscall.Mkfifo(filepath.Join(dir, "p"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "special file", "p"},
		{".git", files(map[string]string{"a/.git/config": "x"}), ".git", "a/.git"},
		{"git~1", files(map[string]string{"a/GIT~1": "x"}), "take for .git", "a/GIT~1"},
		{"HFS ignorable", files(map[string]string{".gi\u200dt/x": "x"}), "take for .git", ".gi\u200dt"},
		{".gitmodules link", files(map[string]string{"a/.gitmodules": "->x"}), "symbolic link", "a/.gitmodules"},
		{".gitmodules with a command", files(map[string]string{".gitmodules": "[submodule \"x\"]\n\tpath = x\n\turl = -uexec\n"}), "git refuses it", ""},
		{"too much", files(map[string]string{"big": strings.Repeat("x", 2000)}), "over the limit", "big"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			tt.make(t, dir)
			_, _, err := pack(t, dir, Limits{BundleBytes: 1 << 20, WorkspaceBytes: 1000})
			refused := mustRefuse(t, err)
			if !strings.Contains(refused.Reason, tt.reason) || refused.Path != tt.path {
				t.Errorf("refused with %q at %q, want %q at %q", refused.Reason, refused.Path, tt.reason, tt.path)
			}
		})
	}
}

func files(m map[string]string) func(*testing.T, string) {
	return func(t *testing.T, dir string) { fill(t, dir, m) }
}

func TestOutputBundleLimit(t *testing.T) {
	noise := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{2}).Read(noise)
	dir := t.TempDir()
	fill(t, dir, map[string]string{"noise": string(noise)})
	_, b, err := pack(t, dir, testLimits)
	if err != nil {
		t.Fatal(err)
	}
	l := testLimits
	l.BundleBytes = b.Bytes
	if _, _, err := pack(t, dir, l); err != nil {
		t.Errorf("exactly at the limit: %v", err)
	}
	l.BundleBytes--
	_, _, err = pack(t, dir, l)
	mustRefuse(t, err)
	l.BundleBytes = 1000
	_, _, err = pack(t, dir, l)
	mustRefuse(t, err)
}

func TestPackOutputReplacesNothing(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, map[string]string{"a": "1"})
	path := filepath.Join(t.TempDir(), "output.bundle")
	write(t, path, []byte("precious"))
	if _, err := PackOutput(t.Context(), dir, t.TempDir(), path, testLimits); err == nil {
		t.Error("an existing file was replaced")
	}
	if got, _ := os.ReadFile(path); string(got) != "precious" {
		t.Errorf("the existing file is %q now", got)
	}
	link := filepath.Join(t.TempDir(), "link")
	os.Symlink(dir, link)
	if _, _, err := pack(t, link, testLimits); err == nil {
		t.Error("a symbolic link was packed")
	}
}

// TestHostileOutputTrees: what a compromised gateway could send the controller.
func TestHostileOutputTrees(t *testing.T) {
	for name, entry := range map[string]item{
		"zero-padded mode": {"0100644", "a", ""}, "group-writable mode": {"100664", "a", ""}, "look-alike": {"100644", "git~1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepo(t, SHA256)
			entry.id = r.blob("x")
			commit := r.commit(r.tree(entry))
			h := Header{Version: 3, Format: SHA256, Refs: []Ref{{commit, OutputRef}}}
			path := filepath.Join(t.TempDir(), "b")
			write(t, path, append(h.Encode(), r.pack()...))
			_, err := VerifyOutput(t.Context(), path, t.TempDir(), nil, testLimits)
			mustRefuse(t, err)
		})
	}
}

// TestSourceRoundTrip: a tree that goes in unchanged comes out as the same.
func TestSourceRoundTrip(t *testing.T) {
	work := t.TempDir()
	fill(t, work, map[string]string{"README.md": "hello\n", "src/a/main.go": "package main\n", "src/b/x": "->../a"})
	r := &repo{t: t, dir: filepath.Join(work, ".git"), format: SHA1}
	cmd := exec.Command("sh", "-c", "git init -q && git add -A && git -c user.name=A -c user.email=a@example.com commit -qm one && git rev-parse HEAD")
	cmd.Dir = work
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	head := strings.TrimSpace(string(out))
	path, target := r.bundle(head, head)
	s, err := ImportSource(t.Context(), filepath.Join(t.TempDir(), "s.git"), path, target, testLimits)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := s.Walk(t.Context(), s.Head, testLimits)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := s.Materialize(t.Context(), tree, dir, -1, -1); err != nil {
		t.Fatal(err)
	}
	in, err := s.GitTree(t.Context(), tree)
	if err != nil {
		t.Fatal(err)
	}
	_, b, err := pack(t, dir, testLimits)
	if err != nil || b.GitTree != in {
		t.Errorf("out = %s, %v, in = %s", b.GitTree, err, in)
	}
}
