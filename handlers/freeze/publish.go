package freeze

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// file describes the exact bytes of a published file.
type file struct {
	path   string
	sha256 string
	bytes  int64
}

// publish writes a file of a frozen target under its final name, once fill has
// written all of it. A crash leaves either no file of that name or the complete
// one, and perhaps a temporary file ".NAME.*".
func publish(dir, name string, fill func(io.Writer) error) (file, error) {
	tmp, err := os.CreateTemp(dir, "."+name+".*")
	if err != nil {
		return file{}, fmt.Errorf("create %s: %w", name, err)
	}
	defer os.Remove(tmp.Name()) // after the rename there is nothing of this name
	defer tmp.Close()

	digest := sha256.New()
	count := &counter{}
	if err := fill(io.MultiWriter(tmp, digest, count)); err != nil {
		return file{}, err
	}
	final := filepath.Join(dir, name)
	if err := errors.Join(tmp.Sync(), tmp.Close()); err != nil {
		return file{}, fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(tmp.Name(), final); err != nil {
		return file{}, fmt.Errorf("publish %s: %w", name, err)
	}
	if err := syncDir(dir); err != nil {
		return file{}, err
	}
	return file{path: final, sha256: hex.EncodeToString(digest.Sum(nil)), bytes: count.n}, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}
