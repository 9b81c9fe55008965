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

const (
	// shortestBlock is the length of the largest prefix that is taken for a block of
	// pods: a shorter one, such as 10.0.0.0/8, leads to much else.
	shortestBlock = 12
	// longestRange is that of the smallest range that is concluded. If something is so
	// near to the pods' addresses that less remains, the user has to say what is
	// whose.
	longestRange = 24
)

// ConcludePods concludes the ranges of the pods from what the node agents report,
// where no object of the cluster names them. It returns the facts with them: the same ones while
// agents have not reported, and an error if their reports do not tell.
//
// What agents report holds every pod: the ranges of their nodes, the routes to
// blocks of pods, and the addresses of pods outside of these. For each pod that
// runs, the narrowest of them counts; together they are rounded up to a usual
// length, as far as nothing else is in the way. Ranges that were concluded before
// are kept while there are pods in them.
func (f Facts) ConcludePods() (Facts, error) {
	if f.PodsUnknown == nil || len(f.agentNodes(true)) == 0 || len(f.Unreported()) > 0 {
		return f, nil
	}
	const doing = "conclude the ranges of the pods from what the node agents report"
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
	source := fmt.Sprintf("concluded from blocks and routes that %d node agents report, rounded up; --pod-cidr %s=RANGE overrules it", agents, f.Name)
	f.PodCIDRs = lo.Map(ranges, func(r netip.Prefix, _ int) Range { return Range{Value: r, Assumed: true, Source: source} })
	names := lo.Map(ranges, func(r netip.Prefix, _ int) string { return r.String() })
	f.PodsConcluded = fmt.Sprintf("the ranges of the pods of %s, %s, are concluded from what %d node agents report, as no object of the cluster names them; "+
		"give --pod-cidr %s=RANGE[,RANGE] if they are others", f.Name, strings.Join(names, ", "), agents, f.Name)
	f.PodsUnknown = nil
	return f, nil
}

// reportedBlocks are the prefixes that agents report and that may be blocks of pods. The
// one that tells most of a pod's block comes first: the longest. A single address tells of
// no block.
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

// previousPods are the ranges by which peers know this cluster already, and in which
// there are pods.
func (f *Facts) previousPods() []netip.Prefix {
	known := lo.FlatMap(f.peerings(), func(p v1alpha1.Peering, _ int) []v1alpha1.CIDRMapping { return p.Spec.Local.Pods })
	return lo.FilterMap(known, func(m v1alpha1.CIDRMapping, _ int) (netip.Prefix, bool) {
		return m.Real.Prefix, slices.ContainsFunc(f.PodAddrs, m.Real.Contains)
	})
}

// nearPods are what is around each pod while the ranges of the pods are not known.
func (f *Facts) nearPods() []ipam.Usage {
	if f.PodsUnknown == nil {
		return nil
	}
	near := ipam.Estimate(lo.Map(f.PodAddrs, single), slices.Concat(f.ServiceCIDRs, f.NodeCIDRs).Prefixes())
	return usages("near pods of cluster "+f.Name+", whose range is not known yet", near...)
}
