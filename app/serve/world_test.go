package serve_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"underwrite/app/hubsim"
	"underwrite/attest"
	"underwrite/runner/confine"
)

func TestMain(m *testing.M) {
	confine.MaybeExec()
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("in 60 s not true: %s", what)
}

func write(t testing.TB, path string, b []byte) string {
	t.Helper()
	must(t, os.WriteFile(path, b, 0o600))
	return path
}

// installation is a controller's configuration with all of its files.
type installation struct {
	dir, config, dataDir, socket string
}

// installFor writes a configuration for hub. profile and publicKey are those of
// a gateway; without them a key made here is trusted, for tests that run nothing.
func installFor(t testing.TB, hub *hubsim.Hub, socket string, profile, publicKey []byte) installation {
	t.Helper()
	dir := t.TempDir()
	in := installation{dir, filepath.Join(dir, "config.yml"), filepath.Join(dir, "data"), socket}
	if profile == nil {
		profile, publicKey = unusedProfile(t)
	}
	trusted, err := attest.ParseProfile(profile)
	must(t, err)
	write(t, in.config, fmt.Appendf(nil, `listen: 127.0.0.1:0
github:
  apiURL: %s
  webURL: %s
  appID: %d
  privateKeyFile: %s
  webhookSecretFiles: [%s]
accounts: [octo-org]
dataDir: %s
gatewaySocket: %s
trustedKeys:
  - {publicKeyFile: %s, signerID: %q, executorIDs: [%q]}
checks:
  - {repositories: octo-org/*, name: tests, profile: unit, profileFile: %s, concurrency: 4}
graceSeconds: 1
`, hub.URL(), hub.URL(), hub.AppID(), write(t, filepath.Join(dir, "app.pem"), hub.AppPrivateKeyPEM()),
		write(t, filepath.Join(dir, "secret"), []byte(hub.WebhookSecret()+"\n")), in.dataDir, socket,
		write(t, filepath.Join(dir, "gateway.pub.pem"), publicKey), trusted.SignerID, trusted.ExecutorID,
		write(t, filepath.Join(dir, "profile.json"), profile)))
	return in
}

func unusedProfile(t testing.TB) (profile, publicKey []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	id, err := attest.KeyID(&key.PublicKey)
	must(t, err)
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	must(t, err)
	profile, err = attest.Profile{
		Version: 1, KeyID: id, SignerID: "gateway-1", ExecutorID: "urn:underwrite:executor:test",
		Job: attest.Job{
			Argv: []string{"/usr/bin/true"}, Cwd: ".", Stdin: "closed", Environment: map[string]string{},
			Executable: attest.Executable{Path: "/usr/bin/true", SHA256: fmt.Sprintf("%064d", 5), Bytes: 1},
		},
		Sandbox: attest.NewSandbox(attest.Limits{
			WallSeconds: 60, CPUSeconds: 30, MemoryBytes: 1 << 27, Processes: 16, WorkspaceBytes: 1 << 26, OutputBytes: 1 << 10,
		}),
	}.Canonical()
	must(t, err)
	return profile, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func newHub(t testing.TB, o hubsim.Options) *hubsim.Hub {
	t.Helper()
	hub, err := hubsim.New(o)
	must(t, err)
	must(t, hub.Start())
	t.Cleanup(func() {
		must(t, hub.Close())
		for _, v := range hub.Violations() {
			t.Errorf("GitHub would not take this: %s", v)
		}
	})
	return hub
}
