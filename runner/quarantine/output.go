package quarantine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"underwrite/attest"
	"underwrite/attest/gittree"
)

// The commit of every output: no parents, and the same for the same tree.
const (
	outputIdentity = "Underwrite Gateway <gateway@underwrite.invalid> 0 +0000"
	outputMessage  = "Underwrite execution output\n"
)

// errChanged: somebody wrote to the workspace while it was packed.
var errChanged = errors.New("workspace changed while it was packed")

// PackOutput writes the deterministic output bundle of the workspace dir to
// bundlePath (new file, fsynced) and describes it. scratch is an empty private
// directory, and empty again afterwards. It returns a *RefusedError with path
// and kind for what version 1 cannot express.
//
// The tree is measured before it is packed, must come out the same in the pack,
// and once more from the finished bundle by VerifyOutput.
func PackOutput(ctx context.Context, dir, scratch, bundlePath string, l Limits) (attest.Bundle, error) {
	l, err := l.complete()
	if err != nil || l.BundleBytes <= 0 {
		return attest.Bundle{}, errors.Join(err, errNoLimit)
	}
	tree, err := measure(ctx, dir, l)
	if err != nil {
		return attest.Bundle{}, err
	}
	body, err := os.CreateTemp(scratch, "pack-*")
	if err != nil {
		return attest.Bundle{}, fmt.Errorf("pack output: %w", err)
	}
	defer body.Close()
	if err := os.Remove(body.Name()); err != nil {
		return attest.Bundle{}, fmt.Errorf("pack output: %w", err)
	}
	p := packer{ctx: ctx, body: newPackBody(body, l.BundleBytes)}
	commit, err := p.pack(dir, tree)
	if err != nil {
		return attest.Bundle{}, fmt.Errorf("pack output: %w", err)
	}
	made, err := writeBundle(bundlePath, commit, p.body, l.BundleBytes)
	if err != nil {
		return attest.Bundle{}, fmt.Errorf("write output bundle: %w", err)
	}
	made.GitTree = tree
	verified, err := VerifyOutput(ctx, bundlePath, scratch, &made, l)
	if err != nil { // what no verifier accepts was not worth making
		return attest.Bundle{}, errors.Join(err, os.Remove(bundlePath))
	}
	return verified, nil
}

// measure is the synthetic tree of the workspace, with refusals in our words.
func measure(ctx context.Context, dir string, l Limits) (string, error) {
	tree, _, err := gittree.Measure(ctx, dir, gittree.Limits{
		Bytes: l.WorkspaceBytes, Entries: l.Entries, Depth: l.Depth, PathBytes: l.PathBytes, TotalPathBytes: l.TotalPathBytes,
	})
	var fault *gittree.Error
	if errors.As(err, &fault) && fault.Unsupported() {
		reason := string(fault.Kind)
		if fault.Err != nil {
			reason += ": " + fault.Err.Error()
		}
		return "", &RefusedError{Reason: reason, Path: fault.Path}
	}
	if err != nil {
		return "", fmt.Errorf("measure output: %w", err)
	}
	return tree, nil
}

// packer walks a measured workspace and packs what it finds.
type packer struct {
	ctx  context.Context
	body *packBody
}

// pack adds everything, and the commit last. The tree must be the measured one.
func (p *packer) pack(dir, measured string) (gittree.ID, error) {
	root, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return gittree.ID{}, err
	}
	tree, err := p.folder(root, "", 1)
	if err != nil {
		return gittree.ID{}, err
	}
	if tree.String() != measured {
		return gittree.ID{}, errChanged
	}
	text := fmt.Sprintf("tree %s\nauthor %s\ncommitter %s\n\n%s", tree, outputIdentity, outputIdentity, outputMessage)
	return p.body.add(packCommit, "commit", int64(len(text)), bytes.NewReader([]byte(text)))
}

// folder packs an open directory, which it closes, and returns its tree.
func (p *packer) folder(d *os.File, path string, depth int) (gittree.ID, error) {
	defer d.Close()
	if depth > gittree.MaxDepth {
		return gittree.ID{}, errChanged // it was measured within the limit
	}
	names, err := d.Readdirnames(gittree.MaxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return gittree.ID{}, err
	}
	slices.Sort(names)
	var entries []gittree.Entry
	for _, name := range names {
		if err := p.ctx.Err(); err != nil {
			return gittree.ID{}, err
		}
		e, err := p.entry(int(d.Fd()), name, join(path, name), depth)
		if err != nil {
			return gittree.ID{}, err
		}
		entries = append(entries, e)
	}
	content, err := gittree.TreeBody(entries)
	if err != nil {
		return gittree.ID{}, errors.Join(errChanged, err)
	}
	return p.body.add(packTree, "tree", int64(len(content)), bytes.NewReader(content))
}

func (p *packer) entry(at int, name, path string, depth int) (e gittree.Entry, err error) {
	if reason := badName(name); reason != "" {
		return e, refuse(path, "%s", reason)
	}
	e.Name = name
	var st unix.Stat_t
	if err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return e, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.Mode = gittree.ModeDirectory
		fd, err := open(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return e, err
		}
		e.ID, err = p.folder(os.NewFile(uintptr(fd), name), path, depth+1)
		return e, err
	case unix.S_IFLNK:
		if isGitModules(name) {
			return e, refuse(path, ".gitmodules is a symbolic link")
		}
		e.Mode = gittree.ModeLink
		e.ID, err = p.link(at, name)
	case unix.S_IFREG:
		e.Mode, e.ID, err = p.file(at, name)
	default:
		err = errChanged // it was measured without such files
	}
	if err != nil {
		return e, fmt.Errorf("%q: %w", path, err)
	}
	return e, nil
}

func (p *packer) link(at int, name string) (gittree.ID, error) {
	target := make([]byte, maxTargetBytes+1)
	n, err := unix.Readlinkat(at, name, target)
	if err != nil {
		return gittree.ID{}, err
	}
	return p.body.add(packBlob, "blob", int64(n), bytes.NewReader(target[:n]))
}

func (p *packer) file(at int, name string) (gittree.Mode, gittree.ID, error) {
	fd, err := open(at, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return 0, gittree.ID{}, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, gittree.ID{}, err
	}
	if !st.Mode().IsRegular() {
		return 0, gittree.ID{}, errChanged
	}
	mode := gittree.ModeFile
	if st.Mode()&0o111 != 0 {
		mode = gittree.ModeExecutable
	}
	id, err := p.body.add(packBlob, "blob", st.Size(), f)
	return mode, id, err
}

// writeBundle makes the file visible under its name only when it is complete
// and durable: a crash leaves at most a file with a temporary name.
func writeBundle(path string, commit gittree.ID, body *packBody, limit int64) (b attest.Bundle, err error) {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, ".output-*")
	if err != nil {
		return b, err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone after the rename
	defer tmp.Close()
	header := Header{Version: 3, Format: SHA256, Refs: []Ref{{Object: commit.String(), Name: OutputRef}}}
	h := sha256.New()
	w := io.MultiWriter(tmp, h)
	if _, err := w.Write(header.Encode()); err != nil {
		return b, err
	}
	if err := body.writeTo(w); err != nil {
		return b, err
	}
	if b.Bytes, err = tmp.Seek(0, io.SeekCurrent); err != nil {
		return b, err
	}
	if b.Bytes > limit {
		return b, refuse("", "bundle of %d bytes, more than %d", b.Bytes, limit)
	}
	b.SHA256 = hex.EncodeToString(h.Sum(nil))
	if err := tmp.Sync(); err != nil {
		return b, err
	}
	// A link, unlike a rename, never replaces anything.
	if err := os.Link(tmp.Name(), path); err != nil {
		return b, err
	}
	return b, syncDir(dir)
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// VerifyOutput imports an output bundle into a fresh quarantine repository
// below scratch, which it removes, and derives its descriptor from the objects
// alone. If want is not nil, a descriptor that differs is a *RefusedError.
func VerifyOutput(ctx context.Context, bundlePath, scratch string, want *attest.Bundle, l Limits) (got attest.Bundle, err error) {
	l, err = l.complete()
	if err != nil || l.BundleBytes <= 0 {
		return got, errors.Join(err, errNoLimit)
	}
	b, err := openBundle(bundlePath, scratch, l.BundleBytes)
	if err != nil {
		return got, err
	}
	defer b.file.Close()
	tips, err := b.header.exactly(SHA256, OutputRef)
	if err != nil {
		return got, err
	}
	dir, err := os.MkdirTemp(scratch, "verify-*")
	if err != nil {
		return got, fmt.Errorf("verify output: %w", err)
	}
	defer func() {
		if removeErr := os.RemoveAll(dir); err == nil && removeErr != nil {
			err = removeErr
		}
	}()
	s := &Source{GitDir: filepath.Join(dir, "output.git"), Head: tips[0], Format: SHA256}
	o, err := b.importInto(ctx, s.GitDir, map[string]string{OutputRef: tips[0]}, true)
	if err != nil {
		return got, err
	}
	defer s.hold(o)()
	tree, err := s.Walk(ctx, s.Head, l)
	if err != nil {
		return got, err
	}
	got = attest.Bundle{SHA256: b.sha256, Bytes: b.size}
	if got.GitTree, err = s.GitTree(ctx, tree); err != nil {
		return got, err
	}
	if want != nil && got != *want {
		return got, refuse("", "output bundle is not the expected one")
	}
	return got, nil
}
