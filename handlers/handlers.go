package handlers

import (
	"context"
	"errors"
	"time"

	"underwrite/handlers/freeze"
)

// Delivery is one webhook delivery as it was received and verified.
type Delivery struct {
	GUID           string // X-GitHub-Delivery
	Event          string // X-GitHub-Event
	Action         string // empty for events without one
	InstallationID int64  // 0 if the body names none
	Repo           string // owner/name, empty if the body names none
	Number         int64  // pull request, 0 if the body names none
	Body           []byte
	BodySHA256     string
	ReceivedAt     time.Time
}

// Saved tells what became of a delivery.
type Saved int

// The outcomes of SaveDelivery.
const (
	New       Saved = iota // row and job are durable
	Duplicate              // same GUID and body: already there, nothing to do
	Conflict               // same GUID, other body: recorded and refused
)

// Deliveries persists deliveries. The store implements it: delivery row and
// job row become durable in one transaction before it returns.
type Deliveries interface {
	SaveDelivery(ctx context.Context, d Delivery) (Saved, error)
}

// Sessions is the controller as the event handlers see it. An event is a hint:
// each call carries what the API says now, and is idempotent.
type Sessions interface {
	// Sync makes sure that the pull request's current target has a session
	// and that each configured check has an execution; an older session of the
	// pull request is superseded. For a closed pull request it cancels instead.
	Sync(ctx context.Context, installationID int64, pr freeze.PullRequest) error
}

// Pulls reads pull requests from the API.
type Pulls interface {
	PullRequest(ctx context.Context, repo string, number int64) (freeze.PullRequest, error)
}

// ErrIgnored says that a delivery is of no interest; it is recorded as such.
var ErrIgnored = errors.New("delivery ignored")

// Handler handles one event.
type Handler interface {
	// Handles names the event and the actions ("" for any).
	Handles() (event string, actions []string)
	// Handle acts on a stored delivery. ErrIgnored is no failure; any other
	// error is retried.
	Handle(ctx context.Context, d Delivery) error
}
