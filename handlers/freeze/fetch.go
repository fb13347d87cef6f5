package freeze

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"underwrite/runner/confine"
)

// access is how to reach a repository.
type access struct {
	url           string
	protocol      string // "https", or "http" for a loopback host
	site          string // scheme and host, the only place that gets the header
	authorization string // secret
}

// newAccess accepts https, and http for a host that is this machine. A URL
// with credentials in it is refused: it would be seen in the list of processes.
func newAccess(raw, authorization string) (access, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return access{}, errors.New("clone URL: want https://HOST/PATH without credentials")
	}
	if u.Scheme != "https" && !(u.Scheme == "http" && isLoopback(u.Hostname())) {
		return access{}, fmt.Errorf("clone URL %s: only https is allowed (http only on this machine)", u)
	}
	if strings.ContainsAny(authorization, "\r\n\x00") {
		return access{}, errors.New("the authorization for a fetch has a line break in it")
	}
	return access{url: u.String(), protocol: u.Scheme, site: u.Scheme + "://" + u.Host + "/", authorization: authorization}, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// environment hands git the header: not in an argument, which all users of the
// machine can read, and not in a file. It is bound to the site, and the
// repository's configuration forbids redirects, so that no other host gets it.
func (a access) environment() []string {
	if a.authorization == "" {
		return nil
	}
	return []string{
		"GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=http." + a.site + ".extraHeader",
		"GIT_CONFIG_VALUE_0=Authorization: " + a.authorization,
	}
}

// redact removes the secret from what git said.
func (a access) redact(err error) error {
	var exit *confine.ExitError
	if !errors.As(err, &exit) || a.authorization == "" {
		return err
	}
	clean := *exit
	_, token, _ := strings.Cut(a.authorization, " ")
	for _, secret := range []string{a.authorization, token} {
		if secret != "" {
			clean.Stderr = strings.ReplaceAll(clean.Stderr, secret, "[secret]")
		}
	}
	return &clean
}

// fetched are the commits that the refs named.
type fetched struct{ base, head string }

// fetch brings the two commits of a pull request with their history into the
// mirror. A crash leaves the mark, which makes the next freeze check the
// mirror, and objects without a ref or the refs with all their objects.
func (m *mirror) fetch(ctx context.Context, pr PullRequest, a access, maxPack int64) (fetched, error) {
	l, err := lockFile(ctx, m.base+".fetch.lock", true)
	if err != nil {
		return fetched{}, err
	}
	defer l.unlock()
	if err := m.reset(); err != nil {
		return fetched{}, err
	}
	if err := os.WriteFile(m.base+".fetching", nil, 0o600); err != nil {
		return fetched{}, fmt.Errorf("mirror: %w", err)
	}
	slot := fmt.Sprintf("refs/kept/%d/", pr.Number%keptPulls)
	if err := m.runFetch(ctx, pr, a, slot, maxPack); err != nil {
		return fetched{}, m.afterFailure(err, maxPack)
	}
	got, err := m.commits(ctx, slot)
	if err != nil {
		return fetched{}, err
	}
	return got, m.unmark()
}

// afterFailure tells the failures that are no fault of the mirror's, and
// removes the mark for them. git does not say that it was stopped for the size
// of a file; the file that it left does.
func (m *mirror) afterFailure(err error, maxPack int64) error {
	left, globErr := filepath.Glob(filepath.Join(m.objects(), "pack", "tmp_*"))
	if globErr != nil {
		return errors.Join(err, globErr)
	}
	for _, p := range left {
		if info, statErr := os.Stat(p); statErr == nil && info.Size() >= maxPack {
			return errors.Join(tooMuchHistory(maxPack/packSlack), m.sweep(), m.unmark())
		}
	}
	if errors.Is(err, ErrNotYet) {
		return errors.Join(err, m.unmark())
	}
	return err
}

func (m *mirror) unmark() error {
	if err := os.Remove(m.base + ".fetching"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("mirror: %w", err)
	}
	return nil
}

func (m *mirror) runFetch(ctx context.Context, pr PullRequest, a access, slot string, maxPack int64) error {
	spec := confine.Git(m.dir,
		"-c", "protocol."+a.protocol+".allow=always",
		"fetch", "--quiet", "--atomic", "--force", "--no-tags", "--recurse-submodules=no",
		"--no-write-fetch-head", "--no-auto-maintenance", "--no-show-forced-updates", a.url,
		pr.BaseSHA+":"+slot+"base",
		fmt.Sprintf("refs/pull/%d/head:%shead", pr.Number, slot))
	spec.Env = append(spec.Env, a.environment()...)
	spec.Network = true
	spec.Timeout, spec.MaxFileBytes = fetchTimeout, maxPack
	return fetchError(pr, a.redact(confine.Run(ctx, spec)))
}

// fetchError tells what may pass by itself from what does not.
func fetchError(pr PullRequest, err error) error {
	var exit *confine.ExitError
	if errors.As(err, &exit) {
		// What git says when GitHub does not have, or not show, the ref or commit.
		for _, phrase := range []string{"couldn't find remote ref", "not our ref", "Server does not allow request for unadvertised object"} {
			if strings.Contains(exit.Stderr, phrase) {
				return fmt.Errorf("%w: %w", ErrNotYet, err)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("fetch pull request %s#%d: %w", pr.Repo, pr.Number, err)
	}
	return nil
}

// commits reads the two refs of a slot.
func (m *mirror) commits(ctx context.Context, slot string) (fetched, error) {
	var out bytes.Buffer
	if err := m.git(ctx, &out, "for-each-ref", "--format=%(objecttype) %(objectname) %(refname)", slot); err != nil {
		return fetched{}, err
	}
	var f fetched
	for line := range strings.Lines(out.String()) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != "commit" || !shaShape.MatchString(fields[1]) {
			return fetched{}, fmt.Errorf("mirror: a fetched ref is no commit: %q", line)
		}
		switch fields[2] {
		case slot + "base":
			f.base = fields[1]
		case slot + "head":
			f.head = fields[1]
		}
	}
	if f.base == "" || f.head == "" {
		return fetched{}, errors.New("mirror: a fetched ref is missing")
	}
	return f, nil
}
