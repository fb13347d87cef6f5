package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func mounted(t *testing.T, bytes int64) string {
	t.Helper()
	dir := t.TempDir()
	if err := MountWorkspace(dir, bytes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := UnmountWorkspace(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func isMount(t *testing.T, dir string) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(b), " "+dir+" ")
}

func TestMountWorkspace(t *testing.T) {
	const limit = 1<<20 + 1000 // not a multiple of a page
	dir := mounted(t, limit)
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil || st.Uid != HostUID || st.Gid != HostUID || st.Mode&0o777 != 0o755 {
		t.Errorf("owner %d:%d, mode %o, %v", st.Uid, st.Gid, st.Mode, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Flags&(unix.ST_NOSUID|unix.ST_NODEV) != unix.ST_NOSUID|unix.ST_NODEV {
		t.Errorf("flags %#x, %v", fs.Flags, err)
	}
	if use, err := MeasureWorkspace(dir); use != (WorkspaceUse{Files: 1}) || err != nil { // its root
		t.Errorf("empty workspace: %+v, %v", use, err)
	}
	err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, limit), 0o644)
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("writing more than the limit = %v, want ENOSPC", err)
	}
	if use, err := MeasureWorkspace(dir); use.Bytes > limit || !use.Full || use.NoFiles || err != nil {
		t.Errorf("full workspace: %+v, %v", use, err)
	}
}

func TestWorkspaceWithoutFilesLeft(t *testing.T) {
	dir := mounted(t, 1<<20)
	var err error
	for i := 0; err == nil; i++ {
		err = os.Symlink("x", filepath.Join(dir, strconv.Itoa(i)))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("one file too many = %v, want ENOSPC", err)
	}
	if use, err := MeasureWorkspace(dir); use.Full || !use.NoFiles || use.Files != minInodes || err != nil {
		t.Errorf("workspace of %d files: %+v, %v", minInodes, use, err)
	}
}

func TestUnmountWorkspace(t *testing.T) {
	dir := t.TempDir()
	if err := MountWorkspace(dir, 1<<20); err != nil {
		t.Fatal(err)
	}
	held, err := os.Create(filepath.Join(dir, "held"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for range 2 { // in use, then gone
		if err := UnmountWorkspace(dir); err != nil {
			t.Error(err)
		}
	}
	if isMount(t, dir) {
		t.Error("still mounted")
	}
	if err := UnmountWorkspace(filepath.Join(dir, "missing")); err != nil {
		t.Error(err)
	}
}

func TestMountWorkspaceRefused(t *testing.T) {
	if err := MountWorkspace(t.TempDir(), 100); err == nil {
		t.Error("a workspace without room for a page was mounted")
	}
	if err := MountWorkspace("/nonexistent", 1<<20); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error = %v, want ErrNotExist", err)
	}
}

func TestGiveWorkspace(t *testing.T) {
	dir := mounted(t, 1<<20)
	outside := filepath.Join(t.TempDir(), "outside")
	for _, err := range []error{
		os.WriteFile(outside, nil, 0o644),
		os.MkdirAll(filepath.Join(dir, "a/b"), 0o700),
		os.WriteFile(filepath.Join(dir, "a/b/file"), nil, 0o400),
		os.Symlink(outside, filepath.Join(dir, "a/link")),
		os.Symlink("..", filepath.Join(dir, "a/up")),
		GiveWorkspace(dir),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]uint32{
		dir: HostUID, dir + "/a": HostUID, dir + "/a/b": HostUID, dir + "/a/b/file": HostUID,
		dir + "/a/link": HostUID, dir + "/a/up": HostUID, outside: 0, filepath.Dir(dir): 0,
	} {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Uid != want || st.Gid != want {
			t.Errorf("%s belongs to %d:%d, want %d (%v)", path, st.Uid, st.Gid, want, err)
		}
	}
}
