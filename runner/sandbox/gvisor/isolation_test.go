package gvisor

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// runProgram runs a Python program whose failed assertions are the test's.
func runProgram(t *testing.T, b *box) {
	t.Helper()
	if code := b.exits(); code != 0 {
		t.Errorf("exit code %d\n%s%s", code, b.stdout(), b.stderr())
	}
}

func TestNetworkDenied(t *testing.T) {
	const program = `
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
for family in range(64):
    if family == socket.AF_UNIX: continue
    for kind in (1, 2, 3, 5):
        for nr in (41, 53): # socket, socketpair
            fds = (ctypes.c_int * 2)()
            got = libc.syscall(nr, family, kind, 0, fds)
            assert got == -1, (family, kind, nr)
            assert ctypes.get_errno() == errno.EPERM, (family, kind, nr, ctypes.get_errno())
# The kernel looks at 32 bits of the family: the filter must not look at fewer bits that say AF_UNIX.
assert libc.syscall(41, ctypes.c_long(0x1_0000_0002), 1, 0) == -1
a, b = socket.socketpair(socket.AF_UNIX)
a.send(b"x"); assert b.recv(1) == b"x"
try: socket.create_connection(("127.0.0.1", 80))
except PermissionError: pass
else: raise AssertionError("loopback")
`
	runProgram(t, newBox(t, python, "-I", "-c", program))
}

// TestHostSocketsUnreachable offers Unix sockets of the host wherever the
// guest can look: in its workspace, in its root and by abstract name.
func TestHostSocketsUnreachable(t *testing.T) {
	const program = `
import socket, sys
for name in sys.argv[1:]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        s = socket.socket(socket.AF_UNIX, kind)
        try: s.connect(name.replace("@", "\0"))
        except OSError as e: print(name, e)
        else: raise AssertionError(name)
`
	abstract := "@underwrite-test-" + randomName()
	b := newBox(t, python, "-I", "-c", program, "socket", "/socket", abstract)
	for _, at := range []string{b.inWorkspace("socket"), filepath.Join(b.spec.RootFS.Path, "socket"), abstract} {
		l, err := net.Listen("unix", at)
		b.must(err)
		defer l.Close()
		if at[0] == '/' {
			b.must(os.Chmod(at, 0o777))
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				t.Errorf("the guest reached the host's socket %s", at)
				c.Close()
			}
		}()
	}
	runProgram(t, b)
}

// TestHostFilesHidden holds that of the host only /usr and the copies in the
// root are there, and no trace of the caller's environment.
func TestHostFilesHidden(t *testing.T) {
	const program = `
import os, sys
secret, own_dir = sys.argv[1], sys.argv[2]
assert sorted(os.listdir("/")) == sorted("bin dev etc lib lib64 proc sbin sys tmp usr workspace".split() + sys.argv[3:]), os.listdir("/")
for path in [own_dir, "/root", "/home", "/var", "/run", "/boot", "/mnt", "/etc/shadow", "/etc/hostname.d", "/etc/ssh", "/state", "/executable", "/proc/1/root/state"]:
    assert not os.path.exists(path), path
assert sorted(os.listdir("/etc")) == ["alternatives", "group", "hostname", "hosts", "ld.so.cache", "nsswitch.conf", "passwd"], os.listdir("/etc")
assert not os.path.exists("/proc/1/cwd/root")
pids = [p for p in os.listdir("/proc") if p.isdigit()]
assert len(pids) <= 3, pids
for p in pids:
    try: environ = open("/proc/%s/environ" % p).read()
    except OSError: continue
    assert secret[:8] not in environ
mounts = open("/proc/self/mountinfo").read()
assert own_dir not in mounts and "memory_test" not in mounts, mounts
`
	secret := "s3cr3t-" + randomName()
	t.Setenv("UNDERWRITE_TEST_SECRET", secret)
	b := newBox(t, python, "-I", "-c", program)
	argv := []string{"not-" + secret, b.dir}
	for _, name := range []string{"lib32", "libx32"} {
		if exists(filepath.Join(b.spec.RootFS.Path, name)) {
			argv = append(argv, name)
		}
	}
	b.spec.Job.Argv = append(b.spec.Job.Argv, argv...)
	runProgram(t, b)
}

// TestHostWritesDenied tries to write wherever the guest can name a place.
func TestHostWritesDenied(t *testing.T) {
	const program = `
import errno, os, sys
def refused(what, do):
    try: do()
    except OSError as e: assert e.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EBUSY, errno.EXDEV), (what, e)
    else: raise AssertionError(what)
for dir in ["/", "/usr", "/usr/bin", "/usr/local", "/etc", "/etc/alternatives", "/dev", "/proc", "/sys", "/sys/fs/cgroup", "/var", "/root"]:
    refused(dir, lambda: open(dir + "/underwrite-test", "x"))
    refused(dir, lambda: os.mkdir(dir + "/underwrite-test"))
for file in [os.path.realpath(sys.executable), "/usr/bin/true", "/etc/passwd", "/etc/ld.so.cache", "/bin/sh"]:
    refused(file, lambda: open(file, "r+b"))
    refused(file, lambda: os.remove(file))
    refused(file, lambda: os.chmod(file, 0o777))
    refused(file, lambda: os.link(file, "hard"))
    refused(file, lambda: os.utime(file))
refused("pids.max", lambda: open("/sys/fs/cgroup/pids.max", "w"))
for root, dirs, files in os.walk("/sys/fs/cgroup"):
    for name in files:
        refused(root + "/" + name, lambda: open(root + "/" + name, "w"))
refused("workspace", lambda: os.rename("/workspace", "/workspace2"))
open("/tmp/underwrite-test", "x").close()
open("/dev/shm/underwrite-test", "x").close()
refused("setuid", lambda: os.setuid(0))
refused("chown", lambda: (open("mine", "x").close(), os.chown("mine", 0, 0)))
`
	b := newBox(t, python, "-I", "-c", program)
	runProgram(t, b)
	for _, dir := range []string{"/", "/usr", "/usr/bin", "/usr/local", "/etc", "/tmp", "/dev/shm", b.spec.RootFS.Path} {
		if exists(filepath.Join(dir, "underwrite-test")) {
			t.Errorf("the guest wrote into the host's %s", dir)
		}
	}
}

// TestSyscallsDenied holds that the filter is in force for the job, and for
// what it executes.
func TestSyscallsDenied(t *testing.T) {
	const program = `
import ctypes, errno, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
denied = {"mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "ptrace": 101,
    "keyctl": 250, "add_key": 248, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425,
    "mknod": 133, "mknodat": 259, "process_vm_readv": 310, "open_by_handle_at": 304, "clock_settime": 227}
for name, nr in denied.items():
    assert libc.syscall(nr, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.EPERM, (name, ctypes.get_errno())
if len(sys.argv) < 2:
    subprocess.run([sys.executable, "-I", "-c", open("/proc/self/cmdline").read().split("\0")[3], "again"], check=True)
`
	runProgram(t, newBox(t, python, "-I", "-c", program))
}

// TestSpecialFilesStayInside holds that no special file reaches the tree that
// is measured after the run.
func TestSpecialFilesStayInside(t *testing.T) {
	const program = `
import os, socket, stat
s = socket.socket(socket.AF_UNIX)
try: s.bind("socket")
except OSError: pass
for make in (lambda: os.mkfifo("fifo"), lambda: os.mknod("null", stat.S_IFCHR | 0o666, os.makedev(1, 3))):
    try: make()
    except OSError: pass
open("plain", "x").close()
os.chmod("plain", 0o6755)
`
	b := newBox(t, python, "-I", "-c", program)
	runProgram(t, b)
	err := filepath.WalkDir(b.spec.Workspace, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !d.Type().IsRegular() {
			err = fmt.Errorf("%s is a special file: %v", path, d.Type())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if !exists(b.inWorkspace("plain")) {
		t.Error("the job's plain file is missing")
	}
}

// TestFirstProcessSafe holds that the job cannot disturb the guest's first
// process, whose end would end the sandbox.
func TestFirstProcessSafe(t *testing.T) {
	b := newBox(t, "/usr/bin/dash", "-c", "kill -KILL 1 && exit 1; kill -STOP 1 && exit 2; kill -KILL -1; exit 3")
	res, err := b.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// kill -1 hits the shell itself on some kernels: a signal fault is as good.
	if !(res.Exited && res.ExitCode == 3) && res.Fault != "signal" {
		t.Errorf("Run = %+v, stderr %s", res, b.stderr())
	}
	if strings.Contains(b.stderr(), "panic") {
		t.Error(b.stderr())
	}
}
