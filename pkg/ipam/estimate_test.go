package ipam

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liqonet/liqonet/test/kit"
)

func TestEstimate(t *testing.T) {
	for _, c := range []struct{ name, nodes, avoid, want string }{
		{"two of a /16", "10.244.0.0/24 10.244.1.0/24", "10.96.0.0/12 172.18.0.0/24", "10.244.0.0/16"},
		{"beyond a /16", "10.244.255.0/24 10.245.0.0/24", "", "10.244.0.0/14"},
		{"GKE's default", "10.4.0.0/24 10.5.7.0/24 10.6.0.0/24", "", "10.4.0.0/14"},
		{"separate ranges", "10.4.0.0/24 10.200.0.0/26", "", "10.4.0.0/16 10.200.0.0/16"},
		{"services within the /16", "10.0.0.0/24 10.0.1.0/24", "10.0.16.0/20", "10.0.0.0/20"},
		{"services between the nodes'", "10.0.0.0/24 10.0.200.0/24", "10.0.100.0/24", "10.0.0.0/18 10.0.128.0/17"},
		{"inside a range to avoid", "10.0.0.0/24", "10.0.0.0/16", "10.0.0.0/24"},
		{"large parts", "10.0.0.0/12", "", "10.0.0.0/12"},
		{"a /15", "10.8.0.0/15", "", "10.8.0.0/14"},
		{"IPv6", "fd00:10:244::/64 fd00:10:244:1::/64", "", "fd00:10:244::/56"},
		{"dual stack", "10.244.0.0/24 fd00:10:244::/64 10.244.1.0/24 fd00:10:244:1::/64", "", "10.244.0.0/16 fd00:10:244::/56"},
		{"outside of private ranges", "100.64.7.0/24", "", "100.64.0.0/16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Estimate(parsePrefixes(c.nodes), parsePrefixes(c.avoid))
			var parts []string
			for _, p := range got {
				parts = append(parts, p.String())
			}
			kit.Check(t, "Join", strings.Join(parts, " "), c.want)
		})
	}
}

// TestEstimateProperties checks that the result contains the nodes' ranges, overlaps avoid only if the nodes' ranges do,
// and does not depend on the order.
func TestEstimateProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	random := func(bits int) netip.Prefix {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], r.Uint32())
		b[0], b[1] = 10, b[1]%8
		return netip.PrefixFrom(netip.AddrFrom4(b), bits).Masked()
	}
	for range 3000 {
		var nodes, avoid []netip.Prefix
		for range 1 + r.IntN(12) {
			nodes = append(nodes, random(20+r.IntN(7)))
		}
		for range r.IntN(6) {
			if p := random(12 + r.IntN(17)); !overlapsAny(p, nodes) {
				avoid = append(avoid, p)
			}
		}
		got := Estimate(nodes, avoid)
		kit.FatalIf(t, !containAll(got, nodes), "%v does not contain %v", got, nodes)
		for i, p := range got {
			kit.FatalIf(t, overlapsAny(p, avoid) || overlapsAny(p, got[:i]), "nodes %v, avoid %v: got %v", nodes, avoid, got)
		}
		r.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		kit.MustBe(t, "depends on the order", Estimate(nodes, avoid), got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
	}
}

func TestEstimateOfManyNodes(t *testing.T) {
	var nodes []netip.Prefix
	for i := range 5000 {
		nodes = append(nodes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
	}
	slices.Reverse(nodes)
	start := time.Now()
	got := Estimate(nodes, parsePrefixes("172.16.0.0/16"))
	kit.ErrorIf(t, !containAll(got, nodes[:100]) || time.Since(start) > time.Second, "got %v after %v", got, time.Since(start))
}

func overlapsAny(p netip.Prefix, with []netip.Prefix) bool {
	return slices.ContainsFunc(with, p.Overlaps)
}

func containAll(outer, inner []netip.Prefix) bool {
	return !slices.ContainsFunc(inner, func(i netip.Prefix) bool {
		return !slices.ContainsFunc(outer, func(o netip.Prefix) bool { return o.Bits() <= i.Bits() && o.Contains(i.Addr()) })
	})
}

func parsePrefixes(list string) []netip.Prefix { return prefixes(strings.Fields(list)...) }
