package freeze

import (
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

// importRefs returns the references `@path` of a Markdown text in their order,
// without repetitions, as they are written (resolveImport makes paths of them).
//
// Not searched are fenced code, lines indented by four columns or a tab, code
// spans (which end on their line) and HTML comments. A comment or a code span
// that never ends is plain text, so that an unpaired marker cannot hide the
// imports behind it.
//
// An import begins with @ that does not follow a letter, a digit, _ or another
// @ (so an e-mail address is none) and has at least one letter, digit or _. It
// goes on for letters, digits and the characters _ . + - /, less the dots and
// slashes at its end. A URL is none. A first character ~ or / belongs to it:
// such an import leaves the repository and must not be overlooked.
func importRefs(text string) []string {
	var refs []string
	seen := map[string]bool{}
	for _, piece := range prose(text) {
		for _, ref := range pieceRefs(piece) {
			if !seen[ref] {
				seen[ref] = true
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

// prose returns the parts of the text that importRefs searches. No import can
// run across the border of two parts.
func prose(text string) []string {
	s := &proseScanner{text: text}
	var open fence
	for s.pos < len(text) {
		line := text[s.pos:s.lineEnd(s.pos)]
		mark := fenceOf(line)
		switch {
		case open.length > 0:
			if mark.closes(open) {
				open = fence{}
			}
			s.pos += len(line) + 1
		case mark.length > 0:
			open = mark
			s.pos += len(line) + 1
		case strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t"):
			s.pos += len(line) + 1
		default:
			s.inline()
		}
	}
	return s.pieces
}

type proseScanner struct {
	text      string
	pos       int // begin of the next line
	pieces    []string
	noComment bool // no comment ends behind pos
}

// inline takes the pieces of the line at pos. When a comment begins on it, the
// line goes on where that comment ends: what follows there can neither open a
// fence nor be indented code.
func (s *proseScanner) inline() {
	begin, i, end := s.pos, s.pos, s.lineEnd(s.pos)
	for i < end {
		skip := 0 // index behind a code span or comment at i
		switch {
		case s.text[i] == '`':
			run := runLength(s.text[i:end])
			if skip = i + spanEnd(s.text[i:end], run); skip < i {
				skip = 0
				i += run - 1
			}
		case strings.HasPrefix(s.text[i:end], "<!--"):
			skip = s.commentEnd(i + len("<!--"))
		}
		if skip == 0 {
			i++
			continue
		}
		s.pieces = append(s.pieces, s.text[begin:i])
		begin, i, end = skip, skip, s.lineEnd(skip)
	}
	s.pieces = append(s.pieces, s.text[begin:end])
	s.pos = end + 1
}

// commentEnd returns the index behind the end of a comment, or 0.
func (s *proseScanner) commentEnd(from int) int {
	if s.noComment {
		return 0
	}
	n := strings.Index(s.text[from:], "-->")
	if n < 0 {
		s.noComment = true
		return 0
	}
	return from + n + len("-->")
}

func (s *proseScanner) lineEnd(from int) int {
	if n := strings.IndexByte(s.text[from:], '\n'); n >= 0 {
		return from + n
	}
	return len(s.text)
}

// fence is the marker of a fenced code block; length 0 is none.
type fence struct {
	char   byte
	length int
	info   bool // something follows: it cannot close a block
}

func fenceOf(line string) fence {
	body := strings.TrimLeft(line, " ")
	if len(line)-len(body) > 3 || body == "" || (body[0] != '`' && body[0] != '~') {
		return fence{}
	}
	n := runLength(body)
	info := strings.TrimSpace(body[n:])
	if n < 3 || (body[0] == '`' && strings.Contains(info, "`")) {
		return fence{}
	}
	return fence{char: body[0], length: n, info: info != ""}
}

func (f fence) closes(open fence) bool {
	return f.char == open.char && f.length >= open.length && !f.info
}

// runLength counts how often the first byte of s repeats.
func runLength(s string) int {
	n := 0
	for n < len(s) && s[n] == s[0] {
		n++
	}
	return n
}

// spanEnd returns the length of the code span that line begins with and that n
// backticks open: up to the next run of exactly n. It is -1 if there is none.
func spanEnd(line string, n int) int {
	for i := n; i < len(line); {
		if line[i] != '`' {
			i++
			continue
		}
		run := runLength(line[i:])
		i += run
		if run == n {
			return i
		}
	}
	return -1
}

// pieceRefs finds the imports of a piece of prose.
func pieceRefs(piece string) []string {
	var refs []string
	for i := 0; i < len(piece); i++ {
		if piece[i] != '@' {
			continue
		}
		before, _ := utf8.DecodeLastRuneInString(piece[:i])
		if i > 0 && (before == '@' || isWord(before)) {
			continue
		}
		if ref := refAt(piece[i+1:]); ref != "" {
			refs = append(refs, ref)
		}
	}
	return refs
}

// refAt returns the reference at the beginning of s, or "".
func refAt(s string) string {
	end := strings.IndexFunc(s, func(r rune) bool { return !isWord(r) && !strings.ContainsRune(".+-/~", r) })
	if end < 0 {
		end = len(s)
	}
	if strings.HasPrefix(s[end:], "://") {
		return ""
	}
	ref := strings.TrimRight(s[:end], "./")
	if !strings.ContainsFunc(ref, isWord) {
		return ""
	}
	return ref
}

func isWord(r rune) bool {
	return r == '_' || (r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r)))
}

// resolveImport returns the repository path that ref means in the file at
// from, or false when it leaves the repository.
func resolveImport(from, ref string) (string, bool) {
	if strings.HasPrefix(ref, "/") || strings.HasPrefix(ref, "~") {
		return "", false
	}
	p := path.Join(path.Dir(from), ref)
	if p == "." || p == ".." || strings.HasPrefix(p, "../") {
		return "", false
	}
	return p, true
}
