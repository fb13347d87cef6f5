package blob

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"
)

// Errors that callers branch on.
var (
	ErrTooLarge = errors.New("more bytes than allowed")
	ErrMissing  = errors.New("blob is missing")
	ErrCorrupt  = errors.New("blob does not match its digest")
)

// Ref names the exact bytes of a blob.
type Ref struct {
	SHA256 string // 64 lower-case hex digits
	Bytes  int64
}

// Store is a directory of blobs. It may be used concurrently.
type Store struct{ dir string }

const (
	tempName = "tmp"
	blobMode = 0o400 // nobody else reads them, nobody changes them
)

var digestPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Create makes the directory of a store, or completes one that is there.
func Create(dir string) (*Store, error) {
	for _, d := range []string{dir, filepath.Join(dir, tempName)} {
		if err := makeDir(d); err != nil {
			return nil, fmt.Errorf("blob store: %w", err)
		}
	}
	return Open(dir)
}

// Open opens a store that Create made. It never creates one.
func Open(dir string) (*Store, error) {
	info, err := os.Lstat(filepath.Join(dir, tempName))
	if err != nil {
		return nil, fmt.Errorf("blob store: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("blob store: %s is not a directory", filepath.Join(dir, tempName))
	}
	return &Store{dir}, nil
}

// Put stores what r yields and returns its name once it is durable. More than
// limit bytes are ErrTooLarge.
//
// It writes the bytes even if the blob exists: the existing file may be damaged,
// or be the work of a Put that has not made it durable yet.
func (s *Store) Put(r io.Reader, limit int64) (Ref, error) {
	f, err := os.CreateTemp(filepath.Join(s.dir, tempName), "put-*")
	if err != nil {
		return Ref{}, fmt.Errorf("put blob: %w", err)
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(r, limit))
	if err == nil {
		err = atEnd(r)
	}
	if err != nil {
		return Ref{}, abandon(f, fmt.Errorf("put blob: %w", err))
	}
	ref := Ref{SHA256: hexSum(h), Bytes: n}
	if err := makeDir(filepath.Dir(s.Path(ref))); err != nil {
		return Ref{}, abandon(f, fmt.Errorf("put blob: %w", err))
	}
	return ref, publish(f, s.Path(ref), blobMode)
}

// atEnd is ErrTooLarge if r has anything left.
func atEnd(r io.Reader) error {
	n, err := io.ReadFull(r, make([]byte, 1))
	if n > 0 {
		return ErrTooLarge
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Path is where the blob of ref lies if it exists.
func (s *Store) Path(ref Ref) string {
	if !digestPattern.MatchString(ref.SHA256) {
		return filepath.Join(s.dir, "invalid", "digest") // never exists
	}
	return filepath.Join(s.dir, ref.SHA256[:2], ref.SHA256)
}

// Open opens a blob for reading after it has read it once and compared size and
// digest: ErrMissing or ErrCorrupt say that it must not be used.
func (s *Store) Open(ref Ref) (*os.File, error) {
	f, err := os.OpenFile(s.Path(ref), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrMissing, ref.SHA256)
	}
	if err != nil {
		return nil, fmt.Errorf("open blob: %w", err)
	}
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err == nil && (n != ref.Bytes || hexSum(h) != ref.SHA256) {
		err = fmt.Errorf("%w: %s", ErrCorrupt, ref.SHA256)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open blob: %w", err)
	}
	return f, nil
}

// Check reads a blob and compares size and digest, as Open does.
func (s *Store) Check(ref Ref) error {
	f, err := s.Open(ref)
	if err != nil {
		return err
	}
	return f.Close()
}

// Tail returns the last limit bytes of a blob, without checking its digest.
func (s *Store) Tail(ref Ref, limit int64) ([]byte, error) {
	f, err := os.Open(s.Path(ref))
	if err != nil {
		return nil, fmt.Errorf("read blob: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, max(0, ref.Bytes-limit), limit))
	if err != nil {
		return nil, fmt.Errorf("read blob: %w", err)
	}
	return b, nil
}

// Sweep removes what interrupted Puts left behind. No other process may use the
// store meanwhile.
func (s *Store) Sweep() error {
	dir := filepath.Join(s.dir, tempName)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("sweep blob store: %w", err)
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("sweep blob store: %w", err)
		}
	}
	return nil
}

func hexSum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }
