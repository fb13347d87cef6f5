package checks

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxBackticks is the longest run of backticks that is shown as it is. Longer
// ones are broken by an escape, so that a fence around hostile text stays short.
const maxBackticks = 64

// maxEscapeBytes bounds one terminal control string. A longer or unfinished one
// is shown, not removed: else a single ESC could hide all that follows.
const maxEscapeBytes = 4096

const esc = 0x1b

// Visible returns s as valid UTF-8 that shows what it contains: invalid bytes,
// control, bidirectional, invisible and unassigned characters are written as
// escapes (\x1b, \u202e). Line feeds and tabs stay only if multiline is set.
func Visible(s string, multiline bool) string {
	var b strings.Builder
	b.Grow(len(s))
	ticks := 0
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if r == '`' {
			ticks++
		} else {
			ticks = 0
		}
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case ticks > maxBackticks:
			b.WriteString(`\x60`)
			ticks = 0
		case (r == '\n' || r == '\t') && multiline, isShown(r):
			b.WriteString(s[:size])
		default:
			writeEscape(&b, r)
		}
		s = s[size:]
	}
	return b.String()
}

// isShown says whether a rune has a glyph of its own and leaves its neighbours
// where they are. The two joiners are part of emoji and of several scripts.
func isShown(r rune) bool {
	const zeroWidthNonJoiner, zeroWidthJoiner = 0x200c, 0x200d
	return unicode.IsGraphic(r) || r == zeroWidthNonJoiner || r == zeroWidthJoiner
}

func writeEscape(b *strings.Builder, r rune) {
	switch {
	case r == '\n':
		b.WriteString(`\n`)
	case r == '\t':
		b.WriteString(`\t`)
	case r == '\r':
		b.WriteString(`\r`)
	case r < 0x80:
		fmt.Fprintf(b, `\x%02x`, r)
	case r > 0xffff:
		fmt.Fprintf(b, `\U%08x`, r)
	default:
		fmt.Fprintf(b, `\u%04x`, r)
	}
}

// plainStream turns the raw bytes of a stream into text that is safe inside a
// fence: terminal sequences are removed, a carriage return ends its line (so
// that nothing is overwritten), the rest is made Visible.
func plainStream(raw []byte) string {
	raw = stripTerminal(raw)
	raw = bytes.ReplaceAll(raw, []byte("\r\n"), []byte("\n"))
	raw = bytes.ReplaceAll(raw, []byte("\r"), []byte("\n"))
	return Visible(string(raw), true)
}

// stripTerminal removes the control sequences of ECMA-48: CSI, control strings
// (OSC, DCS, SOS, PM, APC) and the two- and three-byte escapes.
func stripTerminal(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for len(raw) > 0 {
		i := bytes.IndexByte(raw, esc)
		if i < 0 {
			return append(out, raw...)
		}
		out = append(out, raw[:i]...)
		raw = raw[i:]
		n := sequence(raw)
		if n == 0 { // no complete sequence: keep the ESC, it becomes visible
			out = append(out, esc)
			n = 1
		}
		raw = raw[n:]
	}
	return out
}

// sequence returns the length of the control sequence at the start of b, which
// begins with ESC, or 0.
func sequence(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch c := b[1]; {
	case c == '[':
		return csi(b)
	case c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_':
		return controlString(b)
	case c >= 0x20 && c <= 0x2f: // intermediate bytes, then a final one
		n := span(b, 2, 0x20, 0x2f)
		if n < len(b) && b[n] >= 0x30 && b[n] <= 0x7e {
			return n + 1
		}
		return 0
	case c >= 0x30 && c <= 0x7e:
		return 2
	}
	return 0
}

// csi measures ESC [, parameter bytes, intermediate bytes, one final byte.
func csi(b []byte) int {
	n := span(b, 2, 0x30, 0x3f)
	n = span(b, n, 0x20, 0x2f)
	if n < len(b) && b[n] >= 0x40 && b[n] <= 0x7e {
		return n + 1
	}
	return 0
}

// controlString measures a string that ends with BEL or ESC \ on its own line.
func controlString(b []byte) int {
	for n := 2; n < len(b) && n < maxEscapeBytes; n++ {
		switch {
		case b[n] == 0x07:
			return n + 1
		case b[n] == esc && n+1 < len(b) && b[n+1] == '\\':
			return n + 2
		case b[n] == '\n' || b[n] == esc:
			return 0
		}
	}
	return 0
}

func span(b []byte, n int, low, high byte) int {
	for n < len(b) && n < maxEscapeBytes && b[n] >= low && b[n] <= high {
		n++
	}
	return n
}

// code makes a Markdown code span of hostile text, at most limit bytes of it.
// A span's text is literal: no mention, link, image or HTML in it is active.
func code(s string, limit int) string {
	s = firstBytes(Visible(s, false), limit)
	if strings.TrimSpace(s) == "" {
		return "(empty)"
	}
	ticks := strings.Repeat("`", longestRun(s)+1)
	if len(ticks) == 1 {
		return ticks + s + ticks
	}
	return ticks + " " + s + " " + ticks // a space keeps outer backticks apart
}

// fence makes a fenced block of text that is Visible already.
func fence(s string) string {
	ticks := strings.Repeat("`", max(3, longestRun(s)+1))
	if s != "" && !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	return ticks + "text\n" + s + ticks + "\n"
}

func longestRun(s string) int {
	longest, run := 0, 0
	for i := range len(s) {
		if s[i] != '`' {
			run = 0
			continue
		}
		run++
		longest = max(longest, run)
	}
	return longest
}

// firstBytes cuts s to at most limit bytes at a rune boundary and marks the cut.
func firstBytes(s string, limit int) string {
	const mark = "…"
	if len(s) <= limit {
		return s
	}
	n := max(0, limit-len(mark))
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + mark
}

// lastBytes keeps the last limit bytes of s, from a rune boundary on.
func lastBytes(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	n := len(s) - limit
	for n < len(s) && !utf8.RuneStart(s[n]) {
		n++
	}
	return s[n:]
}
