package freeze

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

const (
	testRepo  = "octo-org/widget"
	testToken = "ghs_ThisMustNeverShowUpAnywhere"
	testAuth  = "Basic " + testToken
)

// repository is a real one that tests fill with plumbing commands of plain git.
type repository struct {
	t   testing.TB
	dir string
	n   *int // commits made: each has its own date
}

func newRepository(t testing.TB, dir string) repository {
	t.Helper()
	r := repository{t: t, dir: dir, n: new(int)}
	if out, err := plainGit(nil, "init", "--quiet", "--bare", "--template=", dir); err != nil {
		t.Fatalf("git init: %v\n%s", err, out)
	}
	return r
}

// plainGit runs git as a person would, without the user's configuration.
func plainGit(stdin []byte, args ...string) ([]byte, error) {
	cmd := exec.Command("git", args...)
	cmd.Env = append(cleanEnvironment(),
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=Octo Cat", "GIT_AUTHOR_EMAIL=octo@example.com",
		"GIT_COMMITTER_NAME=Octo Cat", "GIT_COMMITTER_EMAIL=octo@example.com")
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("git %q: %w\n%s", args, err, &stderr)
	}
	return out, nil
}

func cleanEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "GIT_") })
}

func (r repository) raw(stdin string, args ...string) []byte {
	r.t.Helper()
	out, err := plainGit([]byte(stdin), append([]string{"-C", r.dir}, args...)...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r repository) git(args ...string) string {
	r.t.Helper()
	return strings.TrimSuffix(string(r.raw("", args...)), "\n")
}

// entry is a file of a tree: its content, and its mode unless that is 100644.
type entry struct{ mode, content string }

type files map[string]string

// tree writes a tree of regular files; others replace or add entries.
func (r repository) tree(content files, others ...map[string]entry) string {
	r.t.Helper()
	all := map[string]entry{}
	for p, c := range content {
		all[p] = entry{"100644", c}
	}
	for _, o := range others {
		for p, e := range o {
			all[p] = e
		}
	}
	var info strings.Builder
	for p, e := range all {
		object := e.content // of a gitlink
		if e.mode != "160000" {
			object = strings.TrimSpace(string(r.raw(e.content, "hash-object", "-w", "--stdin")))
		}
		fmt.Fprintf(&info, "%s %s\t%s\x00", e.mode, object, p)
	}
	index := "GIT_INDEX_FILE=" + filepath.Join(r.t.TempDir(), "index")
	r.withEnv(index, info.String(), "update-index", "-z", "--index-info")
	return strings.TrimSpace(r.withEnv(index, "", "write-tree"))
}

func (r repository) withEnv(env, stdin string, args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", r.dir}, args...)...)
	cmd.Env = append(cleanEnvironment(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", env)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// commit writes a commit of a tree.
func (r repository) commit(tree string, parents ...string) string {
	r.t.Helper()
	*r.n++
	var b strings.Builder
	fmt.Fprintf(&b, "tree %s\n", tree)
	for _, p := range parents {
		fmt.Fprintf(&b, "parent %s\n", p)
	}
	when := 1_700_000_000 + *r.n
	fmt.Fprintf(&b, "author Octo Cat <octo@example.com> %d +0000\ncommitter Octo Cat <octo@example.com> %d +0000\n\nCommit %d\n", when, when, *r.n)
	return strings.TrimSpace(string(r.raw(b.String(), "hash-object", "-t", "commit", "-w", "--stdin")))
}

func (r repository) ref(name, commit string) { r.git("update-ref", name, commit) }

// hub is as much of GitHub as freezing needs: metadata, and git over HTTP with
// an authorization that it checks.
type hub struct {
	repository
	server  *httptest.Server
	backend http.Handler
	mirrors string       // of its latest freezer
	sent    atomic.Int64 // bytes of answers

	mu        sync.Mutex
	intercept interceptor
	pulls     map[int64]PullRequest
	reads     int // of metadata
	// onRead, when set, runs before the n-th reading (from 1) is answered.
	onRead func(n int)
	url    string // clone URL, when not the server's own
}

func newHub(t testing.TB) *hub {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "octo-org"), 0o755); err != nil {
		t.Fatal(err)
	}
	h := &hub{repository: newRepository(t, filepath.Join(root, "octo-org", "widget.git")), pulls: map[int64]PullRequest{}}
	h.git("config", "uploadpack.allowAnySHA1InWant", "true")
	execPath, err := plainGit(nil, "--exec-path")
	if err != nil {
		t.Fatal(err)
	}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(execPath)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_GLOBAL=/dev/null"},
		// What it says goes to the client too.
		Stderr: io.Discard,
	}
	h.backend = backend
	h.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		first := h.intercept
		h.mu.Unlock()
		if first != nil && first(w, r) {
			return
		}
		if r.Header.Get("Authorization") != testAuth {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(&countingWriter{w, &h.sent}, r)
	}))
	t.Cleanup(h.server.Close)
	return h
}

// interceptor sees a request first and returns whether it answered.
type interceptor func(http.ResponseWriter, *http.Request) bool

func (h *hub) onRequest(f interceptor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.intercept = f
}

type countingWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

func (h *hub) PullRequest(_ context.Context, repo string, number int64) (PullRequest, error) {
	h.mu.Lock()
	h.reads++
	n := h.reads
	h.mu.Unlock()
	if h.onRead != nil {
		h.onRead(n)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	pr, ok := h.pulls[number]
	if !ok {
		return PullRequest{}, fmt.Errorf("no pull request %d", number)
	}
	return pr, nil
}

func (h *hub) FetchAccess(context.Context, string) (string, string, error) {
	if h.url != "" {
		return h.url, testAuth, nil
	}
	return h.server.URL + "/" + testRepo + ".git", testAuth, nil
}

// open opens a pull request of head against base; change may alter its metadata.
func (h *hub) open(number int64, base, head string, changedFiles int64, change ...func(*PullRequest)) {
	h.t.Helper()
	id, name := int64(4711), "octo-fork/widget"
	pr := PullRequest{
		Repo: testRepo, Number: number, State: "open", BaseSHA: base, HeadSHA: head,
		HeadRepoID: &id, HeadRepo: &name, HeadRef: "feature", ChangedFiles: changedFiles,
	}
	for _, c := range change {
		c(&pr)
	}
	h.ref("refs/heads/main", base)
	h.ref(fmt.Sprintf("refs/pull/%d/head", number), head)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pulls[number] = pr
}

func (h *hub) freezer() *Freezer {
	h.mirrors = filepath.Join(h.t.TempDir(), "mirrors")
	return &Freezer{MirrorDir: h.mirrors, GitHub: h}
}

// simple is a pull request that changes one file of three.
func (h *hub) simple(number int64) (base, head string) {
	h.t.Helper()
	base = h.commit(h.tree(files{"README.md": "hello\n", "a.txt": "a\n", "AGENTS.md": "Be kind.\n"}))
	head = h.commit(h.tree(files{"README.md": "hello\n", "a.txt": fmt.Sprintf("b %d\n", number), "AGENTS.md": "Be kind.\n"}), base)
	h.open(number, base, head, 1)
	return base, head
}

// outDir returns an empty directory for a frozen target.
func outDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "out")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mustFreeze(t testing.TB, f *Freezer, number int64) *Frozen {
	t.Helper()
	frozen, err := f.Freeze(t.Context(), testRepo, number, outDir(t))
	if err != nil {
		t.Fatalf("Freeze: %v", err)
	}
	return frozen
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sha256sum is the program's answer.
func sha256sum(t testing.TB, path string) string {
	t.Helper()
	out, err := exec.Command("sha256sum", path).Output()
	if err != nil {
		t.Fatalf("sha256sum: %v", err)
	}
	return string(out[:64])
}

// listing names what a directory holds.
func listing(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
