package confine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Resource limits that no Spec changes.
const (
	maxOpenFiles = 1024
	// maxProcesses counts the tasks of a throw-away uid or a user namespace. Of
	// the caller's own uid, all its processes count, so it is higher there.
	maxProcesses      = 256
	maxProcessesOwner = 8192
)

// Landlock rights.
const (
	landFileRead  = ll.AccessFSReadFile
	landDirRead   = landFileRead | ll.AccessFSReadDir
	landFileWrite = landFileRead | ll.AccessFSWriteFile | ll.AccessFSTruncate
	landDirWrite  = landFileWrite | ll.AccessFSReadDir | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile |
		ll.AccessFSMakeDir | ll.AccessFSMakeReg | ll.AccessFSMakeSym | ll.AccessFSRefer
	minLandlockABI = 2 // the first with "refer", which git's renames need
	maxLandlockABI = 7 // what policy below asks for
)

// restrict takes every right from the calling thread that the tool shall not
// inherit. It reports the Landlock ABI in force, 0 for none.
func restrict(o *order) (abi int, err error) {
	rules, abi, err := landlockRules(o)
	if err != nil {
		return 0, err
	}
	if err := dropCapabilities(o); err != nil {
		return 0, err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("set no_new_privs: %w", err)
	}
	if rules >= 0 {
		defer unix.Close(rules)
		if err := ll.LandlockRestrictSelf(rules, 0); err != nil {
			return 0, fmt.Errorf("enforce Landlock: %w", err)
		}
	}
	return abi, filterCalls(o.Network)
}

// landlockRules makes the rule set, or none (-1) on a kernel without.
func landlockRules(o *order) (fd, abi int, err error) {
	abi, err = ll.LandlockGetABIVersion()
	if err != nil || abi < minLandlockABI {
		return -1, 0, nil //nolint:nilerr // reported as ABI 0; the caller decides whether the rest is enough
	}
	policy := landlock.V7
	if o.Network {
		policy.HandledAccessNet = 0
	}
	var rules []landlock.Rule
	add := func(dir, file landlock.AccessFSSet, paths ...string) error {
		for _, p := range paths {
			st, err := os.Stat(p)
			switch {
			case errors.Is(err, os.ErrNotExist):
				continue
			case err != nil:
				return err
			case st.IsDir():
				rules = append(rules, landlock.PathAccess(dir, p))
			default:
				rules = append(rules, landlock.PathAccess(file, p))
			}
		}
		return nil
	}
	files := systemFiles
	if o.Network {
		files = slices.Concat(files, networkFiles)
	}
	err = errors.Join(
		add(landDirRead|ll.AccessFSExecute, landFileRead, systemTrees...),
		add(landDirRead, landFileRead, files...),
		add(landDirRead, landFileWrite, devices...),
		add(landDirRead, landFileRead, o.ReadOnly...),
		add(landDirWrite, landFileWrite, o.ReadWrite...),
	)
	if err != nil {
		return -1, 0, fmt.Errorf("landlock rules: %w", err)
	}
	fd, _, err = policy.BestEffort().NewRulesetFD(rules...)
	if err != nil {
		return -1, 0, fmt.Errorf("landlock rules: %w", err)
	}
	return fd, min(abi, maxLandlockABI), nil
}

// dropCapabilities leaves the thread without any, for good: not even a
// set-user-ID root program or uid 0 of a user namespace gets one back.
func dropCapabilities(o *order) error {
	if o.Identity != CallerUID { // an ordinary caller has none, and may not drop what it lacks
		for c := uintptr(0); ; c++ {
			err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
			if errors.Is(err, unix.EINVAL) {
				break // beyond the kernel's last capability
			}
			if err != nil {
				return fmt.Errorf("drop capability %d: %w", c, err)
			}
		}
		const secure = 1<<0 | 1<<1 // SECBIT_NOROOT, locked: uid 0 means nothing
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, secure, 0, 0, 0); err != nil {
			return fmt.Errorf("set securebits: %w", err)
		}
	}
	if o.Identity == ThrowAwayUID {
		if err := becomeUID(o.UID); err != nil {
			return err
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("drop all capabilities: %w", err)
	}
	return nil
}

// becomeUID changes the calling thread alone: the C library's and Go's own
// functions change all.
func becomeUID(uid int) error {
	id := uintptr(uid)
	for _, call := range []struct {
		name       string
		number     uintptr
		a1, a2, a3 uintptr
	}{
		{"setgroups", unix.SYS_SETGROUPS, 0, 0, 0},
		{"setresgid", unix.SYS_SETRESGID, id, id, id},
		{"setresuid", unix.SYS_SETRESUID, id, id, id},
	} {
		if _, _, errno := unix.RawSyscall(call.number, call.a1, call.a2, call.a3); errno != 0 {
			return fmt.Errorf("%s: %w", call.name, errno)
		}
	}
	return nil
}

// limit sets the resource limits of the tool, not those of this process, which
// could not live with them.
func limit(pid int, o *order) error {
	processes := uint64(maxProcesses)
	if o.Identity == CallerUID {
		processes = maxProcessesOwner
	}
	for _, l := range []struct {
		name     string
		resource int
		value    uint64
	}{
		{"core file", unix.RLIMIT_CORE, 0},
		{"file size", unix.RLIMIT_FSIZE, uint64(o.MaxFileBytes)},
		{"open files", unix.RLIMIT_NOFILE, maxOpenFiles},
		{"processes", unix.RLIMIT_NPROC, processes},
		{"CPU time", unix.RLIMIT_CPU, o.CPUSeconds},
		{"address space", unix.RLIMIT_AS, uint64(o.MaxMemory)},
	} {
		var now unix.Rlimit
		if err := unix.Prlimit(pid, l.resource, nil, &now); err != nil {
			return fmt.Errorf("read limit of %s: %w", l.name, err)
		}
		value := min(l.value, now.Max)
		if err := unix.Prlimit(pid, l.resource, &unix.Rlimit{Cur: value, Max: value}, nil); err != nil {
			return fmt.Errorf("limit %s: %w", l.name, err)
		}
	}
	return nil
}

// Offsets in struct seccomp_data.
const (
	seccompNumber = 0
	seccompArch   = 4
	seccompArg0   = 16 // low half, on little-endian machines, which all supported ones are
)

const newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// filterCalls refuses, for this thread and the tool, calls that no Git command
// needs and that widen the kernel's attack surface; without network also every
// socket but AF_UNIX. Not ptrace, by which the tool is started: Landlock and the
// process namespace leave it nothing to trace but its own children.
func filterCalls(network bool) error {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("no call filter for %s", runtime.GOARCH)
	}
	f := callFilter(arch, network)
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	runtime.KeepAlive(f)
	return nil
}

func callFilter(arch uint32, network bool) []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// jump skips yes instructions if the loaded word compares so with k, else no.
	jump := func(test uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | test, K: k, Jt: yes, Jf: no}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	refuse := func(errno unix.Errno) unix.SockFilter { return answer(unix.SECCOMP_RET_ERRNO | uint32(errno)) }

	f := []unix.SockFilter{
		load(seccompArch), jump(unix.BPF_JEQ, arch, 1, 0), answer(unix.SECCOMP_RET_KILL_PROCESS),
		load(seccompNumber), jump(unix.BPF_JGE, 0x40000000, 0, 1), answer(unix.SECCOMP_RET_KILL_PROCESS), // x32 calls
	}
	for _, number := range []uint32{
		unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN,
		unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_USERFAULTFD,
		unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
		unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_MOVE_MOUNT,
	} {
		f = append(f, jump(unix.BPF_JEQ, number, 0, 1), refuse(unix.EPERM))
	}
	// clone3 hides its flags in memory: libraries fall back to clone.
	f = append(f, jump(unix.BPF_JEQ, unix.SYS_CLONE3, 0, 1), refuse(unix.ENOSYS))
	f = append(f, jump(unix.BPF_JEQ, unix.SYS_CLONE, 0, 4), load(seccompArg0),
		jump(unix.BPF_JSET, newNamespaces, 0, 1), refuse(unix.EPERM), answer(unix.SECCOMP_RET_ALLOW))
	if !network {
		f = append(f, jump(unix.BPF_JEQ, unix.SYS_SOCKET, 0, 4), load(seccompArg0),
			jump(unix.BPF_JEQ, unix.AF_UNIX, 1, 0), refuse(unix.EACCES), answer(unix.SECCOMP_RET_ALLOW))
	}
	return append(f, answer(unix.SECCOMP_RET_ALLOW))
}
