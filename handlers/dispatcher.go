package handlers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// unhandledEvents are sent to the App, by its manifest or by themselves, and
// have no handler: their deliveries are recorded, then ignored.
var unhandledEvents = []string{
	"issue_comment", "merge_group", "check_run", "check_suite",
	"installation", "installation_repositories", "ping",
}

// Dispatcher hands stored deliveries to the handler of their event.
type Dispatcher struct {
	accounts Accounts
	handlers map[string]Handler // by event
}

// NewDispatcher makes a dispatcher for deliveries about the repositories of
// accounts. Two handlers for one event are an error.
func NewDispatcher(accounts Accounts, hs ...Handler) (*Dispatcher, error) {
	d := &Dispatcher{accounts: accounts, handlers: map[string]Handler{}}
	for _, h := range hs {
		event, _ := h.Handles()
		if d.handlers[event] != nil {
			return nil, fmt.Errorf("event %s: two handlers", event)
		}
		d.handlers[event] = h
	}
	return d, nil
}

// Dispatch runs the handler for a delivery. ErrIgnored, wrapped with the
// reason, says that there is nothing to do; any other error is to be retried.
func (d *Dispatcher) Dispatch(ctx context.Context, delivery Delivery) error {
	h := d.handlers[delivery.Event]
	if h == nil {
		return fmt.Errorf("%w: nobody handles event %s", ErrIgnored, delivery.Event)
	}
	if _, actions := h.Handles(); !slices.Contains(actions, delivery.Action) && !slices.Contains(actions, "") {
		return fmt.Errorf("%w: nobody handles action %q of event %s", ErrIgnored, delivery.Action, delivery.Event)
	}
	if delivery.Repo != "" && !d.accounts.Allow(delivery.Repo) {
		return fmt.Errorf("%w: the account of %s is not in the list of accounts", ErrIgnored, delivery.Repo)
	}
	if err := h.Handle(ctx, delivery); err != nil {
		return fmt.Errorf("%s %s: %w", delivery.Event, delivery.Action, err)
	}
	return nil
}

// Events lists the handled events, sorted.
func (d *Dispatcher) Events() []string {
	events := make([]string, 0, len(d.handlers))
	for e := range d.handlers {
		events = append(events, e)
	}
	slices.Sort(events)
	return events
}

// Accounts is the list of users and organizations whose repositories are
// served. Anybody can install a public App; nobody else is served.
type Accounts struct{ logins []string }

// NewAccounts makes the list. It has no wildcard, and an empty one is refused.
func NewAccounts(logins ...string) (Accounts, error) {
	if len(logins) == 0 {
		return Accounts{}, errors.New("accounts: none is listed; name the users and organizations to serve")
	}
	for _, l := range logins {
		if !repoShape.MatchString(l + "/x") {
			return Accounts{}, fmt.Errorf("accounts: %q is no login", l)
		}
	}
	return Accounts{logins: slices.Clone(logins)}, nil
}

// Allow says whether a repository (owner/name) belongs to one of the accounts.
// Logins are compared without case, as GitHub does.
func (a Accounts) Allow(repo string) bool {
	owner, _, ok := strings.Cut(repo, "/")
	return ok && slices.ContainsFunc(a.logins, func(l string) bool { return strings.EqualFold(l, owner) })
}
