package image

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"underwrite/runner/sandbox"
)

// fakeHost builds a host's root: a merged /usr, and secrets that must not
// leave it.
func fakeHost(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"etc/alternatives", "etc/ssh", "usr/bin", "root", "home"} {
		must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	for name, content := range map[string]string{
		"etc/shadow": "secret", "etc/passwd": "host:x:1:1::/:/bin/sh\n", "etc/ssh/key": "secret", "etc/ld.so.cache": "cache",
		"etc/alternatives/README": "secret",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	for name, target := range map[string]string{
		"bin": "usr/bin", "sbin": "/usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64",
		"etc/alternatives/cc": "/usr/bin/gcc",
	} {
		must(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// list names everything below dir with its link's target.
func list(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name := strings.TrimPrefix(path, dir+"/")
		if target, err := os.Readlink(path); err == nil {
			name += " -> " + target
		}
		all = append(all, name)
		return nil
	}))
	slices.Sort(all)
	return all
}

func TestHostFrom(t *testing.T) {
	dir := t.TempDir()
	root, err := hostFrom(fakeHost(t), dir)
	must(t, err)
	if want := (sandbox.Root{Host: true, Path: dir, Digest: "host"}); root != want {
		t.Errorf("Host = %+v, want %+v", root, want)
	}
	want := []string{
		"bin -> usr/bin", "dev", "etc", "etc/alternatives", "etc/alternatives/cc -> /usr/bin/gcc", "etc/group", "etc/hostname", "etc/hosts",
		"etc/ld.so.cache", "etc/nsswitch.conf", "etc/passwd", "lib -> usr/lib", "lib64 -> usr/lib64", "proc", "sbin -> usr/sbin",
		"sys", "tmp", "usr", "workspace",
	}
	if got := list(t, dir); !slices.Equal(got, want) {
		t.Errorf("root holds\n%q, want\n%q", got, want)
	}
	passwd, err := os.ReadFile(filepath.Join(dir, "etc/passwd"))
	must(t, err)
	if strings.Contains(string(passwd), "host:") || !strings.Contains(string(passwd), "guest:x:1000:1000:") {
		t.Errorf("passwd = %q", passwd)
	}
	for _, name := range []string{".", "etc", "etc/passwd", "workspace"} {
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if info.Mode().Perm()&0o004 == 0 {
			t.Errorf("%s has mode %v: the guest cannot read it", name, info.Mode())
		}
	}
}

func TestHostFromRefused(t *testing.T) {
	tests := []struct {
		name   string
		change func(host string) error
		want   string
	}{
		{"unmerged /usr", func(host string) error {
			return os.Rename(filepath.Join(host, "root"), filepath.Join(host, "lib32"))
		}, "usrmerge"},
		{"link elsewhere", func(host string) error {
			return os.Symlink("/opt/lib32", filepath.Join(host, "lib32"))
		}, "usrmerge"},
		{"linker cache is a link", func(host string) error {
			cache := filepath.Join(host, "etc/ld.so.cache")
			os.Remove(cache)
			return os.Symlink("shadow", cache)
		}, "ldconfig"},
		{"huge linker cache", func(host string) error {
			return os.Truncate(filepath.Join(host, "etc/ld.so.cache"), maxLinkerCache+1)
		}, "ldconfig"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			host := fakeHost(t)
			must(t, tt.change(host))
			if _, err := hostFrom(host, t.TempDir()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want %q", err, tt.want)
			}
		})
	}
}

// TestHostFromBare holds that a host without the optional parts will do.
func TestHostFromBare(t *testing.T) {
	host := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(host, "usr/bin"), 0o755))
	if _, err := hostFrom(host, t.TempDir()); err != nil {
		t.Error(err)
	}
}

func TestHostNeedsEmptyDirectory(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "dev"), 0o755))
	if _, err := Host(dir); err == nil {
		t.Error("a directory in use was taken")
	}
}
