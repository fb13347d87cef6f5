package attest

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"testing"

	"underwrite/attest/attesttest"
)

func TestKeyIDVectors(t *testing.T) {
	var ids map[string]string
	if err := json.Unmarshal(attesttest.File(t, "keys/keyids.json"), &ids); err != nil {
		t.Fatal(err)
	}
	if len(ids) == 0 {
		t.Fatal("no keys")
	}
	for name, want := range ids {
		key, err := ParsePublicKeyPEM(attesttest.File(t, "keys/"+name+".pub.pem"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := KeyID(key); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, want)
		}
	}
}

func publicPEM(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func TestParsePublicKeyPEMRefuses(t *testing.T) {
	good := publicPEM(t, &newKey(t).PublicKey)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"nothing":         nil,
		"two keys":        append(append([]byte{}, good...), good...),
		"text before":     append([]byte("key:\n"), good...),
		"text after":      append(append([]byte{}, good...), 'x'),
		"headers":         []byte("-----BEGIN PUBLIC KEY-----\nA: b\n\n" + string(good[len("-----BEGIN PUBLIC KEY-----\n"):])),
		"P-384":           publicPEM(t, &p384.PublicKey),
		"Ed25519":         publicPEM(t, ed),
		"private key":     pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		"wrong PEM label": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: private}),
		"too long":        append(append([]byte{}, good...), make([]byte, maxKeyBytes)...),
	} {
		if _, err := ParsePublicKeyPEM(data); !errors.Is(err, ErrKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParsePublicKeyPEM(good); err != nil {
		t.Errorf("good key: %v", err)
	}
	if _, err := KeyID(&p384.PublicKey); !errors.Is(err, ErrKey) {
		t.Errorf("key id of P-384: %v", err)
	}
	if _, err := KeyID(nil); !errors.Is(err, ErrKey) {
		t.Errorf("key id of nothing: %v", err)
	}
}

// The signer is the one whose key verifies, whatever the hint says.
func TestVerifierDerivesTheSigner(t *testing.T) {
	one, two, stranger := newKey(t), newKey(t), newKey(t)
	verify, err := NewVerifier(TrustedKey{"one", &one.PublicKey}, TrustedKey{"two", &two.PublicKey})
	if err != nil {
		t.Fatal(err)
	}
	idOne, _ := KeyID(&one.PublicKey)
	idTwo, _ := KeyID(&two.PublicKey)
	message := []byte("message")
	for _, hint := range []string{"", "unknown", idOne, idTwo} {
		for signer, key := range map[string]*ecdsa.PrivateKey{"one": one, "two": two} {
			signature, err := signWith(key)(message)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := verify(message, hint, signature); err != nil || got != signer {
				t.Errorf("hint %q, signed by %s: %q, %v", hint, signer, got, err)
			}
		}
		signature, err := signWith(stranger)(message)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := verify(message, hint, signature); err == nil || got != "" {
			t.Errorf("hint %q, signed by a stranger: %q", hint, got)
		}
	}
}

func TestNewVerifierRefuses(t *testing.T) {
	key := &newKey(t).PublicKey
	for name, keys := range map[string][]TrustedKey{
		"no keys":       nil,
		"no key":        {{"one", nil}},
		"no signer":     {{"", key}},
		"one key twice": {{"one", key}, {"two", key}},
	} {
		if _, err := NewVerifier(keys...); !errors.Is(err, ErrKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
