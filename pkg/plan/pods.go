package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
)

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
	avoid := slices.Concat(f.ServiceCIDRs, f.NodeCIDRs).Prefixes()
	for _, p := range f.peerings() {
		avoid = append(avoid, p.RemoteRanges()...)
	}
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
func (f *Facts) reportedBlocks() (out []netip.Prefix) {
	for _, r := range f.Reports {
		for _, p := range slices.Concat(r.Status.PodCIDRs, r.Status.Routes) {
			if p.Bits() >= shortestBlock {
				out = append(out, p.Prefix)
			}
		}
		for _, ip := range r.Status.PodIPs {
			out = append(out, netip.PrefixFrom(ip.Addr, ip.BitLen()))
		}
	}
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
func (f *Facts) previousPods() (out []netip.Prefix) {
	for _, p := range f.peerings() {
		for _, m := range p.Spec.Local.Pods {
			if slices.ContainsFunc(f.PodAddrs, m.Real.Contains) {
				out = append(out, m.Real.Prefix)
			}
		}
	}
	return out
}

// nearPods are what is around each pod while the ranges of the pods are not known.
func (f *Facts) nearPods() []ipam.Usage {
	if f.PodsUnknown == nil {
		return nil
	}
	around := lo.Map(f.PodAddrs, func(a netip.Addr, _ int) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) })
	near := ipam.Estimate(around, slices.Concat(f.ServiceCIDRs, f.NodeCIDRs).Prefixes())
	return usages("near pods of cluster "+f.Name+", whose range is not known yet", near...)
}
