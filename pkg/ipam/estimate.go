package ipam

import (
	"net/netip"
	"slices"

	"github.com/samber/lo"
	"go4.org/netipx"
)

// If only the nodes' own ranges are known, the cluster's range must be inferred from them, as nodes that join later get
// other parts of it. The kube-controller-manager assigns the parts in order, from the start of the range. So a cluster's
// range begins at the lowest node's, or below it. Where it ends is unknown.
//
// A range that is too large does little harm: its free part is not allocated to a peer. One that is too small leaves
// later pods unreachable. So the range is rounded up to a usual length, unless that conflicts with something else.

// usualLengths returns the usual lengths of clusters' ranges, from small to large ranges.
func usualLengths(is4 bool) []int {
	if is4 {
		return []int{16, 14, 12, 10, 8}
	}
	// kube-controller-manager refuses more than 16 bits between the cluster's and the nodes' lengths, and nodes have a
	// /64 unless configured otherwise.
	return []int{56, 48}
}

// Estimate infers the cluster's ranges from its nodes' ranges. The result contains all of them, does not depend on their
// order, and overlaps avoid only if the nodes' ranges themselves do.
func Estimate(nodes, avoid []netip.Prefix) []netip.Prefix {
	var groups []netip.Prefix
	for _, p := range slices.SortedFunc(slices.Values(nodes), netip.Prefix.Compare) {
		// The joined range may be close to the previous group in turn.
		for n := len(groups); n > 0; n-- {
			c, ok := join(groups[n-1], p, avoid)
			if !ok {
				break
			}
			groups, p = groups[:n-1], c
		}
		groups = append(groups, p)
	}
	return Merge(lo.Map(groups, func(g netip.Prefix, _ int) netip.Prefix { return roundUp(g, avoid) }))
}

// join returns the cover of two neighbouring ranges that belong together. They do if both are in one range of the smallest
// usual size, or if the cover is at most four times as large as one of them. A cluster with several separate ranges (GKE)
// must not look like one huge range.
func join(a, b netip.Prefix, avoid []netip.Prefix) (netip.Prefix, bool) {
	if a.Addr().Is4() != b.Addr().Is4() {
		return netip.Prefix{}, false
	}
	c := Cover(a, b)
	if c == a {
		return c, true
	}
	smallest := usualLengths(a.Addr().Is4())[0]
	return c, min(a.Bits(), b.Bits(), smallest)-c.Bits() <= 2 && !slices.ContainsFunc(avoid, c.Overlaps)
}

// roundUp returns the range of a usual size around p, or as much of it as has no overlaps.
func roundUp(p netip.Prefix, avoid []netip.Prefix) netip.Prefix {
	for _, bits := range usualLengths(p.Addr().Is4()) {
		if bits <= p.Bits() {
			return Widen(p, bits, avoid)
		}
	}
	return p
}

// Widen returns the largest prefix around p, no shorter than bits, that does not overlap avoid. If there is none, it
// returns p.
func Widen(p netip.Prefix, bits int, avoid []netip.Prefix) netip.Prefix {
	for ; bits < p.Bits(); bits++ {
		w := netip.PrefixFrom(p.Addr(), bits).Masked()
		if !slices.ContainsFunc(avoid, w.Overlaps) {
			return w
		}
	}
	return p
}

// Cover returns the smallest prefix that contains two prefixes of one family.
func Cover(a, b netip.Prefix) netip.Prefix {
	c := netip.PrefixFrom(a.Addr(), min(a.Bits(), b.Bits())).Masked()
	for c.Bits() > 0 && !c.Contains(b.Addr()) {
		c = netip.PrefixFrom(a.Addr(), c.Bits()-1).Masked()
	}
	return c
}

// Merge joins prefixes that together form a larger one, and drops invalid ones and those inside others.
func Merge(prefixes []netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p)
	}
	set, _ := b.IPSet() // the error is about prefixes that are not valid
	return set.Prefixes()
}
