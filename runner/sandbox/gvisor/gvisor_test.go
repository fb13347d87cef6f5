package gvisor

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"underwrite/runner/sandbox"
)

func TestTrue(t *testing.T) {
	b := newBox(t, "/usr/bin/true")
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	b.spec.BeforeLaunch = func() (time.Time, error) { return now, nil }
	res, err := b.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !res.Exited || res.ExitCode != 0 || res.Fault != sandbox.FaultNone || !res.Teardown {
		t.Errorf("Run = %+v", res)
	}
	if !res.StartedAt.Equal(now) || res.Elapsed <= 0 || res.Usage.Wall != res.Elapsed || res.Usage.CPU <= 0 || res.Usage.MemoryBytes <= 0 || res.Usage.Processes != 1 {
		t.Errorf("measured %+v", res)
	}
}

func TestExitCodes(t *testing.T) {
	for _, want := range []int{0, 1, 126, 127, 137, 255} {
		t.Run(fmt.Sprint(want), func(t *testing.T) {
			b := newBox(t, "/usr/bin/dash", "-c", fmt.Sprintf("exit %d", want))
			if got := b.exits(); got != want {
				t.Errorf("exit code = %d, want %d", got, want)
			}
		})
	}
}

func TestSignal(t *testing.T) {
	b := newBox(t, "/usr/bin/dash", "-c", "kill -SEGV $$")
	res := b.faults(sandbox.FaultSignal)
	if res.Exited || res.Measured != int64(unix.SIGSEGV) {
		t.Errorf("Run = %+v, want signal %d", res, unix.SIGSEGV)
	}
}

// guestState is what a guest prints about itself.
type guestState struct {
	Cmdline, Environ, Cwd string
	Descriptors           []int
	UID, GID              []int
	Groups                []int
	Processors            int
	NoNewPrivs, CapEff    string
}

const printState = `
import json, os, re
def text(path):
    with open(path) as f: return f.read()
status = text("/proc/self/status")
def field(name):
    found = re.search(r"^%s:\s*(\S+)$" % name, status, re.M)
    return found.group(1) if found else ""
fds = []
for fd in range(64):
    try: os.fstat(fd); fds.append(fd)
    except OSError: pass
print(json.dumps({
    "Cmdline": text("/proc/self/cmdline"), "Environ": text("/proc/self/environ"), "Cwd": os.getcwd(),
    "Descriptors": fds, "UID": os.getresuid(), "GID": os.getresgid(), "Groups": os.getgroups(),
    "Processors": len(os.sched_getaffinity(0)), "NoNewPrivs": field("NoNewPrivs"), "CapEff": field("CapEff"),
}))
`

func TestGuestState(t *testing.T) {
	t.Setenv("UNDERWRITE_TEST_SECRET", "hunter2")
	b := newBox(t, python, "-I", "-c", printState, "", "a b\n\"c\"", "ü𝄞", "$HOME")
	b.must(os.MkdirAll(b.inWorkspace("sub/dir"), 0o755))
	b.spec.Job.Cwd = "sub/dir"
	b.spec.Job.Environment = map[string]string{"B": "", "A": "x=y z", "LC_ALL": "C.UTF-8", "Ü": "€"}
	b.spec.CPUs = 1
	if code := b.exits(); code != 0 {
		t.Fatalf("exit code %d: %s", code, b.stderr())
	}
	var got guestState
	b.must(json.Unmarshal([]byte(b.stdout()), &got))
	if want := strings.Join(b.spec.Job.Argv, "\x00") + "\x00"; got.Cmdline != want {
		t.Errorf("argv = %q, want %q", got.Cmdline, want)
	}
	if want := "A=x=y z\x00B=\x00LC_ALL=C.UTF-8\x00Ü=€\x00"; got.Environ != want {
		t.Errorf("environment = %q, want %q", got.Environ, want)
	}
	if want := sandbox.GuestWorkspace + "/sub/dir"; got.Cwd != want {
		t.Errorf("cwd = %q, want %q", got.Cwd, want)
	}
	if !slices.Equal(got.Descriptors, []int{1, 2}) {
		t.Errorf("open descriptors = %v, want stdout and stderr only", got.Descriptors)
	}
	id := []int{sandbox.GuestUID, sandbox.GuestUID, sandbox.GuestUID}
	if !slices.Equal(got.UID, id) || !slices.Equal(got.GID, id) || len(got.Groups) != 0 {
		t.Errorf("uid %v, gid %v, groups %v", got.UID, got.GID, got.Groups)
	}
	if got.Processors != 1 {
		t.Errorf("processors = %d, want 1", got.Processors)
	}
	if got.NoNewPrivs != "1" || strings.Trim(got.CapEff, "0") != "" {
		t.Errorf("NoNewPrivs %q, CapEff %q", got.NoNewPrivs, got.CapEff)
	}
}

// TestEnvironmentEmpty holds that nothing is added: no HOME, no PATH.
func TestEnvironmentEmpty(t *testing.T) {
	b := newBox(t, "/usr/bin/cat", "/proc/self/environ")
	if code := b.exits(); code != 0 || b.stdout() != "" {
		t.Errorf("exit code %d, environment %q, want none", code, b.stdout())
	}
}

// TestExecutablePinned holds that the pinned copy runs, whatever the root has
// at that path.
func TestExecutablePinned(t *testing.T) {
	b := newBox(t, "/usr/bin/true")
	b.must(os.Remove(b.spec.Executable))
	b.pin("/usr/bin/false")
	if code := b.exits(); code != 1 {
		t.Errorf("exit code = %d, want the pinned program's 1", code)
	}
}

// TestNotExecuted holds that a failed execve is no exit code.
func TestNotExecuted(t *testing.T) {
	b := newBox(t, "/usr/bin/true")
	b.must(os.Remove(b.spec.Executable))
	b.must(os.WriteFile(b.spec.Executable, []byte("#!/nonexistent/interpreter\n"), 0o555))
	res, err := b.run(t.Context())
	if !errors.Is(err, sandbox.ErrNotExecuted) || !errors.Is(err, unix.ENOENT) {
		t.Errorf("Run error = %v, want ErrNotExecuted and ENOENT", err)
	}
	if res.Exited || !res.Teardown {
		t.Errorf("Run = %+v", res)
	}
}

// TestOutputComplete fills the output limit to the last byte, on both streams
// at once, in pieces of every size.
func TestOutputComplete(t *testing.T) {
	const program = `
import os, threading
def fill(fd, total, seed):
    data = bytes((i * seed + i // 251) & 255 for i in range(total))
    at, size = 0, 1
    while at < total:
        n = os.write(fd, data[at:at+size])
        at, size = at + n, size * 3 % 99991
t = threading.Thread(target=fill, args=(1, 700001, 7))
t.start()
fill(2, 348575, 13)
t.join()
`
	pattern := func(total, seed int) string {
		b := make([]byte, total)
		for i := range b {
			b[i] = byte(i*seed + i/251)
		}
		return string(b)
	}
	b := newBox(t, python, "-I", "-c", program)
	b.spec.Limits.OutputBytes = 700001 + 348575
	if code := b.exits(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for name, want := range map[string]string{"stdout": pattern(700001, 7), "stderr": pattern(348575, 13)} {
		if got := b.content(name); got != want {
			t.Errorf("%s has %d bytes (sha256 %x), want %d (%x)", name, len(got), sha256.Sum256([]byte(got)), len(want), sha256.Sum256([]byte(want)))
		}
	}
}

// TestWorkspaceBelongsToJob holds that the job may change and remove what the
// caller put there, and that its changes are there afterwards.
func TestWorkspaceBelongsToJob(t *testing.T) {
	b := newBox(t, "/usr/bin/dash", "-ec", "rm dir/old; echo new > dir/new; chmod 700 dir; mv keep moved; ln -s moved link")
	b.must(os.Mkdir(b.inWorkspace("dir"), 0o755))
	b.must(os.WriteFile(b.inWorkspace("dir/old"), nil, 0o444))
	b.must(os.WriteFile(b.inWorkspace("keep"), []byte("kept"), 0o644))
	b.must(os.Symlink("/etc/passwd", b.inWorkspace("outside"))) // must not be followed
	if code := b.exits(); code != 0 {
		t.Fatalf("exit code %d: %s", code, b.stderr())
	}
	if content, err := os.ReadFile(b.inWorkspace("dir/new")); string(content) != "new\n" {
		t.Errorf("dir/new = %q, %v", content, err)
	}
	if content, err := os.ReadFile(b.inWorkspace("link")); string(content) != "kept" {
		t.Errorf("link = %q, %v", content, err)
	}
	if exists(b.inWorkspace("dir/old")) {
		t.Error("dir/old is still there")
	}
	var st unix.Stat_t
	b.must(unix.Lstat("/etc/passwd", &st))
	if st.Uid != 0 {
		t.Error("a link in the workspace was followed to /etc/passwd")
	}
}

// TestFacilities holds that what ordinary programs expect is there.
func TestFacilities(t *testing.T) {
	const program = `
import multiprocessing, os, pwd, subprocess, tempfile, time
assert pwd.getpwuid(os.getuid()).pw_name == "guest"
with tempfile.NamedTemporaryFile(dir="/tmp") as f: f.write(b"x" * 100000)
with open("/dev/null", "w") as f: f.write("x")
assert len(open("/dev/urandom", "rb").read(8)) == 8
def work(queue): queue.put(os.getpid())
queue = multiprocessing.Queue()
child = multiprocessing.Process(target=work, args=(queue,))
child.start(); queue.get(); child.join()
assert subprocess.run(["/bin/sh", "-c", "ls -l /dev/fd/ >/dev/null && exit 3"], stdin=subprocess.DEVNULL).returncode == 3
assert abs(time.time() - os.stat("/tmp").st_ctime) < 3600
`
	if b := newBox(t, python, "-I", "-c", program); b.exits() != 0 {
		t.Error(b.stderr())
	}
}

func TestProgress(t *testing.T) {
	b := newBox(t, "/usr/bin/dash", "-c", "while [ ! -e stop ]; do :; done")
	var seen []sandbox.Usage
	b.spec.Progress = func(u sandbox.Usage) {
		seen = append(seen, u)
		if u.CPU > 100*time.Millisecond {
			b.must(os.WriteFile(b.inWorkspace("stop"), nil, 0o644))
		}
	}
	if code := b.exits(); code != 0 {
		t.Fatalf("exit code %d: %s", code, b.stderr())
	}
	if !slices.IsSortedFunc(seen, func(a, b sandbox.Usage) int { return int(a.CPU - b.CPU) }) || seen[len(seen)-1].CPU == 0 {
		t.Errorf("usage went backwards or was not measured: %+v", seen)
	}
}

// TestVersion holds that the version in the executor's identity is the one
// that is linked in.
func TestVersion(t *testing.T) {
	mod, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mod), "gvisor.dev/gvisor "+version+"\n") {
		t.Errorf("go.mod does not name gVisor %s", version)
	}
	if v := (&Runtime{}).Version(); !strings.Contains(v, version) {
		t.Errorf("Version = %q, want it to name %s", v, version)
	}
}
