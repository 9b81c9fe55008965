package dataplane_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// testForgery sends packets that a host of the nodes' LAN, or a pod with NET_RAW, can forge: overlay packets with the
// outer addresses of gateways and nodes.
func testForgery(t *testing.T, n *dataplane.Topology, o dataplane.Options) {
	a, b := n.A, n.B
	vni := func(node int) uint32 {
		return kit.Must(ipam.VNI(0, node+1))(t)
	}
	port := uint16(9900) // one for each packet, so that a late one is not confused with another
	n.LAN.Route(t, netip.MustParsePrefix("10.244.1.0/24"), a.Nodes[0].Host.Addr)
	n.LAN.Route(t, netip.MustParsePrefix("10.244.2.0/24"), a.Nodes[1].Host.Addr)
	t.Cleanup(func() { n.LAN.Do(t, dropRoutes) })
	remote := b.Nodes[0].Pod // known to both clusters by the same mapped range
	gateway := a.Overlay.Addr
	for name, attack := range map[string]struct {
		from           *netns.NS
		source, target netip.Addr
		node           int
		self, peer     netip.Addr
		in, to         netip.Addr
		at             *netns.NS
	}{
		"LAN as gateway, to a node": {
			n.LAN.NS, a.Gateway.Addr, a.Nodes[1].Host.Addr, 1, a.Nodes[1].Overlay.Addr, gateway,
			remote.Mapped, a.Nodes[1].Pod.Addr, a.Nodes[1].Pod.NS,
		},
		"pod as gateway, to its node": {
			a.Nodes[0].Pod.NS, a.Gateway.Addr, a.Nodes[0].Host.Addr, 0, a.Nodes[0].Overlay.Addr, gateway,
			remote.Mapped, a.Nodes[0].Pod.Addr, a.Nodes[0].Pod.NS,
		},
		"LAN as node, to the gateway": {
			n.LAN.NS, a.Outer(t, 1), a.Gateway.Addr, 1, gateway, a.Nodes[1].Overlay.Addr,
			a.Nodes[1].Pod.Addr, remote.Mapped, remote.NS,
		},
		"pod as node, to the gateway": {
			a.Nodes[0].Pod.NS, a.Outer(t, 1), a.Gateway.Addr, 1, gateway, a.Nodes[1].Overlay.Addr,
			a.Nodes[1].Pod.Addr, remote.Mapped, remote.NS,
		},
	} {
		mac, peer := a.Key.MAC(vni(attack.node), attack.self), a.Key.MAC(vni(attack.node), attack.peer)
		try := func(dst overlay.MAC) bool {
			in := attack.in
			if attack.at == remote.NS {
				in = a.Nodes[1].Pod.Mapped // as the peer sees it
			}
			port++
			inner := dataplane.Packet(netip.AddrPortFrom(attack.in, 1234), netip.AddrPortFrom(attack.to, port), []byte("forged"))
			outer := dataplane.Packet(netip.AddrPortFrom(attack.source, 40000), netip.AddrPortFrom(attack.target, overlay.Port),
				dataplane.Encapsulate(o.Overlay, vni(attack.node), peer, dst, inner))
			return dataplane.Receives(t, attack.at, port, in, func() error { return dataplane.SendRaw(attack.from, outer) })
		}
		kit.ErrorIf(t, !try(mac), "%s: with the right MAC address, no packet arrives either, so the test proves nothing", name)
		almost := mac
		almost[5] ^= 1
		for what, dst := range map[string]overlay.MAC{
			"a wrong": almost, "the other end's": peer, "the broadcast": {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "a multicast": {0x01, 0x00, 0x5e, 0, 0, 1}, "no": {},
		} {
			kit.ErrorIf(t, try(dst), "%s: a packet arrives with %s MAC address", name, what)
		}
	}
	testFrames(t, n, o, &port)
	// No forged source is needed where multicast packets are not checked. The MAC addresses are right, so they are not
	// why the packet is dropped.
	port++
	node := a.Nodes[0]
	inner := dataplane.Packet(netip.AddrPortFrom(remote.Mapped, 1234), netip.AddrPortFrom(node.Pod.Addr, port), []byte("forged"))
	outer := dataplane.Packet(netip.AddrPortFrom(node.Pod.Addr, 40000), netip.AddrPortFrom(netip.MustParseAddr("224.0.0.1"), overlay.Port),
		dataplane.Encapsulate(o.Overlay, vni(0), a.Key.MAC(vni(0), gateway), a.Key.MAC(vni(0), node.Overlay.Addr), inner))
	kit.ErrorIf(t, dataplane.Receives(t, node.Pod.NS, port, remote.Mapped, func() error { return dataplane.SendRaw(node.Pod.NS, outer) }),
		"an overlay packet of a pod to all hosts is accepted")
}

// testFrames sends frames with a VLAN tag to a node.
func testFrames(t *testing.T, n *dataplane.Topology, o dataplane.Options, port *uint16) {
	a, node, remote := n.A, n.A.Nodes[1], n.B.Nodes[0].Pod
	vni := kit.Must(ipam.VNI(0, 2))(t)
	arrives := func(dst overlay.MAC, vlan byte) bool {
		*port++
		packet := dataplane.Packet(netip.AddrPortFrom(remote.Mapped, 1234), netip.AddrPortFrom(node.Pod.Addr, *port), []byte("tagged"))
		frame := dataplane.EncapsulateFrame(o.Overlay, vni, overlay.MAC{2, 0x66}, dst, unix.ETH_P_8021Q, append([]byte{0, vlan, 8, 0}, packet...))
		outer := dataplane.Packet(netip.AddrPortFrom(a.Gateway.Addr, 40000), netip.AddrPortFrom(node.Host.Addr, overlay.Port), frame)
		return dataplane.Receives(t, node.Pod.NS, *port, remote.Mapped, func() error { return dataplane.SendRaw(n.LAN.NS, outer) })
	}
	mac := a.Key.MAC(vni, node.Overlay.Addr)
	kit.ErrorIf(t, !arrives(mac, 0), "with the right MAC address, a tagged frame does not arrive either, so the test proves nothing")
	for what, try := range map[string]struct {
		dst  overlay.MAC
		vlan byte
	}{
		"the broadcast address": {overlay.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 0}, "a multicast address": {overlay.MAC{1, 0, 0x5e, 0, 0, 1}, 0},
		"a wrong address": {overlay.MAC{2, 0x66}, 0}, "the right address, of a VLAN": {mac, 5},
	} {
		kit.ErrorIf(t, arrives(try.dst, try.vlan), "a tagged frame arrives with %s", what)
	}
}

// dropRoutes removes all routes with a next hop.
func dropRoutes() error {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	for _, route := range routes {
		if route.Gw != nil {
			err = errors.Join(err, netlink.RouteDel(&route))
		}
	}
	return err
}
