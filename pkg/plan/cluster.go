package plan

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/ipam"
)

// Fact is a value and where it is from.
type Fact[T any] struct {
	Value T
	// Source completes "<value>: …", e.g. "from Calico's IPPool default".
	Source string
	// Assumed says that the value was concluded from other facts and not read; the
	// source says from which.
	Assumed bool
}

// Range is an address range of a cluster.
type Range = Fact[netip.Prefix]

// Ranges are address ranges, none of which overlaps another one.
type Ranges []Range

// Prefixes are the ranges without their sources.
func (r Ranges) Prefixes() []netip.Prefix {
	return lo.Map(r, func(f Range, _ int) netip.Prefix { return f.Value })
}

// Contain says that one of the ranges contains addr.
func (r Ranges) Contain(addr netip.Addr) bool {
	return slices.ContainsFunc(r, func(f Range) bool { return f.Value.Contains(addr) })
}

// Network are what a cluster's API tells of its ranges, nodes and load balancers. The
// order of all lists is the same as long as the cluster does not change.
type Network struct {
	// ClusterID is the UID of the namespace kube-system.
	ClusterID string
	// Name is what the user calls the cluster.
	Name string
	// PodCIDRs are the ranges of the pods. There are none where PodsUnknown is set.
	PodCIDRs Ranges
	// PodsUnknown says why no object of the cluster names the ranges of the pods. What
	// the node agents report may tell them.
	PodsUnknown error
	// PodAddrs are the addresses of the pods, where PodsUnknown is set.
	PodAddrs []netip.Addr
	// ServiceCIDRs are the ranges of the services' cluster IPs.
	ServiceCIDRs Ranges
	// NodeCIDRs are the subnets of the nodes. Usually assumed: the nodes' agents
	// know them. They may overlap PodCIDRs where pods have addresses of the nodes'
	// subnets (EKS, Azure CNI).
	NodeCIDRs Ranges
	// Reserved are ranges that the user keeps free of peers.
	Reserved Ranges
	// CNI is the network plugin, Provider who runs the cluster. Empty if not known.
	CNI, Provider Fact[string]
	// LoadBalancers says whether services of type LoadBalancer get addresses: Yes or
	// No, or empty if that is not known.
	LoadBalancers Fact[string]
	Nodes         []Node
	// Warnings are things that are not as expected but do no harm to a peering.
	Warnings []string
}

// What Network.LoadBalancers says.
const (
	Yes = "yes"
	No  = "no"
)

// Node is a node of the cluster. Virtual nodes, which have no kernel, are left out.
type Node struct {
	Name string
	// UID is the Node's: another one of the same name has another.
	UID         string
	InternalIPs []netip.Addr
	ExternalIPs []netip.Addr
	Ready       bool
	// Schedulable is false for a cordoned node and for one with a NoSchedule or
	// NoExecute taint.
	Schedulable bool
	// RunsAgents says that the node gets agents, once it is ready: it has Linux, and
	// a kernel of its own.
	RunsAgents bool
	// Labels and Taints are the Node's.
	Labels map[string]string
	Taints []corev1.Taint
}

// addresses are all of the node.
func (n *Node) addresses() []netip.Addr { return slices.Concat(n.InternalIPs, n.ExternalIPs) }

// public is an address by which the node may be called from outside: an external one,
// or an internal one that is public. It is invalid if there is none.
func (n *Node) public() netip.Addr {
	if len(n.ExternalIPs) > 0 {
		return n.ExternalIPs[0]
	}
	internal, _ := lo.Find(n.InternalIPs, func(a netip.Addr) bool { return a.IsGlobalUnicast() && !ipam.PrivateAddr(a) })
	return internal
}
