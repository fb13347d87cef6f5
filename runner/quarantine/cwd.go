package quarantine

import "strings"

// CheckDirectory requires cwd, a normalized repository-relative path, to be a
// real directory of the tree, with no symbolic link in it. It returns a
// *RefusedError: the job could never start.
func (t *Tree) CheckDirectory(cwd string) error {
	if cwd == "." {
		return nil
	}
	for _, e := range t.Entries {
		if strings.HasPrefix(e.Path, cwd+"/") {
			return nil // an entry's ancestors are directories
		}
	}
	for _, e := range t.Entries {
		switch {
		case e.Path != cwd && !strings.HasPrefix(cwd, e.Path+"/"):
		case e.Mode == 0o120000 /* symbolic link */ :
			return &RefusedError{Reason: "working directory goes through a symbolic link", Path: e.Path}
		default:
			return &RefusedError{Reason: "working directory is a file", Path: e.Path}
		}
	}
	return &RefusedError{Reason: "working directory is missing", Path: cwd}
}
