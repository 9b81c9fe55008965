package ipam

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// Mapping translates the addresses of one prefix 1:1 into those of another one of
// the same length: the bits of the prefix are exchanged, the host bits are kept.
type Mapping struct {
	// Real is the prefix inside the cluster that it belongs to.
	Real netip.Prefix `json:"real"`
	// Mapped is the prefix by which the other cluster knows it.
	Mapped netip.Prefix `json:"mapped"`
}

// Validate says why m is not a bijection: both prefixes have to be valid, without
// host bits, of one family and of one length. The error is an InvalidError.
func (m Mapping) Validate() error {
	if err := checkPrefix(m.Real); err != nil {
		return err
	}
	if err := checkPrefix(m.Mapped); err != nil {
		return err
	}
	return sameShape(m.Real, m.Mapped)
}

// Identity says that both prefixes are the same one: nothing is translated.
func (m Mapping) Identity() bool { return m.Real == m.Mapped }

// Translate turns a real address into the mapped one. It reports false for an
// address outside of Real, and for a mapping that is not valid.
func (m Mapping) Translate(addr netip.Addr) (netip.Addr, bool) {
	return translate(m.Real, m.Mapped, addr)
}

// Reverse turns a mapped address into the real one. It reports false for an
// address outside of Mapped, and for a mapping that is not valid.
func (m Mapping) Reverse(addr netip.Addr) (netip.Addr, bool) {
	return translate(m.Mapped, m.Real, addr)
}

// String returns "real" or "real -> mapped".
func (m Mapping) String() string {
	if m.Identity() {
		return m.Real.String()
	}
	return m.Real.String() + " -> " + m.Mapped.String()
}

// Mappings are the mappings of several ranges of one cluster.
type Mappings []Mapping

// Validate says why ms is not a bijection: each mapping has to be one, and neither
// two real nor two mapped prefixes may overlap. The error is an InvalidError.
func (ms Mappings) Validate() error {
	for i, m := range ms {
		if err := m.Validate(); err != nil {
			return err
		}
		for _, o := range ms[:i] {
			if m.Real.Overlaps(o.Real) {
				return &InvalidError{Prefix: m.Real, Reason: fmt.Sprintf("overlaps %s, which is mapped as well", o.Real)}
			}
			if m.Mapped.Overlaps(o.Mapped) {
				return &InvalidError{Prefix: m.Mapped, Reason: fmt.Sprintf("overlaps %s, to which another range is mapped", o.Mapped)}
			}
		}
	}
	return nil
}

// Translate turns a real address into the mapped one, false if none of the real
// prefixes has it.
func (ms Mappings) Translate(addr netip.Addr) (netip.Addr, bool) {
	for _, m := range ms {
		if a, ok := m.Translate(addr); ok {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// Reverse turns a mapped address into the real one, false if none of the mapped
// prefixes has it.
func (ms Mappings) Reverse(addr netip.Addr) (netip.Addr, bool) {
	for _, m := range ms {
		if a, ok := m.Reverse(addr); ok {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// Mapped returns the mapped prefixes, in the order of ms.
func (ms Mappings) Mapped() []netip.Prefix {
	out := make([]netip.Prefix, 0, len(ms))
	for _, m := range ms {
		out = append(out, m.Mapped)
	}
	return out
}

func translate(from, to netip.Prefix, addr netip.Addr) (netip.Addr, bool) {
	// Contains is false for addresses with a zone and for the other family,
	// IPv4-mapped IPv6 addresses included.
	if !from.Contains(addr) || !to.IsValid() || from.Bits() != to.Bits() || from.Addr().BitLen() != to.Addr().BitLen() {
		return netip.Addr{}, false
	}
	return exchange(to, addr), true
}

// exchange returns addr with its first bits replaced by those of prefix. Both
// have to be of one family.
func exchange(prefix netip.Prefix, addr netip.Addr) netip.Addr {
	if addr.Is4() {
		p, a := prefix.Addr().As4(), addr.As4()
		mask := ^uint32(0) << (32 - prefix.Bits()) // a shift by 32 gives 0
		v := binary.BigEndian.Uint32(p[:])&mask | binary.BigEndian.Uint32(a[:])&^mask
		binary.BigEndian.PutUint32(a[:], v)
		return netip.AddrFrom4(a)
	}
	p, a := numberOf(prefix.Addr()), numberOf(addr)
	mask := maskOf(prefix.Bits())
	return number{p.hi&mask.hi | a.hi&^mask.hi, p.lo&mask.lo | a.lo&^mask.lo}.addr()
}

// checkPrefix says why p cannot be used as a range.
func checkPrefix(p netip.Prefix) error {
	if !p.IsValid() {
		return &InvalidError{Prefix: p, Reason: "is not a prefix"}
	}
	if p != p.Masked() {
		return &InvalidError{Prefix: p, Reason: fmt.Sprintf("has host bits; did you mean %s?", p.Masked())}
	}
	if p.Addr().Is4In6() {
		return &InvalidError{Prefix: p, Reason: "is an IPv4 range written as IPv6"}
	}
	return nil
}

// sameShape says why to cannot be the mapped prefix of from.
func sameShape(from, to netip.Prefix) error {
	if from.Addr().Is4() != to.Addr().Is4() {
		return &InvalidError{Prefix: to, Reason: fmt.Sprintf("is not of the family of %s", from)}
	}
	if from.Bits() != to.Bits() {
		return &InvalidError{Prefix: to, Reason: fmt.Sprintf("is not as long as %s: translation is 1:1, so both have to be a /%d", from, from.Bits())}
	}
	return nil
}

// Translation is by which addresses a peer knows a cluster: its pods, its nodes by
// their overlay addresses, and single hosts outside.
type Translation struct {
	Pods  Mappings `json:"pods"`
	Nodes Mapping  `json:"nodes"`
	Hosts Mappings `json:"hosts,omitempty"`
}

func (t Translation) all() Mappings {
	return slices.Concat(t.Pods, Mappings{t.Nodes}, t.Hosts)
}

// Translate turns an address of the cluster into the one by which the peer knows
// it. It reports false for what the peer does not know.
func (t Translation) Translate(addr netip.Addr) (netip.Addr, bool) {
	return t.all().Translate(addr)
}

// Reverse turns an address by which the peer knows something of the cluster into
// the real one.
func (t Translation) Reverse(addr netip.Addr) (netip.Addr, bool) {
	return t.all().Reverse(addr)
}
