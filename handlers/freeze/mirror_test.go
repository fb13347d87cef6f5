package freeze

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// mirrorOf returns the directory of the test repository's mirror.
func mirrorOf(t testing.TB, f *Freezer) string {
	t.Helper()
	m, err := openMirror(f.MirrorDir, testRepo)
	if err != nil {
		t.Fatal(err)
	}
	return m.dir
}

func write(t testing.TB, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

func mustGlob(t testing.TB, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		t.Fatalf("glob %s: %q, %v", pattern, found, err)
	}
	return found
}

// TestDamagedMirror freezes a newer head with a mirror that a crash, a
// compromised git or a bad disk has changed.
func TestDamagedMirror(t *testing.T) {
	tests := []struct {
		name   string
		damage func(t *testing.T, dir, ran string) // ran is a file that no command may make
	}{
		{"lock files", func(t *testing.T, dir, ran string) {
			for _, name := range []string{"refs/kept/7/head.lock", "refs/kept/7/base.lock", "packed-refs.lock", "HEAD.lock", "config.lock", "shallow.lock", "index.lock"} {
				write(t, filepath.Join(dir, name), "", 0o600)
			}
		}},
		{"half a pack", func(t *testing.T, dir, ran string) {
			write(t, filepath.Join(dir, "objects/pack/tmp_pack_abc123"), "PACK\x00\x00\x00\x02", 0o600)
			write(t, filepath.Join(dir, "objects/12/tmp_obj_abc123"), "x", 0o600)
		}},
		{"hooks", func(t *testing.T, dir, ran string) {
			for _, name := range []string{"reference-transaction", "post-fetch", "pre-auto-gc", "fsmonitor-watchman"} {
				write(t, filepath.Join(dir, "hooks", name), "#!/bin/sh\ntouch "+ran+"\n", 0o755)
			}
		}},
		{"configuration", func(t *testing.T, dir, ran string) {
			write(t, filepath.Join(dir, "config"), "[core]\n\thooksPath = /tmp\n\tfsmonitor = touch "+ran+"\n\tgitProxy = touch "+ran+
				"\n[diff]\n\texternal = touch "+ran+"\n\tnoprefix = true\n[extensions]\n\tworktreeConfig = true\n[uploadpack]\n\tpackObjectsHook = touch "+ran+"\n", 0o600)
			write(t, filepath.Join(dir, "config.worktree"), "[diff]\n\texternal = touch "+ran+"\n", 0o600)
		}},
		{"unreadable configuration", func(t *testing.T, dir, ran string) { write(t, filepath.Join(dir, "config"), "[[[", 0o600) }},
		{"attributes, grafts, alternates, shallow", func(t *testing.T, dir, ran string) {
			write(t, filepath.Join(dir, "info/attributes"), "* binary\n", 0o600)
			write(t, filepath.Join(dir, "info/grafts"), strings.Repeat("1", 40)+"\n", 0o600)
			write(t, filepath.Join(dir, "objects/info/alternates"), "/nonexistent\n", 0o600)
			write(t, filepath.Join(dir, "shallow"), strings.Repeat("1", 40)+"\n", 0o600)
		}},
		{"no HEAD", func(t *testing.T, dir, ran string) { remove(t, filepath.Join(dir, "HEAD")) }},
		{"no refs", func(t *testing.T, dir, ran string) { remove(t, filepath.Join(dir, "refs")) }},
		{"no objects", func(t *testing.T, dir, ran string) { remove(t, filepath.Join(dir, "objects")) }},
		{"packs missing", func(t *testing.T, dir, ran string) { remove(t, filepath.Join(dir, "objects/pack")) }},
		{"index of a pack missing", func(t *testing.T, dir, ran string) { remove(t, mustGlob(t, dir+"/objects/pack/*.idx")[0]) }},
		{"pack cut off", func(t *testing.T, dir, ran string) {
			p := mustGlob(t, dir+"/objects/pack/*.pack")[0]
			if err := os.Truncate(p, int64(len(readFile(t, p))/2)); err != nil {
				t.Fatal(err)
			}
		}},
		{"objects overwritten", func(t *testing.T, dir, ran string) {
			p := mustGlob(t, dir+"/objects/pack/*.pack")[0]
			b := readFile(t, p)
			copy(b[12:len(b)-20], make([]byte, len(b)))
			if err := os.Chmod(p, 0o600); err != nil {
				t.Fatal(err)
			}
			write(t, p, string(b), 0o600)
		}},
		{"content of a file overwritten", func(t *testing.T, dir, ran string) {
			p := mustGlob(t, dir+"/objects/pack/*.pack")[0]
			b := readFile(t, p)
			copy(b[len(b)/2:], "overwritten") // within the one large blob
			if err := os.Chmod(p, 0o600); err != nil {
				t.Fatal(err)
			}
			write(t, p, string(b), 0o600)
		}},
		{"empty ref", func(t *testing.T, dir, ran string) { write(t, filepath.Join(dir, "refs/kept/7/head"), "", 0o600) }},
		{"ref to nothing", func(t *testing.T, dir, ran string) {
			write(t, filepath.Join(dir, "refs/kept/7/head"), strings.Repeat("1", 40)+"\n", 0o600)
		}},
		{"fetch did not end", func(t *testing.T, dir, ran string) { write(t, strings.TrimSuffix(dir, ".git")+".fetching", "", 0o600) }},
		{"fetch did not end and lost its objects", func(t *testing.T, dir, ran string) {
			write(t, strings.TrimSuffix(dir, ".git")+".fetching", "", 0o600)
			remove(t, filepath.Join(dir, "objects/pack"))
		}},
		{"gone", func(t *testing.T, dir, ran string) { remove(t, dir) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ran := filepath.Join(t.TempDir(), "ran")
			h := newHub(t)
			base := h.commit(h.tree(files{"a.txt": "a\n", "big": noise(100_000), "AGENTS.md": "Be kind.\n"}))
			head := h.commit(h.tree(files{"a.txt": "b\n", "big": noise(100_000), "AGENTS.md": "Be kind.\n"}), base)
			h.open(7, base, head, 1)
			f := h.freezer()
			mustFreeze(t, f, 7)
			tt.damage(t, mirrorOf(t, f), ran)
			head = h.commit(h.tree(files{"a.txt": "c\n", "AGENTS.md": "Be kind.\n"}), head)
			h.open(7, base, head, 2)
			frozen := mustFreeze(t, f, 7)
			checkBundle(t, frozen.BundlePath, base, head)
			if !bytes.Equal(readFile(t, frozen.DiffPath), handDiff(h.repository, base, head)) {
				t.Error("pr.diff is not what git prints")
			}
			if _, err := os.Lstat(ran); err == nil {
				t.Error("a command of the mirror's ran")
			}
			for _, name := range listing(t, mirrorOf(t, f)) {
				if !slices.Contains(mirrorEntries, name) {
					t.Errorf("%s is still in the mirror", name)
				}
			}
			plain, err := plainGit(nil, "-C", mirrorOf(t, f), "fsck", "--full", "--connectivity-only")
			if err != nil {
				t.Errorf("the mirror is still broken: %v\n%s", err, plain)
			}
			if _, err := os.Lstat(strings.TrimSuffix(mirrorOf(t, f), ".git") + ".fetching"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the mark of a fetch is still there: %v", err)
			}
		})
	}
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// TestHostileReplacementInTheMirror: a ref below refs/replace there has no effect.
func TestHostileReplacementInTheMirror(t *testing.T) {
	h := newHub(t)
	base, head := h.simple(7)
	f := h.freezer()
	want := asJSON(t, mustFreeze(t, f, 7).Target)
	write(t, filepath.Join(mirrorOf(t, f), "refs/replace", head), base+"\n", 0o600)
	if got := asJSON(t, mustFreeze(t, f, 7).Target); got != want {
		t.Errorf("target is\n%s\nwant\n%s", got, want)
	}
}

func TestMirrorIsRepacked(t *testing.T) {
	h := newHub(t)
	base, head := h.simple(7)
	f := h.freezer()
	mustFreeze(t, f, 7)
	dir := mirrorOf(t, f)
	mirror := repository{t: t, dir: dir, n: new(int)}
	for n := range maxPacks + 1 {
		c := mirror.commit(mirror.tree(files{"x": strings.Repeat("x", n)}))
		mirror.ref("refs/kept/8/head", c)
		mirror.raw(c+"\n", "pack-objects", "--quiet", "--revs", "objects/pack/pack")
	}
	if n := len(mustGlob(t, dir+"/objects/pack/*.pack")); n <= maxPacks {
		t.Fatalf("only %d packs", n)
	}
	frozen := mustFreeze(t, f, 7)
	if n := len(mustGlob(t, dir+"/objects/pack/*.pack")); n > 2 {
		t.Errorf("%d packs after the repack", n)
	}
	checkBundle(t, frozen.BundlePath, base, head)
}

// TestMirrorDoesNotGrowForEver: an author who pushes again and again leaves
// large objects that nothing names any more.
func TestMirrorDoesNotGrowForEver(t *testing.T) {
	h := newHub(t)
	base := h.commit(h.tree(files{"a": "1\n"}))
	f := h.freezer()
	f.Limits.BundleBytes = 60_000
	var most int
	for n := range 2 * maxMirror {
		h.open(7, base, h.commit(h.tree(files{"a": fmt.Sprint(n) + noise(50_000)}), base), 1)
		mustFreeze(t, f, 7)
		total := 0
		for _, p := range mustGlob(t, mirrorOf(t, f)+"/objects/pack/*.pack") {
			total += len(readFile(t, p))
		}
		most = max(most, total)
	}
	if limit := (maxMirror + packSlack) * 60_000; most > limit {
		t.Errorf("the mirror grew to %d bytes, more than %d", most, limit)
	}
	if most < maxMirror*50_000 {
		t.Errorf("the mirror never had more than %d bytes: nothing was tested", most)
	}
}

// TestKilledInTheMiddleOfAFetch kills the process that freezes while half of a
// pack has arrived, and freezes again with what it left.
func TestKilledInTheMiddleOfAFetch(t *testing.T) {
	for _, healthy := range []bool{false, true} {
		t.Run(fmt.Sprintf("mirror there %v", healthy), func(t *testing.T) {
			h := newHub(t)
			base, head := h.simple(7)
			f := h.freezer()
			if healthy {
				mustFreeze(t, f, 7)
			}
			head = h.commit(h.tree(files{"big": noise(1 << 20), "AGENTS.md": "Be kind.\n"}), head)
			h.open(7, base, head, 3)
			child := exec.Command("/proc/self/exe")
			child.Env = append(os.Environ(), "FREEZE_CHILD="+asJSON(t, childOrder{
				Pull: h.pulls[7], URL: h.server.URL + "/" + testRepo + ".git", MirrorDir: f.MirrorDir, OutDir: outDir(t),
			}))
			started := make(chan struct{})
			h.onRequest(h.halfThen(func() {
				<-started
				if err := child.Process.Kill(); err != nil {
					t.Error(err)
				}
			}))
			var out bytes.Buffer
			child.Stdout, child.Stderr = &out, &out
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			close(started)
			if err := child.Wait(); err == nil || child.ProcessState.Exited() {
				t.Fatalf("the process was not killed: %v\n%s", err, &out)
			}
			if _, err := os.Lstat(strings.TrimSuffix(mirrorOf(t, f), ".git") + ".fetching"); err != nil {
				t.Errorf("no mark of the unfinished fetch: %v", err)
			}
			h.onRequest(nil)
			frozen := mustFreeze(t, f, 7)
			checkBundle(t, frozen.BundlePath, base, head)
			if left, _ := filepath.Glob(mirrorOf(t, f) + "/objects/pack/tmp_*"); len(left) > 0 {
				t.Errorf("left in the mirror: %q", left)
			}
		})
	}
}

// halfThen answers the request for a pack with half of it, then calls then.
func (h *hub) halfThen(then func()) interceptor {
	return func(w http.ResponseWriter, r *http.Request) bool {
		answer := httptest.NewRecorder()
		h.backend.ServeHTTP(answer, r)
		body := answer.Body.Bytes()
		for name, values := range answer.Header() {
			w.Header()[name] = values
		}
		if len(body) < 1<<20 {
			w.WriteHeader(answer.Code)
			w.Write(body) //nolint:errcheck // the client is alive or the test fails
			return true
		}
		w.Write(body[:len(body)/2]) //nolint:errcheck // as above
		w.(http.Flusher).Flush()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			if left, _ := filepath.Glob(h.mirrors + "/*.git/objects/pack/tmp_*"); len(left) > 0 || time.Now().After(deadline) {
				break // index-pack is at work
			}
		}
		then()
		<-r.Context().Done()
		return true
	}
}

// TestRepairLeavesAHealthyMirror: when the network is at fault, the mirror stays.
func TestRepairLeavesAHealthyMirror(t *testing.T) {
	h := newHub(t)
	h.simple(7)
	f := h.freezer()
	mustFreeze(t, f, 7)
	before := mustGlob(t, mirrorOf(t, f)+"/objects/pack/*.pack")
	h.url = "http://127.0.0.1:1/octo-org/widget.git"
	if _, err := f.Freeze(t.Context(), testRepo, 7, outDir(t)); err == nil {
		t.Fatal("a server that does not exist was fetched from")
	}
	if after := mustGlob(t, mirrorOf(t, f)+"/objects/pack/*.pack"); len(after) != len(before) {
		t.Errorf("packs %q became %q", before, after)
	}
}

func TestLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	must := func(exclusive bool) *fileLock {
		t.Helper()
		l, err := tryLock(path, exclusive)
		if err != nil || l == nil {
			t.Fatalf("lock %v, error %v", l, err)
		}
		return l
	}
	held := func(exclusive bool) {
		t.Helper()
		if l, err := tryLock(path, exclusive); l != nil || err != nil {
			t.Errorf("lock %v, error %v, want none", l, err)
		}
	}
	a, b := must(false), must(false)
	held(true)
	a.unlock()
	held(true)
	b.unlock()
	c := must(true)
	held(true)
	held(false)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockFile(ctx, path, true); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
	got := make(chan error)
	go func() {
		l, err := lockFile(t.Context(), path, true)
		if err == nil {
			l.unlock()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Errorf("did not wait: %v", err)
	case <-time.After(3 * lockPoll):
	}
	c.unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
	if err := os.Symlink(path, path+"2"); err != nil {
		t.Fatal(err)
	}
	if _, err := tryLock(path+"2", true); err == nil {
		t.Error("a symbolic link was opened as a lock")
	}
}

func TestMirrorNames(t *testing.T) {
	dir := t.TempDir()
	names := map[string]string{}
	for _, repo := range []string{"a/b", "a/b.git", "a-b/c", "a/b-c", "a.b/c", "../..", "./.", "a/..", "A/c"} {
		m, err := openMirror(dir, repo)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(m.dir) != dir {
			t.Errorf("mirror of %q is at %s", repo, m.dir)
		}
		if other, ok := names[m.dir]; ok {
			t.Errorf("%q and %q share a mirror", repo, other)
		}
		names[m.dir] = repo
	}
}
