package handlers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"underwrite/handlers/checks"
)

// settleTime is how long a pull request that GitHub announced may be missing
// from its API before it counts as gone.
const settleTime = 5 * time.Minute

// Installations finds the App's installation for a repository.
type Installations interface {
	// Installation returns the id of the installation that covers repo
	// (owner/name), or checks.ErrGone if there is none.
	Installation(ctx context.Context, repo string) (int64, error)
}

// PullRequestHandler brings the sessions of a pull request up to date when it
// is opened, pushed to, retargeted, reopened or closed. The event is a hint:
// what counts is what the API says.
type PullRequestHandler struct {
	Accounts      Accounts
	Installations Installations
	Pulls         Pulls
	Sessions      Sessions
	Now           func() time.Time // time.Now if nil
}

// Handles implements Handler. An edit may have changed the base.
func (h *PullRequestHandler) Handles() (string, []string) {
	return "pull_request", []string{"opened", "synchronize", "reopened", "closed", "edited"}
}

// Handle implements Handler. A pull request, repository or installation that
// is gone for good is ignored; GitHub may also be a little behind its own
// event, so a fresh delivery is retried.
func (h *PullRequestHandler) Handle(ctx context.Context, d Delivery) error {
	if d.Repo == "" || d.Number == 0 {
		return fmt.Errorf("%w: it names no pull request", ErrIgnored)
	}
	err := h.sync(ctx, d)
	if errors.Is(err, checks.ErrGone) && h.now().Sub(d.ReceivedAt) > settleTime {
		return fmt.Errorf("%w: %w", ErrIgnored, err)
	}
	return err
}

func (h *PullRequestHandler) sync(ctx context.Context, d Delivery) error {
	pr, err := h.Pulls.PullRequest(ctx, d.Repo, d.Number)
	if err != nil {
		return fmt.Errorf("pull request %s#%d: %w", d.Repo, d.Number, err)
	}
	// A renamed or moved repository answers under its new name.
	if !h.Accounts.Allow(pr.Repo) {
		return fmt.Errorf("%w: the account of %s is not in the list of accounts", ErrIgnored, pr.Repo)
	}
	installation, err := h.Installations.Installation(ctx, pr.Repo)
	if err != nil {
		return fmt.Errorf("installation for %s: %w", pr.Repo, err)
	}
	if err := h.Sessions.Sync(ctx, installation, pr); err != nil {
		return fmt.Errorf("sessions of %s#%d: %w", pr.Repo, pr.Number, err)
	}
	return nil
}

func (h *PullRequestHandler) now() time.Time {
	if h.Now == nil {
		return time.Now()
	}
	return h.Now()
}
