package nat

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// family is what differs between IPv4 and IPv6 headers.
type family struct {
	nft nftables.TableFamily
	// saddr and daddr are offsets in the network header, addrLen the length of
	// an address, in bytes.
	saddr, daddr, addrLen uint32
	// checksum is the offset of the header's checksum; IPv6 has none.
	checksum    uint32
	hasChecksum bool
	setType     nftables.SetDatatype
	// icmp is the protocol's number, the others are types of it.
	icmp                   byte
	echoRequest, echoReply byte
	// icmpErrors are the types that carry the packet that caused them (RFC 792,
	// RFC 4443).
	icmpErrors []byte
	// icmpLocal are types that carry a packet as well, and that nobody forwards.
	// Redirects are for the neighbours of a router (RFC 1122, section 3.2.2.2; RFC 4861,
	// section 8.1). Source quenches are deprecated (RFC 6633).
	icmpLocal []byte
	// neighbors are the types by which neighbours are found. IPv4 has ARP for this, which
	// these tables do not see.
	neighbors []byte
}

func ipv4() family {
	return family{
		nft: nftables.TableFamilyIPv4, saddr: 12, daddr: 16, addrLen: 4,
		checksum: 10, hasChecksum: true, setType: nftables.TypeIPAddr,
		// Unreachable, time exceeded, parameter problem.
		icmp: unix.IPPROTO_ICMP, echoRequest: 8, echoReply: 0, icmpErrors: []byte{3, 11, 12}, icmpLocal: []byte{4, 5},
	}
}

func ipv6() family {
	return family{
		nft: nftables.TableFamilyIPv6, saddr: 8, daddr: 24, addrLen: 16, setType: nftables.TypeIP6Addr,
		// Unreachable, too big, time exceeded, parameter problem.
		icmp: unix.IPPROTO_ICMPV6, echoRequest: 128, echoReply: 129, icmpErrors: []byte{1, 2, 3, 4}, icmpLocal: []byte{137},
		// Multicast listener query, router advertisement, neighbour solicitation and
		// advertisement.
		neighbors: []byte{130, 134, 135, 136},
	}
}

// familyOf returns the family of an address, and IPv4 for an invalid one.
func familyOf(a netip.Addr) family {
	if a.Is6() {
		return ipv6()
	}
	return ipv4()
}

// opposite returns the other family.
func (f family) opposite() family {
	if f.nft == nftables.TableFamilyIPv6 {
		return ipv4()
	}
	return ipv6()
}

func (f family) is(a netip.Addr) bool {
	return a.BitLen() == int(f.addrLen)*8
}

// other returns an address, or that of a prefix, of the other family, if there is one.
// The kernel would refuse the whole table without saying why.
func (f family) other(addrs []netip.Addr, prefixes ...[]netip.Prefix) (netip.Addr, bool) {
	for _, p := range slices.Concat(prefixes...) {
		addrs = append(slices.Clip(addrs), p.Addr())
	}
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return !f.is(a) })
	if i < 0 {
		return netip.Addr{}, false
	}
	return addrs[i], true
}

// mask is the network mask of a prefix length, host its complement.
func (f family) mask(bits int) (mask, host []byte) {
	mask, host = make([]byte, f.addrLen), make([]byte, f.addrLen)
	for i := range int(f.addrLen) * 8 {
		bit := byte(0x80) >> (i % 8)
		if i < bits {
			mask[i/8] |= bit
		} else {
			host[i/8] |= bit
		}
	}
	return mask, host
}
