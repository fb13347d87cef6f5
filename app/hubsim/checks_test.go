package hubsim_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-github/v66/github"

	"underwrite/app/hubsim"
)

func TestCheckRunLife(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	var seen []string
	stop := w.OnCheckRun(func(r hubsim.CheckRun) { seen = append(seen, r.Status+r.Conclusion) })
	head := w.head(w.open("feature"))
	run, _, err := w.gh.Checks.CreateCheckRun(w.ctx, owner, name, github.CreateCheckRunOptions{
		Name: "underwrite/tests", HeadSHA: head, ExternalID: github.String("exec-1"), DetailsURL: github.String("https://underwrite.example.com/1"),
	})
	ok(t, err)
	if run.GetStatus() != "queued" || run.GetExternalID() != "exec-1" || run.GetHeadSHA() != head || run.GetApp().GetID() != w.AppID() {
		t.Errorf("created %v", run)
	}
	_, _, err = w.gh.Checks.UpdateCheckRun(w.ctx, owner, name, run.GetID(), github.UpdateCheckRunOptions{Name: "underwrite/tests", Status: github.String("in_progress")})
	ok(t, err)
	run, _, err = w.gh.Checks.UpdateCheckRun(w.ctx, owner, name, run.GetID(), github.UpdateCheckRunOptions{
		Name: "underwrite/tests", Status: github.String("completed"), Conclusion: github.String("success"), CompletedAt: &github.Timestamp{Time: time.Unix(1767225600, 0)},
		Output: &github.CheckRunOutput{Title: github.String("passed"), Summary: github.String("fine"), Text: github.String("log"), Annotations: []*github.CheckRunAnnotation{
			{Path: github.String("calc.py"), StartLine: github.Int(1), EndLine: github.Int(1), AnnotationLevel: github.String("notice"), Message: github.String("m")},
		}},
		Actions: []*github.CheckRunAction{{Label: "Re-run", Description: "Run it again", Identifier: "rerun"}},
	})
	ok(t, err)
	if run.GetConclusion() != "success" || run.GetOutput().GetTitle() != "passed" || run.GetOutput().GetAnnotationsCount() != 1 || run.GetCompletedAt().Unix() != 1767225600 {
		t.Errorf("completed %v", run)
	}
	got, _, err := w.gh.Checks.GetCheckRun(w.ctx, owner, name, run.GetID())
	ok(t, err)
	if got.GetConclusion() != "success" || len(got.PullRequests) != 1 {
		t.Errorf("read back %v", got)
	}
	remarks, _, err := w.gh.Checks.ListCheckRunAnnotations(w.ctx, owner, name, run.GetID(), nil)
	ok(t, err)
	if len(remarks) != 1 || remarks[0].GetPath() != "calc.py" {
		t.Errorf("annotations %v", remarks)
	}
	stop()
	if want := "queued in_progress completedsuccess"; strings.Join(seen, " ") != want {
		t.Errorf("watched %q, want %q", seen, want)
	}
	if runs := w.CheckRuns(repo, head); len(runs) != 1 || runs[0].Text != "log" || len(runs[0].Actions) != 1 || len(w.CheckRunHistory()) != 3 {
		t.Errorf("check runs = %+v", runs)
	}
	w.clean()
}

// create is a check run on head, created with the given changes.
func (w *world) create(head string, change func(*github.CreateCheckRunOptions)) (*github.CheckRun, error) {
	o := github.CreateCheckRunOptions{Name: "underwrite/tests", HeadSHA: head}
	if change != nil {
		change(&o)
	}
	run, _, err := w.gh.Checks.CreateCheckRun(w.ctx, owner, name, o)
	return run, err
}

func output(summary string) *github.CheckRunOutput {
	return &github.CheckRunOutput{Title: github.String("t"), Summary: &summary}
}

func TestCheckRunRules(t *testing.T) {
	action := func(label, description, identifier string) []*github.CheckRunAction {
		return []*github.CheckRunAction{{Label: label, Description: description, Identifier: identifier}}
	}
	long := strings.Repeat("x", 41)
	remark := func() *github.CheckRunAnnotation {
		return &github.CheckRunAnnotation{Path: github.String("a"), StartLine: github.Int(1), EndLine: github.Int(2), AnnotationLevel: github.String("notice"), Message: github.String("m")}
	}
	for _, tc := range []struct {
		name   string
		says   string // in the violation
		change func(*github.CreateCheckRunOptions)
	}{
		{"empty name", "name", func(o *github.CreateCheckRunOptions) { o.Name = "" }},
		{"completed without conclusion", "conclusion", func(o *github.CreateCheckRunOptions) { o.Status = github.String("completed") }},
		{"conclusion while queued", "status", func(o *github.CreateCheckRunOptions) {
			o.Status, o.Conclusion = github.String("queued"), github.String("success")
		}},
		{"unknown status", "status", func(o *github.CreateCheckRunOptions) { o.Status = github.String("running") }},
		{"unknown conclusion", "conclusion", func(o *github.CreateCheckRunOptions) { o.Conclusion = github.String("passed") }},
		{"stale", "stale", func(o *github.CreateCheckRunOptions) { o.Conclusion = github.String("stale") }},
		{"details_url", "details_url", func(o *github.CreateCheckRunOptions) { o.DetailsURL = github.String("javascript:x") }},
		{"summary bytes", "summary", func(o *github.CreateCheckRunOptions) { o.Output = output(strings.Repeat("ä", 32768)) }},
		{"text bytes", "text", func(o *github.CreateCheckRunOptions) {
			o.Output = output("s")
			o.Output.Text = github.String(strings.Repeat("ä", 32768))
		}},
		{"summary characters", "summary", func(o *github.CreateCheckRunOptions) { o.Output = output(strings.Repeat("x", 65536)) }},
		{"output without title", "title", func(o *github.CreateCheckRunOptions) { o.Output = &github.CheckRunOutput{Summary: github.String("s")} }},
		{"51 annotations", "annotations", func(o *github.CreateCheckRunOptions) {
			o.Output = output("s")
			for range 51 {
				o.Output.Annotations = append(o.Output.Annotations, remark())
			}
		}},
		{"annotation columns over lines", "start_column", func(o *github.CreateCheckRunOptions) {
			o.Output = output("s")
			o.Output.Annotations = []*github.CheckRunAnnotation{remark()}
			o.Output.Annotations[0].StartColumn = github.Int(1)
		}},
		{"four actions", "actions", func(o *github.CreateCheckRunOptions) {
			for range 4 {
				o.Actions = append(o.Actions, action("l", "d", "i")...)
			}
		}},
		{"action label", "label", func(o *github.CreateCheckRunOptions) { o.Actions = action(long[:21], "d", "i") }},
		{"action description", "description", func(o *github.CreateCheckRunOptions) { o.Actions = action("l", long, "i") }},
		{"action identifier", "identifier", func(o *github.CreateCheckRunOptions) { o.Actions = action("l", "d", long[:21]) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, hubsim.Options{})
			_, err := w.create(w.base, tc.change)
			w.status(err, http.StatusUnprocessableEntity, "")
			w.violated(tc.says)
			if runs := w.CheckRuns(repo, ""); len(runs) != 0 {
				t.Errorf("a refused check run exists: %v", runs)
			}
		})
	}
}

func TestCheckRunLimitsAreReached(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	full := strings.Repeat("x", 65535)
	_, err := w.create(w.base, func(o *github.CreateCheckRunOptions) {
		o.Output = output(full)
		o.Output.Text = &full
		for range 50 {
			o.Output.Annotations = append(o.Output.Annotations, &github.CheckRunAnnotation{
				Path: github.String("a"), StartLine: github.Int(1), EndLine: github.Int(1), AnnotationLevel: github.String("failure"), Message: github.String("m"),
			})
		}
		for range 3 {
			o.Actions = append(o.Actions, &github.CheckRunAction{Label: full[:20], Description: full[:40], Identifier: full[:20]})
		}
	})
	ok(t, err)
	run := w.CheckRuns(repo, w.base)[0]
	_, _, err = w.gh.Checks.UpdateCheckRun(w.ctx, owner, name, run.ID, github.UpdateCheckRunOptions{Name: run.Name, Output: &github.CheckRunOutput{
		Title: github.String("t"), Summary: github.String("s"), Annotations: []*github.CheckRunAnnotation{
			{Path: github.String("b"), StartLine: github.Int(1), EndLine: github.Int(1), AnnotationLevel: github.String("failure"), Message: github.String("m")},
		},
	}})
	ok(t, err)
	if n := len(w.CheckRuns(repo, w.base)[0].Annotations); n != 51 {
		t.Errorf("%d annotations, want 51: updates append", n)
	}
	w.clean()
}

func TestCompletedCheckRunIsNotReopened(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	run, err := w.create(w.base, func(o *github.CreateCheckRunOptions) { o.Conclusion = github.String("failure") })
	ok(t, err)
	if run.GetStatus() != "completed" || run.CompletedAt == nil {
		t.Errorf("a conclusion alone completes: %v", run)
	}
	_, _, err = w.gh.Checks.UpdateCheckRun(w.ctx, owner, name, run.GetID(), github.UpdateCheckRunOptions{Name: "x", Status: github.String("in_progress")})
	w.status(err, http.StatusUnprocessableEntity, "not reopened")
	w.violated("not reopened")
	if r := w.CheckRuns(repo, w.base)[0]; r.Name != "underwrite/tests" || r.Conclusion != "failure" {
		t.Errorf("a refused update changed the run: %+v", r)
	}
}

// TestCompletedUpdateNeedsConclusion: also on a run that is in progress.
func TestCompletedUpdateNeedsConclusion(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	run, err := w.create(w.base, nil)
	ok(t, err)
	_, _, err = w.gh.Checks.UpdateCheckRun(w.ctx, owner, name, run.GetID(), github.UpdateCheckRunOptions{Name: "x", Status: github.String("completed")})
	w.status(err, http.StatusUnprocessableEntity, "")
	w.violated("anyOf")
}

func TestCheckRunWhoAndWhere(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	body := fmt.Sprintf(`{"name":"n","head_sha":%q}`, w.base)
	path := "/repos/" + repo + "/check-runs"
	ok(t, w.SetPermission(repo, "octocat", "admin"))
	for _, tc := range []struct {
		name, authorization, body string
		code                      int
		says                      string
	}{
		{"nobody", "", body, 401, "Requires authentication"},
		{"a person", "token " + w.UserToken("octocat"), body, 403, "authenticate via a GitHub App"},
		{"read only", "token " + w.narrow(nil, map[string]string{"checks": "read"}), body, 403, "not accessible by integration"},
		{"no checks", "token " + w.narrow(nil, map[string]string{"contents": "read"}), body, 403, "not accessible by integration"},
		{"unknown commit", "token " + w.token(), strings.Replace(body, w.base, strings.Repeat("1", 40), 1), 422, "No commit found"},
		{"short commit", "token " + w.token(), strings.Replace(body, w.base, w.base[:10], 1), 422, "No commit found"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, got := w.do(http.MethodPost, path, tc.authorization, tc.body)
			if code != tc.code || !strings.Contains(got, tc.says) {
				t.Errorf("status %d %s, want %d %q", code, got, tc.code, tc.says)
			}
		})
	}
	// A commit of a fork is in the base repository only through a pull request.
	fork, err := w.Fork(repo, "hubot")
	ok(t, err)
	sha, err := w.Commit(fork, "patch", "m", hubsim.File("z", "z"))
	ok(t, err)
	_, err = w.create(sha, nil)
	w.status(err, http.StatusUnprocessableEntity, "No commit found")
	_, err = w.OpenPullRequest(hubsim.NewPullRequest{Repo: repo, HeadRepo: fork, Branch: "patch"})
	ok(t, err)
	run, err := w.create(sha, nil)
	ok(t, err)
	if len(run.PullRequests) != 0 {
		t.Errorf("a fork's pull request is listed: %v", run.PullRequests)
	}
	w.clean()
}

func TestListingCheckRuns(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	for _, n := range []string{"a", "b", "a", "c"} {
		_, err := w.create(w.base, func(o *github.CreateCheckRunOptions) { o.Name = n })
		ok(t, err)
	}
	_, _, err := w.gh.Checks.UpdateCheckRun(w.ctx, owner, name, w.CheckRuns(repo, "")[1].ID, github.UpdateCheckRunOptions{Name: "b", Conclusion: github.String("success")})
	ok(t, err)
	for _, tc := range []struct {
		name string
		o    github.ListCheckRunsOptions
		want string
	}{
		{"latest of each", github.ListCheckRunsOptions{}, "c a b"},
		{"all", github.ListCheckRunsOptions{Filter: github.String("all")}, "c a b a"},
		{"all of a name", github.ListCheckRunsOptions{Filter: github.String("all"), CheckName: github.String("a")}, "a a"},
		{"by status", github.ListCheckRunsOptions{Status: github.String("completed")}, "b"},
		{"of another app", github.ListCheckRunsOptions{AppID: github.Int64(7)}, ""},
		{"of this app", github.ListCheckRunsOptions{AppID: github.Int64(hubsim.DefaultAppID)}, "c a b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list, _, err := w.gh.Checks.ListCheckRunsForRef(w.ctx, owner, name, "heads/main", &tc.o)
			ok(t, err)
			var got []string
			for _, r := range list.CheckRuns {
				got = append(got, r.GetName())
			}
			if strings.Join(got, " ") != tc.want || list.GetTotal() != len(got) {
				t.Errorf("got %v of %d, want %s", got, list.GetTotal(), tc.want)
			}
		})
	}
	w.clean()
}

func TestPagination(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	for i := range 5 {
		_, err := w.create(w.base, func(o *github.CreateCheckRunOptions) { o.Name = fmt.Sprint("n", i) })
		ok(t, err)
	}
	var got []string
	o := &github.ListCheckRunsOptions{ListOptions: github.ListOptions{PerPage: 2}}
	pages := 0
	for {
		list, resp, err := w.gh.Checks.ListCheckRunsForRef(w.ctx, owner, name, w.base, o)
		ok(t, err)
		for _, r := range list.CheckRuns {
			got = append(got, r.GetName())
		}
		if pages++; resp.NextPage == 0 {
			break
		}
		if resp.LastPage != 3 {
			t.Errorf("last page %d, want 3", resp.LastPage)
		}
		o.Page = resp.NextPage
	}
	if strings.Join(got, " ") != "n4 n3 n2 n1 n0" || pages != 3 {
		t.Errorf("got %v on %d pages", got, pages)
	}
	w.clean()
}
