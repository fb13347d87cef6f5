package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pipeBytes is the capacity asked for each pipe: the guest's writes block less
// often. A user without privilege may get less, which costs only speed.
const pipeBytes = 1 << 20

// A Capture drains the two output pipes of a job into files. Together the
// files never get more than the limit; what comes beyond it is counted and
// dropped, so that the job never blocks on us.
type Capture struct {
	// Stdout and Stderr are the write ends for the job. They have two
	// distinct file descriptions: a shared one would make one stream's state
	// leak into the other.
	Stdout, Stderr *os.File

	readers [2]*os.File
	limit   int64
	over    chan struct{} // closed when the limit is exceeded
	done    chan struct{} // closed when both pipes are at their end

	mu       sync.Mutex
	kept     int64 // bytes written to the files, at most limit
	produced int64 // bytes read from the pipes
	err      error // first failure
}

// NewCapture makes the pipes and starts to drain them into stdout and stderr.
// The caller passes Stdout and Stderr on, calls CloseWriters, and Wait.
func NewCapture(stdout, stderr *os.File, limit int64) (*Capture, error) {
	c := &Capture{limit: limit, over: make(chan struct{}), done: make(chan struct{})}
	var err error
	if c.readers[0], c.Stdout, err = outputPipe("stdout"); err != nil {
		return nil, err
	}
	if c.readers[1], c.Stderr, err = outputPipe("stderr"); err != nil {
		c.readers[0].Close()
		c.Stdout.Close()
		return nil, err
	}
	var both sync.WaitGroup
	both.Go(func() { c.drain(c.readers[0], stdout) })
	both.Go(func() { c.drain(c.readers[1], stderr) })
	go func() { both.Wait(); close(c.done) }()
	return c, nil
}

// outputPipe makes the read end non-blocking, so that closing it ends a read,
// and leaves the write end blocking, as its user expects.
func outputPipe(name string) (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("pipe for %s: %w", name, err)
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeBytes) // only speed
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("pipe for %s: %w", name, err)
	}
	return os.NewFile(uintptr(fds[0]), name+" reader"), os.NewFile(uintptr(fds[1]), name+" writer"), nil
}

// CloseWriters closes our copies of the write ends: from then on the pipes end
// when the last process that holds them does.
func (c *Capture) CloseWriters() {
	c.Stdout.Close()
	c.Stderr.Close()
}

// Exceeded is closed when the job has written more than the limit.
func (c *Capture) Exceeded() <-chan struct{} { return c.over }

// Produced returns how many bytes the job has written so far, kept or not.
func (c *Capture) Produced() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.produced
}

// Wait waits until both pipes are at their end and returns the first failure
// to read or to store a byte. If that takes longer than timeout, someone still
// holds a pipe: an error wrapping os.ErrDeadlineExceeded.
func (c *Capture) Wait(timeout time.Duration) error {
	defer func() {
		c.readers[0].Close()
		c.readers[1].Close()
	}()
	select {
	case <-c.done:
	case <-time.After(timeout):
		return fmt.Errorf("output pipes are still open: %w", os.ErrDeadlineExceeded)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Capture) drain(from, to *os.File) {
	buf := make([]byte, 256<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			c.store(to, buf[:n])
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				c.fail(fmt.Errorf("read %s: %w", from.Name(), err))
			}
			return
		}
	}
}

// store keeps what the limit leaves room for. A failure to write is ours, not
// the job's: draining goes on, and Wait tells.
func (c *Capture) store(to *os.File, b []byte) {
	c.mu.Lock()
	within := c.produced <= c.limit
	c.produced += int64(len(b))
	if within && c.produced > c.limit {
		close(c.over)
	}
	keep := min(int64(len(b)), c.limit-c.kept)
	c.kept += keep
	c.mu.Unlock()
	if keep == 0 {
		return
	}
	if _, err := to.Write(b[:keep]); err != nil {
		c.fail(fmt.Errorf("store output: %w", err))
	}
}

func (c *Capture) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}
