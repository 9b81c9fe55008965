package discovery

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
)

// parsePrefixes reads a list that is separated by commas or spaces. Host bits are
// dropped, as Kubernetes does; what is no prefix is left out.
func parsePrefixes(list string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' }) {
		if p, err := netip.ParsePrefix(strings.Trim(s, `"'[]`)); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

func parseAddrs(list []string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		if a, err := netip.ParseAddr(s); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// facts gives all prefixes one source.
func facts(prefixes []netip.Prefix, source string, assumed bool) []Fact[netip.Prefix] {
	out := make([]Fact[netip.Prefix], 0, len(prefixes))
	for _, p := range prefixes {
		out = append(out, Fact[netip.Prefix]{Value: p, Source: source, Assumed: assumed})
	}
	return out
}

// distinct sorts facts by their prefix, IPv4 first, and drops those that are inside
// of others.
func distinct(in []Fact[netip.Prefix]) []Fact[netip.Prefix] {
	sorted := slices.Clone(in)
	slices.SortStableFunc(sorted, func(a, b Fact[netip.Prefix]) int { return comparePrefixes(a.Value, b.Value) })
	var out []Fact[netip.Prefix]
	for _, f := range sorted {
		if len(out) == 0 || !out[len(out)-1].Value.Overlaps(f.Value) {
			out = append(out, f)
		}
	}
	return out
}

// comparePrefixes sorts by family and address, and the larger one of two before
// the one inside of it.
func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits())
}

func overlapsAny(p netip.Prefix, with []netip.Prefix) bool {
	return slices.ContainsFunc(with, p.Overlaps)
}

// contains says that inner is inside of outer.
func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// containAll says that each of inner is inside of one of outer.
func containAll(outer, inner []netip.Prefix) bool {
	for _, i := range inner {
		if !slices.ContainsFunc(outer, func(o netip.Prefix) bool { return contains(o, i) }) {
			return false
		}
	}
	return true
}

// cover is the smallest prefix around two of one family.
func cover(a, b netip.Prefix) netip.Prefix {
	for bits := min(a.Bits(), b.Bits()); bits > 0; bits-- {
		p := netip.PrefixFrom(a.Addr(), bits).Masked()
		if p.Contains(b.Addr()) {
			return p
		}
	}
	return netip.PrefixFrom(a.Addr(), 0).Masked()
}

// merge joins prefixes that together are exactly a larger one, and drops those
// inside of others.
func merge(prefixes []netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p)
	}
	set, err := b.IPSet()
	if err != nil {
		return prefixes
	}
	return set.Prefixes()
}

// around returns the prefix of the length around an address.
func around(a netip.Addr, bits4, bits6 int) netip.Prefix {
	bits := bits4
	if !a.Is4() {
		bits = bits6
	}
	p, _ := a.Prefix(bits)
	return p
}

// values returns the different prefixes of facts, for use as what to avoid.
func valuesOf(facts ...[]Fact[netip.Prefix]) []netip.Prefix {
	var out []netip.Prefix
	for _, fs := range facts {
		out = append(out, Values(fs)...)
	}
	return out
}
