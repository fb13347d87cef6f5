package web

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"underwrite/store"
)

func TestMetrics(t *testing.T) {
	w := newWorld(t)
	w.proven(7, 0, "x", "")
	w.running(8)
	_, err := w.store.SaveDelivery(t.Context(), store.Delivery{
		GUID: "1", Event: "evil\"} 1\n", Repo: "octo-org/evil", Body: []byte("{}"), BodySHA256: strings.Repeat("a", 64), ReceivedAt: now,
	})
	must(t, err)
	page := w.get(MetricsPath).body
	wants(t, page, `underwrite_build_info{version="v1.2.3"} 1`, `underwrite_executions_total{state="passed"} 1`,
		`underwrite_executions_total{state="our_fault"} 0`, `underwrite_executions_active{state="running"} 1`,
		"underwrite_deliveries_waiting 1", `underwrite_queue_jobs{queue="dispatch",state="available"} 1`,
		"underwrite_check_runs_unposted 2", "underwrite_execution_wait_seconds_count 2", "underwrite_execution_wait_seconds_sum 2",
		`underwrite_execution_duration_seconds_bucket{le="5"} 1`, `underwrite_execution_duration_seconds_bucket{le="2"} 0`, "go_goroutines")
	lacks(t, page, "evil", "octo-org")
}

// TestMetricsLint holds the metrics to Prometheus' rules for names and help.
func TestMetricsLint(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(snapshot{store.Stats{
		Jobs: map[store.JobKey]int64{{Queue: "post", State: "available"}: 1},
	}, "v1"})
	families, err := registry.Gather()
	must(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	must(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// records answers health and counts on the test's word.
type records struct {
	Records
	calls atomic.Int64
	err   error
}

func (r *records) Health(context.Context, time.Time) error {
	r.calls.Add(1)
	return r.err
}

func TestHealth(t *testing.T) {
	w := newWorld(t)
	r := &records{}
	clock := now
	w.options.Records, w.options.Now = r, func() time.Time { return clock }
	w.serve()
	if a := w.get(HealthPath); a.body != "ok\n" || a.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%q, %v", a.body, a.Header)
	}
	r.err = errors.New("secret cause")
	w.get(HealthPath) // still the last answer
	clock = clock.Add(healthTTL)
	a := w.do(http.MethodGet, HealthPath)
	if a.StatusCode != http.StatusServiceUnavailable || strings.Contains(a.body, "secret") {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	clock = clock.Add(-time.Hour) // a clock that was set back keeps nothing for ever
	r.err = nil
	w.get(HealthPath)
	if n := r.calls.Load(); n != 3 {
		t.Errorf("asked %d times, want 3", n)
	}
}

// TestHealthOfTheRealStore: without Work there is no health.
func TestHealthOfTheRealStore(t *testing.T) {
	w := newWorld(t)
	if a := w.do(http.MethodGet, HealthPath); a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("health without a queue = %d", a.StatusCode)
	}
}

// TestManyReaders ask the database once.
func TestManyReaders(t *testing.T) {
	var c cached[int64]
	var loads atomic.Int64
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			got := c.get(t.Context(), func() time.Time { return now }, time.Minute, func(context.Context) int64 { return loads.Add(1) })
			if got != 1 {
				t.Errorf("value %d", got)
			}
		})
	}
	all.Wait()
}

// TestCachedSurvivesItsReader: a reader who leaves does not spoil the value for
// the others.
func TestCachedSurvivesItsReader(t *testing.T) {
	var c cached[error]
	gone, leave := context.WithCancel(t.Context())
	leave()
	if err := c.get(gone, time.Now, time.Minute, func(ctx context.Context) error { return ctx.Err() }); err != nil {
		t.Error(err)
	}
}
