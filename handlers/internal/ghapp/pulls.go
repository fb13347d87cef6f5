package ghapp

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/google/go-github/v66/github"

	"underwrite/attest"
	"underwrite/handlers/freeze"
)

var shaShape = regexp.MustCompile(`^[0-9a-f]{40}$`)

// PullRequest implements handlers.Pulls and freeze.GitHub.
func (a *App) PullRequest(ctx context.Context, repo string, number int64) (freeze.PullRequest, error) {
	op := fmt.Sprintf("read pull request %s#%d", repo, number)
	owner, name, err := splitRepo(repo)
	if err != nil {
		return freeze.PullRequest{}, err
	}
	if number < 1 || number > attest.MaxInteger {
		return freeze.PullRequest{}, fmt.Errorf("%s: the number is out of range", op)
	}
	var pr *github.PullRequest
	err = a.asInstallation(ctx, repo, func(_ int64, c *github.Client) (err error) {
		pr, _, err = c.PullRequests.Get(ctx, owner, name, int(number))
		return classify(op, err)
	})
	if err != nil {
		return freeze.PullRequest{}, err
	}
	out := convert(pr)
	if err := checkPull(out, number); err != nil {
		return freeze.PullRequest{}, &Error{Op: op, Message: err.Error()}
	}
	return out, nil
}

// convert keeps what freezing needs. The head's repository is null when the
// fork was deleted.
func convert(pr *github.PullRequest) freeze.PullRequest {
	out := freeze.PullRequest{
		Repo: pr.GetBase().GetRepo().GetFullName(), Number: int64(pr.GetNumber()), State: pr.GetState(),
		BaseSHA: pr.GetBase().GetSHA(), HeadSHA: pr.GetHead().GetSHA(), HeadRef: pr.GetHead().GetRef(),
		ChangedFiles: int64(pr.GetChangedFiles()),
	}
	if pr.MergedAt != nil {
		at := pr.MergedAt.UTC().Format(time.RFC3339)
		out.MergedAt = &at
	}
	if r := pr.GetHead().GetRepo(); r != nil {
		id, name := r.GetID(), r.GetFullName()
		out.HeadRepoID, out.HeadRepo = &id, &name
	}
	return out
}

// checkPull refuses an answer that lacks what every pull request has.
func checkPull(pr freeze.PullRequest, number int64) error {
	if _, _, err := splitRepo(pr.Repo); err != nil {
		return fmt.Errorf("base: %w", err)
	}
	switch {
	case pr.Number != number:
		return fmt.Errorf("the answer is about number %d", pr.Number)
	case pr.State != "open" && pr.State != "closed":
		return fmt.Errorf("unknown state %q", pr.State)
	case !shaShape.MatchString(pr.BaseSHA) || !shaShape.MatchString(pr.HeadSHA):
		return errors.New("base or head is no commit id")
	case pr.HeadRef == "":
		return errors.New("the head has no ref")
	case pr.ChangedFiles < 0:
		return errors.New("the number of changed files is negative")
	}
	if pr.HeadRepo != nil {
		if _, _, err := splitRepo(*pr.HeadRepo); err != nil || *pr.HeadRepoID < 1 {
			return errors.New("the head's repository is malformed")
		}
	}
	return nil
}
