package gvisor

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A task is what the supervisor is told, as JSON on descriptor configFD.
type task struct {
	ID          string
	Cgroups     []string // directories to join
	ViewDir     string   // empty directory to build the view on
	Root        string
	HostUsr     bool // bind the host's /usr over Root's
	Workspace   string
	Executable  string   // host path of the pinned copy
	Path        string   // of the executable in the guest
	Argv        []string // exact
	Env         []string // exact, name=value
	Cwd         string   // guest path
	Processes   int64    // limit of the job
	MemoryBytes int64
}

// The supervisor's descriptors beside the standard ones.
const (
	configFD = 3 + iota // the task
	reportFD            // events to the caller
	goFD                // a byte from the caller launches the job; its end kills everything
	stdoutFD            // the job's
	stderrFD            // the job's
)

// An eventKind says how far the supervisor has come.
type eventKind string

const (
	eventReady  eventKind = "ready"  // the sandbox stands, the limit on processes is set
	eventExited eventKind = "exited" // the job has ended: Status, or Errno if it never ran
	eventUsage  eventKind = "usage"  // counters from inside; the last one comes after exited
	eventDone   eventKind = "done"   // the sandbox has been destroyed: the report is complete
	eventError  eventKind = "error"  // nothing follows
)

// An event is one line of the supervisor's report.
type event struct {
	Kind    eventKind
	Status  uint32 `json:",omitempty"` // wait status
	Errno   int64  `json:",omitempty"` // why the job could not be executed
	Peak    int64  `json:",omitempty"` // most tasks of the job at a time
	Denials int64  `json:",omitempty"` // tasks refused at the limit
	Error   string `json:",omitempty"`
}

// maxEventBytes bounds one line: the supervisor talks to the sentry, so a
// taken sentry might take it too.
const maxEventBytes = 64 << 10

// readEvents decodes the report into events until it ends. The last error is
// nil at a clean end.
func readEvents(r io.Reader, events chan<- event) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 4<<10), maxEventBytes)
	for lines.Scan() {
		e, err := parseEvent(lines.Bytes())
		if err != nil {
			return err
		}
		events <- e
	}
	return lines.Err()
}

func parseEvent(line []byte) (event, error) {
	var e event
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		return event{}, fmt.Errorf("supervisor's report: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return event{}, errors.New("supervisor's report: more than one event in a line")
	}
	switch e.Kind {
	case eventReady, eventExited, eventUsage, eventDone, eventError:
	default:
		return event{}, fmt.Errorf("supervisor's report: event %q", e.Kind)
	}
	if e.Peak < 0 || e.Denials < 0 || e.Errno < 0 {
		return event{}, fmt.Errorf("supervisor's report: negative count in %q", e.Kind)
	}
	return e, nil
}
