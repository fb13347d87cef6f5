package runner

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"underwrite/runner/internal/hostpath"
	"underwrite/runner/wire"
)

// stagingPrefix begins the name of a directory in the outbox that is not
// published yet.
const stagingPrefix = ".underwrite-evidence-"

// Errors of publishing.
var (
	// ErrConflict: the destination holds something else than this evidence.
	ErrConflict = errors.New("destination holds other content")
	// ErrStored: a stored result no longer matches the ledger.
	ErrStored = errors.New("stored result does not match its digest in the ledger")
)

// evidenceFile is one of the six files: from memory or from a stored file.
type evidenceFile struct {
	name   string
	data   []byte // if path is empty
	path   string
	sha256 string
	bytes  int64
}

func inMemory(name string, data []byte) evidenceFile {
	sum := sha256.Sum256(data)
	return evidenceFile{name: name, data: data, sha256: hex.EncodeToString(sum[:]), bytes: int64(len(data))}
}

func (f evidenceFile) open() (io.ReadCloser, error) {
	if f.path == "" {
		return io.NopCloser(bytes.NewReader(f.data)), nil
	}
	return hostpath.Open(f.path)
}

// publisher makes evidence directories appear in the outbox.
type publisher struct {
	outbox string
	gid    int // of the consumer, or -1
}

// publish makes dir, a direct child of the outbox, hold exactly the files. It
// is idempotent. A crash leaves the staging directory, which the next attempt
// removes, or the complete directory with mode 0700, which it promotes.
func (p publisher) publish(dir string, files []evidenceFile) error {
	outbox, err := p.openOutbox()
	if err != nil {
		return err
	}
	defer outbox.Close()
	name := filepath.Base(dir)
	err = p.verify(outbox, name, files)
	if errors.Is(err, os.ErrNotExist) {
		if err = p.stage(outbox, name, files); err == nil {
			err = p.verify(outbox, name, files)
		}
	}
	if err != nil {
		return fmt.Errorf("publish %s: %w", dir, err)
	}
	if err := p.handOver(outbox, name); err != nil {
		return fmt.Errorf("publish %s: %w", dir, err)
	}
	return nil
}

// check finds what would keep the evidence from being published, before
// anything is spent on making it.
func (p publisher) check(dir string) error {
	if err := p.checkDestination(dir); err != nil {
		return err
	}
	outbox, err := p.openOutbox()
	if err != nil {
		return err
	}
	return outbox.Close()
}

func (p publisher) checkDestination(dir string) error {
	name := filepath.Base(dir)
	if filepath.Clean(dir) != dir || filepath.Dir(dir) != p.outbox || name[0] == '.' || len(name) > 255 {
		return fmt.Errorf("evidence directory %q: want a plain name directly below the outbox %s", dir, p.outbox)
	}
	return nil
}

// openOutbox checks that only the gateway creates names in the outbox and that
// the consumer can enter but not list it.
func (p publisher) openOutbox() (*os.File, error) {
	d, err := hostpath.OpenDir(p.outbox)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		d.Close()
		return nil, fmt.Errorf("outbox %s: %w", p.outbox, err)
	}
	mode, wantMode := st.Mode&0o7777, uint32(0o700)
	if p.gid >= 0 {
		wantMode = 0o710
	}
	if int(st.Uid) != os.Geteuid() || mode != wantMode || p.gid >= 0 && int(st.Gid) != p.gid {
		d.Close()
		return nil, fmt.Errorf("outbox %s: want owner %d, mode %04o%s: run `underwrite gateway init`",
			p.outbox, os.Geteuid(), wantMode, groupHelp(p.gid))
	}
	return d, nil
}

func groupHelp(gid int) string {
	if gid < 0 {
		return ""
	}
	return fmt.Sprintf(" and group %d", gid)
}

// stage writes the files into the staging directory and renames it to name,
// which handOver makes durable.
func (p publisher) stage(outbox *os.File, name string, files []evidenceFile) error {
	at := int(outbox.Fd())
	sum := sha256.Sum256([]byte(name))
	staging := stagingPrefix + hex.EncodeToString(sum[:])
	if err := removeStaging(at, staging); err != nil {
		return err
	}
	if err := unix.Mkdirat(at, staging, 0o700); err != nil {
		return fmt.Errorf("make staging directory: %w", err)
	}
	dir, err := openDirAt(at, staging)
	if err != nil {
		return err
	}
	defer dir.Close()
	written := []*os.File{dir}
	for _, f := range files {
		dst, err := p.write(dir, f)
		if err != nil {
			return err
		}
		defer dst.Close()
		written = append(written, dst)
	}
	if err := syncAll(written); err != nil {
		return fmt.Errorf("sync evidence: %w", err)
	}
	if err := unix.Renameat2(at, staging, at, name, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("rename staging directory: %w", err)
	}
	return nil
}

// removeStaging removes what an interrupted stage left: a real directory of
// ours with nothing but evidence files in it.
func removeStaging(at int, staging string) error {
	dir, err := openDirAt(at, staging)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("read staging directory: %w", err)
	}
	for _, n := range names {
		if !slices.Contains(wire.EvidenceFiles, n) {
			return fmt.Errorf("staging directory holds the foreign entry %q", n)
		}
		if err := unix.Unlinkat(int(dir.Fd()), n, 0); err != nil {
			return fmt.Errorf("clear staging directory: %w", err)
		}
	}
	return unix.Unlinkat(at, staging, unix.AT_REMOVEDIR)
}

func openDirAt(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// syncAll makes files and directories durable. All at once: the file system
// then needs one commit instead of one for each.
func syncAll(files []*os.File) error {
	errs := make([]error, len(files))
	var all sync.WaitGroup
	for i, f := range files {
		all.Go(func() { errs[i] = f.Sync() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// write copies one file into dir and returns it, open and not yet durable.
func (p publisher) write(dir *os.File, f evidenceFile) (dst *os.File, err error) {
	src, err := f.open()
	if err != nil {
		return nil, err
	}
	defer src.Close()
	fd, err := unix.Openat(int(dir.Fd()), f.name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", f.name, err)
	}
	dst = os.NewFile(uintptr(fd), f.name)
	if err := p.fill(dst, src, f); err != nil {
		dst.Close()
		return nil, err
	}
	return dst, nil
}

func (p publisher) fill(dst *os.File, src io.Reader, f evidenceFile) error {
	sum, n, err := hashAll(io.TeeReader(src, dst))
	if err != nil {
		return fmt.Errorf("write %s: %w", f.name, err)
	}
	if sum != f.sha256 || n != f.bytes {
		return fmt.Errorf("%w: %s", ErrStored, f.name)
	}
	if p.gid >= 0 {
		if err := dst.Chown(-1, p.gid); err != nil {
			return fmt.Errorf("hand %s to group %d: %w", f.name, p.gid, err)
		}
	}
	return dst.Chmod(0o640)
}

// verify checks that the directory holds exactly the files, byte for byte, each
// a regular file with one link. os.ErrNotExist means that it is not there.
func (p publisher) verify(outbox *os.File, name string, files []evidenceFile) error {
	dir, err := openDirAt(int(outbox.Fd()), name)
	if errors.Is(err, os.ErrNotExist) {
		return os.ErrNotExist
	}
	if err != nil {
		return fmt.Errorf("%w: not a directory: %v", ErrConflict, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	if len(names) != len(files) {
		return fmt.Errorf("%w: %d entries instead of %d", ErrConflict, len(names), len(files))
	}
	for _, f := range files {
		if err := verifyFile(dir, f); err != nil {
			return err
		}
	}
	return nil
}

func verifyFile(dir *os.File, f evidenceFile) error {
	fd, err := unix.Openat(int(dir.Fd()), f.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: %s: %v", ErrConflict, f.name, err)
	}
	got := os.NewFile(uintptr(fd), f.name)
	defer got.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || st.Size != f.bytes {
		return fmt.Errorf("%w: %s is not a regular file of %d bytes with one link", ErrConflict, f.name, f.bytes)
	}
	sum, n, err := hashAll(got)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	if sum != f.sha256 || n != f.bytes {
		return fmt.Errorf("%w: %s", ErrConflict, f.name)
	}
	return nil
}

// handOver lets the consumer in and makes that durable.
func (p publisher) handOver(outbox *os.File, name string) error {
	dir, err := openDirAt(int(outbox.Fd()), name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if p.gid >= 0 {
		if err := dir.Chown(-1, p.gid); err != nil {
			return fmt.Errorf("hand over to group %d: %w", p.gid, err)
		}
	}
	if err := dir.Chmod(0o750); err != nil {
		return err
	}
	return syncAll([]*os.File{dir, outbox})
}

func hashAll(r io.Reader) (sum string, n int64, err error) {
	h := sha256.New()
	n, err = io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), n, err
}
