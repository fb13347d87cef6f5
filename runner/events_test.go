package runner

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"underwrite/runner/wire"
)

// recorder is a reader of the event stream that always keeps up.
type recorder struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

func (r *recorder) Close() error { return nil }

// TestEventsNeverBlock: a reader that takes nothing costs the run nothing but
// the last moment, and the queue stays bounded.
func TestEventsNeverBlock(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	e := NewEvents(w)
	chunk := bytes.Repeat([]byte("x"), maxChunkBytes)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for range 1000 {
			e.send(wire.Event{Stdout: chunk})
		}
	}()
	select {
	case <-sent:
	case <-time.After(time.Minute):
		t.Fatal("sending blocks on the reader")
	}
	e.mu.Lock()
	queued := e.bytes
	e.mu.Unlock()
	if queued > maxQueuedBytes+2*maxChunkBytes {
		t.Errorf("%d bytes are queued", queued)
	}
	closed := make(chan struct{})
	go func() { defer close(closed); e.Close() }()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatal("closing blocks on the reader")
	}
}

// TestEventsReaderGone: a broken pipe ends the stream and nothing else.
func TestEventsReaderGone(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	r.Close()
	e := NewEvents(w)
	for range 10 {
		e.send(wire.Event{Phase: wire.PhaseRun})
	}
	e.Close()
}

func TestNilEvents(t *testing.T) {
	var e *Events
	e.send(wire.Event{Phase: wire.PhaseRun})
	e.Close()
}

// TestLiveOutput: what is live is a prefix of each stream, complete if small,
// and never more than the bound.
func TestLiveOutput(t *testing.T) {
	for name, size := range map[string]int{"nothing": 0, "small": 3 * maxChunkBytes, "too much": 2 * maxLiveBytes} {
		t.Run(name, func(t *testing.T) {
			rec := &recorder{}
			e := NewEvents(rec)
			content := strings.Repeat("0123456789abcdef", size/16)
			stop := make(chan struct{})
			close(stop)
			e.live(strings.NewReader(content), strings.NewReader(""), stop)
			e.Close()
			var got []byte
			must(t, wire.ReadEvents(&rec.buf, func(v wire.Event) { got = append(got, v.Stdout...) }))
			if !strings.HasPrefix(content, string(got)) {
				t.Error("live output is no prefix of the stream")
			}
			if len(got) > maxLiveBytes || name != "too much" && len(got) != len(content) {
				t.Errorf("%d of %d bytes are live", len(got), len(content))
			}
		})
	}
}
