package attest

import (
	"fmt"
	"time"
)

// Shape of a protocol timestamp: whole seconds, then Z, or a point and one to
// six digits before it.
const (
	timestampSeconds = "2006-01-02T15:04:05"
	maxFraction      = 6
)

// ParseTimestamp parses a protocol timestamp: RFC 3339 in UTC, ending in Z,
// with at most six fractional digits, years 1 to 9999, no leap second. Errors
// wrap ErrTimestamp.
func ParseTimestamp(s string) (time.Time, error) {
	if !timestampShape(s) {
		return time.Time{}, fmt.Errorf("%w: not RFC 3339 in UTC ending in Z", ErrTimestamp)
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() < 1 {
		return time.Time{}, fmt.Errorf("%w: no such time", ErrTimestamp)
	}
	return t.UTC(), nil
}

// timestampShape checks each byte, because time.Parse also takes a comma, an
// offset and any number of fractional digits.
func timestampShape(s string) bool {
	n := len(timestampSeconds)
	if len(s) < n+1 || s[len(s)-1] != 'Z' {
		return false
	}
	for i := range n {
		if want := timestampSeconds[i]; isDigit(want) != isDigit(s[i]) || !isDigit(want) && s[i] != want {
			return false
		}
	}
	fraction := s[n : len(s)-1]
	if fraction == "" {
		return true
	}
	if fraction[0] != '.' || len(fraction) < 2 || len(fraction) > maxFraction+1 {
		return false
	}
	for _, c := range []byte(fraction[1:]) {
		if !isDigit(c) {
			return false
		}
	}
	return true
}

// FormatTimestamp writes t as a producer does: UTC, cut to microseconds, six
// fractional digits unless they are all zero. A year outside 1 to 9999 gives a
// text that ParseTimestamp refuses.
func FormatTimestamp(t time.Time) string {
	t = t.UTC().Truncate(time.Microsecond)
	if t.Nanosecond() == 0 {
		return t.Format(timestampSeconds + "Z")
	}
	return t.Format(timestampSeconds + ".000000Z")
}
