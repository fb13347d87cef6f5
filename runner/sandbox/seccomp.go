package sandbox

import specs "github.com/opencontainers/runtime-spec/specs-go"

// afUnix is the one address family a guest may use: sockets between its own
// processes. Even without any network device, gVisor would otherwise give it a
// loopback interface.
const afUnix = 1

// deniedSyscalls are refused to the guest beside sockets. Each one either
// reaches beyond a process (mounts, namespaces, tracing, keys, kernel code) or
// makes a file that no tree can express. clone3 is not filtered: the runtime
// cannot answer ENOSYS, which is what makes the C library fall back to clone.
var deniedSyscalls = []string{
	"mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
	"unshare", "setns",
	"ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd",
	"keyctl", "add_key", "request_key",
	"bpf", "perf_event_open", "userfaultfd", "fanotify_init",
	"io_uring_setup", "io_uring_enter", "io_uring_register",
	"mknod", "mknodat",
	"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl",
	"settimeofday", "clock_settime", "adjtimex", "clock_adjtime",
	"open_by_handle_at", "name_to_handle_at",
}

// guestSeccomp is the guest's system call filter. gVisor itself is the
// boundary to the host; the filter takes away what gVisor would emulate.
func guestSeccomp() *specs.LinuxSeccomp {
	return &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		Architectures: []specs.Arch{specs.ArchX86_64},
		Syscalls: []specs.LinuxSyscall{
			{
				Names:  []string{"socket", "socketpair"},
				Action: specs.ActErrno,
				Args:   []specs.LinuxSeccompArg{{Index: 0, Value: afUnix, Op: specs.OpNotEqual}},
			},
			{Names: deniedSyscalls, Action: specs.ActErrno},
		},
	}
}
