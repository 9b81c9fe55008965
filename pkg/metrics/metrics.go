// Package metrics exports an agent's state to Prometheus. It defines the metrics and their names, and answers
// scrapes.
//
// The state of planes and the kernel's counters are read at each scrape, through a function of the agent. Events are
// counted here: answers to probes, changes of the plane, reconciliations. None of this happens in the data path.
//
// Out of scope: measuring, and access control (package nat).
package metrics

import (
	"maps"
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

	"github.com/liqonet/liqonet/pkg/nat"
)

// Path is the URL path at which a Handler serves.
const Path = "/metrics"

// scrapeInterval and scrapeBurst limit how often an agent is scraped. Every pod of the cluster may scrape a gateway,
// and each scrape takes processor time that packets need.
const scrapeInterval, scrapeBurst = 200 * time.Millisecond, 10

// Agent holds the metrics of one agent. Its methods are safe for concurrent use.
type Agent struct {
	component Component
	registry  *prometheus.Registry

	rtt             *prometheus.HistogramVec
	lost            *prometheus.CounterVec
	switches        *prometheus.CounterVec
	reconcile       prometheus.Histogram
	reconcileErrors prometheus.Counter

	mu     sync.Mutex
	source func() (Snapshot, error)
}

// Component is a kind of agent. The names of its metrics begin with it.
type Component string

// Gateway, Node and ServicesController are the kinds of agents.
const (
	Gateway            Component = "gateway"
	Node               Component = "node"
	ServicesController Component = "services"
)

func (c Component) name(last string) string {
	return prometheus.BuildFQName("liqonet", string(c), last)
}

// Down and Leaving are states of a plane, and also reasons to change to another one. Up is the third state, and
// Preferred the third reason.
const (
	Up        = "up"
	Down      = "down"
	Leaving   = "leaving"
	Preferred = "preferred"
)

// Snapshot is the state of an agent at one moment.
type Snapshot struct {
	Planes []Plane
	Drops  []nat.Drop
	// Services are the numbers of the controller of services, nil for other agents.
	Services *ServiceNumbers
}

// ServiceNumbers are the numbers of a cluster's services.
type ServiceNumbers struct {
	// Exported, Received and Imported are services. Conflicts are exports that differ from those of other clusters.
	Exported, Received, Imported, Conflicts int
	// Withdrawn are peers whose endpoints are not used, because they cannot be reached.
	Withdrawn int
}

// Plane is one plane of a peering, as an agent sees it. Unknown values are zero.
type Plane struct {
	Peering string
	Index   int32
	// Link is the Link of drops that belong to this plane.
	Link string
	// State is Up, Down or Leaving.
	State string
	// MTU is the maximum size of packets through the plane, in bytes.
	MTU int
	// Traffic counts what has passed the gateway's tunnel, or the node's link to its gateway.
	Traffic *Traffic
	// Active is set if the node sends through this plane.
	Active bool
	// Handshake is when WireGuard last established a session, and Key when the gateway's key was created.
	Handshake, Key time.Time
	// OtherCaller is set if two gateways call with the peer's key.
	OtherCaller bool
	// Nodes are the numbers of nodes, by what they do with a gateway.
	Nodes map[string]int
	// Services is the exchange of services, nil without one.
	Services *Services
}

// Services are what a gateway exchanges with the peer.
type Services struct {
	// Told are the services that the peer may learn, and Received those of the peer that are recorded.
	Told, Received int
	// Synced is set if this gateway has everything that the peer tells.
	Synced bool
	// Refused counts what the peer has told and is not used, by reason.
	Refused map[string]int
}

// NodesKnown, NodesReady and NodesActive are the nodes of the cluster, those that reach the peer through a gateway,
// and those that send through it.
const (
	NodesKnown  = "known"
	NodesReady  = "ready"
	NodesActive = "active"
)

// Traffic counts bytes and packets.
type Traffic struct{ ReceivedBytes, SentBytes, ReceivedPackets, SentPackets uint64 }

// New returns the metrics of an agent with a version.
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
			Name: c.name("reconcile_duration_seconds"), Help: "Duration of reconciliations, which make the kernel match the objects.",
			Buckets: []float64{.001, .005, .025, .1, .5, 2.5, 10, 60},
		}),
		reconcileErrors: all.NewCounter(prometheus.CounterOpts{
			Name: c.name("reconcile_errors_total"), Help: "Reconciliations that failed, completely or in part.",
		}),
		// A gateway counts none, and a metric without series is not exported.
		switches: all.NewCounterVec(prometheus.CounterOpts{
			Name: c.name("plane_switches_total"), Help: "Changes of the plane through which packets to the peer are sent, by the reason for leaving the previous one.",
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

// SetSource sets the function that reads the state at each scrape. With nil, no state is exported. When SetSource
// returns, the previous function is not running.
func (a *Agent) SetSource(read func() (Snapshot, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.source = read
}

// collect exports the current state.
func (a *Agent) collect(out chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.source == nil {
		return
	}
	s, err := a.source()
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
	}
	if n := s.Services; n != nil {
		e := emitter{out, a.component, nil}
		e.gauge("exported", "Services that this cluster exports.", float64(n.Exported))
		e.gauge("received", "Services that peers tell.", float64(n.Received))
		e.gauge("imported", "Imported services.", float64(n.Imported))
		e.gauge("conflicts", "Exports that differ from those of other clusters.", float64(n.Conflicts))
		e.gauge("withdrawn_peers", "Peers whose endpoints are not used, because they cannot be reached.", float64(n.Withdrawn))
	}
	const help = "Packets that liqonet's nftables tables have dropped, by the kernel's hook."
	for _, d := range s.Drops {
		e := emitter{out, a.component, []string{"peering", "", "plane", ""}}
		if p, known := lo.Find(s.Planes, func(p Plane) bool { return p.Link == d.Link }); known {
			e.labels = p.labels()
		} else if d.Link != "" {
			continue // it is about to be removed
		}
		e.emit(prometheus.CounterValue, "drops_total", help, float64(d.Packets), "hook", d.Hook, "reason", d.Reason)
	}
	for _, p := range s.Planes {
		emitter{out, a.component, p.labels()}.plane(p)
	}
}

func (p Plane) labels() []string {
	return []string{"peering", p.Peering, "plane", strconv.Itoa(int(p.Index))}
}

// emitter exports metrics of one plane. labels are alternating names and values.
type emitter struct {
	out       chan<- prometheus.Metric
	component Component
	labels    []string
}

func (e emitter) emit(t prometheus.ValueType, name, help string, value float64, labels ...string) {
	var names, values []string
	for label := range slices.Chunk(slices.Concat(e.labels, labels), 2) {
		names, values = append(names, label[0]), append(values, label[1])
	}
	e.out <- prometheus.MustNewConstMetric(prometheus.NewDesc(e.component.name(name), help, names, nil), t, value, values...)
}

func (e emitter) gauge(name, help string, value float64, labels ...string) {
	e.emit(prometheus.GaugeValue, name, help, value, labels...)
}

func (e emitter) timestamp(name, help string, at time.Time) {
	if !at.IsZero() {
		e.gauge(name, help, float64(at.UnixNano())/1e9)
	}
}

func (e emitter) traffic(name, help string, received, sent uint64) {
	e.emit(prometheus.CounterValue, name, help, float64(received), "direction", "receive")
	e.emit(prometheus.CounterValue, name, help, float64(sent), "direction", "transmit")
}

func (e emitter) plane(p Plane) {
	for _, state := range []string{Up, Down, Leaving} {
		const help = "1 for the state of the plane, as this agent sees it: up, down or leaving; 0 for the others."
		e.gauge("plane_state", help, lo.Ternary(p.State == state, 1.0, 0), "state", state)
	}
	if p.MTU > 0 {
		e.gauge("mtu_bytes", "Maximum size of IP packets through the plane.", float64(p.MTU))
	}
	if t := p.Traffic; t != nil {
		e.traffic("bytes_total", "Bytes of IP packets through the plane.", t.ReceivedBytes, t.SentBytes)
		const help = "Packets through the plane. TCP segments that the kernel has merged count as one packet."
		e.traffic("packets_total", help, t.ReceivedPackets, t.SentPackets)
	}
	if e.component == Node {
		e.gauge("plane_active", "1 if the node sends packets through the plane, otherwise 0.", lo.Ternary(p.Active, 1.0, 0))
		return
	}
	e.gauge("other_caller", "1 if a second gateway calls with the key of the peer's gateway, otherwise 0.", lo.Ternary(p.OtherCaller, 1.0, 0))
	e.timestamp("last_handshake_timestamp_seconds", "Time of the last WireGuard handshake with the peer's gateway.", p.Handshake)
	e.timestamp("key_created_timestamp_seconds", "Time when the gateway's WireGuard key was created.", p.Key)
	if s := p.Services; s != nil {
		const help = "Services that the peer may use (told), and services of the peer that this gateway has recorded (received)."
		e.gauge("services", help, float64(s.Told), "direction", "told")
		e.gauge("services", help, float64(s.Received), "direction", "received")
		e.gauge("services_synced", "1 if this gateway records the peer's services and has all of them, otherwise 0.", lo.Ternary(s.Synced, 1.0, 0))
		for _, reason := range slices.Sorted(maps.Keys(s.Refused)) {
			const help = "Services and endpoints that the peer has told and that are not used, by reason."
			e.emit(prometheus.CounterValue, "services_refused_total", help, float64(s.Refused[reason]), "reason", reason)
		}
	}
	for state, n := range p.Nodes {
		const help = "Nodes of the cluster: all that are known, those that reach the peer through the plane, and those that send through it."
		e.gauge("nodes", help, float64(n), "state", state)
	}
}

// Probes returns functions to call for each probe through a plane: answered with the round trip time, or lost.
func (a *Agent) Probes(peering string, plane int32) (answered func(time.Duration), lost func()) {
	index := strconv.Itoa(int(plane))
	rtt, counter := a.rtt.WithLabelValues(peering, index), a.lost.WithLabelValues(peering, index)
	return func(d time.Duration) { rtt.Observe(d.Seconds()) }, counter.Inc
}

// DeleteProbes removes the series of a plane that is no longer probed.
func (a *Agent) DeleteProbes(peering string, plane int32) {
	index := strconv.Itoa(int(plane))
	a.rtt.DeleteLabelValues(peering, index)
	a.lost.DeleteLabelValues(peering, index)
}

// StartSwitchCounters starts to count changes of a peering's plane, from 0.
func (a *Agent) StartSwitchCounters(peering string) {
	for _, reason := range []string{Down, Leaving, Preferred} {
		a.switches.WithLabelValues(peering, reason)
	}
}

// DeleteSwitchCounters removes these counters.
func (a *Agent) DeleteSwitchCounters(peering string) {
	a.switches.DeletePartialMatch(prometheus.Labels{"peering": peering})
}

// Switched counts a change of the plane, by its reason: Down, Leaving or Preferred.
func (a *Agent) Switched(peering, reason string) { a.switches.WithLabelValues(peering, reason).Inc() }

// Reconciled counts a reconciliation, with its duration and its error.
func (a *Agent) Reconciled(took time.Duration, err error) {
	a.reconcile.Observe(took.Seconds())
	if err != nil {
		a.reconcileErrors.Inc()
	}
}

// Gatherer returns the source of the current metrics.
func (a *Agent) Gatherer() prometheus.Gatherer { return a.registry }

// Handler returns a handler that serves a few scrapes per second at Path. It leaves out what cannot be read.
func (a *Agent) Handler() http.Handler {
	limit := rate.NewLimiter(rate.Every(scrapeInterval), scrapeBurst)
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
