package config

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"underwrite/app/evidence/evidencetest"
	"underwrite/handlers/freeze"
)

const example = "../../deploy/config.example.yml"

func TestExampleLoads(t *testing.T) {
	c, err := Load(example)
	if err != nil {
		t.Fatal(err)
	}
	if c.GitHub.AppID != 123456 || len(c.Checks) != 1 || c.Checks[0].Concurrency != 2 || c.Freeze.Limits() != freeze.DefaultLimits ||
		!c.TrustedKeys[0].ValidFrom.Equal(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("%+v", c)
	}
}

// TestExampleDefaults: what the example calls a default is one.
func TestExampleDefaults(t *testing.T) {
	b, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, "# default") {
			kept = append(kept, line)
		}
	}
	// workers and freeze are left without a field, which YAML reads as null.
	short, err := Parse("short.yml", []byte(strings.Join(kept, "")))
	if err != nil {
		t.Fatal(err)
	}
	full, err := Parse("full.yml", b)
	if err != nil {
		t.Fatal(err)
	}
	if short.Workers != full.Workers || short.Freeze != full.Freeze || short.Listen != full.Listen ||
		short.GraceSeconds != full.GraceSeconds || short.GitHub.APIURL != full.GitHub.APIURL || short.GitHub.WebURL != full.GitHub.WebURL {
		t.Errorf("defaults %+v differ from the example's %+v", short, full)
	}
	if short.TrustedKeys[0].ValidUntil != (time.Time{}) {
		t.Error("validUntil has a bound by default")
	}
}

func TestErrors(t *testing.T) {
	good, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	replace := func(old, new string) string {
		if !strings.Contains(string(good), old) {
			t.Fatalf("the example does not hold %q", old)
		}
		return strings.Replace(string(good), old, new, 1)
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty":                {"", "c.yml:1: the file is empty"},
		"unknown field":        {"listen: 127.0.0.1:1\nlisten2: x\n", "c.yml:2: listen2: unknown field"},
		"unknown nested field": {"github:\n  appId: 1\n", "c.yml:2: appId: unknown field"},
		"same field twice":     {"listen: a\nlisten: b\n", "c.yml:2: "},
		"wrong type":           {"listen: [a]\n", "c.yml:1: "},
		"syntax":               {"listen: [a\n", "c.yml:"},
		"second document":      {string(good) + "---\nlisten: a\n", "something after the document"},
		"listen":               {replace("listen: 127.0.0.1:8080", "listen: eight"), "c.yml:5:1: listen: "},
		"external URL":         {replace("https://checks.example.com", "checks.example.com"), "externalURL: "},
		"external path":        {replace("https://checks.example.com", "https://example.com/checks"), "has a path: give scheme and host alone"},
		"external, no TLS":     {replace("https://checks.example.com", "http://checks.example.com"), "does not begin with https://"},
		"API URL":              {replace("apiURL: https://api.github.com", "apiURL: ftp://api.github.com"), "github.apiURL: "},
		"app ID":               {replace("appID: 123456", "appID: 0"), "github.appID: 0 is no App's number"},
		"no app ID":            {replace("appID: 123456", ""), "github.appID"},
		"relative path":        {replace("/etc/underwrite/controller/app.pem", "app.pem"), "github.privateKeyFile: \"app.pem\" is not an absolute path"},
		"no secret":            {replace("    - /etc/underwrite/controller/webhook-secret", ""), "github.webhookSecretFiles: no secret"},
		"no accounts":          {replace("  - octo-org\n", ""), "accounts: nobody is served"},
		"bad account":          {replace("  - octo-org\n", "  - octo/org\n"), "accounts.0: "},
		"no executor":          {replace("    executorIDs:\n      - urn:underwrite:executor:example\n", ""), "trustedKeys.0.executorIDs: is missing"},
		"validity":             {replace("2028-01-01", "2025-01-01"), "trustedKeys.0.validUntil: is not after"},
		"pattern":              {replace("octo-org/* #", "octo-* #"), "checks.0.repositories: "},
		"foreign account":      {replace("octo-org/* #", "other/* #"), "add other to accounts"},
		"check name":           {replace("name: tests", "name: Tests!"), "checks.0.name: "},
		"concurrency":          {replace("concurrency: 2", "concurrency: -1"), "checks.0.concurrency: "},
		"same check twice": {replace("# How much happens", "  - {repositories: OCTO-ORG/shop, name: tests, profile: p, profileFile: /p}\n# How much happens"),
			"checks.1.name: \"tests\" is the name of another check"},
		"workers": {replace("dispatch: 4", "dispatch: 1000"), "workers.dispatch: 1000 is not within 1 and 256"},
		"diff":    {replace("diffBytes: 16777216", "diffBytes: 16777217"), "freeze.diffBytes: "},
		"grace":   {replace("graceSeconds: 30", "graceSeconds: -1"), "graceSeconds: "},
		"large":   {strings.Repeat("#", MaxFileBytes+1), "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("c.yml", []byte(c.text))
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("err = %v\nwant %q", err, c.want)
			}
		})
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	_, err := Parse("c.yml", []byte("listen: x\naccounts: []\n"))
	for _, want := range []string{"listen", "accounts", "dataDir", "gatewaySocket", "trustedKeys", "github.appID"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not in: %v", want, err)
		}
	}
}

func TestLoadMissing(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none.yml")); !errors.Is(err, ErrConfig) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
}

// files writes what a configuration names and returns it.
func files(t *testing.T, g *evidencetest.Gateway) *Config {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, b []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	profile, err := g.Profile().Canonical()
	if err != nil {
		t.Fatal(err)
	}
	return &Config{
		GitHub:      GitHub{WebhookSecretFiles: []string{write("secret", []byte("0123456789abcdef\n"), 0o600)}},
		TrustedKeys: []TrustedKey{{PublicKeyFile: write("key.pem", publicPEM(t, g.Public()), 0o644), SignerID: evidencetest.SignerID, ExecutorIDs: []string{evidencetest.ExecutorID}}},
		Checks:      []Check{{Repositories: "octo-org/*", Name: "tests", Profile: "p", ProfileFile: write("p.json", append(profile, '\n'), 0o644)}},
	}
}

func publicPEM(t *testing.T, key *ecdsa.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func TestReadFiles(t *testing.T) {
	g := evidencetest.New(t)
	f, err := files(t, g).ReadFiles()
	if err != nil {
		t.Fatal(err)
	}
	if f.WebhookSecrets[0] != "0123456789abcdef" || f.Checks[0].Trusted.KeyID != g.KeyID || !f.Trust.Knows(g.Profile()) {
		t.Errorf("%+v", f)
	}
	c := f.Checks[0]
	if !c.Matches("Octo-Org/shop") || c.Matches("octo-org2/shop") || c.Matches("octo/shop") {
		t.Error("the pattern octo-org/* matches wrongly")
	}
}

func TestReadFilesRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, c *Config)
		want  string
	}{
		"secret for all": {func(t *testing.T, c *Config) { os.Chmod(c.GitHub.WebhookSecretFiles[0], 0o640) }, "chmod 600"},
		"two secrets in a file": {func(t *testing.T, c *Config) {
			os.WriteFile(c.GitHub.WebhookSecretFiles[0], []byte("hush-hush\nsecond\n"), 0o600)
		}, "not one line"},
		"empty secret":   {func(t *testing.T, c *Config) { os.Truncate(c.GitHub.WebhookSecretFiles[0], 0) }, "not one line"},
		"missing secret": {func(t *testing.T, c *Config) { os.Remove(c.GitHub.WebhookSecretFiles[0]) }, "no such file"},
		"secret is a directory": {func(t *testing.T, c *Config) {
			os.Remove(c.GitHub.WebhookSecretFiles[0])
			os.Mkdir(c.GitHub.WebhookSecretFiles[0], 0o700)
		}, "no regular file"},
		"bad key":        {func(t *testing.T, c *Config) { os.WriteFile(c.TrustedKeys[0].PublicKeyFile, []byte("x"), 0o600) }, "trustedKeys.0.publicKeyFile"},
		"bad profile":    {func(t *testing.T, c *Config) { os.WriteFile(c.Checks[0].ProfileFile, []byte("{}"), 0o600) }, "checks.0.profileFile"},
		"large profile":  {func(t *testing.T, c *Config) { os.Truncate(c.Checks[0].ProfileFile, 1<<20) }, "no regular file of at most"},
		"unknown signer": {func(t *testing.T, c *Config) { c.TrustedKeys[0].SignerID = "other" }, "none of trustedKeys is the key"},
	} {
		t.Run(name, func(t *testing.T) {
			conf := files(t, evidencetest.New(t))
			c.spoil(t, conf)
			_, err := conf.ReadFiles()
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("err = %v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "hush-hush") {
				t.Errorf("the error shows the secret: %v", err)
			}
		})
	}
}

// FuzzParse: no input panics, and what is accepted is complete.
func FuzzParse(f *testing.F) {
	b, err := os.ReadFile(example)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("checks: [{}]\ntrustedKeys: [null]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse("c.yml", b)
		if err == nil && (len(c.TrustedKeys) == 0 || c.DataDir == "" || len(c.GitHub.WebhookSecretFiles) == 0) {
			t.Errorf("accepted %q", b)
		}
	})
}
