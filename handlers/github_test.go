package handlers

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"underwrite/app/hubsim"
	"underwrite/attest"
	"underwrite/handlers/checks"
	"underwrite/runner/wire"
)

const testRepo = "octo-org/shop"

// hub is a simulated GitHub that counts calls and can spoil one.
type hub struct {
	*hubsim.Hub
	github *GitHub

	mu    sync.Mutex
	calls map[string]int
	spoil func(w http.ResponseWriter, r *http.Request, next http.Handler) (done bool)
}

var numbers = regexp.MustCompile(`/([0-9]+|[0-9a-f]{40})(/|$)`)

// call names a request without its ids, as in "GET /repos/octo-org/shop/pulls/*".
func call(r *http.Request) string {
	return r.Method + " " + numbers.ReplaceAllString(r.URL.Path, "/*$2")
}

func (h *hub) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.calls[call(r)]++
		spoil := h.spoil
		h.mu.Unlock()
		if spoil == nil || !spoil(w, r, next) {
			next.ServeHTTP(w, r)
		}
	})
}

func (h *hub) count(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[name]
}

func (h *hub) setSpoil(f func(http.ResponseWriter, *http.Request, http.Handler) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spoil = f
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{calls: map[string]int{}}
	sim, err := hubsim.New(hubsim.Options{Middleware: h.middleware})
	if err != nil {
		t.Fatal(err)
	}
	h.Hub = sim
	t.Cleanup(func() {
		for _, v := range sim.Violations() {
			t.Errorf("violation: %s", v)
		}
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, sim.Start())
	key := filepath.Join(t.TempDir(), "app.pem")
	must(t, os.WriteFile(key, sim.AppPrivateKeyPEM(), 0o600))
	h.github, err = NewGitHub(GitHubConfig{APIURL: sim.URL(), WebURL: sim.URL(), AppID: sim.AppID(), PrivateKeyFile: key})
	must(t, err)
	_, err = sim.CreateRepo(testRepo, hubsim.File("README", "hello\n"))
	must(t, err)
	_, err = sim.Install("octo-org")
	must(t, err)
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *hub) open(t *testing.T, n hubsim.NewPullRequest) hubsim.PullRequest {
	t.Helper()
	n.Repo = testRepo
	n.Changes = []hubsim.Change{hubsim.File("new.txt", "x\n")}
	number, err := h.OpenPullRequest(n)
	must(t, err)
	pr, err := h.Hub.PullRequest(testRepo, number)
	must(t, err)
	return pr
}

func TestGitHubPullRequest(t *testing.T) {
	h, ctx := newHub(t), context.Background()
	fork, err := h.Fork(testRepo, "mona")
	must(t, err)
	want := h.open(t, hubsim.NewPullRequest{HeadRepo: fork, Branch: "topic"})
	got, err := h.github.PullRequest(ctx, testRepo, want.Number)
	must(t, err)
	if got.Repo != testRepo || got.Number != want.Number || got.State != "open" || got.MergedAt != nil || got.BaseSHA != want.BaseSHA ||
		got.HeadSHA != want.HeadSHA || got.HeadRef != "topic" || got.ChangedFiles != 1 || got.HeadRepo == nil || *got.HeadRepo != fork || *got.HeadRepoID < 1 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	must(t, h.DeleteRepo(fork))
	got, err = h.github.PullRequest(ctx, testRepo, want.Number)
	must(t, err)
	if got.HeadRepo != nil || got.HeadRepoID != nil || got.HeadSHA != want.HeadSHA {
		t.Errorf("deleted fork: %+v", got)
	}
	if n := h.count("GET /repos/octo-org/shop/installation"); n != 1 {
		t.Errorf("installation looked up %d times, want once", n)
	}
}

func TestGitHubMergedPullRequest(t *testing.T) {
	h := newHub(t)
	pr := h.open(t, hubsim.NewPullRequest{Branch: "topic"})
	_, err := h.Merge(testRepo, pr.Number, "octocat")
	must(t, err)
	got, err := h.github.PullRequest(context.Background(), testRepo, pr.Number)
	must(t, err)
	if got.State != "closed" || got.MergedAt == nil {
		t.Fatalf("got %+v", got)
	}
	if at, err := time.Parse("2006-01-02T15:04:05Z", *got.MergedAt); err != nil || at.IsZero() {
		t.Errorf("merged_at %q is no protocol timestamp", *got.MergedAt)
	}
}

func TestGitHubGone(t *testing.T) {
	h, ctx := newHub(t), context.Background()
	pr := h.open(t, hubsim.NewPullRequest{Branch: "topic"})
	for name, c := range map[string]struct {
		repo   string
		number int64
	}{"no such number": {testRepo, 999}, "no such repository": {"octo-org/nothing", 1}, "not installed": {"stranger/shop", 1}} {
		if _, err := h.github.PullRequest(ctx, c.repo, c.number); !errors.Is(err, checks.ErrGone) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, repo := range map[string]string{"a path": "octo-org/../x", "no owner": "shop", "dots": "octo-org/..", "a query": "octo-org/x?y"} {
		if _, err := h.github.PullRequest(ctx, repo, 1); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := h.github.PullRequest(ctx, testRepo, pr.Number); err != nil {
		t.Fatal(err)
	}
	must(t, h.Uninstall("octo-org"))
	if _, err := h.github.PullRequest(ctx, testRepo, pr.Number); !errors.Is(err, checks.ErrGone) {
		t.Errorf("uninstalled: %v", err)
	}
	_, err := h.Install("octo-org")
	must(t, err)
	if _, err := h.github.PullRequest(ctx, testRepo, pr.Number); err != nil {
		t.Errorf("installed anew: %v", err)
	}
}

// TestGitHubReinstalled: the remembered installation is gone, GitHub has a new
// one, and nobody has noticed in between.
func TestGitHubReinstalled(t *testing.T) {
	h, ctx := newHub(t), context.Background()
	before, err := h.github.Installation(ctx, testRepo)
	must(t, err)
	must(t, h.Uninstall("octo-org"))
	_, err = h.Install("octo-org")
	must(t, err)
	if _, _, err := h.github.FetchAccess(ctx, testRepo); err != nil {
		t.Fatal(err)
	}
	if after, err := h.github.Installation(ctx, testRepo); err != nil || after == before {
		t.Errorf("installation %d, then %d, %v", before, after, err)
	}
}

func TestFetchAccessIsNarrow(t *testing.T) {
	h, ctx := newHub(t), context.Background()
	_, err := h.CreateRepo("octo-org/secret", hubsim.File("README", "secret\n"))
	must(t, err)
	pr := h.open(t, hubsim.NewPullRequest{Branch: "topic"})
	url, authorization, err := h.github.FetchAccess(ctx, testRepo)
	must(t, err)
	if url != h.URL()+"/octo-org/shop.git" || strings.Contains(url, "@") {
		t.Errorf("clone URL %q", url)
	}
	refs := "/info/refs?service=git-upload-pack"
	if code := get(t, url+refs, authorization); code != http.StatusOK {
		t.Errorf("fetch: %d", code)
	}
	if code := get(t, h.URL()+"/octo-org/secret.git"+refs, authorization); code < 400 {
		t.Errorf("another repository: %d", code)
	}
	pair, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(authorization, "Basic "))
	must(t, err)
	token := strings.TrimPrefix(string(pair), "x-access-token:")
	for _, path := range []string{"/repos/octo-org/shop/commits/" + pr.HeadSHA + "/check-runs", "/repos/octo-org/shop/pulls/1"} {
		if code := get(t, h.URL()+path, "token "+token); code < 400 {
			t.Errorf("the token can read %s: %d", path, code)
		}
	}
}

func get(t *testing.T, url, authorization string) int {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	must(t, err)
	r.Header.Set("Authorization", authorization)
	resp, err := http.DefaultClient.Do(r)
	must(t, err)
	resp.Body.Close()
	return resp.StatusCode
}

// rendered is a check run of the pull request in a state.
func rendered(pr hubsim.PullRequest, externalID string, s checks.State) checks.Run {
	start := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	return checks.Render(checks.Report{
		Repo: pr.Repo, Number: pr.Number, Name: "unit", HeadSHA: pr.HeadSHA, ExternalID: externalID, State: s, Phase: wire.PhaseRun,
		DetailsURL: "https://underwrite.example.com/e/1", Job: attest.Job{Argv: []string{"/bin/true"}, Cwd: "."},
		StartedAt: start, FinishedAt: start.Add(time.Second), StdoutTail: []byte("\x1b[31mhi\x00\xff ``` @octocat 👩‍💻\n"), StdoutBytes: 30,
	})
}

const (
	listCall   = "GET /repos/octo-org/shop/commits/*/check-runs"
	createCall = "POST /repos/octo-org/shop/check-runs"
	getCall    = "GET /repos/octo-org/shop/check-runs/*"
	updateCall = "PATCH /repos/octo-org/shop/check-runs/*"
)

func (h *hub) expectCalls(t *testing.T, list, create, read, update int) {
	t.Helper()
	for name, want := range map[string]int{listCall: list, createCall: create, getCall: read, updateCall: update} {
		if got := h.count(name); got != want {
			t.Errorf("%s: %d calls, want %d", name, got, want)
		}
	}
}

func (h *hub) post(t *testing.T, run checks.Run, knownID int64) int64 {
	t.Helper()
	id, err := h.github.Post(context.Background(), run, knownID)
	must(t, err)
	return id
}

func TestPostLifeOfACheckRun(t *testing.T) {
	h := newHub(t)
	pr := h.open(t, hubsim.NewPullRequest{Branch: "topic"})
	id := h.post(t, rendered(pr, "e-1", checks.Queued), 0)
	h.expectCalls(t, 1, 1, 0, 0)
	h.post(t, rendered(pr, "e-1", checks.InProgress), id)
	h.expectCalls(t, 1, 1, 1, 1)
	want := rendered(pr, "e-1", checks.Passed)
	h.post(t, want, id)
	h.expectCalls(t, 1, 1, 2, 2)
	for _, late := range []checks.State{checks.Passed, checks.Contradicted, checks.InProgress, checks.Queued} {
		if again := h.post(t, rendered(pr, "e-1", late), id); again != id {
			t.Errorf("%s: id %d, want %d", late, again, id)
		}
	}
	h.expectCalls(t, 1, 1, 6, 2)
	runs := h.CheckRuns(testRepo, pr.HeadSHA)
	if len(runs) != 1 {
		t.Fatalf("%d check runs", len(runs))
	}
	got := runs[0]
	if got.ID != id || got.Name != "underwrite/unit" || got.ExternalID != "e-1" || got.Status != "completed" || got.Conclusion != checks.Success ||
		got.Title != want.Title || got.Summary != want.Summary || got.Text != want.Text || got.DetailsURL != want.DetailsURL ||
		!got.StartedAt.Equal(want.StartedAt) || !got.CompletedAt.Equal(want.CompletedAt) {
		t.Errorf("got %+v", got)
	}
}

func TestPostEveryState(t *testing.T) {
	h := newHub(t)
	pr := h.open(t, hubsim.NewPullRequest{Branch: "topic"})
	for _, s := range []checks.State{checks.Queued, checks.InProgress, checks.Passed, checks.Contradicted, checks.Faulted,
		checks.Refused, checks.Superseded, checks.Cancelled, checks.OurFault} {
		run := rendered(pr, string(s), s)
		h.post(t, run, 0)
		runs := h.CheckRuns(testRepo, pr.HeadSHA)
		last := runs[0]
		for _, r := range runs {
			if r.ExternalID == string(s) {
				last = r
			}
		}
		if last.ExternalID != string(s) || last.Status != run.Status || last.Conclusion != run.Conclusion || len(last.Actions) != len(run.Actions) {
			t.Errorf("%s: %+v", s, last)
		}
	}
}

// TestPostNeverGoesBack: a late "queued" leaves "in_progress" alone, and the
// same state again is not sent again.
func TestPostNeverGoesBack(t *testing.T) {
	h := newHub(t)
	pr := h.open(t, hubsim.NewPullRequest{Branch: "topic"})
	id := h.post(t, rendered(pr, "e-1", checks.InProgress), 0)
	h.post(t, rendered(pr, "e-1", checks.Queued), id)
	h.post(t, rendered(pr, "e-1", checks.InProgress), id)
	h.expectCalls(t, 1, 1, 2, 0)
	if r := h.CheckRuns(testRepo, pr.HeadSHA); len(r) != 1 || r[0].Status != "in_progress" {
		t.Errorf("check runs %+v", r)
	}
}

func TestPostAfterACrash(t *testing.T) {
	answerLost := func(name string) func(http.ResponseWriter, *http.Request, http.Handler) bool {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
			if call(r) != name {
				return false
			}
			next.ServeHTTP(discard{http.Header{}}, r) // GitHub did it, nobody hears of it
			w.WriteHeader(http.StatusBadGateway)
			return true
		}
	}
	lost := func(name string) func(http.ResponseWriter, *http.Request, http.Handler) bool {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
			if call(r) != name {
				return false
			}
			w.WriteHeader(http.StatusBadGateway)
			return true
		}
	}
	for name, spoil := range map[string]func(http.ResponseWriter, *http.Request, http.Handler) bool{
		"create lost": lost(createCall), "answer to create lost": answerLost(createCall),
		"update lost": lost(updateCall), "answer to update lost": answerLost(updateCall),
		"list lost": lost(listCall), "get lost": lost(getCall),
	} {
		t.Run(name, func(t *testing.T) {
			h, ctx := newHub(t), context.Background()
			pr := h.open(t, hubsim.NewPullRequest{Branch: "topic"})
			h.setSpoil(spoil)
			failed := 0
			var id int64
			for _, s := range []checks.State{checks.Queued, checks.InProgress, checks.Passed} {
				made, err := h.github.Post(ctx, rendered(pr, "e-1", s), id)
				if err != nil {
					if errors.Is(err, checks.ErrGone) {
						t.Fatalf("a lost answer is no reason to give up: %v", err)
					}
					failed++
					h.setSpoil(nil)
					made = h.post(t, rendered(pr, "e-1", s), id) // the caller remembers no more than before
				}
				id = made
			}
			if failed != 1 {
				t.Errorf("%d failures, want the one that was made", failed)
			}
			if r := h.CheckRuns(testRepo, pr.HeadSHA); len(r) != 1 || r[0].ID != id || r[0].Conclusion != checks.Success {
				t.Errorf("check runs %+v", r)
			}
		})
	}
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

func TestPostFindsItsOwn(t *testing.T) {
	h := newHub(t)
	pr := h.open(t, hubsim.NewPullRequest{Branch: "topic"})
	var ids []int64
	for _, e := range []string{"e-1", "e-2", "e-3"} { // a new check run per rerun
		ids = append(ids, h.post(t, rendered(pr, e, checks.InProgress), 0))
	}
	for name, knownID := range map[string]int64{"nothing remembered": 0, "another's id": ids[0], "an id that is gone": 1 << 40} {
		if id := h.post(t, rendered(pr, "e-2", checks.InProgress), knownID); id != ids[1] {
			t.Errorf("%s: id %d, want %d", name, id, ids[1])
		}
	}
	if n := len(h.CheckRuns(testRepo, pr.HeadSHA)); n != 3 {
		t.Errorf("%d check runs, want 3", n)
	}
}

func TestPostTogether(t *testing.T) {
	h := newHub(t)
	pr := h.open(t, hubsim.NewPullRequest{Branch: "topic"})
	var wg sync.WaitGroup
	ids := make([]int64, 6)
	for i := range ids {
		wg.Go(func() {
			id, err := h.github.Post(context.Background(), rendered(pr, "e-1", checks.Queued), 0)
			if err != nil {
				t.Error(err)
			}
			ids[i] = id
		})
	}
	wg.Wait()
	if n := len(h.CheckRuns(testRepo, pr.HeadSHA)); n != 1 || h.count(createCall) != 1 {
		t.Errorf("%d check runs, %d made", n, h.count(createCall))
	}
	for _, id := range ids {
		if id != ids[0] || id == 0 {
			t.Errorf("ids %v", ids)
		}
	}
}

func TestPostRefuses(t *testing.T) {
	h, ctx := newHub(t), context.Background()
	pr := h.open(t, hubsim.NewPullRequest{Branch: "topic"})
	good := rendered(pr, "e-1", checks.Passed)
	for name, change := range map[string]func(*checks.Run){
		"neutral":                   func(r *checks.Run) { r.Conclusion = "neutral" },
		"skipped":                   func(r *checks.Run) { r.Conclusion = "skipped" },
		"completed, no conclusion":  func(r *checks.Run) { r.Conclusion = "" },
		"in progress, a conclusion": func(r *checks.Run) { r.Status = "in_progress" },
		"unknown status":            func(r *checks.Run) { r.Status, r.Conclusion = "waiting", "" },
		"no external id":            func(r *checks.Run) { r.ExternalID = "" },
		"no name":                   func(r *checks.Run) { r.Name = "" },
		"malformed head":            func(r *checks.Run) { r.HeadSHA = "main" },
		"malformed repository":      func(r *checks.Run) { r.Repo = "shop" },
	} {
		t.Run(name, func(t *testing.T) {
			run := good
			change(&run)
			if _, err := h.github.Post(ctx, run, 0); err == nil {
				t.Error("posted")
			}
		})
	}
	h.expectCalls(t, 0, 0, 0, 0)
	must(t, h.SetInstallationPermissions("octo-org", map[string]string{"metadata": "read", "checks": "read", "pull_requests": "read"}))
	if _, err := h.github.Post(ctx, good, 0); !errors.Is(err, checks.ErrGone) {
		t.Errorf("without the permission: %v", err)
	}
	must(t, h.Uninstall("octo-org"))
	if _, err := h.github.Post(ctx, good, 0); !errors.Is(err, checks.ErrGone) {
		t.Errorf("uninstalled: %v", err)
	}
}

// TestDeliveriesFromGitHub sends the simulated GitHub's own deliveries through
// intake, dispatcher and API.
func TestDeliveriesFromGitHub(t *testing.T) {
	h, ctx := newHub(t), context.Background()
	store, sessions := &memory{}, &world{}
	in, err := NewIntake(store, h.WebhookSecret())
	must(t, err)
	h.setSpoil(func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if r.URL.Path == "/webhook" {
			in.ServeHTTP(w, r)
		}
		return r.URL.Path == "/webhook"
	})
	h.SetWebhookURL(h.URL() + "/webhook")
	pr := h.open(t, hubsim.NewPullRequest{Branch: "topic"})
	must(t, h.ClosePullRequest(testRepo, pr.Number))
	must(t, h.Flush(ctx))
	accounts, err := NewAccounts("octo-org")
	must(t, err)
	d, err := NewDispatcher(accounts, &PullRequestHandler{Accounts: accounts, Installations: h.github, Pulls: h.github, Sessions: sessions})
	must(t, err)
	handled := 0
	for _, delivery := range store.saved {
		switch err := d.Dispatch(ctx, delivery); {
		case err == nil:
			handled++
		case !errors.Is(err, ErrIgnored):
			t.Errorf("%s %s: %v", delivery.Event, delivery.Action, err)
		}
	}
	// Both are hints: by the time they are handled, the pull request is closed.
	if handled != 2 || sessions.synced != 2 || sessions.syncedPR.State != "closed" || sessions.syncedPR.HeadSHA != pr.HeadSHA {
		t.Errorf("%d handled of %d, synced %d times with %+v", handled, len(store.saved), sessions.synced, sessions.syncedPR)
	}
}
