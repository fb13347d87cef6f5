package sandbox

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// bytesPerInode decides how many files a workspace may hold beside its
	// bytes: an inode costs kernel memory that size= does not count.
	bytesPerInode = 4 << 10
	minInodes     = 1 << 14 // small workspaces still hold ordinary source trees
	maxInodes     = 1 << 18 // about 256 MiB of kernel memory
)

// MountWorkspace mounts a new, empty, size-limited file system on dir, an
// existing directory, for one job. The caller puts the source tree in, measures
// it, passes dir as Spec.Workspace, measures again after Run, and calls
// UnmountWorkspace. A write beyond bytes fails with ENOSPC. If the caller dies
// the mount stays; Sweep removes it.
func MountWorkspace(dir string, bytes int64) error {
	size := bytes / pageSize * pageSize // rounded down: tmpfs rounds up
	if size <= 0 {
		return fmt.Errorf("workspace %s: limit of %d bytes is below one page", dir, bytes)
	}
	inodes := min(max(bytes/bytesPerInode, minInodes), maxInodes)
	data := fmt.Sprintf("size=%d,nr_inodes=%d,mode=0755,uid=%d,gid=%d,huge=never", size, inodes, HostUID, HostUID)
	if err := unix.Mount(workspaceSource(), dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return fmt.Errorf("mount workspace on %s: %w", dir, err)
	}
	return nil
}

// UnmountWorkspace removes what MountWorkspace mounted, with everything in it.
// A directory without a mount is no error, so that cleaning up can be repeated.
func UnmountWorkspace(dir string) error {
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		// Some process still looks into it: hide it now, it goes with the last reference.
		err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount workspace %s: %w", dir, err)
	}
	return nil
}

// WorkspaceUse is what a workspace holds.
type WorkspaceUse struct {
	Bytes   int64
	Files   int64 // with directories and links
	Full    bool  // there is no room for another byte
	NoFiles bool  // there is no room for another file
}

// MeasureWorkspace returns what the workspace mounted on dir holds now.
func MeasureWorkspace(dir string) (WorkspaceUse, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return WorkspaceUse{}, fmt.Errorf("workspace %s: %w", dir, err)
	}
	return WorkspaceUse{
		Bytes: int64(st.Blocks-st.Bfree) * st.Bsize, Files: int64(st.Files - st.Ffree),
		Full: st.Bfree == 0, NoFiles: st.Ffree == 0,
	}, nil
}

var pageSize = int64(os.Getpagesize())
