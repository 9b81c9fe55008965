package discovery

import (
	"net/netip"
	"slices"
	"strings"
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
	slices.SortStableFunc(sorted, func(a, b Fact[netip.Prefix]) int { return a.Value.Compare(b.Value) })
	var out []Fact[netip.Prefix]
	for _, f := range sorted {
		if len(out) == 0 || !out[len(out)-1].Value.Overlaps(f.Value) {
			out = append(out, f)
		}
	}
	return out
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
