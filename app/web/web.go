package web

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"underwrite/handlers/checks"
	"underwrite/store"
	"underwrite/store/blob"
)

// Records is what the pages read. *store.Store is one.
type Records interface {
	// LatestCheckRuns lists the newest check runs, newest first.
	LatestCheckRuns(ctx context.Context, limit int) ([]store.CheckRun, error)
	// CheckRunByExternalID reads a check run, and those of the same check for
	// other open pull requests with the same head; store.ErrNotFound.
	CheckRunByExternalID(ctx context.Context, externalID string) (store.CheckRun, []store.CheckRun, error)
	// Health is nil if database and queue work.
	Health(ctx context.Context, now time.Time) error
	// Stats counts what there is.
	Stats(ctx context.Context) (store.Stats, error)
}

// Reporter says what a check run shows. *controller.Controller is one.
type Reporter interface {
	// Report is all of it, with the ends of the streams.
	Report(run store.CheckRun, others []store.CheckRun) (checks.Report, error)
	// Outline is enough for a title.
	Outline(run store.CheckRun) (checks.Report, error)
}

// Blobs opens what a receipt names. *blob.Store is one.
type Blobs interface {
	// Open returns the blob after its digest was compared.
	Open(ref blob.Ref) (*os.File, error)
}

// Options are what the pages are made of. Records, Reporter and Blobs are
// required.
type Options struct {
	Records  Records
	Reporter Reporter
	Blobs    Blobs
	// ExternalURL is where readers find the pages, without a path. Commands to
	// copy name it; without one they name files to be downloaded first.
	ExternalURL string
	Version     string           // of the program
	Now         func() time.Time // time.Now if nil
	Log         *slog.Logger     // nothing is logged if nil
}

// HealthPath answers 200 while the controller can do its work.
const HealthPath = "/healthz"

// MetricsPath is for Prometheus.
const MetricsPath = "/metrics"

// ExecutionPath is the path of an execution's page by the external id of its
// check run.
func ExecutionPath(externalID string) string { return "/executions/" + externalID }

// site is the handler of everything.
type site struct {
	Options
	health cached[error]
	stats  cached[statsResult]
}

// New makes the handler of all pages.
func New(o Options) http.Handler {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.ExternalURL = strings.TrimSuffix(o.ExternalURL, "/")
	s := &site{Options: o}
	mux := http.NewServeMux()
	for path, handle := range map[string]http.HandlerFunc{
		"/{$}":                    s.listPage,
		"/executions/{id}":        s.executionPage,
		"/executions/{id}/{file}": s.download,
		stylePath:                 s.style,
		HealthPath:                s.healthPage,
		MetricsPath:               s.metricsPage,
	} {
		mux.HandleFunc("GET "+path, handle) // and HEAD
		mux.HandleFunc(path, s.methodPage)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { s.notFound(w, r) })
	return secured(mux)
}

// secured sets the headers of every answer. Handlers of downloads narrow them.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Frame-Options", "DENY") // for browsers that do not know frame-ancestors
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("X-Robots-Tag", "noindex")
		next.ServeHTTP(w, r)
	})
}
