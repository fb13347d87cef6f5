package quarantine

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"underwrite/attest"
)

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func mustRefuse(t *testing.T, err error) *RefusedError {
	t.Helper()
	var refused *RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("err = %v, want a *RefusedError", err)
	}
	return refused
}

func mustBeEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 0 {
		t.Errorf("%s holds %v, %v; want nothing", dir, entries, err)
	}
}

// repo is a repository in which tests make good and bad objects.
type repo struct {
	t      *testing.T
	dir    string
	format Format
}

func newRepo(t *testing.T, f Format) *repo {
	t.Helper()
	r := &repo{t: t, dir: filepath.Join(t.TempDir(), "made.git"), format: f}
	r.git(nil, "init", "--quiet", "--bare", "--template=", "--object-format="+string(f), r.dir)
	return r
}

// git runs git unconfined, on the test's own objects.
func (r *repo) git(stdin []byte, args ...string) []byte {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"--git-dir=" + r.dir}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"}
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("git %q: %v\n%s", args, err, &stderr)
	}
	return out
}

// object stores any bytes as an object, however malformed.
func (r *repo) object(kind string, data []byte) string {
	r.t.Helper()
	return strings.TrimSpace(string(r.git(data, "hash-object", "-w", "--literally", "-t", kind, "--stdin")))
}

func (r *repo) blob(content string) string { return r.object("blob", []byte(content)) }

// item is an entry of a tree as it is to stand there, mode included.
type item struct{ mode, name, id string }

// tree stores the items in the given order.
func (r *repo) tree(items ...item) string {
	r.t.Helper()
	var b bytes.Buffer
	for _, i := range items {
		id, err := hex.DecodeString(i.id)
		if err != nil {
			r.t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %s\x00%s", i.mode, i.name, id)
	}
	return r.object("tree", b.Bytes())
}

const testIdentity = "A <a@example.com> 1700000000 +0000"

func (r *repo) commit(tree string, parents ...string) string {
	r.t.Helper()
	return r.commitBy(testIdentity, tree, parents...)
}

func (r *repo) commitBy(identity, tree string, parents ...string) string {
	r.t.Helper()
	text := "tree " + tree + "\n"
	for _, p := range parents {
		text += "parent " + p + "\n"
	}
	return r.object("commit", []byte(text+"author "+identity+"\ncommitter "+identity+"\n\nmessage\n"))
}

// pack holds every object of the repository.
func (r *repo) pack() []byte {
	r.t.Helper()
	all := r.git(nil, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
	return r.git(all, "pack-objects", "--stdout", "--quiet")
}

// bundle writes a source bundle of everything, with the target that fits it.
func (r *repo) bundle(base, head string) (string, attest.Target) {
	r.t.Helper()
	h := Header{Version: 2, Format: SHA1, Refs: []Ref{{base, BaseRef}, {head, HeadRef}}}
	return r.store(append(h.Encode(), r.pack()...), base, head)
}

func (r *repo) store(data []byte, base, head string) (string, attest.Target) {
	r.t.Helper()
	path := filepath.Join(r.t.TempDir(), "source.bundle")
	write(r.t, path, data)
	sum := sha256.Sum256(data)
	return path, attest.Target{
		BaseSHA: base, HeadSHA: head,
		ObjectBundleSHA256: hex.EncodeToString(sum[:]), ObjectBundleBytes: int64(len(data)),
	}
}

// testLimits are wide enough for everything that is not about them.
var testLimits = Limits{BundleBytes: 64 << 20, WorkspaceBytes: 64 << 20}

// importHead takes a commit through the whole quarantine.
func (r *repo) importHead(head string, l Limits) (string, error) {
	r.t.Helper()
	path, target := r.bundle(head, head)
	return importAndMeasure(r.t, filepath.Join(r.t.TempDir(), "source.git"), path, target, l)
}
