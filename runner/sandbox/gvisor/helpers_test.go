package gvisor

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"underwrite/attest"
	"underwrite/runner/image"
	"underwrite/runner/sandbox"
)

func TestMain(m *testing.M) {
	MaybeExec()
	bareMain()
	var err error
	if python, err = filepath.EvalSymlinks("/usr/bin/python3"); err != nil {
		fmt.Fprintln(os.Stderr, "the sandbox's tests need python3:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// testParent keeps these tests' cgroups apart from those of a gateway and of
// other tests that run at the same time. A helper process uses its parent's.
var testParent = cmp.Or(os.Getenv(helperVariable), fmt.Sprintf("/underwrite-test-%d", os.Getpid()))

// python is the real path of the host's Python: an executable is named by it.
var python string

// A box is one job under preparation: tests change what they are about.
type box struct {
	t       testing.TB
	runtime *Runtime
	spec    sandbox.Spec
	dir     string
}

// newBox prepares a job with generous limits and an empty workspace.
func newBox(t testing.TB, argv ...string) *box {
	t.Helper()
	runtime, err := New(Options{CgroupParent: testParent})
	if err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, runtime: runtime, dir: realDir(t)}
	b.spec = sandbox.Spec{
		ID:        "test-" + randomName(),
		StateDir:  b.mkdir("state"),
		Workspace: b.mkdir("workspace"),
		Job:       attest.Job{Argv: argv, Cwd: ".", Executable: attest.Executable{Path: argv[0]}},
		Limits: attest.Limits{
			WallSeconds: 60, CPUSeconds: 60, MemoryBytes: 512 << 20, Processes: 64,
			WorkspaceBytes: 16 << 20, OutputBytes: 1 << 20,
		},
		CPUs:         2,
		BeforeLaunch: func() (time.Time, error) { return time.Now(), nil },
	}
	b.spec.RootFS, err = image.Host(b.mkdir("root"))
	b.must(err)
	b.must(sandbox.MountWorkspace(b.spec.Workspace, b.spec.Limits.WorkspaceBytes))
	t.Cleanup(func() { b.must(sandbox.UnmountWorkspace(b.spec.Workspace)) })
	b.spec.Executable = filepath.Join(b.dir, "executable")
	b.pin(argv[0])
	b.spec.Stdout, b.spec.Stderr = b.file("stdout"), b.file("stderr")
	t.Cleanup(b.checkNothingLeft) // runs before the workspace is unmounted
	return b
}

// checkNothingLeft looks for whatever a run could leave on the host.
func (b *box) checkNothingLeft() {
	b.t.Helper()
	for _, pid := range sandboxProcesses(b.t) {
		b.t.Errorf("process %d of a sandbox is left", pid)
	}
	for _, dir := range cgroupDirs(b.t) {
		b.t.Errorf("cgroup %s is left", dir)
	}
	entries, err := os.ReadDir(b.spec.StateDir)
	if err != nil || len(entries) > 0 {
		b.t.Errorf("state directory holds %v (%v)", entries, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	b.must(err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, b.dir) && !strings.Contains(line, " "+b.spec.Workspace+" ") {
			b.t.Errorf("mount is left: %s", line)
		}
	}
}

// sandboxProcesses lists the processes that run this very binary under a name
// of the sandbox.
func sandboxProcesses(t testing.TB) []int {
	t.Helper()
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		exe, err := os.Stat(dir + "/exe")
		if err == nil && os.SameFile(exe, own) && strings.HasPrefix(commandLine(pid), "runsc") {
			pids = append(pids, pid)
		}
	}
	return pids
}

func commandLine(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return string(b)
}

func cgroupDirs(t testing.TB) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup" + testParent, "/sys/fs/cgroup/*" + testParent} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, dirs...)
	}
	return all
}

// eventually waits until ok, which something else makes true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// inWorkspace is the host's path of a file in the workspace.
func (b *box) inWorkspace(name string) string { return filepath.Join(b.spec.Workspace, name) }

func randomName() string { return fmt.Sprintf("%08x", rand.Uint32()) }

func (b *box) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// mkdir makes a private directory, as the broker does.
func (b *box) mkdir(name string) string {
	b.t.Helper()
	dir := filepath.Join(b.dir, name)
	b.must(os.Mkdir(dir, 0o700))
	return dir
}

func (b *box) file(name string) *os.File {
	b.t.Helper()
	f, err := os.OpenFile(filepath.Join(b.dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	b.must(err)
	b.t.Cleanup(func() { f.Close() })
	return f
}

// pin copies the executable at path as the broker pins it.
func (b *box) pin(path string) {
	b.t.Helper()
	from, err := os.Open(path)
	b.must(err)
	defer from.Close()
	to, err := os.OpenFile(b.spec.Executable, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o555)
	b.must(err)
	_, err = io.Copy(to, from)
	b.must(err)
	b.must(to.Close())
}

// run runs the job, whatever comes of it.
func (b *box) run(ctx context.Context) (sandbox.Result, error) {
	b.t.Helper()
	return b.runtime.Run(ctx, b.spec)
}

// exits runs the job, which must exit without a fault, and returns the code.
func (b *box) exits() int {
	b.t.Helper()
	res, err := b.run(b.t.Context())
	if err != nil {
		b.t.Fatalf("Run: %v", err)
	}
	if !res.Exited || res.Fault != sandbox.FaultNone || !res.Teardown {
		b.t.Fatalf("Run = %+v\nstdout: %q\nstderr: %q", res, b.stdout(), b.stderr())
	}
	return res.ExitCode
}

// faults runs the job, which must end with the fault.
func (b *box) faults(kind sandbox.FaultKind) sandbox.Result {
	b.t.Helper()
	res, err := b.run(b.t.Context())
	if err != nil {
		b.t.Fatalf("Run: %v (%+v)", err, res)
	}
	if res.Fault != kind || !res.Teardown {
		b.t.Fatalf("Run = %+v, want fault %q\nstdout: %q\nstderr: %q", res, kind, b.stdout(), b.stderr())
	}
	return res
}

func (b *box) stdout() string { return b.content("stdout") }
func (b *box) stderr() string { return b.content("stderr") }

func (b *box) content(name string) string {
	b.t.Helper()
	content, err := os.ReadFile(filepath.Join(b.dir, name))
	b.must(err)
	return string(content)
}

// realDir is a temporary directory without symbolic links in its path.
func realDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
