package attest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"
)

// CanonicalJSON encodes a value made of the types that ReadJSON returns, also
// int, as the protocol's "Canonical JSON" says: keys sorted by code point, no
// white space, only the escapes that JSON requires. A Float, any other type,
// invalid UTF-8, an integer beyond ±(2^53-1) and nesting beyond MaxJSONDepth
// are errors, which wrap ErrSchema.
func CanonicalJSON(v any) ([]byte, error) { return appendCanonical(nil, v, 0) }

var errDepth = fmt.Errorf("%w: nested too deeply", ErrSchema)

func appendCanonical(b []byte, v any, depth int) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case int:
		return appendInteger(b, int64(v))
	case int64:
		return appendInteger(b, v)
	case string:
		return appendText(b, v)
	case []any:
		return appendArray(b, v, depth+1)
	case map[string]any:
		return appendObject(b, v, depth+1)
	}
	return nil, fmt.Errorf("%w: %T has no canonical form", ErrSchema, v)
}

func appendInteger(b []byte, n int64) ([]byte, error) {
	if n > MaxInteger || n < -MaxInteger {
		return nil, fmt.Errorf("%w: integer %d is out of range", ErrSchema, n)
	}
	return strconv.AppendInt(b, n, 10), nil
}

func appendArray(b []byte, items []any, depth int) (_ []byte, err error) {
	if depth > MaxJSONDepth {
		return nil, errDepth
	}
	b = append(b, '[')
	for i, item := range items {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendCanonical(b, item, depth); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

// appendObject sorts by bytes, which for valid UTF-8 is by code point.
func appendObject(b []byte, members map[string]any, depth int) (_ []byte, err error) {
	if depth > MaxJSONDepth {
		return nil, errDepth
	}
	b = append(b, '{')
	for i, key := range slices.Sorted(maps.Keys(members)) {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendText(b, key); err != nil {
			return nil, err
		}
		b = append(b, ':')
		if b, err = appendCanonical(b, members[key], depth); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendText(b []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, fmt.Errorf("%w: text is not valid UTF-8", ErrSchema)
	}
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, `\b`...)
		case '\t':
			b = append(b, `\t`...)
		case '\n':
			b = append(b, `\n`...)
		case '\f':
			b = append(b, `\f`...)
		case '\r':
			b = append(b, `\r`...)
		default:
			if c < ' ' {
				b = fmt.Appendf(b, `\u%04x`, c)
			} else {
				b = append(b, c)
			}
		}
	}
	return append(b, '"'), nil
}

// SHA256Hex returns the SHA-256 of data as 64 lower-case hex digits.
func SHA256Hex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
