package handlers

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"

	"underwrite/handlers/checks"
	"underwrite/handlers/internal/ghapp"
)

// checkRuns is what posting needs of GitHub.
type checkRuns interface {
	GetCheckRun(ctx context.Context, repo string, id int64) (ghapp.CheckRun, error)
	FindCheckRun(ctx context.Context, repo, sha, name, externalID string) (ghapp.CheckRun, bool, error)
	CreateCheckRun(ctx context.Context, run checks.Run) (int64, error)
	UpdateCheckRun(ctx context.Context, id int64, run checks.Run) error
}

// poster posts check runs. A check run is found again by its external id, so
// a crash after it was made and before its id was remembered makes no second
// one.
type poster struct {
	runs  checkRuns
	seed  maphash.Seed
	once  sync.Once
	locks [64]sync.Mutex // by external id: looking and making are one step in this process
}

// Post implements checks.Poster.
func (p *poster) Post(ctx context.Context, run checks.Run, knownID int64) (int64, error) {
	if err := checkRun(run); err != nil {
		return 0, err
	}
	lock := p.lock(run.ExternalID)
	lock.Lock()
	defer lock.Unlock()
	existing, found, err := p.find(ctx, run, knownID)
	if err != nil {
		return 0, err
	}
	if !found {
		return p.runs.CreateCheckRun(ctx, run)
	}
	if progress(existing.Status) > progress(run.Status) || existing.Status == "completed" || same(existing, run) {
		return existing.ID, nil
	}
	// A crash from here on is harmless: the same update is sent again.
	if err := p.runs.UpdateCheckRun(ctx, existing.ID, run); err != nil {
		return 0, err
	}
	return existing.ID, nil
}

func (p *poster) lock(externalID string) *sync.Mutex {
	p.once.Do(func() { p.seed = maphash.MakeSeed() })
	return &p.locks[maphash.String(p.seed, externalID)%uint64(len(p.locks))]
}

// find reads the check run by the id that the caller remembers, if it is what
// it should be, and searches for it else.
func (p *poster) find(ctx context.Context, run checks.Run, knownID int64) (ghapp.CheckRun, bool, error) {
	if knownID > 0 {
		r, err := p.runs.GetCheckRun(ctx, run.Repo, knownID)
		if err != nil && !errors.Is(err, checks.ErrGone) {
			return ghapp.CheckRun{}, false, err
		}
		if err == nil && r.ExternalID == run.ExternalID && r.HeadSHA == run.HeadSHA && r.Name == run.Name {
			return r, true, nil
		}
	}
	return p.runs.FindCheckRun(ctx, run.Repo, run.HeadSHA, run.Name, run.ExternalID)
}

// progress orders the statuses: a check run never goes back.
func progress(status string) int {
	switch status {
	case "completed":
		return 2
	case "in_progress":
		return 1
	}
	return 0
}

func same(r ghapp.CheckRun, run checks.Run) bool {
	return r.Status == run.Status && r.Title == run.Title && r.Summary == run.Summary && r.Text == run.Text
}

// checkRun refuses what must never be posted, a conclusion that satisfies a
// required check without a proof above all.
func checkRun(run checks.Run) error {
	switch run.Conclusion {
	case "", checks.Success, checks.Failure, checks.TimedOut, checks.CancelledRun, checks.ActionRequired:
	default:
		return fmt.Errorf("check run %s: conclusion %q is never used", run.Name, run.Conclusion)
	}
	switch {
	case run.Status != "queued" && run.Status != "in_progress" && run.Status != "completed":
		return fmt.Errorf("check run %s: status %q is never used", run.Name, run.Status)
	case (run.Status == "completed") != (run.Conclusion != ""):
		return fmt.Errorf("check run %s: status %s with conclusion %q", run.Name, run.Status, run.Conclusion)
	case run.ExternalID == "" || run.Name == "":
		return errors.New("check run: has no name or external id, it could not be found again")
	}
	return nil
}
