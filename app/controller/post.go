package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"underwrite/attest"
	"underwrite/handlers"
	"underwrite/handlers/checks"
	"underwrite/store"
)

const (
	postTimeout = 2 * time.Minute
	// goneAfter is how long GitHub may say that a repository is gone before
	// that is believed: it is sometimes behind its own events.
	goneAfter = 5 * time.Minute
	// shownBytes of the end of each stream go to the check run's renderer.
	shownBytes = 64 << 10
)

// Post implements store.Worker: it brings GitHub's check run to what the rows
// say now, which may be newer than the version that asked for it. A crash
// between the post and its note repeats the post, which changes nothing.
func (c *Controller) Post(ctx context.Context, id, _ int64) error {
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	run, _, err := c.Store.CheckRun(ctx, id)
	if err != nil {
		return err
	}
	// One at a time for a head and a check, so that the last one posted knows
	// all the others.
	defer c.posts.lock(run.Session.Repo + " " + run.Session.HeadSHA + " " + run.Check.Name)()
	run, others, err := c.Store.CheckRun(ctx, id)
	if err != nil || run.PostedVersion == run.Version || run.Undeliverable != "" {
		return err
	}
	report, err := c.Report(run, others)
	if err != nil {
		return err
	}
	return c.post(ctx, run, checks.Render(report))
}

func (c *Controller) post(ctx context.Context, run store.CheckRun, rendered checks.Run) error {
	githubID, err := c.Poster.Post(ctx, rendered, run.GitHubID)
	if errors.Is(err, checks.ErrGone) && c.Now().Sub(run.CreatedAt) > goneAfter {
		return c.Store.SetUndeliverable(ctx, run.ID, clip(err.Error()), c.Now())
	}
	if after := handlers.RetryAfter(err); after > 0 {
		return &store.SnoozeError{For: after}
	}
	if err != nil {
		return fmt.Errorf("post check run %s of %s: %w", rendered.Name, run.Session.HeadSHA, err)
	}
	return c.Store.SetPosted(ctx, run.ID, run.Version, githubID, rendered.Status == "completed", c.Now())
}

// Report says what a check run is to show, with the ends of the streams. others
// are those of the same check for other open pull requests of the same head.
func (c *Controller) Report(run store.CheckRun, others []store.CheckRun) (checks.Report, error) {
	r, err := c.Outline(run)
	if err != nil {
		return checks.Report{}, err
	}
	for _, other := range others {
		o, err := c.Outline(other)
		if err != nil {
			return checks.Report{}, err
		}
		r.OtherResults = append(r.OtherResults, checks.OtherResult{
			Number: other.Session.Number, State: o.State, Title: checks.Judge(o).Title,
		})
	}
	if e := run.Evidence; e != nil {
		if r.StdoutTail, err = c.Blobs.Tail(e.Stdout, shownBytes); err != nil {
			return checks.Report{}, err
		}
		r.StderrTail, err = c.Blobs.Tail(e.Stderr, shownBytes)
	}
	return r, err
}

// Outline is a Report without the streams of a receipt and without other pull
// requests: enough for a title, and no file is read.
func (c *Controller) Outline(run store.CheckRun) (checks.Report, error) {
	profile, err := attest.ParseProfile(run.Check.Profile)
	if err != nil {
		return checks.Report{}, fmt.Errorf("profile of check %s: %w", run.Check.Name, err)
	}
	r := checks.Report{
		Repo: run.Session.Repo, Number: run.Session.Number, Name: run.Check.Name, HeadSHA: run.Session.HeadSHA,
		ExternalID: run.ExternalID, State: checks.State(run.State), By: run.By,
		Job: profile.Job, Limits: profile.Sandbox.Limits, Predicted: profile.ExitCode,
		InputTree: run.Session.InputTree, FinishedAt: run.CompletedAt,
	}
	if c.DetailsURL != nil {
		r.DetailsURL = c.DetailsURL(run.ExternalID)
	}
	if run.Session.Target != nil {
		if r.Target, err = attest.ParseTarget(run.Session.Target); err != nil {
			return checks.Report{}, fmt.Errorf("target of session %s: %w", run.Session.ID, err)
		}
	}
	if run.Fault != nil {
		if err := json.Unmarshal(run.Fault, &r.Fault); err != nil {
			return checks.Report{}, fmt.Errorf("fault of check run %d: %w", run.ID, err)
		}
	}
	if run.Execution != nil {
		c.reportExecution(&r, run.Execution)
	}
	if run.Evidence != nil {
		reportEvidence(&r, run.Evidence)
	}
	return r, nil
}

func (c *Controller) reportExecution(r *checks.Report, x *store.Execution) {
	r.Action = attest.Action{Seq: x.Seq, Beat: x.Beat, Attempt: x.Attempt}
	r.Predicted, r.StartedAt = x.Predicted, x.StartedAt
	r.Phase = c.live.phase(x.ID)
	r.StdoutTail, r.StderrTail = x.Tails.Stdout, x.Tails.Stderr
	r.StdoutBytes, r.StderrBytes = int64(len(r.StdoutTail)), int64(len(r.StderrTail))
}

func reportEvidence(r *checks.Report, e *store.Evidence) {
	r.ExitCode, r.OutputTree, r.InputTree, r.ReceiptSHA = e.ExitCode, e.OutputTree, e.InputTree, e.ReceiptSHA256
	r.SignerID, r.ExecutorID, r.KeyID = e.SignerID, e.ExecutorID, e.KeyID
	r.StartedAt, r.FinishedAt = e.StartedAt, e.FinishedAt
	r.StdoutBytes, r.StderrBytes = e.Stdout.Bytes, e.Stderr.Bytes
}
