package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
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

const (
	// shortestBlock is the length of the largest prefix that counts as a block of pods: a shorter one, such as
	// 10.0.0.0/8, covers much more than pods.
	shortestBlock = 12
	// longestRange is the length of the smallest range to infer. If other addresses are so close to the pods' that less
	// remains, the user has to give the ranges.
	longestRange = 24
)

// InferPods infers the ranges of the pods from the node agents' reports, if no object of the cluster names them. It
// returns the facts with the ranges, or unchanged while agents have not reported. It returns an error if the ranges
// cannot be inferred.
//
// The reports cover every pod: the ranges of the nodes, the routes to blocks of pods, and the addresses of pods outside
// of these. Of each running pod, the narrowest one counts. Together they are rounded up to a usual length, unless that
// conflicts with something else. Ranges that were inferred before are kept while there are pods in them.
func (f Facts) InferPods() (Facts, error) {
	if f.PodsUnknown == nil || len(f.agentNodes(true)) == 0 || len(f.Unreported()) > 0 {
		return f, nil
	}
	const doing = "infer the ranges of the pods from the node agents' reports"
	refused := &failure.Error{Kind: failure.Ranges, Doing: doing, Err: f.PodsUnknown}
	previous, blocks := f.previousPods(), f.reportedBlocks()
	held := slices.Clone(previous)
	for _, a := range f.PodAddrs {
		if !a.Is4() || slices.ContainsFunc(previous, func(p netip.Prefix) bool { return p.Contains(a) }) {
			continue
		}
		block, isReported := lo.Find(blocks, func(b netip.Prefix) bool { return b.Contains(a) })
		if !isReported {
			return f, refused
		}
		held = append(held, block)
	}
	remote := lo.FlatMap(f.peerings(), func(p v1alpha1.Peering, _ int) []netip.Prefix { return p.RemoteRanges() })
	avoid := append(slices.Concat(f.ServiceCIDRs, f.NodeCIDRs).Prefixes(), remote...)
	if cn := f.ledger(); cn != nil {
		avoid = append(avoid, cn.Spec.InternalCIDR.Prefix)
	}
	ranges := ipam.Estimate(held, avoid)
	if len(ranges) == 0 || slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() > longestRange }) {
		return f, refused
	}
	agents := len(f.agentNodes(true))
	source := fmt.Sprintf("inferred from blocks and routes that %d node agents report, rounded up; --pod-cidr %s=RANGE overrides it", agents, f.Name)
	f.PodCIDRs = lo.Map(ranges, func(r netip.Prefix, _ int) Range { return Range{Value: r, Assumed: true, Source: source} })
	names := lo.Map(ranges, func(r netip.Prefix, _ int) string { return r.String() })
	f.PodsInferred = fmt.Sprintf("the ranges of the pods of %s, %s, are inferred from the reports of %d node agents, as no object of the cluster names them; "+
		"give --pod-cidr %s=RANGE[,RANGE] if they are wrong", f.Name, strings.Join(names, ", "), agents, f.Name)
	f.PodsUnknown = nil
	return f, nil
}

// reportedBlocks returns the reported prefixes that may be blocks of pods, the most specific first. Single addresses come
// last, as they show no block.
func (f *Facts) reportedBlocks() []netip.Prefix {
	out := lo.FlatMap(f.Reports, func(r v1alpha1.NodeNetwork, _ int) []netip.Prefix {
		blocks := v1alpha1.Prefixes(slices.Concat(r.Status.PodCIDRs, r.Status.Routes))
		pods := lo.Map(addresses(r.Status.PodIPs), single)
		return append(lo.Filter(blocks, func(p netip.Prefix, _ int) bool { return p.Bits() >= shortestBlock }), pods...)
	})
	length := func(p netip.Prefix) int {
		if p.IsSingleIP() {
			return 0
		}
		return p.Bits()
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return length(b) - length(a) })
	return out
}

// previousPods returns the ranges by which peers know this cluster already, if there are pods in them.
func (f *Facts) previousPods() []netip.Prefix {
	known := lo.FlatMap(f.peerings(), func(p v1alpha1.Peering, _ int) []v1alpha1.CIDRMapping { return p.Spec.Local.Pods })
	return lo.FilterMap(known, func(m v1alpha1.CIDRMapping, _ int) (netip.Prefix, bool) {
		return m.Real.Prefix, slices.ContainsFunc(f.PodAddrs, m.Real.Contains)
	})
}

// nearPods returns estimated ranges around the pods while their real ranges are not known.
func (f *Facts) nearPods() []ipam.Usage {
	if f.PodsUnknown == nil {
		return nil
	}
	near := ipam.Estimate(lo.Map(f.PodAddrs, single), slices.Concat(f.ServiceCIDRs, f.NodeCIDRs).Prefixes())
	return usages("near pods of cluster "+f.Name+", whose range is not known yet", near...)
}
