package freeze

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"underwrite/attest"
	"underwrite/runner/confine"
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

// Limits bound a freeze. A limit of 0 is that of DefaultLimits.
type Limits struct {
	BundleBytes  int64 // of pr.bundle: the whole history of base and head
	DiffBytes    int64 // of pr.diff; 16 MiB in the protocol's linked transport
	ContextBytes int64 // of the contents in trusted-context.json; 2,000,000
	ContextFiles int   // in trusted-context.json; 256
}

func (l Limits) orDefaults() Limits {
	return Limits{
		BundleBytes:  cmp.Or(l.BundleBytes, DefaultLimits.BundleBytes),
		DiffBytes:    cmp.Or(l.DiffBytes, DefaultLimits.DiffBytes),
		ContextBytes: cmp.Or(l.ContextBytes, DefaultLimits.ContextBytes),
		ContextFiles: cmp.Or(l.ContextFiles, DefaultLimits.ContextFiles),
	}
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

// RefusedError says that a pull request cannot be frozen, in words for its
// author: trying again without a change to it or its base does not help.
type RefusedError struct {
	Reason string
	Path   string // raw, hostile; empty when no path is to blame
}

func (e *RefusedError) Error() string {
	if e.Path == "" {
		return e.Reason
	}
	return fmt.Sprintf("%s: %q", e.Reason, e.Path)
}

// Freezer freezes pull requests with one mirror per repository below MirrorDir,
// a private directory on a local file system. Any number of freezes may run at
// once, in several processes too.
type Freezer struct {
	MirrorDir string
	GitHub    GitHub
	Limits    Limits
}

// Freeze freezes one pull request into outDir, an empty private directory. It
// returns a *RefusedError, ErrMoved, ErrNotYet, or an error of the machine, the
// network or GitHub. After an error the directory is to be deleted.
func (f *Freezer) Freeze(ctx context.Context, repo string, number int64, outDir string) (*Frozen, error) {
	if !repoShape.MatchString(repo) {
		return nil, fmt.Errorf("repository %q: want OWNER/NAME", repo)
	}
	outDir, err := realPath("output directory", outDir)
	if err != nil {
		return nil, err
	}
	if err := checkOutDir(outDir); err != nil {
		return nil, err
	}
	m, err := openMirror(f.MirrorDir, repo)
	if err != nil {
		return nil, err
	}
	frozen, err := f.freezeOnce(ctx, m, repo, number, outDir)
	var fault *mirrorFault
	if !errors.As(err, &fault) {
		return frozen, err
	}
	rebuilt, repairErr := m.repair(ctx, fault.reading)
	if repairErr != nil || !rebuilt {
		return nil, errors.Join(fault.err, repairErr)
	}
	frozen, err = f.freezeOnce(ctx, m, repo, number, outDir)
	if errors.As(err, &fault) {
		err = fault.err
	}
	return frozen, err
}

// mirrorFault is a failed git process that the mirror may be to blame for.
type mirrorFault struct {
	err     error
	reading bool // of objects, after the fetch
}

func (e *mirrorFault) Error() string { return e.err.Error() }
func (e *mirrorFault) Unwrap() error { return e.err }

// suspectMirror marks the failure of a process, unless its cause is known.
func suspectMirror(err error, reading bool) error {
	var exit *confine.ExitError
	if !errors.As(err, &exit) || errors.Is(err, ErrNotYet) {
		return err
	}
	return &mirrorFault{err, reading}
}

func (f *Freezer) freezeOnce(ctx context.Context, m *mirror, repo string, number int64, outDir string) (frozen *Frozen, err error) {
	l := f.Limits.orDefaults()
	pr, err := f.metadata(ctx, repo, number)
	if err != nil {
		return nil, err
	}
	use, err := m.acquire(ctx, l.BundleBytes)
	if err != nil {
		return nil, err
	}
	defer use.unlock()
	if err := f.fetch(ctx, m, pr, l); err != nil {
		return nil, suspectMirror(err, false)
	}
	s, err := newScratch(filepath.Join(outDir, scratchName), []string{m.objects()},
		map[string]string{baseRef: pr.BaseSHA, headRef: pr.HeadSHA})
	if err != nil {
		return nil, err
	}
	z := &freezing{repo: s, outDir: outDir, limits: l, target: newTarget(pr)}
	z.settle = func(ctx context.Context, counted int64) error { return f.settle(ctx, pr, counted) }
	z.recheck = func(ctx context.Context) error { return f.recheck(ctx, pr) }
	frozen, err = z.run(ctx)
	err = errors.Join(suspectMirror(err, true), s.remove())
	if err != nil {
		return nil, err
	}
	return frozen, nil
}

// metadata reads and checks the metadata.
func (f *Freezer) metadata(ctx context.Context, repo string, number int64) (PullRequest, error) {
	pr, err := f.GitHub.PullRequest(ctx, repo, number)
	if err != nil {
		return PullRequest{}, fmt.Errorf("read pull request %s#%d: %w", repo, number, err)
	}
	if err := checkMetadata(pr, repo, number); err != nil {
		return PullRequest{}, fmt.Errorf("read pull request %s#%d: %w", repo, number, err)
	}
	return pr, nil
}

// fetch requires the refs to be what the metadata says.
func (f *Freezer) fetch(ctx context.Context, m *mirror, pr PullRequest, l Limits) error {
	url, authorization, err := f.GitHub.FetchAccess(ctx, pr.Repo)
	if err != nil {
		return fmt.Errorf("access to %s: %w", pr.Repo, err)
	}
	a, err := newAccess(url, authorization)
	if err != nil {
		return err
	}
	got, err := m.fetch(ctx, pr, a, packSlack*l.BundleBytes)
	if err != nil {
		return err
	}
	if got.base == pr.BaseSHA && got.head == pr.HeadSHA {
		return nil
	}
	if err := f.recheck(ctx, pr); err != nil {
		return err
	}
	return fmt.Errorf("%w: refs/pull/%d/head is %s, the pull request says %s", ErrNotYet, pr.Number, got.head, pr.HeadSHA)
}

// recheck returns ErrMoved when the metadata is not what it was.
func (f *Freezer) recheck(ctx context.Context, pr PullRequest) error {
	now, err := f.metadata(ctx, pr.Repo, pr.Number)
	if err != nil {
		return err
	}
	if !same(pr, now) {
		return ErrMoved
	}
	return nil
}

// settle compares git's count of changed files with GitHub's, which may be
// that of an earlier head for a moment.
func (f *Freezer) settle(ctx context.Context, pr PullRequest, counted int64) error {
	if counted == pr.ChangedFiles {
		return nil
	}
	if err := f.recheck(ctx, pr); err != nil {
		return err
	}
	return &RefusedError{Reason: fmt.Sprintf("GitHub counts %d changed files, git counts %d", pr.ChangedFiles, counted)}
}
