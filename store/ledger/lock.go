package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"
)

// ErrBusy: another living process holds the lock.
var ErrBusy = errors.New("another process is working on it")

var lockName = regexp.MustCompile(`^[a-z0-9-]{1,128}$`)

// Lock is an exclusive lock between processes. The kernel releases it when
// its holder dies, in whatever way.
type Lock struct{ f *os.File }

// Acquire takes the lock called name in dir without waiting; if it is held it
// returns ErrBusy.
func Acquire(dir, name string) (*Lock, error) {
	if !lockName.MatchString(name) {
		return nil, fmt.Errorf("lock name %q", name)
	}
	path := filepath.Join(dir, name)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, ErrBusy
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// The last holder removes the file: a lock on a removed file excludes nobody.
		current, err := sameFile(f, path)
		if err == nil && current {
			return &Lock{f}, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
}

func sameFile(f *os.File, path string) (bool, error) {
	held, err := f.Stat()
	if err != nil {
		return false, fmt.Errorf("lock: %w", err)
	}
	named, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock: %w", err)
	}
	return os.SameFile(held, named), nil
}

// Release gives the lock back and removes its file.
func (l *Lock) Release() error {
	return errors.Join(os.Remove(l.f.Name()), l.f.Close())
}
