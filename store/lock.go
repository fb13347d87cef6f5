package store

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked: another living process works with the database.
var ErrLocked = errors.New("another process uses this database")

// Lock is the exclusive right to run a controller on a database. The kernel
// gives it back when its holder dies, in whatever way. Whoever holds it may
// take over work that is marked as running.
type Lock struct{ f *os.File }

// AcquireLock takes the lock of the database at path without waiting; ErrLocked
// means that somebody else has it. The lock's file stays, so that no two
// processes ever lock different files.
func AcquireLock(path string) (*Lock, error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock database: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrLocked, path)
		}
		return nil, fmt.Errorf("lock database %s: %w", path, err)
	}
	return &Lock{f}, nil
}

// Release gives the lock back.
func (l *Lock) Release() error { return l.f.Close() }
