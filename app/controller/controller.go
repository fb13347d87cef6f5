package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"underwrite/app/evidence"
	"underwrite/attest"
	"underwrite/handlers"
	"underwrite/handlers/checks"
	"underwrite/handlers/freeze"
	"underwrite/runner/wire"
	"underwrite/store"
	"underwrite/store/blob"
)

// Executor gives requests to a gateway. *wire.Client is one.
type Executor interface {
	// Execute gives one request with its source bundle to the gateway and
	// waits. An error means that nothing is known: the same request is to be
	// tried again. Cancelling ctx stops the run.
	Execute(ctx context.Context, request []byte, bundlePath string, events func(wire.Event)) (wire.Outcome, error)
	// Acknowledge says that the evidence in a directory is durably consumed.
	Acknowledge(ctx context.Context, evidenceDir string) error
}

// Freezer freezes pull requests. *freeze.Freezer is one.
type Freezer interface {
	Freeze(ctx context.Context, repo string, number int64, outDir string) (*freeze.Frozen, error)
}

// Dispatcher hands deliveries to the handlers of their events.
type Dispatcher interface {
	Dispatch(ctx context.Context, d handlers.Delivery) error
}

// Check is a configured check.
type Check struct {
	Name        string
	ProfileName string         // the gateway's name of the profile
	Profile     attest.Profile // trusted
	// Group and Concurrency: at most so many executions of a group run at once.
	Group       string
	Concurrency int
}

// Config is what a controller works with. All fields but DetailsURL, Now and
// Log are required.
type Config struct {
	Store    *store.Store
	Blobs    *blob.Store
	Scratch  string // private directory for files of one step
	Executor Executor
	Freezer  Freezer
	Pulls    handlers.Pulls
	Poster   checks.Poster
	Trust    evidence.Trust
	// Checks returns the checks of a repository, always the same for one
	// configuration.
	Checks func(repo string) []Check
	// Inspector looks into bundles, within the limits of a job.
	Inspector func(attest.Limits) evidence.Inspector
	// DetailsURL is the page of an execution by its external id; no links if nil.
	DetailsURL func(externalID string) string
	Now        func() time.Time // time.Now if nil
	Log        *slog.Logger     // nothing is logged if nil
}

// Patience: what cannot be done is tried again with growing pauses for this
// long; then it is our own fault and its check runs are completed as such.
const Patience = time.Hour

// proofs bounds the proofs of one check run after faults of our own.
var proofs = store.Again{Most: 5, Delay: 2 * time.Second}

// noMore makes a fault of our own final.
var noMore = store.Again{Most: 1}

// Controller implements store.Worker, handlers.Sessions and
// handlers.Deliveries. Its methods may be called concurrently.
type Controller struct {
	Config
	dispatcher Dispatcher
	live       live    // what this process is doing right now
	pulls      keyed   // one reading-and-syncing of a pull request at a time
	posts      keyed   // one posting for a head and a check at a time
	slots      slots   // concurrency of the checks
	failing    failing // since when a job fails
}

var (
	_ store.Worker        = (*Controller)(nil)
	_ handlers.Sessions   = (*Controller)(nil)
	_ handlers.Deliveries = (*Controller)(nil)
	_ Executor            = (*wire.Client)(nil)
	_ Freezer             = (*freeze.Freezer)(nil)
)

// New makes a controller. newDispatcher makes the dispatcher of deliveries,
// whose handlers call the controller.
func New(c Config, newDispatcher func(handlers.Sessions) (Dispatcher, error)) (*Controller, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if err := sweep(c.Scratch); err != nil {
		return nil, err
	}
	ctl := &Controller{Config: c}
	var err error
	if ctl.dispatcher, err = newDispatcher(ctl); err != nil {
		return nil, fmt.Errorf("make dispatcher: %w", err)
	}
	return ctl, nil
}

// sweep removes what a crash left in the scratch directory.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("scratch directory: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(dir + "/" + e.Name()); err != nil {
			return fmt.Errorf("sweep scratch directory: %w", err)
		}
	}
	return nil
}

// patient returns err, to be tried again, or nil once key has been failing for
// longer than Patience: then the caller ends it.
func (c *Controller) patient(key string, err error) error {
	if c.Now().Sub(c.failing.since(key, c.Now())) > Patience {
		return nil
	}
	if after := handlers.RetryAfter(err); after > 0 {
		return &store.SnoozeError{For: after}
	}
	return err
}

// moved reports whether a move failed because somebody else moved the row. The
// job then starts again from the row as it is.
func moved(err error) bool { return errors.Is(err, store.ErrState) }
