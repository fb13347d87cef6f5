package ghapp

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"underwrite/handlers/checks"
)

const (
	testRepo  = "octo-org/shop"
	testToken = "ghs_testtokentesttokentesttoken"
)

var sha = strings.Repeat("a", 40)

var testKey = sync.OnceValue(func() []byte {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
})

func keyFile(t *testing.T, content []byte, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app.pem")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// api answers the calls for the installation and its token, and hands the rest
// to answer.
func api(t *testing.T, answer http.HandlerFunc) *App {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v3/repos/octo-org/shop/installation", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"id":5}`) })
	mux.HandleFunc("POST /api/v3/app/installations/5/access_tokens", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"token":%q,"expires_at":%q,"permissions":{"contents":"read","metadata":"read"}}`, testToken, time.Now().Add(time.Hour).Format(time.RFC3339))
	})
	mux.HandleFunc("/", answer)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return newApp(t, server.URL+"/api/v3/")
}

func newApp(t *testing.T, url string) *App {
	t.Helper()
	a, err := New(Config{APIURL: url, WebURL: "https://github.example.com/", AppID: 7, PrivateKeyFile: keyFile(t, testKey(), 0o600)})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestErrors(t *testing.T) {
	header := func(kv ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(kv); i += 2 {
			h.Set(kv[i], kv[i+1])
		}
		return h
	}
	reset := fmt.Sprint(time.Now().Add(30 * time.Minute).Unix())
	const abuse = `{"message":"You have exceeded a secondary rate limit","documentation_url":"https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"}`
	for _, c := range []struct {
		name   string
		status int
		header http.Header
		body   string
		gone   bool
		wait   time.Duration // at least, 0 for none
	}{
		{"not found", 404, nil, `{"message":"Not Found"}`, true, 0},
		{"gone", 410, nil, `{}`, true, 0},
		{"forbidden", 403, nil, `{"message":"Resource not accessible by integration"}`, true, 0},
		{"suspended", 403, nil, `{"message":"This installation has been suspended"}`, true, 0},
		{"blocked for legal reasons", 451, nil, `{"message":"Repository access blocked"}`, true, 0},
		{"commit unknown", 422, nil, `{"message":"No commit found for SHA: x"}`, true, 0},
		{"other validation", 422, nil, `{"message":"Validation Failed","errors":[{"resource":"CheckRun","field":"name","code":"invalid"}]}`, false, 0},
		{"bad credentials", 401, nil, `{"message":"Bad credentials"}`, false, 0},
		{"server error", 500, nil, `<html>oops`, false, 0},
		{"unavailable", 503, header("Retry-After", "120"), `{}`, false, 119 * time.Second},
		{"too many requests", 429, header("Retry-After", "3600"), `{}`, false, 3599 * time.Second},
		{"too many requests without a time", 429, nil, `{}`, false, time.Minute},
		{"secondary limit", 403, header("Retry-After", "3600"), abuse, false, 3500 * time.Second},
		{"secondary limit without a time", 403, nil, abuse, false, time.Minute},
		{"limit by its text alone", 403, nil, `{"message":"API rate limit exceeded for installation"}`, false, time.Minute},
		{"limit with a text of its own", 403, header("Retry-After", "90"), `{"message":"slow down"}`, false, 89 * time.Second},
		{"primary limit", 403, header("X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", reset, "X-Ratelimit-Resource", "core", "X-Ratelimit-Limit", "5000"), `{"message":"API rate limit exceeded"}`, false, 25 * time.Minute},
		{"no JSON", 200, nil, `<html>`, false, 0},
		{"an empty answer", 200, nil, ``, false, 0},
		{"control characters", 500, nil, `{"message":"a\u001b[31m\nb\u202e"}`, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := api(t, func(w http.ResponseWriter, _ *http.Request) {
				for k, v := range c.header {
					w.Header()[k] = v
				}
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			})
			_, err := a.PullRequest(context.Background(), testRepo, 7)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("%v is no Error", err)
			}
			if errors.Is(err, checks.ErrGone) != c.gone {
				t.Errorf("%v: gone %v, want %v", err, !c.gone, c.gone)
			}
			if e.RetryAfter < c.wait || c.wait == 0 && e.RetryAfter != 0 {
				t.Errorf("%v: wait %v, want %v", err, e.RetryAfter, c.wait)
			}
			checkText(t, err)
		})
	}
}

// checkText holds an error to one line that names the noun and no secret.
func checkText(t *testing.T, err error) {
	t.Helper()
	asJSON, _ := json.Marshal(err)
	for _, s := range []string{err.Error(), fmt.Sprintf("%+v %#v", err, err), string(asJSON)} {
		for _, secret := range []string{testToken, "Bearer", "ghs_", "PRIVATE KEY"} {
			if strings.Contains(s, secret) {
				t.Errorf("%q contains %q", s, secret)
			}
		}
	}
	if s := err.Error(); strings.ContainsAny(s, "\n\x1b\u202e") || !strings.Contains(s, testRepo) {
		t.Errorf("error %q", s)
	}
}

func TestErrorsWithoutAnAnswer(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	a := newApp(t, server.URL)
	_, err := a.PullRequest(context.Background(), testRepo, 7)
	if err == nil || errors.Is(err, checks.ErrGone) {
		t.Errorf("connection refused: %v", err)
	}
	checkText(t, err)

	entered := make(chan struct{})
	slow := api(t, func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-entered; cancel() }()
	if _, err := slow.PullRequest(ctx, testRepo, 7); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestTokenRefused: the installation exists but gives no token.
func TestTokenRefused(t *testing.T) {
	for status, gone := range map[int]bool{404: true, 403: true, 500: false, 401: false} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/installation") {
				fmt.Fprint(w, `{"id":5}`)
				return
			}
			w.WriteHeader(status)
		}))
		_, err := newApp(t, server.URL).PullRequest(context.Background(), testRepo, 7)
		if err == nil || errors.Is(err, checks.ErrGone) != gone {
			t.Errorf("%d: %v, want gone %v", status, err, gone)
		}
		checkText(t, err)
		server.Close()
	}
}

// TestLimitHoldsCallsBack: after a long limit nothing is sent until it is over.
func TestLimitHoldsCallsBack(t *testing.T) {
	var calls atomic.Int32
	a := api(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"message":"You have exceeded a secondary rate limit","documentation_url":"https://docs.github.com/x#about-secondary-rate-limits"}`)
	})
	for range 3 {
		var e *Error
		if _, err := a.PullRequest(context.Background(), testRepo, 7); !errors.As(err, &e) || e.RetryAfter < time.Minute {
			t.Fatalf("%v", err)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls during the limit, want 1", n)
	}
}

// roundTripper is a transport that is no http.Transport: that one sometimes
// rewinds a body by itself.
type roundTripper func(*http.Request) *http.Response

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }

// TestShortLimitIsWaitedOut: the repeated call has its body again.
func TestShortLimitIsWaitedOut(t *testing.T) {
	answers := []struct {
		status int
		body   string
	}{
		{200, `{"id":5}`},
		{201, `{"token":"ghs_x","expires_at":"2999-01-01T00:00:00Z"}`},
		{403, `{"message":"You have exceeded a secondary rate limit","documentation_url":"https://docs.github.com/x#about-secondary-rate-limits"}`},
		{201, `{"id":99}`},
	}
	var bodies []string
	transport := roundTripper(func(r *http.Request) *http.Response {
		var b []byte
		if r.Body != nil {
			b, _ = io.ReadAll(r.Body)
		}
		a := answers[len(bodies)]
		bodies = append(bodies, string(b))
		return &http.Response{StatusCode: a.status, Header: http.Header{"Retry-After": {"1"}}, Body: io.NopCloser(strings.NewReader(a.body)), Request: r}
	})
	a, err := New(Config{APIURL: "https://api.example.com", WebURL: "https://example.com", AppID: 7, PrivateKeyFile: keyFile(t, testKey(), 0o600), Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	id, err := a.CreateCheckRun(context.Background(), checks.Run{Repo: testRepo, Name: "underwrite/unit", HeadSHA: sha, Status: "queued", Summary: "s"})
	if err != nil || id != 99 {
		t.Fatalf("%d, %v", id, err)
	}
	if len(bodies) != 4 || bodies[2] != bodies[3] || !strings.Contains(bodies[2], sha) {
		t.Errorf("bodies %q", bodies)
	}
}

func TestRedirectToAnotherHost(t *testing.T) {
	var leaked atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { leaked.Store(true) }))
	defer other.Close()
	a := api(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, strings.Replace(other.URL, "127.0.0.1", "localhost", 1), http.StatusTemporaryRedirect)
	})
	if _, err := a.PullRequest(context.Background(), testRepo, 7); err == nil {
		t.Error("followed")
	}
	if leaked.Load() {
		t.Error("the other host was called, with a token")
	}
}

func TestMalformedPullRequests(t *testing.T) {
	good := `{"number":7,"state":"open","changed_files":1,"base":{"sha":"` + sha + `","repo":{"full_name":"octo-org/shop"}},` +
		`"head":{"sha":"` + sha + `","ref":"topic","repo":{"id":9,"full_name":"mona/shop"}},"merged_at":null}`
	body := good
	a := api(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
	if pr, err := a.PullRequest(context.Background(), testRepo, 7); err != nil || *pr.HeadRepo != "mona/shop" || pr.MergedAt != nil {
		t.Fatalf("%+v, %v", pr, err)
	}
	for name, change := range map[string][2]string{
		"another number":     {`"number":7`, `"number":8`},
		"unknown state":      {`"open"`, `"draft"`},
		"short commit":       {sha, sha[:39]},
		"no base repository": {`"octo-org/shop"`, `""`},
		"no head ref":        {`"topic"`, `""`},
		"head repository":    {`"mona/shop"`, `"mona"`},
		"head repository id": {`"id":9`, `"id":0`},
		"negative files":     {`"changed_files":1`, `"changed_files":-1`},
		"huge number":        {`"number":7`, `"number":1e400`},
	} {
		body = strings.Replace(good, change[0], change[1], 1)
		if pr, err := a.PullRequest(context.Background(), testRepo, 7); err == nil {
			t.Errorf("%s: accepted %+v", name, pr)
		}
	}
	body = strings.Replace(good, `{"id":9,"full_name":"mona/shop"}`, "null", 1)
	if pr, err := a.PullRequest(context.Background(), testRepo, 7); err != nil || pr.HeadRepo != nil || pr.HeadRepoID != nil {
		t.Errorf("deleted fork: %+v, %v", pr, err)
	}
}

func TestWiderTokenIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		ok     bool
	}{
		"as asked":           {`{"token":"ghs_x","permissions":{"contents":"read","metadata":"read"},"repositories":[{"full_name":"Octo-Org/shop"}]}`, true},
		"can write":          {`{"token":"ghs_x","permissions":{"contents":"write"}}`, false},
		"can do more":        {`{"token":"ghs_x","permissions":{"contents":"read","checks":"read"}}`, false},
		"cannot read":        {`{"token":"ghs_x","permissions":{"metadata":"read"}}`, false},
		"another repository": {`{"token":"ghs_x","permissions":{"contents":"read"},"repositories":[{"full_name":"octo-org/secret"}]}`, false},
		"two repositories":   {`{"token":"ghs_x","permissions":{"contents":"read"},"repositories":[{"full_name":"octo-org/shop"},{"full_name":"octo-org/secret"}]}`, false},
		"empty":              {`{"token":"","permissions":{"contents":"read"}}`, false},
		"a header in it":     {`{"token":"ghs_x\r\nX: y","permissions":{"contents":"read"}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			var asked string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					fmt.Fprint(w, `{"id":5}`)
					return
				}
				b, _ := io.ReadAll(r.Body)
				asked = string(b)
				w.WriteHeader(http.StatusCreated)
				io.WriteString(w, c.answer)
			}))
			defer server.Close()
			url, authorization, err := newApp(t, server.URL).FetchAccess(context.Background(), testRepo)
			if (err == nil) != c.ok {
				t.Fatalf("%v", err)
			}
			if strings.TrimSpace(asked) != `{"repositories":["shop"],"permissions":{"contents":"read"}}` {
				t.Errorf("asked for %s", asked)
			}
			if c.ok && (url != "https://github.example.com/octo-org/shop.git" || !strings.HasPrefix(authorization, "Basic ")) {
				t.Errorf("%q %q", url, authorization)
			}
			if err != nil && strings.Contains(err.Error(), "ghs_") {
				t.Errorf("the error contains the token: %v", err)
			}
		})
	}
}

// TestFindCheckRun: another App's check run, or one of another name, commit or
// external id, is not ours; pages are followed.
func TestFindCheckRun(t *testing.T) {
	run := func(id int, app int, name, head, external string) string {
		return fmt.Sprintf(`{"id":%d,"app":{"id":%d},"name":%q,"head_sha":%q,"external_id":%q,"status":"queued"}`, id, app, name, head, external)
	}
	pages := map[string][]string{
		"": {run(1, 8, "underwrite/unit", sha, "e-1"), run(2, 7, "underwrite/other", sha, "e-1"),
			run(3, 7, "underwrite/unit", strings.Repeat("b", 40), "e-1"), run(4, 7, "underwrite/unit", sha, "e-2")},
		"2": {run(6, 7, "underwrite/unit", sha, "e-1"), run(5, 7, "underwrite/unit", sha, "e-1")},
	}
	a := api(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("filter") != "all" || q.Get("app_id") != "7" || q.Get("check_name") != "underwrite/unit" {
			t.Errorf("query %q", r.URL.RawQuery)
		}
		if q.Get("page") == "" {
			w.Header().Set("Link", fmt.Sprintf(`<http://%s%s?page=2>; rel="next"`, r.Host, r.URL.Path))
		}
		fmt.Fprintf(w, `{"total_count":6,"check_runs":[%s]}`, strings.Join(pages[q.Get("page")], ","))
	})
	got, found, err := a.FindCheckRun(context.Background(), testRepo, sha, "underwrite/unit", "e-1")
	if err != nil || !found || got.ID != 5 {
		t.Errorf("%+v %v %v, want the oldest of ours", got, found, err)
	}
	pages["2"] = nil
	if got, found, err := a.FindCheckRun(context.Background(), testRepo, sha, "underwrite/unit", "e-1"); err != nil || found {
		t.Errorf("%+v %v %v, want none", got, found, err)
	}
}

func TestNewRefuses(t *testing.T) {
	good := Config{APIURL: "https://api.github.com", WebURL: "https://github.com", AppID: 7, PrivateKeyFile: keyFile(t, testKey(), 0o600)}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"no API URL", func(c *Config) { c.APIURL = "" }, []string{"API URL"}},
		{"plain http", func(c *Config) { c.APIURL = "http://api.github.com" }, []string{"API URL", "https://"}},
		{"credentials in the URL", func(c *Config) { c.APIURL = "https://user:hunter2@api.github.com" }, []string{"API URL", "user"}},
		{"query", func(c *Config) { c.WebURL = "https://github.com/?a=b" }, []string{"web URL"}},
		{"another scheme", func(c *Config) { c.WebURL = "file:///etc" }, []string{"web URL"}},
		{"control character", func(c *Config) { c.WebURL = "https://github.com\n" }, []string{"web URL"}},
		{"no app ID", func(c *Config) { c.AppID = 0 }, []string{"app ID"}},
		{"no key", func(c *Config) { c.PrivateKeyFile = "/nonexistent/app.pem" }, []string{"/nonexistent/app.pem"}},
		{"key is a directory", func(c *Config) { c.PrivateKeyFile = t.TempDir() }, []string{"no regular file"}},
		{"key for the group", func(c *Config) { c.PrivateKeyFile = keyFile(t, testKey(), 0o640) }, []string{"app.pem", "0640", "chmod 600"}},
		{"key for all", func(c *Config) { c.PrivateKeyFile = keyFile(t, testKey(), 0o604) }, []string{"app.pem", "chmod 600"}},
		{"no key in it", func(c *Config) { c.PrivateKeyFile = keyFile(t, []byte("hunter2"), 0o600) }, []string{"app.pem", "PEM"}},
		{"empty key", func(c *Config) { c.PrivateKeyFile = keyFile(t, nil, 0o600) }, []string{"app.pem", "PEM"}},
		{"huge key", func(c *Config) { c.PrivateKeyFile = keyFile(t, make([]byte, maxKeyBytes+1), 0o600) }, []string{"app.pem", "too large"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := good
			c.change(&config)
			_, err := New(config)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not name %q", err, w)
				}
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%q shows a secret", err)
			}
		})
	}
	for _, loop := range []string{"http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"} {
		config := good
		config.APIURL = loop
		if _, err := New(config); err != nil {
			t.Errorf("%s: %v", loop, err)
		}
	}
}

// TestInstallationIsAskedAgain after its time, and when it was refused.
func TestInstallationIsAskedAgain(t *testing.T) {
	var lookups atomic.Int32
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization")[:7])
		fmt.Fprintf(w, `{"id":%d}`, lookups.Add(1))
	}))
	defer server.Close()
	a := newApp(t, server.URL)
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	a.found.now = func() time.Time { return now }
	for i, step := range []time.Duration{0, installationTTL - 1, 1, 1} {
		now = now.Add(step)
		want := int64([]int{1, 1, 2, 2}[i])
		if id, err := a.Installation(context.Background(), "Octo-Org/Shop"); err != nil || id != want {
			t.Errorf("step %d: %d, %v, want %d", i, id, err, want)
		}
	}
	if slices.ContainsFunc(seen, func(s string) bool { return s != "Bearer " }) {
		t.Errorf("authenticated with %q", seen)
	}
}
