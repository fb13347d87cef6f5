package hostpath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "real", "file")
	must(os.Mkdir(filepath.Join(dir, "real"), 0o755))
	must(os.WriteFile(file, []byte("12345"), 0o600))
	must(os.Symlink("real", filepath.Join(dir, "link")))
	must(os.Symlink("file", filepath.Join(dir, "real", "link")))
	must(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	must(os.Mkdir(filepath.Join(dir, "open"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "open", "file"), nil, 0o600))
	must(os.Chmod(filepath.Join(dir, "open"), 0o777))

	for _, c := range []struct {
		name, path string
		want       error
	}{
		{"plain", file, nil},
		{"link in an ancestor", filepath.Join(dir, "link", "file"), ErrLink},
		{"link at the end", filepath.Join(dir, "real", "link"), ErrLink},
		{"missing", filepath.Join(dir, "none"), ErrNotFound},
		{"missing ancestor", filepath.Join(dir, "none", "file"), ErrNotFound},
		{"file as ancestor", filepath.Join(file, "x"), ErrType},
		{"fifo does not block", filepath.Join(dir, "fifo"), ErrType},
		{"directory", filepath.Join(dir, "real"), ErrType},
		{"writable by all", filepath.Join(dir, "open", "file"), ErrUnsafe},
		{"relative", "real/file", errNotSimple},
		{"dots", dir + "/real/../real/file", errNotSimple},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := ReadFile(c.path, 5)
			if !errors.Is(err, c.want) {
				t.Fatalf("ReadFile = %v, want %v", err, c.want)
			}
			if err == nil && string(b) != "12345" {
				t.Errorf("read %q", b)
			}
			if err != nil && !strings.Contains(err.Error(), filepath.Base(filepath.Dir(c.path))) && !strings.Contains(err.Error(), c.path) {
				t.Errorf("error %q does not name the path", err)
			}
		})
	}
	if _, err := ReadFile(file, 4); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one byte too many: %v, want ErrTooLarge", err)
	}
}

func TestForeignOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing an owner needs root")
	}
	dir := filepath.Join(t.TempDir(), "foreign")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(dir); !errors.Is(err, ErrUnsafe) {
		t.Errorf("OpenDir = %v, want ErrUnsafe", err)
	}
}
