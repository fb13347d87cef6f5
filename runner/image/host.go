package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"underwrite/runner/sandbox"
)

// HostDigest is the digest of the host's own root file system: it names no
// content, so receipts say that the run was not pinned to an image.
const HostDigest = "host"

// The account files that a guest sees in place of the host's.
const (
	passwd = "root:x:0:0:root:/:/usr/sbin/nologin\n" +
		"guest:x:%[1]d:%[1]d:guest:/tmp:/bin/sh\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	group    = "root:x:0:\nguest:x:%[1]d:\nnogroup:x:65534:\n"
	hosts    = "127.0.0.1 localhost\n::1 localhost\n"
	nsswitch = "passwd: files\ngroup: files\nshadow: files\nhosts: files\nprotocols: files\nservices: files\n"
)

// Bounds on what is taken over from the host's /etc.
const (
	maxLinkerCache  = 16 << 20 // bytes
	maxAlternatives = 10_000   // entries
)

// rootLinks are the directories that a merged-/usr system links into /usr.
var rootLinks = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// mountPoints are the empty directories that a guest's mounts need.
var mountPoints = []string{"dev", "proc", "sys", "tmp", "usr", strings.TrimPrefix(sandbox.GuestWorkspace, "/")}

// Host builds in dir, an existing empty directory, what a guest sees as its
// root when it runs on the host's programs: links for a merged /usr, the
// linker's cache, the alternatives, and generated account files. The host's
// /usr is bound over it read-only; nothing else of the host is visible.
// The caller removes dir after the run.
func Host(dir string) (sandbox.Root, error) { return hostFrom("/", dir) }

// hostFrom is Host for a host whose root is at host.
func hostFrom(host, dir string) (sandbox.Root, error) {
	steps := []func(host, dir string) error{makeMountPoints, linkRoot, writeEtc, copyLinkerCache, copyAlternatives}
	for _, step := range steps {
		if err := step(host, dir); err != nil {
			return sandbox.Root{}, fmt.Errorf("host root in %s: %w", dir, err)
		}
	}
	return sandbox.Root{Host: true, Path: dir, Digest: HostDigest}, nil
}

func makeMountPoints(_, dir string) error {
	// The guest's root user is another user on the host: it must be able to look in.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for _, name := range append(mountPoints, "etc") {
		if err := mkdir(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// mkdir makes a directory that everyone can enter, whatever the umask is.
func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

func linkRoot(host, dir string) error {
	for _, name := range rootLinks {
		info, err := os.Lstat(filepath.Join(host, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		target, err := os.Readlink(filepath.Join(host, name))
		if err != nil || info.Mode().Type() != fs.ModeSymlink || strings.TrimPrefix(target, "/") != "usr/"+name {
			return fmt.Errorf("/%s is no link to usr/%s: install the usrmerge package, or run on an image", name, name)
		}
		if err := os.Symlink("usr/"+name, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func writeEtc(_, dir string) error {
	files := map[string]string{
		"passwd":        fmt.Sprintf(passwd, sandbox.GuestUID),
		"group":         fmt.Sprintf(group, sandbox.GuestUID),
		"hosts":         hosts,
		"nsswitch.conf": nsswitch,
		"hostname":      "sandbox\n",
	}
	for name, content := range files {
		if err := writeFile(filepath.Join(dir, "etc", name), []byte(content)); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(path string, content []byte) error {
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return err
	}
	return os.Chmod(path, 0o644)
}

// copyLinkerCache takes over where the dynamic linker finds libraries. A host
// without a cache has none outside the linker's default directories.
func copyLinkerCache(host, dir string) error {
	path := filepath.Join(host, "etc/ld.so.cache")
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > maxLinkerCache {
		return fmt.Errorf("%s is no regular file of at most %d bytes: run ldconfig", path, maxLinkerCache)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, "etc/ld.so.cache"), content)
}

// copyAlternatives takes over the links by which Debian names, for example,
// the C compiler. Only links are copied, never a file's content.
func copyAlternatives(host, dir string) error {
	from, to := filepath.Join(host, "etc/alternatives"), filepath.Join(dir, "etc/alternatives")
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(entries) > maxAlternatives {
		return fmt.Errorf("%s has %d entries, at most %d are taken over", from, len(entries), maxAlternatives)
	}
	if err := mkdir(to); err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type() != fs.ModeSymlink {
			continue
		}
		target, err := os.Readlink(filepath.Join(from, e.Name()))
		if err != nil {
			return err
		}
		if err := os.Symlink(target, filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
