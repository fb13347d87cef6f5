package attest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// maxKeyBytes bounds a PEM file; a P-256 key takes 178 bytes.
const maxKeyBytes = 16 << 10

// KeyID is the fingerprint that a profile names: "sha256:" and the 64 hex
// digits of the DER SubjectPublicKeyInfo. Errors wrap ErrKey.
func KeyID(key *ecdsa.PublicKey) (string, error) {
	if key == nil || key.Curve != elliptic.P256() {
		return "", fmt.Errorf("%w: not P-256", ErrKey)
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrKey, err)
	}
	return "sha256:" + SHA256Hex(der), nil
}

// ParsePublicKeyPEM reads exactly one PEM block "PUBLIC KEY" with a P-256 key.
// Errors wrap ErrKey.
func ParsePublicKeyPEM(data []byte) (*ecdsa.PublicKey, error) {
	if len(data) > maxKeyBytes {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrKey, maxKeyBytes)
	}
	block, rest := pem.Decode(data)
	if block == nil || !bytes.HasPrefix(data, []byte("-----BEGIN ")) || block.Type != "PUBLIC KEY" || len(block.Headers) > 0 {
		return nil, fmt.Errorf("%w: no PEM block PUBLIC KEY", ErrKey)
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%w: bytes after the PEM block", ErrKey)
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	key, ok := parsed.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("%w: not ECDSA P-256", ErrKey)
	}
	return key, nil
}

// VerifyASN1 reports whether signature is a valid ASN.1 DER ECDSA signature
// over SHA-256 of message (here: the PAE bytes). Raw r‖s and BER are refused.
func VerifyASN1(key *ecdsa.PublicKey, message, signature []byte) bool {
	digest := sha256.Sum256(message)
	return ecdsa.VerifyASN1(key, digest[:], signature)
}

// TrustedKey is a public key and the identity of its holder, from trusted
// configuration.
type TrustedKey struct {
	SignerID string
	Key      *ecdsa.PublicKey
}

// NewVerifier returns a verifier for a set of P-256 keys. The signer is the one
// whose key verifies; keyid only decides which key is tried first. The same key
// under two names is refused, because it would name no signer. Errors wrap
// ErrKey.
func NewVerifier(keys ...TrustedKey) (SignatureVerifier, error) {
	if len(keys) == 0 {
		return nil, fmt.Errorf("%w: no trusted keys", ErrKey)
	}
	byID := make(map[string]TrustedKey, len(keys))
	order := make([]string, 0, len(keys))
	for _, k := range keys {
		id, err := KeyID(k.Key)
		if err != nil {
			return nil, err
		}
		if k.SignerID == "" {
			return nil, fmt.Errorf("%w: key %s names no signer", ErrKey, id)
		}
		if _, twice := byID[id]; twice {
			return nil, fmt.Errorf("%w: key %s is given twice", ErrKey, id)
		}
		byID[id] = k
		order = append(order, id)
	}
	return func(pae []byte, keyID string, signature []byte) (string, error) {
		if k, ok := byID[keyID]; ok && VerifyASN1(k.Key, pae, signature) {
			return k.SignerID, nil
		}
		for _, id := range order {
			if id != keyID && VerifyASN1(byID[id].Key, pae, signature) {
				return byID[id].SignerID, nil
			}
		}
		return "", errors.New("no trusted key verifies it")
	}, nil
}
