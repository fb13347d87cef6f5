package blob

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// WriteFile makes path hold data and be durable, with the given mode whatever
// the umask is. A crash leaves the old file or the new one, and maybe a
// temporary file ".NAME-*" beside it.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if _, err := io.Copy(f, bytes.NewReader(data)); err != nil {
		return abandon(f, fmt.Errorf("write %s: %w", path, err))
	}
	return publish(f, path, mode)
}

// publish gives the complete temporary file its final name: fsync, rename,
// fsync of the directory. It closes f, and removes it on failure.
func publish(f *os.File, path string, mode os.FileMode) error {
	err := f.Chmod(mode)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return abandon(f, fmt.Errorf("write %s: %w", path, err))
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return SyncDir(filepath.Dir(path))
}

func abandon(f *os.File, err error) error {
	return errors.Join(err, os.Remove(f.Name()), f.Close())
}

// SyncDir makes the names in dir durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// makeDir makes one directory below a durable one, durably.
func makeDir(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, os.ErrExist) {
		err = nil // made before, or by somebody else right now: sync all the same
	}
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	return SyncDir(filepath.Dir(path))
}
