package hubsim_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bradleyfalzon/ghinstallation/v2"
	"github.com/google/go-github/v66/github"

	"underwrite/app/hubsim"
)

const (
	owner = "octo-org"
	name  = "calc"
	repo  = owner + "/" + name
)

// world is a started hub with one repository, the app installed on it, and the
// app's clients.
type world struct {
	*hubsim.Hub
	t            *testing.T
	ctx          context.Context
	installation int64
	base         string // first commit
	app          *github.Client
	gh           *github.Client // with installation tokens
	tokens       *ghinstallation.Transport
}

// appKey is one key for all hubs of the tests: making one takes a while.
var appKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

// newWorld starts a hub. A test that expects no violations ends with clean.
func newWorld(t *testing.T, o hubsim.Options) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	w := &world{Hub: start(t, o), t: t, ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("violations: %q", w.Violations())
		}
	})
	var err error
	if w.base, err = w.CreateRepo(repo, hubsim.File("calc.py", "def add(a, b):\n    return a + b\n"), hubsim.Script("run", "#!/bin/sh\n")); err != nil {
		t.Fatal(err)
	}
	if w.installation, err = w.Install(owner); err != nil {
		t.Fatal(err)
	}
	apps, err := ghinstallation.NewAppsTransport(http.DefaultTransport, w.AppID(), w.AppPrivateKeyPEM())
	if err != nil {
		t.Fatal(err)
	}
	apps.BaseURL = w.URL()
	w.app = w.client(&http.Client{Transport: apps})
	w.tokens = ghinstallation.NewFromAppsTransport(apps, w.installation)
	w.gh = w.client(&http.Client{Transport: w.tokens})
	return w
}

func start(t *testing.T, o hubsim.Options) *hubsim.Hub {
	t.Helper()
	key, err := appKey()
	ok(t, err)
	o.AppKey = key
	h, err := hubsim.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	return h
}

func (w *world) client(hc *http.Client) *github.Client {
	w.t.Helper()
	c := github.NewClient(hc)
	u := *c.BaseURL
	c.BaseURL = &u
	parsed, err := c.BaseURL.Parse(w.URL() + "/")
	if err != nil {
		w.t.Fatal(err)
	}
	c.BaseURL = parsed
	return c
}

// open opens a pull request from a branch of the repository itself.
func (w *world) open(branch string, changes ...hubsim.Change) int64 {
	w.t.Helper()
	if len(changes) == 0 {
		changes = []hubsim.Change{hubsim.File(branch+".py", "x = 1\n")}
	}
	n, err := w.OpenPullRequest(hubsim.NewPullRequest{Repo: repo, Branch: branch, Title: "Add " + branch, Author: "octocat", Changes: changes})
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) head(number int64) string {
	w.t.Helper()
	p, err := w.PullRequest(repo, number)
	if err != nil {
		w.t.Fatal(err)
	}
	return p.HeadSHA
}

// clean asserts that nothing outside of the description happened.
func (w *world) clean() {
	w.t.Helper()
	for _, v := range w.Violations() {
		w.t.Errorf("violation: %s", v)
	}
}

// violated asserts that the one violation mentions what.
func (w *world) violated(what string) {
	w.t.Helper()
	v := w.Violations()
	if len(v) != 1 || !strings.Contains(v[0], what) {
		w.t.Errorf("violations = %q, want one that mentions %q", v, what)
	}
}

// status asserts the status and message of an API error.
func (w *world) status(err error, code int, message string) {
	w.t.Helper()
	var e *github.ErrorResponse
	if !errors.As(err, &e) {
		w.t.Fatalf("error = %v, want an error response %d", err, code)
	}
	if e.Response.StatusCode != code || !strings.Contains(e.Error(), message) {
		w.t.Errorf("error = %v, want status %d and %q", e, code, message)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// do sends a request of the test's own making and returns status and body.
func (w *world) do(method, path, authorization, body string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.ctx, method, w.URL()+path, strings.NewReader(body))
	ok(w.t, err)
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	ok(w.t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	ok(w.t, err)
	return resp.StatusCode, string(data)
}

// token is a fresh installation token.
func (w *world) token() string {
	w.t.Helper()
	tok, err := w.tokens.Token(w.ctx)
	ok(w.t, err)
	return tok
}

func TestReadingAPullRequest(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	n := w.open("feature", hubsim.File("calc.py", "def add(a, b):\n    return b + a\n"), hubsim.File("new.py", "x = 1\n"), hubsim.Remove("run"))

	pr, _, err := w.gh.PullRequests.Get(w.ctx, owner, name, int(n))
	ok(t, err)
	if pr.GetHead().GetSHA() != w.head(n) || pr.GetBase().GetSHA() != w.base || pr.GetState() != "open" || pr.MergedAt != nil {
		t.Errorf("pull request = %v", pr)
	}
	if pr.GetChangedFiles() != 3 || pr.GetCommits() != 1 || pr.GetAdditions() != 2 || pr.GetDeletions() != 2 {
		t.Errorf("files %d commits %d +%d -%d, want 3, 1, +2, -2", pr.GetChangedFiles(), pr.GetCommits(), pr.GetAdditions(), pr.GetDeletions())
	}
	if pr.GetHead().GetRepo().GetFullName() != repo || pr.GetBase().GetRef() != "main" {
		t.Errorf("head repository %s, base %s", pr.GetHead().GetRepo().GetFullName(), pr.GetBase().GetRef())
	}
	files, _, err := w.gh.PullRequests.ListFiles(w.ctx, owner, name, int(n), nil)
	ok(t, err)
	got := map[string]string{}
	for _, f := range files {
		got[f.GetFilename()] = f.GetStatus()
	}
	if len(got) != 3 || got["calc.py"] != "modified" || got["new.py"] != "added" || got["run"] != "removed" {
		t.Errorf("files = %v", got)
	}
	commits, _, err := w.gh.PullRequests.ListCommits(w.ctx, owner, name, int(n), nil)
	ok(t, err)
	if len(commits) != 1 || commits[0].GetSHA() != w.head(n) || commits[0].GetCommit().GetMessage() != "Add feature" || commits[0].Parents[0].GetSHA() != w.base {
		t.Errorf("commits = %v", commits)
	}
	list, _, err := w.gh.PullRequests.List(w.ctx, owner, name, nil)
	ok(t, err)
	if len(list) != 1 || list[0].GetNumber() != int(n) {
		t.Errorf("list = %v", list)
	}
	byCommit, _, err := w.gh.PullRequests.ListPullRequestsWithCommit(w.ctx, owner, name, w.head(n), nil)
	ok(t, err)
	if len(byCommit) != 1 || byCommit[0].GetNumber() != int(n) {
		t.Errorf("pull requests of the head = %v", byCommit)
	}
	ref, _, err := w.gh.Git.GetRef(w.ctx, owner, name, "heads/feature")
	ok(t, err)
	if ref.GetObject().GetSHA() != w.head(n) {
		t.Errorf("ref = %v", ref)
	}
	commit, _, err := w.gh.Repositories.GetCommit(w.ctx, owner, name, "feature", nil)
	ok(t, err)
	if commit.GetSHA() != w.head(n) || commit.GetStats().GetTotal() != 4 || len(commit.Files) != 3 {
		t.Errorf("commit = %v", commit)
	}
	w.clean()
}
