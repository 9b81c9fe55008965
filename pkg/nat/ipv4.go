package nat

import (
	"net/netip"
	"slices"
)

// Our tables are about IPv4. IPv6 is only blocked (see blockIPv6).

const (
	// Offsets in the IPv4 header, and the length of an address.
	checksumAt, sourceAt, destinationAt, addressLength = 10, 12, 16, 4

	// Types of ICMP.
	echoReply, echoRequest = 0, 8
)

// icmpErrors are the types that carry the packet that caused them (RFC 792):
// unreachable, time exceeded, parameter problem.
func icmpErrors() []byte { return []byte{3, 11, 12} }

// icmpLocal are types that carry a packet as well, and that nobody forwards. Redirects
// are for the neighbours of a router (RFC 1122, section 3.2.2.2). Source quenches are
// deprecated (RFC 6633).
func icmpLocal() []byte { return []byte{4, 5} }

// notIPv4 returns an address, or that of a prefix, which is not of IPv4, if there is one.
// The kernel would refuse the whole table without saying why.
func notIPv4(addrs []netip.Addr, prefixes ...[]netip.Prefix) (netip.Addr, bool) {
	for _, p := range slices.Concat(prefixes...) {
		addrs = append(slices.Clip(addrs), p.Addr())
	}
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return !a.Is4() })
	if i < 0 {
		return netip.Addr{}, false
	}
	return addrs[i], true
}

// masks are the network mask of a prefix length and its complement.
func masks(bits int) (network, host []byte) {
	network, host = make([]byte, addressLength), make([]byte, addressLength)
	for i := range addressLength * 8 {
		bit := byte(0x80) >> (i % 8)
		if i < bits {
			network[i/8] |= bit
		} else {
			host[i/8] |= bit
		}
	}
	return network, host
}
