// Package wire defines names and numbers that several parts of the product share: what agents create in a kernel, and
// what commands and checks report about it.
//
// Out of scope: other computations than that of keys, and anything that only one package needs. It imports no other package of the product, and
// nothing that talks to a kernel.
package wire

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
)

// The agents' ports that other components know: UDP for the overlay and the tunnel, TCP for the channels between gateways.
const (
	OverlayPort  = 6094
	TunnelPort   = 51840
	ExchangePort = 6096
	// ServicesPort is for services, which gateways exchange by another connection.
	ServicesPort = 6100
)

// FirstPort and LastPort enclose all UDP and TCP ports of agents, except TunnelPort.
const FirstPort, LastPort = 6094, 6100

// tunnelPorts is how many ports a gateway's WireGuard may use, beginning with TunnelPort: a client that gets no answer
// calls from another one.
const tunnelPorts = 16

// EndOfRange returns the last port of the range that begins with a port. Only the tunnel has more than one.
func EndOfRange(first uint16) uint16 {
	if first == TunnelPort {
		return first + tunnelPorts - 1
	}
	return first
}

// MinMTU is the smallest MTU to use, and to accept from another agent: every host takes packets of that size (RFC 791).
const MinMTU = 576

// Table is our routing table, and the group of our interfaces. No other program is known to use the number.
const Table = 27761

// LinkPrefix is the prefix of the name of every overlay interface, and of no other. It begins with "lo" because of
// Cilium. Without --devices, Cilium mistakes each interface that is up and has an address and a route for a network card
// of the node. The node's MTU, and that of all its pods, then follows that interface's. Its eBPF programs masquerade the
// packets that leave through it, and the address counts as one of the node's. The overlay's MTU follows the pods', so both would
// shrink to the lowest value. Cilium skips names with the prefixes cilium_, lo, lxc, cni and docker, as of 1.20: see
// ExcludedDevicePrefixes in pkg/defaults/node.go and isSelectedDevice in pkg/datapath/linux/devices_controller.go. Of
// these, only lo does not attribute the interface to another program.
const LinkPrefix = "loq"

// NodeLink returns the name of a node's interface to the gateway of a plane. peering is the index of the peering.
func NodeLink(peering, plane int32) string { return fmt.Sprintf("%s%d-%d", LinkPrefix, peering, plane) }

// GatewayLink returns the name of a gateway's interface to a node, by the node's number.
func GatewayLink(node int) string { return fmt.Sprintf("%sn%d", LinkPrefix, node) }

// GatewayKeyBytes is the length of a gateway's overlay key.
const GatewayKeyBytes = 32

// GatewayKey derives the key of a gateway's links from a key of the cluster's overlay, by HKDF (RFC 5869). Nodes have the
// cluster's keys. A gateway has only its own, so it cannot send in the name of another one. The name of its Deployment
// contains the peering and the plane.
func GatewayKey(clusterKey []byte, gateway string, generation int32) []byte {
	key, _ := hkdf.Key(sha256.New, clusterKey, nil, fmt.Sprintf("liqonet overlay %d %s", generation, gateway), GatewayKeyBytes) // only a longer key is an error
	return key
}
