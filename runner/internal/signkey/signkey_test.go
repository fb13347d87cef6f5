package signkey

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"underwrite/attest"
)

func generated(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key.pem")
	if err := Generate(path, path+".pub"); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestGenerateLoadSign(t *testing.T) {
	path := generated(t)
	key, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := key.Sign([]byte("message"))
	if err != nil {
		t.Fatal(err)
	}
	if !key.Verify([]byte("message"), sig) || key.Verify([]byte("massage"), sig) {
		t.Error("Verify does not tell the signed message from another")
	}
	b, err := os.ReadFile(path + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	public, err := attest.ParsePublicKeyPEM(b)
	if err != nil || !attest.VerifyASN1(public, []byte("message"), sig) {
		t.Errorf("public file holds another key: %v", err)
	}
	if id, err := attest.KeyID(public); err != nil || id != key.ID() || len(id) != len("sha256:")+64 {
		t.Errorf("ID = %q, %v, want %q", id, err, key.ID())
	}
}

func TestGenerateNeverOverwrites(t *testing.T) {
	path := generated(t)
	before, _ := os.ReadFile(path)
	if err := Generate(path, path+".other"); !errors.Is(err, os.ErrExist) {
		t.Errorf("Generate over a key: %v, want ErrExist", err)
	}
	if after, _ := os.ReadFile(path); string(before) != string(after) {
		t.Error("the key was overwritten")
	}
	other := filepath.Join(filepath.Dir(path), "other.pem")
	if err := Generate(other, path+".pub"); !errors.Is(err, os.ErrExist) {
		t.Errorf("Generate over a public key: %v, want ErrExist", err)
	}
	if _, err := os.Stat(other); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half a key pair is left: %v", err)
	}
}

func TestLoadRefuses(t *testing.T) {
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	pkcs8 := func(key any) []byte {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	}
	good, err := os.ReadFile(generated(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		content []byte
		mode    os.FileMode
		want    error
	}{
		{"group may read", good, 0o640, ErrPermissions},
		{"others may read", good, 0o604, ErrPermissions},
		{"P-384", pkcs8(p384), 0o600, ErrCurve},
		{"Ed25519", pkcs8(ed), 0o600, ErrCurve},
		{"two blocks", append(good[:len(good):len(good)], good...), 0o600, ErrFormat},
		{"text", []byte("hello"), 0o600, ErrFormat},
		{"empty", nil, 0o600, ErrFormat},
		{"bad DER", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret")}), 0o600, ErrFormat},
		{"public key", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}), 0o600, ErrFormat},
		{"endless", append([]byte(strings.Repeat("#\n", maxFile)), good...), 0o600, ErrFormat},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "key.pem")
			if err := os.WriteFile(path, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			_, err := Load(path)
			if !errors.Is(err, c.want) {
				t.Fatalf("Load = %v, want %v", err, c.want)
			}
			if !strings.Contains(err.Error(), path) {
				t.Errorf("error %q does not name the file", err)
			}
			if c.want == ErrPermissions && !strings.Contains(err.Error(), "chmod 600 ") {
				t.Errorf("error %q does not name the fix", err)
			}
		})
	}
}

func TestLoadSEC1(t *testing.T) {
	private, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o400); err != nil {
		t.Fatal(err)
	}
	key, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := attest.KeyID(&private.PublicKey); err != nil || key.ID() != want {
		t.Errorf("ID = %s, want %s, %v", key.ID(), want, err)
	}
}

// TestFormatHidesKey: whatever verb a log uses, it prints the id alone.
func TestFormatHidesKey(t *testing.T) {
	key, err := Load(generated(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x", "%q"} {
		if got := fmt.Sprintf(verb, key); got != "signkey("+key.ID()+")" {
			t.Errorf("%s prints %q", verb, got)
		}
	}
}
