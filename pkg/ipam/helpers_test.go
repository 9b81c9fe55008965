package ipam_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"go4.org/netipx"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/kit"
)

var pfx = netip.MustParsePrefix

// randomAddr4 returns any IPv4 address.
func randomAddr4(r *rand.Rand) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], r.Uint32())
	return netip.AddrFrom4(b)
}

func randomAddr6(r *rand.Rand) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], r.Uint64())
	binary.BigEndian.PutUint64(b[8:], r.Uint64())
	b[0] = 0xfd // never IPv4-mapped
	return netip.AddrFrom16(b)
}

// randomUse returns a prefix that is usually inside the default pools.
func randomUse(r *rand.Rand, minBits, maxBits int) netip.Prefix {
	a := randomAddr4(r).As4()
	switch r.IntN(8) {
	case 0:
		a[0], a[1] = 172, 16+a[1]%16
	case 1:
		a[0], a[1] = 192, 168
	case 2:
	default:
		a[0] = 10
	}
	return netip.PrefixFrom(netip.AddrFrom4(a), minBits+r.IntN(maxBits-minBits+1)).Masked()
}

func randomUses(r *rand.Rand, n, minBits, maxBits int) []ipam.Usage {
	out := make([]ipam.Usage, n)
	for i := range out {
		out[i] = ipam.Usage{Prefix: randomUse(r, minBits, maxBits), Owner: fmt.Sprintf("owner %d", i)}
	}
	return out
}

// uses returns the ranges of a peer, as used by it.
func uses(r ipam.PeerRanges, name string) []ipam.Usage {
	var out []ipam.Usage
	for _, p := range append(r.Mappings().Mapped(), r.External) {
		out = append(out, ipam.Usage{Prefix: p, Owner: name})
	}
	return out
}

// usedBut returns uses of all of the pools except some ranges.
func usedBut(cidrs ...string) []ipam.Usage {
	var b netipx.IPSetBuilder
	for _, p := range ipam.DefaultPools() {
		b.AddPrefix(p)
	}
	for _, c := range cidrs {
		b.RemovePrefix(pfx(c))
	}
	set, err := b.IPSet()
	if err != nil {
		panic(err)
	}
	var out []ipam.Usage
	for _, p := range set.Prefixes() {
		out = append(out, ipam.Usage{Prefix: p, Owner: "cluster a"})
	}
	return out
}

// noOverlap fails the test if an allocation overlaps another one, a range in use, or a reserved one.
func noOverlap(t *testing.T, used []ipam.Usage, got []netip.Prefix) {
	t.Helper()
	for i, p := range got {
		for _, u := range append(ipam.Reserved(), used...) {
			kit.FatalIf(t, p.Overlaps(u.Prefix), "%s overlaps %s", p, u)
		}
		for _, q := range got[:i] {
			kit.FatalIf(t, p.Overlaps(q), "%s overlaps %s, which was allocated as well", p, q)
		}
	}
}
