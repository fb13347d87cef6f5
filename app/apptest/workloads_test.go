package apptest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"underwrite/app/apptest"
	"underwrite/attest"
)

// goEnvironment lets Go work without a network, a home directory or a module
// cache: for packages that import nothing but their own module and the standard
// library.
var goEnvironment = map[string]string{
	"PATH": "/usr/bin:/bin", "GOCACHE": "/tmp/go-build", "GOPATH": "/tmp/go", "GOPROXY": "off", "GOTOOLCHAIN": "local",
	"GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0",
}

// bigLimits are those of a compiler whose cache lies in /tmp, which is memory.
var bigLimits = attest.Limits{
	WallSeconds: 600, CPUSeconds: 600, MemoryBytes: 1536 * mib, Processes: 512, WorkspaceBytes: 128 * mib,
}

// workloads are real programs, with what their output must contain.
var workloads = map[string]struct {
	guest
	stdout []string
}{
	"pytest": {
		guest{args: []string{"-m", "pytest", "-q", "-p", "no:cacheprovider", "guests/python"}, limits: attest.Limits{MemoryBytes: 768 * mib, Processes: 128}},
		[]string{"10 passed"},
	},
	"go-test": {
		guest{program: "go", args: []string{"test", "-v", "./..."}, cwd: "guests/module", env: goEnvironment, limits: bigLimits},
		[]string{"--- PASS: TestWords", "--- PASS: TestItself", "ok  \texample.com/words/count"},
	},
	"node": {
		guest{program: "node", args: []string{"guests/node/work.js"}, limits: attest.Limits{MemoryBytes: 768 * mib, Processes: 128}},
		[]string{"workers 3 child 42\n"},
	},
	"pipeline": {
		guest{program: "sh", args: []string{"guests/pipeline.sh"}},
		[]string{"096dbdd1840f86a30f0fc95b5583b5a4f2f3600c6f3dc84e34a83e81ed37b87c  -\n1\nA+B\n"},
	},
	"git": {
		guest{program: "sh", args: []string{"guests/git.sh"}},
		[]string{"merged\none\ntwo\n3\n0001-two.patch\n"},
	},
}

// TestWorkloads has one gateway run real programs. Each receipt is verified.
func TestWorkloads(t *testing.T) {
	guests := map[string]guest{}
	for name, w := range workloads {
		guests[name] = w.guest
	}
	withoutTools(t, guests)
	r := newResident(t, guests)
	for name, w := range workloads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, ok := guests[name]; !ok {
				t.Skipf("%s is not installed", programOf(w.program))
			}
			e := r.passes(t, name, nil)
			for _, want := range w.stdout {
				if !strings.Contains(e.stdout, want) {
					t.Errorf("stdout has no %q:\n%s%s", want, e.stdout, e.stderr)
				}
			}
		})
	}
	t.Run("own history", func(t *testing.T) { t.Parallel(); testOwnHistory(t) })
}

// withoutTools removes guests whose program is missing, which CI must not lack.
func withoutTools(t *testing.T, guests map[string]guest) {
	t.Helper()
	maps.DeleteFunc(guests, func(name string, g guest) bool {
		_, err := os.Stat(programOf(g.program))
		if err != nil && os.Getenv("CI") == "true" {
			t.Fatalf("%s: %v", name, err)
		}
		return err != nil
	})
}

// ownProfile tests this project's package attest, as docs/local.md shows.
func ownProfile(t *testing.T) string {
	t.Helper()
	_, text, found := strings.Cut(string(readFile(t, "../../docs/local.md")), "    # go.yml\n")
	if !found {
		t.Fatal("docs/local.md shows no go.yml")
	}
	var profile strings.Builder
	for line := range strings.Lines(text) {
		line, found := strings.CutPrefix(line, "    ")
		if !found {
			break
		}
		profile.WriteString(strings.ReplaceAll(line, "/usr/local/go", goRoot()))
	}
	path := filepath.Join(t.TempDir(), "go.yml")
	must(t, os.WriteFile(path, []byte(profile.String()), 0o600))
	return path
}

// testOwnHistory proves two of this project's own commits with `underwrite
// prove` and verifies the evidence with `underwrite verify`.
func testOwnHistory(t *testing.T) {
	if _, err := os.Stat(programOf("go")); err != nil && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	repo, base := ownHistory(t)
	s := &site{dir: t.TempDir(), binary: apptest.Binary(t)}
	proved := s.command(t, "prove", "--repo", repo, "--base", base, "--head", "HEAD", "--profile", ownProfile(t),
		"--evidence-dir", s.path("out"), "--json")
	var proof struct {
		Verdict                                              string
		Evidence_Dir, Public_Key, Source_Bundle, Expectation string
		Base, Head, Input_Tree, Output_Tree, Receipt_SHA256  string
	}
	must(t, json.Unmarshal(proved, &proof))
	out := string(readFile(t, filepath.Join(proof.Evidence_Dir, "stdout")))
	if proof.Verdict != "passed" || !strings.HasPrefix(out, "ok  \tunderwrite/attest\t") {
		t.Errorf("proof = %s, stdout %q", proved, out)
	}
	if proof.Base == proof.Head || proof.Input_Tree != proof.Output_Tree {
		t.Errorf("proof = %s: want two commits, and a test that changes nothing", proved)
	}
	verified := s.command(t, "verify", proof.Evidence_Dir, "--key", proof.Public_Key, "--source-bundle", proof.Source_Bundle, "--expect", proof.Expectation)
	if !strings.HasPrefix(string(verified), "verified: ") {
		t.Errorf("verify says %s", verified)
	}
}

// ownHistory returns a repository with this project's own commits and the one
// before HEAD. A checkout without a history is copied into two commits.
func ownHistory(t *testing.T) (repo, base string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	must(t, err)
	cmd := exec.Command("git", "-c", "safe.directory=*", "-C", root, "rev-parse", "--is-shallow-repository", "HEAD~1^{commit}")
	out, err := cmd.Output()
	if fields := strings.Fields(string(out)); err == nil && len(fields) == 2 && fields[0] == "false" {
		return root, fields[1]
	}
	t.Logf("this checkout has no history (%q, %v)", out, err)
	return copyOfCheckout(t, root), "HEAD~1"
}

// copyOfCheckout makes a repository of the checkout's files: without attest
// first, then with it.
func copyOfCheckout(t *testing.T, root string) string {
	t.Helper()
	repo := t.TempDir()
	must(t, git(repo, "init", "-q", "-b", "main"))
	must(t, copyTree(root, repo, func(path string) bool { return path != "attest" }))
	must(t, git(repo, "add", "--force", "."))
	must(t, git(repo, "commit", "-q", "-m", "base"))
	must(t, copyTree(filepath.Join(root, "attest"), filepath.Join(repo, "attest"), func(string) bool { return true }))
	must(t, git(repo, "add", "--force", "."))
	must(t, git(repo, "commit", "-q", "-m", "head"))
	return repo
}

// copyTree copies regular files and directories, without repositories and what
// make build leaves.
func copyTree(from, to string, want func(path string) bool) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case d.Name() == ".git" || rel == "bin" || !want(rel):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is no regular file", path)
		}
		b, err := os.ReadFile(path)
		return errors.Join(err, os.WriteFile(filepath.Join(to, rel), b, 0o644))
	})
}

// TestCopyOfCheckout: a checkout without a history has two commits too.
func TestCopyOfCheckout(t *testing.T) {
	repo := copyOfCheckout(t, filepath.Join("..", ".."))
	for revision, want := range map[string]bool{"HEAD~1:go.mod": true, "HEAD~1:attest": false, "HEAD:go.mod": true, "HEAD:attest/types.go": true} {
		if err := git(repo, "cat-file", "-e", revision); (err == nil) != want {
			t.Errorf("%s exists: %v, want %v", revision, err == nil, want)
		}
	}
}
