package hubsim_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-github/v66/github"

	"underwrite/app/hubsim"
)

// received is a webhook as the app gets it.
type received struct {
	header http.Header
	body   []byte
}

// receiver collects webhooks and answers with a status that tests set.
type receiver struct {
	mu     sync.Mutex
	got    []received
	status atomic.Int64
}

// receive lets a world deliver to a receiver.
func (w *world) receive() *receiver {
	r := &receiver{}
	r.status.Store(http.StatusAccepted)
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			w.t.Error(err)
		}
		r.mu.Lock()
		r.got = append(r.got, received{req.Header, body})
		r.mu.Unlock()
		rw.WriteHeader(int(r.status.Load()))
	}))
	w.t.Cleanup(s.Close)
	ok(w.t, w.Flush(w.ctx))
	w.SetWebhookURL(s.URL)
	return r
}

// take waits for the queue to empty and returns what arrived since.
func (w *world) take(r *receiver) []received {
	w.t.Helper()
	ok(w.t, w.Flush(w.ctx))
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.got
	r.got = nil
	return got
}

// one is the only webhook that arrived, parsed by go-github after its
// signature was checked.
func (w *world) one(r *receiver) (event any, raw received) {
	w.t.Helper()
	got := w.take(r)
	if len(got) != 1 {
		w.t.Fatalf("%d webhooks arrived, want 1", len(got))
	}
	raw = got[0]
	mac := hmac.New(sha256.New, []byte(w.WebhookSecret()))
	mac.Write(raw.body)
	if want := "sha256=" + hex.EncodeToString(mac.Sum(nil)); raw.header.Get("X-Hub-Signature-256") != want {
		w.t.Errorf("signature %s, want %s", raw.header.Get("X-Hub-Signature-256"), want)
	}
	ok(w.t, github.ValidateSignature(raw.header.Get("X-Hub-Signature-256"), raw.body, []byte(w.WebhookSecret())))
	event, err := github.ParseWebHook(raw.header.Get("X-GitHub-Event"), raw.body)
	ok(w.t, err)
	return event, raw
}

func (w *world) onePull(r *receiver, action string) *github.PullRequestEvent {
	w.t.Helper()
	event, _ := w.one(r)
	e, isPull := event.(*github.PullRequestEvent)
	if !isPull || e.GetAction() != action {
		w.t.Fatalf("event %T %v, want pull_request.%s", event, event, action)
	}
	if e.GetRepo().GetFullName() != repo || e.GetInstallation().GetID() != w.installation || e.GetNumber() == 0 {
		w.t.Errorf("repository %v, installation %v, number %d", e.GetRepo(), e.GetInstallation(), e.GetNumber())
	}
	return e
}

func TestPullRequestEvents(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	_, err := w.Commit(repo, "release", "Start a release", hubsim.File("VERSION", "1\n"))
	ok(t, err)
	r := w.receive()
	n := w.open("feature")
	first := w.head(n)
	if e := w.onePull(r, "opened"); e.GetPullRequest().GetHead().GetSHA() != first || e.GetSender().GetLogin() != "octocat" {
		t.Errorf("opened: %v", e)
	}
	second, err := w.Push(repo, n, hubsim.File("more.py", "y\n"))
	ok(t, err)
	if e := w.onePull(r, "synchronize"); e.GetBefore() != first || e.GetAfter() != second || e.GetPullRequest().GetCommits() != 2 {
		t.Errorf("synchronize: %v", e)
	}
	ok(t, w.SetBranch(repo, "feature", first)) // a forced push
	if e := w.onePull(r, "synchronize"); e.GetBefore() != second || e.GetAfter() != first {
		t.Errorf("forced push: %v", e)
	}
	ok(t, w.Retarget(repo, n, "release"))
	if e := w.onePull(r, "edited"); e.GetChanges().GetBase().GetRef().GetFrom() != "main" || e.GetPullRequest().GetBase().GetRef() != "release" {
		t.Errorf("edited: %v", e)
	}
	if err := w.Retarget(repo, n, "missing"); !errors.Is(err, hubsim.ErrNotFound) {
		t.Errorf("retarget to nothing: %v", err)
	}
	ok(t, w.ClosePullRequest(repo, n))
	if e := w.onePull(r, "closed"); e.GetPullRequest().GetState() != "closed" || e.GetPullRequest().GetMerged() {
		t.Errorf("closed: %v", e)
	}
	third, err := w.Push(repo, n, hubsim.File("even-more.py", "z\n"))
	ok(t, err)
	if got := w.take(r); len(got) != 0 || w.head(n) != first {
		t.Errorf("a closed pull request followed its branch: %d webhooks", len(got))
	}
	ok(t, w.ReopenPullRequest(repo, n))
	if e := w.onePull(r, "reopened"); e.GetPullRequest().GetHead().GetSHA() != third || e.GetPullRequest().ClosedAt != nil {
		t.Errorf("reopened: %v", e)
	}
	merge, err := w.Merge(repo, n, "octocat")
	ok(t, err)
	if e := w.onePull(r, "closed"); !e.GetPullRequest().GetMerged() || e.GetPullRequest().GetMergeCommitSHA() != merge || e.GetPullRequest().GetMergedBy().GetLogin() != "octocat" {
		t.Errorf("merged: %v", e)
	}
	if err := w.ReopenPullRequest(repo, n); err == nil {
		t.Error("a merged pull request was reopened")
	}
	w.clean()
}

// TestOneBranchTwoPullRequests: a push moves both, and a commit on the base
// moves none.
func TestOneBranchTwoPullRequests(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	_, err := w.Commit(repo, "release", "Start a release", hubsim.File("VERSION", "1\n"))
	ok(t, err)
	w.open("feature")
	_, err = w.OpenPullRequest(hubsim.NewPullRequest{Repo: repo, Base: "release", Branch: "feature"})
	ok(t, err)
	r := w.receive()
	_, err = w.Commit(repo, "main", "base moves", hubsim.File("b", "b"))
	ok(t, err)
	if got := w.take(r); len(got) != 0 {
		t.Errorf("%d webhooks for a commit on the base", len(got))
	}
	sha, err := w.Commit(repo, "feature", "head moves", hubsim.File("c", "c"))
	ok(t, err)
	if got := w.take(r); len(got) != 2 || w.head(1) != sha || w.head(2) != sha {
		t.Errorf("%d webhooks, heads %s and %s, want %s", len(got), w.head(1), w.head(2), sha)
	}
	list, _, err := w.gh.PullRequests.ListPullRequestsWithCommit(w.ctx, owner, name, sha, nil)
	ok(t, err)
	if len(list) != 2 {
		t.Errorf("the head has %d pull requests, want 2", len(list))
	}
	w.clean()
}

func TestCommentEvents(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	n := w.open("feature")
	r := w.receive()
	id, err := w.Comment(repo, n, "mona", "/underwrite prove")
	ok(t, err)
	event, _ := w.one(r)
	e, isComment := event.(*github.IssueCommentEvent)
	if !isComment || e.GetComment().GetBody() != "/underwrite prove" || e.GetComment().GetID() != id || !e.GetIssue().IsPullRequest() || e.GetIssue().GetNumber() != int(n) {
		t.Errorf("event %v", event)
	}
	got, _, err := w.gh.Issues.GetComment(w.ctx, owner, name, id)
	ok(t, err)
	if got.GetUser().GetLogin() != "mona" || got.GetAuthorAssociation() != "NONE" {
		t.Errorf("comment %v", got)
	}
	list, _, err := w.gh.Issues.ListComments(w.ctx, owner, name, int(n), nil)
	ok(t, err)
	if len(list) != 1 || list[0].GetID() != id {
		t.Errorf("comments %v", list)
	}
	_, _, err = w.gh.Issues.GetComment(w.ctx, owner, name, 7)
	w.status(err, http.StatusNotFound, "")
	w.clean()
}

func TestCheckEvents(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	head := w.head(w.open("feature"))
	run, err := w.create(head, func(o *github.CreateCheckRunOptions) {
		o.Conclusion, o.ExternalID = github.String("failure"), github.String("exec-1")
		o.Actions = []*github.CheckRunAction{{Label: "Approve", Description: "Run it", Identifier: "approve"}}
	})
	ok(t, err)
	r := w.receive()
	ok(t, w.Rerequest(repo, run.GetID(), "mona"))
	event, _ := w.one(r)
	e, isRun := event.(*github.CheckRunEvent)
	if !isRun || e.GetAction() != "rerequested" || e.GetCheckRun().GetExternalID() != "exec-1" || e.GetCheckRun().GetCheckSuite().GetHeadSHA() != head || e.GetSender().GetLogin() != "mona" {
		t.Errorf("event %v", event)
	}
	ok(t, w.RequestAction(repo, run.GetID(), "approve", "mona"))
	event, _ = w.one(r)
	if e := event.(*github.CheckRunEvent); e.GetAction() != "requested_action" || e.GetRequestedAction().Identifier != "approve" {
		t.Errorf("event %v", event)
	}
	if err := w.RequestAction(repo, run.GetID(), "other", "mona"); !errors.Is(err, hubsim.ErrNotFound) {
		t.Errorf("a button that is not there: %v", err)
	}
	ok(t, w.RerequestSuite(repo, head, "mona"))
	event, _ = w.one(r)
	if e, isSuite := event.(*github.CheckSuiteEvent); !isSuite || e.GetAction() != "rerequested" || e.GetCheckSuite().GetConclusion() != "failure" {
		t.Errorf("event %v", event)
	}
	_, err = w.gh.Checks.ReRequestCheckSuite(w.ctx, owner, name, run.GetCheckSuite().GetID())
	ok(t, err)
	event, _ = w.one(r)
	if e, isSuite := event.(*github.CheckSuiteEvent); !isSuite || e.GetSender().GetLogin() != hubsim.DefaultAppSlug+"[bot]" {
		t.Errorf("event %v", event)
	}
	suites, _, err := w.gh.Checks.ListCheckSuitesForRef(w.ctx, owner, name, head, &github.ListCheckSuiteOptions{CheckName: github.String("underwrite/tests")})
	ok(t, err)
	others, _, err := w.gh.Checks.ListCheckSuitesForRef(w.ctx, owner, name, head, &github.ListCheckSuiteOptions{AppID: github.Int(7)})
	ok(t, err)
	if suites.GetTotal() != 1 || others.GetTotal() != 0 {
		t.Errorf("%d suites of the check, %d of another app", suites.GetTotal(), others.GetTotal())
	}
	suite, _, err := w.gh.Checks.GetCheckSuite(w.ctx, owner, name, run.GetCheckSuite().GetID())
	ok(t, err)
	runs, _, err := w.gh.Checks.ListCheckRunsCheckSuite(w.ctx, owner, name, suite.GetID(), nil)
	ok(t, err)
	if suite.GetHeadSHA() != head || runs.GetTotal() != 1 {
		t.Errorf("suite %v, runs %v", suite, runs)
	}
	w.clean()
}

func TestDeliveriesAndRedelivery(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	r := w.receive()
	r.status.Store(http.StatusServiceUnavailable)
	w.open("feature")
	_, first := w.one(r)
	list, _, err := w.app.Apps.ListHookDeliveries(w.ctx, nil)
	ok(t, err)
	failed := list[0] // newest first
	if failed.GetStatusCode() != 503 || failed.GetEvent() != "pull_request" || failed.GetAction() != "opened" || failed.GetRedelivery() || failed.GetGUID() != first.header.Get("X-GitHub-Delivery") {
		t.Errorf("delivery %v", failed)
	}
	r.status.Store(http.StatusAccepted)
	_, _, err = w.app.Apps.RedeliverHookDelivery(w.ctx, failed.GetID())
	if accepted := new(github.AcceptedError); !errors.As(err, &accepted) {
		t.Fatalf("redeliver: %v, want it accepted", err)
	}
	_, again := w.one(r)
	if again.header.Get("X-GitHub-Delivery") != failed.GetGUID() || string(again.body) != string(first.body) {
		t.Errorf("redelivered as %s, or another body", again.header.Get("X-GitHub-Delivery"))
	}
	list, _, err = w.app.Apps.ListHookDeliveries(w.ctx, nil)
	ok(t, err)
	got, _, err := w.app.Apps.GetHookDelivery(w.ctx, list[0].GetID())
	ok(t, err)
	if !got.GetRedelivery() || got.GetStatus() != "OK" || got.GetGUID() != failed.GetGUID() || string(got.GetRequest().GetRawPayload()) == "" {
		t.Errorf("redelivery %v", got)
	}
	_, _, err = w.app.Apps.GetHookDelivery(w.ctx, 7)
	w.status(err, http.StatusNotFound, "")
	w.clean()
}

// TestDeliveryCursor pages through all deliveries, each once.
func TestDeliveryCursor(t *testing.T) {
	w := newWorld(t, hubsim.Options{}) // its webhook URL is empty: every delivery fails
	for _, b := range []string{"a", "b", "c", "d"} {
		w.open(b)
	}
	ok(t, w.Flush(w.ctx))
	var got []int64
	o := &github.ListCursorOptions{PerPage: 2}
	for {
		list, resp, err := w.app.Apps.ListHookDeliveries(w.ctx, o)
		ok(t, err)
		for _, d := range list {
			got = append(got, d.GetID())
		}
		if resp.Cursor == "" {
			break
		}
		o.Cursor = resp.Cursor
	}
	var want []int64
	for _, d := range slices.Backward(w.Deliveries()) {
		want = append(want, d.ID)
		if d.Attempted != true || d.Status != "no webhook URL" || d.StatusCode != 0 {
			t.Errorf("delivery %+v", d)
		}
	}
	if !slices.Equal(got, want) || len(got) != 5 { // installation.created too
		t.Errorf("listed %v, want %v", got, want)
	}
	w.clean()
}

func TestDeliveryHeaders(t *testing.T) {
	w := newWorld(t, hubsim.Options{WebhookSecret: "It's a Secret to Everybody"})
	r := w.receive()
	w.open("feature")
	_, raw := w.one(r)
	for k, want := range map[string]string{
		"X-GitHub-Event": "pull_request", "Content-Type": "application/json", "X-GitHub-Hook-Installation-Target-Type": "integration",
		"X-GitHub-Hook-Installation-Target-ID": "100001",
	} {
		if raw.header.Get(k) != want {
			t.Errorf("%s: %q, want %q", k, raw.header.Get(k), want)
		}
	}
	if len(raw.header.Get("X-GitHub-Delivery")) != 36 || !strings.HasPrefix(raw.header.Get("User-Agent"), "GitHub-Hookshot/") {
		t.Errorf("header %v", raw.header)
	}
}

// TestNotSubscribed: an app gets only the events that it asked for, and only
// where it is installed.
func TestNotSubscribed(t *testing.T) {
	w := newWorld(t, hubsim.Options{Events: []string{"issue_comment"}})
	r := w.receive()
	n := w.open("feature")
	if got := w.take(r); len(got) != 0 {
		t.Errorf("%d webhooks for an event without subscription", len(got))
	}
	ok(t, w.Uninstall(owner))
	if _, raw := w.one(r); raw.header.Get("X-GitHub-Event") != "installation" {
		t.Errorf("event %s, want installation", raw.header.Get("X-GitHub-Event"))
	}
	_, err := w.Comment(repo, n, "mona", "hello")
	ok(t, err)
	if got := w.take(r); len(got) != 0 {
		t.Errorf("%d webhooks without an installation", len(got))
	}
}

// TestRequestSuites: with the option each push asks for a check suite, as on
// GitHub, and a fork's push does not.
func TestRequestSuites(t *testing.T) {
	w := newWorld(t, hubsim.Options{RequestSuites: true})
	fork, err := w.Fork(repo, "hubot")
	ok(t, err)
	r := w.receive()
	_, err = w.Commit(fork, "patch", "m", hubsim.File("a", "a"))
	ok(t, err)
	if got := w.take(r); len(got) != 0 {
		t.Errorf("%d webhooks for a fork's push", len(got))
	}
	sha, err := w.Commit(repo, "feature", "m", hubsim.File("a", "a"))
	ok(t, err)
	event, _ := w.one(r)
	if e, isSuite := event.(*github.CheckSuiteEvent); !isSuite || e.GetAction() != "requested" || e.GetCheckSuite().GetHeadSHA() != sha {
		t.Errorf("event %v", event)
	}
}

// TestHookConfig: the app can move its own webhook.
func TestHookConfig(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	r := w.receive()
	target, _, err := w.app.Apps.GetHookConfig(w.ctx)
	ok(t, err)
	w.SetWebhookURL("http://127.0.0.1:1/nowhere")
	_, _, err = w.app.Apps.UpdateHookConfig(w.ctx, &github.HookConfig{URL: target.URL, Secret: github.String("another")})
	ok(t, err)
	w.open("feature")
	w.onePull(r, "opened")
	if w.WebhookSecret() != "another" {
		t.Error("the secret was not changed")
	}
	w.clean()
}

func TestSendRaw(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	r := w.receive()
	w.SendRaw("push", []byte(`{"zen":1}`))
	w.SendRaw("odd", []byte("no JSON"))
	got := w.take(r)
	if len(got) != 2 || string(got[0].body) != `{"zen":1}` || got[1].header.Get("X-GitHub-Event") != "odd" {
		t.Fatalf("got %v", got)
	}
	for _, d := range w.Deliveries() {
		if _, _, err := w.app.Apps.GetHookDelivery(w.ctx, d.ID); err != nil {
			t.Error(err)
		}
	}
	w.clean()
}

// TestTransportSeam: a transport of the test's own sees every delivery.
func TestTransportSeam(t *testing.T) {
	lost := errors.New("lost")
	w := newWorld(t, hubsim.Options{Transport: roundTrip(func(*http.Request) (*http.Response, error) { return nil, lost })})
	w.SetWebhookURL("http://app.example.com/webhook")
	w.open("feature")
	ok(t, w.Flush(w.ctx))
	d := w.Deliveries()
	if last := d[len(d)-1]; last.StatusCode != 0 || last.Status != "failed to connect to host" {
		t.Errorf("delivery %+v", last)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestPayloadShapes: each payload has every field, with a value of the same
// kind, that GitHub's example of the event has (testdata/shapes).
func TestPayloadShapes(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	n := w.open("feature")
	run, err := w.create(w.head(n), func(o *github.CreateCheckRunOptions) { o.Conclusion, o.Output = github.String("failure"), output("s") })
	ok(t, err)
	_, err = w.Push(repo, n, hubsim.File("more", "m"))
	ok(t, err)
	_, err = w.Comment(repo, n, "mona", "hello")
	ok(t, err)
	ok(t, w.Rerequest(repo, run.GetID(), "mona"))
	ok(t, w.RerequestSuite(repo, run.GetHeadSHA(), "mona"))
	ok(t, w.ClosePullRequest(repo, n))
	ok(t, w.Flush(w.ctx))
	files, err := filepath.Glob("testdata/shapes/*.txt")
	ok(t, err)
	if len(files) != 7 {
		t.Fatalf("%d shapes, want 7", len(files))
	}
	for _, file := range files {
		event := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(event, func(t *testing.T) {
			text, err := os.ReadFile(file)
			ok(t, err)
			got := shapeOf(t, w.Deliveries(), event)
			for line := range strings.Lines(string(text)) {
				path, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
				switch got[path] {
				case "":
					t.Errorf("%s is missing", path)
				case kind, "null": // the example's value, or none
				default:
					if kind != "null" {
						t.Errorf("%s is %s, want %s", path, got[path], kind)
					}
				}
			}
		})
	}
}

func shapeOf(t *testing.T, deliveries []hubsim.Delivery, event string) map[string]string {
	t.Helper()
	for _, d := range deliveries {
		if d.Event+"."+d.Action == event {
			var v any
			ok(t, json.Unmarshal(d.Body, &v))
			shape := map[string]string{}
			collect(shape, "", v)
			return shape
		}
	}
	t.Fatalf("no delivery of %s", event)
	return nil
}

// collect notes the kind of every field below v; arrays are not entered.
func collect(shape map[string]string, path string, v any) {
	kind := "null"
	switch v := v.(type) {
	case map[string]any:
		kind = "object"
		for k, e := range v {
			collect(shape, path+"/"+k, e)
		}
	case []any:
		kind = "array"
	case string:
		kind = "string"
	case float64:
		kind = "number"
	case bool:
		kind = "boolean"
	}
	shape[path] = kind
}

func TestWaitFor(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	done := make(chan error, 2)
	go func() {
		done <- w.WaitFor(w.ctx, func() bool { return len(w.CheckRuns(repo, w.base)) == 2 })
	}()
	go func() {
		run, err := w.WaitForCheckRun(w.ctx, repo, w.base, "underwrite/tests")
		if err == nil && run.Conclusion != "success" {
			err = errors.New("conclusion " + run.Conclusion)
		}
		done <- err
	}()
	for range 2 {
		_, err := w.create(w.base, nil)
		ok(t, err)
	}
	_, _, err := w.gh.Checks.UpdateCheckRun(w.ctx, owner, name, w.CheckRuns(repo, w.base)[1].ID, github.UpdateCheckRunOptions{Name: "underwrite/tests", Conclusion: github.String("success")})
	ok(t, err)
	ok(t, <-done)
	ok(t, <-done)
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	if err := w.WaitFor(ctx, func() bool { return false }); !errors.Is(err, context.Canceled) {
		t.Errorf("WaitFor = %v", err)
	}
}
