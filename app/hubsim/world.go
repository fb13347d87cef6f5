package hubsim

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Errors of the methods that change the world.
var (
	ErrNotFound = errors.New("no such thing on the simulated GitHub")
	ErrExists   = errors.New("exists already on the simulated GitHub")
)

// An account is a person or an organization. Owners of repositories made with
// CreateRepo are organizations, everybody else is a user.
type account struct {
	id    int64
	login string
	org   bool
}

type repository struct {
	id            int64
	owner         *account
	name          string
	defaultBranch string
	parent        *repository // of a fork
	git           gitDir
	createdAt     time.Time
	pushedAt      time.Time
	roles         map[string]string // lower-case login to role
	lastNumber    int64
	pulls         map[int64]*pull
	comments      []*comment // oldest first
	runs          []*checkRun
	suites        map[string]*checkSuite // by head SHA
}

func (r *repository) fullName() string { return r.owner.login + "/" + r.name }

// An installation of the app on an account.
type installation struct {
	id          int64
	account     *account
	repos       map[int64]bool // nil: all of the account's
	permissions map[string]string
	createdAt   time.Time
}

func (i *installation) covers(r *repository) bool {
	return r.owner == i.account && (i.repos == nil || i.repos[r.id])
}

type comment struct {
	id        int64
	number    int64
	author    *account
	body      string
	createdAt time.Time
}

// account finds or makes an account. Callers hold mu.
func (h *Hub) account(login string) *account {
	key := strings.ToLower(login)
	if a := h.accounts[key]; a != nil {
		return a
	}
	a := &account{id: h.newID(), login: login}
	h.accounts[key] = a
	return a
}

// repo finds a repository by its full name. Callers hold mu.
func (h *Hub) repo(fullName string) (*repository, error) {
	if r := h.repos[strings.ToLower(fullName)]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("repository %s: %w", fullName, ErrNotFound)
}

// installationOf finds the installation that covers a repository, nil if none.
func (h *Hub) installationOf(r *repository) *installation {
	for _, i := range h.installations {
		if i.covers(r) {
			return i
		}
	}
	return nil
}

// addRepo makes a repository and fills it; if that fails there is none.
// Callers hold mu.
func (h *Hub) addRepo(fullName, branch string, fill func(*repository) error) (*repository, error) {
	owner, name, ok := strings.Cut(fullName, "/")
	if !ok || owner == "" || name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("repository name %q: want owner/name", fullName)
	}
	if h.repos[strings.ToLower(fullName)] != nil {
		return nil, fmt.Errorf("repository %s: %w", fullName, ErrExists)
	}
	r := &repository{
		id: h.newID(), owner: h.account(owner), name: name, defaultBranch: branch,
		createdAt: h.now(), pushedAt: h.now(), roles: map[string]string{},
		pulls: map[int64]*pull{}, suites: map[string]*checkSuite{},
	}
	dir := filepath.Join(h.dir, fmt.Sprintf("%d.git", r.id))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	r.git = gitDir(dir)
	err := initRepo(r.git, branch)
	if err == nil {
		err = fill(r)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("repository %s: %w", fullName, err), os.RemoveAll(dir))
	}
	h.repos[strings.ToLower(fullName)] = r
	h.touch()
	return r, nil
}

// DefaultBranch is the default branch of repositories made with CreateRepo.
const DefaultBranch = "main"

// CreateRepo makes a private repository owner/name of an organization whose
// default branch has one commit with the given files. It returns the commit.
func (h *Hub) CreateRepo(fullName string, files ...Change) (sha string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err = h.addRepo(fullName, DefaultBranch, func(r *repository) error {
		r.owner.org = true
		sha, err = r.git.commit(DefaultBranch, "", "Start "+r.name, h.commitDate(), files)
		return err
	})
	return sha, err
}

// ImportRepo makes a repository from the branches and tags of the git
// directory at path; branch becomes the default branch. It returns its tip.
func (h *Hub) ImportRepo(fullName, path, branch string) (sha string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err = h.addRepo(fullName, branch, func(r *repository) error {
		r.owner.org = true
		if err := r.git.copyRefs(gitDir(path), "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"); err != nil {
			return err
		}
		if sha, err = r.git.tip(branch); err == nil && sha == "" {
			err = fmt.Errorf("branch %s of %s: %w", branch, path, ErrNotFound)
		}
		return err
	})
	return sha, err
}

// Fork copies the branches of a repository to one of the same name of another
// owner and returns the fork's full name.
func (h *Hub) Fork(fullName, owner string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	parent, err := h.repo(fullName)
	if err != nil {
		return "", err
	}
	fork, err := h.addRepo(owner+"/"+parent.name, parent.defaultBranch, func(r *repository) error {
		r.parent = parent
		r.roles[strings.ToLower(owner)] = "admin"
		return r.git.copyRefs(parent.git, "+refs/heads/*:refs/heads/*")
	})
	if err != nil {
		return "", err
	}
	return fork.fullName(), nil
}

// DeleteRepo deletes a repository; for pull requests from it, it becomes
// unknown: head.repo is null.
func (h *Hub) DeleteRepo(fullName string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, err := h.repo(fullName)
	if err != nil {
		return err
	}
	delete(h.repos, strings.ToLower(fullName))
	for _, other := range h.repos {
		for _, p := range other.pulls {
			if p.headRepo == r {
				p.headRepo = nil
			}
		}
	}
	h.touch()
	return os.RemoveAll(string(r.git))
}

// GitDir is the path of a repository's bare git directory, for tests that make
// objects of their own; move branches with SetBranch.
func (h *Hub) GitDir(fullName string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, err := h.repo(fullName)
	if err != nil {
		return "", err
	}
	return string(r.git), nil
}

// Install installs the app on the owner's named repositories ("name", without
// the owner), on all if none is named, with all of the app's permissions, and
// sends installation.created.
func (h *Hub) Install(owner string, names ...string) (id int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	acct := h.account(owner)
	inst := &installation{id: h.newID(), account: acct, permissions: maps.Clone(h.opts.Permissions), createdAt: h.now()}
	for _, n := range names {
		r, err := h.repo(owner + "/" + n)
		if err != nil {
			return 0, err
		}
		if inst.repos == nil {
			inst.repos = map[int64]bool{}
		}
		inst.repos[r.id] = true
	}
	for _, i := range h.installations {
		if i.account == acct {
			return 0, fmt.Errorf("installation on %s: %w", owner, ErrExists)
		}
	}
	h.installations[inst.id] = inst
	h.send("installation", "created", inst, nil, acct, object{
		"installation": h.installationPayload(inst), "repositories": h.repositoryNames(inst),
	})
	return inst.id, nil
}

// Uninstall removes the app from an account: its tokens end at once, and
// installation.deleted is sent.
func (h *Hub) Uninstall(owner string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, i := range h.installations {
		if i.account != h.account(owner) {
			continue
		}
		h.send("installation", "deleted", i, nil, i.account, object{
			"installation": h.installationPayload(i), "repositories": h.repositoryNames(i),
		})
		delete(h.installations, id)
		maps.DeleteFunc(h.tokens, func(_ string, p *principal) bool { return p.installation == i })
		return nil
	}
	return fmt.Errorf("installation on %s: %w", owner, ErrNotFound)
}

// SetInstallationPermissions replaces what an installation may do: tokens made
// from now on have no more than that.
func (h *Hub) SetInstallationPermissions(owner string, permissions map[string]string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, i := range h.installations {
		if i.account == h.account(owner) {
			i.permissions = maps.Clone(permissions)
			h.touch()
			return nil
		}
	}
	return fmt.Errorf("installation on %s: %w", owner, ErrNotFound)
}

// installedRepos lists the repositories that an installation covers, by id.
func (h *Hub) installedRepos(i *installation) []*repository {
	var list []*repository
	for _, r := range h.repos {
		if i.covers(r) {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b *repository) int { return int(a.id - b.id) })
	return list
}

// roles a collaborator can have, weakest first.
var roles = []string{"none", "read", "triage", "write", "maintain", "admin"}

// SetPermission gives a user a role in a repository: none, read, triage, write,
// maintain or admin.
func (h *Hub) SetPermission(fullName, user, role string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, err := h.repo(fullName)
	if err != nil {
		return err
	}
	if !slices.Contains(roles, role) {
		return fmt.Errorf("role %q: want one of %s", role, strings.Join(roles, ", "))
	}
	h.account(user)
	r.roles[strings.ToLower(user)] = role
	h.touch()
	return nil
}

// Commit commits changes onto a branch, which is made from the default branch
// if there is none of that name, and returns the commit. Open pull requests
// from that branch follow, with pull_request.synchronize.
func (h *Hub) Commit(fullName, branch, message string, changes ...Change) (sha string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, err := h.repo(fullName)
	if err != nil {
		return "", err
	}
	return h.commitTo(r, branch, r.defaultBranch, message, changes)
}

// SetBranch moves or makes a branch, as a forced push does; sha must exist in
// the repository. Open pull requests from the branch follow.
func (h *Hub) SetBranch(fullName, branch, sha string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, err := h.repo(fullName)
	if err != nil {
		return err
	}
	if !r.git.hasCommit(sha) {
		return fmt.Errorf("commit %s in %s: %w", sha, fullName, ErrNotFound)
	}
	if _, err := r.git.git(nil, "update-ref", "refs/heads/"+branch, sha); err != nil {
		return err
	}
	return h.pushed(r, branch)
}

// commitTo commits onto a branch that starts at the branch from. Callers hold mu.
func (h *Hub) commitTo(r *repository, branch, from, message string, changes []Change) (string, error) {
	parent, err := r.git.tip(branch)
	if err == nil && parent == "" {
		parent, err = r.git.tip(from)
	}
	if err != nil {
		return "", err
	}
	sha, err := r.git.commit(branch, parent, message, h.commitDate(), changes)
	if err != nil {
		return "", err
	}
	return sha, h.pushed(r, branch)
}

// commitDate counts up, so that commits made in the same order are the same.
func (h *Hub) commitDate() int64 {
	h.commits++
	return commitEpoch + h.commits
}

// pushed is called when a branch has moved: open pull requests from it follow.
func (h *Hub) pushed(r *repository, branch string) error {
	r.pushedAt = h.now()
	defer h.touch()
	if h.opts.RequestSuites {
		sha, err := r.git.tip(branch)
		if err != nil {
			return err
		}
		if err := h.sendSuite(r, h.suite(r, sha), "requested", r.owner); err != nil {
			return err
		}
	}
	for _, base := range h.sortedRepos() {
		for _, p := range base.sortedPulls() {
			if p.state != "open" || p.headRepo != r || p.headRef != branch {
				continue
			}
			if err := h.synchronize(base, p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *Hub) sortedRepos() []*repository {
	list := slices.Collect(maps.Values(h.repos))
	slices.SortFunc(list, func(a, b *repository) int { return int(a.id - b.id) })
	return list
}

// Comment adds a comment to a pull request and sends issue_comment.created.
func (h *Hub) Comment(fullName string, number int64, user, body string) (id int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, p, err := h.pull(fullName, number)
	if err != nil {
		return 0, err
	}
	c := &comment{id: h.newID(), number: number, author: h.account(user), body: body, createdAt: h.now()}
	r.comments = append(r.comments, c)
	h.send("issue_comment", "created", h.installationOf(r), r, c.author, object{
		"issue": h.issuePayload(r, p), "comment": h.commentJSON(r, c),
	})
	return c.id, nil
}
