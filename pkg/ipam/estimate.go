package ipam

import (
	"net/netip"
	"slices"

	"github.com/samber/lo"
	"go4.org/netipx"
)

// Where only the nodes' own ranges are known, the cluster's range has to be concluded from
// them: a node that joins later gets another part of it. The kube-controller-manager gives
// out the parts in order, from the start of the range. So a cluster's range begins where
// the lowest node's begins, or below. How far it goes cannot be seen.
//
// A range that is too large does little harm: a part of it that is free is not given to a
// peer. One that is too small leaves later pods unreachable. So it is rounded up to a
// length that people configure, as far as nothing else is in the way.

// usualLengths are the lengths that clusters' ranges usually have, from small to large.
func usualLengths(is4 bool) []int {
	if is4 {
		return []int{16, 14, 12, 10, 8}
	}
	// kube-controller-manager refuses more than 16 bits between the cluster's and
	// the nodes' lengths, and nodes have a /64 unless configured otherwise.
	return []int{56, 48}
}

// Estimate concludes the cluster's ranges from its nodes' ones. The result contains
// all of them, does not depend on their order, and overlaps nothing of avoid unless
// the nodes' ranges themselves do.
func Estimate(nodes, avoid []netip.Prefix) []netip.Prefix {
	var groups []netip.Prefix
	for _, p := range slices.SortedFunc(slices.Values(nodes), netip.Prefix.Compare) {
		// What joins may be near the group before, then.
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

// join returns the cover of two neighbours that belong together. They do where both are in
// one range of the smallest usual size, and where the cover is at most four times as large
// as one of them. A cluster with several separate ranges (GKE) must
// not be taken for one huge range.
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

// roundUp returns the usual size around p, or as much of it as overlaps nothing.
func roundUp(p netip.Prefix, avoid []netip.Prefix) netip.Prefix {
	for _, bits := range usualLengths(p.Addr().Is4()) {
		if bits <= p.Bits() {
			return Widen(p, bits, avoid)
		}
	}
	return p
}

// Widen returns the largest prefix around p, of the length bits at the most, that
// overlaps nothing of avoid; p itself where that does already.
func Widen(p netip.Prefix, bits int, avoid []netip.Prefix) netip.Prefix {
	for ; bits < p.Bits(); bits++ {
		w := netip.PrefixFrom(p.Addr(), bits).Masked()
		if !slices.ContainsFunc(avoid, w.Overlaps) {
			return w
		}
	}
	return p
}

// Cover is the smallest prefix around two of one family.
func Cover(a, b netip.Prefix) netip.Prefix {
	c := netip.PrefixFrom(a.Addr(), min(a.Bits(), b.Bits())).Masked()
	for c.Bits() > 0 && !c.Contains(b.Addr()) {
		c = netip.PrefixFrom(a.Addr(), c.Bits()-1).Masked()
	}
	return c
}

// Merge joins prefixes that together are exactly a larger one, and drops those
// inside of others, and those that are not valid.
func Merge(prefixes []netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p)
	}
	set, _ := b.IPSet() // the error is about prefixes that are not valid
	return set.Prefixes()
}
