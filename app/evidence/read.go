package evidence

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"underwrite/attest"
	"underwrite/runner/wire"
	"underwrite/store/blob"
)

// ErrTransport: the directory is not the six plain files that it must be, or
// changed while it was read. Nothing of it may be used.
var ErrTransport = errors.New("bad evidence directory")

// maxEnvelopeBytes is what the validator takes (protocol, "DSSE envelope").
const maxEnvelopeBytes = 1_000_000

// Limits bound what is read, in bytes.
type Limits struct {
	OutputBundle int64
	Stream       int64 // each of stdout and stderr
}

// bundleOverhead is room for a bundle's header, trees and incompressible blobs.
const bundleOverhead = 64 << 20 // bytes

// LimitsFor returns the limits for evidence of a job with these limits.
func LimitsFor(l attest.Limits) Limits {
	return Limits{OutputBundle: l.WorkspaceBytes + l.WorkspaceBytes/64 + bundleOverhead, Stream: l.OutputBytes}
}

// Files are exact copies of an evidence directory's files. The three artifacts
// are blobs, durable when Read returns.
type Files struct {
	Request    []byte
	Capability []byte
	Receipt    []byte
	Output     blob.Ref
	Stdout     blob.Ref
	Stderr     blob.Ref
}

// Read copies the evidence out of dir: a real directory with exactly the six
// names, each a regular file with a single link, opened without following a
// link, within its limit, and the same before and after it was read. ErrTransport
// says that it is not so; any other error is a failure of this machine.
func Read(dir string, blobs *blob.Store, l Limits) (*Files, error) {
	d, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|os.O_RDONLY, 0)
	if err != nil {
		return nil, transport(filepath.Base(dir), err)
	}
	defer d.Close()
	if err := exactNames(d); err != nil {
		return nil, err
	}
	var f Files
	for _, part := range []struct {
		name  string
		limit int64
		data  *[]byte
		ref   *blob.Ref
	}{
		{wire.RequestFile, attest.MaxRequestBytes, &f.Request, nil},
		{wire.CapabilityFile, maxEnvelopeBytes, &f.Capability, nil},
		{wire.ReceiptFile, maxEnvelopeBytes, &f.Receipt, nil},
		{wire.OutputFile, l.OutputBundle, nil, &f.Output},
		{wire.StdoutFile, l.Stream, nil, &f.Stdout},
		{wire.StderrFile, l.Stream, nil, &f.Stderr},
	} {
		err := readEntry(d, part.name, func(r io.Reader) (err error) {
			if part.ref != nil {
				*part.ref, err = blobs.Put(r, part.limit)
				return err
			}
			*part.data, err = readAll(r, part.limit)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return &f, exactNames(d) // nothing came or went meanwhile
}

// ReadRequest reads the request alone, for callers that have no request of
// their own and need its limits before they Read all. It has the guarantees of
// Read for that file; whatever it says is the evidence's own claim.
func ReadRequest(dir string) ([]byte, error) {
	d, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|os.O_RDONLY, 0)
	if err != nil {
		return nil, transport(filepath.Base(dir), err)
	}
	defer d.Close()
	var request []byte
	err = readEntry(d, wire.RequestFile, func(r io.Reader) (err error) {
		request, err = readAll(r, attest.MaxRequestBytes)
		return err
	})
	return request, err
}

// ReadEnvelopes reads the two signed files alone, for callers that pass them
// on. It has the guarantees of Read for them and for the directory's names;
// nothing in them is verified.
func ReadEnvelopes(dir string) (capability, receipt []byte, err error) {
	d, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|os.O_RDONLY, 0)
	if err != nil {
		return nil, nil, transport(filepath.Base(dir), err)
	}
	defer d.Close()
	if err := exactNames(d); err != nil {
		return nil, nil, err
	}
	if capability, err = readEnvelope(d, wire.CapabilityFile); err != nil {
		return nil, nil, err
	}
	if receipt, err = readEnvelope(d, wire.ReceiptFile); err != nil {
		return nil, nil, err
	}
	return capability, receipt, exactNames(d)
}

func readEnvelope(d *os.File, name string) (data []byte, err error) {
	err = readEntry(d, name, func(r io.Reader) (err error) {
		data, err = readAll(r, maxEnvelopeBytes)
		return err
	})
	return data, err
}

func readAll(r io.Reader, limit int64) ([]byte, error) {
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(r, limit+1))
	if err == nil && n > limit {
		err = blob.ErrTooLarge
	}
	return b.Bytes(), err
}

// exactNames reads at most one name too many.
func exactNames(d *os.File) error {
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read evidence directory: %w", err)
	}
	names, err := d.Readdirnames(len(wire.EvidenceFiles) + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return transport("list", err)
	}
	want := slices.Sorted(slices.Values(wire.EvidenceFiles))
	slices.Sort(names)
	if !slices.Equal(names, want) {
		return fmt.Errorf("%w: it holds %q, not exactly %q", ErrTransport, names, want)
	}
	return nil
}

// readEntry opens one file, lets use read it, and makes sure that it was one
// unchanging plain file all the time.
func readEntry(d *os.File, name string, use func(io.Reader) error) error {
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return transport(name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var before, after, named unix.Stat_t
	if err := unix.Fstat(fd, &before); err != nil {
		return transport(name, err)
	}
	if before.Mode&unix.S_IFMT != unix.S_IFREG || before.Nlink != 1 {
		return fmt.Errorf("%w: %s is not a regular file with a single link", ErrTransport, name)
	}
	if err := use(f); err != nil {
		if errors.Is(err, blob.ErrTooLarge) {
			return fmt.Errorf("%w: %s: %w", ErrTransport, name, err)
		}
		return fmt.Errorf("read evidence %s: %w", name, err)
	}
	if err := unix.Fstat(fd, &after); err != nil {
		return transport(name, err)
	}
	if err := unix.Fstatat(int(d.Fd()), name, &named, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return transport(name, err)
	}
	if identity(before) != identity(after) || identity(before) != identity(named) {
		return fmt.Errorf("%w: %s changed while it was read", ErrTransport, name)
	}
	return nil
}

// fileID is what must stay the same. Every write moves the times.
type fileID struct {
	dev, ino, nlink uint64
	mode            uint32
	size            int64
	mtime, ctime    unix.Timespec
}

func identity(s unix.Stat_t) fileID {
	return fileID{s.Dev, s.Ino, uint64(s.Nlink), s.Mode, s.Size, s.Mtim, s.Ctim}
}

// transport sorts an error of the directory: what is missing or of the wrong
// kind is its fault.
func transport(name string, err error) error {
	for _, e := range []error{unix.ENOENT, unix.ELOOP, unix.ENOTDIR, unix.ENXIO} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %s: %w", ErrTransport, name, err)
		}
	}
	return fmt.Errorf("read evidence %s: %w", name, err)
}
