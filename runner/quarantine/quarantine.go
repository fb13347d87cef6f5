package quarantine

import (
	"errors"
	"fmt"
	"strings"

	"underwrite/attest/gittree"
	"underwrite/runner/confine"
)

// Refs of the two kinds of bundle.
const (
	BaseRef   = "refs/underwrite/base"
	HeadRef   = "refs/underwrite/head"
	OutputRef = "refs/underwrite/output"
)

// Limits bound what is taken out of hostile objects. BundleBytes and
// WorkspaceBytes must be positive where they matter. BlobBytes of 0 means
// WorkspaceBytes; the others are those of version 1 if they are 0 or larger.
type Limits struct {
	BundleBytes    int64 // bytes of the bundle file
	WorkspaceBytes int64 // sum of blob bytes, link targets included
	BlobBytes      int64 // bytes of one blob
	Entries        int   // files, links and directories; at most 20,000 in version 1
	Depth          int   // path components; at most 256
	PathBytes      int   // bytes of one path; at most 4,096
	TotalPathBytes int64 // bytes of all paths; at most 8 MiB
}

// maxNameBytes is what Linux file systems take for one path component.
const maxNameBytes = 255

// maxTargetBytes is what Linux takes for the target of a symbolic link.
const maxTargetBytes = 4095

var errNoLimit = errors.New("quarantine: a byte limit is missing")

// complete fills in the defaults of a tree's limits.
func (l Limits) complete() (Limits, error) {
	if l.WorkspaceBytes <= 0 {
		return l, errNoLimit
	}
	if l.BlobBytes <= 0 {
		l.BlobBytes = l.WorkspaceBytes
	}
	l.Entries = atMost(l.Entries, gittree.MaxEntries)
	l.Depth = atMost(l.Depth, gittree.MaxDepth)
	l.PathBytes = atMost(l.PathBytes, gittree.MaxPathBytes)
	l.TotalPathBytes = atMost(l.TotalPathBytes, gittree.MaxTotalPathBytes)
	return l, nil
}

func atMost[T int | int64](value, most T) T {
	if value <= 0 || value > most {
		return most
	}
	return value
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

func refuse(path, format string, args ...any) error {
	return &RefusedError{Reason: fmt.Sprintf(format, args...), Path: path}
}

// gitRefused turns the verdict of git on hostile objects into a RefusedError.
// What git says of a full disk, and every failure that is not git's, stays ours.
func gitRefused(what string, err error) error {
	if err == nil {
		return nil
	}
	var exit *confine.ExitError
	if !errors.As(err, &exit) || strings.Contains(exit.Stderr, "No space left on device") {
		return fmt.Errorf("%s: %w", what, err)
	}
	if exit.Signal != 0 {
		return refuse("", "%s: git needs more than its limits allow (signal %d)", what, exit.Signal)
	}
	return refuse("", "%s: git refuses it: %s", what, printable(exit.Stderr))
}

// maxShown bounds how much of git's words goes into a reason, in bytes.
const maxShown = 300

// printable makes one bounded line of what git wrote.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return ' '
		}
		return r
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxShown {
		text = strings.ToValidUTF8(text[:maxShown], "") + " …"
	}
	return text
}
