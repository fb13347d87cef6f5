// Package hostpath opens the gateway's own files by path: no component of the
// path is a symbolic link, and nobody but root and the gateway's user can
// replace one. What it returns stays valid however the path changes later.
package hostpath

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Errors that callers branch on. Each is wrapped with the path and the fix.
var (
	ErrLink      = errors.New("symbolic link in the path")
	ErrUnsafe    = errors.New("path that another user could change")
	ErrType      = errors.New("wrong type of file")
	ErrTooLarge  = errors.New("file is too large")
	ErrNotFound  = errors.New("no such file")
	errNotSimple = errors.New("path is not absolute and clean")
)

// sticky directories (such as /tmp) let others create names but not replace ours.
const sticky = unix.S_ISVTX

// OpenDir opens a directory and checks all of its ancestors.
func OpenDir(path string) (*os.File, error) {
	fd, err := walk(path)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Open opens a regular file for reading, after checking its ancestors. The file
// itself may be readable by others; callers that hold secrets check its mode.
func Open(path string) (*os.File, error) {
	if filepath.Clean(path) != path {
		return nil, fmt.Errorf("%q: %w", path, errNotSimple)
	}
	dir, err := walk(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	name := filepath.Base(path)
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, describe(path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w: want a regular file", path, ErrType)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ReadFile reads a regular file of at most limit bytes.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s: %w: more than %d bytes", path, ErrTooLarge, limit)
	}
	return b, nil
}

// walk opens a directory component by component.
func walk(path string) (int, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return -1, fmt.Errorf("%q: %w", path, errNotSimple)
	}
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open("/", flags, 0)
	if err != nil {
		return -1, fmt.Errorf("open /: %w", err)
	}
	at := "/"
	for _, name := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
		if err := protected(fd, at); err != nil {
			unix.Close(fd)
			return -1, err
		}
		at = filepath.Join(at, name)
		next, err := unix.Openat(fd, name, flags, 0)
		if errors.Is(err, unix.ENOTDIR) && isLink(fd, name) {
			err = unix.ELOOP
		}
		unix.Close(fd)
		if err != nil {
			return -1, describe(at, err)
		}
		fd = next
	}
	if err := protected(fd, at); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// isLink tells a link from a file: with O_DIRECTORY the kernel says ENOTDIR for both.
func isLink(fd int, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

func protected(fd int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s: %w: it belongs to uid %d; chown it to root or to uid %d", path, ErrUnsafe, st.Uid, os.Geteuid())
	}
	if st.Mode&0o022 != 0 && st.Mode&sticky == 0 {
		return fmt.Errorf("%s: %w: chmod go-w %s", path, ErrUnsafe, path)
	}
	return nil
}

func describe(path string, err error) error {
	switch {
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("%s: %w: name the real path", path, ErrLink)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%s: %w", path, ErrNotFound)
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%s: %w: want a directory", path, ErrType)
	}
	return fmt.Errorf("open %s: %w", path, err)
}
