package config

import (
	"time"

	"underwrite/handlers/freeze"
)

// Bounds of the configuration.
const (
	MaxFileBytes   = 1 << 20  // bytes of the configuration file
	maxSecretBytes = 4 << 10  // bytes of a webhook secret's file
	maxKeyBytes    = 16 << 10 // bytes of a public key's file
	maxChecks      = 1000
	maxWorkers     = 256
)

// Config is the configuration of `underwrite serve`. Every path is absolute.
// deploy/config.example.yml is an example of all fields.
type Config struct {
	// Listen is the address for webhooks and pages, as HOST:PORT. Whoever reaches
	// it may read all pages. Put a proxy that speaks
	// TLS before it. Default "127.0.0.1:8080".
	Listen string `yaml:"listen"`
	// ExternalURL is where readers find the pages: scheme and host, no path. It
	// is the Details link of each check run. Port 0 stands for the port that
	// Listen got. Default: no links.
	ExternalURL string `yaml:"externalURL"`
	// GitHub says which App this is.
	GitHub GitHub `yaml:"github"`
	// Accounts are the users and organizations whose repositories are served.
	// Installations by anybody else are ignored.
	Accounts []string `yaml:"accounts"`
	// DataDir holds the database, blobs and mirrors, mode 0700. `underwrite
	// init` makes it.
	DataDir string `yaml:"dataDir"`
	// GatewaySocket is the Unix socket of `underwrite gateway`.
	GatewaySocket string `yaml:"gatewaySocket"`
	// TrustedKeys are the gateways' keys whose evidence counts.
	TrustedKeys []TrustedKey `yaml:"trustedKeys"`
	// Checks are what runs for a pull request.
	Checks []Check `yaml:"checks"`
	// Workers bound what happens at the same time.
	Workers Workers `yaml:"workers"`
	// Freeze bounds what is taken from a pull request.
	Freeze Freeze `yaml:"freeze"`
	// GraceSeconds is how long running jobs may go on after a request to stop;
	// then they are stopped, and run again after the next start. Default 30.
	GraceSeconds int `yaml:"graceSeconds"`

	path string // of the file, for messages
}

// GitHub says which App this is, and of which GitHub.
type GitHub struct {
	// APIURL is the REST API. Default "https://api.github.com"; with GitHub
	// Enterprise Server https://HOST/api/v3.
	APIURL string `yaml:"apiURL"`
	// WebURL is where repositories are cloned from. Default "https://github.com".
	WebURL string `yaml:"webURL"`
	// AppID is the App's number.
	AppID int64 `yaml:"appID"`
	// PrivateKeyFile is the App's private key, PEM, readable by its owner only.
	PrivateKeyFile string `yaml:"privateKeyFile"`
	// WebhookSecretFiles hold the webhook secret, each one line, readable by
	// their owner only. Two of them during a rotation: either is accepted.
	WebhookSecretFiles []string `yaml:"webhookSecretFiles"`
}

// TrustedKey is a gateway's public key and what it may sign for. Whether it is
// valid is judged when evidence is consumed.
type TrustedKey struct {
	// PublicKeyFile is the key, PEM, ECDSA P-256.
	PublicKeyFile string `yaml:"publicKeyFile"`
	// SignerID is who signs with it.
	SignerID string `yaml:"signerID"`
	// ExecutorIDs are the executors that it may sign for. An upgrade of the
	// gateway adds one.
	ExecutorIDs []string `yaml:"executorIDs"`
	// ValidFrom and ValidUntil bound the time in which evidence by this key is
	// consumed: from inclusive, until exclusive. Default: no bound.
	ValidFrom  time.Time `yaml:"validFrom"`
	ValidUntil time.Time `yaml:"validUntil"`
	// DistrustFrom is the time from which on nothing by this key is consumed,
	// for a key that is compromised. Default: never.
	DistrustFrom time.Time `yaml:"distrustFrom"`
}

// Check is a check of the pull requests of some repositories. Its check run is
// called underwrite/NAME.
type Check struct {
	// Repositories is owner/name or owner/*.
	Repositories string `yaml:"repositories"`
	// Name is 1 to 63 of a-z, 0-9 and "-".
	Name string `yaml:"name"`
	// Profile is the gateway's name of the profile to run.
	Profile string `yaml:"profile"`
	// ProfileFile is the trusted profile, JSON, as the gateway exports it.
	ProfileFile string `yaml:"profileFile"`
	// Concurrency is how many executions of this check run at once. Default 1.
	Concurrency int `yaml:"concurrency"`
}

// Workers are numbers of jobs that run at once.
type Workers struct {
	Dispatch int `yaml:"dispatch"` // webhook deliveries; default 4
	Freeze   int `yaml:"freeze"`   // pull requests being frozen; default 2
	Execute  int `yaml:"execute"`  // executions given to the gateway; default 4
	Post     int `yaml:"post"`     // check runs being posted; default 4
}

// Freeze bounds what is taken from a pull request. The defaults are
// freeze.DefaultLimits.
type Freeze struct {
	BundleBytes  int64 `yaml:"bundleBytes"`
	DiffBytes    int64 `yaml:"diffBytes"`
	ContextBytes int64 `yaml:"contextBytes"`
	ContextFiles int   `yaml:"contextFiles"`
}

// Limits returns the bounds for the freezer.
func (f Freeze) Limits() freeze.Limits { return freeze.Limits(f) }

func (c *Config) setDefaults() {
	defaultTo(&c.Listen, "127.0.0.1:8080")
	defaultTo(&c.GitHub.APIURL, "https://api.github.com")
	defaultTo(&c.GitHub.WebURL, "https://github.com")
	defaultTo(&c.GraceSeconds, 30)
	defaultTo(&c.Workers.Dispatch, 4)
	defaultTo(&c.Workers.Freeze, 2)
	defaultTo(&c.Workers.Execute, 4)
	defaultTo(&c.Workers.Post, 4)
	defaultTo(&c.Freeze.BundleBytes, freeze.DefaultLimits.BundleBytes)
	defaultTo(&c.Freeze.DiffBytes, freeze.DefaultLimits.DiffBytes)
	defaultTo(&c.Freeze.ContextBytes, freeze.DefaultLimits.ContextBytes)
	defaultTo(&c.Freeze.ContextFiles, freeze.DefaultLimits.ContextFiles)
	for i := range c.Checks {
		defaultTo(&c.Checks[i].Concurrency, 1)
	}
}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
