package runner

import (
	"encoding/json"
	"io"
	"os"
	"sync"
	"time"

	"underwrite/runner/wire"
)

// Bounds of the event stream. What does not fit is dropped: nobody's view of a
// run may slow it down or grow without end.
const (
	maxLiveBytes   = 1 << 20                // of live output per execution, both streams
	maxChunkBytes  = 16 << 10               // of live output per event
	liveInterval   = 250 * time.Millisecond // between two looks at the output
	maxQueuedBytes = 512 << 10              // encoded, waiting for a slow reader
	flushTimeout   = 2 * time.Second        // for the reader to take the last events
)

// Events writes the event stream. Its methods never block on the reader. A nil
// *Events drops everything.
type Events struct {
	w     io.WriteCloser
	mu    sync.Mutex
	wake  *sync.Cond
	queue [][]byte
	bytes int
	ended bool
	done  chan struct{}
}

// NewEvents starts a stream on w. Close ends it.
func NewEvents(w io.WriteCloser) *Events {
	e := &Events{w: w, done: make(chan struct{})}
	e.wake = sync.NewCond(&e.mu)
	go e.write()
	return e
}

// write sends what is queued. A reader that is gone ends it.
func (e *Events) write() {
	defer close(e.done)
	for {
		e.mu.Lock()
		for len(e.queue) == 0 && !e.ended {
			e.wake.Wait()
		}
		if len(e.queue) == 0 {
			e.mu.Unlock()
			return
		}
		b := e.queue[0]
		e.queue = e.queue[1:]
		e.bytes -= len(b)
		e.mu.Unlock()
		if _, err := e.w.Write(b); err != nil {
			e.mu.Lock()
			e.ended, e.queue = true, nil
			e.mu.Unlock()
			return
		}
	}
}

func (e *Events) send(v wire.Event) {
	if e == nil {
		return
	}
	v.Time = time.Now().UTC()
	b, err := json.Marshal(v)
	if err != nil {
		return // no field of an event can fail to encode
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || e.bytes+len(b) > maxQueuedBytes {
		return
	}
	e.queue = append(e.queue, append(b, '\n'))
	e.bytes += len(b) + 1
	e.wake.Signal()
}

// Close gives the reader a moment to take what is queued, then closes.
func (e *Events) Close() {
	if e == nil {
		return
	}
	e.mu.Lock()
	e.ended = true
	e.wake.Signal()
	e.mu.Unlock()
	if f, ok := e.w.(*os.File); ok {
		f.SetWriteDeadline(time.Now().Add(flushTimeout)) // only pipes and sockets can; others do not block
	}
	select {
	case <-e.done:
	case <-time.After(flushTimeout):
	}
	e.w.Close()
}

// live sends what appears in the two output files until stop is closed, and then
// what is left. The files are read, never the pipes: watching cannot disturb the
// capture.
func (e *Events) live(stdout, stderr io.ReaderAt, stop <-chan struct{}) {
	tick := time.NewTicker(liveInterval)
	defer tick.Stop()
	streams := [2]tail{{r: stdout}, {r: stderr}}
	left := maxLiveBytes
	for {
		select {
		case <-stop:
			for e.look(&streams, &left) > 0 {
			}
			return
		case <-tick.C:
			e.look(&streams, &left)
		}
	}
}

// tail reads a growing file.
type tail struct {
	r  io.ReaderAt
	at int64
}

// look sends at most one chunk of each stream and returns how many bytes.
func (e *Events) look(streams *[2]tail, left *int) (sent int) {
	for i := range streams {
		b := make([]byte, min(maxChunkBytes, *left))
		n, _ := streams[i].r.ReadAt(b, streams[i].at)
		if n == 0 {
			continue
		}
		streams[i].at += int64(n)
		*left -= n
		sent += n
		if i == 0 {
			e.send(wire.Event{Stdout: b[:n]})
		} else {
			e.send(wire.Event{Stderr: b[:n]})
		}
	}
	return sent
}
