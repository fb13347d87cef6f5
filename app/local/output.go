package local

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"underwrite/app/evidence"
	"underwrite/runner/wire"
	"underwrite/store/blob"
)

// output is where the files of a run appear: the evidence directory and its
// companions beside it.
type output struct{ dir string }

func (o *output) publicKey() string    { return o.dir + ".pub.pem" }
func (o *output) sourceBundle() string { return o.dir + ".source.bundle" }
func (o *output) expectation() string  { return o.dir + ".expectation.json" }
func (o *output) diagnostic() string   { return o.dir + ".diagnostic.json" }

// newOutput requires that nothing is there yet, so that a run is not in vain.
func newOutput(dir, session string) (*output, error) {
	if dir == "" {
		dir = "underwrite-proof-" + session[:8]
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("evidence directory: %w", err)
	}
	o := &output{abs}
	for _, path := range []string{o.dir, o.publicKey(), o.sourceBundle(), o.expectation(), o.diagnostic()} {
		if _, err := os.Lstat(path); err == nil {
			return nil, fmt.Errorf("--evidence-dir: %s exists: name another directory or remove it", path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("--evidence-dir: %w", err)
		}
	}
	if info, err := os.Stat(filepath.Dir(abs)); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("--evidence-dir: %s is no directory: make it first", filepath.Dir(abs))
	}
	return o, nil
}

// published is a file or directory that is to appear: with data, or with the
// content of the file from, or with entries.
type published struct {
	path    string
	data    []byte
	from    string
	entries []published // their paths are names
}

// published lists what a verified run publishes, the evidence last: where it
// is, the others are.
func (p *proving) published(f *evidence.Files) []published {
	stored := func(r blob.Ref) string { return p.work.blobs.Path(r) }
	return []published{
		{path: p.out.publicKey(), from: p.config.PublicKey},
		{path: p.out.sourceBundle(), from: p.frozen.BundlePath},
		{path: p.out.expectation(), data: p.request},
		{path: p.out.dir, entries: []published{
			{path: wire.RequestFile, data: f.Request},
			{path: wire.CapabilityFile, data: f.Capability},
			{path: wire.ReceiptFile, data: f.Receipt},
			{path: wire.OutputFile, from: stored(f.Output)},
			{path: wire.StdoutFile, from: stored(f.Stdout)},
			{path: wire.StderrFile, from: stored(f.Stderr)},
		}},
	}
}

// publish makes everything appear, each complete and durable, or nothing. A
// crash leaves a directory ".underwrite-*" beside, and maybe the first of the
// files, which then are complete.
func (o *output) publish(all []published) (err error) {
	parent := filepath.Dir(o.dir)
	tmp, err := os.MkdirTemp(parent, ".underwrite-")
	if err != nil {
		return fmt.Errorf("publish %s: %w", o.dir, err)
	}
	var appeared []string
	defer func() {
		if err != nil {
			err = fmt.Errorf("publish %s: %w", o.dir, err)
			for _, path := range appeared {
				err = errors.Join(err, os.RemoveAll(path))
			}
		}
		err = errors.Join(err, os.RemoveAll(tmp))
	}()
	for _, p := range all {
		if err := p.write(tmp); err != nil {
			return err
		}
	}
	for _, p := range all {
		staged := filepath.Join(tmp, filepath.Base(p.path))
		if err := unix.Renameat2(unix.AT_FDCWD, staged, unix.AT_FDCWD, p.path, unix.RENAME_NOREPLACE); err != nil {
			return &os.LinkError{Op: "rename", Old: staged, New: p.path, Err: err}
		}
		appeared = append(appeared, p.path)
	}
	return blob.SyncDir(parent)
}

// write writes p below dir, with the modes that the caller's umask leaves.
func (p published) write(dir string) error {
	path := filepath.Join(dir, filepath.Base(p.path))
	if p.entries == nil {
		return p.writeFile(path)
	}
	if err := os.Mkdir(path, 0o777); err != nil {
		return err
	}
	for _, e := range p.entries {
		if err := e.write(path); err != nil {
			return err
		}
	}
	return blob.SyncDir(path)
}

func (p published) writeFile(path string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if p.from == "" {
		_, err = f.Write(p.data)
	} else {
		err = copyFrom(f, p.from)
	}
	return errors.Join(err, f.Sync())
}

func copyFrom(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
