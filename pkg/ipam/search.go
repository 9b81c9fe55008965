package ipam

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
)

// order is the order in which one key tries the candidates: at each node of the
// binary tree of prefixes it says which half comes first.
type order struct{ a, b uint64 }

func orderOf(key string) order {
	sum := sha256.Sum256([]byte(key))
	return order{binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:16])}
}

// hash mixes the key with a node of the tree. It must never change: allocations
// of all users depend on it.
func (o order) hash(b block) uint64 {
	h := mix(o.a ^ b.n.hi)
	h = mix(h ^ b.n.lo)
	return mix(h ^ o.b ^ uint64(b.bits))
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable
// pseudorandom number generators, 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// search returns the first block of the length bits in o's order that is inside of
// one of the pools and overlaps none of the used ones.
func (o order) search(pools []netip.Prefix, used []block, is4 bool, bits int) (netip.Prefix, bool) {
	candidates := make([]block, 0, len(pools))
	for _, p := range pools {
		if p.Addr().Is4() == is4 && p.Bits() <= bits {
			candidates = append(candidates, blockOf(p))
		}
	}
	inside := make([]block, 0, len(used))
	for len(candidates) > 0 {
		i := o.pick(candidates, bits)
		pool := candidates[i]
		candidates = append(candidates[:i:i], candidates[i+1:]...)
		inside = inside[:0]
		for _, u := range used {
			if u.overlaps(pool) {
				inside = append(inside, u)
			}
		}
		if b, ok := o.descend(pool, inside, bits); ok {
			return b.prefix(is4), true
		}
	}
	return netip.Prefix{}, false
}

// pick chooses a pool, larger ones the more likely: each range of the length bits
// shall be the first choice of as many keys as any other.
func (o order) pick(pools []block, bits int) int {
	// Weights are relative to the smallest pool, and bounded so that they can be
	// added up: 2^40 and more to one is as good as always.
	smallest := 0
	for _, p := range pools {
		smallest = max(smallest, p.bits)
	}
	var total uint64
	for _, p := range pools {
		total += 1 << min(40, smallest-p.bits)
	}
	at := o.hash(block{bits: 255 - bits}) % total
	for i, p := range pools {
		w := uint64(1) << min(40, smallest-p.bits)
		if at < w {
			return i
		}
		at -= w
	}
	return len(pools) - 1
}

// descend looks for a free block of the length bits inside of at. used are those
// that overlap it, and get reordered. Each level looks at each used block once, so
// the cost is at most len(used) times the depth, and usually twice len(used).
func (o order) descend(at block, used []block, bits int) (block, bool) {
	for _, u := range used {
		if u.bits <= at.bits {
			return block{}, false
		}
	}
	if at.bits == bits {
		return at, len(used) == 0
	}
	zeros := 0
	for i, u := range used {
		if u.n.bit(at.bits) == 0 {
			used[i], used[zeros] = used[zeros], u
			zeros++
		}
	}
	lower, upper := block{at.n, at.bits + 1}, block{at.n.withBit(at.bits), at.bits + 1}
	usedLower, usedUpper := used[:zeros], used[zeros:]
	if o.hash(at)&1 == 1 {
		lower, upper = upper, lower
		usedLower, usedUpper = usedUpper, usedLower
	}
	if b, ok := o.descend(lower, usedLower, bits); ok {
		return b, true
	}
	return o.descend(upper, usedUpper, bits)
}
