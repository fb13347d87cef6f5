package apptest_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"underwrite/app/apptest"
)

// endless is a profile whose job never ends by itself.
const endless = `argv: [/bin/sh, -c, "sleep 100000 & sleep 100000"]
root: host
environment: {PATH: /usr/bin:/bin}
limits:
  wallSeconds: 3600
  cpuSeconds: 3600
  memoryBytes: 268435456
  processes: 64
  workspaceBytes: 67108864
  outputBytes: 65536
`

// patience bounds what should take moments, on a busy machine.
const patience = 2 * time.Minute

// TestInterrupt stops a prove in several phases, as people and programs do, and
// looks for anything that is left. The phases come from its terminal.
func TestInterrupt(t *testing.T) {
	requireRoot(t)
	ctrlC := func(t *testing.T, s *session) { s.typeIn(t, "\x03") }
	send := func(sig os.Signal) func(*testing.T, *session) {
		return func(t *testing.T, s *session) {
			if err := s.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name, phase string
		stop        func(*testing.T, *session)
	}{
		{"Ctrl-C while it runs", "run", ctrlC},
		{"SIGINT while it runs", "run", send(os.Interrupt)},
		{"SIGTERM while it runs", "run", send(syscall.SIGTERM)},
		{"closed terminal while it runs", "run", send(syscall.SIGHUP)},
		{"Ctrl-C while it freezes", "freeze", ctrlC},
		{"Ctrl-C while the sandbox starts", "sandbox", ctrlC},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := startProve(t)
			s.waitFor(t, "  "+c.phase+" ")
			var seen traces
			if c.phase == "run" {
				seen = s.traces(t)
				seen.requireAll(t)
			}
			c.stop(t, s)
			if code := s.wait(t); code != 2 {
				t.Errorf("exit code %d, want 2", code)
			}
			s.waitFor(t, "underwrite: interrupted")
			seen.requireNone(t)
			s.requireNothingLeft(t)
			if left, err := filepath.Glob(filepath.Join(s.dir, "out*")); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
}

// TestKilled: what a killed prove cannot remove, its execution or the next
// prove does.
func TestKilled(t *testing.T) {
	requireRoot(t)
	s := startProve(t)
	s.waitFor(t, "  run ")
	seen := s.traces(t)
	seen.requireAll(t)
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.wait(t)
	for end := time.Now().Add(patience); len(seen.alive()) > 0 && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	seen.requireNone(t)
	if left, err := os.ReadDir(s.tmp()); err != nil || len(left) != 1 {
		t.Fatalf("left in the temporary directory: %v, %v, want the killed run's directory", left, err)
	}
	write(t, filepath.Join(s.dir, "job.yml"), strings.Replace(endless, "sleep 100000 & sleep 100000", "true", 1))
	again := exec.Command(apptest.Binary(t), s.args()...)
	again.Dir, again.Env = s.dir, s.env()
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("the next prove: %v\n%s", err, out)
	}
	s.requireNothingLeft(t)
}

// session is a prove whose standard error is its controlling terminal.
type session struct {
	dir      string
	cmd      *exec.Cmd
	terminal *os.File // our end

	mu    sync.Mutex
	shown bytes.Buffer
}

func startProve(t *testing.T) *session {
	t.Helper()
	s := &session{dir: t.TempDir()}
	gitRepository(t, filepath.Join(s.dir, "repo"))
	write(t, filepath.Join(s.dir, "job.yml"), endless)
	if err := os.Mkdir(s.tmp(), 0o700); err != nil {
		t.Fatal(err)
	}
	var theirs *os.File
	s.terminal, theirs = openTerminal(t)
	defer theirs.Close()
	s.cmd = exec.Command(apptest.Binary(t), s.args()...)
	s.cmd.Dir, s.cmd.Env = s.dir, s.env()
	s.cmd.Stdin, s.cmd.Stderr = theirs, theirs
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	// A caught signal has its default meaning again after execve; an ignored one,
	// as under nohup, would stay ignored.
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			s.cmd.Process.Kill()
			s.cmd.Wait()
		}
		s.terminal.Close()
	})
	go io.Copy(s, s.terminal) // ends with EIO when the last process has closed it
	return s
}

func (s *session) args() []string {
	return []string{"prove", "--repo", "repo", "--base", "base", "--head", "head", "--profile", "job.yml", "--evidence-dir", "out"}
}

func (s *session) env() []string { return []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + s.tmp()} }

func (s *session) tmp() string { return filepath.Join(s.dir, "tmp") }

func (s *session) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.Write(p)
}

func (s *session) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.String()
}

func (s *session) waitFor(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(s.text(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the terminal never showed %q:\n%s", text, s.text())
		}
	}
}

func (s *session) wait(t *testing.T) (code int) {
	t.Helper()
	kill := time.AfterFunc(patience, func() { s.cmd.Process.Kill() })
	defer kill.Stop()
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *session) requireNothingLeft(t *testing.T) {
	t.Helper()
	if left, err := os.ReadDir(s.tmp()); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
	if mounts := s.mounts(t); len(mounts) > 0 {
		t.Errorf("left mounted: %q", mounts)
	}
}

func (s *session) mounts(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, s.dir+"/") {
			found = append(found, line)
		}
	}
	return found
}

// traces are what a running job has on the host.
type traces struct {
	processes []string // /proc/PID of all descendants
	starts    []string // of the processes, since a number can be used again
	cgroups   []string
	mounts    []string
}

func (s *session) traces(t *testing.T) traces {
	t.Helper()
	tr := traces{mounts: s.mounts(t)}
	for pids := []string{strconv.Itoa(s.cmd.Process.Pid)}; len(pids) > 0; pids = pids[1:] {
		children, err := filepath.Glob("/proc/" + pids[0] + "/task/*/children")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range children {
			b, err := os.ReadFile(file)
			if err != nil {
				continue // the thread has ended
			}
			for pid := range strings.FieldsSeq(string(b)) {
				pids = append(pids, pid)
				tr.processes = append(tr.processes, "/proc/"+pid)
				tr.starts = append(tr.starts, startOf("/proc/"+pid))
				tr.cgroups = append(tr.cgroups, cgroupsOf(t, pid)...)
			}
		}
	}
	return tr
}

// cgroupsOf finds the directories that carry the process as their owner.
func cgroupsOf(t *testing.T, pid string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/underwrite/*.%s-*", "/sys/fs/cgroup/*/underwrite/*.%s-*"} {
		dirs, err := filepath.Glob(fmt.Sprintf(pattern, pid))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, dirs...)
	}
	return found
}

// startOf is the process's start time, empty if there is none or it is a zombie.
func startOf(proc string) string {
	b, err := os.ReadFile(proc + "/stat")
	if err != nil {
		return ""
	}
	_, after, _ := bytes.Cut(b, []byte(") "))
	fields := strings.Fields(string(after))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return fields[19]
}

// requireAll shows that the search finds something while the job runs.
func (tr traces) requireAll(t *testing.T) {
	t.Helper()
	if len(tr.processes) < 3 || len(tr.cgroups) == 0 || len(tr.mounts) == 0 {
		t.Fatalf("while the job runs, the search finds only %+v", tr)
	}
}

func (tr traces) alive() []string {
	var alive []string
	for i, proc := range tr.processes {
		if start := startOf(proc); start != "" && start == tr.starts[i] {
			alive = append(alive, proc)
		}
	}
	return alive
}

func (tr traces) requireNone(t *testing.T) {
	t.Helper()
	if alive := tr.alive(); len(alive) > 0 {
		t.Errorf("still running: %q", alive)
	}
	for _, dir := range tr.cgroups {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("cgroup %s is left: %v", dir, err)
		}
	}
}

// openTerminal returns both ends of a new pseudo-terminal.
func openTerminal(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		ours.Close()
		t.Fatal(err)
	}
	return ours, theirs
}

func (s *session) typeIn(t *testing.T, text string) {
	t.Helper()
	if _, err := s.terminal.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
