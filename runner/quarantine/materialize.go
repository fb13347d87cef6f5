package quarantine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Materialize writes the walked tree below dir (empty, exclusively owned)
// without following links, filters or attributes: bytes on disk are the blobs.
// Files get mode 0644 or 0755, directories 0755, all owned by uid and gid when
// these are not negative. dir itself stays as it is. A file system that takes
// two names of the tree for one fails.
func (s *Source) Materialize(ctx context.Context, t *Tree, dir string, uid, gid int) error {
	root, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("materialize: %w", err)
	}
	defer root.Close()
	if names, err := root.Readdirnames(1); !errors.Is(err, io.EOF) {
		return fmt.Errorf("materialize: %s is not empty (%q): %w", dir, names, errors.Join(err))
	}
	w := writer{uid: uid, gid: gid, stack: []folder{{fd: int(root.Fd())}}}
	defer w.leave(0)
	if err := s.blobs(ctx, t, w.write); err != nil {
		return fmt.Errorf("materialize: %w", err)
	}
	return nil
}

// writer makes files relative to open directories. Entries come in tree order,
// so each directory is made once, entered once and left once.
type writer struct {
	uid, gid int
	stack    []folder // the root, which is not the writer's to close, and the directories down to the current one
}

type folder struct {
	name string
	fd   int
}

func (w *writer) write(e Entry, read func(io.Writer) error) error {
	parts := components(e.Path)
	parents, name := parts[:len(parts)-1], parts[len(parts)-1]
	if err := w.enter(parents); err != nil {
		return fmt.Errorf("directory of %q: %w", e.Path, err)
	}
	at := w.stack[len(w.stack)-1].fd
	var err error
	if e.Mode == modeLink {
		err = w.link(at, name, read)
	} else {
		err = w.file(at, name, e.Mode, read)
	}
	if err != nil {
		return fmt.Errorf("%q: %w", e.Path, err)
	}
	return nil
}

// enter makes the stack stand for the given directory.
func (w *writer) enter(parents []string) error {
	same := 0
	for same < len(parents) && same+1 < len(w.stack) && w.stack[same+1].name == parents[same] {
		same++
	}
	w.leave(same)
	for _, name := range parents[same:] {
		fd, err := w.makeFolder(w.stack[len(w.stack)-1].fd, name)
		if err != nil {
			return err
		}
		w.stack = append(w.stack, folder{name: name, fd: fd})
	}
	return nil
}

// leave closes all directories deeper than depth.
func (w *writer) leave(depth int) {
	for _, f := range slices.Backward(w.stack[depth+1:]) {
		unix.Close(f.fd) //nolint:errcheck // opened for its place only
	}
	w.stack = w.stack[:depth+1]
}

func (w *writer) makeFolder(at int, name string) (int, error) {
	if err := unix.Mkdirat(at, name, 0o700); err != nil {
		return -1, &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	fd, err := open(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	if err := w.own(fd, 0o755); err != nil {
		unix.Close(fd) //nolint:errcheck // opened for its place only
		return -1, err
	}
	return fd, nil
}

func (w *writer) file(at int, name string, mode uint32, read func(io.Writer) error) error {
	fd, err := open(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	if err := read(f); err != nil {
		f.Close()
		return err
	}
	if err := w.own(fd, mode&0o777); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func (w *writer) link(at int, name string, read func(io.Writer) error) error {
	var target bytes.Buffer
	if err := read(&target); err != nil {
		return err
	}
	if err := unix.Symlinkat(target.String(), at, name); err != nil {
		return &os.PathError{Op: "symlink", Path: name, Err: err}
	}
	if w.uid < 0 && w.gid < 0 {
		return nil
	}
	if err := unix.Fchownat(at, name, w.uid, w.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "chown", Path: name, Err: err}
	}
	return nil
}

// own gives an open file or directory away and sets its mode, whatever the umask.
func (w *writer) own(fd int, mode uint32) error {
	if w.uid >= 0 || w.gid >= 0 {
		if err := unix.Fchown(fd, w.uid, w.gid); err != nil {
			return fmt.Errorf("chown: %w", err)
		}
	}
	if err := unix.Fchmod(fd, mode); err != nil { // after chown, which clears bits
		return fmt.Errorf("chmod: %w", err)
	}
	return nil
}

// open opens one name of a directory: no link, no other mount, nothing above.
func open(at int, name string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{
		Flags: uint64(flags) | unix.O_NOFOLLOW | unix.O_CLOEXEC, Mode: uint64(mode),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(at, name, &how)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: name, Err: err}
		}
		return fd, nil
	}
}
