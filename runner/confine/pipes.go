package confine

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// Process is a tool that is being talked to, e.g. git cat-file --batch.
type Process struct {
	Stdin  io.WriteCloser
	Stdout io.Reader // fails with ErrOutput after MaxStdout bytes
	out    *os.File
	r      *running
	stop   context.CancelCauseFunc
	done   chan struct{}
	err    error
}

// Start starts the tool with pipes for the caller to talk through; Spec.Stdin
// and Spec.Stdout stay nil. The caller ends it with Close or Kill, always.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	if spec.Stdin != nil || spec.Stdout != nil {
		return nil, errors.New("confine: Start makes its own pipes, Spec.Stdin and Spec.Stdout must be nil")
	}
	spec.setDefaults()
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer inRead.Close()
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		inWrite.Close()
		return nil, err
	}
	defer outWrite.Close()
	ctx, stop := context.WithCancelCause(ctx)
	p := &Process{
		Stdin: inWrite, out: outRead, stop: stop, done: make(chan struct{}),
		Stdout: &cappedReader{r: outRead, left: spec.MaxStdout, over: stop},
	}
	if p.r, err = start(ctx, spec, stdio{in: inRead, out: outWrite}); err != nil {
		stop(nil)
		inWrite.Close()
		outRead.Close()
		return nil, err
	}
	go func() {
		defer close(p.done)
		_, p.err = p.r.wait()
	}()
	return p, nil
}

// Close ends the conversation: it closes the tool's stdin and waits for the
// tool to end by itself, which the Spec's timeout bounds. Unread output is
// thrown away. The result is that of Run.
func (p *Process) Close() error {
	p.Stdin.Close()
	go io.Copy(io.Discard, p.out) //nolint:errcheck // a tool blocked on a full pipe must be able to end
	<-p.done
	p.stop(nil)
	p.out.Close()
	return p.err
}

// Kill ends the tool and everything it started at once. It may follow Close.
func (p *Process) Kill() {
	p.stop(nil)
	p.Stdin.Close()
	<-p.done
	p.out.Close()
}

// cappedWriter passes left bytes on; one more ends the tool with ErrOutput.
type cappedWriter struct {
	w    io.Writer
	left int64
	over context.CancelCauseFunc
}

func (c *cappedWriter) Write(p []byte) (int, error) {
	if int64(len(p)) <= c.left {
		c.left -= int64(len(p))
		return c.w.Write(p)
	}
	n, err := c.w.Write(p[:c.left])
	c.left -= int64(n)
	if err == nil {
		err = ErrOutput
	}
	c.over(err)
	return n, err
}

// cappedReader is the same for a reading caller.
type cappedReader struct {
	r    io.Reader
	left int64
	over context.CancelCauseFunc
}

func (c *cappedReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if int64(n) > c.left {
		c.over(ErrOutput)
		n, err = int(c.left), ErrOutput
	}
	c.left -= int64(n)
	return n, err
}

// feed copies a reader that is no file into the tool, once the tool starts.
type feed struct {
	from  io.Reader
	read  *os.File
	write *os.File
	done  chan struct{}
}

func newFeed(from io.Reader) (*feed, error) {
	f := &feed{from: from, done: make(chan struct{})}
	var err error
	f.read, f.write, err = os.Pipe()
	return f, err
}

func (f *feed) start() {
	if f == nil {
		return
	}
	f.read.Close()
	go func() {
		defer close(f.done)
		io.Copy(f.write, f.from) //nolint:errcheck // a tool may end before it read everything
		f.write.Close()
	}()
}

// finish waits until the caller's reader is no longer used, but not for ever:
// it may be blocked.
func (f *feed) finish() {
	if f == nil {
		return
	}
	f.write.Close()
	select {
	case <-f.done:
	case <-time.After(stopGrace):
	}
}

func (f *feed) close() {
	if f != nil {
		f.read.Close()
		f.write.Close()
	}
}

// prefix keeps the first maxStderr bytes.
type prefix struct {
	mu  sync.Mutex
	buf []byte
}

func (p *prefix) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buf = append(p.buf, b[:min(len(b), maxStderr-len(p.buf))]...)
	return len(b), nil
}

func (p *prefix) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.TrimRight(string(p.buf), "\n")
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
