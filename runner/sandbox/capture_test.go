package sandbox

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A recording is a capture into two files.
type recording struct {
	*Capture
	t           *testing.T
	out, errOut *os.File
}

func record(t *testing.T, limit int64) *recording {
	t.Helper()
	r := &recording{t: t}
	for name, f := range map[string]**os.File{"stdout": &r.out, "stderr": &r.errOut} {
		file, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		*f = file
	}
	c, err := NewCapture(r.out, r.errOut, limit)
	if err != nil {
		t.Fatal(err)
	}
	r.Capture = c
	return r
}

func (r *recording) finish() (stdout, stderr []byte) {
	r.t.Helper()
	r.CloseWriters()
	if err := r.Wait(time.Minute); err != nil {
		r.t.Fatal(err)
	}
	read := func(f *os.File) []byte {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			r.t.Fatal(err)
		}
		return b
	}
	return read(r.out), read(r.errOut)
}

func (r *recording) exceeded() bool {
	select {
	case <-r.Exceeded():
		return true
	default:
		return false
	}
}

func TestCaptureByteByByte(t *testing.T) {
	r := record(t, 10)
	for i := range 5 {
		r.Stdout.Write([]byte{byte('a' + i)})
		r.Stderr.Write([]byte{byte('A' + i)})
	}
	stdout, stderr := r.finish()
	if string(stdout) != "abcde" || string(stderr) != "ABCDE" || r.exceeded() || r.Produced() != 10 {
		t.Errorf("%q, %q, exceeded %v, produced %d", stdout, stderr, r.exceeded(), r.Produced())
	}
}

func TestCaptureLimit(t *testing.T) {
	for name, size := range map[string]int{"one byte more": 1001, "much more": 5 << 20} {
		t.Run(name, func(t *testing.T) {
			r := record(t, 1000)
			data := bytes.Repeat([]byte("x"), size)
			if _, err := r.Stdout.Write(data); err != nil { // never blocks for good, never fails
				t.Fatal(err)
			}
			stdout, _ := r.finish()
			if len(stdout) != 1000 || !r.exceeded() || r.Produced() != int64(size) {
				t.Errorf("kept %d, exceeded %v, produced %d", len(stdout), r.exceeded(), r.Produced())
			}
		})
	}
}

// TestCaptureLoad writes to both streams at once, in pieces of random size,
// exactly up to the limit.
func TestCaptureLoad(t *testing.T) {
	const size = 3<<20 + 17
	r := record(t, 2*size)
	data := [2][]byte{make([]byte, size), make([]byte, size)}
	var both sync.WaitGroup
	for i, w := range []*os.File{r.Stdout, r.Stderr} {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		for j := range data[i] {
			data[i][j] = byte(random.Uint32())
		}
		both.Go(func() {
			for rest := data[i]; len(rest) > 0; {
				n := min(random.IntN(200_000)+1, len(rest))
				if _, err := w.Write(rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
		})
	}
	both.Wait()
	stdout, stderr := r.finish()
	if !bytes.Equal(stdout, data[0]) || !bytes.Equal(stderr, data[1]) || r.exceeded() {
		t.Errorf("streams differ: %d and %d bytes, exceeded %v", len(stdout), len(stderr), r.exceeded())
	}
}

func TestCaptureHeldPipe(t *testing.T) {
	r := record(t, 10)
	held, err := unix.Dup(int(r.Stdout.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	r.CloseWriters()
	if err := r.Wait(10 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Wait = %v, want ErrDeadlineExceeded", err)
	}
	unix.Close(held)
	<-r.done
}

func TestCaptureStoreFails(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	c, err := NewCapture(full, full, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // goes on draining
		io.WriteString(c.Stdout, "lost")
	}
	c.CloseWriters()
	if err := c.Wait(time.Minute); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Wait = %v, want ENOSPC", err)
	}
}
