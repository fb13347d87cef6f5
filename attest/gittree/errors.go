package gittree

import "fmt"

// Kind says why a directory has no version 1 tree.
type Kind string

// The kinds. The first five are faults of the content.
const (
	EmptyDirectory Kind = "empty directory"
	HardLink       Kind = "hard link"
	SpecialFile    Kind = "special file" // socket, device, FIFO and any other type
	GitMetadata    Kind = ".git"
	OverLimit      Kind = "over the limit"
	MountPoint     Kind = "mount point"
	Changed        Kind = "changed while it was measured"
	Unreadable     Kind = "unreadable"
)

// Error says what in a directory cannot be measured, and why. Path is relative
// to the root, raw and hostile (escape it before showing it); it is empty for
// the root itself.
type Error struct {
	Kind Kind
	Path string
	Err  error // detail; may be nil
}

func (e *Error) Error() string {
	s := "gittree: " + string(e.Kind)
	if e.Path != "" {
		s += fmt.Sprintf(": %q", e.Path)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the detail.
func (e *Error) Unwrap() error { return e.Err }

// Unsupported reports whether whoever wrote the content is to blame: version 1
// cannot express it or it is too large.
func (e *Error) Unsupported() bool {
	switch e.Kind {
	case EmptyDirectory, HardLink, SpecialFile, GitMetadata, OverLimit:
		return true
	}
	return false
}
