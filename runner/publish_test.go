package runner

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"underwrite/runner/wire"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// outbox makes an outbox and a set of evidence files.
func outbox(t *testing.T) (publisher, string, []evidenceFile) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "outbox")
	must(t, os.Mkdir(dir, 0o700))
	stored := filepath.Join(t.TempDir(), "stored")
	must(t, os.WriteFile(stored, []byte("stored content"), 0o600))
	sum, n, err := hashAll(strings.NewReader("stored content"))
	must(t, err)
	var files []evidenceFile
	for _, name := range wire.EvidenceFiles {
		files = append(files, inMemory(name, []byte("content of "+name)))
	}
	files[3] = evidenceFile{name: wire.OutputFile, path: stored, sha256: sum, bytes: n}
	return publisher{outbox: dir, gid: -1}, filepath.Join(dir, "evidence"), files
}

func checkPublished(t *testing.T, dir string, gid int) {
	t.Helper()
	info, err := os.Lstat(dir)
	must(t, err)
	if info.Mode() != os.ModeDir|0o750 {
		t.Errorf("mode of the directory = %v, want 0750", info.Mode())
	}
	var names []string
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
		info, err := e.Info()
		must(t, err)
		st := info.Sys().(*syscall.Stat_t)
		if info.Mode() != 0o640 || st.Nlink != 1 || gid >= 0 && int(st.Gid) != gid {
			t.Errorf("%s: mode %v, %d links, group %d", e.Name(), info.Mode(), st.Nlink, st.Gid)
		}
	}
	want := slices.Sorted(slices.Values(wire.EvidenceFiles))
	if !slices.Equal(names, want) {
		t.Errorf("files = %v, want %v", names, want)
	}
	siblings, err := os.ReadDir(filepath.Dir(dir))
	must(t, err)
	if len(siblings) != 1 {
		t.Errorf("the outbox holds %v besides", siblings)
	}
}

func TestPublish(t *testing.T) {
	p, dir, files := outbox(t)
	for range 3 { // repeating changes nothing
		must(t, p.publish(dir, files))
		checkPublished(t, dir, -1)
	}
}

func TestPublishToGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("handing files to another group needs root")
	}
	p, dir, files := outbox(t)
	p.gid = 54321
	if err := p.publish(dir, files); err == nil || !strings.Contains(err.Error(), "group 54321") {
		t.Errorf("publish into an outbox of another group = %v", err)
	}
	must(t, os.Chown(p.outbox, -1, p.gid))
	must(t, os.Chmod(p.outbox, 0o710))
	must(t, p.publish(dir, files))
	checkPublished(t, dir, p.gid)
}

// TestPublishRecovers starts from what a crash at each step leaves.
func TestPublishRecovers(t *testing.T) {
	staging := func(p publisher, dir string) string {
		sum, _, _ := hashAll(strings.NewReader(filepath.Base(dir)))
		return filepath.Join(p.outbox, stagingPrefix+sum)
	}
	for name, crash := range map[string]func(t *testing.T, p publisher, dir string, files []evidenceFile){
		"empty staging directory": func(t *testing.T, p publisher, dir string, files []evidenceFile) {
			must(t, os.Mkdir(staging(p, dir), 0o700))
		},
		"half written": func(t *testing.T, p publisher, dir string, files []evidenceFile) {
			must(t, os.Mkdir(staging(p, dir), 0o700))
			must(t, os.WriteFile(filepath.Join(staging(p, dir), wire.ReceiptFile), []byte("con"), 0o600))
		},
		"renamed, not handed over": func(t *testing.T, p publisher, dir string, files []evidenceFile) {
			must(t, p.publish(dir, files))
			must(t, os.Chmod(dir, 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, dir, files := outbox(t)
			crash(t, p, dir, files)
			must(t, p.publish(dir, files))
			checkPublished(t, dir, -1)
		})
	}
}

// TestPublishConflicts: an existing destination that differs in anything stays
// as it is.
func TestPublishConflicts(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"other byte": func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, wire.StdoutFile), []byte("content of stdouT"), 0o640))
		},
		"longer": func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, wire.StdoutFile), []byte("content of stdout "), 0o640))
		},
		"missing": func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, wire.StdoutFile))) },
		"extra":   func(t *testing.T, dir string) { must(t, os.WriteFile(filepath.Join(dir, "more"), nil, 0o640)) },
		"renamed": func(t *testing.T, dir string) {
			must(t, os.Rename(filepath.Join(dir, wire.StdoutFile), filepath.Join(dir, "stdouT")))
		},
		"link to the same bytes": func(t *testing.T, dir string) {
			must(t, os.Rename(filepath.Join(dir, wire.StdoutFile), filepath.Join(filepath.Dir(dir), "moved")))
			must(t, os.Symlink("../moved", filepath.Join(dir, wire.StdoutFile)))
		},
		"second link": func(t *testing.T, dir string) {
			must(t, os.Link(filepath.Join(dir, wire.StdoutFile), filepath.Join(filepath.Dir(dir), "second")))
		},
		"fifo": func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, wire.StdoutFile)))
			must(t, syscall.Mkfifo(filepath.Join(dir, wire.StdoutFile), 0o640))
		},
		"a link instead of the directory": func(t *testing.T, dir string) {
			must(t, os.Rename(dir, dir+"2"))
			must(t, os.Symlink(dir+"2", dir))
		},
		"a file instead of the directory": func(t *testing.T, dir string) {
			must(t, os.RemoveAll(dir))
			must(t, os.WriteFile(dir, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, dir, files := outbox(t)
			must(t, p.publish(dir, files))
			must(t, os.Chmod(dir, 0o700)) // also when it looks like an interrupted hand-over
			change(t, dir)
			before, _ := os.Lstat(dir)
			if err := p.publish(dir, files); !errors.Is(err, ErrConflict) {
				t.Errorf("publish = %v, want ErrConflict", err)
			}
			if after, err := os.Lstat(dir); err != nil || after.Mode() != before.Mode() {
				t.Errorf("the conflicting destination changed: %v, %v", after, err)
			}
		})
	}
}

// TestPublishChecksStored: a stored file that no longer has the ledger's digest
// is never published.
func TestPublishChecksStored(t *testing.T) {
	p, dir, files := outbox(t)
	must(t, os.WriteFile(files[3].path, []byte("stored cOntent"), 0o600))
	if err := p.publish(dir, files); !errors.Is(err, ErrStored) {
		t.Errorf("publish = %v, want ErrStored", err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the destination exists: %v", err)
	}
}

func TestPublishLeavesForeignStaging(t *testing.T) {
	p, dir, files := outbox(t)
	sum, _, _ := hashAll(strings.NewReader("evidence"))
	foreign := filepath.Join(p.outbox, stagingPrefix+sum, "precious")
	must(t, os.Mkdir(filepath.Dir(foreign), 0o700))
	must(t, os.WriteFile(foreign, nil, 0o600))
	if err := p.publish(dir, files); err == nil {
		t.Error("published over a foreign directory")
	}
	if _, err := os.Lstat(foreign); err != nil {
		t.Error(err)
	}
}

func TestPublishDestination(t *testing.T) {
	p, dir, _ := outbox(t)
	for _, bad := range []string{
		p.outbox, filepath.Dir(p.outbox), filepath.Join(dir, "deeper"), p.outbox + "/../other", p.outbox + "//x", "evidence", "",
		filepath.Join(p.outbox, ".hidden"), filepath.Join(p.outbox, strings.Repeat("n", 256)), "/",
	} {
		if err := p.check(bad); err == nil {
			t.Errorf("destination %q is accepted", bad)
		}
	}
	must(t, p.check(dir))
	must(t, os.Chmod(p.outbox, 0o755))
	if err := p.check(dir); err == nil {
		t.Error("an outbox that everyone can list is accepted")
	}
}
