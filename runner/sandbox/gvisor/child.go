package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"underwrite/runner/sandbox"
)

// A child is a started supervisor.
type child struct {
	cmd     *exec.Cmd
	viewDir string
	goPipe  *os.File
	events  chan event // closed at the report's end
	err     error      // of reading the report; valid once events is closed
	exited  chan error // what Wait returned
}

// startChild starts the supervisor of a job.
func startChild(spec *sandbox.Spec, cgroups []string, capture *sandbox.Capture) (*child, error) {
	c := &child{viewDir: filepath.Join(spec.StateDir, "view"), events: make(chan event), exited: make(chan error, 1)}
	if err := os.Mkdir(c.viewDir, 0o700); err != nil {
		return nil, err
	}
	config, err := taskFile(spec, cgroups, c.viewDir)
	if err != nil {
		return nil, errors.Join(err, c.clean())
	}
	defer config.Close()
	report, reportWriter, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, c.clean())
	}
	defer reportWriter.Close()
	goReader, goWriter, err := os.Pipe()
	if err != nil {
		report.Close()
		return nil, errors.Join(err, c.clean())
	}
	defer goReader.Close()
	c.goPipe = goWriter
	c.cmd = command()
	c.cmd.ExtraFiles = []*os.File{config, reportWriter, goReader, capture.Stdout, capture.Stderr}
	if err := c.start(spec.CPUs); err != nil {
		report.Close()
		goWriter.Close()
		return nil, errors.Join(fmt.Errorf("start supervisor: %w", err), c.clean())
	}
	go func() {
		c.err = readEvents(report, c.events)
		report.Close()
		close(c.events)
	}()
	return c, nil
}

// command runs this binary as a supervisor, with nothing of our environment.
// It dies with us, and its namespaces with it: what it starts cannot outlive
// it, its mounts and its network end with it.
func command() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{supervisorName}
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  unix.SIGKILL,
		Setsid:     true,
	}
	return cmd
}

// taskFile writes the supervisor's task into memory.
func taskFile(spec *sandbox.Spec, cgroups []string, viewDir string) (*os.File, error) {
	var env []string
	for _, name := range slices.Sorted(maps.Keys(spec.Job.Environment)) {
		env = append(env, name+"="+spec.Job.Environment[name])
	}
	b, err := json.Marshal(task{
		ID: spec.ID, Cgroups: cgroups, ViewDir: viewDir,
		Root: spec.RootFS.Path, HostUsr: spec.RootFS.Host, Workspace: spec.Workspace, Executable: spec.Executable,
		Path: spec.Job.Executable.Path, Argv: spec.Job.Argv, Env: env, Cwd: sandbox.GuestCwd(spec.Job.Cwd),
		Processes: spec.Limits.Processes, MemoryBytes: spec.Limits.MemoryBytes,
	})
	if err != nil {
		return nil, err
	}
	return sealed("task", b)
}

// start starts the command on a thread of its own, which lives until the
// supervisor is dead: the kernel sends the parent-death signal when the thread
// ends that started the child, not the process. The thread, and so the child,
// is bound to as many processors as the guest may use, so that it sees only
// these.
func (c *child) start(cpus int) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		err := bindTo(cpus)
		if err == nil {
			err = c.cmd.Start()
		}
		started <- err
		if err == nil {
			c.exited <- c.cmd.Wait()
		}
	}()
	return <-started
}

// bindTo binds this thread to n of the processors that it may use, and to all
// if there are fewer. Which ones is random, so that jobs spread.
func bindTo(n int) error {
	var have, want unix.CPUSet
	if err := unix.SchedGetaffinity(0, &have); err != nil {
		return fmt.Errorf("processors: %w", err)
	}
	var cpus []int
	for i := range len(have) * 64 {
		if have.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	if len(cpus) <= n {
		return nil
	}
	for _, i := range rand.Perm(len(cpus))[:n] {
		want.Set(cpus[i])
	}
	return unix.SchedSetaffinity(0, &want)
}

// launch lets the job go.
func (c *child) launch() error {
	if _, err := c.goPipe.Write([]byte{1}); err != nil && !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("launch job: %w", err)
	}
	return nil // a supervisor that is gone also ends its report
}

// kill kills the supervisor, and the kernel everything in its pid namespace.
func (c *child) kill() { _ = c.cmd.Process.Kill() }

// readError tells why the report ended, nil if it just did.
func (c *child) readError() error { return c.err }

// reap kills the supervisor, if it has not ended, and waits for its end, which
// is the end of its pid namespace too.
func (c *child) reap() error {
	c.goPipe.Close()
	c.kill()
	for range c.events { // unblocks the reader
	}
	err := <-c.exited
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("reap supervisor: %w", err)
	}
	return nil
}

// clean removes the directory on which the view was mounted.
func (c *child) clean() error {
	if err := os.Remove(c.viewDir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the sandbox's view: %w", err)
	}
	return nil
}
