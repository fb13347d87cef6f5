package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"underwrite/handlers"
	"underwrite/handlers/freeze"
	"underwrite/store"
)

// Times that bound the jobs.
const (
	dispatchTimeout = 2 * time.Minute
	noteBytes       = 1 << 10 // why a delivery was ignored
)

// SaveDelivery implements handlers.Deliveries.
func (c *Controller) SaveDelivery(ctx context.Context, d handlers.Delivery) (handlers.Saved, error) {
	saved, err := c.Store.SaveDelivery(ctx, store.Delivery{
		GUID: d.GUID, Event: d.Event, Action: d.Action, InstallationID: d.InstallationID, Repo: d.Repo, Number: d.Number,
		Body: d.Body, BodySHA256: d.BodySHA256, ReceivedAt: d.ReceivedAt,
	})
	switch saved {
	case store.SavedDuplicate:
		return handlers.Duplicate, err
	case store.SavedConflict:
		return handlers.Conflict, err
	}
	return handlers.New, err
}

// Dispatch implements store.Worker: the handler of the delivery's event does
// what is to be done.
func (c *Controller) Dispatch(ctx context.Context, guid string) error {
	ctx, cancel := context.WithTimeout(ctx, dispatchTimeout)
	defer cancel()
	d, err := c.Store.Delivery(ctx, guid)
	if err != nil || d.State != store.Received {
		return err
	}
	if d.Number != 0 {
		defer c.pulls.lock(pullKey(d.Repo, d.Number))()
	}
	err = c.dispatcher.Dispatch(ctx, handlers.Delivery{
		GUID: d.GUID, Event: d.Event, Action: d.Action, InstallationID: d.InstallationID, Repo: d.Repo, Number: d.Number,
		Body: d.Body, BodySHA256: d.BodySHA256, ReceivedAt: d.ReceivedAt,
	})
	switch {
	case errors.Is(err, handlers.ErrIgnored):
		text := err.Error()
		err = c.Store.FinishDelivery(ctx, guid, store.Ignored, text[:min(len(text), noteBytes)], c.Now())
	case err == nil:
		err = c.Store.FinishDelivery(ctx, guid, store.Handled, "", c.Now())
	default:
		if after := handlers.RetryAfter(err); after > 0 {
			return &store.SnoozeError{For: after}
		}
		return fmt.Errorf("delivery %s: %w", guid, err)
	}
	if moved(err) {
		return nil // another attempt finished it
	}
	return err
}

// Sync implements handlers.Sessions. Rows move first; then whatever this
// process does for an ended session is cancelled. A crash in between cancels it
// as well.
func (c *Controller) Sync(ctx context.Context, installationID int64, pr freeze.PullRequest) error {
	var wanted []store.Check
	for _, check := range c.Checks(pr.Repo) {
		profile, err := check.Profile.Canonical()
		if err != nil {
			return fmt.Errorf("profile of check %s: %w", check.Name, err)
		}
		wanted = append(wanted, store.Check{Name: check.Name, ProfileName: check.ProfileName, Profile: profile})
	}
	stopped, err := c.Store.Sync(ctx, store.Pull{
		Repo: pr.Repo, Number: pr.Number, InstallationID: installationID, Open: pr.State == "open",
		BaseSHA: pr.BaseSHA, HeadSHA: pr.HeadSHA,
	}, wanted, buildRequest, c.Now())
	// Also if the commit's outcome is unknown: work that goes on needlessly is
	// worse than work that is cancelled and repeated.
	c.live.stop(stopped)
	return err
}

// resync reads the pull request and syncs: for when a step finds that it is not
// what its session says.
func (c *Controller) resync(ctx context.Context, sess store.Session) error {
	defer c.pulls.lock(pullKey(sess.Repo, sess.Number))()
	pr, err := c.Pulls.PullRequest(ctx, sess.Repo, sess.Number)
	if err != nil {
		return fmt.Errorf("read pull request: %w", err)
	}
	return c.Sync(ctx, sess.InstallationID, pr)
}

func pullKey(repo string, number int64) string { return repo + "#" + strconv.FormatInt(number, 10) }
