package attest

import (
	"encoding/base64"
	"fmt"
	"strings"
)

// DecodeBase64 decodes canonical padded RFC 4648 base64, standard or URL-safe
// but not mixed, to 1 to most bytes ("DSSE envelope"). Nothing is skipped, and
// unused bits must be zero. Errors wrap ErrBase64.
func DecodeBase64(s string, most int) ([]byte, error) {
	if s == "" {
		return nil, fmt.Errorf("%w: empty", ErrBase64)
	}
	if len(s) > base64.StdEncoding.EncodedLen(most) {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrBase64, most)
	}
	// encoding/base64 skips line ends even in strict mode.
	if strings.ContainsAny(s, "\r\n") {
		return nil, fmt.Errorf("%w: line end", ErrBase64)
	}
	alphabet := base64.StdEncoding
	if strings.ContainsAny(s, "-_") {
		alphabet = base64.URLEncoding
	}
	decoded, err := alphabet.Strict().DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBase64, err)
	}
	if len(decoded) > most {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrBase64, most)
	}
	return decoded, nil
}
