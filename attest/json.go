package attest

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxJSONDepth is how many arrays and objects may stand within each other. The
// protocol's own objects need eight; ignored envelope extensions may be deeper.
const MaxJSONDepth = 512

// Float is a JSON number with a fraction or an exponent, as it was written. The
// reader accepts one so that an ignored envelope extension may hold it; no
// protocol object may, and CanonicalJSON refuses it.
type Float string

// ReadJSON reads exactly one JSON value (RFC 8259) from untrusted bytes. On top
// of the grammar it refuses what parsers read differently: invalid UTF-8, a
// byte order mark, duplicate keys in any object, unpaired surrogates, integers
// beyond ±(2^53-1) and nesting beyond MaxJSONDepth.
//
// The result is built from nil, bool, int64, Float, string, []any and
// map[string]any. Minus zero is the integer 0. Errors wrap ErrJSON.
func ReadJSON(data []byte) (any, error) {
	if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
		return nil, fmt.Errorf("%w: starts with a byte order mark", ErrJSON)
	}
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("%w: invalid UTF-8", ErrJSON)
	}
	r := &reader{data: data}
	v, err := r.value(0)
	if err != nil {
		return nil, err
	}
	r.space()
	if r.pos != len(r.data) {
		return nil, r.fail("bytes after the value")
	}
	return v, nil
}

// reader is a position in valid UTF-8.
type reader struct {
	data []byte
	pos  int
}

func (r *reader) fail(reason string) error {
	return fmt.Errorf("%w: %s at byte %d", ErrJSON, reason, r.pos)
}

// space skips the four white space bytes of RFC 8259 and no others.
func (r *reader) space() {
	for r.pos < len(r.data) {
		switch r.data[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

// next skips white space and returns the byte that follows, 0 at the end. A
// NUL byte in the input is 0 too: no token begins with it.
func (r *reader) next() byte {
	r.space()
	return r.peek()
}

func (r *reader) peek() byte {
	if r.pos < len(r.data) {
		return r.data[r.pos]
	}
	return 0
}

// value reads a value that stands in depth arrays and objects.
func (r *reader) value(depth int) (any, error) {
	switch c := r.next(); {
	case (c == '{' || c == '[') && depth == MaxJSONDepth:
		return nil, r.fail("nested too deeply")
	case c == '{':
		return r.object(depth + 1)
	case c == '[':
		return r.array(depth + 1)
	case c == '"':
		return r.text()
	case c == '-' || isDigit(c):
		return r.number()
	case c == 't':
		return true, r.literal("true")
	case c == 'f':
		return false, r.literal("false")
	case c == 'n':
		return nil, r.literal("null")
	}
	return nil, r.fail("no value")
}

func (r *reader) literal(word string) error {
	if !bytes.HasPrefix(r.data[r.pos:], []byte(word)) {
		return r.fail("no value")
	}
	r.pos += len(word)
	return nil
}

func (r *reader) object(depth int) (any, error) {
	r.pos++ // {
	members := map[string]any{}
	if r.next() == '}' {
		r.pos++
		return members, nil
	}
	for {
		if err := r.member(members, depth); err != nil {
			return nil, err
		}
		switch r.next() {
		case ',':
			r.pos++
		case '}':
			r.pos++
			return members, nil
		default:
			return nil, r.fail("object is not closed")
		}
	}
}

func (r *reader) member(members map[string]any, depth int) error {
	if r.next() != '"' {
		return r.fail("no key")
	}
	key, err := r.text()
	if err != nil {
		return err
	}
	if _, twice := members[key]; twice {
		return r.fail("duplicate key " + strconv.QuoteToASCII(clip(key)))
	}
	if r.next() != ':' {
		return r.fail("no colon")
	}
	r.pos++
	v, err := r.value(depth)
	if err != nil {
		return err
	}
	members[key] = v
	return nil
}

func (r *reader) array(depth int) (any, error) {
	r.pos++ // [
	items := []any{}
	if r.next() == ']' {
		r.pos++
		return items, nil
	}
	for {
		v, err := r.value(depth)
		if err != nil {
			return nil, err
		}
		items = append(items, v)
		switch r.next() {
		case ',':
			r.pos++
		case ']':
			r.pos++
			return items, nil
		default:
			return nil, r.fail("array is not closed")
		}
	}
}

// text reads a string that begins at the position.
func (r *reader) text() (string, error) {
	r.pos++ // "
	start := r.pos
	var buf []byte // nil until the first escape
	for r.pos < len(r.data) {
		switch c := r.data[r.pos]; {
		case c == '"':
			s := string(append(buf, r.data[start:r.pos]...))
			r.pos++
			return s, nil
		case c == '\\':
			buf = append(buf, r.data[start:r.pos]...)
			char, err := r.escape()
			if err != nil {
				return "", err
			}
			buf = utf8.AppendRune(buf, char)
			start = r.pos
		case c < ' ':
			return "", r.fail("control character in a string")
		default:
			r.pos++
		}
	}
	return "", r.fail("string is not closed")
}

// shortEscapes maps the byte after a backslash to what it stands for.
var shortEscapes = map[byte]rune{
	'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
}

// escape reads one escape, or the two of a surrogate pair.
func (r *reader) escape() (rune, error) {
	r.pos++ // backslash
	c := r.peek()
	if char, ok := shortEscapes[c]; ok {
		r.pos++
		return char, nil
	}
	if c != 'u' {
		return 0, r.fail("unknown escape")
	}
	first, err := r.hex4()
	if err != nil || !utf16.IsSurrogate(first) {
		return first, err
	}
	if !bytes.HasPrefix(r.data[r.pos:], []byte(`\u`)) {
		return 0, r.fail("unpaired surrogate")
	}
	r.pos++
	second, err := r.hex4()
	if err != nil {
		return 0, err
	}
	char := utf16.DecodeRune(first, second)
	if char == utf8.RuneError {
		return 0, r.fail("unpaired surrogate")
	}
	return char, nil
}

// hex4 reads the u and the four digits of an escape.
func (r *reader) hex4() (rune, error) {
	r.pos++ // u
	if len(r.data)-r.pos < 4 {
		return 0, r.fail("short escape")
	}
	var char rune
	for _, c := range r.data[r.pos : r.pos+4] {
		digit := bytes.IndexByte([]byte("0123456789abcdef"), c|0x20)
		if digit < 0 || !isDigit(c) && c < 'A' {
			return 0, r.fail("bad digit in an escape")
		}
		char = char<<4 | rune(digit)
	}
	r.pos += 4
	return char, nil
}

func (r *reader) number() (any, error) {
	start := r.pos
	if r.peek() == '-' {
		r.pos++
	}
	zero := r.peek() == '0'
	whole := r.digits()
	if whole == 0 || zero && whole > 1 {
		return nil, r.fail("bad number")
	}
	float := false
	if r.peek() == '.' {
		float = true
		r.pos++
		if r.digits() == 0 {
			return nil, r.fail("bad number")
		}
	}
	if c := r.peek(); c == 'e' || c == 'E' {
		float = true
		r.pos++
		if c := r.peek(); c == '+' || c == '-' {
			r.pos++
		}
		if r.digits() == 0 {
			return nil, r.fail("bad number")
		}
	}
	if float {
		return Float(r.data[start:r.pos]), nil
	}
	return r.integer(r.data[start:r.pos])
}

// digits skips ASCII digits and returns how many there were.
func (r *reader) digits() int {
	start := r.pos
	for isDigit(r.peek()) {
		r.pos++
	}
	return r.pos - start
}

func (r *reader) integer(text []byte) (any, error) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || n > MaxInteger || n < -MaxInteger {
		return nil, r.fail("integer out of range")
	}
	return n, nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// clip shortens hostile text for an error message.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
