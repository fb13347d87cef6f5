package confine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// The throw-away uids and gids: outside of what distributions, systemd and
// container engines hand out. Each run picks one; two runs at once that pick
// the same are still apart by their namespaces.
const (
	firstUID = 1_900_000_000
	uidCount = 65_536
)

func throwAwayUID() int { return firstUID + rand.IntN(uidCount) }

// idMapped opens each path as a detached mount on which the path's owner
// appears as uid. So the tool reads and writes there as uid, while on the disk
// all remains, and all new files become, the owner's: nothing is handed over,
// and a crash leaves nothing to take back.
func idMapped(paths []string, uid int) (mounts []*os.File, err error) {
	maps := map[[2]uint32]*os.File{}
	defer func() {
		for _, f := range maps {
			f.Close()
		}
		if err != nil {
			closeAll(mounts)
		}
	}()
	for _, path := range paths {
		m, err := openTree(path)
		if err != nil {
			return mounts, err
		}
		mounts = append(mounts, m)
		owner, err := ownerOf(m)
		if err != nil {
			return mounts, err
		}
		if maps[owner] == nil {
			if maps[owner], err = idMap(owner, uid); err != nil {
				return mounts, err
			}
		}
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(maps[owner].Fd())}
		if err := unix.MountSetattr(int(m.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return mounts, fmt.Errorf("%w: id-mapped mount of %s: %w", errNotHere, path, err)
		}
	}
	return mounts, nil
}

func openTree(path string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		err = &os.PathError{Op: "open_tree", Path: path, Err: err}
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
			err = fmt.Errorf("%w: %w", errNotHere, err)
		}
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func ownerOf(f *os.File) ([2]uint32, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return [2]uint32{}, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return [2]uint32{st.Uid, st.Gid}, nil
}

// idMap returns a user namespace in which owner is mapped to uid. A namespace
// needs a process to be born in: it is stopped at its exec, before it runs a
// single instruction, and killed.
func idMap(owner [2]uint32, uid int) (*os.File, error) {
	runtime.LockOSThread() // ptrace belongs to a thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{childName}
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Ptrace: true, Pdeathsig: syscall.SIGKILL, Cloneflags: unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: int(owner[0]), HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: int(owner[1]), HostID: uid, Size: 1}},
	}
	if err := cmd.Start(); err != nil {
		return nil, startError(err)
	}
	defer func() {
		cmd.Process.Kill() //nolint:errcheck // it is stopped: it cannot have ended
		cmd.Wait()         //nolint:errcheck // killed above
	}()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	if err != nil {
		return nil, fmt.Errorf("open the user namespace of an id map: %w", err)
	}
	return ns, nil
}
