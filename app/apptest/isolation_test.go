package apptest_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"underwrite/attest"
	"underwrite/runner/wire"
)

func reach(args ...string) guest {
	return guest{args: append([]string{"-I", "guests/reach.py"}, args...)}
}

func end(predict int64, args ...string) guest {
	return guest{args: append([]string{"-I", "guests/end.py"}, args...), predict: predict}
}

// marker is the name of files that must not appear on the host.
const marker = "underwrite-guest-wrote-this"

// hostAbstract is a host's socket without a file.
var hostAbstract = fmt.Sprintf("@underwrite-test-%d", os.Getpid())

// denials are guests that reach for something and exit with 0 if they got
// nothing of it.
var denials = map[string]guest{
	"network-inet": reach("inet"), "network-inet6": reach("inet6"), "network-loopback": reach("loopback"), "network-udp": reach("udp"),
	"network-netlink": reach("netlink"), "network-packet": reach("packet"), "network-dns": reach("dns"), "network-interfaces": reach("interfaces"),

	"host-socket": reach("unix", "DIR/host.sock", "DIR/gw.sock", hostAbstract),
	"host-reads":  reach("host_reads", "-"+secret, "DIR/key.pem", "DIR/gateway.yaml", "DIR/state", "DIR/outbox", "DIR"),
	"host-writes": reach("host_writes", marker, "DIR", "DIR/state", "DIR/outbox"),
	"host-devices": {program: "sh", args: []string{"-c", `command -v mknod && command -v mount && command -v unshare &&
! mknod /tmp/null c 1 3 && ! mount -t tmpfs none /tmp && ! unshare -r true`}},
	"host-identity": {program: "sh", args: []string{"-c", `! kill -9 1 && test "$(id -u)" = 1000 && command -v su && ! su -c true </dev/null`}},
}

// endings are guests that end by themselves: the receipt has their exit code.
var endings = map[string]guest{
	"exit-0":   {program: "sh", args: []string{"-c", "exit 0"}},
	"exit-1":   {program: "sh", args: []string{"-c", "exit 1"}, predict: 1},
	"exit-137": {program: "sh", args: []string{"-c", "exit 137"}, predict: 137},
	"exit-255": {program: "sh", args: []string{"-c", "exit 255"}, predict: 255},
	// A shell turns the signal of a child into an exit code of its own.
	"exit-child-killed": {program: "sh", args: []string{"-c", "sh -c 'kill -9 $$'"}, predict: 137},

	"daemon-child": end(7, "daemon", "child"), "daemon-setsid": end(7, "daemon", "setsid"),
	"daemon-double-fork": end(7, "daemon", "double"), "daemon-pipes": end(7, "daemon", "pipes"),
}

// faultyEndings get no receipt. path is that of an output that version 1 cannot
// express.
var faultyEndings = map[string]struct {
	guest
	kind, path string
	measured   int64
}{
	"signal-kill": {end(0, "by_signal", "9"), wire.FaultSignal, "", 9},
	"signal-segv": {end(0, "by_signal", "11"), wire.FaultSignal, "", 11},
	"signal-term": {end(0, "by_signal", "15"), wire.FaultSignal, "", 15},
	"signal-abrt": {end(0, "by_signal", "6"), wire.FaultSignal, "", 6},

	"output-empty-directory": {end(0, "empty_directory"), wire.FaultUnsupportedOutput, "made/empty", 0},
	"output-hard-link":       {end(0, "hard_link"), wire.FaultUnsupportedOutput, "README.md", 0},
	"output-hole":            {end(0, "hole"), wire.FaultUnsupportedOutput, "sparse", 0},
	"output-nothing":         {end(0, "nothing"), wire.FaultUnsupportedOutput, "", 0},
	"output-git-metadata":    {end(0, "git_metadata"), wire.FaultUnsupportedOutput, ".git", 0},
	"output-4097-byte-path":  {end(0, "long_path", "4097"), wire.FaultUnsupportedOutput, longPath(4097), 0},

	"cwd-missing":      {withCwd("missing"), wire.FaultRefusedInput, "missing", 0},
	"cwd-link":         {withCwd("linked"), wire.FaultRefusedInput, "linked", 0},
	"cwd-through-link": {withCwd("linked/sub"), wire.FaultRefusedInput, "linked", 0},
	"cwd-file":         {withCwd("README.md"), wire.FaultRefusedInput, "README.md", 0},
}

func withCwd(cwd string) guest {
	return guest{program: "sh", args: []string{"-c", "true"}, cwd: cwd}
}

// longPath is the path that end.py makes.
func longPath(length int) string {
	var b strings.Builder
	for length > 255 {
		n := min(255, length-2)
		b.WriteString(strings.Repeat("d", n) + "/")
		length -= n + 1
	}
	return b.String() + strings.Repeat("f", length)
}

// exact is a guest with arguments and an environment that a shell or a runtime
// would change.
var exact = guest{
	args: []string{"-I", "guests/../guests/end.py", "state", "", "a b", "\"'$HOME`\\", "new\nline", "ü𝄞", "-"},
	env: map[string]string{
		"B": "", "A": "x=y z", "LC_ALL": "C.UTF-8", "Z9": "ü𝄞", "_": "under", "a": "lower", "NEW": "a\nb", "AA": "1", "PATH": "/nowhere",
		"M1": "1", "M2": "2", "M3": "3", "M4": "4", "M5": "5", "M6": "6", "M7": "7", "M8": "8", "M9": "9",
	},
}

// TestIsolation has one gateway run guests that reach out of the sandbox, that
// end in every way, and that leave what they should not.
func TestIsolation(t *testing.T) {
	guests := map[string]guest{
		"exact": exact, "ignoring": end(0, "ignoring"), "ignoring-wall": end(0, "ignoring"),
		"setuid": end(0, "setuid"), "longest-path": end(0, "long_path", "4096"),
	}
	guests["exact"] = inDirectory(exact, ".")
	guests["exact-below"] = inDirectory(exact, "guests")
	guests["empty-environment"] = guest{program: "sh", args: []string{"-c", "tr '\\0' '\\n' </proc/self/environ"}, env: map[string]string{}}
	wall := guests["ignoring-wall"]
	wall.limits = attest.Limits{WallSeconds: 2}
	guests["ignoring-wall"] = wall
	maps.Copy(guests, denials)
	maps.Copy(guests, endings)
	for name, f := range faultyEndings {
		guests[name] = f.guest
	}
	r := newResident(t, guests)
	r.listen(t)
	for _, name := range slices.Sorted(maps.Keys(denials)) {
		t.Run(name, func(t *testing.T) { t.Parallel(); r.passes(t, name, nil) })
	}
	for _, name := range slices.Sorted(maps.Keys(endings)) {
		t.Run(name, func(t *testing.T) { t.Parallel(); r.testEnding(t, name) })
	}
	for name, f := range faultyEndings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := r.faulted(t, name, f.kind)
			if d.Fault.Path != f.path || d.Fault.Measured != f.measured {
				t.Errorf("fault = %+v, want %q, %d", d.Fault, f.path, f.measured)
			}
			if refused := f.kind == wire.FaultRefusedInput; refused != (d.Usage == wire.Usage{}) {
				t.Errorf("a job that was refused must not run, another must: %+v", d.Usage)
			}
		})
	}
	for name, test := range map[string]func(*testing.T){
		"exact": r.testExact("exact"), "exact-below": r.testExact("exact-below"), "empty-environment": r.testEmptyEnvironment,
		"ignoring": r.testIgnoring, "ignoring-wall": func(t *testing.T) { r.faulted(t, "ignoring-wall", wire.FaultWall) },
		"setuid": r.testSetuid, "longest-path": func(t *testing.T) { r.passes(t, "longest-path", nil) },
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t) })
	}
	t.Cleanup(func() { checkUnmarked(t, r.dir) })
}

func inDirectory(g guest, cwd string) guest {
	g.cwd = cwd
	if cwd == "guests" {
		g.args = slices.Clone(g.args)
		g.args[1] = "end.py"
	}
	return g
}

// listen offers sockets of the host, which nobody must connect to.
func (r *resident) listen(t *testing.T) {
	t.Helper()
	for _, at := range []string{r.path("host.sock"), hostAbstract} {
		l, err := net.Listen("unix", at)
		must(t, err)
		t.Cleanup(func() { l.Close() })
		if at == hostAbstract {
			c, err := net.Dial("unix", at) // for others on the host it is there
			must(t, err)
			c.Close()
			c, err = l.Accept()
			must(t, err)
			c.Close()
		} else {
			must(t, os.Chmod(at, 0o777))
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				t.Errorf("a guest connected to %s", at)
				c.Close()
			}
		}()
	}
}

// checkUnmarked requires that no guest wrote where the host would see it.
func checkUnmarked(t *testing.T, dir string) {
	t.Helper()
	for _, dir := range []string{"/", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/etc", "/tmp", "/dev", "/dev/shm", "/var", "/root", "/run", dir} {
		if _, err := os.Lstat(filepath.Join(dir, marker)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a guest wrote into the host's %s: %v", dir, err)
		}
	}
}

// testEnding requires a receipt with the exit code, and that nothing of the job
// is left although descendants of it did not end.
func (r *resident) testEnding(t *testing.T, name string) {
	e := r.passes(t, name, nil)
	if e.receipt.ExitCode != endings[name].predict {
		t.Errorf("exit code %d", e.receipt.ExitCode)
	}
	if name == "daemon-pipes" && e.stdout != strings.Repeat("daemon\n", 3) {
		t.Errorf("stdout = %q", e.stdout)
	}
	request, err := attest.ParseRequest(e.raw)
	must(t, err)
	key, err := request.ReplayKey()
	must(t, err)
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		left, err := filepath.Glob(root + r.cgroup + "/*" + key[:40] + "*")
		if err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}

// testExact compares what the guest saw with what its profile says, byte by byte.
func (r *resident) testExact(name string) func(*testing.T) {
	return func(t *testing.T) {
		p := r.profiles[name]
		argv := strings.Join(p.Job.Argv, "\x00") + "\x00"
		var environ strings.Builder
		for _, key := range slices.Sorted(maps.Keys(p.Job.Environment)) {
			environ.WriteString(key + "=" + p.Job.Environment[key] + "\x00")
		}
		if strings.Contains(environ.String(), "HOME=") {
			t.Fatal("the test sets HOME")
		}
		cwd := filepath.Join("/workspace", p.Job.Cwd)
		// Standard input is closed: the first descriptors are output and error.
		want := fmt.Sprintf("%s %s %s 1 2\n", hex.EncodeToString([]byte(argv)), hex.EncodeToString([]byte(environ.String())), cwd)
		if e := r.passes(t, name, nil); e.stdout != want {
			t.Errorf("the guest saw\n%swant\n%s", e.stdout, want)
		}
	}
}

// testEmptyEnvironment: the shell itself adds nothing to its own file.
func (r *resident) testEmptyEnvironment(t *testing.T) {
	if e := r.passes(t, "empty-environment", nil); strings.Contains(e.stdout, "HOME") || strings.Contains(e.stdout, secret) {
		t.Errorf("environment = %q", e.stdout)
	}
}

// testIgnoring stops a job that ignores every signal.
func (r *resident) testIgnoring(t *testing.T) {
	p := r.profiles["ignoring"]
	raw, err := attest.Request{
		Version: 1, ProfileName: "ignoring", Profile: p, SessionID: attest.NewUUID(), Challenge: attest.NewChallenge(),
		Target: r.frozen.Target, Action: attest.Action{Seq: r.number.Add(1), Beat: 1, Attempt: 1},
	}.Canonical()
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	_, err = r.client.Execute(ctx, raw, r.frozen.BundlePath, func(e wire.Event) {
		if len(e.Stdout) > 0 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("Execute = %v", err)
	}
	again, err := r.client.Execute(t.Context(), raw, r.frozen.BundlePath, nil)
	for err == nil && again.Status == wire.Retry { // the stopped one still tears down
		time.Sleep(50 * time.Millisecond)
		again, err = r.client.Execute(t.Context(), raw, r.frozen.BundlePath, nil)
	}
	if err != nil || again.Status != wire.Failed || !strings.Contains(again.Reason, "cancelled") {
		t.Errorf("the stopped request: %+v, %v", again, err)
	}
	if d := r.diagnostic(t, raw); d.Fault.Kind != wire.FaultCancelled {
		t.Errorf("signed is %+v", d.Fault)
	}
	r.works(t)
}

// testSetuid: a tree knows whether a file is executable, and no more. The other
// bits of its mode never leave the sandbox.
func (r *resident) testSetuid(t *testing.T) {
	e := r.passes(t, "setuid", nil)
	dir := t.TempDir()
	must(t, git(dir, "init", "--quiet", "--object-format=sha256"))
	must(t, git(dir, "fetch", "--quiet", filepath.Join(e.outcome.EvidenceDir, wire.OutputFile), "refs/underwrite/output"))
	cmd := exec.Command("git", "ls-tree", "FETCH_HEAD", "setuid", "setgid", "sticky")
	cmd.Dir = dir
	out, err := cmd.Output()
	must(t, err)
	var modes []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		modes = append(modes, fields[3]+" "+fields[0])
	}
	if want := []string{"setgid 100755", "setuid 100755", "sticky 100644"}; !slices.Equal(modes, want) {
		t.Errorf("modes %q, want %q", modes, want)
	}
}
