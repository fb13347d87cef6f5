package handlers

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/rs/zerolog"
)

const (
	testSecret = "a webhook secret for tests"
	testGUID   = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
)

// memory keeps deliveries as the store does.
type memory struct {
	mu    sync.Mutex
	saved map[string]Delivery
	fail  error
}

func (m *memory) SaveDelivery(ctx context.Context, d Delivery) (Saved, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil || ctx.Err() != nil {
		return 0, errors.Join(m.fail, ctx.Err())
	}
	if old, ok := m.saved[d.GUID]; ok {
		if old.BodySHA256 == d.BodySHA256 {
			return Duplicate, nil
		}
		return Conflict, nil
	}
	if m.saved == nil {
		m.saved = map[string]Delivery{}
	}
	m.saved[d.GUID] = d
	return New, nil
}

func newIntake(t testing.TB) (*Intake, *memory) {
	t.Helper()
	m := &memory{}
	in, err := NewIntake(m, testSecret)
	if err != nil {
		t.Fatal(err)
	}
	return in, m
}

func sign(secret string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

func delivery(event string, body []byte) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/webhook", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(deliveryHeader, testGUID)
	r.Header.Set(eventHeader, event)
	r.Header.Set(signatureHeader, sign(testSecret, body))
	return r
}

func post(in *Intake, r *http.Request) (int, string) {
	w := httptest.NewRecorder()
	in.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

const pullBody = `{"action":"opened","number":7,"pull_request":{"number":7,"title":"👩‍💻 ünïcode","head":{"repo":null}},` +
	`"repository":{"full_name":"octo-org/shop"},"installation":{"id":42}}`

func TestIntakeStoresADelivery(t *testing.T) {
	in, m := newIntake(t)
	if code, text := post(in, delivery("pull_request", []byte(pullBody))); code != http.StatusAccepted {
		t.Fatalf("%d %s", code, text)
	}
	d := m.saved[testGUID]
	sum := sha256.Sum256([]byte(pullBody))
	if d.Event != "pull_request" || d.Action != "opened" || d.Repo != "octo-org/shop" || d.Number != 7 || d.InstallationID != 42 ||
		string(d.Body) != pullBody || d.BodySHA256 != hex.EncodeToString(sum[:]) || d.ReceivedAt.IsZero() {
		t.Errorf("stored %+v", d)
	}
}

func TestIntakeRepetitions(t *testing.T) {
	in, m := newIntake(t)
	for range 2 {
		if code, text := post(in, delivery("pull_request", []byte(pullBody))); code != http.StatusAccepted {
			t.Fatalf("%d %s", code, text)
		}
	}
	other := []byte(strings.Replace(pullBody, "opened", "closed", 1))
	if code, text := post(in, delivery("pull_request", other)); code != http.StatusConflict {
		t.Errorf("other body under a known GUID: %d %s", code, text)
	}
	if m.saved[testGUID].Action != "opened" {
		t.Error("the first delivery was replaced")
	}
}

func TestIntakeStoreFailure(t *testing.T) {
	in, m := newIntake(t)
	m.fail = errors.New("disk full: /var/lib/secret-place")
	code, text := post(in, delivery("pull_request", []byte(pullBody)))
	if code != http.StatusServiceUnavailable || strings.Contains(text, "disk") {
		t.Errorf("%d %s", code, text)
	}
	m.fail = nil
	if code, _ := post(in, delivery("pull_request", []byte(pullBody))); code != http.StatusAccepted {
		t.Errorf("delivered again: %d", code)
	}
}

func TestIntakeOutlivesTheSender(t *testing.T) {
	in, m := newIntake(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if code, _ := post(in, delivery("pull_request", []byte(pullBody)).WithContext(ctx)); code != http.StatusAccepted || len(m.saved) != 1 {
		t.Errorf("answer %d with %d stored: a sender that hung up lost its delivery", code, len(m.saved))
	}
}

func TestIntakeRefusals(t *testing.T) {
	header := func(name string, values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header[http.CanonicalHeaderKey(name)] = values }
	}
	good := sign(testSecret, []byte(pullBody))
	for _, c := range []struct {
		name   string
		event  string
		body   string
		change func(*http.Request)
		want   int
	}{
		{"GET", "", "", func(r *http.Request) { r.Method = http.MethodGet }, 405},
		{"no signature", "", "", header(signatureHeader), 401},
		{"only SHA-1", "", "", func(r *http.Request) { r.Header.Del(signatureHeader); r.Header.Set("X-Hub-Signature", "sha1=00") }, 401},
		{"empty signature", "", "", header(signatureHeader, ""), 401},
		{"two signatures", "", "", header(signatureHeader, good, good), 401},
		{"upper-case signature", "", "", header(signatureHeader, "sha256="+strings.ToUpper(good[7:])), 401},
		{"short signature", "", "", header(signatureHeader, good[:70]), 401},
		{"long signature", "", "", header(signatureHeader, good+"0"), 401},
		{"signature without its prefix", "", "", header(signatureHeader, good[7:]), 401},
		{"non-ASCII signature", "", "", header(signatureHeader, "sha256="+strings.Repeat("é", 32)), 401},
		{"full-width digits", "", "", header(signatureHeader, "sha256="+strings.Repeat("０", 64)), 401},
		{"signature of another body", "", "", header(signatureHeader, sign(testSecret, []byte("{}"))), 401},
		{"signature by another secret", "", "", header(signatureHeader, sign("another secret of tests", []byte(pullBody))), 401},
		{"signature by the empty secret", "", "", header(signatureHeader, sign("", []byte(pullBody))), 401},
		{"form", "", "", header("Content-Type", "application/x-www-form-urlencoded"), 415},
		{"no content type", "", "", header("Content-Type"), 415},
		{"compressed", "", "", header("Content-Encoding", "gzip"), 415},
		{"no GUID", "", "", header(deliveryHeader), 400},
		{"malformed GUID", "", "", header(deliveryHeader, "../../etc/passwd"), 400},
		{"upper-case GUID", "", "", header(deliveryHeader, strings.ToUpper(testGUID)), 400},
		{"two GUIDs", "", "", header(deliveryHeader, testGUID, testGUID), 400},
		{"no event", "", "", header(eventHeader), 400},
		{"malformed event", "", "", header(eventHeader, "Pull Request"), 400},
		{"length over the limit", "", "", func(r *http.Request) { r.ContentLength = MaxBodyBytes + 1 }, 413},
		{"blank body", "ping", " \n", nil, 400},
		{"no JSON", "ping", "\x00", nil, 400},
		{"no object", "ping", "[]", nil, 400},
		{"null", "ping", "null", nil, 400},
		{"text after the object", "ping", `{"zen":"x","hook_id":1} {}`, nil, 400},
		{"brace after the object", "ping", `{"zen":"x","hook_id":1}}`, nil, 400},
		{"cut off", "ping", `{"zen":"x"`, nil, 400},
		{"deeply nested", "anything", strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000), nil, 400},
		{"member twice", "pull_request", strings.Replace(pullBody, `"number":7`, `"number":8,"number":7`, 1), nil, 400},
		{"inner member twice", "pull_request", strings.Replace(pullBody, `{"id":42}`, `{"id":41,"id":42}`, 1), nil, 400},
		{"name in another case", "pull_request", strings.Replace(pullBody, `"pull_request"`, `"Pull_Request"`, 1), nil, 400},
		{"event name of another body", "issue_comment", pullBody, nil, 400},
		{"pull request null", "pull_request", `{"action":"opened","number":7,"pull_request":null,"repository":{"full_name":"octo-org/shop"}}`, nil, 400},
		{"pull request a string", "pull_request", strings.Replace(pullBody, `{"number":7,"title"`, `"x","y":{"title"`, 1), nil, 400},
		{"numbers differ", "pull_request", strings.Replace(pullBody, `"number":7`, `"number":8`, 1), nil, 400},
		{"number zero", "pull_request", strings.ReplaceAll(pullBody, `"number":7`, `"number":0`), nil, 400},
		{"number a fraction", "pull_request", strings.ReplaceAll(pullBody, `"number":7`, `"number":7.0`), nil, 400},
		{"number too large", "pull_request", strings.ReplaceAll(pullBody, `"number":7`, `"number":9007199254740992`), nil, 400},
		{"installation without id", "pull_request", strings.Replace(pullBody, `"id"`, `"no"`, 1), nil, 400},
		{"repository with a path", "pull_request", strings.Replace(pullBody, "octo-org/shop", "octo-org/shop/../x", 1), nil, 400},
		{"repository ..", "pull_request", strings.Replace(pullBody, "octo-org/shop", "octo-org/..", 1), nil, 400},
		{"action with a line feed", "pull_request", strings.Replace(pullBody, "opened", `opened\n`, 1), nil, 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.body == "" {
				c.event, c.body = "pull_request", pullBody
			}
			in, m := newIntake(t)
			r := delivery(c.event, []byte(c.body))
			if c.change != nil {
				c.change(r)
			}
			code, text := post(in, r)
			if code != c.want || len(m.saved) != 0 {
				t.Errorf("answer %d %q, %d stored, want %d", code, text, len(m.saved), c.want)
			}
			if n := strings.Count(text, "\n"); n != 1 || len(text) > 200 {
				t.Errorf("answer is not one short line: %q", text)
			}
		})
	}
}

func TestIntakeRecordsWhatNobodyHandles(t *testing.T) {
	for name, c := range map[string]struct{ event, body string }{
		"unknown event":           {"sponsorship", `{"action":"It's odd!","repository":[],"installation":"x"}`},
		"unknown action":          {"pull_request", strings.Replace(pullBody, "opened", "auto_merge_enabled", 1)},
		"missing installation":    {"pull_request", strings.Replace(pullBody, `,"installation":{"id":42}`, "", 1)},
		"null installation":       {"pull_request", strings.Replace(pullBody, `{"id":42}`, "null", 1)},
		"installation, no repo":   {"installation", `{"action":"created","installation":{"id":1},"repositories":null}`},
		"installation_repository": {"installation_repositories", `{"action":"added","installation":{"id":1},"repository_selection":"all"}`},
	} {
		t.Run(name, func(t *testing.T) {
			in, m := newIntake(t)
			if code, text := post(in, delivery(c.event, []byte(c.body))); code != http.StatusAccepted || len(m.saved) != 1 {
				t.Errorf("answer %d %q, %d stored", code, text, len(m.saved))
			}
		})
	}
}

func TestIntakeSecretRotation(t *testing.T) {
	m := &memory{}
	in, err := NewIntake(m, "the new secret of tests", testSecret)
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := post(in, delivery("pull_request", []byte(pullBody))); code != http.StatusAccepted {
		t.Errorf("old secret: %d", code)
	}
	r := delivery("pull_request", []byte(pullBody))
	r.Header.Set(signatureHeader, sign("the new secret of tests", []byte(pullBody)))
	if code, _ := post(in, r); code != http.StatusAccepted {
		t.Errorf("new secret: %d", code)
	}
	for _, secrets := range [][]string{nil, {""}, {testSecret, ""}, {"short"}} {
		if _, err := NewIntake(m, secrets...); err == nil {
			t.Errorf("NewIntake accepted %d weak secrets", len(secrets))
		} else if len(secrets) > 0 && strings.Contains(err.Error(), "short") {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}

// TestIntakeLargeBodies posts 25 MiB over a real connection, and one byte more
// with and without an announced length.
func TestIntakeLargeBodies(t *testing.T) {
	in, m := newIntake(t)
	server := httptest.NewServer(in)
	defer server.Close()
	frame := strings.TrimSuffix(pullBody, "}") + `,"filler":"%s"}`
	filler := MaxBodyBytes - len(frame) + len("%s")
	for _, c := range []struct {
		name    string
		extra   int
		chunked bool
		want    int
	}{{"at the limit", 0, false, 202}, {"over the limit", 1, false, 413}, {"over the limit, chunked", 1, true, 413}} {
		t.Run(c.name, func(t *testing.T) {
			body := []byte(fmt.Sprintf(frame, strings.Repeat("x", filler+c.extra)))
			r := delivery("pull_request", body)
			var reader io.Reader = bytes.NewReader(body)
			if c.chunked {
				reader = io.MultiReader(reader)
			}
			req, err := http.NewRequest(http.MethodPost, server.URL, reader)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = r.Header
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != c.want {
				t.Errorf("%d bytes: %s, want %d", len(body), resp.Status, c.want)
			}
		})
	}
	if len(m.saved) != 1 || len(m.saved[testGUID].Body) != MaxBodyBytes {
		t.Errorf("%d stored", len(m.saved))
	}
}

func TestIntakeBoundsMemory(t *testing.T) {
	in, _ := newIntake(t)
	if !in.buffered.TryAcquire(maxBufferedBytes) {
		t.Fatal("memory is in use at the start")
	}
	if code, _ := post(in, delivery("pull_request", []byte(pullBody))); code != http.StatusServiceUnavailable {
		t.Errorf("with all memory in use: %d", code)
	}
	in.buffered.Release(maxBufferedBytes)
	post(in, delivery("pull_request", []byte(pullBody)))
	bad := delivery("pull_request", []byte(pullBody))
	bad.Header.Set(signatureHeader, sign("another secret of tests", nil))
	post(in, bad)
	if !in.buffered.TryAcquire(maxBufferedBytes) {
		t.Error("memory is not given back")
	}
}

// TestIntakeBodyCutOff: a sender that announces more than it sends.
func TestIntakeBodyCutOff(t *testing.T) {
	in, m := newIntake(t)
	r := delivery("pull_request", []byte(pullBody))
	r.Body = io.NopCloser(io.MultiReader(strings.NewReader(pullBody[:50]), iotest.ErrReader(io.ErrUnexpectedEOF)))
	if code, _ := post(in, r); code != http.StatusBadRequest || len(m.saved) != 0 {
		t.Errorf("answer %d, %d stored", code, len(m.saved))
	}
	if !in.buffered.TryAcquire(maxBufferedBytes) {
		t.Error("memory is not given back")
	}
}

func TestIntakeLogsNoBody(t *testing.T) {
	in, m := newIntake(t)
	var log bytes.Buffer
	logger := zerolog.New(&log)
	send := func(r *http.Request) { post(in, r.WithContext(logger.WithContext(context.Background()))) }
	send(delivery("issue_comment", []byte(pullBody)))
	send(delivery("ping", []byte(`{"title":"ünïcode" oops`)))
	strange := delivery("ping", []byte(pullBody))
	strange.Header.Set(deliveryHeader, "ünïcode")
	send(strange)
	m.fail = errors.New("disk full")
	send(delivery("pull_request", []byte(pullBody)))
	if log.Len() == 0 || strings.Count(log.String(), "\n") != 4 {
		t.Errorf("log: %s", &log)
	}
	for _, secret := range []string{"ünïcode", "octo-org", testSecret, "oops"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log contains %q: %s", secret, &log)
		}
	}
}

// TestPayloads posts every recorded payload, signed. UNDERWRITE_PAYLOADS names
// another directory of EVENT/NAME.json or EVENT.ACTION.json files.
func TestPayloads(t *testing.T) {
	dir := os.Getenv("UNDERWRITE_PAYLOADS")
	if dir == "" {
		dir = filepath.Join("testdata", "webhooks")
	}
	n := 0
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".json" {
			return err
		}
		n++
		t.Run(e.Name(), func(t *testing.T) { postPayload(t, dir, path) })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		t.Fatalf("no payloads in %s", dir)
	}
}

func postPayload(t *testing.T, dir, path string) {
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	event, _, _ := strings.Cut(filepath.Base(path), ".")
	if parent := filepath.Dir(path); parent != filepath.Clean(dir) {
		event = filepath.Base(parent)
	}
	in, m := newIntake(t)
	if code, text := post(in, delivery(event, body)); code != http.StatusAccepted || len(m.saved) != 1 {
		t.Fatalf("%s event: %d %s", event, code, text)
	}
	if !bytes.Equal(m.saved[testGUID].Body, body) {
		t.Error("stored another body")
	}
}

// FuzzIntake: whatever arrives gets one of the documented answers, and what is
// stored has its proper shape.
func FuzzIntake(f *testing.F) {
	f.Add("pull_request", testGUID, []byte(pullBody), true)
	f.Add("ping", "x", []byte(`{"zen":"a","hook_id":1}`), true)
	f.Add("issue_comment", testGUID, []byte(`{"action":"created","comment":{},"issue":{"number":1},"repository":{"full_name":"a/b"}}`), true)
	f.Add("é\n", "", []byte("\xff"), false)
	f.Fuzz(func(t *testing.T, event, guid string, body []byte, signed bool) {
		in, m := newIntake(t)
		r := delivery(event, body)
		r.Header[http.CanonicalHeaderKey(deliveryHeader)] = []string{guid}
		if !signed {
			r.Header.Set(signatureHeader, guid)
		}
		code, _ := post(in, r)
		if (code == http.StatusAccepted) != (len(m.saved) == 1) || !signed && code == http.StatusAccepted {
			t.Fatalf("answer %d with %d stored, signed %v", code, len(m.saved), signed)
		}
		if code != 202 && code != 400 && code != 401 {
			t.Fatalf("answer %d", code)
		}
		for _, d := range m.saved {
			if d.Repo != "" && !repoShape.MatchString(d.Repo) || d.Number < 0 || d.InstallationID < 0 || len(d.Action) > 64 {
				t.Fatalf("stored %+v", d)
			}
			if d.Event == "pull_request" && (d.Number == 0 || d.Repo == "" || d.Action == "") {
				t.Fatalf("stored a pull_request event without its pull request: %+v", d)
			}
		}
	})
}
