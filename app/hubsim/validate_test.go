package hubsim_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-github/v66/github"
	"golang.org/x/sync/errgroup"

	"underwrite/app/hubsim"
	"underwrite/attest"
	"underwrite/handlers/checks"
	"underwrite/runner/wire"
)

// TestOutsideOfTheDescription: each such call is refused and remembered.
func TestOutsideOfTheDescription(t *testing.T) {
	for _, tc := range []struct {
		name, method, path, body string
		code                     int
		says                     string // in the violation
	}{
		{"unknown path", http.MethodGet, "/repos/" + repo + "/secrets", "", 404, "not in the description"},
		{"unknown method", http.MethodPut, "/repos/" + repo + "/pulls/1", "", 404, "not in the description"},
		{"a review", http.MethodPost, "/repos/" + repo + "/pulls/1/reviews", "{}", 404, "not in the description"},
		{"a comment", http.MethodPost, "/repos/" + repo + "/issues/1/comments", `{"body":"x"}`, 404, "not in the description"},
		{"graphql", http.MethodPost, "/graphql", `{}`, 404, "not in the description"},
		{"empty owner", http.MethodGet, "/repos//calc", "", 404, "not in the description"},
		{"described, not simulated", http.MethodGet, "/repos/" + repo + "/rules/branches/main", "", 501, "does not simulate"},
		{"unknown query parameter", http.MethodGet, "/repos/" + repo + "/pulls?states=open", "", 422, `"states" is not described`},
		{"query value", http.MethodGet, "/repos/" + repo + "/pulls?state=opened", "", 422, "state"},
		{"path value", http.MethodGet, "/repos/" + repo + "/pulls/one", "", 422, "pull_number"},
		{"missing field", http.MethodPost, "/repos/" + repo + "/check-runs", `{"name":"x"}`, 422, "head_sha"},
		{"field of another type", http.MethodPost, "/repos/" + repo + "/check-runs", `{"name":1,"head_sha":"x"}`, 422, "name"},
		{"no body", http.MethodPost, "/repos/" + repo + "/check-runs", "", 422, "body"},
		{"broken JSON", http.MethodPost, "/repos/" + repo + "/check-runs", `{"name":`, 400, "parsing JSON"},
		{"body where none belongs", http.MethodDelete, "/installation/token", `{"a":1}`, 422, "body"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, hubsim.Options{})
			w.open("feature")
			code, body := w.do(tc.method, tc.path, "token "+w.token(), tc.body)
			if code != tc.code || !strings.Contains(body, `"message"`) {
				t.Errorf("status %d %s, want %d", code, body, tc.code)
			}
			w.violated(tc.says)
		})
	}
}

func TestBodyTooLarge(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	code, _ := w.do(http.MethodPost, "/repos/"+repo+"/check-runs", "token "+w.token(), `{"name":"`+strings.Repeat("x", 8<<20)+`"}`)
	if code != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", code)
	}
}

// TestRefs: refs with slashes are found, revision expressions are not.
func TestRefs(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	w.open("a/b/c")
	auth := "token " + w.token()
	for _, tc := range []struct {
		path string
		code int
	}{
		{"/git/ref/heads/a/b/c", 200},
		{"/git/ref/heads/a%2Fb%2Fc", 200},
		{"/git/ref/pull/1/head", 200},
		{"/git/ref/heads/a", 404},
		{"/git/ref/heads/missing", 404},
		{"/git/ref/heads/*", 404},
		{"/commits/a/b/c", 200},
		{"/commits/heads/a/b/c", 200},
		{"/commits/a/b/c/check-runs", 200},
		{"/commits/pull/1/head", 200},
		{"/commits/" + w.base, 200},
		{"/commits/" + w.base + "/pulls", 200},
		{"/commits/main~0", 422},
		{"/commits/main%5E%7Bcommit%7D", 422},
		{"/commits/--all", 422},
		{"/commits/" + w.base[:12], 422},
		{"/commits/" + strings.Repeat("0", 40), 422},
		{"/pulls/7", 404},
		{"/check-runs/7", 404},
	} {
		if code, body := w.do(http.MethodGet, "/repos/"+repo+tc.path, auth, ""); code != tc.code {
			t.Errorf("GET %s: status %d %s, want %d", tc.path, code, body, tc.code)
		}
		if code, _ := w.do(http.MethodGet, "/api/v3/repos/"+repo+tc.path, auth, ""); code != tc.code {
			t.Errorf("GET /api/v3…%s: status %d, want %d", tc.path, code, tc.code)
		}
	}
	w.clean()
}

// TestPullRequestPage: what a check run says is shown as GitHub would, and
// nothing in it is active.
func TestPullRequestPage(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	n := w.open("feature")
	p, err := w.PullRequest(repo, n)
	ok(t, err)
	path := strings.TrimPrefix(p.URL, w.URL())
	if _, body := w.do(http.MethodGet, path, "", ""); !strings.Contains(body, "No check runs yet") || !strings.Contains(body, "refresh") {
		t.Errorf("page without check runs:\n%s", body)
	}
	_, err = w.create(w.head(n), func(o *github.CreateCheckRunOptions) {
		o.Conclusion = github.String("timed_out")
		o.Output = output("**Result**: `a <b> c`\n\n- **Exit code**: 1\n\n````text\n<script>in a fence</script>\n```\n````\n\n" +
			"|a|b|\n|-|-|\n|1|2|\n\n<script>alert(1)</script>\n\n<img src=x onerror=alert(2)> [link](javascript:alert(3))\n")
	})
	ok(t, err)
	code, body := w.do(http.MethodGet, path, "", "")
	for _, want := range []string{
		"Add feature", ">underwrite/tests</h2>", `<span class="mark timed-out">timed out</span>`, w.head(n),
		"<strong>Result</strong>: <code>a &lt;b&gt; c</code>", "<li><strong>Exit code</strong>: 1</li>",
		"&lt;script&gt;in a fence&lt;/script&gt;\n```\n</code></pre>", "<td>2</td>",
	} {
		if code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("status %d, page without %q:\n%s", code, want, body)
		}
	}
	for _, bad := range []string{"<script", "<img", "javascript:", "refresh"} {
		if strings.Contains(body, bad) {
			t.Errorf("page with %q:\n%s", bad, body)
		}
	}
	if code, _ := w.do(http.MethodGet, "/"+repo+"/pull/7", "", ""); code != http.StatusNotFound {
		t.Errorf("page of nothing: status %d", code)
	}
	w.clean()
}

// TestPageOfRenderedCheckRuns: what the app posts about a hostile run reads on
// the page as it was meant, by a renderer that knows nothing of the app.
func TestPageOfRenderedCheckRuns(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	n := w.open("feature")
	const hostile = "</code></pre><script>alert(1)</script> ``` ````` **bold** [x](javascript:alert(1)) <img src=x> ![y](http://example.com/y.png)\n```\n# heading"
	run := checks.Render(checks.Report{
		Repo: repo, Number: n, Name: "tests", HeadSHA: w.head(n), State: checks.Faulted,
		Fault: wire.Fault{Kind: wire.FaultUnsupportedOutput, Detail: hostile, Path: hostile},
		Job:   attest.Job{Argv: []string{"/bin/sh", "-c", hostile}}, StdoutTail: []byte(hostile), StderrTail: []byte(strings.Repeat("`", 200) + hostile),
	})
	_, err := w.create(w.head(n), func(o *github.CreateCheckRunOptions) {
		o.Conclusion = github.String(run.Conclusion)
		o.Output = &github.CheckRunOutput{Title: &run.Title, Summary: &run.Summary, Text: &run.Text}
	})
	ok(t, err)
	p, err := w.PullRequest(repo, n)
	ok(t, err)
	_, body := w.do(http.MethodGet, strings.TrimPrefix(p.URL, w.URL()), "", "")
	for _, want := range []string{"&lt;script&gt;alert(1)&lt;/script&gt;", "# heading\n</code></pre>", "<strong>Command</strong>"} {
		if !strings.Contains(body, want) {
			t.Errorf("page without %q:\n%s", want, body)
		}
	}
	for _, bad := range []string{"<script", "<img", "<h1>heading", "<strong>bold", `href="javascript`, `src="http`, "raw HTML omitted"} {
		if strings.Contains(body, bad) {
			t.Errorf("page with %q:\n%s", bad, body)
		}
	}
	w.clean()
}

// TestConcurrentUse: people, the app and git at the same time; the race
// detector watches.
func TestConcurrentUse(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	r := w.receive()
	auth := basic(w.token())
	var g errgroup.Group
	for i := range 4 {
		branch := fmt.Sprint("b", i)
		g.Go(func() error {
			n, err := w.OpenPullRequest(hubsim.NewPullRequest{Repo: repo, Branch: branch, Changes: []hubsim.Change{hubsim.File(branch, "x")}})
			if err != nil {
				return err
			}
			head, err := w.Push(repo, n, hubsim.File(branch, "y"))
			if err != nil {
				return err
			}
			if _, err := w.create(head, func(o *github.CreateCheckRunOptions) { o.Conclusion = github.String("success") }); err != nil {
				return err
			}
			if _, err := w.WaitForCheckRun(w.ctx, repo, head, "underwrite/tests"); err != nil {
				return err
			}
			_, out, err := w.fetch(auth, fmt.Sprintf("refs/pull/%d/head:refs/head", n))
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			_, _, err = w.gh.PullRequests.Get(w.ctx, owner, name, int(n))
			return err
		})
	}
	ok(t, g.Wait())
	if got := w.take(r); len(got) != 8 {
		t.Errorf("%d webhooks, want 8", len(got))
	}
	w.clean()
}

// TestMiddleware: the seam sees the API and git alike.
func TestMiddleware(t *testing.T) {
	down := false
	w := newWorld(t, hubsim.Options{Middleware: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if down {
				http.Error(rw, "down", http.StatusBadGateway)
				return
			}
			next.ServeHTTP(rw, r)
		})
	}})
	auth := "token " + w.token()
	if code, _ := w.do(http.MethodGet, "/repos/"+repo, auth, ""); code != http.StatusOK {
		t.Errorf("status %d", code)
	}
	down = true
	for _, path := range []string{"/repos/" + repo, "/" + repo + ".git/info/refs?service=git-upload-pack"} {
		if code, _ := w.do(http.MethodGet, path, auth, ""); code != http.StatusBadGateway {
			t.Errorf("GET %s: status %d", path, code)
		}
	}
}
