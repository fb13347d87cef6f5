package hubsim

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

type pull struct {
	id, number int64
	title      string
	body       string
	author     *account
	draft      bool

	base    *repository
	baseRef string
	baseSHA string // tip of baseRef when the head last moved: GitHub's is stale in the same way

	headRepo  *repository // nil once it is deleted
	headOwner *account
	headRef   string
	headSHA   string

	commits []commitInfo // from the merge base to the head, oldest first
	files   []fileChange // the same way

	state     string // open or closed
	createdAt time.Time
	updatedAt time.Time
	closedAt  *time.Time
	mergedAt  *time.Time
	mergedBy  *account
	mergeSHA  string
}

// headPullRef is where the base repository keeps the head, whatever became of
// the branch.
func (p *pull) headPullRef() string { return fmt.Sprintf("refs/pull/%d/head", p.number) }

func (r *repository) sortedPulls() []*pull {
	list := slices.Collect(maps.Values(r.pulls))
	slices.SortFunc(list, func(a, b *pull) int { return int(a.number - b.number) })
	return list
}

// NewPullRequest says what to open.
type NewPullRequest struct {
	Repo     string // base repository, owner/name
	Base     string // branch; the default branch if empty
	HeadRepo string // a fork's owner/name; Repo itself if empty
	Branch   string // head branch; made from Base if HeadRepo has none of that name
	Title    string // Branch if empty
	Body     string
	Author   string // login; the head repository's owner if empty
	Draft    bool
	Changes  []Change // committed onto Branch first; none: the branch must exist
}

// PullRequest is a pull request as it stands.
type PullRequest struct {
	Repo    string
	Number  int64
	Title   string
	State   string // open or closed
	Merged  bool
	BaseRef string
	BaseSHA string
	HeadRef string
	HeadSHA string
	URL     string // page for people
}

// pull finds a pull request. Callers hold mu.
func (h *Hub) pull(fullName string, number int64) (*repository, *pull, error) {
	r, err := h.repo(fullName)
	if err != nil {
		return nil, nil, err
	}
	if p := r.pulls[number]; p != nil {
		return r, p, nil
	}
	return nil, nil, fmt.Errorf("pull request %s#%d: %w", fullName, number, ErrNotFound)
}

// PullRequest returns a pull request as it stands.
func (h *Hub) PullRequest(fullName string, number int64) (PullRequest, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, p, err := h.pull(fullName, number)
	if err != nil {
		return PullRequest{}, err
	}
	return PullRequest{
		Repo: r.fullName(), Number: p.number, Title: p.title, State: p.state, Merged: p.mergedAt != nil,
		BaseRef: p.baseRef, BaseSHA: p.baseSHA, HeadRef: p.headRef, HeadSHA: p.headSHA,
		URL: h.pullPageURL(p),
	}, nil
}

// OpenPullRequest opens a pull request and sends pull_request.opened.
func (h *Hub) OpenPullRequest(n NewPullRequest) (number int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	base, err := h.repo(n.Repo)
	if err != nil {
		return 0, err
	}
	head := base
	if n.HeadRepo != "" {
		if head, err = h.repo(n.HeadRepo); err != nil {
			return 0, err
		}
	}
	if n.Base == "" {
		n.Base = base.defaultBranch
	}
	if err := h.prepareHead(head, n); err != nil {
		return 0, err
	}
	p, err := h.newPull(base, head, n)
	if err != nil {
		return 0, err
	}
	h.sendPull(p, "opened", p.author, nil)
	return p.number, nil
}

// prepareHead commits the changes of a new pull request, or checks that its
// branch exists.
func (h *Hub) prepareHead(head *repository, n NewPullRequest) error {
	if len(n.Changes) > 0 {
		_, err := h.commitTo(head, n.Branch, n.Base, orElse(n.Title, n.Branch), n.Changes)
		return err
	}
	sha, err := head.git.tip(n.Branch)
	if err == nil && sha == "" {
		err = fmt.Errorf("branch %s of %s: %w", n.Branch, head.fullName(), ErrNotFound)
	}
	return err
}

func (h *Hub) newPull(base, head *repository, n NewPullRequest) (*pull, error) {
	author := head.owner
	if n.Author != "" {
		author = h.account(n.Author)
	}
	p := &pull{
		id: h.newID(), number: base.lastNumber + 1, title: orElse(n.Title, n.Branch), body: n.Body, author: author, draft: n.Draft,
		base: base, baseRef: n.Base, headRepo: head, headOwner: head.owner, headRef: n.Branch,
		state: "open", createdAt: h.now(), updatedAt: h.now(),
	}
	if err := h.followRefs(p); err != nil {
		return nil, err
	}
	base.lastNumber++
	base.pulls[p.number] = p
	return p, nil
}

// followRefs takes base and head of a pull request from their branches, and
// brings the head's objects into the base repository. A deleted head
// repository leaves the head alone. After an error p is as it was.
func (h *Hub) followRefs(p *pull) error {
	next := *p
	var err error
	if next.baseSHA, err = p.base.git.tip(p.baseRef); err != nil {
		return err
	}
	if next.baseSHA == "" {
		return fmt.Errorf("branch %s of %s: %w", p.baseRef, p.base.fullName(), ErrNotFound)
	}
	if err := next.followHead(); err != nil {
		return err
	}
	if err := next.measure(); err != nil {
		return err
	}
	*p = next
	return nil
}

// followHead takes the head from its branch, if that still exists.
func (p *pull) followHead() error {
	if p.headRepo == nil {
		return nil
	}
	sha, err := p.headRepo.git.tip(p.headRef)
	if err != nil || sha == "" {
		return err
	}
	p.headSHA = sha
	return p.base.git.copyRefs(p.headRepo.git, "+refs/heads/"+p.headRef+":"+p.headPullRef())
}

// measure finds the commits and files of a pull request.
func (p *pull) measure() error {
	g := p.base.git
	mergeBase, err := g.line("merge-base", p.baseSHA, p.headSHA)
	if err != nil {
		return fmt.Errorf("base and head have no common history: %w", err)
	}
	if p.commits, err = g.log("--reverse", p.baseSHA+".."+p.headSHA); err != nil {
		return err
	}
	p.files, err = g.diff(mergeBase, p.headSHA)
	return err
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// synchronize lets an open pull request follow its branch.
func (h *Hub) synchronize(base *repository, p *pull) error {
	before := p.headSHA
	if err := h.followRefs(p); err != nil {
		return err
	}
	if p.headSHA != before {
		h.sendPull(p, "synchronize", p.author, object{"before": before, "after": p.headSHA})
	}
	return nil
}

// Push commits changes onto the head branch of a pull request and returns the
// new head; an open one sends pull_request.synchronize.
func (h *Hub) Push(fullName string, number int64, changes ...Change) (sha string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, p, err := h.pull(fullName, number)
	if err != nil {
		return "", err
	}
	if p.headRepo == nil {
		return "", fmt.Errorf("head repository of %s#%d: %w", fullName, number, ErrNotFound)
	}
	return h.commitTo(p.headRepo, p.headRef, p.headRef, "Update "+p.headRef, changes)
}

// Retarget changes the base branch of an open pull request and sends pull_request.edited.
func (h *Hub) Retarget(fullName string, number int64, base string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, p, err := h.openPull(fullName, number)
	if err != nil {
		return err
	}
	oldRef, oldSHA := p.baseRef, p.baseSHA
	p.baseRef = base
	if err := h.followRefs(p); err != nil {
		p.baseRef = oldRef
		return err
	}
	from := object{"ref": object{"from": oldRef}, "sha": object{"from": oldSHA}}
	h.sendPull(p, "edited", p.author, object{"changes": object{"base": from}})
	return nil
}

// ClosePullRequest closes without merging and sends pull_request.closed.
func (h *Hub) ClosePullRequest(fullName string, number int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, p, err := h.openPull(fullName, number)
	if err != nil {
		return err
	}
	h.closePull(p, p.author)
	return nil
}

func (h *Hub) openPull(fullName string, number int64) (*repository, *pull, error) {
	r, p, err := h.pull(fullName, number)
	if err == nil && p.state != "open" {
		err = fmt.Errorf("pull request %s#%d is %s", fullName, number, p.state)
	}
	return r, p, err
}

func (h *Hub) closePull(p *pull, by *account) {
	now := h.now()
	p.state, p.closedAt = "closed", &now
	h.sendPull(p, "closed", by, nil)
}

// ReopenPullRequest opens a closed one again, with what its branch has now, and
// sends pull_request.reopened.
func (h *Hub) ReopenPullRequest(fullName string, number int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, p, err := h.pull(fullName, number)
	if err != nil {
		return err
	}
	if p.state == "open" || p.mergedAt != nil {
		return fmt.Errorf("pull request %s#%d is not closed, or merged", fullName, number)
	}
	if err := h.followRefs(p); err != nil {
		return err
	}
	p.state, p.closedAt = "open", nil
	h.sendPull(p, "reopened", p.author, nil)
	return nil
}

// Merge merges with a merge commit, which it returns, moves the base branch and
// sends pull_request.closed.
func (h *Hub) Merge(fullName string, number int64, user string) (sha string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, p, err := h.openPull(fullName, number)
	if err != nil {
		return "", err
	}
	tip, err := r.git.tip(p.baseRef)
	if err != nil {
		return "", err
	}
	sha, err = r.git.mergeCommit(tip, p.headSHA, fmt.Sprintf("Merge pull request #%d", number), h.commitDate())
	if err != nil {
		return "", err
	}
	if _, err := r.git.git(nil, "update-ref", "refs/heads/"+p.baseRef, sha, tip); err != nil {
		return "", err
	}
	now := h.now()
	p.mergedAt, p.mergedBy, p.mergeSHA = &now, h.account(user), sha
	h.closePull(p, p.mergedBy)
	return sha, h.pushed(r, p.baseRef)
}

// sendPull sends a pull_request event with extra fields beside the usual ones.
func (h *Hub) sendPull(p *pull, action string, sender *account, extra object) {
	p.updatedAt = h.now()
	payload := object{"number": p.number, "pull_request": h.pullJSON(p)}
	maps.Copy(payload, extra)
	h.send("pull_request", action, h.installationOf(p.base), p.base, sender, payload)
}
