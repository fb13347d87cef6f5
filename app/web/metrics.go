package web

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"underwrite/store"
)

// statsTTL is how old the counts may be.
const statsTTL = 5 * time.Second

type statsResult struct {
	store.Stats
	err error
}

// The metrics. No label has a value from outside: states, queues and job states
// are fixed sets.
var (
	descBuild = prometheus.NewDesc("underwrite_build_info", "The running program.", []string{"version"}, nil)
	descEnded = prometheus.NewDesc("underwrite_executions_total",
		"Executions that are over, by state.", []string{"state"}, nil)
	descActive = prometheus.NewDesc("underwrite_executions_active",
		"Executions that are not over: reserved, or running at the gateway.", []string{"state"}, nil)
	descDeliveries = prometheus.NewDesc("underwrite_deliveries_total",
		"Webhook deliveries that are done, by state.", []string{"state"}, nil)
	descReceived = prometheus.NewDesc("underwrite_deliveries_waiting",
		"Webhook deliveries that are stored and not done.", nil, nil)
	descDeliveryConflicts = prometheus.NewDesc("underwrite_delivery_conflicts_total",
		"Deliveries refused because their id had come with another body.", nil, nil)
	descEvidenceConflicts = prometheus.NewDesc("underwrite_evidence_conflicts_total",
		"Evidence refused because the execution had other evidence.", nil, nil)
	descJobs = prometheus.NewDesc("underwrite_queue_jobs",
		"Jobs in the queue that are not finished.", []string{"queue", "state"}, nil)
	descUnposted = prometheus.NewDesc("underwrite_check_runs_unposted",
		"Check runs of which GitHub does not show the latest version yet.", nil, nil)
	descUndeliverable = prometheus.NewDesc("underwrite_check_runs_undeliverable",
		"Check runs that can never be posted.", nil, nil)
	descWait = prometheus.NewDesc("underwrite_execution_wait_seconds",
		"Time from the reservation of an execution until it was given to the gateway.", nil, nil)
	descDuration = prometheus.NewDesc("underwrite_execution_duration_seconds",
		"Time from giving an execution to the gateway until it was over.", nil, nil)
)

var (
	endedStates  = []store.RunState{store.Passed, store.Contradicted, store.Faulted, store.Refused, store.Superseded, store.Cancelled, store.OurFault}
	activeStates = []store.RunState{store.Reserved, store.Running}
	doneStates   = []store.DeliveryState{store.Handled, store.Ignored}
)

// snapshot collects counts as of one moment.
type snapshot struct {
	stats   store.Stats
	version string
}

// Describe implements prometheus.Collector.
func (c snapshot) Describe(ch chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(c, ch)
}

// Collect implements prometheus.Collector.
func (c snapshot) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(n), labels...)
	}
	ch <- prometheus.MustNewConstMetric(descBuild, prometheus.GaugeValue, 1, c.version)
	for _, state := range endedStates {
		send(descEnded, prometheus.CounterValue, c.stats.Executions[state], string(state))
	}
	for _, state := range activeStates {
		send(descActive, prometheus.GaugeValue, c.stats.Executions[state], string(state))
	}
	for _, state := range doneStates {
		send(descDeliveries, prometheus.CounterValue, c.stats.Deliveries[state], string(state))
	}
	send(descReceived, prometheus.GaugeValue, c.stats.Deliveries[store.Received])
	send(descDeliveryConflicts, prometheus.CounterValue, c.stats.DeliveryConflicts)
	send(descEvidenceConflicts, prometheus.CounterValue, c.stats.EvidenceConflicts)
	for key, n := range c.stats.Jobs {
		send(descJobs, prometheus.GaugeValue, n, key.Queue, key.State)
	}
	send(descUnposted, prometheus.GaugeValue, c.stats.Unposted)
	send(descUndeliverable, prometheus.GaugeValue, c.stats.Undeliverable)
	ch <- constHistogram(descWait, c.stats.Wait)
	ch <- constHistogram(descDuration, c.stats.Duration)
}

func constHistogram(d *prometheus.Desc, h store.Histogram) prometheus.Metric {
	buckets := map[float64]uint64{}
	for i, bound := range store.DurationBounds {
		if i < len(h.Below) {
			buckets[bound.Seconds()] = uint64(h.Below[i])
		}
	}
	return prometheus.MustNewConstHistogram(d, uint64(h.Count), h.Sum.Seconds(), buckets)
}

// metricsPage serves the counts of the database and those of the process.
func (s *site) metricsPage(w http.ResponseWriter, r *http.Request) {
	res := s.stats.get(r.Context(), s.Now, statsTTL, func(ctx context.Context) statsResult {
		stats, err := s.Records.Stats(ctx)
		if err != nil {
			s.Log.Error("no metrics", "error", err)
		}
		return statsResult{stats, err}
	})
	if res.err != nil {
		s.errorPage(w, r, http.StatusInternalServerError, "The counts could not be read. The controller's log says why.")
		return
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(snapshot{res.Stats, s.Version}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	w.Header().Set("Cache-Control", "no-store")
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true}).ServeHTTP(w, r)
}
