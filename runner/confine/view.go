package confine

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// What every tool sees of the system, read-only.
var (
	systemTrees  = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}
	systemFiles  = []string{"/etc/ld.so.cache"}
	networkFiles = []string{
		"/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/services",
		"/etc/ssl", "/etc/ca-certificates", "/etc/pki", "/etc/crypto-policies",
	}
	devices = []string{"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"}
)

// Mount attributes of each kind of path.
const (
	attrSystem    = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	attrReadOnly  = attrSystem | unix.MOUNT_ATTR_NOEXEC
	attrReadWrite = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	attrDevice    = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
)

// part is one thing to be seen: a mount, or a symbolic link of the system's.
type part struct {
	path string
	tree *os.File
	attr uint64
	link string
}

// enterView makes the new root: a small tmpfs with nothing in it but the
// system's programs and the given paths, at their own names. Everything is
// opened before the tmpfs covers anything.
func enterView(o *order) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return notHere(fmt.Errorf("make mounts private: %w", err))
	}
	parts, err := systemParts(o.Network)
	if err != nil {
		return err
	}
	data, err := dataParts(o)
	if err != nil {
		return err
	}
	// /usr is where a directory surely exists; the mount namespace is our own.
	if err := unix.Mount("underwrite", "/usr", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=1m,nr_inodes=4k,mode=0755"); err != nil {
		return notHere(fmt.Errorf("mount the new root: %w", err))
	}
	root, err := unix.Open("/usr", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the new root: %w", err)
	}
	defer unix.Close(root)
	for _, p := range append(parts, data...) {
		if err := p.attach(root); err != nil {
			return err
		}
	}
	return pivot(root)
}

func pivot(root int) error {
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	// With both names the same, the old root ends up on top of the new one,
	// from where it is taken off.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("take the old root off: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, &attr); err != nil {
		return fmt.Errorf("make the root read-only: %w", err)
	}
	return nil
}

// notHere marks a refusal that a weaker identity may not meet: some
// distributions create user namespaces without any right in them.
func notHere(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: %w", errNotHere, err)
	}
	return err
}

func systemParts(network bool) ([]part, error) {
	files := systemFiles
	if network {
		files = slices.Concat(files, networkFiles)
	}
	var parts []part
	for _, p := range systemTrees {
		st, err := os.Lstat(p)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if st.Mode()&os.ModeSymlink != 0 {
			target, err := os.Readlink(p)
			if err != nil {
				return nil, err
			}
			parts = append(parts, part{path: p, link: target})
			continue
		}
		parts = append(parts, part{path: p, attr: attrSystem})
	}
	for _, p := range files {
		parts = append(parts, part{path: p, attr: attrSystem})
	}
	for _, p := range devices {
		parts = append(parts, part{path: p, attr: attrDevice})
	}
	return openParts(parts)
}

// openParts opens what exists.
func openParts(parts []part) ([]part, error) {
	var there []part
	for _, p := range parts {
		if p.link == "" {
			tree, err := openTree(p.path)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			p.tree = tree
		}
		there = append(there, p)
	}
	return there, nil
}

// dataParts are the given paths, the shorter first so that one may lie in
// another.
func dataParts(o *order) ([]part, error) {
	var parts []part
	for i, p := range slices.Concat(o.ReadOnly, o.ReadWrite) {
		d := part{path: p, attr: attrReadOnly}
		if i >= len(o.ReadOnly) {
			d.attr = attrReadWrite
		}
		if i < o.Prepared {
			d.tree = os.NewFile(uintptr(fdMounts+i), p)
		} else {
			tree, err := openTree(p)
			if err != nil {
				return nil, err
			}
			d.tree = tree
		}
		parts = append(parts, d)
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(len(a.path), len(b.path)) })
	return parts, nil
}

func (p *part) attach(root int) error {
	if p.link != "" {
		if err := unix.Symlinkat(p.link, root, p.path[1:]); err != nil {
			return fmt.Errorf("link %s: %w", p.path, err)
		}
		return nil
	}
	defer p.tree.Close()
	attr := unix.MountAttr{Attr_set: p.attr}
	if err := unix.MountSetattr(int(p.tree.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("restrict the mount of %s: %w", p.path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(p.tree.Fd()), &st); err != nil {
		return fmt.Errorf("stat %s: %w", p.path, err)
	}
	at, err := mountPoint(root, p.path, st.Mode&unix.S_IFMT == unix.S_IFDIR)
	if err != nil {
		return fmt.Errorf("make a mount point for %s: %w", p.path, err)
	}
	defer unix.Close(at)
	const byDescriptor = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	if err := unix.MoveMount(int(p.tree.Fd()), "", at, "", byDescriptor); err != nil {
		return fmt.Errorf("mount %s: %w", p.path, err)
	}
	return nil
}

// mountPoint makes the missing components of p below root and opens the last
// one. It follows no link: an earlier mount may hold hostile ones.
func mountPoint(root int, p string, dir bool) (int, error) {
	at, err := unix.Dup(root)
	if err != nil {
		return -1, err
	}
	unix.CloseOnExec(at)
	parent, last := path.Split(p)
	for _, name := range append(strings.Split(strings.Trim(parent, "/"), "/"), last) {
		if name == "" {
			continue
		}
		next, err := component(at, name, dir || name != last)
		unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

func component(at int, name string, dir bool) (int, error) {
	fd, err := openComponent(at, name)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if dir {
		err = unix.Mkdirat(at, name, 0o755)
	} else {
		err = unix.Mknodat(at, name, unix.S_IFREG|0o444, 0)
	}
	if err != nil {
		return -1, err
	}
	return openComponent(at, name)
}

func openComponent(at int, name string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	return unix.Openat2(at, name, &how)
}
