package freeze

import (
	"context"
	"errors"

	"underwrite/attest"
)

// PullRequest is what the freezer needs to know of a pull request: the
// metadata that is read before and after the fetch and must not change.
type PullRequest struct {
	Repo         string // owner/name of the base repository
	Number       int64
	State        string // "open" or "closed"
	MergedAt     *string
	BaseSHA      string
	HeadSHA      string
	HeadRepoID   *int64 // nil for a deleted fork
	HeadRepo     *string
	HeadRef      string
	ChangedFiles int64
}

// GitHub is what freezing needs of GitHub. handlers/internal/ghapp implements it.
type GitHub interface {
	// PullRequest reads the metadata from the API.
	PullRequest(ctx context.Context, repo string, number int64) (PullRequest, error)
	// FetchAccess returns the repository's clone URL and the value of an HTTP
	// Authorization header with a narrow, fresh token.
	FetchAccess(ctx context.Context, repo string) (url, authorization string, err error)
}

// Limits bound a freeze.
type Limits struct {
	BundleBytes  int64
	DiffBytes    int64 // 16 MiB
	ContextBytes int64 // 2,000,000
	ContextFiles int   // 256
}

// DefaultLimits are the limits of the reference and the protocol notes.
var DefaultLimits = Limits{BundleBytes: 1 << 30, DiffBytes: 16 << 20, ContextBytes: 2_000_000, ContextFiles: 256}

// Frozen is a frozen target and its three files. The files lie in the
// directory that the caller gave and are complete and fsynced.
type Frozen struct {
	Target      attest.Target
	DiffPath    string // pr.diff
	ContextPath string // trusted-context.json
	BundlePath  string // pr.bundle
}

// ErrMoved: the pull request changed while it was frozen; freeze again.
var ErrMoved = errors.New("pull request moved while it was frozen")

// ErrNotYet: GitHub's refs do not agree with its metadata yet; try again later.
var ErrNotYet = errors.New("the pull request's refs are not up to date yet")

// RefusedError says that a pull request cannot be frozen, in words for its author.
type RefusedError struct {
	Reason string
	Path   string // raw, hostile; empty when no path is to blame
}

func (e *RefusedError) Error() string {
	if e.Path == "" {
		return e.Reason
	}
	return e.Reason + ": " + e.Path
}

// Freezer freezes pull requests with one mirror per repository below MirrorDir.
type Freezer struct {
	MirrorDir string
	GitHub    GitHub
	Limits    Limits
}

// Freeze freezes one pull request into outDir, an empty private directory.
func (f *Freezer) Freeze(ctx context.Context, repo string, number int64, outDir string) (*Frozen, error) {
	return nil, errors.New("freeze: not built yet")
}

// Local freezes two revisions of a local repository as if they were the pull
// request number of repo ("local/NAME" for a repository without a remote).
func Local(ctx context.Context, repoDir, base, head, repo string, number int64, outDir string, l Limits) (*Frozen, error) {
	return nil, errors.New("freeze: not built yet")
}
