package ipam

import (
	"encoding/binary"
	"net/netip"
)

// number is an address as 128 bits, left-aligned: bit 0 is the first bit of the
// address in both families. What family it is of is known by who holds it.
type number struct{ hi, lo uint64 }

func numberOf(a netip.Addr) number {
	if a.Is4() {
		b := a.As4()
		return number{hi: uint64(binary.BigEndian.Uint32(b[:])) << 32}
	}
	b := a.As16()
	return number{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// addr returns n as an IPv6 address.
func (n number) addr() netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	return netip.AddrFrom16(b)
}

// addr4 returns n as an IPv4 address.
func (n number) addr4() netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(n.hi>>32))
	return netip.AddrFrom4(b)
}

// bit returns the i-th bit, the first one being 0.
func (n number) bit(i int) uint64 {
	if i < 64 {
		return n.hi >> (63 - i) & 1
	}
	return n.lo >> (127 - i) & 1
}

// withBit returns n with the i-th bit set.
func (n number) withBit(i int) number {
	if i < 64 {
		n.hi |= 1 << (63 - i)
	} else {
		n.lo |= 1 << (127 - i)
	}
	return n
}

// masked returns the first bits of n, the others being 0.
func (n number) masked(bits int) number {
	m := maskOf(bits)
	return number{n.hi & m.hi, n.lo & m.lo}
}

func maskOf(bits int) number {
	// Go's shifts give 0 for a count of the width and more.
	if bits <= 64 {
		return number{hi: ^uint64(0) << (64 - bits)}
	}
	return number{hi: ^uint64(0), lo: ^uint64(0) << (128 - bits)}
}

// block is a prefix of a known family.
type block struct {
	n    number
	bits int
}

func blockOf(p netip.Prefix) block { return block{numberOf(p.Addr()), p.Bits()} }

func (b block) prefix(is4 bool) netip.Prefix {
	if is4 {
		return netip.PrefixFrom(b.n.addr4(), b.bits)
	}
	return netip.PrefixFrom(b.n.addr(), b.bits)
}

// overlaps says that both blocks have an address in common.
func (b block) overlaps(o block) bool {
	bits := min(b.bits, o.bits)
	return b.n.masked(bits) == o.n.masked(bits)
}
