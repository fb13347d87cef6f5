package freeze

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"underwrite/attest"
)

// handDiff is the diff as a person makes it by the protocol notes.
func handDiff(r repository, base, head string) []byte {
	return r.raw("", "diff", "--no-color", "--no-ext-diff", "--no-textconv", "--find-renames=50%", "--binary", "--full-index",
		"--diff-algorithm=myers", "--no-indent-heuristic", "--unified=3", "--src-prefix=a/", "--dst-prefix=b/", base+"..."+head, "--")
}

func TestFreeze(t *testing.T) {
	h := newHub(t)
	long := strings.Repeat("the same line\n", 50)
	root := h.commit(h.tree(files{"README.md": "hello\n", "old.txt": long, "AGENTS.md": "Be kind.\n"}))
	base := h.commit(h.tree(files{"README.md": "hello\n", "old.txt": long, "AGENTS.md": "Be kind.\n", "later.txt": "x"}), root)
	head := h.commit(h.tree(files{"README.md": "bye\n", "new.txt": long + "more\n", "AGENTS.md": "Be cruel.\n", "bin": "\x00\x01\x02"}), root)
	h.open(7, base, head, 4)

	f := h.freezer()
	out := outDir(t)
	frozen, err := f.Freeze(t.Context(), testRepo, 7, out)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := listing(t, out), []string{"pr.bundle", "pr.diff", "trusted-context.json"}; !slices.Equal(got, want) {
		t.Errorf("output directory holds %q, want %q", got, want)
	}
	id, name := int64(4711), "octo-fork/widget"
	want := attest.Target{
		Version: 1, Kind: "github_pr", Repo: testRepo, Number: 7, State: "open",
		BaseSHA: base, HeadSHA: head, HeadRepoID: &id, HeadRepo: &name, HeadRef: "feature",
		MergeBaseSHA: root, ChangedFiles: 4,
		DiffSHA256: sha256sum(t, filepath.Join(out, "pr.diff")), DiffBytes: size(t, filepath.Join(out, "pr.diff")),
		TrustedContextSHA256: sha256sum(t, filepath.Join(out, "trusted-context.json")), TrustedContextBytes: size(t, filepath.Join(out, "trusted-context.json")),
		ObjectBundleSHA256: sha256sum(t, filepath.Join(out, "pr.bundle")), ObjectBundleBytes: size(t, filepath.Join(out, "pr.bundle")),
	}
	if got, want := asJSON(t, frozen.Target), asJSON(t, want); got != want {
		t.Errorf("target\n%s\nwant\n%s", got, want)
	}
	if !bytes.Equal(readFile(t, frozen.DiffPath), handDiff(h.repository, base, head)) {
		t.Error("pr.diff is not what git prints")
	}
	wantContext := fmt.Sprintf(`{"base_sha":"%s","files":[{"blob_sha":"%s","content":"Be kind.\n","mode":"100644","path":"AGENTS.md"}],"version":1}`+"\n",
		base, h.git("rev-parse", base+":AGENTS.md"))
	if got := string(readFile(t, frozen.ContextPath)); got != wantContext {
		t.Errorf("trusted context\n%s\nwant\n%s", got, wantContext)
	}
	checkBundle(t, frozen.BundlePath, base, head)
}

func size(t testing.TB, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("%s has mode %o", path, info.Mode().Perm())
	}
	return info.Size()
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// checkBundle looks at a bundle with plain git, in a repository that has
// nothing else.
func checkBundle(t testing.TB, path, base, head string) {
	t.Helper()
	r := newRepository(t, filepath.Join(t.TempDir(), "bundle.git"))
	if got, want := r.git("bundle", "list-heads", path), base+" refs/underwrite/base\n"+head+" refs/underwrite/head"; got != want {
		t.Errorf("bundle has the heads\n%s\nwant\n%s", got, want)
	}
	header, _, _ := bytes.Cut(readFile(t, path), []byte("\n\n"))
	if want := fmt.Sprintf("# v2 git bundle\n%s refs/underwrite/base\n%s refs/underwrite/head", base, head); string(header) != want {
		t.Errorf("bundle header\n%s\nwant\n%s", header, want)
	}
	r.git("bundle", "verify", path)
	r.git("fetch", "--quiet", path, "refs/underwrite/*:refs/underwrite/*")
	r.git("rev-list", "--objects", "--quiet", base, head)
}

func TestFreezeIsRepeatable(t *testing.T) {
	h := newHub(t)
	h.simple(7)
	a, b := mustFreeze(t, h.freezer(), 7), mustFreeze(t, h.freezer(), 7)
	if asJSON(t, a.Target) != asJSON(t, b.Target) {
		t.Errorf("two freezes differ:\n%s\n%s", asJSON(t, a.Target), asJSON(t, b.Target))
	}
}

func TestFreezeOfUnusualMetadata(t *testing.T) {
	merged := "2026-08-29T12:00:00Z"
	tests := []struct {
		name   string
		change func(*PullRequest)
	}{
		{"deleted fork", func(pr *PullRequest) { pr.HeadRepo, pr.HeadRepoID = nil, nil }},
		{"merged", func(pr *PullRequest) { pr.State, pr.MergedAt = "closed", &merged }},
		{"closed", func(pr *PullRequest) { pr.State = "closed" }},
		{"odd branch name", func(pr *PullRequest) { pr.HeadRef = "größe/日本" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHub(t)
			h.simple(7)
			pr := h.pulls[7]
			tt.change(&pr)
			h.pulls[7] = pr
			got := mustFreeze(t, h.freezer(), 7).Target
			if got.State != pr.State || !equal(got.MergedAt, pr.MergedAt) || !equal(got.HeadRepo, pr.HeadRepo) ||
				!equal(got.HeadRepoID, pr.HeadRepoID) || got.HeadRef != pr.HeadRef {
				t.Errorf("target is %s", asJSON(t, got))
			}
		})
	}
}

// TestFreezeOfHostileContent freezes what must go through without effect.
func TestFreezeOfHostileContent(t *testing.T) {
	h := newHub(t)
	base := h.commit(h.tree(files{"a.py": "def f():\n    pass\n", "x.txt": "x\n"}))
	head := h.commit(h.tree(files{
		".gitattributes": "*.py diff=evil -text\n*.txt binary export-ignore\n",
		"a.py":           "def f():\n    return 1\n", "x.txt": "y\n",
		"line\nbreak": "1\n", "return\rcarriage": "2\n", "no-utf8-\xff\xfe": "3\n", "tab\tquote\"back\\slash": "4\n", "-rf": "5\n", "a\n\nb": "6\n",
	}), base)
	h.open(7, base, head, 9)
	frozen := mustFreeze(t, h.freezer(), 7)
	if frozen.Target.ChangedFiles != 9 {
		t.Errorf("changed files = %d, want 9", frozen.Target.ChangedFiles)
	}
	want := handDiff(h.repository, base, head)
	if !bytes.Contains(want, []byte("-x\n+y\n")) {
		t.Fatal("the expected diff does not show the text file: attributes were in effect here")
	}
	if !bytes.Equal(readFile(t, frozen.DiffPath), want) {
		t.Error("pr.diff is not what git prints")
	}
}

// TestFreezeOfOldHistory: old tools wrote directory modes with a leading zero,
// which a strict check refuses. Such history is honest.
func TestFreezeOfOldHistory(t *testing.T) {
	h := newHub(t)
	blob := h.git("rev-parse", h.commit(h.tree(files{"f": "1\n"}))+":f")
	sub := h.git("rev-parse", h.commit(h.tree(files{"f": "1\n"}))+"^{tree}")
	padded := strings.TrimSpace(string(h.raw(
		"040000 d\x00"+unhex(t, sub)+"100664 g\x00"+unhex(t, blob), "hash-object", "--literally", "-t", "tree", "-w", "--stdin")))
	root := h.commit(padded)
	base := h.commit(h.tree(files{"d/f": "1\n", "g": "1\n"}), root)
	head := h.commit(h.tree(files{"d/f": "2\n", "g": "1\n"}), base)
	h.open(7, base, head, 1)
	frozen := mustFreeze(t, h.freezer(), 7)
	if !bytes.Equal(readFile(t, frozen.DiffPath), handDiff(h.repository, base, head)) {
		t.Error("pr.diff is not what git prints")
	}
	r := newRepository(t, filepath.Join(t.TempDir(), "bundle.git"))
	r.git("fetch", "--quiet", frozen.BundlePath, "refs/underwrite/*:refs/underwrite/*")
	if got := r.git("rev-parse", root+"^{tree}"); got != padded {
		t.Errorf("tree of the old commit is %s, want %s", got, padded)
	}
}

func unhex(t testing.TB, s string) string {
	t.Helper()
	var b []byte
	if _, err := fmt.Sscanf(s, "%x", &b); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestFreezeIgnoresReplacements: refs/replace of the fetched repository can
// swap a tree for another.
func TestFreezeIgnoresReplacements(t *testing.T) {
	h := newHub(t)
	base, head := h.simple(7)
	other := h.commit(h.tree(files{"evil": "evil\n"}), base)
	h.git("replace", head, other)
	frozen := mustFreeze(t, h.freezer(), 7)
	want, err := plainGit(nil, "--no-replace-objects", "-C", h.dir, "diff", "--no-color", "--binary", "--full-index", base+"..."+head, "--")
	if err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, frozen.DiffPath); !bytes.Equal(got, want) || bytes.Contains(got, []byte("evil")) {
		t.Errorf("the diff follows refs/replace:\n%s", got)
	}
}

func TestFreezeRefuses(t *testing.T) {
	tests := []struct {
		name   string
		make   func(h *hub)
		limits Limits
		reason string // part of it
	}{
		{"changed files differ", func(h *hub) {
			h.simple(7)
			pr := h.pulls[7]
			pr.ChangedFiles = 2
			h.pulls[7] = pr
		}, Limits{}, "GitHub counts 2 changed files, git counts 1"},
		{"no common history", func(h *hub) {
			h.open(7, h.commit(h.tree(files{"a": "1"})), h.commit(h.tree(files{"a": "2"})), 1)
		}, Limits{}, "no commit in common"},
		{"two merge bases", func(h *hub) {
			root := h.commit(h.tree(files{"a": "1"}))
			l, r := h.commit(h.tree(files{"a": "2"}), root), h.commit(h.tree(files{"a": "3"}), root)
			h.open(7, h.commit(h.tree(files{"a": "4"}), l, r), h.commit(h.tree(files{"a": "5"}), r, l), 1)
		}, Limits{}, "2 merge bases"},
		{"diff too large", func(h *hub) {
			base := h.commit(h.tree(files{"a": "1\n"}))
			h.open(7, base, h.commit(h.tree(files{"a": strings.Repeat("0123456789abcde\n", 1<<20+1)}), base), 1)
		}, Limits{}, "the diff is larger than 16777216 bytes"},
		{"bundle too large", func(h *hub) {
			base := h.commit(h.tree(files{"a": "1\n"}))
			h.open(7, base, h.commit(h.tree(files{"a": noise(40_000)}), base), 1)
		}, Limits{BundleBytes: 30_000}, "the history of base and head is larger than 30000 bytes"},
		{"history far too large", func(h *hub) {
			base := h.commit(h.tree(files{"a": "1\n"}))
			h.open(7, base, h.commit(h.tree(files{"a": noise(400_000)}), base), 1)
		}, Limits{BundleBytes: 30_000}, "the history of base and head is larger than 30000 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHub(t)
			tt.make(h)
			f := h.freezer()
			f.Limits = tt.limits
			_, err := f.Freeze(t.Context(), testRepo, 7, outDir(t))
			var refused *RefusedError
			if !errors.As(err, &refused) || !strings.Contains(refused.Reason, tt.reason) {
				t.Errorf("error is %v, want a refusal with %q", err, tt.reason)
			}
		})
	}
}

// TestDiffOfExactlyTheLimit freezes at the limit and not one byte below it.
func TestDiffOfExactlyTheLimit(t *testing.T) {
	h := newHub(t)
	h.simple(7)
	f := h.freezer()
	f.Limits.DiffBytes = mustFreeze(t, f, 7).Target.DiffBytes
	mustFreeze(t, f, 7)
	f.Limits.DiffBytes--
	var refused *RefusedError
	if _, err := f.Freeze(t.Context(), testRepo, 7, outDir(t)); !errors.As(err, &refused) {
		t.Errorf("error is %v, want a refusal", err)
	}
}

// noise returns n bytes that do not compress.
func noise(n int) string {
	b := make([]byte, n)
	random := rand.NewChaCha8([32]byte{1})
	random.Read(b) //nolint:errcheck // never fails
	return string(b)
}

func TestFreezeOfAMovingPullRequest(t *testing.T) {
	tests := []struct {
		name string
		make func(h *hub, base, head string)
		want error
	}{
		{"head ref newer, metadata follows", func(h *hub, base, head string) {
			newer := h.commit(h.tree(files{"a.txt": "newer\n"}), head)
			h.ref("refs/pull/7/head", newer)
			h.onRead = func(n int) {
				if n == 2 {
					h.setPull(7, func(pr *PullRequest) { pr.HeadSHA = newer })
				}
			}
		}, ErrMoved},
		{"head ref older", func(h *hub, base, head string) { h.ref("refs/pull/7/head", base) }, ErrNotYet},
		{"head ref missing", func(h *hub, base, head string) { h.git("update-ref", "-d", "refs/pull/7/head") }, ErrNotYet},
		{"base unknown", func(h *hub, base, head string) {
			h.setPull(7, func(pr *PullRequest) { pr.BaseSHA = strings.Repeat("0123", 10) })
		}, ErrNotYet},
		{"retargeted between the readings", onSecondRead(func(pr *PullRequest) { pr.BaseSHA = pr.HeadSHA }), ErrMoved},
		{"closed between the readings", onSecondRead(func(pr *PullRequest) { pr.State = "closed" }), ErrMoved},
		{"merged between the readings", onSecondRead(func(pr *PullRequest) { now := "2026-08-29T12:00:00Z"; pr.State, pr.MergedAt = "closed", &now }), ErrMoved},
		{"fork deleted between the readings", onSecondRead(func(pr *PullRequest) { pr.HeadRepo, pr.HeadRepoID = nil, nil }), ErrMoved},
		{"fork renamed between the readings", onSecondRead(func(pr *PullRequest) { n := "octo-fork/gadget"; pr.HeadRepo = &n }), ErrMoved},
		{"fork replaced between the readings", onSecondRead(func(pr *PullRequest) { id := int64(4712); pr.HeadRepoID = &id }), ErrMoved},
		{"branch renamed between the readings", onSecondRead(func(pr *PullRequest) { pr.HeadRef = "other" }), ErrMoved},
		{"files counted anew between the readings", onSecondRead(func(pr *PullRequest) { pr.ChangedFiles = 2 }), ErrMoved},
		{"count of an earlier head", func(h *hub, base, head string) {
			h.setPull(7, func(pr *PullRequest) { pr.ChangedFiles = 9 })
			onSecondRead(func(pr *PullRequest) { pr.ChangedFiles = 1 })(h, base, head)
		}, ErrMoved},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHub(t)
			base, head := h.simple(7)
			tt.make(h, base, head)
			f := h.freezer()
			if _, err := f.Freeze(t.Context(), testRepo, 7, outDir(t)); !errors.Is(err, tt.want) {
				t.Errorf("error is %v, want %v", err, tt.want)
			}
		})
	}
}

func (h *hub) setPull(number int64, change func(*PullRequest)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	pr := h.pulls[number]
	change(&pr)
	h.pulls[number] = pr
}

func onSecondRead(change func(*PullRequest)) func(*hub, string, string) {
	return func(h *hub, _, _ string) {
		h.onRead = func(n int) {
			if n == 2 {
				h.setPull(7, change)
			}
		}
	}
}

func TestFreezeOfBadMetadata(t *testing.T) {
	bad, zero, id := "octo-fork", int64(0), int64(1)
	local, empty := "2026-08-29T12:00:00+02:00", ""
	tests := []struct {
		name   string
		change func(*PullRequest)
	}{
		{"renamed repository", func(pr *PullRequest) { pr.Repo = "octo-org/gadget" }},
		{"other case", func(pr *PullRequest) { pr.Repo = "Octo-Org/widget" }},
		{"other number", func(pr *PullRequest) { pr.Number = 8 }},
		{"unknown state", func(pr *PullRequest) { pr.State = "merged" }},
		{"no base", func(pr *PullRequest) { pr.BaseSHA = "" }},
		{"short head", func(pr *PullRequest) { pr.HeadSHA = pr.HeadSHA[:39] }},
		{"head in upper case", func(pr *PullRequest) { pr.HeadSHA = strings.Repeat("A", 40) }},
		{"head with a line break", func(pr *PullRequest) { pr.HeadSHA += "\n" }},
		{"head like an option", func(pr *PullRequest) { pr.HeadSHA = "--upload-pack=touch /tmp/x;aaaaaaaaaaaaaaa" }},
		{"negative count", func(pr *PullRequest) { pr.ChangedFiles = -1 }},
		{"no branch", func(pr *PullRequest) { pr.HeadRef = " " }},
		{"branch with NUL", func(pr *PullRequest) { pr.HeadRef = "a\x00b" }},
		{"branch not UTF-8", func(pr *PullRequest) { pr.HeadRef = "\xff" }},
		{"merged at a local time", func(pr *PullRequest) { pr.MergedAt = &local }},
		{"merged at no time", func(pr *PullRequest) { pr.MergedAt = &empty }},
		{"head repository without an id", func(pr *PullRequest) { pr.HeadRepoID = nil }},
		{"head id without a repository", func(pr *PullRequest) { pr.HeadRepo, pr.HeadRepoID = nil, &id }},
		{"head repository without an owner", func(pr *PullRequest) { pr.HeadRepo = &bad }},
		{"head repository with id 0", func(pr *PullRequest) { pr.HeadRepoID = &zero }},
	}
	h := newHub(t)
	h.simple(7)
	good := h.pulls[7]
	f := h.freezer()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pr := good
			tt.change(&pr)
			h.pulls[7] = pr
			_, err := f.Freeze(t.Context(), testRepo, 7, outDir(t))
			var refused *RefusedError
			if err == nil || errors.As(err, &refused) || !strings.HasPrefix(err.Error(), "read pull request") {
				t.Errorf("error is %v, want one about the metadata", err)
			}
		})
	}
	if h.sent.Load() != 0 {
		t.Error("something was fetched")
	}
	h.pulls[7] = good
	mustFreeze(t, f, 7)
}

func TestFreezeWantsAnEmptyDirectory(t *testing.T) {
	h := newHub(t)
	h.simple(7)
	out := outDir(t)
	if err := os.WriteFile(filepath.Join(out, "pr.diff"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.freezer().Freeze(t.Context(), testRepo, 7, out); err == nil {
		t.Error("an output directory with a file was accepted")
	}
	if got := string(readFile(t, filepath.Join(out, "pr.diff"))); got != "old" {
		t.Errorf("the file became %q", got)
	}
	for _, repo := range []string{"octo-org", "../x", "octo-org/../x", "octo-org/wid get", ""} {
		if _, err := h.freezer().Freeze(t.Context(), repo, 7, outDir(t)); err == nil {
			t.Errorf("repository %q was accepted", repo)
		}
	}
}

// TestFetchIsIncremental counts what is sent for a second freeze.
func TestFetchIsIncremental(t *testing.T) {
	h := newHub(t)
	base := h.commit(h.tree(files{"big": noise(1 << 20)}))
	head := h.commit(h.tree(files{"big": noise(1 << 20), "a": "1\n"}), base)
	h.open(7, base, head, 1)
	f := h.freezer()
	mustFreeze(t, f, 7)
	if sent := h.sent.Swap(0); sent < 1<<20 {
		t.Fatalf("the first fetch was answered with %d bytes: nothing is measured", sent)
	}
	head = h.commit(h.tree(files{"big": noise(1 << 20), "a": "2\n"}), head)
	h.open(7, base, head, 1)
	frozen := mustFreeze(t, f, 7)
	if sent := h.sent.Swap(0); sent > 50_000 {
		t.Errorf("the second fetch was answered with %d bytes", sent)
	}
	checkBundle(t, frozen.BundlePath, base, head)
	// Another pull request profits from it too.
	h.open(8, base, h.commit(h.tree(files{"big": noise(1 << 20), "a": "3\n"}), base), 1)
	mustFreeze(t, f, 8)
	if sent := h.sent.Load(); sent > 50_000 {
		t.Errorf("the fetch of the other pull request was answered with %d bytes", sent)
	}
}

func TestConcurrentFreezes(t *testing.T) {
	h := newHub(t)
	const pulls, rounds = 3, 3
	want := map[int64]string{}
	base := h.commit(h.tree(files{"README.md": "hello\n", "AGENTS.md": "Be kind.\n"}))
	for n := int64(1); n <= pulls; n++ {
		number := n * keptPulls // all share one slot of the mirror
		h.open(number, base, h.commit(h.tree(files{"README.md": fmt.Sprintf("%d\n", n), "AGENTS.md": "Be kind.\n"}), base), 1)
		want[number] = asJSON(t, mustFreeze(t, h.freezer(), number).Target)
	}
	f := h.freezer()
	other := *f // another process has another Freezer
	var wg sync.WaitGroup
	for number, target := range want {
		for round := range rounds {
			out := outDir(t)
			freezer := []*Freezer{f, &other}[round%2]
			wg.Go(func() {
				frozen, err := freezer.Freeze(t.Context(), testRepo, number, out)
				if err != nil {
					t.Errorf("pull request %d: %v", number, err)
				} else if got := asJSON(t, frozen.Target); got != target {
					t.Errorf("pull request %d:\n%s\nwant\n%s", number, got, target)
				}
			})
		}
	}
	wg.Wait()
}

// TestTokenStaysSecret looks while git talks to the server: at the arguments
// of all processes and at all files.
func TestTokenStaysSecret(t *testing.T) {
	h := newHub(t)
	h.simple(7)
	f := h.freezer()
	looked := 0
	h.onRequest(func(_ http.ResponseWriter, r *http.Request) bool {
		looked++
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil || len(lines) == 0 {
			t.Errorf("no processes: %v", err)
		}
		sawGit := false
		for _, p := range lines {
			line, err := os.ReadFile(p)
			if err != nil {
				continue // it has ended
			}
			sawGit = sawGit || (bytes.Contains(line, []byte("fetch")) && bytes.Contains(line, []byte(h.server.URL)))
			if bytes.Contains(line, []byte(testToken)) {
				t.Errorf("the token is in the arguments %q", line)
			}
		}
		if !sawGit {
			t.Error("git's own arguments were not seen: nothing was checked")
		}
		return false
	})
	mustFreeze(t, f, 7)
	if looked < 2 {
		t.Errorf("looked %d times", looked)
	}
	err := filepath.WalkDir(f.MirrorDir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if b := readFile(t, p); bytes.Contains(b, []byte(testToken)) || bytes.Contains(b, []byte(h.server.URL)) {
			t.Errorf("token or URL in %s", p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRefusedTokenIsNotShown(t *testing.T) {
	h := newHub(t)
	h.simple(7)
	h.onRequest(func(w http.ResponseWriter, r *http.Request) bool {
		http.Error(w, "your header was "+r.Header.Get("Authorization"), http.StatusForbidden)
		return true
	})
	_, err := h.freezer().Freeze(t.Context(), testRepo, 7, outDir(t))
	if err == nil || strings.Contains(err.Error(), testToken) {
		t.Errorf("error is %v", err)
	}
	var refused *RefusedError
	if errors.As(err, &refused) || errors.Is(err, ErrNotYet) {
		t.Errorf("error is %v, want one of the environment", err)
	}
}

// TestRedirectIsNotFollowed: neither the token nor the request may reach
// another host.
func TestRedirectIsNotFollowed(t *testing.T) {
	h := newHub(t)
	h.simple(7)
	var asked []string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String()+" "+r.Header.Get("Authorization"))
		http.NotFound(w, r)
	}))
	defer other.Close()
	h.onRequest(func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, other.URL+r.URL.Path+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
		return true
	})
	if _, err := h.freezer().Freeze(t.Context(), testRepo, 7, outDir(t)); err == nil {
		t.Error("a redirect was followed")
	}
	if len(asked) != 0 {
		t.Errorf("the other host was asked %q", asked)
	}
}

// TestUntrustedCertificate: the token is not sent to a server that cannot
// prove who it is.
func TestUntrustedCertificate(t *testing.T) {
	h := newHub(t)
	h.simple(7)
	asked := false
	impostor := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	impostor.Config.ErrorLog = log.New(io.Discard, "", 0)
	impostor.StartTLS()
	defer impostor.Close()
	h.url = impostor.URL + "/" + testRepo + ".git"
	_, err := h.freezer().Freeze(t.Context(), testRepo, 7, outDir(t))
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("error is %v, want one about the certificate", err)
	}
	if asked {
		t.Error("a request was sent")
	}
}

func TestAccess(t *testing.T) {
	tests := []struct {
		url, authorization string
		ok                 bool
	}{
		{"https://github.com/octo-org/widget.git", testAuth, true},
		{"https://ghe.example.com:8443/octo-org/widget.git", "", true},
		{"http://127.0.0.1:8080/octo-org/widget.git", testAuth, true},
		{"http://[::1]:8080/octo-org/widget.git", testAuth, true},
		{"http://localhost/octo-org/widget.git", testAuth, true},
		{"http://github.com/octo-org/widget.git", testAuth, false},
		{"http://127.0.0.1.example.com/x.git", testAuth, false},
		{"https://x-access-token:t@github.com/octo-org/widget.git", "", false},
		{"https:///octo-org/widget.git", testAuth, false},
		{"https://github.com/x.git?token=1", "", false},
		{"ssh://git@github.com/octo-org/widget.git", "", false},
		{"git@github.com:octo-org/widget.git", "", false},
		{"file:///etc", "", false},
		{"ext::sh -c id", "", false},
		{"/srv/widget.git", "", false},
		{"--upload-pack=id", "", false},
		{"https://github.com/x.git", "Basic a\r\nX: y", false},
	}
	for _, tt := range tests {
		if _, err := newAccess(tt.url, tt.authorization); (err == nil) != tt.ok {
			t.Errorf("newAccess(%q, %q): error %v, want ok %v", tt.url, tt.authorization, err, tt.ok)
		}
	}
}

func TestCancelledFreeze(t *testing.T) {
	h := newHub(t)
	h.simple(7)
	ctx, cancel := context.WithCancel(t.Context())
	h.onRequest(func(_ http.ResponseWriter, r *http.Request) bool {
		cancel()
		<-r.Context().Done() // until git is dead
		return true
	})
	f := h.freezer()
	if _, err := f.Freeze(ctx, testRepo, 7, outDir(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
	h.onRequest(nil)
	mustFreeze(t, f, 7)
}
