package hubsim_test

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-github/v66/github"

	"underwrite/app/hubsim"
)

// fetch runs a real `git fetch` of refspecs into a new repository and returns
// its directory. authorization is a header's value, passed as the app passes it.
func (w *world) fetch(authorization string, refspecs ...string) (dir string, output string, err error) {
	w.t.Helper()
	dir = filepath.Join(w.t.TempDir(), "copy.git")
	if out, err := gitCommand(w.ctx, dir, "init", "--quiet", "--bare", dir).CombinedOutput(); err != nil {
		return "", string(out), err
	}
	env := []string{"GIT_CONFIG_COUNT=0"}
	if authorization != "" {
		env = []string{"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader", "GIT_CONFIG_VALUE_0=Authorization: " + authorization}
	}
	cmd := gitCommand(w.ctx, dir, append([]string{"fetch", "--quiet", "--no-tags", w.URL() + "/" + repo + ".git"}, refspecs...)...)
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	return dir, string(out), err
}

func gitCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", append([]string{"--git-dir=" + dir}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0"}
	return cmd
}

func (w *world) git(dir string, args ...string) string {
	w.t.Helper()
	out, err := gitCommand(w.ctx, dir, args...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func basic(token string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+token))
}

func TestFetch(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	fork, err := w.Fork(repo, "hubot")
	ok(t, err)
	n, err := w.OpenPullRequest(hubsim.NewPullRequest{Repo: repo, HeadRepo: fork, Branch: "patch", Changes: []hubsim.Change{hubsim.File("fork.py", "y = 2\n")}})
	ok(t, err)
	dir, out, err := w.fetch(basic(w.token()), w.base+":refs/underwrite/base", "refs/pull/1/head:refs/underwrite/head")
	if err != nil {
		t.Fatalf("fetch: %v\n%s", err, out)
	}
	if got := w.git(dir, "rev-parse", "refs/underwrite/base", "refs/underwrite/head"); got != w.base+"\n"+w.head(n) {
		t.Errorf("fetched %q, want base %s and head %s", got, w.base, w.head(n))
	}
	if got := w.git(dir, "show", "refs/underwrite/head:fork.py"); got != "y = 2" {
		t.Errorf("fork.py = %q", got)
	}
	w.clean()
}

// TestFetchOldBase: the base of a frozen pull request can be fetched by its
// name after the branch was moved away from it.
func TestFetchOldBase(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	old, err := w.Commit(repo, "main", "second", hubsim.File("a", "a"))
	ok(t, err)
	ok(t, w.SetBranch(repo, "main", w.base))
	dir, out, err := w.fetch("Bearer "+w.token(), old+":refs/old")
	if err != nil {
		t.Fatalf("fetch: %v\n%s", err, out)
	}
	if got := w.git(dir, "rev-parse", "refs/old"); got != old {
		t.Errorf("fetched %s, want %s", got, old)
	}
}

func TestFetchAfterForkDeleted(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	fork, err := w.Fork(repo, "hubot")
	ok(t, err)
	n, err := w.OpenPullRequest(hubsim.NewPullRequest{Repo: repo, HeadRepo: fork, Branch: "patch", Changes: []hubsim.Change{hubsim.File("fork.py", "y = 2\n")}})
	ok(t, err)
	ok(t, w.DeleteRepo(fork))
	pr, _, err := w.gh.PullRequests.Get(w.ctx, owner, name, int(n))
	ok(t, err)
	if pr.GetHead().Repo != nil || pr.GetHead().GetSHA() != w.head(n) {
		t.Errorf("head = %v, want no repository", pr.GetHead())
	}
	if _, out, err := w.fetch(basic(w.token()), "refs/pull/1/head:refs/head"); err != nil {
		t.Errorf("fetch: %v\n%s", err, out)
	}
	if _, err := w.Push(repo, n, hubsim.File("a", "b")); err == nil {
		t.Error("pushed to a deleted fork")
	}
	w.clean()
}

func TestFetchRefused(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	_, err := w.CreateRepo(owner+"/other", hubsim.File("a", "a"))
	ok(t, err)
	for _, tc := range []struct{ name, authorization, says string }{
		{"no credentials", "", "could not read Username"},
		{"unknown token", basic("ghs_nobody"), "could not read Username"},
		{"not base64", "Basic %%%", "could not read Username"},
		{"unknown scheme", "Digest abc", "could not read Username"},
		{"without contents", basic(w.narrow(nil, map[string]string{"checks": "write"})), "403"},
		{"other repository", basic(w.narrow([]string{"other"}, nil)), "not found"},
		{"person without access", basic(w.UserToken("mallory")), "not found"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, out, err := w.fetch(tc.authorization, "refs/heads/main")
			if err == nil || !strings.Contains(out, tc.says) {
				t.Errorf("error %v, output %q, want %q", err, out, tc.says)
			}
		})
	}
}

// narrow makes a token for some repositories and permissions.
func (w *world) narrow(repos []string, permissions map[string]string) string {
	w.t.Helper()
	p := &github.InstallationPermissions{}
	for k, v := range permissions {
		switch k {
		case "checks":
			p.Checks = &v
		case "contents":
			p.Contents = &v
		default:
			w.t.Fatalf("permission %s", k)
		}
	}
	o := &github.InstallationTokenOptions{Repositories: repos}
	if permissions != nil {
		o.Permissions = p
	}
	tok, _, err := w.app.Apps.CreateInstallationToken(w.ctx, w.installation, o)
	ok(w.t, err)
	return tok.GetToken()
}

func TestPushRefused(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	dir, out, err := w.fetch(basic(w.token()), "refs/heads/main:refs/heads/main")
	if err != nil {
		t.Fatalf("fetch: %v\n%s", err, out)
	}
	cmd := gitCommand(w.ctx, dir, "push", w.URL()+"/"+repo+".git", "main:other")
	cmd.Env = append(cmd.Env, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader", "GIT_CONFIG_VALUE_0=Authorization: "+basic(w.token()))
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "403") {
		t.Errorf("push: %v\n%s", err, out)
	}
	for _, path := range []string{"/HEAD", "/objects/info/packs", "/config", "/info/refs", "/info/refs?service=git-receive-pack", "/../x/git-upload-pack"} {
		if code, _ := w.do(http.MethodGet, "/"+repo+".git"+path, basic(w.token()), ""); code != http.StatusForbidden && code != http.StatusNotFound {
			t.Errorf("GET %s: status %d", path, code)
		}
	}
}

func TestCommitsAreDeterministic(t *testing.T) {
	t.Setenv("GIT_AUTHOR_NAME", "Somebody Else")
	t.Setenv("GIT_DIR", "/nonexistent")
	make := func() string {
		w := newWorld(t, hubsim.Options{})
		n := w.open("feature", hubsim.Symlink("link", "calc.py"), hubsim.File("a \"b\\c\n", "odd name"), hubsim.Script("x", "#!/bin/sh\n"))
		return w.head(n)
	}
	if a, b := make(), make(); a != b {
		t.Errorf("heads %s and %s differ", a, b)
	}
}

func TestImportRepo(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	src, err := w.GitDir(repo)
	ok(t, err)
	sha, err := w.ImportRepo(owner+"/copy", src, "main")
	ok(t, err)
	if sha != w.base {
		t.Errorf("imported %s, want %s", sha, w.base)
	}
	if _, err := w.ImportRepo(owner+"/copy2", src, "missing"); err == nil {
		t.Error("imported a branch that does not exist")
	}
	if _, err := w.GitDir(owner + "/copy2"); !errors.Is(err, hubsim.ErrNotFound) {
		t.Errorf("half a repository is left: %v", err)
	}
	if _, err := w.CreateRepo(owner+"/copy", hubsim.File("a", "a")); !errors.Is(err, hubsim.ErrExists) {
		t.Errorf("made twice: %v", err)
	}
	for _, bad := range []string{"name", "a/b/c", "/x", "x/"} {
		if _, err := w.CreateRepo(bad, hubsim.File("a", "a")); err == nil {
			t.Errorf("made a repository %q", bad)
		}
	}
}
