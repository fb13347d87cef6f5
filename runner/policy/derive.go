package policy

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"

	"underwrite/attest"
	"underwrite/runner/image"
	"underwrite/runner/internal/hostpath"
	"underwrite/runner/sandbox"
)

// sandboxPolicy says in words and values what every sandbox of this program
// denies and allows. Its digest is part of the executor's identity.
//
//go:embed sandbox.json
var sandboxPolicy []byte

// SandboxPolicy returns that document, which is JSON.
func SandboxPolicy() []byte { return bytes.Clone(sandboxPolicy) }

// Host is what decides a run beside the configuration.
type Host struct {
	BinarySHA256 string // of the running program, 64 hex digits
	Runtime      string // sandbox.Runtime's Version
}

// KeyID reads the public key file and returns the profile's keyId.
func (c *Config) KeyID() (string, error) {
	b, err := hostpath.ReadFile(c.PublicKey, 16<<10)
	if err != nil {
		return "", fmt.Errorf("%w %s: publicKey: %w", ErrConfig, c.path, err)
	}
	key, err := attest.ParsePublicKeyPEM(b)
	if err != nil {
		return "", fmt.Errorf("%w %s: publicKey: %s: %w; `underwrite keygen` writes one", ErrConfig, c.path, c.PublicKey, err)
	}
	return attest.KeyID(key)
}

// RootDigest names the root file system that the profile's job sees.
func (p Profile) RootDigest() string { return image.HostDigest }

// BuildRoot makes that root file system in dir, an existing empty directory.
func (p Profile) BuildRoot(dir string) (sandbox.Root, error) { return image.Host(dir) }

// ExecutorID names this installation of the program for one root file system:
// whatever decides how a job runs is in it, so that a change makes another
// executor, which controllers have to be told to trust.
func (c *Config) ExecutorID(rootDigest string, h Host) (string, error) {
	b, err := attest.CanonicalJSON(map[string]any{
		"binary":     h.BinarySHA256,
		"deployment": c.Deployment,
		"root":       rootDigest,
		"runtime":    h.Runtime,
		"sandbox":    attest.SHA256Hex(sandboxPolicy),
	})
	if err != nil {
		return "", fmt.Errorf("executor identity: %w", err)
	}
	return "urn:underwrite:executor:" + c.Deployment + ":" + attest.SHA256Hex(b), nil
}

// Derive returns the trusted profile that a controller must have for the
// profile called name. It hashes the executable as it is now.
func (c *Config) Derive(name, keyID string, h Host) (attest.Profile, error) {
	p, ok := c.Profiles[name]
	if !ok {
		return attest.Profile{}, fmt.Errorf("%w %s: profiles: there is no profile %q", ErrConfig, c.path, name)
	}
	job, err := p.Job()
	if err != nil {
		return attest.Profile{}, fmt.Errorf("%w %s: profiles.%s: %w", ErrConfig, c.path, name, err)
	}
	executor, err := c.ExecutorID(p.RootDigest(), h)
	if err != nil {
		return attest.Profile{}, err
	}
	trusted := attest.Profile{
		Version: 1, KeyID: keyID, SignerID: c.Signer, ExecutorID: executor, ExitCode: 0,
		Job: job, Sandbox: attest.NewSandbox(p.Limits.Attest()),
	}
	if err := trusted.Validate(); err != nil {
		return attest.Profile{}, fmt.Errorf("%w %s: profiles.%s: %w", ErrConfig, c.path, name, err)
	}
	return trusted, nil
}

// pin describes the executable file.
func pin(path string) (attest.Executable, error) {
	f, err := hostpath.Open(path)
	if err != nil {
		return attest.Executable{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return attest.Executable{}, fmt.Errorf("read %s: %w", path, err)
	}
	return attest.Executable{Path: path, SHA256: hex.EncodeToString(h.Sum(nil)), Bytes: n}, nil
}

// checkExecutables resolves each profile's executable to its real file.
func (c *Config) checkExecutables() error {
	for name, p := range c.Profiles {
		resolved, err := p.resolved("profiles." + name + ".")
		if err != nil {
			return err
		}
		c.Profiles[name] = resolved
	}
	return nil
}
