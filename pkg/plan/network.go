package plan

import (
	"net/netip"
	"slices"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
)

// Fact is a value and its source.
type Fact[T any] struct {
	Value T
	// Source completes "<value>: …", e.g. "from Calico's IPPool default".
	Source string
	// Assumed means that the value was inferred from other facts, not read. The source names them.
	Assumed bool
}

// Range is an address range of a cluster.
type Range = Fact[netip.Prefix]

// Ranges are address ranges that do not overlap.
type Ranges []Range

// Prefixes returns the ranges without their sources.
func (r Ranges) Prefixes() []netip.Prefix {
	return lo.Map(r, func(f Range, _ int) netip.Prefix { return f.Value })
}

// Contain reports whether one of the ranges contains addr.
func (r Ranges) Contain(addr netip.Addr) bool {
	return slices.ContainsFunc(r, func(f Range) bool { return f.Value.Contains(addr) })
}

// Network holds the ranges, nodes and load balancers of a cluster according to its API. The order of all lists stays the
// same as long as the cluster does not change.
type Network struct {
	// ClusterID is the UID of the namespace kube-system.
	ClusterID string
	// Name is the user's name of the cluster.
	Name string
	// PodCIDRs are the ranges of the pods, empty if PodsUnknown is set.
	PodCIDRs Ranges
	// PodsUnknown is why no object of the cluster names the ranges of the pods. The node agents' reports may contain
	// them.
	PodsUnknown error
	// PodAddrs are the addresses of the pods, if PodsUnknown is set.
	PodAddrs []netip.Addr
	// ServiceCIDRs are the ranges of the services' cluster IPs.
	ServiceCIDRs Ranges
	// NodeCIDRs are the subnets of the nodes. They are usually assumed: only the node agents know them. They may overlap
	// PodCIDRs if pods have addresses of the nodes' subnets (EKS, Azure CNI).
	NodeCIDRs Ranges
	// Reserved are ranges that the user does not want to be mapped to peers.
	Reserved Ranges
	// CNI is the network plugin, Provider is the provider of the cluster. Empty if not known.
	CNI, Provider Fact[string]
	// LoadBalancers is whether services of type LoadBalancer get addresses: Yes, No, or empty if not known.
	LoadBalancers Fact[string]
	Nodes         []Node
	// Warnings are unexpected facts that do not affect a peering.
	Warnings []string
}

// The values of Network.LoadBalancers.
const (
	Yes = "yes"
	No  = "no"
)

// rangesOf are ranges of one kind, with their names in plans and in errors.
type rangesOf struct {
	what, by string
	ranges   Ranges
}

// ranges returns all ranges that the cluster is known to use.
func (f *Network) ranges() []rangesOf {
	return []rangesOf{
		{"pod range", "pods of", f.PodCIDRs},
		{"service range", "services of", f.ServiceCIDRs},
		{"node range", "nodes of", f.NodeCIDRs},
		{"reserved range", "reserved in", f.Reserved},
	}
}

// Node is a node of the cluster. Virtual nodes, which have no kernel, are left out.
type Node struct {
	Name string
	// UID is the UID of the Node: a new Node with the same name has another.
	UID         string
	InternalIPs []netip.Addr
	ExternalIPs []netip.Addr
	Ready       bool
	// Schedulable is false for a cordoned node, and for one with a NoSchedule or NoExecute taint.
	Schedulable bool
	// RunsAgents means that the node gets agents once it is ready: it runs Linux, with a kernel of its own.
	RunsAgents bool
	// Labels and Taints are the Node's.
	Labels map[string]string
	Taints []corev1.Taint
}

// addresses returns all addresses of the node.
func (n *Node) addresses() []netip.Addr { return slices.Concat(n.InternalIPs, n.ExternalIPs) }

// public returns an address at which the node may be reachable from outside: an external one, or an internal one that is
// public. It is invalid if there is none.
func (n *Node) public() netip.Addr {
	if len(n.ExternalIPs) > 0 {
		return n.ExternalIPs[0]
	}
	internal, _ := lo.Find(n.InternalIPs, func(a netip.Addr) bool { return a.IsGlobalUnicast() && !ipam.PrivateAddr(a) })
	return internal
}

// single returns the prefix that contains only the address.
func single(a netip.Addr, _ int) netip.Prefix { return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()) }

func addresses(ips []v1alpha1.IP) []netip.Addr {
	return lo.Map(ips, func(ip v1alpha1.IP, _ int) netip.Addr { return ip.Addr })
}
