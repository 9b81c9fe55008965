package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/samber/lo"
)

// Mapping translates the addresses of one prefix 1:1 to those of another one of the same length: it replaces the network
// bits and keeps the host bits.
type Mapping struct {
	// Real is the prefix in its own cluster.
	Real netip.Prefix `json:"real"`
	// Mapped is the prefix by which the other cluster knows it.
	Mapped netip.Prefix `json:"mapped"`
}

// Validate returns an error unless both prefixes are valid, without host bits, and of one family and length. The error
// matches ErrInvalid.
func (m Mapping) Validate() error {
	return cmp.Or(checkPrefix(m.Real), checkPrefix(m.Mapped), sameShape(m.Real, m.Mapped))
}

// Translate returns the mapped address of a real one. It reports false for an address outside Real, and for an invalid
// mapping.
func (m Mapping) Translate(addr netip.Addr) (netip.Addr, bool) {
	from, to := m.Real, m.Mapped
	// Contains is false for addresses with a zone and for the other family, including IPv4-mapped IPv6 addresses.
	if !from.Contains(addr) || !to.IsValid() || from.Bits() != to.Bits() || from.Addr().BitLen() != to.Addr().BitLen() {
		return netip.Addr{}, false
	}
	network, out := to.Addr().AsSlice(), addr.AsSlice()
	for i, mask := range net.CIDRMask(to.Bits(), addr.BitLen()) {
		out[i] = network[i]&mask | out[i]&^mask
	}
	return netip.AddrFromSlice(out)
}

// Reverse returns the real address of a mapped one. It reports false for an address outside Mapped, and for an invalid
// mapping.
func (m Mapping) Reverse(addr netip.Addr) (netip.Addr, bool) {
	return Mapping{Real: m.Mapped, Mapped: m.Real}.Translate(addr)
}

// String returns "real" or "real -> mapped".
func (m Mapping) String() string {
	if m.Real == m.Mapped {
		return m.Real.String()
	}
	return m.Real.String() + " -> " + m.Mapped.String()
}

// Mappings are the mappings of several ranges of one cluster.
type Mappings []Mapping

// Translate returns the mapped address of a real one, or reports false if no real prefix contains it.
func (ms Mappings) Translate(addr netip.Addr) (netip.Addr, bool) {
	return ms.first(addr, Mapping.Translate)
}

// Reverse returns the real address of a mapped one, or reports false if no mapped prefix contains it.
func (ms Mappings) Reverse(addr netip.Addr) (netip.Addr, bool) {
	return ms.first(addr, Mapping.Reverse)
}

func (ms Mappings) first(addr netip.Addr, by func(Mapping, netip.Addr) (netip.Addr, bool)) (netip.Addr, bool) {
	for _, m := range ms {
		if a, ok := by(m, addr); ok {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// Mapped returns the mapped prefixes, in the order of ms.
func (ms Mappings) Mapped() []netip.Prefix {
	return lo.Map(ms, func(m Mapping, _ int) netip.Prefix { return m.Mapped })
}

// checkPrefix returns why p cannot be used as a range.
func checkPrefix(p netip.Prefix) error {
	switch {
	case !p.IsValid():
		return errorf(ErrInvalid, "the given range is not a prefix")
	case p != p.Masked():
		return errorf(ErrInvalid, "%s has host bits; did you mean %s?", p, p.Masked())
	case p.Addr().Is4In6():
		return errorf(ErrInvalid, "%s is an IPv4 range written as IPv6", p)
	}
	return nil
}

// sameShape returns why to cannot be the mapped prefix of from.
func sameShape(from, to netip.Prefix) error {
	if from.Addr().Is4() != to.Addr().Is4() {
		return errorf(ErrInvalid, "%s and %s are of different families", to, from)
	}
	if from.Bits() != to.Bits() {
		return errorf(ErrInvalid, "%s and %s have different lengths: translation is 1:1, so both must be a /%d", to, from, from.Bits())
	}
	return nil
}

// Translation holds the addresses by which a peer knows a cluster: its pods, its nodes by their overlay addresses, and
// single hosts outside.
type Translation struct {
	Pods  Mappings `json:"pods"`
	Nodes Mapping  `json:"nodes"`
	Hosts Mappings `json:"hosts,omitempty"`
}

func (t Translation) all() Mappings {
	return slices.Concat(t.Pods, Mappings{t.Nodes}, t.Hosts)
}

// Translate returns the address by which the peer knows an address of the cluster. It reports false for one that the peer
// does not know.
func (t Translation) Translate(addr netip.Addr) (netip.Addr, bool) {
	return t.all().Translate(addr)
}

// Reverse returns the real address behind one by which the peer knows something in the cluster.
func (t Translation) Reverse(addr netip.Addr) (netip.Addr, bool) {
	return t.all().Reverse(addr)
}

// Errors about a range match one of these.
var (
	// ErrInvalid means that a prefix is not valid for its purpose.
	ErrInvalid = errors.New("invalid range")
	// ErrTooLarge means that a peer has more addresses than it may.
	ErrTooLarge = errors.New("too many addresses")
	// ErrConflict means that a wish cannot be met because the range is in use.
	ErrConflict = errors.New("range in use")
	// ErrExhausted means that the pools have no free range of a length.
	ErrExhausted = errors.New("no free range")
)

// rangeError is an error with a text for the user that matches one of the errors above.
type rangeError struct {
	kind error
	text string
}

func (e *rangeError) Error() string { return e.text }

func (e *rangeError) Unwrap() error { return e.kind }

func errorf(kind error, format string, args ...any) error {
	return &rangeError{kind, fmt.Sprintf(format, args...)}
}
