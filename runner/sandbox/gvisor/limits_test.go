package gvisor

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"underwrite/runner/sandbox"
)

func TestWallLimit(t *testing.T) {
	b := newBox(t, "/usr/bin/sleep", "1000")
	b.spec.Limits.WallSeconds = 1
	res := b.faults(sandbox.FaultWall)
	if res.Measured < 1 || res.Limit != 1 || res.Exited || res.Elapsed < time.Second || res.StartedAt.IsZero() {
		t.Errorf("Run = %+v", res)
	}
}

func TestCPULimit(t *testing.T) {
	programs := map[string]string{
		"one process":       "while :; do :; done",
		"several processes": "(while :; do :; done) & (while :; do :; done) & wait",
		"in system calls":   "while :; do echo > /dev/null; done",
	}
	for name, program := range programs {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, "/usr/bin/dash", "-c", program)
			b.spec.Limits.CPUSeconds = 1
			res := b.faults(sandbox.FaultCPU)
			if res.Measured < 2 || res.Limit != 1 || res.Usage.CPU <= time.Second {
				t.Errorf("Run = %+v", res)
			}
		})
	}
}

func TestMemoryLimit(t *testing.T) {
	programs := map[string]string{
		"one process": "b = bytearray(10**9)\nfor i in range(0, len(b), 4096): b[i] = 1",
		"several processes": `
import os, time
for _ in range(8):
    if os.fork() == 0:
        b = bytearray(60 * 10**6)
        for i in range(0, len(b), 4096): b[i] = 1
        time.sleep(1000)
os.wait()
`,
		"caught": `
import subprocess, sys
subprocess.run([sys.executable, "-c", "b = bytearray(10**9)\nfor i in range(0, len(b), 4096): b[i] = 1"])
sys.exit(0)
`,
	}
	for name, program := range programs {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, python, "-I", "-c", program)
			b.spec.Limits.MemoryBytes = 256 << 20
			res := b.faults(sandbox.FaultMemory)
			if res.Measured < res.Limit || res.Limit != 256<<20 {
				t.Errorf("Run = %+v", res)
			}
		})
	}
}

// TestTemporaryFilesBounded holds that /tmp and /dev/shm cannot hold more than
// their share of the memory limit.
func TestTemporaryFilesBounded(t *testing.T) {
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		t.Run(dir, func(t *testing.T) {
			b := newBox(t, "/usr/bin/dd", "if=/dev/zero", "bs=1M", "count=400", "of="+dir+"/file")
			if code := b.exits(); code == 0 || !strings.Contains(b.stderr(), "No space left") {
				t.Errorf("exit code %d, stderr %q, want ENOSPC", code, b.stderr())
			}
		})
	}
}

func TestProcessesLimit(t *testing.T) {
	const threads = `
import sys, threading
go = threading.Event()
ts = [threading.Thread(target=go.wait) for _ in range(int(sys.argv[1]))]
for t in ts: t.start()
go.set()
for t in ts: t.join()
`
	t.Run("exactly at the limit", func(t *testing.T) {
		b := newBox(t, python, "-I", "-c", threads, "7")
		b.spec.Limits.Processes = 8
		res, err := b.run(t.Context())
		if err != nil || res.Fault != sandbox.FaultNone || res.ExitCode != 0 || res.Usage.Processes != 8 {
			t.Errorf("Run = %+v, %v\n%s", res, err, b.stderr())
		}
	})
	t.Run("one thread more", func(t *testing.T) {
		b := newBox(t, python, "-I", "-c", threads, "8")
		b.spec.Limits.Processes = 8
		if res := b.faults(sandbox.FaultProcesses); res.Limit != 8 || res.Measured != 8 {
			t.Errorf("Run = %+v", res)
		}
	})
	t.Run("a limit of one", func(t *testing.T) {
		b := newBox(t, "/usr/bin/dash", "-c", "true; exit 5")
		b.spec.Limits.Processes = 1
		if code := b.exits(); code != 5 {
			t.Errorf("exit code %d", code)
		}
	})
	t.Run("fork bomb", func(t *testing.T) {
		b := newBox(t, "/usr/bin/dash", "-c", "bomb() { bomb | bomb & }; bomb; sleep 1000")
		b.spec.Limits.Processes = 32
		if res := b.faults(sandbox.FaultProcesses); res.Limit != 32 || res.Measured > 32 {
			t.Errorf("Run = %+v", res)
		}
	})
	t.Run("hidden by an exit code", func(t *testing.T) {
		b := newBox(t, python, "-I", "-c", "import os\ntry:\n  while os.fork(): pass\n  os.pause()\nexcept OSError: os._exit(0)")
		b.spec.Limits.Processes = 4
		b.faults(sandbox.FaultProcesses)
	})
}

func TestWorkspaceLimit(t *testing.T) {
	const fill = "import errno\ntry:\n  with open('big', 'wb', buffering=0) as f:\n    while True: f.write(bytes(65536))\nexcept OSError as e: assert e.errno == errno.ENOSPC\n"
	t.Run("full at the end", func(t *testing.T) {
		b := newBox(t, python, "-I", "-c", fill)
		res := b.faults(sandbox.FaultWorkspace)
		if res.Measured != 16<<20 || res.Limit != 16<<20 {
			t.Errorf("Run = %+v", res)
		}
	})
	t.Run("refused and cleaned up", func(t *testing.T) {
		if b := newBox(t, python, "-I", "-c", fill+"import os\nos.remove('big')"); b.exits() != 0 {
			t.Error(b.stderr())
		}
	})
	t.Run("too many files", func(t *testing.T) {
		b := newBox(t, python, "-I", "-c", "try:\n  for i in range(10**6): open(str(i), 'x').close()\nexcept OSError: pass")
		b.spec.Limits.WallSeconds, b.spec.Limits.CPUSeconds = 600, 600 // it is about files
		if res := b.faults(sandbox.FaultFiles); res.Measured != res.Limit || res.Limit != 1<<14 {
			t.Errorf("Run = %+v", res)
		}
	})
}

func TestOutputLimit(t *testing.T) {
	t.Run("one byte more", func(t *testing.T) {
		b := newBox(t, "/usr/bin/dash", "-c", "printf 12345; printf 678901 >&2")
		b.spec.Limits.OutputBytes = 10
		res := b.faults(sandbox.FaultOutput)
		if res.Measured != 11 || res.Limit != 10 || res.Elapsed <= 0 {
			t.Errorf("Run = %+v", res)
		}
		if kept := len(b.stdout()) + len(b.stderr()); kept != 10 {
			t.Errorf("%d bytes kept, want 10", kept)
		}
	})
	t.Run("flood", func(t *testing.T) {
		b := newBox(t, "/usr/bin/yes")
		res := b.faults(sandbox.FaultOutput)
		if kept := int64(len(b.stdout())); kept != b.spec.Limits.OutputBytes || res.Measured <= kept {
			t.Errorf("%d bytes kept, Run = %+v", kept, res)
		}
	})
}

// TestSetupNeedsMemory holds that a limit too small for the sandbox itself
// ends as a memory fault and not as a success or a hang.
func TestSetupNeedsMemory(t *testing.T) {
	b := newBox(t, "/usr/bin/true")
	b.spec.Limits.MemoryBytes = 8 << 20
	if res := b.faults(sandbox.FaultMemory); !res.StartedAt.IsZero() {
		t.Errorf("Run = %+v, want no start", res)
	}
}

func TestSpecRefused(t *testing.T) {
	tests := []struct {
		name   string
		change func(b *box)
		want   string
	}{
		{"id", func(b *box) { b.spec.ID = "../x" }, "id"},
		{"limit", func(b *box) { b.spec.Limits.CPUSeconds = 0 }, "limit"},
		{"too many processes", func(b *box) { b.spec.Limits.Processes = sandbox.MaxProcesses + 1 }, "processes"},
		{"no CPU", func(b *box) { b.spec.CPUs = 0 }, "CPUs"},
		{"too many CPUs", func(b *box) { b.spec.CPUs = sandbox.MaxCPUs + 1 }, "CPUs"},
		{"endless", func(b *box) { b.spec.Limits.WallSeconds = 1<<53 - 1 }, "wall"},
		{"not UTF-8", func(b *box) { b.spec.Job.Argv = append(b.spec.Job.Argv, "\xff") }, "UTF-8"},
		{"environment name", func(b *box) { b.spec.Job.Environment = map[string]string{"A=B": "C"} }, "environment"},
		{"argv[0]", func(b *box) { b.spec.Job.Argv = []string{"/usr/bin/false"} }, "argv[0]"},
		{"NUL", func(b *box) { b.spec.Job.Argv = append(b.spec.Job.Argv, "a\x00b") }, "NUL"},
		{"missing cwd", func(b *box) { b.spec.Job.Cwd = "missing" }, "cwd"},
		{"cwd through a link", func(b *box) {
			b.must(os.Symlink("/usr", b.inWorkspace("usr")))
			b.spec.Job.Cwd = "usr/bin"
		}, "cwd"},
		{"cwd outside", func(b *box) { b.spec.Job.Cwd = "../state" }, "cwd"},
		{"workspace without a limit", func(b *box) { b.spec.Workspace = b.mkdir("plain") }, "MountWorkspace"},
		{"path with a link", func(b *box) {
			b.must(os.Symlink(b.spec.StateDir, b.dir+"/link"))
			b.spec.StateDir = b.dir + "/link"
		}, "symbolic link"},
		{"executable through a link", func(b *box) { b.setExecutable("/usr/bin/python3") }, "real path"},
		{"executable outside /usr", func(b *box) { b.setExecutable("/bin/true") }, "below /usr"},
		{"missing executable", func(b *box) { b.setExecutable("/usr/bin/no-such-program") }, "no such file"},
		{"executable is a directory", func(b *box) { b.setExecutable("/usr/bin") }, "no regular file"},
		{"state directory in use", func(b *box) {
			b.spec.StateDir = b.mkdir("used")
			b.must(os.WriteFile(b.spec.StateDir+"/x", nil, 0o600))
		}, "not empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBox(t, "/usr/bin/true")
			before := b.spec
			tt.change(b)
			launched := false
			b.spec.BeforeLaunch = func() (time.Time, error) { launched = true; return time.Now(), nil }
			res, err := b.run(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) || !isSpecError(err) {
				t.Errorf("Run error = %v, want ErrSpec naming %q", err, tt.want)
			}
			if !res.Teardown || launched {
				t.Errorf("Run = %+v, launched %v", res, launched)
			}
			b.spec.StateDir, b.spec.Workspace = before.StateDir, before.Workspace
		})
	}
}

func (b *box) setExecutable(path string) {
	b.spec.Job.Executable.Path, b.spec.Job.Argv = path, []string{path}
}

func TestNewRefusesParent(t *testing.T) {
	for _, parent := range []string{"relative", "/", "/a/../b", "/a/"} {
		if _, err := New(Options{CgroupParent: parent}); err == nil {
			t.Errorf("New accepted the cgroup parent %q", parent)
		}
	}
}

func isSpecError(err error) bool { return errors.Is(err, sandbox.ErrSpec) }
