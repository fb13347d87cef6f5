package hubsim

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// maxOutputBytes is GitHub's limit of a summary and of a text. The description
// has the same number in characters; it has the other limits of a check run
// (annotations, actions and their lengths) right.
const maxOutputBytes = 65535

func init() {
	writing := func(f func(*Hub, *call) (int, any, error)) operation {
		return operation{who: asInstallation, permissions: []string{"checks"}, level: "write", serve: f}
	}
	maps.Copy(operations, map[string]operation{
		"checks/create":              writing((*Hub).createRun),
		"checks/update":              writing((*Hub).updateRun),
		"checks/rerequest-run":       writing((*Hub).rerequestRun),
		"checks/get":                 reading((*Hub).getRun, "checks"),
		"checks/list-annotations":    reading((*Hub).listAnnotations, "checks"),
		"checks/list-for-ref":        reading((*Hub).listRunsForRef, "checks"),
		"checks/get-suite":           reading((*Hub).getSuite, "checks"),
		"checks/list-for-suite":      reading((*Hub).listRunsForSuite, "checks"),
		"checks/rerequest-suite":     writing((*Hub).rerequestSuite),
		"checks/list-suites-for-ref": reading((*Hub).listSuites, "checks"),
	})
}

// runRequest is the body of a request that creates or updates a check run; nil
// is what was not given.
type runRequest struct {
	Name        *string    `json:"name"`
	HeadSHA     *string    `json:"head_sha"`
	DetailsURL  *string    `json:"details_url"`
	ExternalID  *string    `json:"external_id"`
	Status      *string    `json:"status"`
	Conclusion  *string    `json:"conclusion"`
	StartedAt   *time.Time `json:"started_at"`
	CompletedAt *time.Time `json:"completed_at"`
	Output      *struct {
		Title       *string      `json:"title"`
		Summary     *string      `json:"summary"`
		Text        *string      `json:"text"`
		Annotations []Annotation `json:"annotations"`
	} `json:"output"`
	Actions []Action `json:"actions"`
}

// asAppOnly refuses people: only GitHub Apps write check runs.
func asAppOnly(c *call) error {
	if c.who.kind != asInstallation {
		return &apiError{status: http.StatusForbidden, message: "You must authenticate via a GitHub App."}
	}
	return nil
}

func (h *Hub) createRun(c *call) (int, any, error) {
	if err := asAppOnly(c); err != nil {
		return 0, nil, err
	}
	var req runRequest
	if err := c.decode(&req); err != nil {
		return 0, nil, err
	}
	if *req.Name == "" {
		return 0, nil, broken("CheckRun", "name", "name cannot be empty")
	}
	if !c.repo.git.hasCommit(*req.HeadSHA) {
		return 0, nil, unprocessable("No commit found for SHA: " + *req.HeadSHA)
	}
	run := &checkRun{CheckRun: CheckRun{Repo: c.repo.fullName(), HeadSHA: *req.HeadSHA, Status: "queued", StartedAt: h.now()}, repo: c.repo}
	if err := h.change(run, req); err != nil {
		return 0, nil, err
	}
	run.ID, run.suite = h.newID(), h.suite(c.repo, run.HeadSHA)
	c.repo.runs = append(c.repo.runs, run)
	h.recordRun(run)
	return http.StatusCreated, h.runJSON(run), nil
}

func (c *call) checkRun() (*checkRun, error) {
	if run := c.repo.checkRun(c.intParam("check_run_id")); run != nil {
		return run, nil
	}
	return nil, notFound
}

func (h *Hub) updateRun(c *call) (int, any, error) {
	if err := asAppOnly(c); err != nil {
		return 0, nil, err
	}
	run, err := c.checkRun()
	if err != nil {
		return 0, nil, err
	}
	var req runRequest
	if err := c.decode(&req); err != nil {
		return 0, nil, err
	}
	next := &checkRun{CheckRun: run.clone(), repo: run.repo, suite: run.suite}
	if err := h.change(next, req); err != nil {
		return 0, nil, err
	}
	run.CheckRun = next.CheckRun
	h.recordRun(run)
	return http.StatusOK, h.runJSON(run), nil
}

// change applies a request to a run that nobody else sees yet.
func (h *Hub) change(run *checkRun, req runRequest) error {
	if err := checkRules(req); err != nil {
		return err
	}
	if err := h.changeState(run, req); err != nil {
		return err
	}
	set(&run.Name, req.Name)
	set(&run.DetailsURL, req.DetailsURL)
	set(&run.ExternalID, req.ExternalID)
	set(&run.StartedAt, req.StartedAt)
	if req.Actions != nil {
		run.Actions = req.Actions
	}
	if o := req.Output; o != nil {
		set(&run.Title, o.Title)
		set(&run.Summary, o.Summary)
		set(&run.Text, o.Text)
		run.Annotations = append(run.Annotations, o.Annotations...)
	}
	return nil
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// changeState moves status and conclusion. A conclusion completes a run, a
// completed run has one, and is never reopened.
func (h *Hub) changeState(run *checkRun, req runRequest) error {
	status := run.Status
	set(&status, req.Status)
	if req.Conclusion != nil && req.Status == nil {
		status = "completed"
	}
	if run.Status == "completed" && status != "completed" {
		return broken("CheckRun", "status", "a completed check run is not reopened: create a new one")
	}
	if status == "completed" && req.Conclusion == nil && run.Conclusion == "" {
		return broken("CheckRun", "conclusion", "conclusion is required when status is completed")
	}
	if status != "completed" && (req.Conclusion != nil || req.CompletedAt != nil) {
		return broken("CheckRun", "status", "conclusion and completed_at go with status completed")
	}
	if req.Conclusion != nil && *req.Conclusion == "stale" {
		return broken("CheckRun", "conclusion", "only GitHub sets stale")
	}
	run.Status = status
	set(&run.Conclusion, req.Conclusion)
	if status == "completed" && run.CompletedAt.IsZero() {
		run.CompletedAt = h.now()
	}
	set(&run.CompletedAt, req.CompletedAt)
	return nil
}

// checkRules are the rules beside the description's that hold for each request
// by itself.
func checkRules(req runRequest) error {
	if req.DetailsURL != nil && !webURL(*req.DetailsURL) {
		return broken("CheckRun", "details_url", "details_url must use http or https scheme")
	}
	o := req.Output
	if o == nil {
		return nil
	}
	for field, s := range map[string]*string{"summary": o.Summary, "text": o.Text} {
		if s != nil && len(*s) > maxOutputBytes {
			return broken("CheckRun", field, fmt.Sprintf("Only %d bytes are allowed; got %d", maxOutputBytes, len(*s)))
		}
	}
	for _, a := range o.Annotations {
		if (a.StartColumn != nil || a.EndColumn != nil) && a.StartLine != a.EndLine {
			return broken("CheckAnnotation", "start_column", "columns need start_line and end_line to be the same")
		}
	}
	return nil
}

func (h *Hub) getRun(c *call) (int, any, error) {
	run, err := c.checkRun()
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, h.runJSON(run), nil
}

// rerequestRun is the button's API: the app itself may press it.
func (h *Hub) rerequestRun(c *call) (int, any, error) {
	if err := asAppOnly(c); err != nil {
		return 0, nil, err
	}
	run, err := c.checkRun()
	if err != nil {
		return 0, nil, err
	}
	h.sendRun(run, "rerequested", h.bot(), nil)
	return http.StatusCreated, object{}, nil
}

func (h *Hub) listAnnotations(c *call) (int, any, error) {
	run, err := c.checkRun()
	if err != nil {
		return 0, nil, err
	}
	list := []object{}
	for _, a := range page(c, run.Annotations) {
		list = append(list, object{
			"path": a.Path, "start_line": a.StartLine, "end_line": a.EndLine, "start_column": a.StartColumn, "end_column": a.EndColumn,
			"annotation_level": a.AnnotationLevel, "message": a.Message, "title": stringOrNull(a.Title),
			"raw_details": stringOrNull(a.RawDetails),
			"blob_href":   fmt.Sprintf("%s/blob/%s/%s", h.repoPage(run.repo), run.HeadSHA, escapePath(a.Path)),
		})
	}
	return http.StatusOK, list, nil
}

func (h *Hub) listRunsForRef(c *call) (int, any, error) {
	sha, err := c.repo.resolve(c.params["ref"])
	if err != nil {
		return 0, nil, err
	}
	return h.listRuns(c, func(run *checkRun) bool { return run.HeadSHA == sha && h.isThisApp(c) })
}

func (c *call) checkSuite() (*checkSuite, error) {
	for _, s := range c.repo.suites {
		if s.id == c.intParam("check_suite_id") {
			return s, nil
		}
	}
	return nil, notFound
}

func (h *Hub) listRunsForSuite(c *call) (int, any, error) {
	s, err := c.checkSuite()
	if err != nil {
		return 0, nil, err
	}
	return h.listRuns(c, func(run *checkRun) bool { return run.suite == s })
}

// listRuns lists the runs of the repository that belong and that the query asks
// for, newest first.
func (h *Hub) listRuns(c *call, belongs func(*checkRun) bool) (int, any, error) {
	var runs []*checkRun
	for _, run := range c.repo.runs {
		if belongs(run) {
			runs = append(runs, run)
		}
	}
	if orElse(c.query.Get("filter"), "latest") == "latest" {
		runs = latest(runs)
	}
	runs = slices.DeleteFunc(runs, func(run *checkRun) bool {
		name, status := c.query.Get("check_name"), c.query.Get("status")
		return name != "" && run.Name != name || status != "" && run.Status != status
	})
	slices.Reverse(runs)
	list := []object{}
	for _, run := range page(c, runs) {
		list = append(list, h.runJSON(run))
	}
	return http.StatusOK, object{"total_count": len(runs), "check_runs": list}, nil
}

func (h *Hub) getSuite(c *call) (int, any, error) {
	s, err := c.checkSuite()
	if err != nil {
		return 0, nil, err
	}
	o, err := h.wholeSuite(c.repo, s)
	return http.StatusOK, o, err
}

// wholeSuite is a check suite with its commit and repository.
func (h *Hub) wholeSuite(r *repository, s *checkSuite) (object, error) {
	list, err := r.git.log("--max-count=1", s.headSHA)
	if err != nil {
		return nil, err
	}
	o := h.suiteJSON(r, s)
	o["head_commit"], o["repository"] = simpleCommit(list[0]), h.repoJSON(r)
	return o, nil
}

// listSuites lists the suites of a commit: the app has at most one there. The
// filters app_id and check_name can only empty the list.
func (h *Hub) listSuites(c *call) (int, any, error) {
	sha, err := c.repo.resolve(c.params["ref"])
	if err != nil {
		return 0, nil, err
	}
	list := []object{}
	if s := c.repo.suites[sha]; s != nil && h.isThisApp(c) && c.repo.hasRun(s, c.query.Get("check_name")) {
		o, err := h.wholeSuite(c.repo, s)
		if err != nil {
			return 0, nil, err
		}
		list = append(list, o)
	}
	return http.StatusOK, object{"total_count": len(list), "check_suites": page(c, list)}, nil
}

// isThisApp tells whether a query's app_id leaves this app's things in.
func (h *Hub) isThisApp(c *call) bool {
	id := c.query.Get("app_id")
	return id == "" || id == strconv.FormatInt(h.opts.AppID, 10)
}

// hasRun tells whether a suite has a run of that name; every suite has one of
// no name.
func (r *repository) hasRun(s *checkSuite, name string) bool {
	return name == "" || slices.ContainsFunc(r.runs, func(run *checkRun) bool { return run.suite == s && run.Name == name })
}

func (h *Hub) rerequestSuite(c *call) (int, any, error) {
	if err := asAppOnly(c); err != nil {
		return 0, nil, err
	}
	s, err := c.checkSuite()
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, object{}, h.sendSuite(c.repo, s, "rerequested", h.bot())
}
