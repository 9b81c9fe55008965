package verify

import "github.com/liqonet/liqonet/pkg/check"

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
