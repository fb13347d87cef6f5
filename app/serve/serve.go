// Package serve wires the controller: database, blobs, queue, GitHub, gateway
// and the HTTP server for webhooks and pages. `underwrite serve` and the end-to-end tests
// run the same function.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"underwrite/app/config"
	"underwrite/app/controller"
	"underwrite/app/evidence"
	"underwrite/app/web"
	"underwrite/attest"
	"underwrite/handlers"
	"underwrite/handlers/freeze"
	"underwrite/runner/wire"
	"underwrite/store"
	"underwrite/store/blob"
)

// What lies in the data directory.
const (
	databaseName = "underwrite.db"
	blobsName    = "blobs"
	mirrorsName  = "mirrors" // one for each repository
	scratchName  = "scratch" // emptied at start
)

// WebhookPath is where webhooks arrive, as in app.yml. All other paths are
// those of package web.
const WebhookPath = "/webhook"

// Bounds of the HTTP server.
const (
	readHeaderTimeout = 10 * time.Second
	readTimeout       = 60 * time.Second // a body of handlers.MaxBodyBytes
	writeTimeout      = 90 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 32 << 10
	acknowledgers     = 2 // small calls of the gateway at once
)

// Options are what a configuration does not say.
type Options struct {
	Log zerolog.Logger
	// Version of the program, for the pages.
	Version string
	// Executor is used instead of the gateway's socket, if not nil.
	Executor controller.Executor
	// Transport carries the calls to GitHub; http.DefaultTransport if nil.
	Transport http.RoundTripper
	// Ready is called with the address when webhooks are accepted, if not nil.
	Ready func(net.Addr)
}

// Init makes the data directory with an empty database, or brings an older
// database to the current schema. Repeating it is harmless. It fails with
// store.ErrLocked while a controller runs on it.
func Init(ctx context.Context, dataDir string) error {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := private(dataDir); err != nil {
		return err
	}
	lock, err := store.AcquireLock(Database(dataDir))
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := store.Create(ctx, Database(dataDir)); err != nil {
		return err
	}
	if _, err := blob.Create(Blobs(dataDir)); err != nil {
		return err
	}
	for _, name := range []string{mirrorsName, scratchName} {
		if err := os.MkdirAll(filepath.Join(dataDir, name), 0o700); err != nil {
			return fmt.Errorf("data directory: %w", err)
		}
	}
	return blob.SyncDir(dataDir)
}

// Database is the path of the database in a data directory.
func Database(dataDir string) string { return filepath.Join(dataDir, databaseName) }

// Blobs is the directory of blobs in a data directory.
func Blobs(dataDir string) string { return filepath.Join(dataDir, blobsName) }

// private refuses a directory that others can look into.
func private(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("data directory: %w (make it with `underwrite init`)", err)
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("data directory %s: is not a directory for its owner only (mode %04o): chmod 700 it", dir, info.Mode().Perm())
	}
	return nil
}

// Serve runs the controller until ctx ends, and returns after its jobs have
// returned. It never creates a database.
func Serve(ctx context.Context, c *config.Config, o Options) error {
	files, err := c.ReadFiles()
	if err != nil {
		return err
	}
	github, err := handlers.NewGitHub(handlers.GitHubConfig{
		APIURL: c.GitHub.APIURL, WebURL: c.GitHub.WebURL, AppID: c.GitHub.AppID,
		PrivateKeyFile: c.GitHub.PrivateKeyFile, Transport: o.Transport,
	})
	if err != nil {
		return err
	}
	if err := private(c.DataDir); err != nil {
		return err
	}
	lock, err := store.AcquireLock(Database(c.DataDir))
	if err != nil {
		return err
	}
	defer lock.Release()
	log := slog.New(zerolog.NewSlogHandler(o.Log))
	// The queue tells how many jobs it did every few seconds; only what it
	// warns of is for the operator.
	quiet := slog.New(zerolog.NewSlogHandler(o.Log.Level(zerolog.WarnLevel)))
	db, err := store.Open(ctx, Database(c.DataDir), store.Options{Logger: quiet})
	if err != nil {
		return err
	}
	defer db.Close()
	listener, err := listen(ctx, c)
	if err != nil {
		return err
	}
	defer listener.Close()
	external := externalURL(c, listener.Addr())
	ctl, err := newController(c, files, github, db, log, external, o)
	if err != nil {
		return err
	}
	handler, err := newHandler(files, ctl, db, log, external, o.Version)
	if err != nil {
		return err
	}
	return run(ctx, c, newServer(ctx, handler, o), listener, o, func(ctx context.Context) error {
		return db.Work(ctx, lock, ctl, workers(c), time.Duration(c.GraceSeconds)*time.Second)
	})
}

func workers(c *config.Config) store.Workers {
	return store.Workers{
		Dispatch: c.Workers.Dispatch, Freeze: c.Workers.Freeze, Execute: c.Workers.Execute,
		Post: c.Workers.Post, Acknowledge: acknowledgers,
	}
}

func newController(c *config.Config, files *config.Files, github *handlers.GitHub, db *store.Store, log *slog.Logger, external string, o Options) (*controller.Controller, error) {
	blobs, err := blob.Open(Blobs(c.DataDir))
	if err != nil {
		return nil, err
	}
	if err := blobs.Sweep(); err != nil {
		return nil, err
	}
	scratch := filepath.Join(c.DataDir, scratchName)
	executor := o.Executor
	if executor == nil {
		executor = &wire.Client{Socket: c.GatewaySocket}
	}
	accounts, err := handlers.NewAccounts(c.Accounts...)
	if err != nil {
		return nil, err
	}
	conf := controller.Config{
		Store: db, Blobs: blobs, Scratch: scratch, Executor: executor,
		Freezer: &freeze.Freezer{MirrorDir: filepath.Join(c.DataDir, mirrorsName), GitHub: github, Limits: c.Freeze.Limits()},
		Pulls:   github, Poster: github, Trust: files.Trust,
		Checks: func(repo string) []controller.Check { return checksOf(files, repo) },
		Inspector: func(l attest.Limits) evidence.Inspector {
			return evidence.QuarantineFor(scratch, c.Freeze.BundleBytes, l)
		},
		Log: log,
	}
	if external != "" {
		conf.DetailsURL = func(externalID string) string { return external + web.ExecutionPath(externalID) }
	}
	return controller.New(conf, func(s handlers.Sessions) (controller.Dispatcher, error) {
		return handlers.NewDispatcher(accounts, &handlers.PullRequestHandler{
			Accounts: accounts, Installations: github, Pulls: github, Sessions: s,
		})
	})
}

// checksOf lists the checks of a repository in the order of the configuration.
func checksOf(files *config.Files, repo string) (list []controller.Check) {
	for _, check := range files.Checks {
		if check.Matches(repo) {
			list = append(list, controller.Check{
				Name: check.Name, ProfileName: check.Profile, Profile: check.Trusted,
				Group: check.Repositories + " " + check.Name, Concurrency: check.Concurrency,
			})
		}
	}
	return list
}

func listen(ctx context.Context, c *config.Config) (net.Listener, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return listener, nil
}

// externalURL is where readers find the pages, with the listener's port in the
// place of port 0; empty if nobody said.
func externalURL(c *config.Config, listening net.Addr) string {
	u, err := url.Parse(c.ExternalURL)
	if err != nil || u.Port() != "0" {
		return c.ExternalURL
	}
	if tcp, ok := listening.(*net.TCPAddr); ok {
		u.Host = net.JoinHostPort(u.Hostname(), strconv.Itoa(tcp.Port))
	}
	return u.String()
}

// newHandler puts webhooks and pages on one listener.
func newHandler(files *config.Files, ctl *controller.Controller, db *store.Store, log *slog.Logger, external, version string) (http.Handler, error) {
	intake, err := handlers.NewIntake(ctl, files.WebhookSecrets...)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle(WebhookPath, intake)
	mux.Handle("/", web.New(web.Options{
		Records: db, Reporter: ctl, Blobs: ctl.Blobs, ExternalURL: external, Version: version, Log: log,
	}))
	return mux, nil
}

func newServer(ctx context.Context, handler http.Handler, o Options) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		// The logger of a request is taken from its context.
		BaseContext: func(net.Listener) context.Context { return o.Log.WithContext(context.WithoutCancel(ctx)) },
	}
}

// run serves HTTP and works until ctx ends or one of the two fails. The server
// stops first: what it has stored by then is worked on after the next start.
func run(asked context.Context, c *config.Config, server *http.Server, listener net.Listener, o Options, work func(context.Context) error) error {
	g, ctx := errgroup.WithContext(asked)
	g.Go(func() error { return work(ctx) })
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve webhooks: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(c.GraceSeconds)*time.Second)
		defer cancel()
		if err := server.Shutdown(stop); err != nil {
			return errors.Join(fmt.Errorf("stop serving webhooks: %w", err), server.Close())
		}
		return nil
	})
	if o.Ready != nil {
		o.Ready(listener.Addr())
	}
	err := g.Wait()
	if asked.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // stopped while starting
	}
	return err
}
