// Package wire has names that several parts of the product have to know alike: what agents
// make in a kernel, and what commands and checks say and ask about it.
//
// Out of scope: everything that computes, and what only one package knows. It imports
// nothing of the product, and nothing that talks to a kernel.
package wire

import (
	"fmt"
)

// The ports of agents that others than these know: of the overlay and the tunnel by UDP, and of the channel between gateways by TCP.
const (
	OverlayPort  = 6094
	TunnelPort   = 51840
	ExchangePort = 6096
)

// Table is our routing table, and the group of our interfaces. Nobody else is known to use the number.
const Table = 27761

// LinkPrefix starts the name of every overlay interface, and of no other. It begins with "lo"
// because of Cilium. Without --devices, Cilium takes each interface that is up and has an address
// and a route for a network card of the node. Its MTU, and that of all its pods, then follows that
// interface's, its eBPF programs masquerade what leaves by it, and the address is one of the
// node's. The overlay's MTU follows the pods', so both would shrink to the lowest value. Cilium
// skips names by their prefixes cilium_, lo, lxc, cni and docker, as of 1.20: see
// ExcludedDevicePrefixes in pkg/defaults/node.go and isSelectedDevice in
// pkg/datapath/linux/devices_controller.go. Of these, lo is the only one that does not call the
// interface another program's.
const LinkPrefix = "loq"

// NodeLink is the name of a node's interface to the gateway of a plane. A peering is told by its
// index.
func NodeLink(peering, plane int32) string { return fmt.Sprintf("%s%d-%d", LinkPrefix, peering, plane) }

// GatewayLink is the name of a gateway's interface to a node, by the node's number.
func GatewayLink(node int) string { return fmt.Sprintf("%sn%d", LinkPrefix, node) }
