package quarantine

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"underwrite/attest"
	"underwrite/attest/gittree"
)

// Source is a source bundle imported into its own bare repository.
type Source struct {
	GitDir string // private directory given to ImportSource
	Base   string // frozen commits
	Head   string
	Format Format // "" is SHA1

	held *objects // in use until it is released, or nil
}

// hold makes all calls use one reader until release.
func (s *Source) hold(o *objects) (release func()) {
	s.held = o
	return func() {
		s.held = nil
		o.close()
	}
}

// objects returns a reader and what ends its use.
func (s *Source) objects(ctx context.Context) (o *objects, done func(), err error) {
	if s.held != nil {
		return s.held, func() {}, nil
	}
	o, err = openObjects(ctx, s.GitDir, s.format())
	if err != nil {
		return nil, nil, err
	}
	return o, o.close, nil
}

func (s *Source) format() Format {
	if s.Format == "" {
		return SHA1
	}
	return s.Format
}

// ImportSource checks digest and size of the bundle against the target,
// imports exactly BaseRef and HeadRef into a new bare repository at gitDir
// (which must not exist), and requires them to be the frozen commits, with
// complete history. It returns a *RefusedError for a bad bundle, and leaves no
// gitDir behind then.
func ImportSource(ctx context.Context, gitDir, bundlePath string, target attest.Target, l Limits) (*Source, error) {
	s, release, err := ImportAndHold(ctx, gitDir, bundlePath, target, l)
	if err != nil {
		return nil, err
	}
	release()
	return s, nil
}

// ImportAndHold is ImportSource that keeps its git process for Walk,
// Materialize and GitTree, which otherwise start one each, until release is
// called or ctx ends. One goroutine may use the Source meanwhile. After an
// error of one of them the others may fail too.
func ImportAndHold(ctx context.Context, gitDir, bundlePath string, target attest.Target, l Limits) (s *Source, release func(), err error) {
	if l.BundleBytes <= 0 {
		return nil, nil, errNoLimit
	}
	b, err := openBundle(bundlePath, filepath.Dir(gitDir), l.BundleBytes)
	if err != nil {
		return nil, nil, err
	}
	defer b.file.Close()
	if b.size != target.ObjectBundleBytes || b.sha256 != target.ObjectBundleSHA256 {
		return nil, nil, refuse("", "source bundle is not the frozen one")
	}
	tips, err := b.header.exactly(SHA1, BaseRef, HeadRef)
	if err != nil {
		return nil, nil, err
	}
	if tips[0] != target.BaseSHA || tips[1] != target.HeadSHA {
		return nil, nil, refuse("", "source bundle's refs are not the frozen commits")
	}
	o, err := b.importInto(ctx, gitDir, map[string]string{BaseRef: tips[0], HeadRef: tips[1]}, false)
	if err != nil {
		return nil, nil, err
	}
	s = &Source{GitDir: gitDir, Base: tips[0], Head: tips[1], Format: SHA1}
	return s, s.hold(o), nil
}

// bundle is a private copy of a bundle: what was hashed is what is imported,
// whatever happens to the file meanwhile.
type bundle struct {
	file   *os.File // read-only, without a name, at the beginning of the pack
	header Header
	size   int64
	sha256 string
}

// openBundle copies the bundle into an unnamed file in dir while it hashes it.
func openBundle(path, dir string, limit int64) (*bundle, error) {
	in, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	defer in.Close()
	if st, err := in.Stat(); err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	} else if !st.Mode().IsRegular() {
		return nil, refuse("", "bundle is not a regular file")
	} else if st.Size() > limit {
		return nil, refuse("", "bundle of more than %d bytes", limit)
	}
	out, file, err := unnamed(dir)
	if err != nil {
		return nil, fmt.Errorf("copy bundle: %w", err)
	}
	defer out.Close()
	b, err := copyBundle(in, out, file, limit)
	if err != nil {
		file.Close()
		return nil, err
	}
	return b, nil
}

func copyBundle(in io.Reader, out, file *os.File, limit int64) (*bundle, error) {
	h := sha256.New()
	size, err := io.Copy(io.MultiWriter(out, h), io.LimitReader(in, limit+1))
	if err != nil {
		return nil, fmt.Errorf("copy bundle: %w", err)
	}
	if size > limit {
		return nil, refuse("", "bundle of more than %d bytes", limit)
	}
	header, err := ParseHeader(bufio.NewReaderSize(file, maxHeader))
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(int64(len(header.Encode())), io.SeekStart); err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	return &bundle{file: file, header: header, size: size, sha256: hex.EncodeToString(h.Sum(nil))}, nil
}

// unnamed makes a file that has no name any more, once for writing and once
// for reading.
func unnamed(dir string) (write, read *os.File, err error) {
	write, err = os.CreateTemp(dir, ".bundle-*")
	if err != nil {
		return nil, nil, err
	}
	read, err = os.Open(write.Name())
	if err = errors.Join(err, os.Remove(write.Name())); err != nil {
		write.Close()
		read.Close()
		return nil, nil, err
	}
	return write, read, nil
}

// importInto makes the repository: the pack, then the proof that everything
// the refs need is in it, then that each of them is a commit. It returns a
// reader of the repository, for the caller to close.
func (b *bundle) importInto(ctx context.Context, gitDir string, refs map[string]string, strict bool) (o *objects, err error) {
	if _, err := os.Lstat(gitDir); !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("import bundle: %s exists already", gitDir)
	}
	defer func() {
		if err == nil {
			return
		}
		if removeErr := os.RemoveAll(gitDir); removeErr != nil {
			err = errors.Join(err, removeErr)
		}
	}()
	if err := newRepository(gitDir, b.header.Format, refs); err != nil {
		return nil, fmt.Errorf("make quarantine repository: %w", err)
	}
	if err := indexPack(ctx, gitDir, b.file, b.size, strict); err != nil {
		return nil, err
	}
	tips := make([]string, 0, len(refs))
	for _, object := range refs {
		tips = append(tips, object)
	}
	if o, err = openConnected(ctx, gitDir, b.header.Format, tips); err != nil {
		return nil, err
	}
	for _, tip := range tips {
		if _, err := o.rootTree(tip); err != nil {
			o.close()
			return nil, err
		}
	}
	return o, nil
}

// openConnected requires all that the tips need to be there, and starts a
// reader meanwhile: starting it takes as long.
func openConnected(ctx context.Context, gitDir string, f Format, tips []string) (*objects, error) {
	connected := make(chan error, 1)
	go func() { connected <- checkConnected(ctx, gitDir, tips...) }()
	o, openErr := openObjects(ctx, gitDir, f)
	if err := <-connected; err != nil {
		if openErr == nil {
			o.close()
		}
		return nil, err
	}
	return o, openErr
}

// GitTree computes the synthetic SHA-256 tree of the walked tree from its
// blobs, without writing any file.
func (s *Source) GitTree(ctx context.Context, t *Tree) (string, error) {
	files := make([]gittree.File, 0, len(t.Entries))
	err := s.blobs(ctx, t, func(e Entry, read func(io.Writer) error) error {
		content, done := io.Pipe()
		go func() { done.CloseWithError(read(done)) }()
		id, err := gittree.BlobID(e.Size, content)
		content.CloseWithError(err)
		if err != nil {
			return atPath(err, e.Path)
		}
		files = append(files, gittree.File{Path: e.Path, Mode: gittree.Mode(e.Mode), ID: id})
		return nil
	})
	if err != nil {
		return "", err
	}
	id, err := gittree.RootID(files)
	if err != nil {
		return "", fmt.Errorf("synthetic tree: %w", err)
	}
	return id.String(), nil
}

// blobs calls each for every entry in tree order; read streams its content.
// each must read it.
func (s *Source) blobs(ctx context.Context, t *Tree, each func(e Entry, read func(io.Writer) error) error) error {
	o, done, err := s.objects(ctx)
	if err != nil {
		return err
	}
	defer done()
	ids := make([]string, len(t.Entries))
	for i, e := range t.Entries {
		ids[i] = e.Object
	}
	o.ask("contents", ids)
	for _, e := range t.Entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		read := func(w io.Writer) error {
			n, err := o.content(e.Object, "blob", e.Size, w)
			if err == nil && n != e.Size {
				err = fmt.Errorf("blob %s has %d bytes, not %d as when it was walked", e.Object, n, e.Size)
			}
			return err
		}
		if err := each(e, read); err != nil {
			return err
		}
	}
	return nil
}
