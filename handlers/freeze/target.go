package freeze

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"underwrite/attest"
	"underwrite/runner/confine"
)

// Names of the published files.
const (
	diffName    = "pr.diff"
	contextName = "trusted-context.json"
	bundleName  = "pr.bundle"
	scratchName = ".freeze.git"
)

// symmetric is what both diffs show: the changes of the head since it left the
// base. The trailing -- keeps it from being taken for a path.
var symmetric = []string{baseRef + "..." + headRef, "--"}

// Options of both diffs, and those that only the patch has. They name all that
// configuration could change (protocol notes).
var (
	diffOptions  = []string{"diff", "--no-color", "--no-ext-diff", "--no-textconv", "--find-renames=50%"}
	patchOptions = []string{
		"--binary", "--full-index", "--diff-algorithm=myers", "--no-indent-heuristic",
		"--unified=3", "--src-prefix=a/", "--dst-prefix=b/",
	}
)

// freezing writes the files of one target from a scratch repository.
type freezing struct {
	repo   *scratch
	outDir string
	limits Limits
	target attest.Target
	// settle compares the number of changed files that git counts with the
	// metadata, and recheck asks whether the metadata still holds. Both are nil
	// for a local target.
	settle  func(ctx context.Context, counted int64) error
	recheck func(context.Context) error
}

// run takes the steps in the order of the protocol notes.
func (z *freezing) run(ctx context.Context) (*Frozen, error) {
	var diff, trusted, bundle file
	steps := []func() error{
		func() error { return z.findMergeBase(ctx) },
		func() error { return z.count(ctx) },
		func() (err error) { diff, err = z.writeDiff(ctx); return },
		func() error { return callIfSet(ctx, z.recheck) },
		func() (err error) { trusted, err = z.writeContext(ctx); return },
		func() (err error) { bundle, err = z.writeBundle(ctx); return },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	z.target.DiffSHA256, z.target.DiffBytes = diff.sha256, diff.bytes
	z.target.TrustedContextSHA256, z.target.TrustedContextBytes = trusted.sha256, trusted.bytes
	z.target.ObjectBundleSHA256, z.target.ObjectBundleBytes = bundle.sha256, bundle.bytes
	if err := z.target.Validate(); err != nil {
		return nil, fmt.Errorf("frozen target: %w", err)
	}
	return &Frozen{Target: z.target, DiffPath: diff.path, ContextPath: trusted.path, BundlePath: bundle.path}, nil
}

func callIfSet(ctx context.Context, f func(context.Context) error) error {
	if f == nil {
		return nil
	}
	return f(ctx)
}

// findMergeBase requires exactly one: with several, what the head changes is
// not defined.
func (z *freezing) findMergeBase(ctx context.Context) error {
	out, err := z.repo.text(ctx, "merge-base", "--all", baseRef, headRef)
	var exit *confine.ExitError
	if errors.As(err, &exit) && exit.Code == 1 && exit.Stderr == "" {
		return &RefusedError{Reason: "base and head have no commit in common"}
	} else if err != nil {
		return err
	}
	found := strings.Fields(out)
	if len(found) != 1 {
		return &RefusedError{Reason: fmt.Sprintf("base and head have %d merge bases; merge the base branch into the head", len(found))}
	}
	if !shaShape.MatchString(found[0]) {
		return fmt.Errorf("git merge-base: unexpected answer %q", out)
	}
	z.target.MergeBaseSHA = found[0]
	return nil
}

func (z *freezing) count(ctx context.Context) error {
	names := &nameStatus{}
	args := append(append(append([]string{}, diffOptions...), "--name-status", "-z"), symmetric...)
	if err := z.repo.git(ctx, names, maxTreeListing, nil, args...); err != nil {
		return err
	}
	counted, err := names.count()
	if err != nil {
		return err
	}
	z.target.ChangedFiles = counted
	if z.settle == nil {
		return nil
	}
	return z.settle(ctx, counted)
}

// nameStatus counts the changes in the output of `git diff --name-status -z`:
// a status and one path, or two for a rename.
type nameStatus struct {
	splitter recordSplitter
	changes  int64
	paths    int // still to come of the current change
	bad      bool
}

func (n *nameStatus) Write(p []byte) (int, error) {
	n.splitter.visit = n.record
	return n.splitter.Write(p)
}

func (n *nameStatus) record(r string) error {
	switch {
	case n.paths > 0:
		n.paths--
	case r == "" || !strings.Contains("ACDMRT", r[:1]) || strings.Trim(r[1:], "0123456789") != "":
		n.bad = true
	default:
		n.changes++
		n.paths = 1
		if r[0] == 'R' || r[0] == 'C' {
			n.paths = 2
		}
	}
	return nil
}

func (n *nameStatus) count() (int64, error) {
	if n.bad || n.paths > 0 || len(n.splitter.rest) > 0 {
		return 0, errors.New("git diff --name-status: unexpected answer")
	}
	return n.changes, nil
}

func (z *freezing) writeDiff(ctx context.Context) (file, error) {
	args := append(append(append([]string{}, diffOptions...), patchOptions...), symmetric...)
	refusal := &RefusedError{Reason: fmt.Sprintf("the diff is larger than %d bytes", z.limits.DiffBytes)}
	return z.publish(ctx, diffName, z.limits.DiffBytes, refusal, args...)
}

// writeBundle packs the complete history of both commits: the gateway has
// nothing else.
func (z *freezing) writeBundle(ctx context.Context) (file, error) {
	return z.publish(ctx, bundleName, z.limits.BundleBytes, tooMuchHistory(z.limits.BundleBytes),
		"bundle", "create", "--quiet", "-", baseRef, headRef)
}

func tooMuchHistory(maximum int64) error {
	return &RefusedError{Reason: fmt.Sprintf("the history of base and head is larger than %d bytes", maximum)}
}

// publish writes the output of a git command as a file; refusal is the error
// for output beyond maximum bytes.
func (z *freezing) publish(ctx context.Context, name string, maximum int64, refusal error, args ...string) (file, error) {
	f, err := publish(z.outDir, name, func(w io.Writer) error { return z.repo.git(ctx, w, maximum, nil, args...) })
	if errors.Is(err, confine.ErrOutput) {
		return file{}, refusal
	}
	return f, err
}

func (z *freezing) writeContext(ctx context.Context) (file, error) {
	files, err := trustedContext(ctx, z.repo, z.limits)
	if err != nil {
		return file{}, err
	}
	content, err := encodeContext(z.target.BaseSHA, files)
	if err != nil {
		return file{}, err
	}
	return publish(z.outDir, contextName, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// checkOutDir requires an empty directory: a file left there by an earlier
// freeze could be taken for one of this.
func checkOutDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("output directory: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("output directory %s is not empty", dir)
	}
	return nil
}
