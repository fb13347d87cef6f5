package controller

import (
	"context"
	"sync"
	"time"

	"underwrite/runner/wire"
	"underwrite/store"
)

// Bounds of what is kept of an execution's events. They are hostile and only
// serve people who watch, and the title of a check run without a receipt.
const (
	tailBytes      = 32 << 10 // end of each live stream
	faultTextBytes = 1 << 10  // each text of a fault
	progressEvery  = 10 * time.Second
)

// live is what this process is doing right now. It is lost with the process,
// and nothing but progress and cancelling depends on it.
type live struct {
	mu         sync.Mutex
	sessions   map[string]context.CancelFunc // being frozen
	executions map[int64]*run                // at the gateway
}

// run is one execution at the gateway. mu guards all but the first fields.
type run struct {
	cancel     context.CancelFunc
	checkRunID int64

	mu      sync.Mutex
	phase   string
	running bool      // whether it was shown that the job runs
	shown   time.Time // when progress was last asked to be posted
	fault   *wire.Fault
	stdout  tail
	stderr  tail
}

// freezing registers the freezing of a session, so that stop cancels it. It is
// false if that is under way already.
func (l *live) freezing(ctx context.Context, id string) (context.Context, func(), bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, busy := l.sessions[id]; busy {
		return ctx, func() {}, false
	}
	ctx, cancel := context.WithCancel(ctx)
	if l.sessions == nil {
		l.sessions = map[string]context.CancelFunc{}
	}
	l.sessions[id] = cancel
	return ctx, func() {
		cancel()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.sessions, id)
	}, true
}

// executing registers an execution; false if it is under way already.
func (l *live) executing(ctx context.Context, x store.Execution) (context.Context, *run, func(), bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, busy := l.executions[x.ID]; busy {
		return ctx, nil, func() {}, false
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &run{cancel: cancel, checkRunID: x.CheckRunID}
	if l.executions == nil {
		l.executions = map[int64]*run{}
	}
	l.executions[x.ID] = r
	return ctx, r, func() {
		cancel()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.executions, x.ID)
	}, true
}

// stop cancels the work that the store says is useless by now.
func (l *live) stop(s store.Stopped) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range s.Sessions {
		if cancel := l.sessions[id]; cancel != nil {
			cancel()
		}
	}
	for _, id := range s.Executions {
		if r := l.executions[id]; r != nil {
			r.cancel()
		}
	}
}

// phase is how far an execution is, as the gateway said; "" if unknown.
func (l *live) phase(id int64) string {
	l.mu.Lock()
	r := l.executions[id]
	l.mu.Unlock()
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.phase
}

// event takes in one event. It is true if a new phase is worth a post.
func (r *run) event(e wire.Event, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stdout.add(e.Stdout)
	r.stderr.add(e.Stderr)
	if e.Fault != nil {
		f := *e.Fault
		f.Kind, f.Path, f.Detail = clip(f.Kind), clip(f.Path), clip(f.Detail)
		r.fault = &f
	}
	if e.Phase == "" || e.Phase == r.phase {
		return false
	}
	r.phase = clip(e.Phase)
	// Most time passes while the job runs: that it does is shown at once.
	running := e.Phase == wire.PhaseRun && !r.running
	if !running && now.Sub(r.shown) < progressEvery {
		return false
	}
	r.running = r.running || running
	r.shown = now
	return true
}

// ended is what the events said about how it ended.
func (r *run) ended() (*wire.Fault, store.Tails) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault, store.Tails{Stdout: r.stdout.bytes(), Stderr: r.stderr.bytes()}
}

func clip(s string) string { return s[:min(len(s), faultTextBytes)] }

// tail keeps the last tailBytes bytes.
type tail struct{ b []byte }

func (t *tail) add(b []byte) {
	t.b = append(t.b, b...)
	if len(t.b) > 2*tailBytes {
		t.b = append(t.b[:0], t.b[len(t.b)-tailBytes:]...)
	}
}

func (t *tail) bytes() []byte { return t.b[max(0, len(t.b)-tailBytes):] }

// keyed holds one lock for each key in use.
type keyed struct {
	mu    sync.Mutex
	locks map[string]*keyLock
}

type keyLock struct {
	sync.Mutex
	users int
}

// lock waits for the key and returns the function that gives it back.
func (k *keyed) lock(key string) (unlock func()) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = map[string]*keyLock{}
	}
	l := k.locks[key]
	if l == nil {
		l = &keyLock{}
		k.locks[key] = l
	}
	l.users++
	k.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, key)
		}
	}
}

// slots count what runs at once under a key.
type slots struct {
	mu   sync.Mutex
	used map[string]int
}

// take returns false if limit are in use.
func (s *slots) take(key string, limit int) (release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used[key] >= max(limit, 1) {
		return func() {}, false
	}
	if s.used == nil {
		s.used = map[string]int{}
	}
	s.used[key]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.used[key]--; s.used[key] == 0 {
			delete(s.used, key)
		}
	}, true
}

// failing remembers since when the jobs of a key fail.
type failing struct {
	mu    sync.Mutex
	first map[string]time.Time
}

func (f *failing) since(key string, now time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first == nil {
		f.first = map[string]time.Time{}
	}
	if first, ok := f.first[key]; ok {
		return first
	}
	f.first[key] = now
	return now
}

func (f *failing) clear(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.first, key)
}
