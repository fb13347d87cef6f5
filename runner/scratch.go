package runner

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"underwrite/attest"
	"underwrite/runner/internal/hostpath"
)

// scratch is the private space of one execution, below the state directory.
// Everything in it is lost when the execution ends.
type scratch struct{ parent, key string }

func (s scratch) path(name string) string { return filepath.Join(s.parent, s.key, name) }

// What lies in the scratch space.
func (s scratch) git() string        { return s.path("git") }
func (s scratch) workspace() string  { return s.path("workspace") }
func (s scratch) runtime() string    { return s.path("runtime") }
func (s scratch) root() string       { return s.path("root") }
func (s scratch) pack() string       { return s.path("pack") }
func (s scratch) result() string     { return s.path("result") }
func (s scratch) executable() string { return s.path("program/executable") }

// create makes the directories, all private. The workspace is mounted later.
func (s scratch) create() error {
	if err := os.Mkdir(s.path(""), 0o700); err != nil {
		return fmt.Errorf("scratch: %w", err)
	}
	for _, dir := range []string{s.workspace(), s.runtime(), s.root(), s.pack(), s.result(), filepath.Dir(s.executable())} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("scratch: %w", err)
		}
	}
	return nil
}

// remove unmounts the workspace and removes everything. It can be repeated.
func (s scratch) remove(unmount func(dir string) error) error {
	if _, err := os.Lstat(s.path("")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	// Removing files below a mount that stayed would be slow, not unsafe: it is
	// the job's own workspace. But the mount would be forgotten.
	if err := unmount(s.workspace()); err != nil {
		return err
	}
	if err := os.RemoveAll(s.path("")); err != nil {
		return fmt.Errorf("remove scratch: %w", err)
	}
	return nil
}

// errPinned: the executable changed between the policy's look and the copy.
var errPinned = errors.New("the executable changed while the request was prepared")

// pin copies the executable into the scratch space while hashing it. What the
// job runs is this copy, which nothing can change any more.
func (s scratch) pin(want attest.Executable) error {
	src, err := hostpath.Open(want.Path)
	if err != nil {
		return fmt.Errorf("pin executable: %w", err)
	}
	defer src.Close()
	dst, err := os.OpenFile(s.executable(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o500)
	if err != nil {
		return fmt.Errorf("pin executable: %w", err)
	}
	defer dst.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(dst, h), io.LimitReader(src, want.Bytes+1))
	if err != nil {
		return fmt.Errorf("pin executable: %w", err)
	}
	if n != want.Bytes || hex.EncodeToString(h.Sum(nil)) != want.SHA256 {
		return fmt.Errorf("%w: %s", errPinned, want.Path)
	}
	if err := dst.Chmod(0o555); err != nil {
		return fmt.Errorf("pin executable: %w", err)
	}
	return dst.Close()
}
