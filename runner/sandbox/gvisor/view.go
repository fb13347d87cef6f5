package gvisor

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Paths in the supervisor's view.
const (
	viewRoot      = "/root"
	viewUsr       = "/usr"
	viewWorkspace = "/workspace"
	viewExec      = "/executable"
	viewState     = "/state"
	viewTmp       = "/tmp" // where gVisor builds the sentry's empty root
)

// enterView replaces the root of this process's own mount namespace by a small
// one that holds nothing but what the guest may see and what gVisor needs. So
// whatever breaks out of the sentry or the gofer finds neither keys nor other
// jobs, private directories above the parts do not hinder the guest's mapped
// users, and every mount ends with the process.
func enterView(t *task) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("underwrite-view", t.ViewDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=16m"); err != nil {
		return fmt.Errorf("mount view: %w", err)
	}
	for _, b := range viewBinds(t) {
		if err := b.mount(t.ViewDir); err != nil {
			return err
		}
	}
	if err := mountProc(t.ViewDir); err != nil {
		return err
	}
	for _, dir := range []string{viewState, viewTmp} {
		if err := os.Mkdir(filepath.Join(t.ViewDir, dir), 0o711); err != nil {
			return fmt.Errorf("view: %w", err)
		}
	}
	return pivot(t.ViewDir)
}

// A bind shows a file or directory of the host in the view.
type bind struct {
	from, to string
	writable bool
	devices  bool
	shallow  bool // without what is mounted below
}

func viewBinds(t *task) []bind {
	binds := []bind{
		{from: t.Root, to: viewRoot},
		{from: t.Workspace, to: viewWorkspace, writable: true},
		{from: t.Executable, to: viewExec},
		{from: "/dev/null", to: "/dev/null", writable: true, devices: true},
		{from: "/sys", to: "/sys", shallow: true}, // gVisor reads the processors' numbers
	}
	if t.HostUsr {
		binds = append(binds, bind{from: "/usr", to: viewUsr})
	}
	return binds
}

func (b bind) mount(view string) error {
	to := filepath.Join(view, b.to)
	info, err := os.Stat(b.from)
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	if info.IsDir() {
		err = os.MkdirAll(to, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
		err = os.WriteFile(to, nil, 0o444)
	}
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REC)
	if b.shallow {
		flags = unix.MS_BIND
	}
	if err := unix.Mount(b.from, to, "", flags, ""); err != nil {
		return fmt.Errorf("view: bind %s: %w", b.from, err)
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID}
	if !b.devices {
		attr.Attr_set |= unix.MOUNT_ATTR_NODEV
	}
	if !b.writable {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(-1, to, unix.AT_RECURSIVE, attr); err != nil {
		return fmt.Errorf("view: restrict %s: %w", b.from, err)
	}
	return nil
}

// mountProc shows the processes of our own pid namespace only.
func mountProc(view string) error {
	at := filepath.Join(view, "proc")
	if err := os.Mkdir(at, 0o555); err != nil {
		return err
	}
	if err := unix.Mount("proc", at, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("view: mount /proc: %w", err)
	}
	return nil
}

// pivot makes dir the root and drops every other mount.
func pivot(dir string) error {
	if err := os.Chdir(dir); err != nil {
		return err
	}
	// Old and new root on the same directory: the old one then lies on top of it.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("enter view: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	return os.Chdir("/")
}
