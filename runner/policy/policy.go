package policy

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"underwrite/attest"
	"underwrite/runner/sandbox"
)

// Bounds of the configuration.
const (
	MaxFileBytes      = 1 << 20 // bytes of the configuration file
	MaxProofArguments = 16      // arguments that a request may append (protocol, "Non-authorization and rollout")
	MaxArgumentBytes  = 4 << 10 // bytes of one appended argument
	MaxProcesses      = 4096    // tasks; threads count
	MaxCPUs           = 1024
	MaxConcurrency    = 256
	maxProfiles       = 1024
	// MemoryMargin is what a sandbox needs beside the workspace. One cgroup
	// holds the sentry, the job, /tmp, /dev/shm and the workspace's pages.
	MemoryMargin = 64 << 20 // bytes
)

// Config is the gateway's own configuration: it alone decides what the gateway
// signs. Every path is absolute, without symbolic links, and its directories
// belong to root or the gateway's user.
type Config struct {
	// Version is 1.
	Version int `yaml:"version"`
	// Deployment names this installation in the executor's identity: 1 to 63
	// of a-z, 0-9 and "-".
	Deployment string `yaml:"deployment"`
	// Signer is the signerId that controllers bind the key to.
	Signer string `yaml:"signer"`
	// Key is the signing key: PEM, ECDSA P-256, mode 0600. Only `underwrite
	// execute` opens it.
	Key string `yaml:"key"`
	// PublicKey is the public half, PEM. Default: Key with ".pub.pem" for ".pem".
	PublicKey string `yaml:"publicKey"`
	// State holds the ledger, results, locks and scratch space. Mode 0700.
	State string `yaml:"state"`
	// Outbox is the directory in which evidence directories appear. With
	// ConsumerGID it is group-owned by it and has mode 0710.
	Outbox string `yaml:"outbox"`
	// Diagnostics receives the signed diagnostics of failed attempts. Default:
	// the directory diagnostics in State.
	Diagnostics string `yaml:"diagnostics"`
	// ConsumerGID is the group that reads evidence. Without it, evidence stays
	// in the gateway's own group.
	ConsumerGID *int `yaml:"consumerGid"`
	// AllowedUIDs are the users that may connect to the gateway's socket.
	AllowedUIDs []int `yaml:"allowedUids"`
	// ProofArguments lets a request append at most 16 arguments to a profile's
	// argv and predict another exit code than 0.
	ProofArguments bool `yaml:"proofArguments"`
	// Repositories are the accepted target repositories: owner/name or owner/*.
	Repositories []string `yaml:"repositories"`
	// Ceilings bound the limits of every profile.
	Ceilings Limits `yaml:"ceilings"`
	// CapabilityLifetimeSeconds is the time between issuing a capability and
	// the latest start of its job: 1 to 300.
	CapabilityLifetimeSeconds int64 `yaml:"capabilityLifetimeSeconds"`
	// Concurrency is how many executions the gateway runs at once; others
	// wait. Default 1.
	Concurrency int `yaml:"concurrency"`
	// MemoryBudgetBytes bounds the sum of the memory limits of the executions
	// that run at once. Default: Concurrency times the memory ceiling.
	MemoryBudgetBytes int64 `yaml:"memoryBudgetBytes"`
	// SourceBundleBytes bounds a source bundle. Default 1 GiB.
	SourceBundleBytes int64 `yaml:"sourceBundleBytes"`
	// CgroupParent is the cgroup, as a path from the root of each hierarchy,
	// below which jobs run. Default "/underwrite".
	CgroupParent string `yaml:"cgroupParent"`
	// Profiles are the accepted jobs by name: 1 to 63 of a-z, 0-9 and "-".
	Profiles map[string]Profile `yaml:"profiles"`

	path string // of the file, for messages
}

// Profile is one accepted job with its sandbox.
type Profile struct {
	// Argv is the argument vector. Argv[0] is replaced by the executable's real path.
	Argv []string `yaml:"argv"`
	// Cwd is the working directory below the repository's root. Default ".".
	Cwd string `yaml:"cwd"`
	// Environment is the complete environment of the job. Names that look like
	// credentials are refused.
	Environment map[string]string `yaml:"environment"`
	// Executable is the program file. Default: Argv[0]. Symbolic links are
	// resolved, since the job is bound to the real file.
	Executable string `yaml:"executable"`
	// CPUs is the number of CPUs that the job may use. Default 2.
	CPUs int `yaml:"cpus"`
	// Limits bound the job and all of its descendants together.
	Limits Limits `yaml:"limits"`
	// Root is the root file system that the job sees: "host" binds the host's
	// /usr read-only, for trials.
	Root string `yaml:"root"`
}

// Limits are attest.Limits in the configuration.
type Limits struct {
	WallSeconds    int64 `yaml:"wallSeconds"`
	CPUSeconds     int64 `yaml:"cpuSeconds"`
	MemoryBytes    int64 `yaml:"memoryBytes"`
	Processes      int64 `yaml:"processes"`
	WorkspaceBytes int64 `yaml:"workspaceBytes"`
	OutputBytes    int64 `yaml:"outputBytes"`
}

// Attest returns the limits as the protocol has them.
func (l Limits) Attest() attest.Limits { return attest.Limits(l) }

// ErrConfig is wrapped by every error about the configuration's content.
var ErrConfig = errors.New("gateway configuration")

// A problem is what is wrong with one field, and the fix.
type problem struct {
	field string // dotted, e.g. profiles.unit.limits.wallSeconds
	text  string
}

func (p *problem) Error() string { return p.field + ": " + p.text }

func bad(field, format string, args ...any) error {
	return &problem{field, fmt.Sprintf(format, args...)}
}

var (
	nameForm       = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	signerForm     = regexp.MustCompile(`^[\x21-\x7e]{1,255}$`)
	repositoryForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,99}/(\*|[A-Za-z0-9._-]{1,100})$`)
	envNameForm    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

const nameHelp = `want 1 to 63 of a-z, 0-9 and "-", not at an end`

func (c *Config) setDefaults() {
	if c.PublicKey == "" && c.Key != "" {
		c.PublicKey = PublicKeyPath(c.Key)
	}
	if c.Diagnostics == "" && c.State != "" {
		c.Diagnostics = filepath.Join(c.State, "diagnostics")
	}
	if c.Concurrency == 0 {
		c.Concurrency = 1
	}
	if c.MemoryBudgetBytes == 0 {
		c.MemoryBudgetBytes = int64(c.Concurrency) * c.Ceilings.MemoryBytes
	}
	if c.SourceBundleBytes == 0 {
		c.SourceBundleBytes = 1 << 30
	}
	if c.CgroupParent == "" {
		c.CgroupParent = sandbox.DefaultCgroupParent
	}
	for name, p := range c.Profiles {
		c.Profiles[name] = p.withDefaults()
	}
}

// PublicKeyPath is where the public half of the key at path lies by default.
func PublicKeyPath(key string) string { return strings.TrimSuffix(key, ".pem") + ".pub.pem" }

func (c *Config) check() error {
	for _, check := range []func() error{c.checkIdentity, c.checkPaths, c.checkAccess, c.checkBudgets, c.checkProfiles} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) checkIdentity() error {
	switch {
	case c.Version != 1:
		return bad("version", "is %d; this program reads version 1", c.Version)
	case !nameForm.MatchString(c.Deployment):
		return bad("deployment", "%q: %s", c.Deployment, nameHelp)
	case !signerForm.MatchString(c.Signer):
		return bad("signer", "%q: want 1 to 255 printable ASCII characters, e.g. urn:underwrite:signer:%s", c.Signer, c.Deployment)
	}
	return nil
}

func (c *Config) checkPaths() error {
	for _, p := range []struct{ field, path string }{
		{"key", c.Key}, {"publicKey", c.PublicKey}, {"state", c.State}, {"outbox", c.Outbox}, {"diagnostics", c.Diagnostics},
		{"cgroupParent", c.CgroupParent},
	} {
		if !cleanPath(p.path) || p.path == "/" {
			return bad(p.field, "%q: want an absolute path without . and ..", p.path)
		}
	}
	switch {
	case within(c.Outbox, c.State), within(c.State, c.Outbox):
		return bad("outbox", "%s and the state directory %s must not contain each other: the consumer enters one and never the other", c.Outbox, c.State)
	case within(c.Key, c.Outbox), within(c.Diagnostics, c.Outbox):
		return bad("outbox", "%s must hold evidence only: move key and diagnostics elsewhere", c.Outbox)
	}
	return nil
}

func cleanPath(p string) bool {
	return filepath.IsAbs(p) && filepath.Clean(p) == p && !strings.ContainsRune(p, 0)
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func (c *Config) checkAccess() error {
	if c.ConsumerGID != nil && (*c.ConsumerGID < 1 || *c.ConsumerGID > 1<<31-1) {
		return bad("consumerGid", "%d: want the number of the group that reads evidence", *c.ConsumerGID)
	}
	for i, uid := range c.AllowedUIDs {
		if uid < 0 || uid > 1<<31-1 {
			return bad(fmt.Sprintf("allowedUids.%d", i), "%d: want a user number", uid)
		}
	}
	if len(c.Repositories) == 0 {
		return bad("repositories", "is empty: name at least one as owner/name or owner/*")
	}
	for i, r := range c.Repositories {
		if !repositoryForm.MatchString(r) {
			return bad(fmt.Sprintf("repositories.%d", i), "%q: want owner/name or owner/*", r)
		}
	}
	return nil
}

func (c *Config) checkBudgets() error {
	if err := c.Ceilings.check("ceilings"); err != nil {
		return err
	}
	switch l := c.CapabilityLifetimeSeconds; {
	case l < 1 || l > int64(attest.MaxCapabilityLifetime.Seconds()):
		return bad("capabilityLifetimeSeconds", "%d: want 1 to %d", l, int64(attest.MaxCapabilityLifetime.Seconds()))
	case c.Concurrency < 1 || c.Concurrency > MaxConcurrency:
		return bad("concurrency", "%d: want 1 to %d", c.Concurrency, MaxConcurrency)
	case c.MemoryBudgetBytes < c.Ceilings.MemoryBytes:
		return bad("memoryBudgetBytes", "%d is below ceilings.memoryBytes %d: no job of that size could ever start", c.MemoryBudgetBytes, c.Ceilings.MemoryBytes)
	case c.SourceBundleBytes < 1 || c.SourceBundleBytes > attest.MaxInteger:
		return bad("sourceBundleBytes", "%d: want a positive number of bytes", c.SourceBundleBytes)
	}
	return nil
}

// named lists the limits in the order of the protocol.
func (l Limits) named() []namedLimit {
	return []namedLimit{
		{"wallSeconds", l.WallSeconds}, {"cpuSeconds", l.CPUSeconds}, {"memoryBytes", l.MemoryBytes},
		{"processes", l.Processes}, {"workspaceBytes", l.WorkspaceBytes}, {"outputBytes", l.OutputBytes},
	}
}

type namedLimit struct {
	name  string
	value int64
}

func (l Limits) check(field string) error {
	for _, n := range l.named() {
		if n.value < 1 || n.value > attest.MaxInteger {
			return bad(field+"."+n.name, "%d: want a positive number", n.value)
		}
	}
	if l.Processes > MaxProcesses {
		return bad(field+".processes", "%d: want at most %d", l.Processes, MaxProcesses)
	}
	return nil
}

func (c *Config) checkProfiles() error {
	if len(c.Profiles) == 0 || len(c.Profiles) > maxProfiles {
		return bad("profiles", "has %d entries: want 1 to %d", len(c.Profiles), maxProfiles)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Profiles)) {
		if !nameForm.MatchString(name) {
			return bad("profiles."+name, "%q: %s", name, nameHelp)
		}
		if err := c.Profiles[name].check("profiles."+name+".", c.Ceilings); err != nil {
			return err
		}
	}
	return nil
}

// check looks at everything but the host. at goes before each field's name.
func (p Profile) check(at string, ceilings Limits) error {
	switch {
	case len(p.Argv) == 0:
		return bad(at+"argv", "is empty: want the program and its arguments")
	case !cleanPath(p.Executable):
		return bad(p.executableField(at), "%q: want the absolute path of the program", p.Executable)
	case p.CPUs < 1 || p.CPUs > MaxCPUs:
		return bad(at+"cpus", "%d: want 1 to %d", p.CPUs, MaxCPUs)
	case p.Root != "host":
		return bad(at+"root", "%q: want host", p.Root)
	case p.Cwd != path.Clean(p.Cwd) || path.IsAbs(p.Cwd) || p.Cwd == ".." || strings.HasPrefix(p.Cwd, "../"):
		return bad(at+"cwd", "%q: want a directory below the repository's root, or \".\"", p.Cwd)
	}
	if err := checkEnvironment(at+"environment", p.Environment); err != nil {
		return err
	}
	return p.checkLimits(at+"limits", ceilings)
}

// executableField is where the executable's path was written.
func (p Profile) executableField(at string) string {
	if p.Executable == p.Argv[0] {
		return at + "argv"
	}
	return at + "executable"
}

func (p Profile) checkLimits(field string, ceilings Limits) error {
	if err := p.Limits.check(field); err != nil {
		return err
	}
	for i, n := range p.Limits.named() {
		if top := ceilings.named()[i].value; n.value > top {
			return bad(field+"."+n.name, "%d is above the gateway's ceiling of %d (ceilings.%s): lower it", n.value, top, n.name)
		}
	}
	if need := p.Limits.WorkspaceBytes + MemoryMargin; p.Limits.MemoryBytes < need {
		return bad(field+".memoryBytes", "%d is too little: the workspace lies in memory, so want at least workspaceBytes + %d = %d plus what the job needs",
			p.Limits.MemoryBytes, MemoryMargin, need)
	}
	return nil
}

func checkEnvironment(field string, env map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		at := field + "." + name
		switch {
		case !envNameForm.MatchString(name):
			return bad(at, "%q: want a name of letters, digits and _", name)
		case CredentialName(name):
			return bad(at, "%s looks like a credential: a job gets none; remove or rename it", name)
		case strings.ContainsRune(env[name], 0):
			return bad(at, "value has a NUL character: remove it")
		}
	}
	return nil
}

// What makes an environment name look like a credential. A last word decides,
// so that GIT_AUTHOR_NAME and TOKENIZERS_PARALLELISM stay allowed.
var (
	credentialWords = []string{
		"TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASS", "PASSPHRASE", "CREDENTIAL",
		"CREDENTIALS", "KEY", "KEYS", "APIKEY", "AUTH", "AUTHORIZATION", "COOKIE", "PAT", "ASKPASS", "NETRC",
		"KUBECONFIG", "AUTHTOKEN", "KEYFILE", "BEARER", "JWT",
	}
	credentialParts    = []string{"PASSWORD", "SECRET", "CREDENTIAL", "PRIVATE_KEY", "ACCESS_KEY", "API_KEY", "ACCESS_TOKEN"}
	credentialPrefixes = []string{"AWS_", "AZURE_", "GOOGLE_", "GCP_", "SSH_", "GPG_", "GITHUB_", "GH_", "VAULT_", "DOCKER_", "ACTIONS_"}
)

// CredentialName reports whether an environment variable of that name usually
// carries or points to a credential.
func CredentialName(name string) bool {
	name = strings.ToUpper(name)
	words := strings.Split(name, "_")
	return slices.Contains(credentialWords, words[len(words)-1]) ||
		slices.ContainsFunc(credentialParts, func(p string) bool { return strings.Contains(name, p) }) ||
		slices.ContainsFunc(credentialPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
