package sandbox

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// program writes an ELF image where it can be executed.
func program(t *testing.T, image []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, image, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func launcher(t *testing.T, path string, argv, env []string) []byte {
	t.Helper()
	image, err := Launcher(path, argv, env)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func TestImagesAreStaticELF(t *testing.T) {
	images := map[string][]byte{
		"controller": Controller("/file", "12"),
		"launcher":   launcher(t, "/x", []string{"/x", ""}, nil),
	}
	for name, image := range images {
		f, err := elf.NewFile(bytes.NewReader(image))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if f.Type != elf.ET_EXEC || f.Machine != elf.EM_X86_64 || len(f.Progs) != 1 {
			t.Errorf("%s: %v %v, %d segments", name, f.Type, f.Machine, len(f.Progs))
		}
		p := f.Progs[0]
		if p.Type != elf.PT_LOAD || p.Off != 0 || p.Filesz != uint64(len(image)) || p.Memsz != p.Filesz || f.Entry != p.Vaddr+elfEntry {
			t.Errorf("%s: entry %#x, segment %+v", name, f.Entry, p.ProgHeader)
		}
	}
}

// TestLauncherBytes holds the exact program for the smallest job, so that no
// change of the generator goes unseen.
func TestLauncherBytes(t *testing.T) {
	image := launcher(t, "/a", []string{"/a"}, nil)
	const want = "48bf0000000000000000" + "b803000000" + "0f05" + // close(0)
		"48bf0300000000000000" + "48be0200000000000000" + "48ba0100000000000000" + "b848000000" + "0f05" + // fcntl(3, F_SETFD, FD_CLOEXEC)
		"48bf1801400000000000" + "48be2001400000000000" + "48ba3001400000000000" + "b83b000000" + "0f05" + // execve(path, argv, env)
		"48a33801400000000000" + // mov [status], rax
		"48bf0300000000000000" + "48be3801400000000000" + "48ba0800000000000000" + "b801000000" + "0f05" + // write(3, status, 8)
		"48bf7f00000000000000" + "b8e7000000" + "0f05" // exit_group(127)
	if got := fmt.Sprintf("%x", image[elfEntry:]); !strings.HasPrefix(got, want) {
		t.Errorf("code\n%s\nwant\n%s", got, want)
	}
	if got := string(image[0x118:0x11b]); got != "/a\x00" {
		t.Errorf("path at its address = %q", got)
	}
	if got := binary.LittleEndian.Uint64(image[0x120:]); got != elfBase+0x11b {
		t.Errorf("argv[0] points to %#x", got)
	}
}

// runLauncher executes the image with a status pipe and returns what came out.
func runLauncher(t *testing.T, image []byte) (stdout string, status []byte, code int) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command(program(t, image))
	cmd.Env = []string{"LEAKED=1"}
	cmd.ExtraFiles = []*os.File{w} // descriptor 3
	out, err := cmd.Output()
	w.Close()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	status = make([]byte, 16)
	n, _ := r.Read(status)
	return string(out), status[:n], cmd.ProcessState.ExitCode()
}

func TestLauncherExecutes(t *testing.T) {
	argv := []string{"not-the-path", "-c", `import os,sys
try: os.fstat(0)
except OSError: print("closed")
try: os.fstat(3)
except OSError: print("closed")
print(ascii(open("/proc/self/cmdline").read()), ascii(open("/proc/self/environ").read()))
sys.exit(42)`, "", "a b", "ü"}
	env := []string{"A=1", "EMPTY=", "LC_ALL=C.UTF-8"}
	stdout, status, code := runLauncher(t, launcher(t, "/usr/bin/python3", argv, env))
	if code != 42 || len(status) != 0 {
		t.Errorf("exit code %d, status %x, want 42 and none", code, status)
	}
	want := "closed\nclosed\n"
	if !strings.HasPrefix(stdout, want) || !strings.Contains(stdout, `'not-the-path\x00-c\x00`) ||
		!strings.Contains(stdout, `\x00\x00a b\x00\xfc\x00' 'A=1\x00EMPTY=\x00LC_ALL=C.UTF-8\x00'`) {
		t.Errorf("stdout = %s", stdout)
	}
}

func TestLauncherReportsFailure(t *testing.T) {
	_, status, code := runLauncher(t, launcher(t, "/nonexistent", []string{"/nonexistent"}, nil))
	if code != launcherFailed || len(status) != 8 {
		t.Fatalf("exit code %d, status %x", code, status)
	}
	if errno := -int64(binary.LittleEndian.Uint64(status)); errno != int64(unix.ENOENT) {
		t.Errorf("errno = %d, want ENOENT", errno)
	}
}

func TestLauncherBound(t *testing.T) {
	big := strings.Repeat("x", 1<<10)
	var argv []string
	for range MaxLauncherBytes / len(big) {
		argv = append(argv, big)
	}
	if _, err := Launcher("/x", argv, nil); err == nil {
		t.Error("an oversized launcher was built")
	}
	if _, err := Launcher("/x", argv[:128], nil); err != nil { // what the protocol allows
		t.Error(err)
	}
}

func TestControllerExecutes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limit")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program(t, Controller(file, "4097")))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	ready := make([]byte, 2)
	if n, _ := stdout.Read(ready); n != 1 || ready[0] != ControllerReady {
		t.Fatalf("controller says %q", ready[:n])
	}
	if n, err := stdout.Read(ready); n != 0 {
		t.Errorf("standard output stays open: %q, %v", ready[:n], err)
	}
	if content, err := os.ReadFile(file); string(content) != "4097" {
		t.Errorf("file = %q, %v", content, err)
	}
	if mask := ignoredSignals(t, cmd.Process.Pid); mask&(1<<(unix.SIGCHLD-1)) == 0 {
		t.Errorf("SIGCHLD is not ignored: mask %x", mask)
	}
	for fd := range 4 { // higher ones may come from whoever runs the tests
		eventually(t, fmt.Sprintf("descriptor %d is closed", fd), func() bool {
			_, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", cmd.Process.Pid, fd))
			return errors.Is(err, os.ErrNotExist)
		})
	}
	// It sleeps on, also after a signal that it handles by default ignoring it.
	if err := cmd.Process.Signal(unix.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	if err := cmd.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the controller has ended: %v", err)
	}
}

func TestControllerFails(t *testing.T) {
	for name, file := range map[string]string{"no file": "/nonexistent/limit", "write refused": "/dev/full"} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(program(t, Controller(file, "1")))
			out, err := cmd.Output()
			if cmd.ProcessState.ExitCode() != controllerFailed || len(out) != 0 {
				t.Errorf("exit %v, output %q", err, out)
			}
		})
	}
}

// ignoredSignals is the mask of the signals that a process ignores. Some come
// from whoever runs the tests, such as nohup.
func ignoredSignals(t *testing.T, pid int) uint64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\nSigIgn:\t")
	line, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(line, 16, 64)
	if err != nil {
		t.Fatalf("ignored signals: %v\n%s", err, status)
	}
	return mask
}
