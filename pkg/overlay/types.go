package overlay

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/liqonet/liqonet/pkg/wire"
)

// Kind is the encapsulation of an overlay link.
type Kind string

const (
	// Geneve is RFC 8926.
	Geneve Kind = "geneve"
	// VXLAN is RFC 7348.
	VXLAN Kind = "vxlan"
)

const (
	// Port is the UDP port of the overlay, on nodes and gateways. Two users of one port
	// cannot share a machine. So it is neither a registered one (4789, 6081) nor one that a
	// network plugin is known to use (8472).
	Port uint16 = wire.OverlayPort

	// Group is the group of every overlay interface (IFLA_GROUP).
	Group uint32 = wire.Table

	// Table is our routing table: on nodes for all peerings, and in gateways for packets
	// towards the peer and the nodes.
	Table = wire.Table
	// InboundTable is the gateway's table for packets that came out of the tunnel.
	InboundTable = 27762
	// RulePriority is the priority of our policy rules. It precedes those of
	// EKS (512, 1024, 1536) and Cilium. The ones before and after it are for
	// State.Bypass.
	RulePriority = 90
	// Protocol marks the routes and rules that are ours (rtm_protocol).
	Protocol = 108

	// OverheadIPv4 is how many bytes Geneve without options and VXLAN both add to a packet
	// over IPv4: outer IP 20, UDP 8, header 8, inner Ethernet 14.
	OverheadIPv4 = 50
	// OverheadIPv6 is the same over IPv6, whose header has 40 bytes.
	OverheadIPv6 = 70
)

// Overhead is what the overlay adds to packets that are sent to an outer
// address, in bytes.
func Overhead(remote netip.Addr) int {
	if remote.Unmap().Is6() {
		return OverheadIPv6
	}
	return OverheadIPv4
}

// Link is one end of a point-to-point overlay link between a node and a
// gateway.
type Link struct {
	Name string
	Kind Kind
	// VNI tells the links of one machine apart, 24 bits.
	VNI uint32
	// Local and Peer are the overlay addresses of this and the other end.
	Local, Peer netip.Addr
	// LocalMAC and PeerMAC are those of both ends (Key.MAC).
	LocalMAC, PeerMAC MAC
	// Remote is the outer address of the other end: where encapsulated
	// packets are sent to and, with Geneve, the only source accepted.
	Remote netip.Addr
	// Port is the outer UDP port, on both ends.
	Port uint16
	// MTU of the interface in bytes, without encapsulation.
	MTU int
}

// Route is a route in one of our tables.
type Route struct {
	Table int
	Dst   netip.Prefix
	// Unreachable makes the route answer with an ICMP error; Dev, Via, Hops, Src
	// and MTU are then empty.
	Unreachable bool
	Dev         string
	// Via is the next hop, reachable on Dev without another route (onlink).
	// The zero value means that Dst is on the link.
	Via netip.Addr
	// Hops are the next hops of a route by several links, which has no Dev and Via of its own. The
	// kernel chooses one of them for each packet, by its hash (net.ipv4.fib_multipath_hash_policy).
	Hops []Hop
	// Src is the source that packets of this machine get.
	Src netip.Addr
	// MTU of the path in bytes, 0 for the device's.
	MTU int
	// Metric orders routes of the same Dst, lowest first.
	Metric int
}

// Hop is one of several next hops, with equal shares. Both are as in Route.
type Hop struct {
	Dev string
	Via netip.Addr
}

// hops are the next hops of a route that leads somewhere, one or several.
func (r Route) hops() []Hop {
	if len(r.Hops) > 0 {
		return r.Hops
	}
	return []Hop{{r.Dev, r.Via}}
}

// equal says that two routes are the same.
func (r Route) equal(other Route) bool {
	return slices.Equal(r.Hops, other.Hops) && r.Table == other.Table && r.Dst == other.Dst && r.Unreachable == other.Unreachable &&
		r.Dev == other.Dev && r.Via == other.Via && r.Src == other.Src && r.MTU == other.MTU && r.Metric == other.Metric
}

// String is close to what ip(8) prints.
func (r Route) String() string {
	var b strings.Builder
	part := func(present bool, format string, value any) {
		if present {
			fmt.Fprintf(&b, format, value)
		}
	}
	part(r.Unreachable, "%s ", "unreachable")
	part(true, "%s", r.Dst)
	part(r.Via.IsValid(), " via %s", r.Via)
	part(r.Dev != "", " dev %s", r.Dev)
	for _, h := range r.Hops {
		part(true, " nexthop via %s", h.Via)
		part(true, " dev %s", h.Dev)
	}
	part(true, " table %d", r.Table)
	part(r.Src.IsValid(), " src %s", r.Src)
	part(r.MTU != 0, " mtu %d", r.MTU)
	part(r.Metric != 0, " metric %d", r.Metric)
	return b.String()
}

// Rule is a policy routing rule at RulePriority.
type Rule struct {
	// IIF restricts the rule to packets that came in by this interface.
	IIF   string
	Table int
}

// State is all that this package keeps in a network namespace.
type State struct {
	Links  []Link
	Routes []Route
	Rules  []Rule
	// Bypass are sources to whose packets Rules do not apply: the next rules decide. With a
	// port it is about UDP from there only.
	Bypass []netip.AddrPort
}
