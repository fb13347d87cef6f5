package ghapp

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/gofri/go-github-ratelimit/v2/github_ratelimit"
	"github.com/gofri/go-github-ratelimit/v2/github_ratelimit/github_secondary_ratelimit"
	"github.com/google/go-github/v66/github"
	"github.com/palantir/go-githubapp/githubapp"
	"github.com/rs/zerolog"
)

const (
	// requestTimeout bounds one API call, with the waiting for a short limit.
	requestTimeout = 30 * time.Second
	// maxLimitWait is the longest secondary rate limit that is waited out on
	// the spot. Longer ones go back to the caller's queue (Error.RetryAfter).
	maxLimitWait = 5 * time.Second
	// maxKeyBytes is more than a 16,384-bit RSA key in PEM form takes.
	maxKeyBytes = 32 << 10
)

// Config says which App this is, and of which GitHub.
type Config struct {
	// APIURL is the REST API: https://api.github.com, or https://HOST/api/v3.
	// http is accepted for loopback addresses only.
	APIURL string
	// WebURL is where repositories are cloned from: https://github.com, or
	// https://HOST.
	WebURL string
	// AppID is the App's number (its settings page shows it).
	AppID int64
	// PrivateKeyFile is the App's private key, PEM. Only its owner may have
	// access to the file.
	PrivateKeyFile string
	// Transport carries the calls; http.DefaultTransport if nil.
	Transport http.RoundTripper
}

// App speaks to GitHub as the App and as its installations. It is the only
// holder of the App's key and of tokens; the one token that leaves it is in
// FetchAccess. All methods may be called from several goroutines.
type App struct {
	id      int64
	webURL  string
	app     *github.Client          // authenticates as the App
	clients githubapp.ClientCreator // makes clients that authenticate as an installation
	found   installations
}

// New loads the private key. It makes no call.
func New(c Config) (*App, error) {
	api, err := checkURL("API URL", c.APIURL)
	if err != nil {
		return nil, err
	}
	web, err := checkURL("web URL", c.WebURL)
	if err != nil {
		return nil, err
	}
	if c.AppID < 1 {
		return nil, fmt.Errorf("app ID %d: is not positive; the App's settings page shows it", c.AppID)
	}
	key, err := readKey(c.PrivateKeyFile)
	if err != nil {
		return nil, err
	}
	// Not the library's caching creator: a client whose token was revoked could
	// not be replaced before that token's hour is over.
	clients := githubapp.NewClientCreator(api.String(), api.String(), c.AppID, []byte(key),
		githubapp.WithClientUserAgent("underwrite"),
		githubapp.WithClientTimeout(requestTimeout),
		githubapp.WithTransport(&guard{api: api, next: c.Transport}),
		githubapp.WithClientMiddleware(githubapp.ClientLogging(zerolog.DebugLevel), limitRate),
	)
	app, err := clients.NewAppClient()
	if err != nil {
		return nil, fmt.Errorf("private key %s: is no RSA key in PEM form; download one from the App's settings page", c.PrivateKeyFile)
	}
	return &App{id: c.AppID, webURL: web.String(), app: app, clients: clients, found: newInstallations()}, nil
}

// limitRate holds calls back while a rate limit is active, for each client
// (App or installation) by itself, as GitHub counts.
func limitRate(next http.RoundTripper) http.RoundTripper {
	return github_ratelimit.New(rewind{next},
		github_secondary_ratelimit.WithSingleSleepLimit(maxLimitWait, nil))
}

// checkURL parses a base URL and refuses whatever would put a token in danger.
func checkURL(name, s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: is no URL", name)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%s: must have no user, query or fragment", name)
	case u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, fmt.Errorf("%s %q: must begin with https://", name, s)
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return nil, fmt.Errorf("%s %q: must begin with https://, or tokens would travel unprotected", name, s)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, nil
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// readKey reads the private key from a file that nobody else may read.
func readKey(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("private key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", fmt.Errorf("private key: %w", err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("private key %s: is no regular file", path)
	case info.Mode().Perm()&0o077 != 0:
		return "", fmt.Errorf("private key %s: mode %04o lets others use it; run: chmod 600 %s", path, info.Mode().Perm(), path)
	}
	key, err := io.ReadAll(io.LimitReader(f, maxKeyBytes+1))
	if err == nil && len(key) > maxKeyBytes {
		err = errors.New("is too large for a key")
	}
	if err != nil {
		return "", fmt.Errorf("private key %s: %w", path, err)
	}
	return string(key), nil
}
