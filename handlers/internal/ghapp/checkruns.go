package ghapp

import (
	"context"
	"fmt"
	"time"

	"github.com/google/go-github/v66/github"

	"underwrite/handlers/checks"
)

const (
	runsPerPage = 50
	maxRunPages = 40 // of one commit and name
)

// CheckRun is a check run as GitHub has it.
type CheckRun struct {
	ID                   int64
	Name                 string
	HeadSHA              string
	ExternalID           string
	Status               string
	Title, Summary, Text string
}

func fromGitHub(r *github.CheckRun) CheckRun {
	out := r.GetOutput()
	return CheckRun{
		ID: r.GetID(), Name: r.GetName(), HeadSHA: r.GetHeadSHA(), ExternalID: r.GetExternalID(), Status: r.GetStatus(),
		Title: out.GetTitle(), Summary: out.GetSummary(), Text: out.GetText(),
	}
}

// GetCheckRun reads a check run. checks.ErrGone says that there is none.
func (a *App) GetCheckRun(ctx context.Context, repo string, id int64) (CheckRun, error) {
	owner, name, err := splitRepo(repo)
	if err != nil {
		return CheckRun{}, err
	}
	var run *github.CheckRun
	err = a.asInstallation(ctx, repo, func(_ int64, c *github.Client) (err error) {
		run, _, err = c.Checks.GetCheckRun(ctx, owner, name, id)
		return classify(fmt.Sprintf("read check run %d of %s", id, repo), err)
	})
	if err != nil {
		return CheckRun{}, err
	}
	return fromGitHub(run), nil
}

// FindCheckRun looks among this App's check runs of one commit and name,
// superseded ones too, for the one with the external id. With several, it is
// the oldest. found is false if there is none.
func (a *App) FindCheckRun(ctx context.Context, repo, sha, checkName, externalID string) (run CheckRun, found bool, err error) {
	owner, name, err := splitRepo(repo)
	if err != nil {
		return CheckRun{}, false, err
	}
	if !shaShape.MatchString(sha) {
		return CheckRun{}, false, fmt.Errorf("head %q: is no commit id", sha)
	}
	err = a.asInstallation(ctx, repo, func(_ int64, c *github.Client) error {
		run, found, err = a.searchRuns(ctx, c, owner, name, sha, checkName, externalID)
		return classify(fmt.Sprintf("list check runs %s of %s at %s", checkName, repo, sha), err)
	})
	return run, found, err
}

func (a *App) searchRuns(ctx context.Context, c *github.Client, owner, name, sha, checkName, externalID string) (best CheckRun, found bool, err error) {
	opts := &github.ListCheckRunsOptions{
		CheckName: github.String(checkName), Filter: github.String("all"), AppID: github.Int64(a.id),
		ListOptions: github.ListOptions{PerPage: runsPerPage},
	}
	for range maxRunPages {
		list, resp, err := c.Checks.ListCheckRunsForRef(ctx, owner, name, sha, opts)
		if err != nil {
			return CheckRun{}, false, err
		}
		for _, r := range list.CheckRuns {
			run := fromGitHub(r)
			ours := r.GetApp().GetID() == a.id && run.Name == checkName && run.HeadSHA == sha && run.ExternalID == externalID
			if ours && (!found || run.ID < best.ID) {
				best, found = run, true
			}
		}
		if resp.NextPage == 0 {
			return best, found, nil
		}
		opts.Page = resp.NextPage
	}
	if !found { // a duplicate must not be made because the list is long
		return CheckRun{}, false, fmt.Errorf("more than %d check runs", maxRunPages*runsPerPage)
	}
	return best, true, nil
}

// CreateCheckRun makes a check run and returns its id.
func (a *App) CreateCheckRun(ctx context.Context, run checks.Run) (int64, error) {
	owner, name, err := splitRepo(run.Repo)
	if err != nil {
		return 0, err
	}
	opts := github.CreateCheckRunOptions{
		Name: run.Name, HeadSHA: run.HeadSHA, DetailsURL: optional(run.DetailsURL), ExternalID: optional(run.ExternalID),
		Status: optional(run.Status), Conclusion: optional(run.Conclusion),
		StartedAt: stamp(run.StartedAt), CompletedAt: stamp(run.CompletedAt), Output: output(run), Actions: actions(run),
	}
	var made *github.CheckRun
	err = a.asInstallation(ctx, run.Repo, func(_ int64, c *github.Client) (err error) {
		made, _, err = c.Checks.CreateCheckRun(ctx, owner, name, opts)
		return classify(fmt.Sprintf("create check run %s of %s at %s", run.Name, run.Repo, run.HeadSHA), err)
	})
	if err != nil {
		return 0, err
	}
	return made.GetID(), nil
}

// update adds what go-github's options lack: GitHub takes started_at here too.
type update struct {
	github.UpdateCheckRunOptions
	StartedAt *github.Timestamp `json:"started_at,omitempty"`
}

// UpdateCheckRun brings a check run to the given state.
func (a *App) UpdateCheckRun(ctx context.Context, id int64, run checks.Run) error {
	owner, name, err := splitRepo(run.Repo)
	if err != nil {
		return err
	}
	body := update{StartedAt: stamp(run.StartedAt), UpdateCheckRunOptions: github.UpdateCheckRunOptions{
		Name: run.Name, DetailsURL: optional(run.DetailsURL), ExternalID: optional(run.ExternalID),
		Status: optional(run.Status), Conclusion: optional(run.Conclusion),
		CompletedAt: stamp(run.CompletedAt), Output: output(run), Actions: actions(run),
	}}
	return a.asInstallation(ctx, run.Repo, func(_ int64, c *github.Client) error {
		req, err := c.NewRequest("PATCH", fmt.Sprintf("repos/%s/%s/check-runs/%d", owner, name, id), body)
		if err == nil {
			_, err = c.Do(ctx, req, nil)
		}
		return classify(fmt.Sprintf("update check run %d of %s", id, run.Repo), err)
	})
}

func output(run checks.Run) *github.CheckRunOutput {
	return &github.CheckRunOutput{Title: optional(run.Title), Summary: github.String(run.Summary), Text: optional(run.Text)}
}

func actions(run checks.Run) []*github.CheckRunAction {
	var out []*github.CheckRunAction
	for _, a := range run.Actions {
		out = append(out, &github.CheckRunAction{Label: a.Label, Description: a.Description, Identifier: a.Identifier})
	}
	return out
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// stamp is a time in whole seconds, as GitHub keeps it.
func stamp(t time.Time) *github.Timestamp {
	if t.IsZero() {
		return nil
	}
	return &github.Timestamp{Time: t.UTC().Truncate(time.Second)}
}
