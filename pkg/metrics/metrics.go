package metrics

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/time/rate"
)

// Path is where a Handler is served.
const Path = "/metrics"

// scrapeEvery and scrapeBurst bound how often an agent is scraped. Every pod of the cluster may ask a
// gateway, and each answer takes time of the processor that packets need.
const scrapeEvery, scrapeBurst = 200 * time.Millisecond, 10

// Agent has the metrics of one agent. Its methods may be called at once from several goroutines.
type Agent struct {
	registry *prometheus.Registry

	rtt             *prometheus.HistogramVec
	lost            *prometheus.CounterVec
	switches        *prometheus.CounterVec
	reconcile       prometheus.Histogram
	reconcileErrors prometheus.Counter

	mu   sync.Mutex
	read func() (Snapshot, error)
}

// Component is a kind of agent. The names of its metrics begin with it.
type Component string

// Gateway and Node are the two agents.
const (
	Gateway Component = "gateway"
	Node    Component = "node"
)

// Down and Leaving are states of a plane, and reasons to use another one. Up is the third state, Preferred
// the third reason.
const (
	Up        = "up"
	Down      = "down"
	Leaving   = "leaving"
	Preferred = "preferred"
)

// New makes the metrics of an agent of a version.
func New(c Component, version string) *Agent {
	name := func(name string) string { return prometheus.BuildFQName("liqonet", string(c), name) }
	plane := []string{"peering", "plane"}
	a := &Agent{
		registry: prometheus.NewPedanticRegistry(),
		rtt: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name("rtt_seconds"), Help: "Round trip times of probes to the peer's gateway that were answered within a second.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		}, plane),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("probes_lost_total"), Help: "Probes to the peer's gateway that were not answered within a second.",
		}, plane),
		reconcile: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name("reconcile_duration_seconds"), Help: "How long it took to make the kernel hold what the objects say.",
			Buckets: []float64{.001, .005, .025, .1, .5, 2.5, 10, 60},
		}),
		reconcileErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: name("reconcile_errors_total"), Help: "Reconciliations that could not do all.",
		}),
		switches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("plane_switches_total"), Help: "How often packets to the peer began to be sent by another plane, by why the one before was left.",
		}, []string{"peering", "reason"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "liqonet_build_info", Help: "1, with the agent's version.",
		ConstLabels: prometheus.Labels{"version": version, "component": string(c)},
	})
	build.Set(1)
	a.registry.MustRegister(
		build, a.rtt, a.lost, a.reconcile, a.reconcileErrors, newCollector(a, c, name),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	if c == Node {
		a.registry.MustRegister(a.switches)
	}
	return a
}

// Read has what is known read at each scrape from now on. With nil nothing is known, and no call of the
// function before lasts.
func (a *Agent) Read(read func() (Snapshot, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read = read
}

func (a *Agent) snapshot() (Snapshot, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.read == nil {
		return Snapshot{}, nil
	}
	return a.read()
}

// Probes returns what is to be called for each probe by a plane that was answered, with the round trip time,
// and for each that was lost.
func (a *Agent) Probes(peering string, plane int32) (answered func(time.Duration), lost func()) {
	index := strconv.Itoa(int(plane))
	rtt, counter := a.rtt.WithLabelValues(peering, index), a.lost.WithLabelValues(peering, index)
	return func(d time.Duration) { rtt.Observe(d.Seconds()) }, counter.Inc
}

// ForgetProbes ends the series of a plane that is not probed any more.
func (a *Agent) ForgetProbes(peering string, plane int32) {
	index := strconv.Itoa(int(plane))
	a.rtt.DeleteLabelValues(peering, index)
	a.lost.DeleteLabelValues(peering, index)
}

// Planes begins to count changes of a peering's plane, from 0.
func (a *Agent) Planes(peering string) {
	for _, reason := range []string{Down, Leaving, Preferred} {
		a.switches.WithLabelValues(peering, reason)
	}
}

// ForgetPlanes ends that.
func (a *Agent) ForgetPlanes(peering string) {
	a.switches.DeletePartialMatch(prometheus.Labels{"peering": peering})
}

// Switched counts a change of the plane for a reason: Down, Leaving or Preferred.
func (a *Agent) Switched(peering, reason string) { a.switches.WithLabelValues(peering, reason).Inc() }

// Reconciled counts a reconciliation, how long it took, and whether something could not be done.
func (a *Agent) Reconciled(took time.Duration, err error) {
	a.reconcile.Observe(took.Seconds())
	if err != nil {
		a.reconcileErrors.Inc()
	}
}

// Gatherer returns the metrics as they are now.
func (a *Agent) Gatherer() prometheus.Gatherer { return a.registry }

// Handler answers scrapes at Path, a few in a second. What cannot be read is left out.
func (a *Agent) Handler() http.Handler {
	limit := rate.NewLimiter(rate.Every(scrapeEvery), scrapeBurst)
	scrape := promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 2})
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, r *http.Request) {
		if !limit.Allow() {
			http.Error(w, "scraped too often", http.StatusTooManyRequests)
			return
		}
		scrape.ServeHTTP(w, r)
	})
	return mux
}
