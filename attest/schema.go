package attest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Byte limits of an executable vector and of paths ("Job").
const (
	// MaxVectorBytes bounds all argv and environment strings with their NUL and
	// one 8-byte pointer each, and the two NULL pointers: what Linux accepts.
	MaxVectorBytes = 128 << 10
	// MaxStringBytes bounds one argument or name=value string, without its NUL.
	MaxStringBytes    = 128<<10 - 1
	MaxCwdBytes       = 4096
	MaxPathBytes      = 4095
	MaxComponentBytes = 255
	pointerBytes      = 8
)

var (
	repoPattern  = regexp.MustCompile(`\A[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+\z`)
	uuidPattern  = regexp.MustCompile(`\A[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\z`)
	keyIDPattern = regexp.MustCompile(`\Asha256:[0-9a-f]{64}\z`)
	namePattern  = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\z`)
)

// decoder turns values of ReadJSON into typed documents. It keeps the first
// error and goes on with zero values, so that a document reads as a list of its
// fields. Every typed value is checked by the same code: Validate encodes it and
// decodes it again.
type decoder struct{ err error }

func (d *decoder) fail(field, format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %w", ErrSchema, &FieldError{Field: field, Reason: fmt.Sprintf(format, args...)})
	}
}

// object requires an object with exactly these keys.
func (d *decoder) object(v any, field string, keys ...string) map[string]any {
	m, ok := v.(map[string]any)
	if !ok {
		d.fail(field, "must be an object")
		return nil
	}
	for _, key := range keys {
		if _, ok := m[key]; !ok {
			d.fail(field, "is missing %s", key)
		}
	}
	if len(m) > len(keys) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !slices.Contains(keys, key) {
				d.fail(field, "has the unknown field %s", strconv.QuoteToASCII(clip(key)))
			}
		}
	}
	return m
}

// text requires valid UTF-8 without NUL; it may be empty.
func (d *decoder) text(v any, field string) string {
	s, ok := v.(string)
	switch {
	case !ok:
		d.fail(field, "must be text")
	case strings.ContainsRune(s, 0):
		d.fail(field, "must not contain NUL")
	case !utf8.ValidString(s):
		d.fail(field, "must be valid UTF-8")
	}
	return s
}

// filled requires text that is not empty.
func (d *decoder) filled(v any, field string) string {
	s := d.text(v, field)
	if s == "" {
		d.fail(field, "must not be empty")
	}
	return s
}

func (d *decoder) literal(v any, field string, words ...string) string {
	s, ok := v.(string)
	if !ok || !slices.Contains(words, s) {
		d.fail(field, "must be %s", strings.Join(words, " or "))
	}
	return s
}

func (d *decoder) match(v any, field, what string, pattern *regexp.Regexp) string {
	s, ok := v.(string)
	if !ok || !pattern.MatchString(s) {
		d.fail(field, "must be %s", what)
	}
	return s
}

// hex requires exactly this many lower-case hex digits.
func (d *decoder) hex(v any, field string, digits int) string {
	s, ok := v.(string)
	if !ok || !isHex(s, digits) {
		d.fail(field, "must be %d lower-case hex digits", digits)
	}
	return s
}

func (d *decoder) sha1(v any, field string) string   { return d.hex(v, field, 40) }
func (d *decoder) sha256(v any, field string) string { return d.hex(v, field, 64) }

func isHex(s string, digits int) bool {
	if len(s) != digits {
		return false
	}
	for _, c := range []byte(s) {
		if !isDigit(c) && (c < 'a' || 'f' < c) {
			return false
		}
	}
	return true
}

func (d *decoder) integer(v any, field string, least, most int64) int64 {
	n, ok := v.(int64)
	if !ok || n < least || n > most {
		d.fail(field, "must be an integer from %d to %d", least, most)
	}
	return n
}

func (d *decoder) positive(v any, field string) int64 { return d.integer(v, field, 1, MaxInteger) }
func (d *decoder) count(v any, field string) int64    { return d.integer(v, field, 0, MaxInteger) }

// version requires the integer 1: true and 1.0 are not 1.
func (d *decoder) version(v any, field string) int64 { return d.integer(v, field, 1, 1) }

func (d *decoder) timestamp(v any, field string) string {
	s, ok := v.(string)
	if !ok {
		d.fail(field, "must be a timestamp")
	} else if _, err := ParseTimestamp(s); err != nil {
		d.fail(field, "must be a timestamp: %v", err)
	}
	return s
}

// cwd requires a normalized relative path.
func (d *decoder) cwd(v any, field string) string {
	s := d.filled(v, field)
	if s == "." {
		return s
	}
	// The reference refuses U+0000 to U+001F and U+007F only, but the text
	// says control characters, which U+0080 to U+009F are too.
	if strings.ContainsFunc(s, unicode.IsControl) {
		d.fail(field, "must not contain control characters")
	}
	d.components(s, field, MaxCwdBytes)
	return s
}

// absolutePath requires a normalized absolute path of a file.
func (d *decoder) absolutePath(v any, field string) string {
	s := d.filled(v, field)
	rest, ok := strings.CutPrefix(s, "/")
	if !ok {
		d.fail(field, "must be absolute")
	}
	// The text names no control characters here; the reference refuses these.
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		d.fail(field, "must not contain control characters")
	}
	d.components(rest, field, MaxPathBytes-1)
	return s
}

func (d *decoder) components(path, field string, most int) {
	if strings.Contains(path, `\`) {
		d.fail(field, "must not contain a backslash")
	}
	if len(path) > most {
		d.fail(field, "is too long: %d bytes", len(path))
	}
	for component := range strings.SplitSeq(path, "/") {
		if component == "" || component == "." || component == ".." {
			d.fail(field, "must be normalized")
		}
		if len(component) > MaxComponentBytes {
			d.fail(field, "has a component above %d bytes", MaxComponentBytes)
		}
	}
}
