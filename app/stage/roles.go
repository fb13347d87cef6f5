package stage

import (
	"context"
	"fmt"
	"os"
	"strings"

	"underwrite/app/serve"
	"underwrite/attest"
)

// makeGateway makes key, configuration, ledger and directories of the gateway,
// and exports its profiles.
func (s *Stage) makeGateway(ctx context.Context) error {
	if err := os.MkdirAll(s.Path("gateway"), 0o700); err != nil {
		return fmt.Errorf("gateway's directory: %w", err)
	}
	config := s.Path("gateway", "gateway.yml")
	if err := writeFile(config, s.gatewayConfig()); err != nil {
		return err
	}
	if _, err := s.Command(ctx, "keygen", s.Path("gateway", "key.pem")); err != nil {
		return err
	}
	if _, err := s.Command(ctx, "gateway", "init", "--config", config); err != nil {
		return err
	}
	for _, c := range s.Checks {
		profile, err := s.Command(ctx, "gateway", "profile", c.Name, "--config", config)
		if err != nil {
			return err
		}
		if err := writeFile(s.profilePath(c.Name), string(profile)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stage) gatewayConfig() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Decides what is executed and signed.
version: 1
deployment: demo
signer: https://gateway.example.com/hosts/demo
key: %s
state: %s
outbox: %s
allowedUids: [%d]
capabilityLifetimeSeconds: 60
concurrency: %d
ceilings:
  wallSeconds: 60
  cpuSeconds: 60
  memoryBytes: 1073741824
  processes: 256
  workspaceBytes: 134217728
  outputBytes: 8388608
repositories:
`, s.Path("gateway", "key.pem"), s.Path("gateway", "state"), s.Path("gateway", "outbox"), os.Getuid(), s.Concurrency)
	for _, a := range s.Accounts {
		fmt.Fprintf(&b, "  - %s/*\n", a)
	}
	b.WriteString("profiles:\n")
	for _, c := range s.Checks {
		fmt.Fprintf(&b, "  %s: %s\n", c.Name, c.Profile)
	}
	return b.String()
}

// makeController makes the configuration and the database of the controller.
func (s *Stage) makeController(ctx context.Context) error {
	text, err := s.controllerConfig()
	if err != nil {
		return err
	}
	for path, content := range map[string]string{
		s.Path("app.pem"):        string(s.Hub.AppPrivateKeyPEM()),
		s.Path("webhook-secret"): s.Hub.WebhookSecret() + "\n",
		s.Path("controller.yml"): text,
	} {
		if err := writeFile(path, content); err != nil {
			return err
		}
	}
	_, err = s.Command(ctx, "init", "--config", s.Path("controller.yml"))
	return err
}

func (s *Stage) controllerConfig() (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, `# Receives webhooks and posts check runs.
listen: 127.0.0.1:0
externalURL: http://127.0.0.1:0
github:
  apiURL: %s
  webURL: %s
  appID: %d
  privateKeyFile: %s
  webhookSecretFiles: [%s]
accounts: [%s]
dataDir: %s
gatewaySocket: %s
`, s.Hub.URL(), s.Hub.URL(), s.Hub.AppID(), s.Path("app.pem"), s.Path("webhook-secret"),
		strings.Join(s.Accounts, ", "), s.Path("controller"), s.Path("gateway.sock"))
	for i, c := range s.Checks {
		profile, err := s.Profile(c.Name)
		if err != nil {
			return "", err
		}
		if i == 0 { // all profiles have the same signer, and one executor for one root
			fmt.Fprintf(&b, "trustedKeys:\n  - publicKeyFile: %s\n    signerID: %s\n    executorIDs: [\"%s\"]\nchecks:\n",
				s.Path("gateway", "key.pub.pem"), profile.SignerID, profile.ExecutorID)
		}
		for _, a := range s.Accounts {
			fmt.Fprintf(&b, "  - {repositories: %s/*, name: %s, profile: %s, profileFile: %s, concurrency: %d}\n",
				a, c.Name, c.Name, s.profilePath(c.Name), s.Concurrency)
		}
	}
	return b.String(), nil
}

func (s *Stage) profilePath(name string) string { return s.Path(name + ".profile.json") }

// Profile reads the trusted profile of a check, as the gateway exported it.
func (s *Stage) Profile(name string) (attest.Profile, error) {
	b, err := os.ReadFile(s.profilePath(name))
	if err != nil {
		return attest.Profile{}, fmt.Errorf("profile: %w", err)
	}
	return attest.ParseProfile(b)
}

// StartGateway starts the gateway and waits until it listens.
func (s *Stage) StartGateway(ctx context.Context) (err error) {
	s.Gateway, _, err = s.start(ctx, "gateway", "gateway", "run",
		"--config", s.Path("gateway", "gateway.yml"), "--socket", s.Path("gateway.sock"))
	return err
}

// StartController starts the controller, waits until it listens and sends the
// hub's deliveries there.
func (s *Stage) StartController(ctx context.Context) error {
	p, ready, err := s.start(ctx, "controller", "serve", "--config", s.Path("controller.yml"))
	if err != nil {
		return err
	}
	s.Controller, s.URL = p, "http://"+strings.TrimPrefix(ready, "listening on ")
	s.Hub.SetWebhookURL(s.URL + serve.WebhookPath)
	return nil
}
