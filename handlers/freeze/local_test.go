package freeze

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"underwrite/attest"
)

// localRepo is a repository with a base and a head on two branches.
func localRepo(t *testing.T) (r repository, base, head string) {
	t.Helper()
	r = newRepository(t, filepath.Join(t.TempDir(), "local.git"))
	// Two hunks that are near each other, with an empty line in both.
	between := "x\n\n" + strings.Repeat("x\n", 8) + "\nx\n"
	base = r.commit(r.tree(files{"a.py": "1\n" + between + "1\n", "CLAUDE.md": "Be kind.\n"}))
	head = r.commit(r.tree(files{"a.py": "2\n" + between + "2\n", "b.txt": "b\n", "CLAUDE.md": "Be kind.\n"}), base)
	r.ref("refs/heads/main", base)
	r.ref("refs/heads/feature", head)
	r.git("symbolic-ref", "HEAD", "refs/heads/feature")
	return r, base, head
}

func local(t *testing.T, dir, base, head string) (*Frozen, error) {
	t.Helper()
	return Local(t.Context(), dir, base, head, "local/widget", 1, outDir(t), Limits{})
}

func TestLocal(t *testing.T) {
	r, base, head := localRepo(t)
	out := outDir(t)
	frozen, err := Local(t.Context(), r.dir, "main", "HEAD", "local/widget", 1, out, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := listing(t, out), []string{"pr.bundle", "pr.diff", "trusted-context.json"}; !slices.Equal(got, want) {
		t.Errorf("output directory holds %q, want %q", got, want)
	}
	want := attest.Target{
		Version: 1, Kind: "github_pr", Repo: "local/widget", Number: 1, State: "open", BaseSHA: base, HeadSHA: head, HeadRef: "HEAD",
		MergeBaseSHA: base, ChangedFiles: 2,
		DiffSHA256: sha256sum(t, frozen.DiffPath), DiffBytes: size(t, frozen.DiffPath),
		TrustedContextSHA256: sha256sum(t, frozen.ContextPath), TrustedContextBytes: size(t, frozen.ContextPath),
		ObjectBundleSHA256: sha256sum(t, frozen.BundlePath), ObjectBundleBytes: size(t, frozen.BundlePath),
	}
	if got, want := asJSON(t, frozen.Target), asJSON(t, want); got != want {
		t.Errorf("target\n%s\nwant\n%s", got, want)
	}
	if !bytes.Equal(readFile(t, frozen.DiffPath), handDiff(r, base, head)) {
		t.Error("pr.diff is not what git prints")
	}
	checkBundle(t, frozen.BundlePath, base, head)
}

func TestLocalRevisions(t *testing.T) {
	r, base, head := localRepo(t)
	tagged := strings.TrimSpace(string(r.raw(fmt.Sprintf("object %s\ntype commit\ntag v1\ntagger Octo Cat <octo@example.com> 1700000000 +0000\n\nOne\n", head),
		"hash-object", "-t", "tag", "-w", "--stdin")))
	r.ref("refs/tags/v1", tagged)
	r.git("pack-refs", "--all")
	r.ref("refs/heads/loose", head)
	for _, revision := range []string{head, head[:12], "feature", "refs/heads/feature", "loose", "v1", "v1^{}", "HEAD", "main..", "@"} {
		t.Run(revision, func(t *testing.T) {
			frozen, err := local(t, r.dir, "feature~1", revision)
			if revision == "main.." {
				var refused *RefusedError
				if !errors.As(err, &refused) || refused.Path != revision {
					t.Errorf("error is %v, want a refusal", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if frozen.Target.BaseSHA != base || frozen.Target.HeadSHA != head || frozen.Target.HeadRef != revision {
				t.Errorf("target is %s", asJSON(t, frozen.Target))
			}
		})
	}
	for _, revision := range []string{"", "gone", "--all", "-n1", "HEAD^{tree}", strings.Repeat("1", 40), "@{1}", "feature:a.py", "a\x00b", ":/nothing like it"} {
		t.Run("refused "+revision, func(t *testing.T) {
			var refused *RefusedError
			if _, err := local(t, r.dir, "main", revision); !errors.As(err, &refused) {
				t.Errorf("error is %v, want a refusal", err)
			}
		})
	}
}

// TestLocalLayouts freezes the same commits out of repositories that lie
// differently on the disk.
func TestLocalLayouts(t *testing.T) {
	r, _, _ := localRepo(t)
	want, err := local(t, r.dir, "main", "feature")
	if err != nil {
		t.Fatal(err)
	}
	layouts := map[string]func(dir string){
		"work tree": func(dir string) { r.git("clone", "--quiet", "--no-local", ".", dir) },
		"borrowed objects": func(dir string) {
			r.git("clone", "--quiet", "--shared", ".", dir+"-1")
			r.git("clone", "--quiet", "--shared", dir+"-1", dir)
		},
		"linked work tree":    func(dir string) { r.git("worktree", "add", "--quiet", "--detach", dir, "feature") },
		"separate git dir":    func(dir string) { r.git("clone", "--quiet", "--separate-git-dir", dir+".git", ".", dir) },
		"behind a link":       func(dir string) { symlink(t, r.dir, dir) },
		"odd directory name ": func(dir string) { r.git("clone", "--quiet", "--bare", ".", dir) },
	}
	for name, make := range layouts {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			make(dir)
			head := "HEAD"
			got, err := local(t, dir, want.Target.BaseSHA, head)
			if err != nil {
				t.Fatal(err)
			}
			if got.Target.DiffSHA256 != want.Target.DiffSHA256 || got.Target.HeadSHA != want.Target.HeadSHA ||
				got.Target.TrustedContextSHA256 != want.Target.TrustedContextSHA256 {
				t.Errorf("target is\n%s\nwant\n%s", asJSON(t, got.Target), asJSON(t, want.Target))
			}
			checkBundle(t, got.BundlePath, want.Target.BaseSHA, want.Target.HeadSHA)
		})
	}
}

func symlink(t testing.TB, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// TestLocalIsOnlyRead plants all that could act when git works in a
// repository, and compares every byte and time before and after.
func TestLocalIsOnlyRead(t *testing.T) {
	r, base, head := localRepo(t)
	work := filepath.Join(t.TempDir(), "work")
	r.git("clone", "--quiet", ".", work)
	w := repository{t: t, dir: work, n: r.n}
	w.git("branch", "--quiet", "main", base)
	want := handDiff(w, base, head)

	ran := filepath.Join(t.TempDir(), "ran")
	run := "touch " + ran + "; false"
	config := "[core]\n\trepositoryformatversion = 0\n\tfsmonitor = " + run + "\n\thooksPath = hooks\n\tpager = " + run + "\n\tsshCommand = " + run +
		"\n\talternateRefsCommand = " + run + "\n\tattributesFile = " + filepath.Join(work, ".git/info/attributes") +
		"\n[diff]\n\texternal = " + run + "\n\tnoprefix = true\n\tcontext = 9\n\trenames = copies\n\tsuppressBlankEmpty = true\n[diff \"evil\"]\n\ttextconv = " + run + "\n\tcommand = " + run + "\n\tbinary = true\n" +
		"[color]\n\tui = always\n\tdiff = always\n[filter \"evil\"]\n\tsmudge = " + run + "\n\tclean = " + run + "\n[pack]\n\tpackSizeLimit = 1\n[uploadpack]\n\tpackObjectsHook = " + run +
		"\n[alias]\n\tdiff = !" + run + "\n\tbundle = !" + run + "\n[remote \"origin\"]\n\turl = ext::" + run + "\n\tpromisor = true\n[include]\n\tpath = evil.inc\n"
	write(t, filepath.Join(work, ".git/config"), config, 0o600)
	write(t, filepath.Join(work, ".git/evil.inc"), "[diff]\n\tinterHunkContext = 9\n", 0o600)
	write(t, filepath.Join(work, ".git/info/attributes"), "* diff=evil filter=evil\n", 0o600)
	write(t, filepath.Join(work, ".gitattributes"), "* diff=evil filter=evil\n", 0o600)
	write(t, filepath.Join(work, ".git/info/grafts"), head+"\n", 0o600)
	for _, hook := range []string{"reference-transaction", "post-checkout", "pre-push", "fsmonitor-watchman", "post-index-change"} {
		write(t, filepath.Join(work, ".git/hooks", hook), "#!/bin/sh\n"+run+"\n", 0o755)
	}
	write(t, filepath.Join(work, ".git/refs/replace", head), base+"\n", 0o600)

	before := fingerprint(t, work)
	frozen, err := local(t, work, "main", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	if after := fingerprint(t, work); after != before {
		t.Errorf("the repository changed:\n%s\nbecame\n%s", before, after)
	}
	if _, err := os.Lstat(ran); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a command of the repository's ran")
	}
	if frozen.Target.HeadSHA != head || frozen.Target.MergeBaseSHA != base {
		t.Errorf("target is %s", asJSON(t, frozen.Target))
	}
	if got := readFile(t, frozen.DiffPath); !bytes.Equal(got, want) {
		t.Errorf("diff is\n%s\nwant\n%s", got, want)
	}
	checkBundle(t, frozen.BundlePath, base, head)
}

// fingerprint is one line for each file: name, mode, size, time of change and content.
func fingerprint(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content := ""
		if info.Mode().IsRegular() {
			f, err := os.Open(p)
			if err != nil {
				return err
			}
			defer f.Close()
			h := sha256.New()
			if _, err := io.Copy(h, f); err != nil {
				return err
			}
			content = fmt.Sprintf("%x", h.Sum(nil))
		}
		_, err = fmt.Fprintf(&b, "%s %s %d %s %s\n", p, info.Mode(), info.Size(), info.ModTime(), content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestLocalRefuses(t *testing.T) {
	r, _, _ := localRepo(t)
	tests := []struct {
		name   string
		make   func(dir string)
		reason string
	}{
		{"shallow clone", func(dir string) { r.git("clone", "--quiet", "--bare", "--depth=1", "file://"+r.dir, dir) }, "shallow clone"},
		{"partial clone", func(dir string) {
			r.git("config", "uploadpack.allowFilter", "true")
			r.git("clone", "--quiet", "--bare", "--filter=blob:none", "file://"+r.dir, dir)
		}, "partial clone"},
		{"SHA-256 objects", func(dir string) { r.git("init", "--quiet", "--bare", "--object-format=sha256", dir) }, "SHA-1"},
		{"too many levels of alternates", func(dir string) {
			last := r.dir
			for n := range maxAlternates + 2 {
				next := fmt.Sprintf("%s-%d", dir, n)
				r.git("clone", "--quiet", "--bare", "--shared", last, next)
				last = next
			}
			symlink(t, last, dir)
		}, "too many levels"},
		{"no history in common", func(dir string) {
			r.git("clone", "--quiet", "--bare", ".", dir)
			other := repository{t: t, dir: dir, n: r.n}
			other.ref("refs/heads/main", other.commit(other.tree(files{"x": "x"})))
		}, "no commit in common"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "x")
			tt.make(dir)
			_, err := local(t, dir, "main", "feature")
			var refused *RefusedError
			if !errors.As(err, &refused) || !strings.Contains(refused.Reason, tt.reason) {
				t.Errorf("error is %v, want a refusal with %q", err, tt.reason)
			}
		})
	}
}

func TestLocalOfNoRepository(t *testing.T) {
	r, _, _ := localRepo(t)
	empty, pointer, fifo := t.TempDir(), t.TempDir(), t.TempDir()
	write(t, filepath.Join(pointer, ".git"), "nonsense", 0o600)
	symlink(t, "/dev/zero", filepath.Join(fifo, ".git"))
	for _, dir := range []string{empty, pointer, fifo, filepath.Join(empty, "gone"), filepath.Join(r.dir, "refs"), ""} {
		if _, err := local(t, dir, "main", "feature"); err == nil {
			t.Errorf("%q was taken for a repository", dir)
		}
	}
	for _, repo := range []string{"", "widget", "local/../widget", "local/wid get"} {
		if _, err := Local(t.Context(), r.dir, "main", "feature", repo, 1, outDir(t), Limits{}); err == nil {
			t.Errorf("the name %q was accepted", repo)
		}
	}
	if _, err := Local(t.Context(), r.dir, "main", "feature", "local/widget", 0, outDir(t), Limits{}); err == nil {
		t.Error("the number 0 was accepted")
	}
}
