package nat

import (
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// family is what differs between IPv4 and IPv6 headers.
type family struct {
	nft nftables.TableFamily
	// saddr and daddr are offsets in the network header, addrLen the length of
	// an address, in bytes.
	saddr, daddr, addrLen uint32
	// fragment is the offset of the field with the fragment's offset, 2 bytes.
	fragment uint32
	// checksum is the offset of the header's checksum; IPv6 has none.
	checksum    uint32
	hasChecksum bool
	icmp        byte
	setType     nftables.SetDatatype
}

func ipv4() family {
	return family{
		nft: nftables.TableFamilyIPv4, saddr: 12, daddr: 16, addrLen: 4, fragment: 6,
		checksum: 10, hasChecksum: true, icmp: unix.IPPROTO_ICMP, setType: nftables.TypeIPAddr,
	}
}

func (f family) is(a netip.Addr) bool {
	return a.BitLen() == int(f.addrLen)*8
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
