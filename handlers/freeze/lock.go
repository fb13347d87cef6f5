package freeze

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// lockPoll is how often a held lock is tried again. flock cannot be waited for
// together with a context.
const lockPoll = 20 * time.Millisecond

// fileLock is a flock on its own open file. Two of them exclude each other
// within a process as well as between processes, and the kernel frees a lock
// whose process was killed. The file itself is never removed: a waiter could
// hold the old one and a newcomer the new one.
type fileLock struct{ f *os.File }

// lockFile waits for the lock: exclusive, or shared with other shared ones.
func lockFile(ctx context.Context, path string, exclusive bool) (*fileLock, error) {
	for {
		l, err := tryLock(path, exclusive)
		if l != nil || err != nil {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for lock %s: %w", path, ctx.Err())
		case <-time.After(lockPoll):
		}
	}
}

// tryLock returns nil without an error when somebody else holds the lock.
func tryLock(path string, exclusive bool) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	how := syscall.LOCK_SH
	if exclusive {
		how = syscall.LOCK_EX
	}
	err = syscall.EINTR
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
	}
	if err == nil {
		return &fileLock{f}, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// unlock frees the lock; closing the only descriptor does it.
func (l *fileLock) unlock() { l.f.Close() }
