package serve_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"underwrite/app/config"
	"underwrite/app/hubsim"
	"underwrite/app/serve"
	"underwrite/app/web"
	"underwrite/store"
)

// load reads the configuration and makes the data directory.
func (in installation) load(t *testing.T) *config.Config {
	t.Helper()
	c, err := config.Load(in.config)
	must(t, err)
	must(t, serve.Init(t.Context(), c.DataDir))
	return c
}

// start serves in this process; stop ends it.
func start(t *testing.T, c *config.Config) (url string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan net.Addr, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- serve.Serve(ctx, c, serve.Options{Log: zerolog.New(t.Output()), Ready: func(a net.Addr) { ready <- a }})
	}()
	select {
	case a := <-ready:
		return "http://" + a.String(), func() error { cancel(); return <-ended }
	case err := <-ended:
		t.Fatal(err)
		return "", nil
	}
}

func TestServe(t *testing.T) {
	hub := newHub(t, hubsim.Options{})
	c := installFor(t, hub, "/nonexistent/gateway.sock", nil, nil).load(t)
	url, stop := start(t, c)
	get := func(method, path string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader("{}"))
		must(t, err)
		req.Header.Set("Content-Type", "application/json")
		r, err := http.DefaultClient.Do(req)
		must(t, err)
		defer r.Body.Close()
		io.Copy(io.Discard, r.Body)
		return r.StatusCode
	}
	for path, want := range map[string]int{"/": 200, web.MetricsPath: 200, "/other": 404} {
		if got := get(http.MethodGet, path); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	for get(http.MethodGet, web.HealthPath) != http.StatusOK { // webhooks are taken before the queue works
		time.Sleep(10 * time.Millisecond)
	}
	if got := get(http.MethodPost, serve.WebhookPath); got < 400 || got >= 500 {
		t.Errorf("unsigned webhook: %d", got)
	}
	err := serve.Serve(t.Context(), c, serve.Options{Log: zerolog.Nop()})
	if !errors.Is(err, store.ErrLocked) {
		t.Errorf("a second controller: %v, want ErrLocked", err)
	}
	if err := serve.Init(t.Context(), c.DataDir); !errors.Is(err, store.ErrLocked) {
		t.Errorf("init beside a running controller: %v, want ErrLocked", err)
	}
	must(t, stop())
	_, stop = start(t, c) // and once more on the same data
	must(t, stop())
}

func TestServeRefuses(t *testing.T) {
	hub := newHub(t, hubsim.Options{})
	for name, c := range map[string]struct {
		spoil func(t *testing.T, c *config.Config)
		want  string
	}{
		"no data directory":    {func(t *testing.T, c *config.Config) { must(t, os.RemoveAll(c.DataDir)) }, "underwrite init"},
		"no database":          {func(t *testing.T, c *config.Config) { must(t, os.Remove(serve.Database(c.DataDir))) }, "underwrite init"},
		"open data directory":  {func(t *testing.T, c *config.Config) { must(t, os.Chmod(c.DataDir, 0o755)) }, "chmod 700"},
		"damaged database":     {func(t *testing.T, c *config.Config) { must(t, os.Truncate(serve.Database(c.DataDir), 5000)) }, "is damaged"},
		"no blobs":             {func(t *testing.T, c *config.Config) { must(t, os.RemoveAll(filepath.Join(c.DataDir, "blobs"))) }, "blob store"},
		"no App key":           {func(t *testing.T, c *config.Config) { must(t, os.Remove(c.GitHub.PrivateKeyFile)) }, "no such file"},
		"App key for everyone": {func(t *testing.T, c *config.Config) { must(t, os.Chmod(c.GitHub.PrivateKeyFile, 0o644)) }, "chmod"},
		"address in use":       {func(t *testing.T, c *config.Config) { c.Listen = strings.TrimPrefix(hub.URL(), "http://") }, "address already in use"},
	} {
		t.Run(name, func(t *testing.T) {
			conf := installFor(t, hub, "/nonexistent/gateway.sock", nil, nil).load(t)
			c.spoil(t, conf)
			err := serve.Serve(t.Context(), conf, serve.Options{Log: zerolog.Nop()})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("err = %v, want one line with %q", err, c.want)
			}
			if name == "no database" {
				if _, err := os.Stat(serve.Database(conf.DataDir)); !errors.Is(err, os.ErrNotExist) {
					t.Error("serve made a database")
				}
			}
		})
	}
}
