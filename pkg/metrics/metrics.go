// Package metrics shows Prometheus what an agent knows. It says which metrics there are and what they are
// called, and answers scrapes.
//
// What is known of planes and what the kernel counts is read when somebody scrapes, by a function of the
// agent. What happens at a moment is counted here: answers to probes, changes of the plane, reconciliations.
// Nothing of it is on the way of a packet.
//
// Out of scope: measuring, and who may scrape (package nat).
package metrics

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/samber/lo"
	"golang.org/x/time/rate"
)

// Path is where a Handler is served.
const Path = "/metrics"

// scrapeEvery and scrapeBurst bound how often an agent is scraped. Every pod of the cluster may ask a
// gateway, and each answer takes time of the processor that packets need.
const scrapeEvery, scrapeBurst = 200 * time.Millisecond, 10

// Agent has the metrics of one agent. Its methods may be called at once from several goroutines.
type Agent struct {
	component Component
	registry  *prometheus.Registry

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

func (c Component) name(last string) string {
	return prometheus.BuildFQName("liqonet", string(c), last)
}

// Down and Leaving are states of a plane, and reasons to use another one. Up is the third state, Preferred
// the third reason.
const (
	Up        = "up"
	Down      = "down"
	Leaving   = "leaving"
	Preferred = "preferred"
)

// Snapshot is what an agent knows at a moment.
type Snapshot struct {
	Planes []Plane
	Drops  []Drop
}

// Plane is one plane of a peering, as an agent sees it. What is not known is the zero value.
type Plane struct {
	Peering string
	Index   int32
	// State is Up, Down or Leaving.
	State string
	// MTU is how large packets by the plane may be, in bytes.
	MTU int
	// Traffic is what has passed the gateway's tunnel, or the node's link to its gateway.
	Traffic *Traffic
	// Active says that the node sends by this plane.
	Active bool
	// Handshake is when WireGuard last made a session, Key when the gateway's key was made.
	Handshake, Key time.Time
	// Nodes are how many nodes a gateway knows of, by what they do with it.
	Nodes map[string]int
}

// NodesKnown, NodesReady and NodesActive are what nodes do with a gateway. They are those of the cluster,
// those that reach the peer by it, and those that send by it.
const (
	NodesKnown  = "known"
	NodesReady  = "ready"
	NodesActive = "active"
)

// Traffic is in bytes and packets.
type Traffic struct{ ReceivedBytes, SentBytes, ReceivedPackets, SentPackets uint64 }

// Drop is how many packets were dropped at a hook for a reason. It may be about one plane of a peering.
type Drop struct {
	Peering, Plane, Hook, Reason string
	Packets                      uint64
}

// New makes the metrics of an agent of a version.
func New(c Component, version string) *Agent {
	registry := prometheus.NewPedanticRegistry()
	all := promauto.With(registry)
	plane := []string{"peering", "plane"}
	a := &Agent{
		component: c, registry: registry,
		rtt: all.NewHistogramVec(prometheus.HistogramOpts{
			Name: c.name("rtt_seconds"), Help: "Round trip times of probes to the peer's gateway that were answered within a second.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		}, plane),
		lost: all.NewCounterVec(prometheus.CounterOpts{
			Name: c.name("probes_lost_total"), Help: "Probes to the peer's gateway that were not answered within a second.",
		}, plane),
		reconcile: all.NewHistogram(prometheus.HistogramOpts{
			Name: c.name("reconcile_duration_seconds"), Help: "How long it took to make the kernel hold what the objects say.",
			Buckets: []float64{.001, .005, .025, .1, .5, 2.5, 10, 60},
		}),
		reconcileErrors: all.NewCounter(prometheus.CounterOpts{
			Name: c.name("reconcile_errors_total"), Help: "Reconciliations that could not do all.",
		}),
		// A gateway counts none, and what has no series is not shown.
		switches: all.NewCounterVec(prometheus.CounterOpts{
			Name: c.name("plane_switches_total"), Help: "How often packets to the peer began to be sent by another plane, by why the one before was left.",
		}, []string{"peering", "reason"}),
	}
	all.NewGauge(prometheus.GaugeOpts{
		Name: "liqonet_build_info", Help: "1, with the agent's version.",
		ConstLabels: prometheus.Labels{"version": version, "component": string(c)},
	}).Set(1)
	registry.MustRegister(
		prometheus.CollectorFunc(a.collect), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return a
}

// Read has what is known read at each scrape from now on. With nil nothing is known, and no call of the
// function before lasts.
func (a *Agent) Read(read func() (Snapshot, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read = read
}

// collect shows what is known now.
func (a *Agent) collect(out chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.read == nil {
		return
	}
	s, err := a.read()
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
	}
	const help = "Packets that liqonet's nftables tables have dropped, by the kernel's hook."
	for _, d := range s.Drops {
		of := shower{out, a.component, []string{"peering", d.Peering, "plane", d.Plane}}
		of.show(prometheus.CounterValue, "drops_total", help, float64(d.Packets), "hook", d.Hook, "reason", d.Reason)
	}
	for _, p := range s.Planes {
		shower{out, a.component, []string{"peering", p.Peering, "plane", strconv.Itoa(int(p.Index))}}.plane(p)
	}
}

// shower shows metrics of one plane. labels are names and values by turns.
type shower struct {
	out       chan<- prometheus.Metric
	component Component
	labels    []string
}

func (s shower) show(t prometheus.ValueType, name, help string, value float64, labels ...string) {
	var names, values []string
	for label := range slices.Chunk(slices.Concat(s.labels, labels), 2) {
		names, values = append(names, label[0]), append(values, label[1])
	}
	s.out <- prometheus.MustNewConstMetric(prometheus.NewDesc(s.component.name(name), help, names, nil), t, value, values...)
}

func (s shower) gauge(name, help string, value float64, labels ...string) {
	s.show(prometheus.GaugeValue, name, help, value, labels...)
}

func (s shower) moment(name, help string, at time.Time) {
	if !at.IsZero() {
		s.gauge(name, help, float64(at.UnixNano())/1e9)
	}
}

func (s shower) traffic(name, help string, received, sent uint64) {
	s.show(prometheus.CounterValue, name, help, float64(received), "direction", "receive")
	s.show(prometheus.CounterValue, name, help, float64(sent), "direction", "transmit")
}

func (s shower) plane(p Plane) {
	for _, state := range []string{Up, Down, Leaving} {
		const help = "1 for the state of the plane, as this agent sees it: up, down or leaving; 0 for the others."
		s.gauge("plane_state", help, lo.Ternary(p.State == state, 1.0, 0), "state", state)
	}
	if p.MTU > 0 {
		s.gauge("mtu_bytes", "How large IP packets by the plane may be.", float64(p.MTU))
	}
	if t := p.Traffic; t != nil {
		s.traffic("bytes_total", "Bytes of IP packets by the plane.", t.ReceivedBytes, t.SentBytes)
		const help = "Packets by the plane. Several TCP segments that the kernel has merged count as one."
		s.traffic("packets_total", help, t.ReceivedPackets, t.SentPackets)
	}
	if s.component == Node {
		s.gauge("plane_active", "1 if the node sends packets by the plane, otherwise 0.", lo.Ternary(p.Active, 1.0, 0))
		return
	}
	s.moment("last_handshake_timestamp_seconds", "When WireGuard last agreed on a session with the peer's gateway.", p.Handshake)
	s.moment("key_created_timestamp_seconds", "When the gateway's WireGuard key was made.", p.Key)
	for state, n := range p.Nodes {
		const help = "Nodes of the cluster: all that are known, those that reach the peer by the plane, and those that send by it."
		s.gauge("nodes", help, float64(n), "state", state)
	}
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
