package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
)

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
	if f.Network.PodsUnknown == nil || len(f.Network.agentNodes(true)) == 0 || len(f.Unreported()) > 0 {
		return f, nil
	}
	const doing = "infer the ranges of the pods from the node agents' reports"
	refused := &failure.Error{Kind: failure.Ranges, Doing: doing, Err: f.Network.PodsUnknown}
	previous, blocks := f.previousPods(), reportedBlocks(f.Reports)
	held := slices.Clone(previous)
	for _, a := range f.Network.PodAddrs {
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
	avoid := append(slices.Concat(f.Network.ServiceCIDRs, f.Network.NodeCIDRs).Prefixes(), remote...)
	if cn := f.ledger(); cn != nil {
		avoid = append(avoid, cn.Spec.InternalCIDR.Prefix)
	}
	ranges := ipam.Estimate(held, avoid)
	if len(ranges) == 0 || slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() > longestRange }) {
		return f, refused
	}
	agents := len(f.Network.agentNodes(true))
	source := fmt.Sprintf("inferred from blocks and routes that %d node agents report, rounded up; --pod-cidr %s=RANGE overrides it",
		agents, f.Network.Name)
	f.Network.PodCIDRs = lo.Map(ranges, func(r netip.Prefix, _ int) Range { return Range{Value: r, Assumed: true, Source: source} })
	names := lo.Map(ranges, func(r netip.Prefix, _ int) string { return r.String() })
	f.PodsInferred = fmt.Sprintf("the ranges of the pods of %s, %s, are inferred from the reports of %d node agents, "+
		"as no object of the cluster names them; give --pod-cidr %[1]s=RANGE[,RANGE] if they are wrong",
		f.Network.Name, strings.Join(names, ", "), agents)
	f.Network.PodsUnknown = nil
	return f, nil
}

// reportedBlocks returns the reported prefixes that may be blocks of pods, the most specific first. Single addresses come
// last, as they show no block.
func reportedBlocks(reports []v1alpha1.NodeNetwork) []netip.Prefix {
	out := lo.FlatMap(reports, func(r v1alpha1.NodeNetwork, _ int) []netip.Prefix {
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
		return m.Real.Prefix, slices.ContainsFunc(f.Network.PodAddrs, m.Real.Contains)
	})
}
