package nat

import (
	"fmt"
	"net/netip"
	"slices"
)

// Our tables are about IPv4. IPv6 is only blocked (see blockIPv6 and Gateway.tableIPv6).

const (
	// Offsets in the IPv4 header, and the length of an address.
	fragmentAt, checksumAt, sourceAt, destinationAt, addressLength = 6, 10, 12, 16, 4

	// icmpHeader is how far the packet that caused an ICMP error is inside of it.
	icmpHeader = 8

	// Types of ICMP.
	echoReply, echoRequest, timestampRequest = 0, 8, 13
)

// icmpErrors are the types that carry the packet that caused them (RFC 792):
// unreachable, time exceeded, parameter problem.
func icmpErrors() []byte { return []byte{3, 11, 12} }

// icmpLocal are types that carry a packet as well, and that nobody forwards. Redirects
// are for the neighbours of a router (RFC 1122, section 3.2.2.2). Source quenches are
// deprecated (RFC 6633).
func icmpLocal() []byte { return []byte{4, 5} }

// icmp6Input are the types of ICMPv6 that a gateway takes (RFC 4443, RFC 2710, RFC 4861).
// With the errors the tunnel finds its MTU. The others are a neighbour's question and answer,
// and the question for members of groups. Unless that is answered, a bridge may pass on no
// questions of neighbours.
func icmp6Input() []byte { return []byte{1, 2, 3, 4, 130, 135, 136} }

// onlyIPv4 refuses other addresses. The kernel would refuse the whole table without
// saying why.
func onlyIPv4(addrs []netip.Addr, prefixes ...[]netip.Prefix) error {
	for _, p := range slices.Concat(prefixes...) {
		addrs = append(addrs, p.Addr())
	}
	for _, a := range addrs {
		if !a.Is4() {
			return fmt.Errorf("nftables table %q: %s is not an IPv4 address", TableName, a)
		}
	}
	return nil
}
