package hubsim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// CheckRun is a check run as it stood at one moment.
type CheckRun struct {
	ID          int64
	Repo        string // owner/name
	HeadSHA     string
	Name        string
	ExternalID  string
	DetailsURL  string
	Status      string // queued, in_progress or completed
	Conclusion  string // empty unless completed
	StartedAt   time.Time
	CompletedAt time.Time // zero unless completed
	Title       string
	Summary     string
	Text        string
	Annotations []Annotation
	Actions     []Action
}

// Annotation is a remark on lines of a file.
type Annotation struct {
	Path            string `json:"path"`
	StartLine       int    `json:"start_line"`
	EndLine         int    `json:"end_line"`
	StartColumn     *int   `json:"start_column"`
	EndColumn       *int   `json:"end_column"`
	AnnotationLevel string `json:"annotation_level"`
	Message         string `json:"message"`
	Title           string `json:"title"`
	RawDetails      string `json:"raw_details"`
}

// Action is a button on a check run.
type Action struct {
	Label       string `json:"label"`
	Description string `json:"description"`
	Identifier  string `json:"identifier"`
}

type checkRun struct {
	CheckRun
	repo  *repository
	suite *checkSuite
}

// A checkSuite holds the app's check runs on one commit.
type checkSuite struct {
	id        int64
	headSHA   string
	createdAt time.Time
}

// suite finds or makes the app's check suite of a commit.
func (h *Hub) suite(r *repository, sha string) *checkSuite {
	s := r.suites[sha]
	if s == nil {
		s = &checkSuite{id: h.newID(), headSHA: sha, createdAt: h.now()}
		r.suites[sha] = s
	}
	return s
}

func (c CheckRun) clone() CheckRun {
	c.Annotations, c.Actions = slices.Clone(c.Annotations), slices.Clone(c.Actions)
	return c
}

// recordRun remembers a new version of a check run and wakes its watchers.
func (h *Hub) recordRun(run *checkRun) {
	h.runLog = append(h.runLog, run.clone())
	h.touch()
}

// CheckRuns lists the check runs on a commit of a repository, oldest first;
// with an empty sha those on all commits.
func (h *Hub) CheckRuns(fullName, sha string) []CheckRun {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, err := h.repo(fullName)
	if err != nil {
		return nil
	}
	var list []CheckRun
	for _, run := range r.runs {
		if sha == "" || run.HeadSHA == sha {
			list = append(list, run.clone())
		}
	}
	return list
}

// CheckRunHistory lists every version of every check run, in the order in which
// they were written.
func (h *Hub) CheckRunHistory() []CheckRun {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.runLog)
}

// WaitForCheckRun waits until the newest check run of a name on a commit is
// completed, and returns it. The error is that of ctx.
func (h *Hub) WaitForCheckRun(ctx context.Context, fullName, sha, name string) (CheckRun, error) {
	var newest CheckRun
	err := h.WaitFor(ctx, func() bool {
		for _, run := range h.CheckRuns(fullName, sha) {
			if run.Name == name {
				newest = run
			}
		}
		return newest.Status == "completed"
	})
	return newest, err
}

// OnCheckRun calls f with every version of every check run from now on, one at
// a time and in order, outside of any lock. stop returns when f was called for
// all that had been written before; f must not call it.
func (h *Hub) OnCheckRun(f func(CheckRun)) (stop func()) {
	h.mu.Lock()
	next := len(h.runLog)
	h.mu.Unlock()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			h.mu.Lock()
			news, changed := slices.Clone(h.runLog[next:]), h.changed
			h.mu.Unlock()
			for _, run := range news {
				f(run)
			}
			if next += len(news); len(news) > 0 {
				continue
			}
			select {
			case <-changed:
			case <-quit:
				if h.ranAhead(next) {
					continue
				}
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

func (h *Hub) ranAhead(next int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.runLog) > next
}

// checkRun finds a check run of a repository. Callers hold mu.
func (r *repository) checkRun(id int64) *checkRun {
	for _, run := range r.runs {
		if run.ID == id {
			return run
		}
	}
	return nil
}

// Rerequest presses "Re-run" on a check run: check_run.rerequested is sent. The
// run itself stays as it is.
func (h *Hub) Rerequest(fullName string, id int64, user string) error {
	return h.pressed(fullName, id, user, "rerequested", nil)
}

// RequestAction presses one of the buttons on a check run: the app gets
// check_run.requested_action with the identifier.
func (h *Hub) RequestAction(fullName string, id int64, identifier, user string) error {
	return h.pressed(fullName, id, user, "requested_action", object{"requested_action": object{"identifier": identifier}})
}

func (h *Hub) pressed(fullName string, id int64, user, action string, extra object) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, err := h.repo(fullName)
	if err != nil {
		return err
	}
	run := r.checkRun(id)
	if run == nil {
		return fmt.Errorf("check run %d of %s: %w", id, fullName, ErrNotFound)
	}
	if action == "requested_action" {
		wanted := extra["requested_action"].(object)["identifier"]
		if !slices.ContainsFunc(run.Actions, func(a Action) bool { return a.Identifier == wanted }) {
			return fmt.Errorf("action %q of check run %d: %w", wanted, id, ErrNotFound)
		}
	}
	h.sendRun(run, action, h.account(user), extra)
	return nil
}

func (h *Hub) sendRun(run *checkRun, action string, sender *account, extra object) {
	payload := object{"check_run": h.runPayload(run)}
	for k, v := range extra {
		payload[k] = v
	}
	h.send("check_run", action, h.installationOf(run.repo), run.repo, sender, payload)
}

// RerequestSuite presses "Re-run all checks" on a commit: check_suite.rerequested
// is sent.
func (h *Hub) RerequestSuite(fullName, sha, user string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, err := h.repo(fullName)
	if err != nil {
		return err
	}
	s := r.suites[sha]
	if s == nil {
		return fmt.Errorf("check suite of %s in %s: %w", sha, fullName, ErrNotFound)
	}
	return h.sendSuite(r, s, "rerequested", h.account(user))
}

func (h *Hub) sendSuite(r *repository, s *checkSuite, action string, sender *account) error {
	list, err := r.git.log("--max-count=1", s.headSHA)
	if err != nil {
		return err
	}
	o := h.suiteJSON(r, s)
	o["head_commit"] = simpleCommit(list[0])
	h.send("check_suite", action, h.installationOf(r), r, sender, object{"check_suite": o})
	return nil
}

// bot is the account that the app acts as.
func (h *Hub) bot() *account { return h.account(h.opts.AppSlug + "[bot]") }

func simpleCommit(c commitInfo) object {
	return object{
		"id": c.sha, "tree_id": c.tree, "message": c.message, "timestamp": c.cdate,
		"author": object{"name": c.name, "email": c.email}, "committer": object{"name": c.cname, "email": c.cemail},
	}
}

// latest keeps the newest run of each name.
func latest(runs []*checkRun) []*checkRun {
	newest := map[string]int64{}
	for _, run := range runs {
		newest[run.Name] = max(newest[run.Name], run.ID)
	}
	return slices.DeleteFunc(slices.Clone(runs), func(run *checkRun) bool { return run.ID != newest[run.Name] })
}

func (h *Hub) runJSON(run *checkRun) object {
	url := fmt.Sprintf("%s/check-runs/%d", h.repoURL(run.repo), run.ID)
	o := object{
		"id": run.ID, "node_id": nodeID("CheckRun", run.ID), "head_sha": run.HeadSHA, "external_id": run.ExternalID, "url": url,
		"html_url": fmt.Sprintf("%s/runs/%d", h.repoPage(run.repo), run.ID), "details_url": stringOrNull(run.DetailsURL),
		"status": run.Status, "conclusion": stringOrNull(run.Conclusion), "started_at": timeOrNull(&run.StartedAt),
		"completed_at": timeOrNull(&run.CompletedAt), "name": run.Name, "check_suite": object{"id": run.suite.id}, "app": h.appJSON(),
		"output": object{
			"title": stringOrNull(run.Title), "summary": stringOrNull(run.Summary), "text": stringOrNull(run.Text),
			"annotations_count": len(run.Annotations), "annotations_url": url + "/annotations",
		},
		"pull_requests": h.pullsAt(run.repo, run.HeadSHA),
	}
	return o
}

// runPayload is a check run as its event has it: with its whole suite.
func (h *Hub) runPayload(run *checkRun) object {
	o := h.runJSON(run)
	o["check_suite"] = h.suiteJSON(run.repo, run.suite)
	return o
}

// suiteJSON is a check suite; its state follows from its latest runs.
func (h *Hub) suiteJSON(r *repository, s *checkSuite) object {
	var runs []*checkRun
	for _, run := range r.runs {
		if run.suite == s {
			runs = append(runs, run)
		}
	}
	runs = latest(runs)
	status, conclusion := suiteState(runs)
	url := fmt.Sprintf("%s/check-suites/%d", h.repoURL(r), s.id)
	return object{
		"id": s.id, "node_id": nodeID("CheckSuite", s.id), "head_branch": h.branchAt(r, s.headSHA), "head_sha": s.headSHA,
		"status": status, "conclusion": stringOrNull(conclusion), "url": url, "before": nil, "after": s.headSHA,
		"pull_requests": h.pullsAt(r, s.headSHA), "app": h.appJSON(), "created_at": timeJSON(s.createdAt),
		"updated_at": timeJSON(s.createdAt), "latest_check_runs_count": len(runs), "check_runs_url": url + "/check-runs",
		"rerequestable": true, "runs_rerequestable": true,
	}
}

// conclusions from the best to the worst.
var conclusions = []string{"success", "neutral", "skipped", "cancelled", "timed_out", "action_required", "failure"}

func suiteState(runs []*checkRun) (status, conclusion string) {
	status = "queued"
	for _, run := range runs {
		if run.Status != "completed" {
			return run.Status, ""
		}
		status = "completed"
		if slices.Index(conclusions, run.Conclusion) >= slices.Index(conclusions, conclusion) {
			conclusion = run.Conclusion
		}
	}
	return status, conclusion
}

// branchAt names a branch of the repository whose pull request has the head,
// null if there is none: a fork's branch is none of the repository's.
func (h *Hub) branchAt(r *repository, sha string) any {
	for _, p := range r.sortedPulls() {
		if p.headSHA == sha && p.headRepo == r {
			return p.headRef
		}
	}
	return nil
}

// pullsAt lists the open pull requests with a head, in the short form; as on
// GitHub those from forks are missing.
func (h *Hub) pullsAt(r *repository, sha string) []object {
	list := []object{}
	for _, p := range r.sortedPulls() {
		if p.state != "open" || p.headSHA != sha || p.headRepo != r {
			continue
		}
		repo := object{"id": r.id, "name": r.name, "url": h.repoURL(r)}
		list = append(list, object{
			"id": p.id, "number": p.number, "url": h.pullURL(p),
			"head": object{"ref": p.headRef, "sha": p.headSHA, "repo": repo},
			"base": object{"ref": p.baseRef, "sha": p.baseSHA, "repo": repo},
		})
	}
	return list
}

// webURL tells whether a details_url is one that GitHub takes.
func webURL(s string) bool {
	return strings.HasPrefix(s, "https://") || strings.HasPrefix(s, "http://")
}
