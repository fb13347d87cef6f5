package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	namePattern  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	loginPattern = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9-]{0,38}[A-Za-z0-9])?$`)
	repoPattern  = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9-]{0,38}[A-Za-z0-9])?)/(\*|[A-Za-z0-9._-]{1,100})$`)
)

func (c *Config) check(p *problems) {
	if _, port, err := net.SplitHostPort(c.Listen); err != nil || port == "" {
		p.add("listen", "%q is not HOST:PORT, such as 127.0.0.1:8080", c.Listen)
	}
	c.checkExternalURL(p)
	c.GitHub.check(p)
	if len(c.Accounts) == 0 {
		p.add("accounts", "nobody is served: list the accounts, such as [octo-org]")
	}
	for i, a := range c.Accounts {
		if !loginPattern.MatchString(a) {
			p.add(fmt.Sprintf("accounts.%d", i), "%q is no GitHub login", a)
		}
	}
	checkPath(p, "dataDir", c.DataDir)
	checkPath(p, "gatewaySocket", c.GatewaySocket)
	c.checkKeys(p)
	c.checkChecks(p)
	c.checkNumbers(p)
}

func (c *Config) checkExternalURL(p *problems) {
	if c.ExternalURL == "" {
		return
	}
	before := len(*p)
	checkURL(p, "externalURL", c.ExternalURL)
	if len(*p) > before {
		return
	}
	if u, err := url.Parse(c.ExternalURL); err != nil || u.Path != "" {
		p.add("externalURL", "%q has a path: give scheme and host alone, such as https://checks.example.com", c.ExternalURL)
	}
}

func (g *GitHub) check(p *problems) {
	checkURL(p, "github.apiURL", g.APIURL)
	checkURL(p, "github.webURL", g.WebURL)
	if g.AppID < 1 {
		p.add("github.appID", "%d is no App's number: the App's settings page shows it", g.AppID)
	}
	checkPath(p, "github.privateKeyFile", g.PrivateKeyFile)
	if len(g.WebhookSecretFiles) == 0 {
		p.add("github.webhookSecretFiles", "no secret: without one everybody could send events; name a file with the App's webhook secret")
	}
	for i, f := range g.WebhookSecretFiles {
		checkPath(p, fmt.Sprintf("github.webhookSecretFiles.%d", i), f)
	}
}

// checkURL wants https, and takes http for loopback addresses.
func checkURL(p *problems, field, s string) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		p.add(field, "%q is no plain URL, such as https://api.github.com", s)
		return
	}
	addr, err := netip.ParseAddr(u.Hostname())
	if loopback := err == nil && addr.IsLoopback() || u.Hostname() == "localhost"; u.Scheme != "https" && (u.Scheme != "http" || !loopback) {
		p.add(field, "%q does not begin with https://", s)
	}
}

func checkPath(p *problems, field, path string) {
	switch {
	case path == "":
		p.add(field, "is missing")
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		p.add(field, "%q is not an absolute path without \"..\"", path)
	}
}

func (c *Config) checkKeys(p *problems) {
	if len(c.TrustedKeys) == 0 {
		p.add("trustedKeys", "no key: nothing could ever be verified; name the gateway's public key")
	}
	for i, k := range c.TrustedKeys {
		at := fmt.Sprintf("trustedKeys.%d.", i)
		checkPath(p, at+"publicKeyFile", k.PublicKeyFile)
		if k.SignerID == "" {
			p.add(at+"signerID", "is missing: it is the signer in the gateway's configuration")
		}
		if len(k.ExecutorIDs) == 0 {
			p.add(at+"executorIDs", "is missing: the key may sign for nothing")
		}
		for j, id := range k.ExecutorIDs {
			if id == "" {
				p.add(fmt.Sprintf("%sexecutorIDs.%d", at, j), "is empty")
			}
		}
		if !k.ValidUntil.IsZero() && !k.ValidUntil.After(k.ValidFrom) {
			p.add(at+"validUntil", "is not after validFrom")
		}
	}
}

func (c *Config) checkChecks(p *problems) {
	if len(c.Checks) > maxChecks {
		p.add("checks", "more than %d", maxChecks)
		return
	}
	for i, check := range c.Checks {
		at := fmt.Sprintf("checks.%d.", i)
		m := repoPattern.FindStringSubmatch(check.Repositories)
		if m == nil {
			p.add(at+"repositories", "%q is neither owner/name nor owner/*", check.Repositories)
		} else if !c.serves(m[1]) {
			p.add(at+"repositories", "%q is not of one of the accounts: add %s to accounts", check.Repositories, m[1])
		}
		if !namePattern.MatchString(check.Name) {
			p.add(at+"name", "%q is not 1 to 63 of a-z, 0-9 and inner \"-\"", check.Name)
		}
		if !namePattern.MatchString(check.Profile) {
			p.add(at+"profile", "%q is no name of a profile", check.Profile)
		}
		checkPath(p, at+"profileFile", check.ProfileFile)
		checkRange(p, at+"concurrency", check.Concurrency, 1, maxWorkers)
		for _, other := range c.Checks[:i] {
			if other.Name == check.Name && overlap(other.Repositories, check.Repositories) {
				p.add(at+"name", "%q is the name of another check for the same repository: give it another name", check.Name)
				break
			}
		}
	}
}

func (c *Config) serves(owner string) bool {
	for _, a := range c.Accounts {
		if strings.EqualFold(a, owner) {
			return true
		}
	}
	return false
}

// overlap reports whether a repository can match both patterns.
func overlap(a, b string) bool {
	return matches(a, b) || matches(b, a)
}

// matches reports whether the pattern covers repo; names differ by more than
// case on GitHub.
func matches(pattern, repo string) bool {
	if owner, ok := strings.CutSuffix(pattern, "/*"); ok {
		o, _, _ := strings.Cut(repo, "/")
		return strings.EqualFold(owner, o)
	}
	return strings.EqualFold(pattern, repo)
}

func (c *Config) checkNumbers(p *problems) {
	checkRange(p, "workers.dispatch", c.Workers.Dispatch, 1, maxWorkers)
	checkRange(p, "workers.freeze", c.Workers.Freeze, 1, maxWorkers)
	checkRange(p, "workers.execute", c.Workers.Execute, 1, maxWorkers)
	checkRange(p, "workers.post", c.Workers.Post, 1, maxWorkers)
	checkRange(p, "freeze.bundleBytes", c.Freeze.BundleBytes, 1, 1<<40)
	checkRange(p, "freeze.diffBytes", c.Freeze.DiffBytes, 1, 16<<20)
	checkRange(p, "freeze.contextBytes", c.Freeze.ContextBytes, 1, 2_000_000)
	checkRange(p, "freeze.contextFiles", c.Freeze.ContextFiles, 1, 256)
	checkRange(p, "graceSeconds", c.GraceSeconds, 1, 3600)
}

func checkRange[T int | int64](p *problems, field string, value, least, most T) {
	if value < least || value > most {
		p.add(field, "%d is not within %d and %d", value, least, most)
	}
}
