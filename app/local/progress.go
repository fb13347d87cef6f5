package local

import (
	"fmt"
	"io"
	"time"

	"underwrite/runner/wire"
)

// Progress shows a run's phases on a terminal: a line for each, the current one
// with what the job uses. Event is its method for ProveOptions.Events.
type Progress struct {
	W       io.Writer
	phase   string
	started time.Time
}

const (
	clearLine = "\r\x1b[K"
	mebibyte  = 1 << 20
)

// Event takes one event.
func (p *Progress) Event(e wire.Event) {
	switch {
	case e.Phase != "":
		p.End()
		p.phase, p.started = shown(e.Phase), time.Now()
		fmt.Fprintf(p.W, "  %-16s", p.phase)
	case e.Usage != nil && p.phase != "":
		u := e.Usage
		fmt.Fprintf(p.W, "%s  %-16s %6.1f s  (cpu %.1f s, memory %d MiB, output %d bytes)", clearLine, p.phase,
			float64(u.WallMillis)/1e3, float64(u.CPUMillis)/1e3, u.MemoryBytes/mebibyte, u.OutputBytes)
	}
}

// shown keeps a phase's name from touching the terminal: events are not trusted.
func shown(phase string) string {
	for _, r := range phase {
		if (r < 'a' || r > 'z') && r != '-' {
			return "?"
		}
	}
	return phase[:min(len(phase), 16)]
}

// End finishes the current line.
func (p *Progress) End() {
	if p.phase != "" {
		fmt.Fprintf(p.W, "%s  %-16s %6.2f s\n", clearLine, p.phase, time.Since(p.started).Seconds())
		p.phase = ""
	}
}
