package doctor

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/probe"
)

// Facts is the data that was read from the clusters.
type Facts struct {
	// Version is the version of this command.
	Version  string
	Clusters []*Cluster
	// UDPTests are the results of UDP tests between clusters that are not peered.
	UDPTests []UDPTest
}

// Part is data that is read together. Cluster.Unseen lists the parts that could not be read.
type Part string

// The parts. Answers stands for checks that only need an API server that responds.
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

// Cluster is the data that was read from one cluster.
type Cluster struct {
	Name, ID string
	// Now is the time by the API server's clock.
	Now time.Time
	// Kubectl is the user's command for this cluster, for hints.
	Kubectl string
	// Unseen has the parts that could not be read, with the reasons.
	Unseen map[Part]string

	API      APIServer
	Ours     Objects
	Machines Machines
	Others   Others
	// Locks are the locks of commands.
	Locks []Lock

	Peerings []v1alpha1.Peering
	Reports  map[string]*v1alpha1.NodeNetwork
	Ledger   *v1alpha1.ClusterNetwork
	// Beats are the agents' heartbeats by the names of their Leases.
	Beats map[string]Beat
	// Traffic is the traffic of tunnels between two reads, by the names of their gateways' Leases.
	Traffic map[string]Traffic
	// Plan is why a peering with another cluster cannot be planned, empty if it can.
	Plan string
}

// APIServer is how the API server has responded.
type APIServer struct {
	// Unreachable is why the API server could not be queried, Refused why it did not accept the credentials, Hint what to do.
	Unreachable, Refused, Hint string
	// ClockAhead is how far the API server's clock is ahead of this machine's clock.
	ClockAhead time.Duration
	// MissingPermissions are the permissions that peer needs and the user lacks.
	MissingPermissions []string
}

// Objects are our objects, those with a namespace in ours.
type Objects struct {
	// Installed is true if any of our definitions or the agents exist.
	Installed bool
	// Definitions are our custom resource definitions by name, with what is wrong with each, empty if nothing is.
	Definitions map[string]string
	Pods        []corev1.Pod
	DaemonSet   *appsv1.DaemonSet
	Accounts    corev1.ServiceAccountList
	// Secrets are the names of the Secrets.
	Secrets  map[string]bool
	Policies networkingv1.NetworkPolicyList
	// Drift has our objects that differ from those that peer creates.
	Drift []plan.ObjectPlan
	// Leftovers are objects of ours that belong to no peering.
	Leftovers []string
}

// Machines are the nodes and their kernels.
type Machines struct {
	Nodes []corev1.Node
	// NodeSilence is the time since the kubelet of each node renewed its Lease, 0 if unknown.
	NodeSilence map[string]time.Duration
	// Kernels has the data of the nodes' kernels, and Unread why that of a node is missing.
	Kernels map[string]*probe.Kernel
	Unread  map[string]string
}

// Beat is an agent's heartbeat.
type Beat struct {
	// Age is the time since the Lease was renewed, nil if unknown.
	Age *time.Duration
	// Version is the version of the agent.
	Version string
	// ClockAhead is how far the agent's clock is ahead of its API server's clock.
	ClockAhead time.Duration
	// Starved is by how much the agent's scheduling is delayed, in percent of a second.
	Starved int
}

// Traffic is the traffic of a tunnel between two reads, in bytes.
type Traffic struct {
	Sent, Received int64
	// Endpoints are the peer's addresses at each read, empty strings if there was none.
	Endpoints []string
}

// Others are components of others: the settings of network plugins that matter, and the similar projects that are or were installed.
type Others struct {
	Projects []string
	// Cilium is the data of Cilium's ConfigMap, nil if there is none.
	Cilium map[string]string
	// CalicoBPF is true if Calico's FelixConfiguration enables its eBPF data plane.
	CalicoBPF bool
	// ProxyMode is the mode of kube-proxy, empty if unknown.
	ProxyMode string
	// DataplaneV2 is true if the agent of GKE Dataplane V2 is installed.
	DataplaneV2 bool
}

// UDPTest is the result of a UDP test from a node of one cluster to a node of another one, before they are peered.
type UDPTest struct {
	From, To string // names of clusters
	// Address is the destination.
	Address string
	// Answered is true if a reply arrived. Unseen is why the test could not run.
	Answered bool
	Unseen   string
}

// Lock is a lock of a command: a lock.Holding, without the package that talks to API servers.
type Lock struct {
	Lease     *coordinationv1.Lease
	By        string
	IsExpired bool
}
