package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

// collector reads a Snapshot when it is collected.
type collector struct {
	agent                             *Agent
	component                         Component
	state, mtu, bytes, packets, drops *prometheus.Desc
	active                            *prometheus.Desc
	handshake, key, nodes             *prometheus.Desc
}

func newCollector(a *Agent, c Component, name func(string) string) *collector {
	desc := func(last, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name(last), help, append([]string{"peering", "plane"}, labels...), nil)
	}
	return &collector{
		agent: a, component: c,
		state:     desc("plane_state", "1 for the state of the plane, as this agent sees it: up, down or leaving; 0 for the others.", "state"),
		mtu:       desc("mtu_bytes", "How large IP packets by the plane may be."),
		bytes:     desc("bytes_total", "Bytes of IP packets by the plane.", "direction"),
		packets:   desc("packets_total", "Packets by the plane. Several TCP segments that the kernel has merged count as one.", "direction"),
		drops:     desc("drops_total", "Packets that liqonet's nftables tables have dropped, by the kernel's hook.", "hook", "reason"),
		active:    desc("plane_active", "1 if the node sends packets by the plane, otherwise 0."),
		handshake: desc("last_handshake_timestamp_seconds", "When WireGuard last agreed on a session with the peer's gateway."),
		key:       desc("key_created_timestamp_seconds", "When the gateway's WireGuard key was made."),
		nodes:     desc("nodes", "Nodes of the cluster: all that are known, those that reach the peer by the plane, and those that send by it.", "state"),
	}
}

// Describe is prometheus.Collector's. What is shown depends on what is known, so nothing is promised.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect is prometheus.Collector's.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s, err := c.agent.snapshot()
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.drops, err)
	}
	for _, d := range s.Drops {
		out <- prometheus.MustNewConstMetric(c.drops, prometheus.CounterValue, float64(d.Packets), d.Peering, d.Plane, d.Hook, d.Reason)
	}
	for _, p := range s.Planes {
		c.plane(out, p)
	}
}

func (c *collector) plane(out chan<- prometheus.Metric, p Plane) {
	show := func(d *prometheus.Desc, t prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, t, value, append([]string{p.Peering, strconv.Itoa(int(p.Index))}, labels...)...)
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		show(d, prometheus.GaugeValue, value, labels...)
	}
	flag := func(d *prometheus.Desc, is bool, labels ...string) {
		value := 0.0
		if is {
			value = 1
		}
		gauge(d, value, labels...)
	}
	for _, state := range []string{Up, Down, Leaving} {
		flag(c.state, p.State == state, state)
	}
	if p.MTU > 0 {
		gauge(c.mtu, float64(p.MTU))
	}
	if t := p.Traffic; t != nil {
		show(c.bytes, prometheus.CounterValue, float64(t.ReceivedBytes), "receive")
		show(c.bytes, prometheus.CounterValue, float64(t.SentBytes), "transmit")
		show(c.packets, prometheus.CounterValue, float64(t.ReceivedPackets), "receive")
		show(c.packets, prometheus.CounterValue, float64(t.SentPackets), "transmit")
	}
	if c.component == Node {
		flag(c.active, p.Active)
		return
	}
	moment := func(d *prometheus.Desc, at time.Time) {
		if !at.IsZero() {
			gauge(d, float64(at.UnixNano())/1e9)
		}
	}
	moment(c.handshake, p.Handshake)
	moment(c.key, p.Key)
	for state, n := range p.Nodes {
		gauge(c.nodes, float64(n), state)
	}
}
