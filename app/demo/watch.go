package demo

import (
	"fmt"
	"io"
	"sync"
	"time"

	"underwrite/app/hubsim"
)

// A watcher prints what happens to each pull request while it happens, as
// GitHub sees it.
type watcher struct {
	out   io.Writer
	begin time.Time

	mu     sync.Mutex // guards all below and the writes to out
	number map[string]int64
	opened map[string]time.Time
	ended  map[string]time.Time
	last   map[string]string
}

func newWatcher(out io.Writer) *watcher {
	return &watcher{
		out: out, begin: time.Now(),
		number: map[string]int64{}, opened: map[string]time.Time{}, ended: map[string]time.Time{}, last: map[string]string{},
	}
}

// say prints one line with the seconds since the start.
func (w *watcher) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line(format, args...)
}

func (w *watcher) line(format string, args ...any) {
	fmt.Fprintf(w.out, "%6.1fs  %s\n", time.Since(w.begin).Seconds(), fmt.Sprintf(format, args...))
}

// pullOpened remembers which head commit belongs to which pull request.
func (w *watcher) pullOpened(pr hubsim.PullRequest, title string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.number[pr.HeadSHA] = pr.Number
	w.opened[pr.HeadSHA] = time.Now()
	w.line("#%d  opened       %s (head %.10s)", pr.Number, title, pr.HeadSHA)
	if early, ok := w.last[pr.HeadSHA]; ok { // its check run was faster than we
		w.line("#%d  %s", pr.Number, early)
	}
}

// checkRun is called by the hub for each new version of a check run.
func (w *watcher) checkRun(run hubsim.CheckRun) {
	w.mu.Lock()
	defer w.mu.Unlock()
	state := run.Status
	if run.Conclusion != "" {
		state = run.Conclusion
		if _, known := w.ended[run.HeadSHA]; !known {
			w.ended[run.HeadSHA] = time.Now()
		}
	}
	now := fmt.Sprintf("%-11s  %s: %s", state, run.Name, run.Title)
	if w.last[run.HeadSHA] == now {
		return
	}
	w.last[run.HeadSHA] = now
	if n, ok := w.number[run.HeadSHA]; ok {
		w.line("#%d  %s", n, now)
	}
}

// seconds is how long the pull request with this head took, to the millisecond.
func (w *watcher) seconds(head string) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended[head].Sub(w.opened[head]).Round(time.Millisecond).Seconds()
}
