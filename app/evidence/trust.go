package evidence

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"slices"
	"time"

	"underwrite/attest"
)

// ErrUntrusted: the profile's key, signer and executor are not trusted
// together, or not now. The wrapped text says which.
var ErrUntrusted = errors.New("not trusted")

// Key is a trusted public key and what it may sign for. It comes from
// host-controlled configuration.
type Key struct {
	Public       *ecdsa.PublicKey
	SignerID     string
	ExecutorIDs  []string
	ValidFrom    time.Time // zero: no bound; inclusive
	ValidUntil   time.Time // zero: no bound; exclusive
	DistrustFrom time.Time // zero: never; nothing is consumed from then on
}

// Trust is the set of trusted keys.
type Trust []Key

// Knows reports whether the profile's key, signer and executor are trusted
// together at any time.
func (t Trust) Knows(p attest.Profile) bool {
	_, err := t.find(p)
	return err == nil
}

// find returns the key whose fingerprint the profile pins. The envelope's
// keyid plays no part.
func (t Trust) find(p attest.Profile) (Key, error) {
	for _, k := range t {
		id, err := attest.KeyID(k.Public)
		if err != nil || id != p.KeyID {
			continue
		}
		if k.SignerID != p.SignerID {
			return Key{}, fmt.Errorf("key %s belongs to signer %q, not %q: %w", id, k.SignerID, p.SignerID, ErrUntrusted)
		}
		if !slices.Contains(k.ExecutorIDs, p.ExecutorID) {
			return Key{}, fmt.Errorf("signer %q may not sign for executor %q: %w", k.SignerID, p.ExecutorID, ErrUntrusted)
		}
		return k, nil
	}
	return Key{}, fmt.Errorf("key %s: %w", p.KeyID, ErrUntrusted)
}

// verifier returns a verifier for the one key that the profile pins, if it is
// valid now.
func (t Trust) verifier(p attest.Profile, now time.Time) (attest.SignatureVerifier, error) {
	k, err := t.find(p)
	if err != nil {
		return nil, err
	}
	switch {
	case now.Before(k.ValidFrom):
		return nil, fmt.Errorf("key %s is valid from %s only: %w", p.KeyID, attest.FormatTimestamp(k.ValidFrom), ErrUntrusted)
	case !k.ValidUntil.IsZero() && !now.Before(k.ValidUntil):
		return nil, fmt.Errorf("key %s was valid until %s: %w", p.KeyID, attest.FormatTimestamp(k.ValidUntil), ErrUntrusted)
	case !k.DistrustFrom.IsZero() && !now.Before(k.DistrustFrom):
		return nil, fmt.Errorf("key %s is distrusted from %s on: %w", p.KeyID, attest.FormatTimestamp(k.DistrustFrom), ErrUntrusted)
	}
	return attest.NewVerifier(attest.TrustedKey{SignerID: k.SignerID, Key: k.Public})
}
