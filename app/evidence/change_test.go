package evidence

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestChangesWhileRead changes the file between its opening and the check after
// it was read.
func TestChangesWhileRead(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"written": func(path string) error {
			later := time.Now().Add(time.Second) // whatever the clock's resolution is
			return errors.Join(os.WriteFile(path, []byte("bytes"), 0o600), os.Chtimes(path, later, later))
		},
		"appended": func(path string) error { return os.WriteFile(path, []byte("bytes and more"), 0o600) },
		"replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+".new", []byte("bytes"), 0o600), os.Rename(path+".new", path))
		},
		"linked":  func(path string) error { return os.Link(path, path+".link") },
		"removed": func(path string) error { return os.Remove(path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "stdout")
			if err := os.WriteFile(path, []byte("bytes"), 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			err = readEntry(d, "stdout", func(r io.Reader) error {
				_, err := io.Copy(io.Discard, r)
				return errors.Join(err, change(path))
			})
			if !errors.Is(err, ErrTransport) {
				t.Errorf("err = %v, want ErrTransport", err)
			}
		})
	}
}
