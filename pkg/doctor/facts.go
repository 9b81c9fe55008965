package doctor

import (
	"slices"
	"time"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
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

// maxSample limits on how many nodes of a cluster pods read kernels, as creating and removing pods is work for the cluster. At most maxUnwell
// of them are unwell, so that there are others to compare with.
const maxSample, maxUnwell = 100, 80

// Choice is the nodes of a cluster on which pods read kernels.
type Choice struct {
	Nodes []string
	// Of is the number of nodes to choose from. It is larger than that of Nodes if these are a sample.
	Of int
	// Unwell is how many of all are unwell, and LeftOut how many of those are not in the sample.
	Unwell, LeftOut int
}

// IsSample reports whether there are nodes that were not chosen.
func (c *Choice) IsSample() bool { return len(c.Nodes) < c.Of }

// ChooseNodes chooses all nodes, or a sample if there are too many. The sample has the unwell nodes, up to a limit. The others are evenly
// distributed over the sorted names. In both groups, nodes with gateways are first: what is wrong there affects all nodes.
func ChooseNodes(names []string, isUnwell, hasGateway func(node string) bool) Choice {
	names = slices.Sorted(slices.Values(names))
	if len(names) <= maxSample {
		return Choice{Nodes: names, Of: len(names)}
	}
	unwell, well := lo.FilterReject(names, func(n string, _ int) bool { return isUnwell(n) })
	c := Choice{Of: len(names), Unwell: len(unwell), LeftOut: max(0, len(unwell)-maxUnwell)}
	add := func(from []string, most int) {
		first, rest := lo.FilterReject(from, func(n string, _ int) bool { return hasGateway(n) })
		first = spread(first, most)
		c.Nodes = slices.Concat(c.Nodes, first, spread(rest, most-len(first)))
	}
	add(unwell, maxUnwell)
	add(well, maxSample-len(c.Nodes))
	slices.Sort(c.Nodes)
	return c
}

// spread returns at most so many of the names, evenly distributed.
func spread(names []string, most int) []string {
	n := min(len(names), most)
	return lo.Times(n, func(i int) string { return names[i*len(names)/n] })
}

// Choose chooses from nodes of the cluster.
func (c *Cluster) Choose(names []string) Choice {
	return ChooseNodes(names, c.isUnwell, func(node string) bool {
		return slices.ContainsFunc(c.Peerings, func(p v1alpha1.Peering) bool {
			return slices.ContainsFunc(p.Status.Planes, func(s v1alpha1.PlaneStatus) bool { return s.NodeName == node })
		})
	})
}

// isUnwell reports whether the agent of a node is missing or silent, or reports a problem or a gateway that it does not reach. Without data,
// no node is.
func (c *Cluster) isUnwell(node string) bool {
	if c.Ours.DaemonSet == nil || c.Unseen[Peerings]+c.Unseen[Leases] != "" {
		return false
	}
	r := c.Reports[node]
	return r == nil || c.silent(r.Lease()) || r.Problem() != "" ||
		slices.ContainsFunc(r.Status.Gateways, func(g v1alpha1.NodeGateway) bool { return !g.Ready })
}

// silent reports whether an agent counts as dead because it has not renewed its Lease.
func (c *Cluster) silent(lease string) bool {
	age := c.Beats[lease].Age
	return age == nil || *age > v1alpha1.MaxSilence(lease)
}
