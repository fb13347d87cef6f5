package ghapp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/google/go-github/v66/github"

	"underwrite/handlers/checks"
)

const (
	installationTTL  = 10 * time.Minute
	maxInstallations = 4096 // entries of the cache
)

var repoShape = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}/[A-Za-z0-9._-]{1,100}$`)

// splitRepo splits owner/name. Both become parts of URLs.
func splitRepo(repo string) (owner, name string, err error) {
	owner, name, _ = strings.Cut(repo, "/")
	if !repoShape.MatchString(repo) || name == "." || name == ".." {
		return "", "", fmt.Errorf("repository %q: is not owner/name", repo)
	}
	return owner, name, nil
}

// installations remembers which installation covers a repository, and the
// clients of installations, each with its token.
type installations struct {
	now     func() time.Time
	mu      sync.Mutex // guards all below
	ids     map[string]installation
	clients map[int64]*github.Client
}

type installation struct {
	id      int64
	expires time.Time
}

func newInstallations() installations {
	return installations{now: time.Now, ids: map[string]installation{}, clients: map[int64]*github.Client{}}
}

func (c *installations) get(repo string) (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, ok := c.ids[strings.ToLower(repo)]
	return i.id, ok && c.now().Before(i.expires)
}

func (c *installations) put(repo string, id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ids) >= maxInstallations { // a new start is cheap: one call each
		clear(c.ids)
		clear(c.clients)
	}
	c.ids[strings.ToLower(repo)] = installation{id: id, expires: c.now().Add(installationTTL)}
}

// client returns the remembered client of an installation, or makes one.
func (c *installations) client(id int64, make func(int64) (*github.Client, error)) (*github.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.clients[id]; known != nil {
		return known, nil
	}
	made, err := make(id)
	if err != nil {
		return nil, fmt.Errorf("client of installation %d: %w", id, err)
	}
	c.clients[id] = made
	return made, nil
}

// forget drops what is remembered of a repository and of the installation's
// client, if it is still that one.
func (c *installations) forget(repo string, id int64, client *github.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ids, strings.ToLower(repo))
	if c.clients[id] == client {
		delete(c.clients, id)
	}
}

// Installation returns the id of the installation that covers repo
// (owner/name), asked of GitHub at most every ten minutes. checks.ErrGone says
// that the App is not installed there.
func (a *App) Installation(ctx context.Context, repo string) (int64, error) {
	owner, name, err := splitRepo(repo)
	if err != nil {
		return 0, err
	}
	if id, ok := a.found.get(repo); ok {
		return id, nil
	}
	i, _, err := a.app.Apps.FindRepositoryInstallation(ctx, owner, name)
	if err != nil {
		return 0, classify("find the installation for "+repo, err)
	}
	if i.GetID() < 1 {
		return 0, &Error{Op: "find the installation for " + repo, Message: "the answer has no id"}
	}
	a.found.put(repo, i.GetID())
	return i.GetID(), nil
}

// asInstallation runs f with the client of the repository's installation. When
// that is gone, or its token is not accepted any more, what is remembered may
// be outdated, as after the App was installed anew: f runs once more with what
// GitHub says now.
func (a *App) asInstallation(ctx context.Context, repo string, f func(id int64, c *github.Client) error) error {
	_, remembered := a.found.get(repo)
	id, client, err := a.runAs(ctx, repo, f)
	refused := isUnauthorized(err)
	if client == nil || !refused && !(remembered && errors.Is(err, checks.ErrGone)) {
		return err
	}
	a.found.forget(repo, id, client)
	now, lookup := a.Installation(ctx, repo)
	if lookup != nil {
		return lookup
	}
	if now == id && !refused {
		return err
	}
	_, _, err = a.runAs(ctx, repo, f)
	return err
}

func (a *App) runAs(ctx context.Context, repo string, f func(id int64, c *github.Client) error) (int64, *github.Client, error) {
	id, err := a.Installation(ctx, repo)
	if err != nil {
		return 0, nil, err
	}
	client, err := a.found.client(id, a.clients.NewInstallationClient)
	if err != nil {
		return id, nil, err
	}
	return id, client, f(id, client)
}

func isUnauthorized(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == http.StatusUnauthorized
}
