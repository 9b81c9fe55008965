package nat

import (
	"net/netip"

	"github.com/liqonet/liqonet/pkg/nft"
)

// TableName is the name of the one nftables table of ours per network
// namespace and family.
const TableName = nft.TableName

// Mapping translates a prefix 1:1 into another one of the same length.
type Mapping struct {
	// Real is the prefix inside the own cluster, Mapped the one by which the
	// peer knows it. Where both are equal nothing is translated.
	Real, Mapped netip.Prefix
}

// Gateway is what the table of a gateway's network namespace does:
// stateless translation of the own cluster's addresses, and isolation.
type Gateway struct {
	// Underlay is the name of the pod's own interface.
	Underlay string
	// TunnelGroup is the interface group of WireGuard's interface, OverlayGroup that
	// of the overlay's, and ReceiveGroup of the one where packets of both come from as
	// well, once they were aggregated (see Receive).
	TunnelGroup, OverlayGroup, ReceiveGroup uint32
	// Local are the own cluster's ranges that the peer may reach, pods and
	// overlay addresses, with what the peer knows them by.
	Local []Mapping
	// Remote are the ranges by which this cluster knows the peer: the peer may send
	// ICMP errors about packets that went there, and about no others.
	Remote []netip.Prefix
	// Nodes are the outer source addresses from which overlay packets come.
	Nodes []netip.Addr
	// OverlayPort and TunnelPort are UDP ports on Underlay, ProbePort one
	// that nodes (through the overlay) and the peer (through the tunnel) may
	// reach.
	OverlayPort, TunnelPort, ProbePort uint16
}

// Node is what the table of a node's network namespace does: sources towards
// peers, isolation, MSS clamping.
type Node struct {
	// OverlayGroup is the interface group of the overlay's interfaces.
	OverlayGroup uint32
	// Address is the node's overlay address.
	Address netip.Addr
	// Pods are the cluster's pod ranges; their addresses are kept as sources.
	Pods []netip.Prefix
	// OwnPods are the ranges and single addresses of the node's own pods.
	OwnPods []netip.Prefix
	// Remote are the ranges by which the cluster knows its peers.
	Remote []netip.Prefix
	// Hosts are addresses outside of the cluster that peers may reach: they do not
	// know the way back, so they see the node's own address.
	Hosts []netip.Addr
	// Endpoints are addresses of Remote by which tunnels are reached: packets from
	// there come by the network around.
	Endpoints []netip.Addr
	// Uplinks are the interfaces to other machines. From there only answers go to
	// peers, and what a service with remote endpoints made of a packet: another
	// machine that forges a pod's source does not use the node as its router.
	Uplinks []string
	// Gateways are those with an overlay link to this node.
	Gateways []NodeGateway
	// OverlayPort is the overlay's UDP port, TunnelPort that of gateways for the tunnel.
	OverlayPort, TunnelPort uint16
}

// NodeGateway is one gateway as seen from a node.
type NodeGateway struct {
	// Pod is the address of the gateway's pod, and the outer source of its packets.
	Pod netip.Addr
	// Overlay is the gateway's overlay address.
	Overlay netip.Addr
	// Local says that the gateway runs on this node.
	Local bool
	// Calls says that the gateway calls the peer's, and is not called.
	Calls bool
}
