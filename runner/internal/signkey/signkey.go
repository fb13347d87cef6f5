package signkey

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"underwrite/attest"
	"underwrite/runner/internal/hostpath"
)

// maxFile bounds a key file in bytes; a P-256 key in PEM takes about 250.
const maxFile = 16 << 10

// Errors that say what is wrong with a key file. They are wrapped with the
// file's name and the fix, never with its content.
var (
	ErrPermissions = errors.New("key file is open to others")
	ErrFormat      = errors.New("not one PEM block with a private key")
	ErrCurve       = errors.New("not an ECDSA P-256 key")
)

// Key signs bytes. It has no method and no field that gives the key away, and
// formats as its key id.
type Key struct {
	private *ecdsa.PrivateKey
	id      string
}

// Load reads a PKCS #8 or SEC 1 PEM file that only its owner, the current
// user, can read.
func Load(path string) (*Key, error) {
	f, err := hostpath.Open(path)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	defer f.Close()
	if err := ownerOnly(f); err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	defer clear(b)
	private, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("signing key %s: %w; make one with `underwrite keygen`", path, err)
	}
	id, err := attest.KeyID(&private.PublicKey)
	return &Key{private, id}, err
}

func ownerOnly(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%w: chmod 600 %s", ErrPermissions, f.Name())
	}
	if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != os.Geteuid() || st.Nlink != 1 {
		return fmt.Errorf("%w: %s must belong to uid %d and have one link", ErrPermissions, f.Name(), os.Geteuid())
	}
	return nil
}

func parse(b []byte) (*ecdsa.PrivateKey, error) {
	block, rest := pem.Decode(b)
	if block == nil || len(b) > maxFile || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, ErrFormat
	}
	defer clear(block.Bytes)
	var key any
	var err error
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	default:
		return nil, ErrFormat
	}
	if err != nil {
		return nil, ErrFormat // the parser's own words could repeat key bytes
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok || private.Curve != elliptic.P256() {
		return nil, ErrCurve
	}
	return private, nil
}

// Sign returns the ASN.1 DER signature of SHA-256 of the message.
func (k *Key) Sign(message []byte) ([]byte, error) {
	sum := sha256.Sum256(message)
	return ecdsa.SignASN1(rand.Reader, k.private, sum[:])
}

// Verify reports whether Sign made the signature of the message with this key.
func (k *Key) Verify(message, signature []byte) bool {
	return attest.VerifyASN1(&k.private.PublicKey, message, signature)
}

// ID is the profile's keyId of the key.
func (k *Key) ID() string { return k.id }

// Format writes the key id for every verb, so that no log shows the key.
func (k *Key) Format(s fmt.State, _ rune) { io.WriteString(s, "signkey("+k.id+")") }

// Generate makes a new key: the private half at path (mode 0600), the public
// half at publicPath (0644). Neither may exist. A crash leaves at most one
// complete file; then remove it and generate again.
func Generate(path, publicPath string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("generate key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return fmt.Errorf("generate key: %w", err)
	}
	defer clear(der)
	public, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		return fmt.Errorf("generate key: %w", err)
	}
	if err := create(path, "PRIVATE KEY", der, 0o600); err != nil {
		return err
	}
	if err := create(publicPath, "PUBLIC KEY", public, 0o644); err != nil {
		return errors.Join(err, os.Remove(path)) // ours: just created exclusively
	}
	return nil
}

// create writes a new file durably: it is complete under its name or not there.
func create(path, kind string, der []byte, mode os.FileMode) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, mode)
	if err != nil {
		return fmt.Errorf("new key file: %w", err)
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			os.Remove(path)
		}
	}()
	if err := f.Chmod(mode); err != nil { // the umask may have taken bits away
		return fmt.Errorf("new key file: %w", err)
	}
	if err := pem.Encode(f, &pem.Block{Type: kind, Bytes: der}); err != nil {
		return fmt.Errorf("new key file %s: %w", path, err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("new key file %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
