package verify

// Name is the stable name of a check.
type Name string

// The checks, in the order in which they are shown.
const (
	PodsTCP           Name = "pods-tcp"
	PodsUDP           Name = "pods-udp"
	PodsICMP          Name = "pods-icmp"
	PodsMTU           Name = "pods-mtu"
	PodsTooLarge      Name = "pods-too-large"
	PodsFragments     Name = "pods-fragments"
	PodsSource        Name = "pods-source"
	NodesToPods       Name = "nodes-to-pods"
	NodesSource       Name = "nodes-source"
	ServiceClusterIP  Name = "service-cluster-ip"
	ServiceNodePort   Name = "service-node-port"
	Planes            Name = "planes"
	IsolatedNodes     Name = "isolated-nodes"
	IsolatedNodePorts Name = "isolated-node-ports"
	IsolatedServices  Name = "isolated-cluster-ips"
	IsolatedAPI       Name = "isolated-api-server"
	IsolatedThird     Name = "isolated-third-clusters"
	Encrypted         Name = "encrypted"
	Drops             Name = "drops"
	// control is no check: what it asks has to be answered, or others say nothing.
	control Name = "control"
)

// kind is what is the same of all cases of a check.
type kind struct {
	name Name
	// what it is about, in a few words.
	what string
	// hint is a command. {kubectl} begins one to the cluster that sends, and {there} one to the other cluster. {peering} is the peering's
	// name in the first.
	hint string
}

// kinds are all checks.
func kinds() []kind {
	const (
		status   = "kubectl liqonet status {from} {to}"
		wide     = status + " -o wide"
		policies = "{there} get networkpolicies -A"
		agents   = "{kubectl} -n liqonet-system get pods -o wide"
		there    = "{there} -n liqonet-system get pods -o wide"
		services = "{kubectl} -n kube-system get pods -o wide"
	)
	return []kind{
		{PodsTCP, "pod to pod, TCP", status},
		{PodsUDP, "pod to pod, UDP", status},
		{PodsICMP, "pod to pod, pings", policies},
		{PodsMTU, "full packets in one piece", wide},
		{PodsTooLarge, "one byte more: ICMP error", wide},
		{PodsFragments, "fragments", wide},
		{PodsSource, "source addresses of pods", "{kubectl} get peering {peering} -o yaml"},
		{NodesToPods, "node to pod", wide},
		{NodesSource, "source addresses of nodes", "{kubectl} get nodenetworks"},
		{ServiceClusterIP, "remote pods by cluster IP", services},
		{ServiceNodePort, "remote pods by NodePort", services},
		{Planes, "each plane by itself", "{kubectl} -n liqonet-system get pods -l liqonet.io/peering={peering} -o wide"},
		{IsolatedNodes, "nodes out of reach", there},
		{IsolatedNodePorts, "NodePorts out of reach", there},
		{IsolatedServices, "cluster IPs out of reach", there},
		{IsolatedAPI, "API server out of reach", there},
		{IsolatedThird, "no way to third clusters", there},
		{Encrypted, "nothing leaves in plain", agents},
		{Drops, "drop counters", agents},
	}
}

// Result of a check, or of one of its cases.
type Result string

// What a check may come to.
const (
	Passed  Result = "passed"
	Failed  Result = "failed"
	Skipped Result = "skipped"
)

// Case is one thing that was tried for a check.
type Case struct {
	// From and To say in words what was asked by whom.
	From string `json:"from"`
	To   string `json:"to,omitempty"`
	// Sent is what was sent, Got what came back.
	Sent   string `json:"sent,omitempty"`
	Got    string `json:"got"`
	Result Result `json:"result"`
}

// Check is a check in one direction.
type Check struct {
	Name Name   `json:"name"`
	What string `json:"what"`
	// From is the cluster that sends, To the other one.
	From   string `json:"from"`
	To     string `json:"to"`
	Result Result `json:"result"`
	// Message says why it was skipped, or what else is worth to know.
	Message string `json:"message,omitempty"`
	// Hint is a command, where it has failed.
	Hint  string `json:"hint,omitempty"`
	Cases []Case `json:"cases"`
}

// Count is how many of the cases have come to a result.
func (c Check) Count(r Result) (n int) {
	for _, one := range c.Cases {
		if one.Result == r {
			n++
		}
	}
	return n
}
