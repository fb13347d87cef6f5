package gittree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// state is what must not change of an entry while it is measured. Times catch a
// rewrite in place that keeps the size; the access time is left out, because
// reading changes it.
type state struct {
	device, inode uint64
	mode          uint32 // type and permissions
	links         uint64
	size          int64
	modified      unix.Timespec
	changed       unix.Timespec
}

func newState(s *unix.Stat_t) state {
	return state{
		device: s.Dev, inode: s.Ino, mode: s.Mode, links: uint64(s.Nlink), size: s.Size,
		modified: s.Mtim, changed: s.Ctim,
	}
}

// compare requires now to be the same state, and names what differs.
func (s state) compare(now state, path string) error {
	if now == s {
		return nil
	}
	what := "content or attributes"
	switch {
	case now.device != s.device || now.inode != s.inode:
		what = "identity"
	case now.mode&unix.S_IFMT != s.mode&unix.S_IFMT:
		what = "type"
	case now.mode != s.mode:
		what = "mode"
	case now.size != s.size:
		what = "size"
	case now.links != s.links:
		what = "link count"
	}
	return &Error{Kind: Changed, Path: path, Err: errors.New(what)}
}

func stateOf(fd int) (state, error) {
	var s unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &s) }); err != nil {
		return state{}, fmt.Errorf("fstat: %w", err)
	}
	return newState(&s), nil
}

func stateAt(dir int, name string) (state, error) {
	var s unix.Stat_t
	err := retry(func() error { return unix.Fstatat(dir, name, &s, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return state{}, fmt.Errorf("stat: %w", err)
	}
	return newState(&s), nil
}

// openBeneath opens one name in dir. It never follows a link, leaves dir or
// enters a mount.
func openBeneath(dir int, name string, flags uint64) (fd int, err error) {
	how := unix.OpenHow{
		Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS |
			unix.RESOLVE_NO_XDEV,
	}
	err = retry(func() error { fd, err = unix.Openat2(dir, name, &how); return err })
	if err != nil {
		return -1, fmt.Errorf("openat2: %w", err)
	}
	return fd, nil
}

func openDirectory(dir int, name string) (int, error) {
	return openBeneath(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openError sorts out why an entry that was just listed cannot be opened. When
// it is gone or has become something else, it changed.
func openError(path string, err error) error {
	kind := Unreadable
	switch {
	case errors.Is(err, unix.EXDEV):
		kind = MountPoint
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		kind = Changed
	}
	return &Error{Kind: kind, Path: path, Err: err}
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

var errTooMany = errors.New("too many names")

// nameBatch is how many names are read at a time, so that a huge directory is
// refused before it fills the memory.
const nameBatch = 256

// readNames lists a directory, except for . and .., through a descriptor of its
// own. More than most names are errTooMany.
func readNames(dir, most int) ([]string, error) {
	fd, err := openDirectory(dir, ".")
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "directory")
	defer f.Close()
	var names []string
	for {
		batch, err := f.Readdirnames(nameBatch)
		names = append(names, batch...)
		switch {
		case len(names) > most:
			return nil, errTooMany
		case errors.Is(err, io.EOF):
			return names, nil
		case err != nil:
			return nil, err
		}
	}
}

// readTarget reads the target of an open symbolic link.
func readTarget(fd int) (io.Reader, error) {
	target := make([]byte, unix.PathMax)
	var n int
	err := retry(func() (err error) { n, err = unix.Readlinkat(fd, "", target); return err })
	if err != nil {
		return nil, fmt.Errorf("readlink: %w", err)
	}
	return bytes.NewReader(target[:n]), nil
}

// fileReader reads a descriptor until the context ends.
type fileReader struct {
	ctx    context.Context
	fd     int
	before func() // called before each read
}

func (r fileReader) Read(p []byte) (n int, err error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	r.before()
	err = retry(func() (err error) { n, err = unix.Read(r.fd, p); return err })
	switch {
	case err != nil:
		return 0, fmt.Errorf("read: %w", err)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}
