package verify

import (
	"slices"

	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/probe"
)

// The names of the checks, in the order in which they are shown.
const (
	PodsTCP           = "pods-tcp"
	PodsUDP           = "pods-udp"
	PodsICMP          = "pods-icmp"
	PodsMTU           = "pods-mtu"
	PodsTooLarge      = "pods-too-large"
	PodsFragments     = "pods-fragments"
	PodsSource        = "pods-source"
	NodesToPods       = "nodes-to-pods"
	NodesSource       = "nodes-source"
	ServiceClusterIP  = "service-cluster-ip"
	ServiceNodePort   = "service-node-port"
	Planes            = "planes"
	IsolatedNodes     = "isolated-nodes"
	IsolatedNodePorts = "isolated-node-ports"
	IsolatedServices  = "isolated-cluster-ips"
	IsolatedAPI       = "isolated-api-server"
	IsolatedThird     = "isolated-third-clusters"
	Encrypted         = "encrypted"
	Drops             = "drops"
	// control is no check: what it asks has to be answered, or others say nothing.
	control = "control"
)

// checks are all of them. In the hint, a command, {kubectl} begins one to the cluster that sends, {there} one to the other cluster. {peering} is the
// peering's name in the first.
func checks() []check.Check {
	const (
		status   = "kubectl liqonet status {from} {to}"
		wide     = status + " -o wide"
		policies = "{there} get networkpolicies -A"
		agents   = "{kubectl} -n liqonet-system get pods -o wide"
		there    = "{there} -n liqonet-system get pods -o wide"
		services = "{kubectl} -n kube-system get pods -o wide"
	)
	return []check.Check{
		{Name: PodsTCP, About: "pod to pod, TCP", Hint: status},
		{Name: PodsUDP, About: "pod to pod, UDP", Hint: status},
		{Name: PodsICMP, About: "pod to pod, pings", Hint: policies},
		{Name: PodsMTU, About: "full packets in one piece", Hint: wide},
		{Name: PodsTooLarge, About: "one byte more: ICMP error", Hint: wide},
		{Name: PodsFragments, About: "fragments", Hint: wide},
		{Name: PodsSource, About: "source addresses of pods", Hint: "{kubectl} get peering {peering} -o yaml"},
		{Name: NodesToPods, About: "node to pod", Hint: wide},
		{Name: NodesSource, About: "source addresses of nodes", Hint: "{kubectl} get nodenetworks"},
		{Name: ServiceClusterIP, About: "remote pods by cluster IP", Hint: services},
		{Name: ServiceNodePort, About: "remote pods by NodePort", Hint: services},
		{Name: Planes, About: "each plane by itself", Hint: "{kubectl} -n liqonet-system get pods -l liqonet.io/peering={peering} -o wide"},
		{Name: IsolatedNodes, About: "nodes out of reach", Hint: there},
		{Name: IsolatedNodePorts, About: "NodePorts out of reach", Hint: there},
		{Name: IsolatedServices, About: "cluster IPs out of reach", Hint: there},
		{Name: IsolatedAPI, About: "API server out of reach", Hint: there},
		{Name: IsolatedThird, About: "no way to third clusters", Hint: there},
		{Name: Encrypted, About: "nothing leaves unencrypted", Hint: agents},
		{Name: Drops, About: "drop counters", Hint: agents},
	}
}

// Report is what a run has come to.
type Report struct {
	// Clusters are the two.
	Clusters []string `json:"clusters"`
	// Seconds is how long it took.
	Seconds float64 `json:"seconds"`
	// Notes say what was left out.
	Notes []string `json:"notes,omitempty"`
	// Its result is failed if a check has failed, and skipped if pods could not be tried.
	check.Report `json:",inline"`
	// Bench has the speeds that were measured.
	Bench []Speed `json:"bench,omitempty"`
}

// Conclude sets the result. Where no pod could ask another one, nothing was verified.
func (r *Report) Conclude() {
	is := func(what func(check.Check) bool) bool { return slices.ContainsFunc(r.Checks, what) }
	switch {
	case is(func(c check.Check) bool { return c.Result == check.Failed }):
		r.Result = check.Failed
	case is(func(c check.Check) bool { return c.Name == PodsTCP && c.Result == check.Skipped }):
		r.Result = check.Skipped
	default:
		r.Result = check.Passed
	}
}

// Speed is one measurement through the tunnel, beside the same between the nodes.
type Speed struct {
	// What is throughput, latency-p50, latency-p99 or requests, in Unit.
	What string `json:"what"`
	Unit string `json:"unit"`
	// From and To are nodes.
	From string `json:"from"`
	To   string `json:"to"`
	// Tunnel is from pod to pod; nil where it could not be measured.
	Tunnel *float64 `json:"tunnel,omitempty"`
	// Bare is from node to node without the tunnel; nil where the nodes do not reach each other.
	Bare *float64 `json:"bare,omitempty"`
	// Ratio is Tunnel by Bare.
	Ratio *float64 `json:"ratio,omitempty"`
}

// Speeds are what was measured from one node to another, nil where nothing was.
func Speeds(from, to string, tunnel, bare *probe.Speed) (out []Speed) {
	of := func(s *probe.Speed) (out [4]*float64) {
		if s != nil {
			out = [...]*float64{new(s.BitsPerSecond / 1e6), &s.MedianMicroseconds, &s.SlowMicroseconds, &s.RequestsPerSecond}
		}
		return out
	}
	kinds := [...]struct{ what, unit string }{{"throughput", "Mbit/s"}, {"latency-p50", "us"}, {"latency-p99", "us"}, {"requests", "1/s"}}
	for i, k := range kinds {
		s := Speed{What: k.what, Unit: k.unit, From: from, To: to, Tunnel: of(tunnel)[i], Bare: of(bare)[i]}
		if s.Tunnel != nil && s.Bare != nil && *s.Bare > 0 {
			s.Ratio = new(*s.Tunnel / *s.Bare)
		}
		out = append(out, s)
	}
	return out
}
