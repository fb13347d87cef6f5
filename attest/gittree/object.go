package gittree

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Mode is a Git tree mode.
type Mode uint32

// The modes that version 1 knows.
const (
	ModeFile       Mode = 0o100644
	ModeExecutable Mode = 0o100755
	ModeLink       Mode = 0o120000
	ModeDirectory  Mode = 0o40000
)

// ID is an object id of Git's SHA-256 object format.
type ID [sha256.Size]byte

// String returns 64 lower-case hex digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// ErrSize says that a blob's content is not as long as was said.
var ErrSize = errors.New("content has another size than expected")

// ErrEntry says that an entry cannot stand in a version 1 tree.
var ErrEntry = errors.New("invalid tree entry")

// blobBuffer is how many bytes of a blob are held at most.
const blobBuffer = 128 << 10

// BlobID reads content to its end and returns its blob id. Content that is not
// exactly size bytes long is refused with ErrSize; at most one byte beyond size
// is read.
func BlobID(size int64, content io.Reader) (ID, error) {
	if size < 0 || size == math.MaxInt64 {
		return ID{}, ErrSize
	}
	h := sha256.New()
	h.Write(header("blob", size))
	buf := make([]byte, min(size+1, blobBuffer))
	n, err := io.CopyBuffer(h, io.LimitReader(content, size+1), buf)
	if err != nil {
		return ID{}, err
	}
	if n != size {
		return ID{}, ErrSize
	}
	return ID(h.Sum(nil)), nil
}

func header(kind string, size int64) []byte {
	return append(strconv.AppendInt([]byte(kind+" "), size, 10), 0)
}

// Entry is one direct child of a tree.
type Entry struct {
	Name string // raw bytes of one path component
	Mode Mode
	ID   ID
}

// TreeBody encodes the children of one directory in Git's order, whatever
// order they are given in. It refuses, with ErrEntry, an empty tree, a mode that
// version 1 does not know, two entries of one name, and a name that is empty,
// ".", "..", ".git" in any case or holds a slash or NUL.
func TreeBody(entries []Entry) ([]byte, error) {
	if len(entries) == 0 {
		return nil, fmt.Errorf("%w: empty tree", ErrEntry)
	}
	sorted := slices.SortedFunc(slices.Values(entries), compareEntries)
	seen := make(map[string]bool, len(sorted))
	var body []byte
	for _, e := range sorted {
		if err := e.check(); err != nil {
			return nil, err
		}
		if seen[e.Name] {
			return nil, fmt.Errorf("%w: %q twice", ErrEntry, e.Name)
		}
		seen[e.Name] = true
		body = strconv.AppendInt(body, int64(e.Mode), 8)
		body = append(body, ' ')
		body = append(body, e.Name...)
		body = append(body, 0)
		body = append(body, e.ID[:]...)
	}
	return body, nil
}

// TreeID returns the id of the tree with these children. Errors are TreeBody's.
func TreeID(entries []Entry) (ID, error) {
	body, err := TreeBody(entries)
	if err != nil {
		return ID{}, err
	}
	return sha256.Sum256(append(header("tree", int64(len(body))), body...)), nil
}

// compareEntries is Git's order: by bytes, where a directory's name goes on
// with a slash and any other with NUL.
func compareEntries(a, b Entry) int { return cmp.Compare(a.sortKey(), b.sortKey()) }

func (e Entry) sortKey() string {
	if e.Mode == ModeDirectory {
		return e.Name + "/"
	}
	return e.Name + "\x00"
}

func (e Entry) check() error {
	switch e.Mode {
	case ModeFile, ModeExecutable, ModeLink, ModeDirectory:
	default:
		return fmt.Errorf("%w: %q has mode %o", ErrEntry, e.Name, e.Mode)
	}
	if e.Name == "" || e.Name == "." || e.Name == ".." || strings.ContainsAny(e.Name, "/\x00") || isGit(e.Name) {
		return fmt.Errorf("%w: name %q", ErrEntry, e.Name)
	}
	return nil
}

// isGit reports whether the name is .git in any ASCII case.
func isGit(name string) bool { return len(name) == len(".git") && strings.EqualFold(name, ".git") }

// File is one file or link of a whole tree.
type File struct {
	Path string // raw bytes, components separated by slashes
	Mode Mode   // not ModeDirectory
	ID   ID     // of the blob
}

// RootID returns the id of the tree that holds exactly these files, in any
// order. It refuses, with ErrEntry, no files at all, a path that is given twice
// or is a directory as well, one of more than MaxDepth components, and whatever
// TreeBody refuses.
func RootID(files []File) (ID, error) {
	root := &folder{}
	for _, f := range files {
		if f.Mode == ModeDirectory {
			return ID{}, fmt.Errorf("%w: %q is a directory", ErrEntry, f.Path)
		}
		if err := root.add(f); err != nil {
			return ID{}, err
		}
	}
	return root.id()
}

// folder is a directory that RootID builds.
type folder struct {
	entries []Entry
	folders map[string]*folder
}

func (d *folder) add(f File) error {
	components := strings.Split(f.Path, "/")
	if len(components) > MaxDepth {
		return fmt.Errorf("%w: %q has more than %d components", ErrEntry, f.Path, MaxDepth)
	}
	last := len(components) - 1
	for _, name := range components[:last] {
		if d.folders == nil {
			d.folders = map[string]*folder{}
		}
		if d.folders[name] == nil {
			d.folders[name] = &folder{}
		}
		d = d.folders[name]
	}
	d.entries = append(d.entries, Entry{Name: components[last], Mode: f.Mode, ID: f.ID})
	return nil
}

func (d *folder) id() (ID, error) {
	entries := slices.Clone(d.entries)
	for name, sub := range d.folders {
		id, err := sub.id()
		if err != nil {
			return ID{}, err
		}
		entries = append(entries, Entry{Name: name, Mode: ModeDirectory, ID: id})
	}
	return TreeID(entries)
}
