package ipam

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
)

// The internal CIDR of a cluster is divided by number: nodes count upwards
// from its start, gateways downwards from its end.
const (
	// MaxNode is the highest number of a node; the lowest is 1.
	MaxNode = 6143
	// MaxGateway is the highest number of a gateway; the lowest is 0.
	MaxGateway = (MaxPeering+1)*Planes - 1
	// Planes is how many planes a peering may have.
	Planes = 4
	// MaxPeering is the highest index of a peering of one cluster; the lowest is 0.
	// An internal range has room for the gateways of one more, except for one of them.
	MaxPeering = 510

	gatewayZero = 1<<numberBits - 2
	// numberBits are the bits that numbers take of an address, of either family.
	numberBits = 32 - InternalBits
	// nodeBits is the part of a VNI that holds the node's number.
	nodeBits = 13
)

// NodeAddr returns the overlay address of the node with number n, 1 to MaxNode.
func NodeAddr(internal netip.Prefix, n int) (netip.Addr, error) {
	if n < 1 || n > MaxNode {
		return netip.Addr{}, fmt.Errorf("node number %d is not between 1 and %d", n, MaxNode)
	}
	return offset(internal, n)
}

// GatewayAddr returns the overlay address of the gateway with number g, 0 to
// MaxGateway.
func GatewayAddr(internal netip.Prefix, g int) (netip.Addr, error) {
	if g < 0 || g > MaxGateway {
		return netip.Addr{}, fmt.Errorf("gateway number %d is not between 0 and %d", g, MaxGateway)
	}
	return offset(internal, gatewayZero-g)
}

// NodeNumber is the inverse of NodeAddr.
func NodeNumber(internal netip.Prefix, addr netip.Addr) (int, error) {
	if err := checkInternal(internal); err != nil {
		return 0, err
	}
	b := addr.AsSlice()
	if internal.Contains(addr) {
		if n := int(binary.BigEndian.Uint16(b[len(b)-2:])) % (1 << numberBits); n >= 1 && n <= MaxNode {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s is not a node's address in %s", addr, internal)
}

// GatewayNumber returns the number of the gateway of one plane of a peering:
// index 0 to MaxPeering, plane 0 to Planes-1.
func GatewayNumber(index, plane int) (int, error) {
	if index < 0 || index > MaxPeering || plane < 0 || plane >= Planes {
		return 0, fmt.Errorf("peering index %d, plane %d has no gateway number", index, plane)
	}
	return index*Planes + plane, nil
}

// VNI returns the identifier, 24 bits, of the link between a gateway and a
// node. No other pair has the same, so it is unique on both ends.
func VNI(gateway, node int) (uint32, error) {
	if gateway < 0 || gateway > MaxGateway || node < 1 || node > MaxNode {
		return 0, fmt.Errorf("gateway %d and node %d have no VNI", gateway, node)
	}
	return uint32(gateway)<<nodeBits | uint32(node), nil
}

func checkInternal(internal netip.Prefix) error {
	if internal.Addr().BitLen()-internal.Bits() != numberBits || internal != internal.Masked() {
		return fmt.Errorf("internal CIDR %s is not a range of %d bits, which is a /%d of IPv4", internal, numberBits, InternalBits)
	}
	return nil
}

func offset(internal netip.Prefix, n int) (netip.Addr, error) {
	if err := checkInternal(internal); err != nil {
		return netip.Addr{}, err
	}
	b := internal.Addr().AsSlice()
	last := b[len(b)-2:]
	binary.BigEndian.PutUint16(last, binary.BigEndian.Uint16(last)|uint16(n))
	addr, _ := netip.AddrFromSlice(b)
	return addr, nil
}

// NodeCandidate is the number that a node tries as its i-th, from 0. Which ones these are
// depends on the node's name only, so that it gets the same again where it can. The step from each to the next is another one for each
// node. With one step for all, nodes of a large cluster would queue up behind others.
func NodeCandidate(name string, i int) int {
	h := hash([]byte(name))
	step := 1 + h/MaxNode%(MaxNode-1) // MaxNode is a prime number, so all are tried
	return (h+i*step)%MaxNode + 1
}

func hash(name []byte) int {
	h := fnv.New32a()
	h.Write(name)
	return int(h.Sum32())
}
