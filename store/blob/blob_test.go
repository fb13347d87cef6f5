package blob

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Create(filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func temps(t *testing.T, s *Store) int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.dir, tempName))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestPutAndOpen(t *testing.T) {
	s := newStore(t)
	for name, content := range map[string]string{"empty": "", "text": "hello\n", "large": strings.Repeat("x", 1<<20)} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // the second time it exists already
				ref, err := s.Put(iotest.HalfReader(strings.NewReader(content)), int64(len(content)))
				if err != nil {
					t.Fatal(err)
				}
				sum := sha256.Sum256([]byte(content))
				if want := (Ref{hex.EncodeToString(sum[:]), int64(len(content))}); ref != want {
					t.Fatalf("Put = %+v, want %+v", ref, want)
				}
				f, err := s.Open(ref)
				if err != nil {
					t.Fatal(err)
				}
				got, _ := io.ReadAll(f)
				f.Close()
				if string(got) != content {
					t.Errorf("Open reads %d bytes of other content", len(got))
				}
				if tail, err := s.Tail(ref, 3); err != nil || !strings.HasSuffix(content, string(tail)) || len(tail) != min(3, len(content)) {
					t.Errorf("Tail = %q, %v", tail, err)
				}
			}
		})
	}
	if n := temps(t, s); n != 0 {
		t.Errorf("%d temporary files left", n)
	}
}

func TestPutFailuresLeaveNothing(t *testing.T) {
	s := newStore(t)
	if _, err := s.Put(strings.NewReader("12345"), 4); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one byte too many: %v, want ErrTooLarge", err)
	}
	broken := errors.New("broken")
	if _, err := s.Put(io.MultiReader(strings.NewReader("12"), iotest.ErrReader(broken)), 4); !errors.Is(err, broken) {
		t.Errorf("failing reader: %v", err)
	}
	if _, err := s.Put(io.MultiReader(strings.NewReader("1234"), iotest.ErrReader(broken)), 4); !errors.Is(err, broken) {
		t.Errorf("reader failing at the limit: %v", err)
	}
	entries, _ := os.ReadDir(s.dir)
	if len(entries) != 1 || temps(t, s) != 0 {
		t.Errorf("left behind: %v, %d temporary files", entries, temps(t, s))
	}
}

func TestOpenRefusesWhatDiffers(t *testing.T) {
	damage := map[string]func(t *testing.T, path string){
		"flipped byte": func(t *testing.T, path string) { rewrite(t, path, []byte("hallo")) },
		"truncated":    func(t *testing.T, path string) { rewrite(t, path, []byte("hell")) },
		"longer":       func(t *testing.T, path string) { rewrite(t, path, []byte("hello!")) },
		"symbolic link": func(t *testing.T, path string) {
			other := path + ".other"
			rewrite(t, other, []byte("hello"))
			os.Remove(path)
			if err := os.Symlink(other, path); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, damage := range damage {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			ref, err := s.Put(strings.NewReader("hello"), 5)
			if err != nil {
				t.Fatal(err)
			}
			damage(t, s.Path(ref))
			if err := s.Check(ref); err == nil {
				t.Error("Check accepts it")
			}
			if _, err := s.Put(strings.NewReader("hello"), 5); err != nil {
				t.Fatal(err)
			}
			if err := s.Check(ref); err != nil {
				t.Errorf("putting it again does not repair it: %v", err)
			}
		})
	}
}

func rewrite(t *testing.T, path string, b []byte) {
	t.Helper()
	os.Remove(path)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestMissing(t *testing.T) {
	s := newStore(t)
	for _, ref := range []Ref{{strings.Repeat("0", 64), 1}, {"../../../etc/passwd", 1}, {"", 0}} {
		if _, err := s.Open(ref); !errors.Is(err, ErrMissing) {
			t.Errorf("Open(%q) = %v, want ErrMissing", ref.SHA256, err)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "nothing")); err == nil {
		t.Error("Open of a missing store works")
	}
}

func TestSweep(t *testing.T) {
	s := newStore(t)
	ref, err := s.Put(strings.NewReader("kept"), 10)
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, filepath.Join(s.dir, tempName, "put-1"), []byte("left"))
	if err := s.Sweep(); err != nil {
		t.Fatal(err)
	}
	if temps(t, s) != 0 || s.Check(ref) != nil {
		t.Error("Sweep left a temporary file or removed a blob")
	}
}

func TestConcurrentPuts(t *testing.T) {
	s := newStore(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			ref, err := s.Put(bytes.NewReader([]byte("same")), 4)
			if err == nil {
				err = s.Check(ref)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, content := range []string{"one", "two"} {
		if err := WriteFile(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		info, _ := os.Stat(path)
		if err != nil || string(got) != content || info.Mode() != 0o640 {
			t.Errorf("file holds %q, mode %v, %v", got, info.Mode(), err)
		}
	}
	if err := WriteFile(filepath.Join(dir, "missing", "f"), nil, 0o600); err == nil {
		t.Error("WriteFile into a missing directory works")
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "d"), nil, 0o600); err == nil {
		t.Error("WriteFile over a directory works")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("temporary files left: %v", entries)
	}
}
