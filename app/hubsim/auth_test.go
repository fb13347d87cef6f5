package hubsim_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v4"
	"github.com/google/go-github/v66/github"

	"underwrite/app/hubsim"
)

// clock is a clock that tests set.
type clock struct{ seconds atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.seconds.Store(time.Now().Unix())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(c.seconds.Load(), 0) }
func (c *clock) advance(d time.Duration) { c.seconds.Add(int64(d / time.Second)) }

func (w *world) key() *rsa.PrivateKey {
	w.t.Helper()
	block, _ := pem.Decode(w.AppPrivateKeyPEM())
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	ok(w.t, err)
	return key
}

// jwt signs claims as the app.
func (w *world) jwt(claims jwt.MapClaims) string {
	w.t.Helper()
	s, err := jwt.NewWithClaims(jwt.SigningMethodRS256, claims).SignedString(w.key())
	ok(w.t, err)
	return s
}

func TestAppAuthentication(t *testing.T) {
	c := newClock()
	w := newWorld(t, hubsim.Options{Now: c.now})
	now, iss := c.now().Unix(), strconv.FormatInt(w.AppID(), 10)
	claims := func(iss any, iat, exp int64) jwt.MapClaims { return jwt.MapClaims{"iss": iss, "iat": iat, "exp": exp} }
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	ok(t, err)
	foreign, err := jwt.NewWithClaims(jwt.SigningMethodRS256, claims(iss, now, now+60)).SignedString(other)
	ok(t, err)
	hmac, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims(iss, now, now+60)).SignedString([]byte("k"))
	ok(t, err)
	unsigned, err := jwt.NewWithClaims(jwt.SigningMethodNone, claims(iss, now, now+60)).SignedString(jwt.UnsafeAllowNoneSignatureType)
	ok(t, err)
	for _, tc := range []struct {
		name, token string
		code        int
		says        string
	}{
		{"good", w.jwt(claims(iss, now, now+600)), 200, hubsim.DefaultAppSlug},
		{"numeric issuer", w.jwt(claims(w.AppID(), now-60, now+60)), 200, ""},
		{"other app", w.jwt(claims("7", now, now+60)), 401, "'iss'"},
		{"no issuer", w.jwt(jwt.MapClaims{"iat": now, "exp": now + 60}), 401, "'iss'"},
		{"issued in the future", w.jwt(claims(iss, now+30, now+60)), 401, "'iat'"},
		{"no iat", w.jwt(jwt.MapClaims{"iss": iss, "exp": now + 60}), 401, "'iat'"},
		{"expired", w.jwt(claims(iss, now-60, now)), 401, "'exp'"},
		{"too long", w.jwt(claims(iss, now, now+601)), 401, "too far in the future"},
		{"no exp", w.jwt(jwt.MapClaims{"iss": iss, "iat": now}), 401, "'exp'"},
		{"other key", foreign, 401, "could not be decoded"},
		{"other algorithm", hmac, 401, "could not be decoded"},
		{"not signed", unsigned, 401, "could not be decoded"},
		{"installation token", w.narrow(nil, nil), 401, "could not be decoded"},
		{"nonsense", "a.b.c", 401, "could not be decoded"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, body := w.do(http.MethodGet, "/app", "Bearer "+tc.token, "")
			if code != tc.code || !strings.Contains(body, tc.says) {
				t.Errorf("status %d %s, want %d %q", code, body, tc.code, tc.says)
			}
		})
	}
	if code, _ := w.do(http.MethodGet, "/app", "", ""); code != http.StatusUnauthorized {
		t.Errorf("without credentials: status %d", code)
	}
	if code, body := w.do(http.MethodGet, "/repos/"+repo, "Bearer "+w.jwt(claims(iss, now, now+60)), ""); code != http.StatusForbidden {
		t.Errorf("a repository with the app's own token: status %d %s", code, body)
	}
	w.clean()
}

func TestInstallationTokens(t *testing.T) {
	c := newClock()
	w := newWorld(t, hubsim.Options{Now: c.now})
	_, err := w.CreateRepo(owner+"/other", hubsim.File("a", "a"))
	ok(t, err)
	tok, _, err := w.app.Apps.CreateInstallationToken(w.ctx, w.installation, &github.InstallationTokenOptions{
		Repositories: []string{name}, Permissions: &github.InstallationPermissions{Contents: github.String("read")},
	})
	ok(t, err)
	if !strings.HasPrefix(tok.GetToken(), "ghs_") || len(tok.GetToken()) != 40 || tok.GetExpiresAt().Unix() != c.now().Add(time.Hour).Unix() {
		t.Errorf("token %d bytes, expires %v", len(tok.GetToken()), tok.GetExpiresAt())
	}
	if p := tok.GetPermissions(); p.GetContents() != "read" || p.GetMetadata() != "read" || p.GetChecks() != "" || len(tok.Repositories) != 1 {
		t.Errorf("permissions %v, repositories %v", p, tok.Repositories)
	}
	auth := "token " + tok.GetToken()
	get := func(path string) (int, string) { return w.do(http.MethodGet, path, auth, "") }
	for _, tc := range []struct {
		path string
		code int
	}{
		{"/repos/" + repo, 200},
		{"/repos/OCTO-org/Calc", 200}, // names are not case-sensitive
		{"/repos/" + repo + "/git/ref/heads/main", 200},
		{"/repos/" + repo + "/commits/main", 200},
		{"/repos/" + repo + "/pulls", 403},
		{"/repos/" + repo + "/commits/main/check-runs", 403},
		{"/repos/" + owner + "/other", 404}, // narrowed away
		{"/repos/" + owner + "/missing", 404},
		{"/app", 401},
	} {
		if code, body := get(tc.path); code != tc.code {
			t.Errorf("GET %s: status %d %s, want %d", tc.path, code, body, tc.code)
		}
	}
	var list struct {
		TotalCount int `json:"total_count"`
	}
	_, body := get("/installation/repositories")
	ok(t, json.Unmarshal([]byte(body), &list))
	if list.TotalCount != 1 {
		t.Errorf("the token lists %d repositories, want 1", list.TotalCount)
	}
	c.advance(time.Hour)
	if code, body := get("/repos/" + repo); code != http.StatusUnauthorized || !strings.Contains(body, "Bad credentials") {
		t.Errorf("expired token: status %d %s", code, body)
	}
	w.clean()
}

func TestTokenRefused(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	for _, tc := range []struct {
		name string
		id   int64
		o    *github.InstallationTokenOptions
		code int
	}{
		{"unknown installation", 7, nil, 404},
		{"repository that is not there", w.installation, &github.InstallationTokenOptions{Repositories: []string{"missing"}}, 422},
		{"repository id that is not there", w.installation, &github.InstallationTokenOptions{RepositoryIDs: []int64{7}}, 422},
		{"permission not granted", w.installation, &github.InstallationTokenOptions{Permissions: &github.InstallationPermissions{Actions: github.String("read")}}, 422},
		{"level not granted", w.installation, &github.InstallationTokenOptions{Permissions: &github.InstallationPermissions{Contents: github.String("write")}}, 422},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := w.app.Apps.CreateInstallationToken(w.ctx, tc.id, tc.o)
			w.status(err, tc.code, "")
		})
	}
	w.clean()
}

func TestTokensEnd(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	revoked, gone := w.narrow(nil, nil), w.narrow(nil, nil)
	if code, _ := w.do(http.MethodDelete, "/installation/token", "token "+revoked, ""); code != http.StatusNoContent {
		t.Errorf("revoke: status %d", code)
	}
	if code, _ := w.do(http.MethodGet, "/repos/"+repo, "token "+revoked, ""); code != http.StatusUnauthorized {
		t.Errorf("revoked token: status %d", code)
	}
	ok(t, w.Uninstall(owner))
	if code, _ := w.do(http.MethodGet, "/repos/"+repo, "token "+gone, ""); code != http.StatusUnauthorized {
		t.Errorf("token of a removed installation: status %d", code)
	}
	_, resp, _ := w.app.Apps.FindRepositoryInstallation(w.ctx, owner, name)
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("removed installation: status %d", resp.StatusCode)
	}
	w.clean()
}

func TestInstallations(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	app, _, err := w.app.Apps.Get(w.ctx, "")
	ok(t, err)
	if app.GetID() != w.AppID() || app.GetSlug() != hubsim.DefaultAppSlug {
		t.Errorf("app %v", app)
	}
	inst, _, err := w.app.Apps.FindRepositoryInstallation(w.ctx, owner, name)
	ok(t, err)
	if inst.GetID() != w.installation || inst.GetAccount().GetLogin() != owner || inst.GetPermissions().GetChecks() != "write" {
		t.Errorf("installation %v", inst)
	}
	got, _, err := w.app.Apps.GetInstallation(w.ctx, w.installation)
	ok(t, err)
	list, _, err := w.app.Apps.ListInstallations(w.ctx, nil)
	ok(t, err)
	if got.GetID() != w.installation || len(list) != 1 {
		t.Errorf("installation %v, list %v", got, list)
	}
	if _, err := w.Install(owner); err == nil {
		t.Error("installed twice")
	}
	repos, _, err := w.gh.Apps.ListRepos(w.ctx, nil)
	ok(t, err)
	if repos.GetTotalCount() != 1 || repos.Repositories[0].GetCloneURL() != w.URL()+"/"+repo+".git" {
		t.Errorf("repositories %v", repos)
	}
	w.clean()
}

// TestSelectedRepositories: an installation may cover some of an account's
// repositories only.
func TestSelectedRepositories(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	for _, n := range []string{"one", "two"} {
		_, err := w.CreateRepo("example/"+n, hubsim.File("a", "a"))
		ok(t, err)
	}
	if _, err := w.Install("example", "three"); err == nil {
		t.Error("installed on a repository that does not exist")
	}
	id, err := w.Install("example", "one")
	ok(t, err)
	inst, _, err := w.app.Apps.FindRepositoryInstallation(w.ctx, "example", "one")
	ok(t, err)
	if inst.GetID() != id || inst.GetRepositorySelection() != "selected" {
		t.Errorf("installation %v", inst)
	}
	_, _, err = w.app.Apps.FindRepositoryInstallation(w.ctx, "example", "two")
	w.status(err, http.StatusNotFound, "")
	w.clean()
}

func TestPermissionLevels(t *testing.T) {
	w := newWorld(t, hubsim.Options{})
	for _, tc := range []struct{ role, permission string }{
		{"admin", "admin"}, {"maintain", "write"}, {"write", "write"}, {"triage", "read"}, {"read", "read"}, {"none", "none"},
	} {
		ok(t, w.SetPermission(repo, "octocat", tc.role))
		got, _, err := w.gh.Repositories.GetPermissionLevel(w.ctx, owner, name, "Octocat")
		ok(t, err)
		if got.GetPermission() != tc.permission || got.GetRoleName() != tc.role || got.GetUser().GetLogin() != "octocat" {
			t.Errorf("role %s: %v", tc.role, got)
		}
	}
	w.open("feature")
	n := w.open("other")
	_, err := w.Comment(repo, n, "passer-by", "hello")
	ok(t, err)
	got, _, err := w.gh.Repositories.GetPermissionLevel(w.ctx, owner, name, "passer-by")
	ok(t, err)
	if got.GetPermission() != "none" {
		t.Errorf("a passer-by has %v", got)
	}
	_, _, err = w.gh.Repositories.GetPermissionLevel(w.ctx, owner, name, "nobody-at-all")
	w.status(err, http.StatusNotFound, "")
	if err := w.SetPermission(repo, "octocat", "owner"); err == nil {
		t.Error("an unknown role was given")
	}
	w.clean()
}

func TestRateLimit(t *testing.T) {
	c := newClock()
	w := newWorld(t, hubsim.Options{Now: c.now, RateLimit: 3})
	auth := "token " + w.narrow(nil, nil)
	for range 3 {
		if code, body := w.do(http.MethodGet, "/repos/"+repo, auth, ""); code != http.StatusOK {
			t.Fatalf("status %d %s", code, body)
		}
	}
	if code, body := w.do(http.MethodGet, "/repos/"+repo, auth, ""); code != http.StatusForbidden || !strings.Contains(body, "rate limit exceeded") {
		t.Errorf("status %d %s, want a rate limit", code, body)
	}
	_, body := w.do(http.MethodGet, "/rate_limit", auth, "")
	var limits struct {
		Rate struct{ Limit, Remaining int }
	}
	ok(t, json.Unmarshal([]byte(body), &limits))
	if limits.Rate.Limit != 3 || limits.Rate.Remaining != 0 {
		t.Errorf("limits %s", body)
	}
	auth = "token " + w.UserToken("octocat") // another owner of another limit
	if code, body := w.do(http.MethodGet, "/meta", auth, ""); code != http.StatusOK {
		t.Errorf("status %d %s", code, body)
	}
	w.clean()
}
