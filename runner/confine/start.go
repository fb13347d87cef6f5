package confine

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	childName = "underwrite-confine" // argv[0] of the confined child
	fdSpec    = 3                    // child: the order comes in; its end means that the parent is gone
	fdStatus  = 4                    // child: the outcome goes out
	fdMounts  = 5                    // child: first of the prepared mounts

	// stopGrace is what the child gets to end the tool's descendants where no
	// process namespace does it.
	stopGrace = 10 * time.Second

	maxStatus = 64 << 10 // bytes of the child's messages
)

// order is what the parent tells the confined child.
type order struct {
	Argv, Env           []string
	Dir                 string
	ReadOnly, ReadWrite []string
	Network             bool
	MaxFileBytes        int64
	MaxMemory           int64
	CPUSeconds          uint64
	Identity            Identity
	UID                 int // ThrowAwayUID only
	// Prepared is the number of id-mapped mounts from fdMounts on, in the order
	// ReadOnly, ReadWrite.
	Prepared int
}

// hello is the confined child's first message: the tool starts now, or why not.
type hello struct {
	Setup    string // why the tool will not be started
	NotHere  bool   // a weaker identity may do
	Controls Controls
}

// outcome is the child's last message: how the tool ended.
type outcome struct {
	Setup  string // why the tool was not started after all
	Exit   int
	Signal int
}

// stdio is what the tool's descriptors are connected to. Files are handed over
// as they are.
type stdio struct {
	in  io.Reader
	out io.Writer
}

// running is a started child. Its cancel ends it; wait must be called.
type running struct {
	cmd      *exec.Cmd
	ctx      context.Context
	cancel   context.CancelCauseFunc
	stopTime context.CancelFunc
	lifeline *os.File // the child ends everything when this closes
	status   *os.File
	messages *gob.Decoder
	controls Controls
	feed     *feed // copies Spec.Stdin into the tool, or nil
	stderr   *prefix
	once     sync.Once
	tool     string
}

// identities is what this process can ask the kernel for, best first.
func identities() []Identity {
	if os.Geteuid() == 0 {
		return []Identity{ThrowAwayUID, UserNamespace}
	}
	return []Identity{UserNamespace, CallerUID}
}

// forced replaces identities in tests.
var forced []Identity

func start(ctx context.Context, spec Spec, io stdio) (*running, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	spec.setDefaults()
	candidates := identities()
	if forced != nil {
		candidates = forced
	}
	var failures []error
	for _, id := range candidates {
		r, err := startAs(ctx, spec, io, id)
		if err == nil {
			return r, nil
		}
		failures = append(failures, fmt.Errorf("as %s: %w", id, err))
		if !errors.Is(err, errNotHere) {
			break
		}
	}
	return nil, fmt.Errorf("start %s confined: %w", spec.Argv[0], errors.Join(failures...))
}

// errNotHere: this kernel or this caller cannot have the identity; the next
// weaker one is tried, and Controls says which it was.
var errNotHere = errors.New("not possible here")

func startAs(ctx context.Context, spec Spec, io stdio, id Identity) (*running, error) {
	o := newOrder(spec, id)
	var mounts []*os.File
	if id == ThrowAwayUID {
		o.UID = throwAwayUID()
		var err error
		if mounts, err = idMapped(slices.Concat(spec.ReadOnly, spec.ReadWrite), o.UID); err != nil {
			return nil, err
		}
		defer closeAll(mounts)
		o.Prepared = len(mounts)
	}
	r := newRunning(ctx, spec)
	r.cmd.SysProcAttr = namespaces(id, spec.Network)
	if err := r.connect(io); err != nil {
		r.release()
		return nil, err
	}
	if err := r.launch(o, mounts); err != nil {
		r.feed.close()
		r.release()
		return nil, err
	}
	r.feed.start()
	return r, nil
}

func (r *running) connect(io stdio) (err error) {
	r.cmd.Stdout, r.cmd.Stderr = io.out, r.stderr
	if file, ok := io.in.(*os.File); ok {
		r.cmd.Stdin = file
	} else if io.in != nil {
		r.feed, err = newFeed(io.in)
		if err == nil {
			r.cmd.Stdin = r.feed.read
		}
	}
	return err
}

func (r *running) release() {
	r.stopTime()
	r.cancel(nil)
}

func newOrder(spec Spec, id Identity) order {
	seconds := uint64(spec.Timeout/time.Second) + 1
	return order{
		Argv: spec.Argv, Env: spec.environment(), Dir: spec.Dir,
		ReadOnly: spec.ReadOnly, ReadWrite: spec.ReadWrite, Network: spec.Network,
		MaxFileBytes: spec.MaxFileBytes, MaxMemory: spec.MaxMemory,
		CPUSeconds: seconds * uint64(runtime.NumCPU()), Identity: id,
	}
}

func newRunning(ctx context.Context, spec Spec) *running {
	timed, stopTime := context.WithTimeoutCause(ctx, spec.Timeout, ErrTimeout)
	r := &running{stopTime: stopTime, stderr: &prefix{}, tool: spec.Argv[0]}
	r.ctx, r.cancel = context.WithCancelCause(timed)
	r.cmd = exec.CommandContext(r.ctx, "/proc/self/exe")
	r.cmd.Args = []string{childName}
	r.cmd.Env = []string{}
	r.cmd.Dir = "/"
	r.cmd.WaitDelay = stopGrace
	return r
}

func namespaces(id Identity, network bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if id == CallerUID {
		return attr
	}
	attr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if !network {
		attr.Cloneflags |= unix.CLONE_NEWNET
	}
	if id == UserNamespace {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return attr
}

// launch starts the child and gives it its order.
func (r *running) launch(o order, mounts []*os.File) error {
	specIn, specOut, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer specIn.Close()
	statusIn, statusOut, err := os.Pipe()
	if err != nil {
		specOut.Close()
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer statusOut.Close()
	r.lifeline, r.status = specOut, statusIn
	r.cmd.ExtraFiles = append([]*os.File{specIn, statusOut}, mounts...)
	r.cmd.Cancel = r.stopper(o.Identity)
	if err := r.cmd.Start(); err != nil {
		r.closePipes()
		return startError(err)
	}
	specIn.Close() // else the write below could block for ever on a dead child
	statusOut.Close()
	if err := r.greet(o); err != nil {
		r.cancel(err)
		r.cmd.Wait() //nolint:errcheck // killed; the reason is err
		r.closePipes()
		return err
	}
	return nil
}

// greet gives the child its order and waits until it is about to start the
// tool. Nothing of stdin is used before, so that another identity can be tried.
func (r *running) greet(o order) error {
	orderErr := writeOrder(r.lifeline, o)
	r.messages = gob.NewDecoder(io.LimitReader(r.status, maxStatus))
	var h hello
	if err := r.messages.Decode(&h); err != nil {
		if cause := context.Cause(r.ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("confined child died in its set-up: %w (%q)", errors.Join(orderErr, err), r.stderr.String())
	}
	r.controls = h.Controls
	switch {
	case h.NotHere:
		return fmt.Errorf("%w: %s", errNotHere, h.Setup)
	case h.Setup != "":
		return errors.New(h.Setup)
	}
	return nil
}

// stopper ends the child: the kernel ends the rest of a process namespace with
// its first process; without one, the child is asked to do it.
func (r *running) stopper(id Identity) func() error {
	if id == CallerUID {
		return func() error { r.closeLifeline(); return nil }
	}
	return func() error { return r.cmd.Process.Kill() }
}

func startError(err error) error {
	for _, e := range []error{unix.EPERM, unix.EACCES, unix.ENOSPC, unix.EINVAL, unix.ENOSYS, unix.EUSERS} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", errNotHere, err)
		}
	}
	return err
}

func writeOrder(w io.Writer, o order) error {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(o); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (r *running) closeLifeline() { r.once.Do(func() { r.lifeline.Close() }) }

func (r *running) closePipes() {
	r.closeLifeline()
	r.status.Close()
}

// wait returns after the tool and all that it started are dead.
func (r *running) wait() (Controls, error) {
	defer r.release()
	var out outcome
	decodeErr := r.messages.Decode(&out)
	waitErr := r.cmd.Wait()
	r.closePipes()
	r.feed.finish()
	if cause := context.Cause(r.ctx); cause != nil {
		return r.controls, cause
	}
	switch {
	case decodeErr != nil:
		return r.controls, fmt.Errorf("confined child of %s died without a report: %w (%q)", r.tool, errors.Join(decodeErr, waitErr), r.stderr.String())
	case out.Setup != "":
		return r.controls, fmt.Errorf("confine %s: %s", r.tool, out.Setup)
	case out.Exit != 0 || out.Signal != 0:
		return r.controls, &ExitError{Tool: r.tool, Code: out.Exit, Signal: out.Signal, Stderr: r.stderr.String()}
	case waitErr != nil:
		return r.controls, fmt.Errorf("wait for %s: %w", r.tool, waitErr)
	}
	return r.controls, nil
}
