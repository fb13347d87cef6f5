package gittree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Limits of version 1 ("Linked implementation evidence transport" bounds the
// entries; the others are the reference's).
const (
	MaxEntries        = 20_000  // files, links and directories, without the root
	MaxDepth          = 256     // path components
	MaxPathBytes      = 4096    // bytes of one path, relative to the root
	MaxTotalPathBytes = 8 << 20 // bytes of all paths together

	// maxWorkers bounds how many files are hashed at a time: SHA-256 is bound by
	// the CPU, and each worker holds one descriptor and one buffer.
	maxWorkers = 8
)

// Limits bound what is measured. All must be positive.
type Limits struct {
	Bytes          int64 // bytes of all files and link targets together
	Entries        int
	Depth          int
	PathBytes      int
	TotalPathBytes int64
}

// DefaultLimits are those of version 1 with the given limit on content, in
// bytes.
func DefaultLimits(contentBytes int64) Limits {
	return Limits{
		Bytes: contentBytes, Entries: MaxEntries, Depth: MaxDepth,
		PathBytes: MaxPathBytes, TotalPathBytes: MaxTotalPathBytes,
	}
}

func (l Limits) check() error {
	if l.Bytes <= 0 || l.Entries <= 0 || l.Depth <= 0 || l.PathBytes <= 0 || l.TotalPathBytes <= 0 {
		return errors.New("gittree: limits must be positive")
	}
	return nil
}

// Stats counts what was measured.
type Stats struct {
	Files       int
	Links       int
	Directories int   // without the root
	Bytes       int64 // of files and link targets
	PathBytes   int64 // of all paths
}

// Entries is the number of files, links and directories.
func (s Stats) Entries() int { return s.Files + s.Links + s.Directories }

// Measure returns the synthetic tree of the directory dir as 64 hex digits. The
// last component of dir must not be a symbolic link.
//
// Nothing below dir is followed or left out, no mount is entered, and nothing is
// written. Everything that version 1 cannot express is refused with an *Error.
// So is whatever changes while it is measured: each entry must have the same
// identity, type, mode, link count, size, modification and change time when it
// is listed, when it is open, after it was read, and once more after everything
// was read; names must be the same as well. The caller must see to it that
// nobody writes to dir; this is a second line.
func Measure(ctx context.Context, dir string, l Limits) (tree string, s Stats, err error) {
	root, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", Stats{}, fmt.Errorf("gittree: open root: %w", err)
	}
	defer root.Close()
	return MeasureRoot(ctx, root, l)
}

// MeasureRoot is Measure for an open directory. root stays open, and its read
// position is not used.
func MeasureRoot(ctx context.Context, root *os.File, l Limits) (tree string, s Stats, err error) {
	return measure(ctx, root, l, func(step, string) {})
}

// step is a moment of a measurement at which tests change the directory.
type step int

const (
	stepListed  step = iota // an entry was stat'ed by name, not yet opened
	stepOpened              // a file or directory is open and was compared
	stepReading             // about to read a piece of a file
	stepRead                // everything was read, nothing was confirmed yet
)

// node is an entry as it was found.
type node struct {
	name     string
	state    state
	mode     Mode
	id       ID // set by a worker for a file
	children []*node
}

// walk is one measurement. The walking goroutine owns everything but the id of
// a file's node, which belongs to the worker that was sent the file.
type walk struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	limits Limits
	stats  Stats
	listed int // entries of all directories that were listed so far
	hook   func(step, string)
	files  chan openFile
}

// openFile is a file for a worker, which closes it.
type openFile struct {
	fd   int
	path string
	node *node
}

func measure(ctx context.Context, root *os.File, l Limits, hook func(step, string)) (string, Stats, error) {
	if err := l.check(); err != nil {
		return "", Stats{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &walk{ctx: ctx, cancel: cancel, limits: l, hook: hook, files: make(chan openFile)}
	fd, err := openDirectory(int(root.Fd()), ".")
	runtime.KeepAlive(root)
	if err != nil {
		return "", Stats{}, &Error{Kind: Unreadable, Err: err}
	}
	defer unix.Close(fd)

	top := &node{mode: ModeDirectory}
	if top.state, err = stateOf(fd); err != nil {
		return "", Stats{}, &Error{Kind: Unreadable, Err: err}
	}
	if err := w.readAll(fd, top); err != nil {
		return "", Stats{}, err
	}
	w.hook(stepRead, "")
	if err := w.confirm(fd, top, ""); err != nil {
		return "", Stats{}, err
	}
	id, err := top.treeID()
	if err != nil {
		return "", Stats{}, fmt.Errorf("gittree: %w", err)
	}
	return id.String(), w.stats, nil
}

// readAll walks the tree while workers hash its files. When it returns, all
// workers have ended and all files are closed.
func (w *walk) readAll(fd int, top *node) error {
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), maxWorkers) {
		workers.Go(w.work)
	}
	if err := w.directory(fd, top, "", 1); err != nil {
		w.cancel(err)
	}
	close(w.files)
	workers.Wait()
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx) // the first failure, or why the caller gave up
	}
	return nil
}

func (w *walk) work() {
	for f := range w.files {
		if err := w.hash(f); err != nil {
			w.cancel(err)
		}
	}
}

// directory adds the entries of an open directory to its node. depth is the
// number of components of their paths.
func (w *walk) directory(fd int, dir *node, path string, depth int) error {
	names, err := w.list(fd, path)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return &Error{Kind: EmptyDirectory, Path: path}
	}
	for _, name := range names {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		child := &node{name: name}
		if err := w.entry(fd, child, join(path, name), depth); err != nil {
			return err
		}
		dir.children = append(dir.children, child)
	}
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "/" + name
}

// list returns the sorted names in a directory, as far as the limit allows.
func (w *walk) list(fd int, path string) ([]string, error) {
	names, err := readNames(fd, w.limits.Entries-w.listed)
	if errors.Is(err, errTooMany) {
		return nil, &Error{Kind: OverLimit, Path: path, Err: fmt.Errorf("more than %d entries", w.limits.Entries)}
	}
	if err != nil {
		return nil, openError(path, err)
	}
	w.listed += len(names)
	slices.Sort(names)
	return names, nil
}

// entry measures one name of the directory fd.
func (w *walk) entry(fd int, n *node, path string, depth int) (err error) {
	if isGit(n.name) {
		return &Error{Kind: GitMetadata, Path: path}
	}
	if err := w.countPath(path, depth); err != nil {
		return err
	}
	if n.state, err = stateAt(fd, n.name); err != nil {
		return openError(path, err)
	}
	w.hook(stepListed, path)
	switch n.state.mode & unix.S_IFMT {
	case unix.S_IFREG:
		return w.file(fd, n, path)
	case unix.S_IFLNK:
		return w.link(fd, n, path)
	case unix.S_IFDIR:
		return w.subdirectory(fd, n, path, depth)
	}
	return &Error{Kind: SpecialFile, Path: path}
}

func (w *walk) countPath(path string, depth int) error {
	w.stats.PathBytes += int64(len(path))
	switch l := w.limits; {
	case depth > l.Depth:
		return &Error{Kind: OverLimit, Path: path, Err: fmt.Errorf("more than %d path components", l.Depth)}
	case len(path) > l.PathBytes:
		return &Error{Kind: OverLimit, Path: path, Err: fmt.Errorf("path of more than %d bytes", l.PathBytes)}
	case w.stats.PathBytes > l.TotalPathBytes:
		return &Error{Kind: OverLimit, Path: path, Err: fmt.Errorf("more than %d bytes of paths", l.TotalPathBytes)}
	}
	return nil
}

// countContent checks a file or link before anything of it is read.
func (w *walk) countContent(n *node, path string) error {
	if n.state.links != 1 {
		return &Error{Kind: HardLink, Path: path}
	}
	if n.state.size > w.limits.Bytes-w.stats.Bytes {
		return &Error{Kind: OverLimit, Path: path, Err: fmt.Errorf("more than %d bytes of content", w.limits.Bytes)}
	}
	w.stats.Bytes += n.state.size
	return nil
}

// file opens a regular file and sends it to a worker.
func (w *walk) file(dir int, n *node, path string) error {
	if err := w.countContent(n, path); err != nil {
		return err
	}
	w.stats.Files++
	n.mode = ModeFile
	if n.state.mode&0o111 != 0 {
		n.mode = ModeExecutable
	}
	fd, err := w.open(dir, n, path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return err
	}
	select {
	case w.files <- openFile{fd: fd, path: path, node: n}:
		return nil
	case <-w.ctx.Done():
		unix.Close(fd)
		return w.ctx.Err()
	}
}

// open opens what n was when it was listed, and nothing else.
func (w *walk) open(dir int, n *node, path string, flags uint64) (int, error) {
	fd, err := openBeneath(dir, n.name, flags)
	if err != nil {
		return -1, openError(path, err)
	}
	if err := unchanged(fd, n, path); err != nil {
		unix.Close(fd)
		return -1, err
	}
	w.hook(stepOpened, path)
	return fd, nil
}

// unchanged compares an open entry with its node.
func unchanged(fd int, n *node, path string) error {
	now, err := stateOf(fd)
	if err != nil {
		return &Error{Kind: Unreadable, Path: path, Err: err}
	}
	return n.state.compare(now, path)
}

// hash runs in a worker.
func (w *walk) hash(f openFile) (err error) {
	defer unix.Close(f.fd)
	content := fileReader{ctx: w.ctx, fd: f.fd, before: func() { w.hook(stepReading, f.path) }}
	f.node.id, err = BlobID(f.node.state.size, content)
	switch {
	case errors.Is(err, ErrSize):
		return &Error{Kind: Changed, Path: f.path, Err: err}
	case w.ctx.Err() != nil:
		return w.ctx.Err()
	case err != nil:
		return &Error{Kind: Unreadable, Path: f.path, Err: err}
	}
	return unchanged(f.fd, f.node, f.path)
}

// link hashes the target of a symbolic link, which is not followed.
func (w *walk) link(dir int, n *node, path string) error {
	if err := w.countContent(n, path); err != nil {
		return err
	}
	w.stats.Links++
	n.mode = ModeLink
	fd, err := w.open(dir, n, path, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	target, err := readTarget(fd)
	if err != nil {
		return &Error{Kind: Unreadable, Path: path, Err: err}
	}
	if n.id, err = BlobID(n.state.size, target); err != nil {
		return &Error{Kind: Changed, Path: path, Err: err}
	}
	return unchanged(fd, n, path)
}

func (w *walk) subdirectory(dir int, n *node, path string, depth int) error {
	w.stats.Directories++
	n.mode = ModeDirectory
	fd, err := w.open(dir, n, path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return w.directory(fd, n, path, depth+1)
}

// confirm walks again after everything was read, and requires the same names
// with the same states, so that the tree stood still from the first stat to
// here.
func (w *walk) confirm(fd int, dir *node, path string) error {
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	names, err := readNames(fd, len(dir.children))
	if err != nil && !errors.Is(err, errTooMany) {
		return openError(path, err)
	}
	slices.Sort(names)
	if err != nil || !slices.EqualFunc(names, dir.children, func(name string, n *node) bool { return name == n.name }) {
		return &Error{Kind: Changed, Path: path, Err: errors.New("names")}
	}
	for _, n := range dir.children {
		if err := w.confirmEntry(fd, n, join(path, n.name)); err != nil {
			return err
		}
	}
	return unchanged(fd, dir, path)
}

func (w *walk) confirmEntry(dir int, n *node, path string) error {
	now, err := stateAt(dir, n.name)
	if err != nil {
		return openError(path, err)
	}
	if err := n.state.compare(now, path); err != nil || n.mode != ModeDirectory {
		return err
	}
	fd, err := openDirectory(dir, n.name)
	if err != nil {
		return openError(path, err)
	}
	defer unix.Close(fd)
	return w.confirm(fd, n, path)
}

// treeID computes the id of a directory from its confirmed children.
func (n *node) treeID() (ID, error) {
	entries := make([]Entry, len(n.children))
	for i, child := range n.children {
		if child.mode == ModeDirectory {
			id, err := child.treeID()
			if err != nil {
				return ID{}, err
			}
			child.id = id
		}
		entries[i] = Entry{Name: child.name, Mode: child.mode, ID: child.id}
	}
	return TreeID(entries)
}
