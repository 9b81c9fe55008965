package nat

import (
	"net/netip"

	"github.com/liqonet/liqonet/pkg/nft"
)

// TableName is the name of our nftables table in each address family.
const TableName = nft.TableName

// Mapping translates a prefix 1:1 into another one of the same length.
type Mapping struct {
	// Real is the prefix inside this cluster, Mapped the one by which the peer knows
	// it. If both are equal nothing is translated.
	Real, Mapped netip.Prefix
}

// Gateway describes the table of a gateway: it translates this cluster's addresses
// without state, and isolates the cluster from the peer.
type Gateway struct {
	// Underlay is the name of the pod's own interface.
	Underlay string
	// TunnelGroup is the interface group of WireGuard's interface, and OverlayGroup that
	// of the overlay's. ReceiveGroup is that of the interface from which packets of both
	// come after they were aggregated (see Receive).
	TunnelGroup, OverlayGroup, ReceiveGroup uint32
	// Local are this cluster's ranges that the peer may reach: pods and exposed hosts.
	Local []Mapping
	// Internal is the range of overlay addresses. Nodes get what looks like answers, and
	// nothing else. Address is the gateway's own.
	Internal Mapping
	Address  netip.Addr
	// Remote are the ranges by which this cluster knows the peer. The peer may send ICMP
	// errors about packets that went there, and about no others.
	Remote []netip.Prefix
	// Nodes are the outer source addresses from which overlay packets come.
	Nodes []netip.Addr
	// OverlayPort and TunnelPort are UDP ports on Underlay. ProbePort is one that nodes
	// may reach through the overlay, and the peer through the tunnel. LivenessPort is the same for
	// nodes and the peer's gateway.
	OverlayPort, TunnelPort, ProbePort, LivenessPort uint16
	// HealthPort is a TCP port on Underlay for the kubelet. From where it calls is the
	// network plugin's choice, so whoever reaches the pod by Underlay reaches that port.
	HealthPort uint16
	// MetricsPort is a TCP port on Underlay for Pods but Nodes: this cluster's own pods, by their real
	// addresses. Nobody else gets there.
	MetricsPort uint16
	Pods        []netip.Prefix
	// PeerGateway is the address by which this cluster knows the peer's gateway. Through
	// the tunnel only that one reaches the TCP port ExchangePort, and answers from it.
	PeerGateway  netip.Addr
	ExchangePort uint16
	// LimitRate is how many bytes of IP packets per second are forwarded from the peer, 0 for
	// all. Probes and the channel between the gateways are not among them.
	LimitRate uint64
}

// Node describes the table of a node: sources towards peers, isolation, and clamping of
// TCP's segment size.
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
	// Hosts are addresses outside of the cluster that peers may reach. Hosts do not know
	// the way back to peers, so they see the node's own address.
	Hosts []netip.Addr
	// Endpoints are addresses in Remote that are also ends of tunnels. What they send to the
	// gateways' TunnelPort comes by the network around, not by the overlay.
	Endpoints []netip.Addr
	// Uplinks are the interfaces to other machines. Of what comes from there, answers go
	// to peers, and packets that a service sends to a remote endpoint, and packets of this
	// node's own pods. Another machine must not use the node as its router.
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
	// Calls says that the gateway is the tunnel's client: it calls the peer's gateway.
	Calls bool
	// Link is the interface by which its packets come, Remote are its peer's ranges. By
	// that interface come packets from there and from Overlay, and no others.
	Link   string
	Remote []netip.Prefix
	// LimitNew is how many new connections per second that peer may begin, 0 for all.
	LimitNew uint32
}
