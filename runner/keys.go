package runner

import (
	"underwrite/runner/internal/signkey"
	"underwrite/runner/policy"
)

// GenerateKey makes a new ECDSA P-256 signing key: the private half at path
// (mode 0600), the public half beside it, as KEY.pub.pem for KEY.pem. It
// returns the public key's path and keyId, and overwrites nothing.
func GenerateKey(path string) (publicPath, keyID string, err error) {
	publicPath = policy.PublicKeyPath(path)
	if err := signkey.Generate(path, publicPath); err != nil {
		return "", "", err
	}
	key, err := signkey.Load(path)
	if err != nil {
		return "", "", err
	}
	return publicPath, key.ID(), nil
}
