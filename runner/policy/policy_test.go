package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"underwrite/attest"
	"underwrite/runner/quarantine"
	"underwrite/runner/sandbox"
)

// valid is a configuration to which tests make one change each.
const valid = `version: 1
deployment: example
signer: urn:underwrite:signer:example
key: /etc/underwrite/key.pem
state: /var/lib/underwrite/state
outbox: /var/lib/underwrite/outbox
consumerGid: 4242
allowedUids: [1000]
proofArguments: true
repositories:
  - octo-org/*
  - example/one
ceilings:
  wallSeconds: 60
  cpuSeconds: 60
  memoryBytes: 1073741824
  processes: 256
  workspaceBytes: 268435456
  outputBytes: 1048576
capabilityLifetimeSeconds: 120
profiles:
  unit:
    argv: [/usr/bin/env, "-i"]
    environment:
      LANG: C.UTF-8
    root: host
    limits:
      wallSeconds: 30
      cpuSeconds: 30
      memoryBytes: 536870912
      processes: 64
      workspaceBytes: 134217728
      outputBytes: 65536
`

func TestParseDefaults(t *testing.T) {
	c, err := parse("gateway.yaml", []byte(valid))
	if err != nil {
		t.Fatal(err)
	}
	p := c.Profiles["unit"]
	if c.PublicKey != "/etc/underwrite/key.pub.pem" || c.Diagnostics != "/var/lib/underwrite/state/diagnostics" ||
		c.Concurrency != 1 || c.MemoryBudgetBytes != 1<<30 || c.SourceBundleBytes != 1<<30 || c.CgroupParent != sandbox.DefaultCgroupParent {
		t.Errorf("defaults = %+v", c)
	}
	if p.Cwd != "." || p.CPUs != 2 || p.Executable != "/usr/bin/env" || c.GID() != 4242 {
		t.Errorf("profile defaults = %+v", p)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		name, old, new string
		line           int
		want           string // field and fix, in the message
	}{
		{"unknown field", "deployment: example", "deploiment: example", 2, "deploiment: unknown field"},
		{"unknown nested field", "    root: host", "    route: host", 26, "route: unknown field"},
		{"wrong type", "consumerGid: 4242", "consumerGid: many", 7, `consumerGid: "many" is of the wrong type: want a whole number`},
		{"duplicate key", "deployment: example", "deployment: example\ndeployment: other", 3, "deployment: is already given on line 2: keep one"},
		{"second document", "version: 1", "version: 1\n---\nversion: 1", 2, "more than one document"},
		{"version", "version: 1", "version: 2", 1, "version: is 2"},
		{"no deployment", "deployment: example\n", "", 1, "deployment: "},
		{"deployment form", "deployment: example", "deployment: Example!", 2, "deployment: "},
		{"signer", "urn:underwrite:signer:example", `""`, 3, "signer: "},
		{"relative key", "/etc/underwrite/key.pem", "key.pem", 4, "key: "},
		{"dots in state", "/var/lib/underwrite/state", "/var/../state", 5, "state: "},
		{"outbox in state", "/var/lib/underwrite/outbox", "/var/lib/underwrite/state/outbox", 6, "outbox: "},
		{"state in outbox", "state: /var/lib/underwrite/state", "state: /var/lib/underwrite/outbox/s", 6, "outbox: "},
		{"key in outbox", "/etc/underwrite/key.pem", "/var/lib/underwrite/outbox/key.pem", 6, "outbox: "},
		{"root gid", "consumerGid: 4242", "consumerGid: 0", 7, "consumerGid: "},
		{"negative uid", "[1000]", "[1000, -1]", 8, "allowedUids.1: "},
		{"repository pattern", "- example/one", "- \"*/one\"", 12, "repositories.1: "},
		{"no repositories", "repositories:\n  - octo-org/*\n  - example/one\n", "", 1, "repositories: "},
		{"no ceiling", "  cpuSeconds: 60\n  memory", "  memory", 13, "ceilings.cpuSeconds: "},
		{"too many tasks", "processes: 256", "processes: 4097", 17, "ceilings.processes: "},
		{"lifetime above 300", "Seconds: 120", "Seconds: 301", 20, "capabilityLifetimeSeconds: "},
		{"lifetime zero", "Seconds: 120", "Seconds: 0", 20, "capabilityLifetimeSeconds: "},
		{"profile name", "  unit:", "  Unit:", 22, "profiles.Unit: "},
		{"no argv", `    argv: [/usr/bin/env, "-i"]` + "\n", "", 22, "profiles.unit.argv: "},
		{"relative argv", "[/usr/bin/env", "[env", 23, "profiles.unit.argv: "},
		{"cwd above", "    root: host", "    root: host\n    cwd: ../x", 27, "profiles.unit.cwd: "},
		{"root", "    root: host", "    root: guest", 26, "profiles.unit.root: "},
		{"environment name", "      LANG: C", "      LA-NG: C", 25, "profiles.unit.environment.LA-NG: "},
		{"credential", "      LANG: C", "      GH_TOKEN: C", 25, "GH_TOKEN looks like a credential"},
		{"limit above ceiling", "wallSeconds: 30", "wallSeconds: 61", 28, "profiles.unit.limits.wallSeconds: 61 is above the gateway's ceiling of 60"},
		{"memory without margin", "memoryBytes: 536870912", "memoryBytes: 134217729", 30, "profiles.unit.limits.memoryBytes: "},
		{"negative limit", "outputBytes: 65536", "outputBytes: -1", 33, "profiles.unit.limits.outputBytes: "},
		{"budget below one job", "capabilityL", "memoryBudgetBytes: 5\ncapabilityL", 20, "memoryBudgetBytes: "},
		{"type in a limit", "outputBytes: 65536", "outputBytes: much more than that", 33, `profiles.unit.limits.outputBytes: "much mo..." is of the wrong type`},
		{"list for text", "    root: host", "    root: [host]", 26, "profiles.unit.root: this is of the wrong type: want text"},
		{"not YAML", "version: 1", "version: [1", 2, "this is not YAML"},
		{"empty", valid, "", 1, "the file is empty"},
		{"not a mapping", valid, "- 1", 1, "want fields with values"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(valid, c.old) {
				t.Fatalf("the valid configuration has no %q", c.old)
			}
			_, err := parse("gateway.yaml", []byte(strings.Replace(valid, c.old, c.new, 1)))
			if !errors.Is(err, ErrConfig) {
				t.Fatalf("parse = %v, want ErrConfig", err)
			}
			if where := fmt.Sprintf("gateway.yaml:%d: ", c.line); !strings.Contains(err.Error(), where) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q does not name %q and %q", err, where, c.want)
			}
		})
	}
}

func TestCredentialName(t *testing.T) {
	for name, want := range map[string]bool{
		"GITHUB_TOKEN": true, "token": true, "MY_API_KEY": true, "AWS_REGION": true, "SSH_AUTH_SOCK": true,
		"PGPASSWORD": true, "NPM_CONFIG__AUTH": true, "client_secret": true, "GIT_ASKPASS": true, "KUBECONFIG": true,
		"SECRET_KEY_BASE": true, "GOOGLE_APPLICATION_CREDENTIALS": true, "DOCKER_CONFIG": true,
		"LANG": false, "PATH": false, "PYTHONDONTWRITEBYTECODE": false, "GIT_AUTHOR_NAME": false, "HOME": false,
		"TOKENIZERS_PARALLELISM": false, "GOFLAGS": false, "KEYBOARD": false, "PYTHONPATH": false,
	} {
		if got := CredentialName(name); got != want {
			t.Errorf("CredentialName(%q) = %v, want %v", name, got, want)
		}
	}
}

// host writes a configuration with a real key into a directory and loads it.
func host(t *testing.T, change func(string) string) (*Config, error) {
	t.Helper()
	dir := t.TempDir()
	text := strings.NewReplacer("/etc/underwrite", dir, "/var/lib/underwrite", dir).Replace(valid)
	path := filepath.Join(dir, "gateway.yaml")
	if err := os.WriteFile(path, []byte(change(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

func same(s string) string { return s }

func TestLoadResolvesLinks(t *testing.T) {
	c, err := host(t, func(s string) string { return strings.Replace(s, "/usr/bin/env, ", "/bin/sh, ", 1) })
	if err != nil {
		t.Fatal(err)
	}
	want, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if p := c.Profiles["unit"]; p.Executable != want || p.Argv[0] != want || p.Argv[1] != "-i" {
		t.Errorf("profile = %+v, want the real path %s", p, want)
	}
}

func TestLoadRefusesExecutables(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(outside, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"missing": "/usr/bin/no-such-program", "directory": "/usr/bin", "not executable": "/usr/share/doc", "outside the root": outside,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := host(t, func(s string) string { return strings.Replace(s, "/usr/bin/env, ", path+", ", 1) })
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "profiles.unit.argv: ") || !strings.Contains(err.Error(), "gateway.yaml:") {
				t.Errorf("Load = %v", err)
			}
		})
	}
}

func TestLoadRefusesOpenFile(t *testing.T) {
	c, err := host(t, same)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(c.path)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(c.path); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "chmod go-w "+dir) {
		t.Errorf("Load from a directory that all can write = %v", err)
	}
}

var testHost = Host{BinarySHA256: strings.Repeat("b", 64), Runtime: "test 1"}

const testKeyID = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

// request returns what a controller with the derived profile sends.
func request(t *testing.T, c *Config) attest.Request {
	t.Helper()
	p, err := c.Derive("unit", testKeyID, testHost)
	if err != nil {
		t.Fatal(err)
	}
	return attest.Request{ProfileName: "unit", Profile: p, Target: attest.Target{Repo: "octo-org/hello", ObjectBundleBytes: 1}}
}

func TestDeriveNamesEverythingThatDecides(t *testing.T) {
	c, err := host(t, same)
	if err != nil {
		t.Fatal(err)
	}
	base := request(t, c).Profile.ExecutorID
	if !strings.HasPrefix(base, "urn:underwrite:executor:example:") {
		t.Errorf("executorId = %q", base)
	}
	other := *c
	other.Deployment = "other"
	for name, derive := range map[string]func() (string, error){
		"binary": func() (string, error) { return c.ExecutorID("host", Host{"c", testHost.Runtime}) },
		"runtime": func() (string, error) {
			return c.ExecutorID("host", Host{testHost.BinarySHA256, "2"})
		},
		"root":       func() (string, error) { return c.ExecutorID("sha256:1", testHost) },
		"deployment": func() (string, error) { return other.ExecutorID("host", testHost) },
	} {
		if id, err := derive(); err != nil || id == base {
			t.Errorf("another %s gives the same executor %q, %v", name, id, err)
		}
	}
	if id, err := c.ExecutorID("host", testHost); err != nil || id != base {
		t.Errorf("the same inputs give %q, %v, want %q", id, err, base)
	}
}

func TestAccept(t *testing.T) {
	long := strings.Repeat("x", MaxArgumentBytes+1)
	for _, c := range []struct {
		name   string
		field  string // of the refusal; empty if accepted
		change func(*attest.Request)
	}{
		{"as derived", "", func(r *attest.Request) {}},
		{"other case of the repository", "", func(r *attest.Request) { r.Target.Repo = "Octo-Org/Hello" }},
		{"exact repository", "", func(r *attest.Request) { r.Target.Repo = "example/one" }},
		{"proof arguments", "", func(r *attest.Request) { extend(r, "-k", "one"); r.Profile.ExitCode = 1 }},
		{"empty argument", "", func(r *attest.Request) { extend(r, "") }},
		{"16 arguments", "", func(r *attest.Request) { extend(r, make([]string, 16)...) }},
		{"17 arguments", "profile.job.argv", func(r *attest.Request) { extend(r, make([]string, 17)...) }},
		{"long argument", "profile.job.argv", func(r *attest.Request) { extend(r, long) }},
		{"NUL in an argument", "profile.job.argv", func(r *attest.Request) { extend(r, "a\x00b") }},
		{"fewer arguments", "profile.job.argv", func(r *attest.Request) { r.Profile.Job.Argv = r.Profile.Job.Argv[:1] }},
		{"other argument", "profile.job.argv", func(r *attest.Request) { r.Profile.Job.Argv = []string{"/usr/bin/env", "-u"} }},
		{"exit code", "profile.exitCode", func(r *attest.Request) { r.Profile.ExitCode = 256 }},
		{"other profile", "profileName", func(r *attest.Request) { r.ProfileName = "other" }},
		{"other repository", "target.repo", func(r *attest.Request) { r.Target.Repo = "example/two" }},
		{"owner prefix", "target.repo", func(r *attest.Request) { r.Target.Repo = "octo-org2/hello" }},
		{"Unicode fold", "target.repo", func(r *attest.Request) { r.Target.Repo = "octo\u2010org/hello" }},
		{"large bundle", "target.object_bundle_bytes", func(r *attest.Request) { r.Target.ObjectBundleBytes = 1<<30 + 1 }},
		{"signer", "profile.signerId", func(r *attest.Request) { r.Profile.SignerID = "urn:other" }},
		{"key", "profile.keyId", func(r *attest.Request) { r.Profile.KeyID = "sha256:1" }},
		{"executor", "profile.executorId", func(r *attest.Request) { r.Profile.ExecutorID = "urn:other" }},
		{"more time", "profile.sandbox", func(r *attest.Request) { r.Profile.Sandbox.Limits.WallSeconds++ }},
		{"network", "profile.sandbox", func(r *attest.Request) { r.Profile.Sandbox.Network = "allowed" }},
		{"cwd", "profile.job", func(r *attest.Request) { r.Profile.Job.Cwd = "sub" }},
		{"environment", "profile.job", func(r *attest.Request) { r.Profile.Job.Environment = map[string]string{"LD_PRELOAD": "x"} }},
		{"executable", "profile.job", func(r *attest.Request) { r.Profile.Job.Executable.SHA256 = strings.Repeat("0", 64) }},
		{"stdin", "profile.job", func(r *attest.Request) { r.Profile.Job.Stdin = "open" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, err := host(t, same)
			if err != nil {
				t.Fatal(err)
			}
			r := request(t, config)
			c.change(&r)
			_, err = config.Accept(r, testKeyID, testHost)
			var refusal *Refusal
			if c.field == "" && err != nil || c.field != "" && (!errors.As(err, &refusal) || refusal.Field != c.field) {
				t.Errorf("Accept = %v, want a refusal of %q", err, c.field)
			}
		})
	}
}

// TestAcceptWithoutProofs: with proofArguments off nothing but the profile's
// own job passes.
func TestAcceptWithoutProofs(t *testing.T) {
	config, err := host(t, func(s string) string { return strings.Replace(s, "proofArguments: true\n", "", 1) })
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*attest.Request)
		ok     bool
	}{
		"own job":        {func(r *attest.Request) {}, true},
		"one argument":   {func(r *attest.Request) { extend(r, "x") }, false},
		"empty argument": {func(r *attest.Request) { extend(r, "") }, false},
		"prediction":     {func(r *attest.Request) { r.Profile.ExitCode = 1 }, false},
	} {
		r := request(t, config)
		c.change(&r)
		if _, err := config.Accept(r, testKeyID, testHost); (err == nil) != c.ok {
			t.Errorf("%s: Accept = %v", name, err)
		}
	}
}

func extend(r *attest.Request, args ...string) {
	r.Profile.Job.Argv = append(r.Profile.Job.Argv[:len(r.Profile.Job.Argv):len(r.Profile.Job.Argv)], args...)
}

// FuzzParse: a configuration either loads within every bound or is refused by
// an error that names the file; nothing makes the parser panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(valid))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("profiles: {x: {limits: {wallSeconds: 1e9}}}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parse("gateway.yaml", b)
		if err != nil {
			if !strings.Contains(err.Error(), "gateway.yaml") {
				t.Errorf("error %q does not name the file", err)
			}
			return
		}
		if c.CapabilityLifetimeSeconds > 300 || len(c.Repositories) == 0 || len(c.Profiles) == 0 {
			t.Errorf("accepted %+v", c)
		}
	})
}

// TestSandboxPolicyDefinesTheOutput: the one output ref and the prerequisites
// that a verifier allows stand in the document that the executor is named by.
func TestSandboxPolicyDefinesTheOutput(t *testing.T) {
	var doc struct{ OutputRef, OutputPrerequisites string }
	if err := json.Unmarshal(SandboxPolicy(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OutputRef != quarantine.OutputRef || doc.OutputPrerequisites != "none" {
		t.Errorf("the policy says %+v, the quarantine accepts %s without prerequisites", doc, quarantine.OutputRef)
	}
}
