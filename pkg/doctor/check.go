// Package doctor finds out what is wrong with clusters and their peerings, where, and what to do about it. It is pure: it turns Facts into
// a Report. It defines the facts; pkg/diagnose reads them from objects, and agent/probe from kernels.
//
// A check has a stable name, such as liqonet-mtu-01. It examines facts and adds findings. The catalogue defines on which others each
// check depends, from which pkg/check determines the cause.
//
// Out of scope: reading, repairing, printing.
package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/probe"
)

// Check is a check of one cluster.
type Check struct {
	check.Check
	// needs are the parts of a cluster without which the check is skipped.
	needs   []Part
	examine func(x *examination)
}

// examination is one check of one cluster.
type examination struct {
	*Cluster
	// facts has the data of the other clusters too.
	facts *Facts
	check Check
	found []check.Finding
}

// add adds a finding.
func (x *examination) add(f check.Finding) *check.Finding {
	f.Check, f.Cluster = x.check.Name, x.Cluster.Name
	x.found = append(x.found, f)
	return &x.found[len(x.found)-1]
}

// fail adds a failure of a node or, without one, of the whole cluster.
func (x *examination) fail(node, what, evidence, hint string) *check.Finding {
	return x.add(check.Finding{Result: check.Failed, Node: node, Problem: what, Evidence: evidence, Hint: hint})
}

// failNode adds a failure of a node that also affects the peerings whose gateways run on it.
func (x *examination) failNode(node, what, evidence, hint string) {
	x.fail(node, what, evidence, hint).Pairs = x.pairs(func(p *v1alpha1.Peering) bool {
		return slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool { return x.gatewayNode(p, plane.Index) == node })
	})
}

// warn adds a warning: the problem does no harm yet.
func (x *examination) warn(node, what, evidence, hint string) *check.Finding {
	return x.add(check.Finding{Result: check.Warning, Node: node, Problem: what, Evidence: evidence, Hint: hint})
}

// skip adds the reason why something could not be examined.
func (x *examination) skip(why string) {
	x.add(check.Finding{Result: check.Skipped, Problem: why})
}

// kubectl returns a kubectl command in our namespace, with names.
func (x *examination) kubectl(command string, names ...string) string {
	return strings.Join(slices.Concat([]string{x.Kubectl, "-n liqonet-system", command}, lo.Map(names, quote)), " ")
}

// liqonet returns a liqonet command whose first argument is the cluster, with names.
func (x *examination) liqonet(verb string, names ...string) string {
	names = slices.Concat([]string{x.Cluster.Name}, names)
	return "kubectl liqonet " + verb + " " + strings.Join(lo.Map(names, quote), " ")
}

func quote(name string, _ int) string { return failure.Quote(name) }

// fixCommand returns the command that recreates our objects.
func (x *examination) fixCommand() string { return x.liqonet("doctor") + " --fix" }

// peerCommand returns the peer command that repairs our objects. Without a peering, it names the other cluster of the command line.
func (x *examination) peerCommand() string {
	other, _ := lo.Find(x.facts.Clusters, func(c *Cluster) bool { return c != x.Cluster })
	peering, entry := lo.FirstOrEmpty(x.Peerings), lo.FirstOrEmpty(lo.FromPtr(x.Ledger).Spec.Peers)
	if name := cmp.Or(peering.Spec.Remote.Name, entry.Name, lo.FromPtr(other).Name); name != "" {
		return x.liqonet("peer", name)
	}
	return "kubectl liqonet peer --help"
}

// joinFirst joins the first three names in sorted order, and counts the others.
func joinFirst(names []string) string {
	const most = 3
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// pairs identifies the peerings for which match returns true. Both clusters use the same identifier.
func (x *examination) pairs(match func(*v1alpha1.Peering) bool) []string {
	return lo.FilterMap(lo.ToSlicePtr(x.Peerings), func(p *v1alpha1.Peering, _ int) (string, bool) {
		ids := []string{x.ID, p.Spec.Remote.ClusterID}
		slices.Sort(ids)
		return strings.Join(ids, " "), match(p)
	})
}

// allPairs identifies all peerings of the cluster.
func (x *examination) allPairs() []string {
	return x.pairs(func(*v1alpha1.Peering) bool { return true })
}

// gatewayNode returns the node on which a gateway runs, empty if unknown.
func (x *examination) gatewayNode(p *v1alpha1.Peering, plane int32) string {
	return cmp.Or(lo.FromPtr(x.GatewayPod(p.Name, plane)).Spec.NodeName, lo.FromPtr(p.PlaneStatus(plane)).NodeName)
}

// GatewayPod returns the pod of a gateway, nil if there is none.
func (c *Cluster) GatewayPod(peering string, plane int32) *corev1.Pod {
	return c.pod(func(p *corev1.Pod) bool {
		return p.Labels[v1alpha1.LabelPeering] == peering && p.Labels[v1alpha1.LabelPlane] == strconv.Itoa(int(plane))
	})
}

// NodePod returns the pod of a node's agent, nil if there is none.
func (c *Cluster) NodePod(node string) *corev1.Pod {
	return c.pod(func(p *corev1.Pod) bool { return component(p) == "node" && nodes.OfPod(p) == node })
}

// pod returns a pod for which meant returns true, preferably a running one.
func (c *Cluster) pod(meant func(*corev1.Pod) bool) (found *corev1.Pod) {
	for _, p := range lo.ToSlicePtr(c.Own.Pods) {
		if meant(p) && (found == nil || p.Status.Phase == corev1.PodRunning) {
			found = p
		}
	}
	return found
}

// agent describes the agent that renews a Lease, and returns its node.
func (x *examination) agent(lease string) (name, node string) {
	for _, n := range x.Machines.Nodes {
		if lease == x.Reports[n.Name].LeaseName() {
			return "the agent of node " + n.Name, n.Name
		}
	}
	for _, g := range x.gateways() {
		if lease == g.lease() {
			return g.name(), g.node()
		}
	}
	return lease, ""
}

// gateway is a gateway of the cluster.
type gateway struct {
	x       *examination
	peering *v1alpha1.Peering
	*v1alpha1.Plane
	// status is nil if the gateway has not reported.
	status *v1alpha1.PlaneStatus
}

// gateways returns the gateways of the cluster.
func (x *examination) gateways() (out []gateway) {
	for _, p := range lo.ToSlicePtr(x.Peerings) {
		for _, plane := range lo.ToSlicePtr(p.Spec.Planes) {
			out = append(out, gateway{x, p, plane, p.PlaneStatus(plane.Index)})
		}
	}
	return out
}

// lease returns the name of the gateway's Lease and of its other objects.
func (g gateway) lease() string { return v1alpha1.GatewayName(g.peering.Name, g.Index) }

// name describes the gateway, with its plane if there are several.
func (g gateway) name() string {
	name := "the gateway to " + cmp.Or(g.peering.Spec.Remote.Name, g.peering.Name)
	if len(g.peering.Spec.Planes) > 1 {
		name += fmt.Sprintf(" of plane %d", g.Index)
	}
	return name
}

// peer returns the name of the other cluster.
func (g gateway) peer() string { return g.peering.Spec.Remote.Name }

// node returns the node on which the gateway runs, empty if unknown.
func (g gateway) node() string { return g.x.gatewayNode(g.peering, g.Index) }

// isSilent reports whether the gateway counts as dead.
func (g gateway) isSilent() bool { return g.x.isSilent(g.lease()) }

// isDown reports whether the gateway is alive, but no packets pass.
func (g gateway) isDown() bool { return g.status != nil && !g.status.Connected && !g.isSilent() }

// attribute attributes a finding to the gateway.
func (g gateway) attribute(f *check.Finding) {
	f.Peering, f.Plane = g.peering.Name, &g.Index
	f.Node = cmp.Or(f.Node, g.node())
}

// forGateways calls check for each gateway.
func forGateways(check func(gateway)) func(*examination) {
	return func(x *examination) {
		for _, g := range x.gateways() {
			check(g)
		}
	}
}

// fail adds a failure of the gateway.
func (g gateway) fail(what, evidence, hint string) { g.attribute(g.x.fail("", what, evidence, hint)) }

// peerOf returns the peer's cluster and its side of the peering, each nil if it was not read.
func (x *examination) peerOf(p *v1alpha1.Peering) (*Cluster, *v1alpha1.Peering) {
	id := p.Spec.Remote.ClusterID
	peer, _ := lo.Find(x.facts.Clusters, func(c *Cluster) bool { return c.ID == id && id != "" })
	theirs := lo.ToSlicePtr(lo.FromPtr(peer).Peerings)
	side, _ := lo.Find(theirs, func(other *v1alpha1.Peering) bool { return other.Spec.Remote.ClusterID == x.ID })
	return peer, side
}

// isAgent reports whether a pod is a node agent or a gateway.
func isAgent(p *corev1.Pod) bool { return component(p) == "node" || component(p) == "gateway" }

// component returns the component to which a pod of ours belongs.
func component(p *corev1.Pod) string { return p.Labels["app.kubernetes.io/component"] }

// Facts is the data that was read from the clusters.
type Facts struct {
	// Version is the version of this command.
	Version  string
	Clusters []*Cluster
	// UDPTests are the results of UDP tests between clusters that are not peered.
	UDPTests []UDPTest
}

// Part is data that is read together. Cluster.SkipReasons lists the parts that could not be read.
type Part string

// The parts. Answers stands for checks that only need an API server that responds.
const (
	Answers   Part = "answers"
	CRDs      Part = "definitions"
	Nodes     Part = "nodes"
	Pods      Part = "pods"
	Accounts  Part = "accounts"
	Secrets   Part = "secrets"
	Policies  Part = "network policies"
	Peerings  Part = "peerings"
	Leases    Part = "leases"
	Drifts    Part = "drift"
	Leftovers Part = "leftovers"
	Kernels   Part = "kernels"
	Settings  Part = "settings"
	Locks     Part = "locks"
	// Identities is the Secret with the cluster's identity key.
	Identities Part = "identity key"
	// Services are exported and imported services, and what others have of the Multi-Cluster Services API.
	Services Part = "services"
)

// Cluster is the data that was read from one cluster.
type Cluster struct {
	Name, ID string
	// Now is the time by the API server's clock.
	Now time.Time
	// Kubectl is the user's command for this cluster, for hints.
	Kubectl string
	// SkipReasons has the parts that could not be read, with the reasons.
	SkipReasons map[Part]string

	API      APIServer
	Own      Objects
	Machines Machines
	Others   Others
	// Locks are the locks of commands.
	Locks []Lock

	Peerings []v1alpha1.Peering
	Reports  map[string]*v1alpha1.NodeNetwork
	Ledger   *v1alpha1.ClusterNetwork
	// Heartbeats are the agents' heartbeats by the names of their Leases.
	Heartbeats map[string]Heartbeat
	// Traffic is the traffic of tunnels between two reads, by the names of their gateways' Leases.
	Traffic map[string]Traffic
	// Plan is why a peering with another cluster cannot be planned, empty if it can.
	Plan string
	// Exchange is the exchange of services.
	Exchange Exchange
}

// Exchange is the exchange of services with all peers.
type Exchange struct {
	// Refused is why services cannot be exchanged with this cluster, empty if they can.
	Refused string
	// Problems are those of exported and imported services, by their names.
	Problems map[string][]string
	// Withdrawn is how many services have endpoints that are not used because the peer cannot be reached, by the names of Peerings.
	Withdrawn map[string]int
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
	// CRDs are our custom resource definitions by name, with what is wrong with each, empty if nothing is.
	CRDs      map[string]string
	Pods      []corev1.Pod
	DaemonSet *appsv1.DaemonSet
	Accounts  corev1.ServiceAccountList
	// Secrets are the names of the Secrets.
	Secrets map[string]bool
	// Identity is the public key of the cluster's identity, empty if its Secret is gone or damaged.
	Identity string
	Policies networkingv1.NetworkPolicyList
	// ClusterPolicies are the cluster-wide network policies of plugins, of any namespace.
	ClusterPolicies []unstructured.Unstructured
	// Drift has our objects that differ from those that peer creates.
	Drift []plan.ObjectPlan
	// WeakPolicies are the agents' admission policies that are missing, or do not deny all that they should.
	WeakPolicies []string
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

// Heartbeat is an agent's heartbeat.
type Heartbeat struct {
	// Age is the time since the Lease was renewed, nil if unknown.
	Age *time.Duration
	// Version is the version of the agent.
	Version string
	// ClockAhead is how far the agent's clock is ahead of its API server's clock.
	ClockAhead time.Duration
	// LossPercent is the percentage of a gateway's probes that were lost.
	LossPercent int
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
	// Answered is true if a reply arrived. SkipReason is why the test could not run.
	Answered   bool
	SkipReason string
}

// Lock is a lock of a command: a lock.Holder, without the package that talks to API servers.
type Lock struct {
	Lease     *coordinationv1.Lease
	Name      string
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
	if c.Own.DaemonSet == nil || c.SkipReasons[Peerings]+c.SkipReasons[Leases] != "" {
		return false
	}
	r := c.Reports[node]
	return r == nil || c.isSilent(r.LeaseName()) || r.Problem() != "" ||
		slices.ContainsFunc(r.Status.Gateways, func(g v1alpha1.NodeGateway) bool { return !g.Ready })
}

// isSilent reports whether an agent counts as dead because it has not renewed its Lease.
func (c *Cluster) isSilent(lease string) bool {
	age := c.Heartbeats[lease].Age
	return age == nil || *age > v1alpha1.LeaseTimeout(lease)
}
