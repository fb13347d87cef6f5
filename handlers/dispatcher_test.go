package handlers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"underwrite/handlers/checks"
	"underwrite/handlers/freeze"
)

// world answers as GitHub and the controller, and counts.
type world struct {
	pr            freeze.PullRequest
	pullErr       error
	installErr    error
	syncErr       error
	reads, synced int
	installation  int64
	syncedPR      freeze.PullRequest
}

func (w *world) PullRequest(_ context.Context, repo string, number int64) (freeze.PullRequest, error) {
	w.reads++
	return w.pr, w.pullErr
}

func (w *world) Installation(context.Context, string) (int64, error) { return 77, w.installErr }

func (w *world) Sync(_ context.Context, id int64, pr freeze.PullRequest) error {
	w.synced++
	w.installation, w.syncedPR = id, pr
	return w.syncErr
}

var received = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func newDispatcher(t *testing.T, w *world, now time.Time) *Dispatcher {
	t.Helper()
	accounts, err := NewAccounts("Octo-Org", "mona")
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDispatcher(accounts, &PullRequestHandler{
		Accounts: accounts, Installations: w, Pulls: w, Sessions: w, Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func pullDelivery(action string) Delivery {
	return Delivery{GUID: testGUID, Event: "pull_request", Action: action, Repo: "octo-org/shop", Number: 7, InstallationID: 1, ReceivedAt: received}
}

func TestPullRequestActions(t *testing.T) {
	for action, handled := range map[string]bool{
		"opened": true, "synchronize": true, "reopened": true, "closed": true, "edited": true,
		"labeled": false, "review_requested": false, "": false, "Opened": false,
	} {
		t.Run(action, func(t *testing.T) {
			// A fork that was deleted is no obstacle, and what counts is the API's state.
			w := &world{pr: freeze.PullRequest{Repo: "octo-org/shop", Number: 7, State: "closed"}}
			err := newDispatcher(t, w, received).Dispatch(context.Background(), pullDelivery(action))
			if handled && (err != nil || w.synced != 1 || w.installation != 77 || w.syncedPR.State != "closed") {
				t.Errorf("%v, synced %d with installation %d and %+v", err, w.synced, w.installation, w.syncedPR)
			}
			if !handled && (!errors.Is(err, ErrIgnored) || w.reads != 0) {
				t.Errorf("%v after %d reads, want ErrIgnored after none", err, w.reads)
			}
		})
	}
}

func TestDispatchIgnores(t *testing.T) {
	open := freeze.PullRequest{Repo: "octo-org/shop", Number: 7, State: "open"}
	moved := open
	moved.Repo = "stranger/shop"
	for name, c := range map[string]struct {
		change func(*Delivery)
		pr     freeze.PullRequest
	}{
		"unknown event":                    {func(d *Delivery) { d.Event = "sponsorship" }, open},
		"event that nobody handles yet":    {func(d *Delivery) { d.Event = "issue_comment" }, open},
		"no repository":                    {func(d *Delivery) { d.Repo = "" }, open},
		"no number":                        {func(d *Delivery) { d.Number = 0 }, open},
		"account that is not served":       {func(d *Delivery) { d.Repo = "stranger/shop" }, open},
		"account whose name begins so":     {func(d *Delivery) { d.Repo = "octo-org2/shop" }, open},
		"repository moved to another one":  {func(*Delivery) {}, moved},
		"repository named like an account": {func(d *Delivery) { d.Repo = "stranger/mona" }, open},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{pr: c.pr}
			d := pullDelivery("opened")
			c.change(&d)
			if err := newDispatcher(t, w, received).Dispatch(context.Background(), d); !errors.Is(err, ErrIgnored) || w.synced != 0 {
				t.Errorf("%v, synced %d", err, w.synced)
			}
		})
	}
}

func TestDispatchErrors(t *testing.T) {
	gone := fmt.Errorf("%w: 404", checks.ErrGone)
	down := errors.New("connection refused")
	for name, c := range map[string]struct {
		world   world
		age     time.Duration
		ignored bool
	}{
		"API down":                          {world{pullErr: down}, time.Hour, false},
		"store down":                        {world{syncErr: down}, time.Hour, false},
		"pull request not there yet":        {world{pullErr: gone}, time.Minute, false},
		"pull request gone":                 {world{pullErr: gone}, time.Hour, true},
		"installation removed":              {world{installErr: gone}, time.Hour, true},
		"installation cannot be asked":      {world{installErr: down}, time.Hour, false},
		"installation not there just now":   {world{installErr: gone}, 0, false},
		"a clock that was set back retries": {world{pullErr: gone}, -time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := c.world
			w.pr = freeze.PullRequest{Repo: "octo-org/shop", Number: 7}
			err := newDispatcher(t, &w, received.Add(c.age)).Dispatch(context.Background(), pullDelivery("opened"))
			if err == nil || errors.Is(err, ErrIgnored) != c.ignored {
				t.Errorf("%v, want ignored %v", err, c.ignored)
			}
		})
	}
}

func TestConstructorsRefuse(t *testing.T) {
	for _, logins := range [][]string{nil, {""}, {"*"}, {"octo-org/shop"}, {"mona", "a b"}} {
		if _, err := NewAccounts(logins...); err == nil {
			t.Errorf("NewAccounts(%q) worked", logins)
		}
	}
	if (Accounts{}).Allow("octo-org/shop") {
		t.Error("the zero list serves somebody")
	}
	h := &PullRequestHandler{}
	if _, err := NewDispatcher(Accounts{}, h, h); err == nil || !strings.Contains(err.Error(), "pull_request") {
		t.Errorf("two handlers for one event: %v", err)
	}
}
