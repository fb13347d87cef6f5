package config

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"underwrite/app/evidence"
	"underwrite/attest"
)

// Files is what the files that a configuration names hold.
type Files struct {
	WebhookSecrets []string
	Trust          evidence.Trust
	Checks         []LoadedCheck
}

// LoadedCheck is a check with its trusted profile.
type LoadedCheck struct {
	Check
	Trusted   attest.Profile
	Canonical []byte // of the profile
}

// Matches reports whether the check is one of the repository.
func (c LoadedCheck) Matches(repo string) bool { return matches(c.Repositories, repo) }

// ReadFiles reads the files that the configuration names, but for the App's
// private key, which only the GitHub client reads. Errors name the field and
// the file, and never what a secret's file holds.
func (c *Config) ReadFiles() (*Files, error) {
	f := &Files{}
	for i, path := range c.GitHub.WebhookSecretFiles {
		secret, err := readSecret(path)
		if err != nil {
			return nil, c.in(fmt.Sprintf("github.webhookSecretFiles.%d", i), err)
		}
		f.WebhookSecrets = append(f.WebhookSecrets, secret)
	}
	for i, k := range c.TrustedKeys {
		key, err := k.load()
		if err != nil {
			return nil, c.in(fmt.Sprintf("trustedKeys.%d.publicKeyFile", i), err)
		}
		f.Trust = append(f.Trust, key)
	}
	for i, check := range c.Checks {
		loaded, err := check.load(f.Trust)
		if err != nil {
			return nil, c.in(fmt.Sprintf("checks.%d.profileFile", i), err)
		}
		f.Checks = append(f.Checks, loaded)
	}
	return f, nil
}

func (c *Config) in(field string, err error) error {
	return fmt.Errorf("%w: %s: %s: %w", ErrConfig, c.path, field, err)
}

// readSecret reads a file of one line that only its owner may access.
func readSecret(path string) (string, error) {
	b, info, err := readFile(path, maxSecretBytes)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s may be accessed by others (mode %04o): chmod 600 it", path, info.Mode().Perm())
	}
	secret := strings.TrimRight(string(b), "\r\n")
	if secret == "" || strings.ContainsAny(secret, "\r\n") {
		return "", fmt.Errorf("%s is not one line with the secret", path)
	}
	return secret, nil
}

func (k TrustedKey) load() (evidence.Key, error) {
	b, _, err := readFile(k.PublicKeyFile, maxKeyBytes)
	if err != nil {
		return evidence.Key{}, err
	}
	key, err := attest.ParsePublicKeyPEM(b)
	if err != nil {
		return evidence.Key{}, fmt.Errorf("%s: %w", k.PublicKeyFile, err)
	}
	return evidence.Key{
		Public: key, SignerID: k.SignerID, ExecutorIDs: slices.Clone(k.ExecutorIDs),
		ValidFrom: k.ValidFrom, ValidUntil: k.ValidUntil, DistrustFrom: k.DistrustFrom,
	}, nil
}

func (c Check) load(trust evidence.Trust) (LoadedCheck, error) {
	b, _, err := readFile(c.ProfileFile, attest.MaxProfileBytes)
	if err != nil {
		return LoadedCheck{}, err
	}
	profile, err := attest.ParseProfile(b)
	if err != nil {
		return LoadedCheck{}, fmt.Errorf("%s: %w", c.ProfileFile, err)
	}
	canonical, err := profile.Canonical()
	if err != nil {
		return LoadedCheck{}, fmt.Errorf("%s: %w", c.ProfileFile, err)
	}
	if !trust.Knows(profile) {
		return LoadedCheck{}, fmt.Errorf("%s: none of trustedKeys is the key %s of signer %q for executor %q: add it there, or export the profile again",
			c.ProfileFile, profile.KeyID, profile.SignerID, profile.ExecutorID)
	}
	return LoadedCheck{Check: c, Trusted: profile, Canonical: canonical}, nil
}

// readFile reads a regular file of at most limit bytes.
func readFile(path string, limit int64) ([]byte, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, nil, fmt.Errorf("%s is no regular file of at most %d bytes", path, limit)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return b, info, err
}
