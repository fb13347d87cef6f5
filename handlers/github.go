package handlers

import (
	"context"
	"errors"
	"time"

	"underwrite/handlers/checks"
	"underwrite/handlers/freeze"
	"underwrite/handlers/internal/ghapp"
)

// GitHubConfig says which App this is, and of which GitHub.
type GitHubConfig = ghapp.Config

// GitHub is the App's access to GitHub: it implements Pulls, Installations,
// freeze.GitHub and checks.Poster. Credentials stay inside; only FetchAccess
// hands out a token, for one repository's contents.
//
// Its errors wrap checks.ErrGone if a retry is of no use. All others may be
// retried, after RetryAfter if that is known.
type GitHub struct {
	app    *ghapp.App
	poster *poster
}

var (
	_ Pulls         = (*GitHub)(nil)
	_ Installations = (*GitHub)(nil)
	_ freeze.GitHub = (*GitHub)(nil)
	_ checks.Poster = (*GitHub)(nil)
)

// NewGitHub loads the App's private key. It makes no call.
func NewGitHub(c GitHubConfig) (*GitHub, error) {
	app, err := ghapp.New(c)
	if err != nil {
		return nil, err
	}
	return &GitHub{app: app, poster: &poster{runs: app}}, nil
}

// PullRequest implements Pulls and freeze.GitHub.
func (g *GitHub) PullRequest(ctx context.Context, repo string, number int64) (freeze.PullRequest, error) {
	return g.app.PullRequest(ctx, repo, number)
}

// FetchAccess implements freeze.GitHub.
func (g *GitHub) FetchAccess(ctx context.Context, repo string) (url, authorization string, err error) {
	return g.app.FetchAccess(ctx, repo)
}

// Installation implements Installations.
func (g *GitHub) Installation(ctx context.Context, repo string) (int64, error) {
	return g.app.Installation(ctx, repo)
}

// Post implements checks.Poster.
func (g *GitHub) Post(ctx context.Context, run checks.Run, knownID int64) (int64, error) {
	return g.poster.Post(ctx, run, knownID)
}

// RetryAfter returns how long GitHub asked to wait before the call that failed
// with err is tried again; 0 if it did not say.
func RetryAfter(err error) time.Duration {
	var e *ghapp.Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}
