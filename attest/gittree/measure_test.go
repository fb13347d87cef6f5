package gittree

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const testLimit = 1 << 20

// workspace makes a directory with a file of several reads, a small file, a
// link and a subdirectory. All times lie in the past, so that any write shows
// whatever the clock's resolution.
func workspace(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "workspace")
	must(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("hello"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "sub/big"), bytes.Repeat([]byte("x"), 3*blobBuffer), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "sub/empty"), nil, 0o644))
	must(t, os.Symlink("target", filepath.Join(dir, "sub/link")))
	for _, name := range []string{"a", "sub/big", "sub/empty", "sub", ""} {
		past := time.Unix(1, 0)
		must(t, os.Chtimes(filepath.Join(dir, name), past, past))
	}
	return dir
}

func measureWith(t *testing.T, dir string, hook func(step, string)) (string, Stats, error) {
	t.Helper()
	root, err := os.Open(dir)
	must(t, err)
	defer root.Close()
	return measure(context.Background(), root, DefaultLimits(testLimit), hook)
}

// changes are what may happen to one entry while it is measured.
var changes = []struct {
	name   string
	only   string // the entry this can happen to; empty for every one
	change func(t *testing.T, path string)
}{
	{"removed", "", func(t *testing.T, path string) { must(t, os.RemoveAll(path)) }},
	{"becomes a FIFO", "", func(t *testing.T, path string) {
		must(t, os.RemoveAll(path))
		must(t, unix.Mkfifo(path, 0o644))
	}},
	{"becomes a link", "", func(t *testing.T, path string) {
		moved := path + ".moved"
		must(t, os.Rename(path, moved))
		must(t, os.Symlink(filepath.Base(moved), path))
		must(t, os.Rename(moved, filepath.Join(t.TempDir(), "moved")))
	}},
	{"becomes a file", "", func(t *testing.T, path string) {
		must(t, os.RemoveAll(path))
		must(t, os.WriteFile(path, []byte("target"), 0o644))
	}},
	{"becomes a directory", "", func(t *testing.T, path string) {
		must(t, os.RemoveAll(path))
		must(t, os.MkdirAll(filepath.Join(path, "d"), 0o755))
	}},
	{"mode, without effect on the tree", "sub/big", func(t *testing.T, path string) { must(t, os.Chmod(path, 0o600)) }},
	{"mode, executable", "sub/big", func(t *testing.T, path string) { must(t, os.Chmod(path, 0o755)) }},
	{"mode of a directory", "sub", func(t *testing.T, path string) { must(t, os.Chmod(path, 0o700)) }},
	{"size, longer", "sub/big", func(t *testing.T, path string) { write(t, path, os.O_APPEND, "y") }},
	{"size, shorter", "sub/big", func(t *testing.T, path string) { must(t, os.Truncate(path, 3*blobBuffer-1)) }},
	{"size, longer than nothing", "sub/empty", func(t *testing.T, path string) { write(t, path, os.O_APPEND, "y") }},
	{"content of the same size", "sub/big", func(t *testing.T, path string) { write(t, path, 0, "y") }},
	{"second link", "sub/big", func(t *testing.T, path string) { must(t, os.Link(path, filepath.Join(t.TempDir(), "link"))) }},
	{"identity of an equal file", "sub/big", func(t *testing.T, path string) {
		must(t, os.WriteFile(path+".new", bytes.Repeat([]byte("x"), 3*blobBuffer), 0o644))
		must(t, os.Chtimes(path+".new", time.Unix(1, 0), time.Unix(1, 0)))
		must(t, os.Rename(path+".new", path))
	}},
	{"identity of an equal link", "sub/link", func(t *testing.T, path string) {
		must(t, os.Symlink("target", path+".new"))
		must(t, os.Rename(path+".new", path))
	}},
	{"identity of a directory", "sub", func(t *testing.T, path string) {
		must(t, os.Rename(path, filepath.Join(t.TempDir(), "moved")))
		must(t, os.Mkdir(path, 0o755))
		must(t, os.WriteFile(filepath.Join(path, "x"), nil, 0o644))
	}},
	{"new name", "sub", func(t *testing.T, path string) { must(t, os.WriteFile(filepath.Join(path, "new"), nil, 0o644)) }},
	{"renamed", "sub/big", func(t *testing.T, path string) { must(t, os.Rename(path, path+"ger")) }},
}

func write(t *testing.T, path string, flags int, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|flags, 0)
	must(t, err)
	_, err = f.WriteString(text)
	must(t, err)
	must(t, f.Close())
}

// Every change is refused, at whichever moment of the measurement it happens.
func TestChangesWhileMeasured(t *testing.T) {
	steps := map[string]step{"listed": stepListed, "opened": stepOpened, "reading": stepReading, "all read": stepRead}
	for _, entry := range []string{"sub", "sub/big", "sub/empty", "sub/link"} {
		for _, c := range changes {
			for moment, at := range steps {
				if c.only != "" && c.only != entry || at == stepReading && (entry == "sub" || entry == "sub/link") {
					continue // directories and links are read in one step
				}
				t.Run(entry+" "+c.name+" "+moment, func(t *testing.T) {
					dir := workspace(t)
					var once sync.Once
					fired := false
					tree, _, err := measureWith(t, dir, func(s step, path string) {
						if s == at && (path == entry || at == stepRead) {
							once.Do(func() { fired = true; c.change(t, filepath.Join(dir, entry)) })
						}
					})
					var refused *Error
					if !errors.As(err, &refused) || tree != "" {
						t.Fatalf("measured %s, %v", tree, err)
					}
					// A name that is gone from the root is a change of the root.
					at := strings.HasPrefix(refused.Path, "sub") || refused.Path == "" && entry == "sub"
					if refused.Kind != Changed || refused.Unsupported() || !at {
						t.Errorf("refused as %v", err)
					}
					if !fired {
						t.Error("nothing was changed")
					}
				})
			}
		}
	}
}

// A change between the reads of one file is seen, too.
func TestChangeBetweenReads(t *testing.T) {
	dir := workspace(t)
	reads := 0
	_, _, err := measureWith(t, dir, func(s step, path string) {
		if s == stepReading && path == "sub/big" {
			if reads++; reads == 3 {
				write(t, filepath.Join(dir, path), 0, "y") // already read
			}
		}
	})
	var refused *Error
	if !errors.As(err, &refused) || refused.Kind != Changed || refused.Path != "sub/big" {
		t.Errorf("got %v", err)
	}
}

func TestChangedRoot(t *testing.T) {
	for name, change := range map[string]func(*testing.T, string){
		"mode":      func(t *testing.T, dir string) { must(t, os.Chmod(dir, 0o700)) },
		"new name":  func(t *testing.T, dir string) { must(t, os.WriteFile(filepath.Join(dir, "new"), nil, 0o644)) },
		"lost name": func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "a"))) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := workspace(t)
			_, _, err := measureWith(t, dir, func(s step, _ string) {
				if s == stepRead {
					change(t, dir)
				}
			})
			var refused *Error
			if !errors.As(err, &refused) || refused.Kind != Changed {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestUnchanged(t *testing.T) {
	dir := workspace(t)
	tree, s, err := measureWith(t, dir, func(step, string) {})
	if err != nil {
		t.Fatal(err)
	}
	want := Stats{Files: 3, Links: 1, Directories: 1, Bytes: 3*blobBuffer + 5 + 6, PathBytes: 1 + 3 + 7 + 9 + 8}
	if s != want || s.Entries() != 5 {
		t.Errorf("%+v, want %+v", s, want)
	}
	again, _, err := Measure(context.Background(), dir, DefaultLimits(testLimit))
	if err != nil || again != tree {
		t.Errorf("measured %s, then %s, %v", tree, again, err)
	}
}

func TestRefusals(t *testing.T) {
	small := func(change func(*Limits)) Limits {
		l := DefaultLimits(testLimit)
		change(&l)
		return l
	}
	for _, row := range []struct {
		name   string
		make   func(t *testing.T, dir string)
		limits Limits
		kind   Kind
		path   string
	}{
		{"empty directory", func(t *testing.T, dir string) { must(t, os.MkdirAll(dir+"/sub/e", 0o755)) },
			DefaultLimits(testLimit), EmptyDirectory, "sub/e"},
		{"hard link", func(t *testing.T, dir string) { must(t, os.Link(dir+"/a", dir+"/sub/b")) },
			DefaultLimits(testLimit), HardLink, "a"},
		{"hard link from outside", func(t *testing.T, dir string) { must(t, os.Link(dir+"/sub/big", dir+"/../outside")) },
			DefaultLimits(testLimit), HardLink, "sub/big"},
		{"FIFO", func(t *testing.T, dir string) { must(t, unix.Mkfifo(dir+"/sub/p", 0o644)) },
			DefaultLimits(testLimit), SpecialFile, "sub/p"},
		{"git metadata", func(t *testing.T, dir string) { must(t, os.MkdirAll(dir+"/sub/.gIt", 0o755)) },
			DefaultLimits(testLimit), GitMetadata, "sub/.gIt"},
		{"hostile name", func(t *testing.T, dir string) { must(t, os.Mkdir(dir+"/sub/\xff\n", 0o755)) },
			DefaultLimits(testLimit), EmptyDirectory, "sub/\xff\n"},
		{"content", func(*testing.T, string) {}, DefaultLimits(3*blobBuffer + 10), OverLimit, "sub/link"},
		{"entries of one directory", func(*testing.T, string) {}, small(func(l *Limits) { l.Entries = 1 }), OverLimit, ""},
		{"entries in all", func(*testing.T, string) {}, small(func(l *Limits) { l.Entries = 4 }), OverLimit, "sub"},
		{"depth", func(*testing.T, string) {}, small(func(l *Limits) { l.Depth = 1 }), OverLimit, "sub/big"},
		{"path", func(*testing.T, string) {}, small(func(l *Limits) { l.PathBytes = 8 }), OverLimit, "sub/empty"},
		{"all paths", func(*testing.T, string) {}, small(func(l *Limits) { l.TotalPathBytes = 27 }), OverLimit, "sub/link"},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := workspace(t)
			row.make(t, dir)
			_, _, err := Measure(context.Background(), dir, row.limits)
			var refused *Error
			if !errors.As(err, &refused) || refused.Kind != row.kind || refused.Path != row.path || !refused.Unsupported() {
				t.Errorf("got %v, want %s %q", err, row.kind, row.path)
			}
			if err != nil && (strings.Contains(err.Error(), "\xff") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("hostile name in %q", err)
			}
		})
	}
}

// The exact limits are still within.
func TestLimitsAreInclusive(t *testing.T) {
	l := Limits{Bytes: 3*blobBuffer + 11, Entries: 5, Depth: 2, PathBytes: 9, TotalPathBytes: 28}
	if _, _, err := Measure(context.Background(), workspace(t), l); err != nil {
		t.Error(err)
	}
	l.Depth = 0
	if _, _, err := Measure(context.Background(), workspace(t), l); err == nil {
		t.Error("accepted a limit of 0")
	}
}

// A mount inside the workspace is not content of the workspace. The test's
// thread has a mount namespace of its own, which ends with it.
func TestMountPoint(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root to mount")
		}
		t.Skip("needs root to mount")
	}
	dir := workspace(t)
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return
		}
		if err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return
		}
		if err = unix.Mount(dir, dir+"/sub", "", unix.MS_BIND, ""); err != nil {
			return
		}
		_, _, err = Measure(context.Background(), dir, DefaultLimits(testLimit))
	}()
	<-done
	var refused *Error
	if !errors.As(err, &refused) || refused.Kind != MountPoint || refused.Path != "sub" {
		t.Errorf("got %v", err)
	}
}

// However a measurement ends, it leaves no descriptor and no goroutine.
func TestNothingIsLeftOpen(t *testing.T) {
	open := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(names)
	}
	dir := workspace(t)
	before, goroutines := open(), runtime.NumGoroutine()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for range 20 {
		for _, l := range []Limits{DefaultLimits(testLimit), DefaultLimits(10), {}} {
			Measure(context.Background(), dir, l)
		}
		if _, _, err := Measure(cancelled, dir, DefaultLimits(testLimit)); !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled: %v", err)
		}
	}
	if after := open(); after != before {
		t.Errorf("%d descriptors, then %d", before, after)
	}
	// A worker that said that it is done is counted until it has returned.
	deadline := time.Now().Add(time.Minute)
	for runtime.NumGoroutine() > goroutines {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, then %d", goroutines, runtime.NumGoroutine())
		}
		runtime.Gosched()
	}
}

// A cancellation in the middle of a file ends the measurement.
func TestCancelWhileReading(t *testing.T) {
	dir := workspace(t)
	root, err := os.Open(dir)
	must(t, err)
	defer root.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, _, err = measure(ctx, root, DefaultLimits(testLimit), func(s step, path string) {
		if s == stepReading && path == "sub/big" {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
