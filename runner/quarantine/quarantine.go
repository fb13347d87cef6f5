package quarantine

import (
	"context"
	"errors"
	"fmt"

	"underwrite/attest"
)

// Refs of the two kinds of bundle.
const (
	BaseRef   = "refs/underwrite/base"
	HeadRef   = "refs/underwrite/head"
	OutputRef = "refs/underwrite/output"
)

// Limits bound what is taken out of hostile objects.
type Limits struct {
	BundleBytes    int64 // bytes of the bundle file
	WorkspaceBytes int64 // sum of blob bytes, link targets included
	BlobBytes      int64 // bytes of one blob
	Entries        int   // files, links and directories; at most 20,000 in version 1
	Depth          int   // path components; at most 256
	PathBytes      int   // bytes of one path; at most 4,096
	TotalPathBytes int64 // bytes of all paths; at most 8 MiB
}

// RefusedError says that an artifact is hostile, malformed or unsupported: the
// fault of its author, never ours. Path is raw and hostile (escape before
// showing), empty when no path is to blame.
type RefusedError struct {
	Reason string
	Path   string
}

func (e *RefusedError) Error() string {
	if e.Path == "" {
		return e.Reason
	}
	return fmt.Sprintf("%s: %q", e.Reason, e.Path)
}

// Source is a source bundle imported into its own bare repository.
type Source struct {
	GitDir string // private directory given to ImportSource
	Base   string // frozen commits
	Head   string
}

// Entry is one file or symbolic link of a walked tree, in tree order.
type Entry struct {
	Path   string // raw bytes, slash-separated
	Mode   uint32 // 0100644, 0100755 or 0120000
	Object string // object id in the source's format
	Size   int64
}

// Tree is a strictly walked and sized tree.
type Tree struct {
	Entries []Entry
	Bytes   int64
}

var errNotBuilt = errors.New("quarantine: not built yet")

// ImportSource checks digest and size of the bundle against the target,
// imports exactly BaseRef and HeadRef into a new bare repository at gitDir
// (which must not exist), and requires them to be the frozen commits, with
// complete history. It returns a *RefusedError for a bad bundle.
func ImportSource(ctx context.Context, gitDir, bundlePath string, target attest.Target, l Limits) (*Source, error) {
	return nil, errNotBuilt
}

// Walk reads the tree of a commit by the strict rules of DESIGN section 6.
func (s *Source) Walk(ctx context.Context, commit string, l Limits) (*Tree, error) {
	return nil, errNotBuilt
}

// Materialize writes the walked tree below dir (empty, exclusively owned)
// without following links, filters or attributes: bytes on disk are the blobs.
// Files get mode 0644 or 0755, directories 0755, all owned by uid and gid when
// these are not negative.
func (s *Source) Materialize(ctx context.Context, t *Tree, dir string, uid, gid int) error {
	return errNotBuilt
}

// GitTree computes the synthetic SHA-256 tree of the walked tree from its
// blobs, without writing any file.
func (s *Source) GitTree(ctx context.Context, t *Tree) (string, error) { return "", errNotBuilt }

// PackOutput writes the deterministic output bundle of the workspace dir to
// bundlePath (new file, fsynced) and describes it. scratch is an empty private
// directory. It returns a *RefusedError (unsupported output) with path and kind
// for what version 1 cannot express.
func PackOutput(ctx context.Context, dir, scratch, bundlePath string, l Limits) (attest.Bundle, error) {
	return attest.Bundle{}, errNotBuilt
}

// VerifyOutput imports an output bundle into a fresh quarantine repository
// below scratch and derives its descriptor from the objects alone. If want is
// not nil, a descriptor that differs is a *RefusedError.
func VerifyOutput(ctx context.Context, bundlePath, scratch string, want *attest.Bundle, l Limits) (attest.Bundle, error) {
	return attest.Bundle{}, errNotBuilt
}
