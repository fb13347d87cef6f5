package confine

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// MaybeExec turns this process into the confined child if it was started as
// one, and never returns then. main and every TestMain of a package that uses
// confine call it first.
func MaybeExec() {
	if len(os.Args) == 1 && os.Args[0] == childName {
		childMain()
	}
}

// child is the first process of the confinement. One of its threads, locked, is
// restricted step by step and becomes the parent of the tool; the others stay
// as they are, touch nothing of the tool's, and end what it leaves.
type child struct {
	order  order
	status *os.File
	say    *gob.Encoder
	report Controls
	reap   sync.Mutex // held while a dead process is taken or a live one killed: no pid changes its owner meanwhile
}

func childMain() { // ends by syscall.Exit: the race detector would sleep a second in os.Exit
	runtime.LockOSThread()
	spec := os.NewFile(fdSpec, "order")
	c := &child{status: os.NewFile(fdStatus, "status")}
	unix.CloseOnExec(fdSpec)
	unix.CloseOnExec(fdStatus)
	c.say = gob.NewEncoder(c.status)
	if err := gob.NewDecoder(spec).Decode(&c.order); err != nil {
		syscall.Exit(1) // the parent is gone, or this is no child of ours
	}
	for i := range c.order.Prepared {
		unix.CloseOnExec(fdMounts + i)
	}
	go c.watch(spec)
	pid, err := c.launch()
	if err != nil {
		c.say.Encode(outcome{Setup: err.Error()}) //nolint:errcheck // the exit code says it as well
		syscall.Exit(1)
	}
	out := c.wait(pid)
	ended := make(chan struct{})
	go func() { // this thread may not look into /proc
		c.endRest()
		close(ended)
	}()
	<-ended
	if c.say.Encode(out) != nil {
		syscall.Exit(1)
	}
	syscall.Exit(0)
}

// watch ends everything once the parent has ended or wants it.
func (c *child) watch(lifeline io.Reader) {
	io.Copy(io.Discard, lifeline) //nolint:errcheck // any end is the end
	c.endRest()
	syscall.Exit(1)
}

// launch sets the confinement up and starts the tool in it.
func (c *child) launch() (int, error) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil { // no ptrace of this process by the tool
		return 0, fmt.Errorf("set undumpable: %w", err)
	}
	program, err := c.prepare()
	if err != nil {
		h := hello{Setup: err.Error(), NotHere: errors.Is(err, errNotHere), Controls: c.report}
		c.say.Encode(h) //nolint:errcheck // the exit code says it as well
		syscall.Exit(1)
	}
	if err := c.say.Encode(hello{Controls: c.report}); err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{
		Dir: c.order.Dir, Env: c.order.Env, Files: []uintptr{0, 1, 2},
		// Traced, it stops before its first instruction.
		Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true, Ptrace: true},
	}
	if attr.Dir == "" {
		attr.Dir = "/"
	}
	pid, err := syscall.ForkExec(program, c.order.Argv, attr)
	if err != nil {
		return 0, fmt.Errorf("start %s in %s: %w", program, attr.Dir, err)
	}
	return pid, c.release(pid)
}

// release limits the stopped tool and lets it run.
func (c *child) release(pid int) error {
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return fmt.Errorf("wait for the tool to stop: %w", err)
	}
	if !status.Stopped() {
		return fmt.Errorf("the tool ended before it began (status %#x)", int(status))
	}
	if err := limit(pid, &c.order); err != nil {
		return err
	}
	if err := syscall.PtraceDetach(pid); err != nil {
		return fmt.Errorf("let the tool run: %w", err)
	}
	return nil
}

// prepare builds the view, finds the program in it and restricts this thread.
func (c *child) prepare() (program string, err error) {
	o := &c.order
	c.report.Identity = o.Identity
	if o.Identity == CallerUID {
		err = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	} else {
		err = enterView(o)
		c.report.Mounts, c.report.PIDs, c.report.NetworkNS = err == nil, true, !o.Network
	}
	if err != nil {
		return "", err
	}
	if program, err = lookUp(o.Argv[0]); err != nil {
		return "", err
	}
	if c.report.LandlockABI, err = restrict(o); err != nil {
		return "", err
	}
	c.report.Seccomp = true
	if o.Identity == CallerUID && c.report.LandlockABI == 0 {
		return "", errors.New("neither user namespaces nor Landlock are available: the tool cannot be confined")
	}
	return program, nil
}

// lookUp finds a program in the fixed PATH, in the tool's own view.
func lookUp(name string) (string, error) {
	for _, dir := range strings.Split(toolPath, ":") {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("program %q is not installed in %s", name, toolPath)
}

// wait reaps until the tool itself has ended.
func (c *child) wait(tool int) outcome {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		c.reap.Lock()
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		c.reap.Unlock()
		switch {
		case errors.Is(err, syscall.ECHILD):
			return outcome{Setup: "the tool's end was lost"}
		case pid == tool && status.Signaled():
			return outcome{Exit: -1, Signal: int(status.Signal())}
		case pid == tool && status.Exited():
			return outcome{Exit: status.ExitStatus()}
		}
	}
}

// endRest kills what is left where no process namespace does it by itself:
// everything that a tool leaves becomes a child of this subreaper.
func (c *child) endRest() {
	if c.order.Identity != CallerUID {
		return
	}
	c.reap.Lock()
	defer c.reap.Unlock()
	for {
		for _, pid := range children() {
			syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // dead already, and ours until it is reaped
		}
		if _, err := syscall.Wait4(-1, nil, 0, nil); errors.Is(err, syscall.ECHILD) {
			return
		}
	}
}

func children() (pids []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children") //nolint:errcheck // a constant pattern
	for _, list := range lists {
		text, _ := os.ReadFile(list) //nolint:errcheck // that thread has ended
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
