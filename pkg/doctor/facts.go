package doctor

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/probe"
)

// Facts are what was read of all clusters that were asked.
type Facts struct {
	// Version is that of this command.
	Version  string
	Clusters []*Cluster
	// Ways are what packets did between clusters that are not peered.
	Ways []Way
}

// Part is a kind of things that are read together. What of it could not be read is in Cluster.Unseen.
type Part string

// The parts. Answers is what needs no more than an API server that answers.
const (
	Answers     Part = "answers"
	Definitions Part = "definitions"
	Nodes       Part = "nodes"
	Pods        Part = "pods"
	Accounts    Part = "accounts"
	Secrets     Part = "secrets"
	Policies    Part = "network policies"
	Peerings    Part = "peerings"
	Leases      Part = "leases"
	Drifts      Part = "drift"
	Leftovers   Part = "leftovers"
	Kernels     Part = "kernels"
	Settings    Part = "settings"
	Locks       Part = "locks"
)

// Cluster is what was read of one.
type Cluster struct {
	Name, ID string
	// Now is the time by its API server.
	Now time.Time
	// Kubectl is how the user reaches it, for hints.
	Kubectl string
	// Unreachable is why the API server was not asked, Refused why it did not accept the credentials. Hint is what can be done.
	Unreachable, Refused, Hint string
	// Unseen are the parts that could not be read, and why.
	Unseen map[Part]string
	// ClockAhead is how much the API server's clock is ahead of this machine's.
	ClockAhead time.Duration
	// MayNot are the permissions that peer needs, and the user lacks.
	MayNot []string
	// Installed says that something of ours is there.
	Installed bool
	// Definitions of ours, by name, and what is wrong with each. Empty where nothing is.
	Definitions map[string]string

	Nodes []corev1.Node
	// NodeSilence is how long ago the kubelet of a node has renewed its Lease.
	NodeSilence map[string]time.Duration
	// Pods, and what follows, are those of our namespace.
	Pods      []corev1.Pod
	DaemonSet *appsv1.DaemonSet
	Accounts  corev1.ServiceAccountList
	// Secrets are names.
	Secrets  map[string]bool
	Policies networkingv1.NetworkPolicyList

	Peerings []v1alpha1.Peering
	Reports  map[string]*v1alpha1.NodeNetwork
	Ledger   *v1alpha1.ClusterNetwork
	// Beats are the agents' heartbeats, by the names of their Leases.
	Beats map[string]Beat
	// Traffic is what tunnels carried between two looks, by the names of their gateways' Leases.
	Traffic map[string]Traffic
	// Conflicts are routes of nodes that lead to addresses of a peering, by the names of nodes.
	Conflicts map[string][]string
	// Drift are our objects that are not as peer makes them.
	Drift []plan.ObjectPlan
	// Leftovers are objects of ours that belong to no peering, Others what other projects have left or run.
	Leftovers, Others []string
	// Locks say who holds a lock and renews it, Expired are locks that nobody renews.
	Locks   []string
	Expired []Expired
	// Plugins is how network plugins are set.
	Plugins Plugins
	// Plan is why no peering with the other cluster can be planned, empty where it can.
	Plan string

	// Kernels are what was read of nodes' kernels, and Unread why there is none of a node.
	Kernels map[string]*probe.Kernel
	Unread  map[string]string
}

// Beat is an agent's heartbeat.
type Beat struct {
	// Age is how long ago the Lease was renewed, nil where that is not known.
	Age *time.Duration
	// Version is that of the agent.
	Version string
	// ClockAhead is how much the agent's clock is ahead of its API server's.
	ClockAhead time.Duration
	// Starved is how late the agent is when its time has come, in percent of a second.
	Starved int
}

// Traffic is what a tunnel carried between two looks, in bytes.
type Traffic struct {
	Sent, Received int64
	// Endpoints are the peer's addresses as they were seen, empty where there was none.
	Endpoints []string
}

// Plugins is what was read of how network plugins are set.
type Plugins struct {
	// Cilium is what its ConfigMap has, nil where there is none.
	Cilium map[string]string
	// CalicoBPF says that Calico's FelixConfiguration turns its eBPF data plane on.
	CalicoBPF bool
	// ProxyMode is that of kube-proxy, empty if it is not known.
	ProxyMode string
	// DataplaneV2 says that GKE's agent of that name runs.
	DataplaneV2 bool
}

// Expired is a lock that its holder does not renew.
type Expired struct {
	// By says who holds it, and for how long they have worked, by their own clock. Lease is its name.
	By, Lease string
	// Age is how long ago it was taken, by the API server's clock.
	Age time.Duration
}

// Way is what UDP did from a node of one cluster to one of another, before they are peered.
type Way struct {
	From, To string // names of clusters
	// Address is where it was sent to.
	Address string
	// Answered says that an answer came back. Unseen is why that is not known.
	Answered bool
	Unseen   string
}
