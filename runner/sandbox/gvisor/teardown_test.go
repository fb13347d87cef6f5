package gvisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"underwrite/runner/sandbox"
)

// TestDaemonKilled starts processes that outlive the job, in sessions of their
// own and with its output still open.
func TestDaemonKilled(t *testing.T) {
	const program = `
import os, signal, time
ready, tell = os.pipe()
for _ in range(3):
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        for s in range(1, 32):
            try: signal.signal(s, signal.SIG_IGN)
            except OSError: pass
        os.write(1, b"daemon\n")
        os.write(tell, b"x")
        time.sleep(1000)
    os.waitpid(child, 0)
for _ in range(3): os.read(ready, 1)
os._exit(7)
`
	b := newBox(t, python, "-I", "-c", program)
	if code := b.exits(); code != 7 {
		t.Errorf("exit code %d: %s", code, b.stderr())
	}
	if got := strings.Count(b.stdout(), "daemon\n"); got != 3 {
		t.Errorf("%d daemons wrote, want 3", got)
	}
}

// TestConcurrent runs several jobs with one runtime: they do not meet.
func TestConcurrent(t *testing.T) {
	var boxes []*box
	var all sync.WaitGroup
	for i := range 3 {
		b := newBox(t, "/usr/bin/dash", "-c", fmt.Sprintf("echo %d > mine; cat mine; ls; exit %d", i, i))
		boxes = append(boxes, b)
		all.Go(func() {
			res, err := b.runtime.Run(t.Context(), b.spec)
			if err != nil || !res.Exited || res.ExitCode != i || !res.Teardown {
				t.Errorf("job %d: %+v, %v", i, res, err)
			}
		})
	}
	all.Wait()
	for i, b := range boxes {
		if want := fmt.Sprintf("%d\nmine\n", i); b.stdout() != want {
			t.Errorf("job %d wrote %q, want %q", i, b.stdout(), want)
		}
	}
}

// running is a job that says in its workspace that it runs, and never ends.
func running(t *testing.T) *box {
	return newBox(t, "/usr/bin/dash", "-c", "echo started; echo > running; sleep 1000")
}

// during runs the job and calls act once it runs.
func (b *box) during(ctx context.Context, act func()) (sandbox.Result, error) {
	b.t.Helper()
	type outcome struct {
		res sandbox.Result
		err error
	}
	c := make(chan outcome, 1)
	go func() {
		res, err := b.runtime.Run(ctx, b.spec)
		c <- outcome{res, err}
	}()
	eventually(b.t, "the job runs", func() bool { return exists(b.inWorkspace("running")) || len(c) > 0 })
	act()
	o := <-c
	return o.res, o.err
}

func TestCancel(t *testing.T) {
	b := running(t)
	ctx, cancel := context.WithCancel(t.Context())
	res, err := b.during(ctx, cancel)
	if err != nil || res.Fault != sandbox.FaultCancelled || res.Exited || !res.Teardown || res.StartedAt.IsZero() {
		t.Errorf("Run = %+v, %v", res, err)
	}
	if b.stdout() != "started\n" {
		t.Errorf("output before the end is lost: %q", b.stdout())
	}
}

func TestCancelBeforeStart(t *testing.T) {
	b := running(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res, err := b.run(ctx)
	if err != nil || res.Fault != sandbox.FaultCancelled || !res.Teardown {
		t.Errorf("Run = %+v, %v", res, err)
	}
}

func TestBeforeLaunchRefuses(t *testing.T) {
	b := running(t)
	called := 0
	b.spec.BeforeLaunch = func() (time.Time, error) {
		called++
		if len(sandboxProcesses(t)) < 3 {
			t.Error("the sandbox does not stand")
		}
		return time.Now(), errors.New("the capability has expired")
	}
	res := b.faults(sandbox.FaultExpired)
	if called != 1 || res.Exited || !res.StartedAt.IsZero() || res.Elapsed != 0 {
		t.Errorf("called %d times, Run = %+v", called, res)
	}
	if exists(b.inWorkspace("running")) || b.stdout() != "" {
		t.Error("the job ran")
	}
}

// TestProcessKilled kills one of the sandbox's processes in mid-run: that is
// never a result, and everything else ends too.
func TestProcessKilled(t *testing.T) {
	for _, name := range []string{supervisorName, "runsc-sandbox", "runsc-gofer"} {
		t.Run(name, func(t *testing.T) {
			b := running(t)
			res, err := b.during(t.Context(), func() {
				for _, pid := range sandboxProcesses(t) {
					if strings.HasPrefix(commandLine(pid), name) {
						b.must(unix.Kill(pid, unix.SIGKILL))
					}
				}
			})
			if err == nil || res.Exited || !res.Teardown {
				t.Errorf("Run = %+v, %v, want an error and a proven teardown", res, err)
			}
		})
	}
}

// TestStoreFails holds that output which could not be stored makes an error,
// never a result.
func TestStoreFails(t *testing.T) {
	b := newBox(t, "/usr/bin/echo", "lost")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	b.must(err)
	defer full.Close()
	b.spec.Stdout = full
	if res, err := b.run(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Run = %+v, %v, want ENOSPC", res, err)
	}
}

// helperVariable makes a test process the caller that TestCallerKilled kills,
// and names the cgroup that it uses.
const helperVariable = "UNDERWRITE_TEST_HELPER"

// TestHelperRun is the caller that TestCallerKilled kills.
func TestHelperRun(t *testing.T) {
	if os.Getenv(helperVariable) == "" {
		return // only does something as a child of TestCallerKilled
	}
	b := running(t)
	_, err := b.during(t.Context(), func() {
		fmt.Println("workspace " + b.spec.Workspace)
	})
	t.Fatalf("survived: %v", err)
}

// TestCallerKilled kills the process that called Run: the guest dies with it
// at once, and Sweep removes the rest. Before, a sweep of another process
// touches nothing.
func TestCallerKilled(t *testing.T) {
	b := newBox(t, "/usr/bin/true") // its cleanup checks that nothing is left
	helper := exec.Command("/proc/self/exe", "-test.run=^TestHelperRun$", "-test.v")
	helper.Env = append(os.Environ(), helperVariable+"="+testParent, "TMPDIR="+b.dir)
	stdout, err := helper.StdoutPipe()
	b.must(err)
	b.must(helper.Start())
	defer helper.Wait()
	defer helper.Process.Kill()
	workspace := awaitLine(t, stdout, "workspace ")

	if removed, err := sandbox.Sweep(testParent); err != nil {
		t.Errorf("Sweep = %v, %v", removed, err)
	}
	if len(cgroupDirs(t)) == 0 || len(sandboxProcesses(t)) == 0 || !exists(workspace+"/running") {
		t.Fatal("Sweep touched a living job")
	}
	b.must(helper.Process.Kill())
	_ = helper.Wait()
	eventually(t, "the sandbox's processes die with the caller", func() bool { return len(sandboxProcesses(t)) == 0 })

	removed, err := sandbox.Sweep(testParent)
	if err != nil || len(cgroupDirs(t)) > 0 {
		t.Errorf("Sweep = %v, %v, cgroups left: %v", removed, err, cgroupDirs(t))
	}
	// Another process's sweep may have come first; the mount is gone in any case.
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	b.must(err)
	if strings.Contains(string(mounts), " "+workspace+" ") {
		t.Errorf("Sweep = %v, but %s is still mounted", removed, workspace)
	}
}

func awaitLine(t *testing.T, r interface{ Read([]byte) (int, error) }, prefix string) string {
	t.Helper()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
			return rest
		}
	}
	t.Fatalf("no line %q: %v", prefix, lines.Err())
	return ""
}
