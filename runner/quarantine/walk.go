package quarantine

import (
	"bytes"
	"context"
	"encoding/hex"
	"strings"
)

// Entry is one file or symbolic link of a walked tree, in tree order.
type Entry struct {
	Path   string // raw bytes, slash-separated
	Mode   uint32 // 0100644, 0100755 or 0120000
	Object string // object id in the source's format
	Size   int64
}

// Tree is a strictly walked and sized tree.
type Tree struct {
	Entries []Entry
	Bytes   int64
}

// The modes of Git trees. Old versions of Git wrote 100664.
const (
	modeFile       = 0o100644
	modeOldFile    = 0o100664
	modeExecutable = 0o100755
	modeLink       = 0o120000
	modeDirectory  = 0o40000
	modeSubmodule  = 0o160000
)

// Walk reads the tree of a commit by strict rules: canonical order, no name
// twice, no name that any file system takes for something else, only files,
// links and non-empty directories, everything within the limits. In a SHA-1
// source, the group-writable mode and zero-padded modes of old Git versions
// count as what they mean. Every tree object is hashed here.
func (s *Source) Walk(ctx context.Context, commit string, l Limits) (*Tree, error) {
	l, err := l.complete()
	if err != nil {
		return nil, err
	}
	o, done, err := s.objects(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	root, err := o.rootTree(commit)
	if err != nil {
		return nil, err
	}
	w := walker{o: o, limits: l, lenient: s.format() == SHA1}
	if err := w.tree(root, "", 1); err != nil {
		return nil, err
	}
	if err := w.sizes(); err != nil {
		return nil, err
	}
	if err := w.links(); err != nil {
		return nil, err
	}
	return &w.result, nil
}

type walker struct {
	o         *objects
	limits    Limits
	lenient   bool // old modes
	entries   int  // with directories
	pathBytes int64
	result    Tree
}

// rawEntry is an entry as it stands in a tree object.
type rawEntry struct {
	mode   uint32
	name   string
	object string
}

// tree adds what is below one tree object. A tree that is used many times is
// read and counted as often, so few objects cannot make many entries.
func (w *walker) tree(id, path string, depth int) error {
	// No tree within the limits on names and entries is larger.
	maxTree := w.limits.TotalPathBytes + int64(w.limits.Entries)*int64(len("100644 \x00")+w.o.format.hexLength())
	data, err := w.o.get(id, "tree", maxTree)
	if err != nil {
		return atPath(err, path)
	}
	if len(data) == 0 {
		return refuse(path, "empty directory")
	}
	entries, err := parseTree(data, w.o.format, w.limits.Entries-w.entries, path)
	if err != nil {
		return err
	}
	data = nil // not held while descending
	for _, e := range entries {
		if err := w.entry(e, join(path, e.name), depth); err != nil {
			return err
		}
	}
	return nil
}

// atPath gives a refusal without a path the one where it happened.
func atPath(err error, path string) error {
	if refused, ok := err.(*RefusedError); ok && refused.Path == "" { //nolint:errorlint // made by this package just now
		refused.Path = path
	}
	return err
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "/" + name
}

func (w *walker) entry(e rawEntry, path string, depth int) error {
	if err := w.count(path, depth); err != nil {
		return err
	}
	if reason := badName(e.name); reason != "" {
		return refuse(path, "%s", reason)
	}
	mode := e.mode
	if w.lenient && mode == modeOldFile {
		mode = modeFile
	}
	switch mode {
	case modeDirectory:
		return w.tree(e.object, path, depth+1)
	case modeLink:
		if isGitModules(e.name) {
			return refuse(path, ".gitmodules is a symbolic link")
		}
	case modeFile, modeExecutable:
	case modeSubmodule:
		return refuse(path, "submodules are not supported")
	default:
		return refuse(path, "unsupported mode %o", e.mode)
	}
	w.result.Entries = append(w.result.Entries, Entry{Path: path, Mode: mode, Object: e.object})
	return nil
}

func (w *walker) count(path string, depth int) error {
	w.entries++
	w.pathBytes += int64(len(path))
	switch l := w.limits; {
	case w.entries > l.Entries:
		return refuse(path, "more than %d entries", l.Entries)
	case depth > l.Depth:
		return refuse(path, "more than %d path components", l.Depth)
	case len(path) > l.PathBytes:
		return refuse(path, "path of more than %d bytes", l.PathBytes)
	case w.pathBytes > l.TotalPathBytes:
		return refuse(path, "more than %d bytes of paths", l.TotalPathBytes)
	}
	return nil
}

// sizes asks for the size of every blob, and sums them up.
func (w *walker) sizes() error {
	ids := make([]string, len(w.result.Entries))
	for i, e := range w.result.Entries {
		ids[i] = e.Object
	}
	w.o.ask("info", ids)
	for i := range w.result.Entries {
		e := &w.result.Entries[i]
		kind, size, err := w.o.info(e.Object)
		switch {
		case err != nil:
			return atPath(err, e.Path)
		case kind != "blob":
			return refuse(e.Path, "object %s is a %s, not a blob", e.Object, kind)
		case size > w.limits.BlobBytes:
			return refuse(e.Path, "file of %d bytes, more than %d", size, w.limits.BlobBytes)
		case size > w.limits.WorkspaceBytes-w.result.Bytes:
			return refuse(e.Path, "more than %d bytes of content", w.limits.WorkspaceBytes)
		}
		e.Size = size
		w.result.Bytes += size
	}
	return nil
}

// links reads the targets of all symbolic links.
func (w *walker) links() error {
	for _, e := range w.result.Entries {
		if e.Mode != modeLink {
			continue
		}
		target, err := w.o.get(e.Object, "blob", maxTargetBytes)
		switch {
		case err != nil:
			return atPath(err, e.Path)
		case len(target) == 0:
			return refuse(e.Path, "symbolic link without a target")
		case bytes.IndexByte(target, 0) >= 0:
			return refuse(e.Path, "NUL in the target of a symbolic link")
		}
	}
	return nil
}

// parseTree splits a tree object and checks the order of its entries. One
// entry beyond most is refused.
func parseTree(data []byte, f Format, most int, path string) ([]rawEntry, error) {
	var entries []rawEntry
	names := map[string]bool{}
	for len(data) > 0 {
		e, rest, ok := nextEntry(data, f)
		if !ok {
			return nil, refuse(path, "malformed tree object")
		}
		if f == SHA256 && data[0] == '0' {
			return nil, refuse(join(path, e.name), "zero-padded mode")
		}
		if names[e.name] {
			return nil, refuse(join(path, e.name), "name twice in a tree")
		}
		names[e.name] = true
		if n := len(entries); n > 0 && sortKey(entries[n-1]) >= sortKey(e) {
			return nil, refuse(join(path, e.name), "unsorted tree")
		}
		if len(entries) >= most {
			return nil, refuse(join(path, e.name), "too many entries")
		}
		entries = append(entries, e)
		data = rest
	}
	return entries, nil
}

// nextEntry takes one entry off: mode, space, name, NUL, binary object id.
func nextEntry(data []byte, f Format) (e rawEntry, rest []byte, ok bool) {
	const longestMode = 7 // digits, with one zero in front
	space := bytes.IndexByte(data[:min(len(data), longestMode+1)], ' ')
	if space <= 0 {
		return e, nil, false
	}
	for _, digit := range data[:space] {
		if digit < '0' || digit > '7' {
			return e, nil, false
		}
		e.mode = e.mode<<3 | uint32(digit-'0')
	}
	data = data[space+1:]
	end, size := bytes.IndexByte(data, 0), f.hexLength()/2
	if end < 0 || len(data) < end+1+size {
		return e, nil, false
	}
	e.name = string(data[:end])
	e.object = hex.EncodeToString(data[end+1 : end+1+size])
	return e, data[end+1+size:], true
}

// sortKey puts entries into Git's order: a directory as if a slash followed.
func sortKey(e rawEntry) string {
	if e.mode == modeDirectory {
		return e.name + "/"
	}
	return e.name + "\x00"
}

// components of a path.
func components(path string) []string { return strings.Split(path, "/") }
