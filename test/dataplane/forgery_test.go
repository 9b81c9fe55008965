package dataplane_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// testForgery sends packets that a host of the nodes' LAN, or a pod with NET_RAW, can forge: overlay packets with the
// outer addresses of gateways and nodes, and packets with the sources of pods.
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
		if !try(mac) {
			t.Errorf("%s: with the right MAC address, no packet arrives either, so the test proves nothing", name)
		}
		almost := mac
		almost[5] ^= 1
		for what, dst := range map[string]overlay.MAC{
			"a wrong": almost, "the other end's": peer, "the broadcast": {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "a multicast": {0x01, 0x00, 0x5e, 0, 0, 1}, "no": {},
		} {
			if try(dst) {
				t.Errorf("%s: a packet arrives with %s MAC address", name, what)
			}
		}
	}
	testFrames(t, n, o, &port)
	// Frames to a multicast address, which is no secret: all IPv6 is dropped.
	for name, attack := range map[string]struct {
		from           *netns.NS
		source, target netip.Addr
		node           int
		at             *netns.NS
	}{
		"LAN as gateway, to a node":   {n.LAN.NS, a.Gateway.Addr, a.Nodes[1].Host.Addr, 1, a.Nodes[1].NS},
		"LAN as node, to the gateway": {n.LAN.NS, a.Outer(t, 1), a.Gateway.Addr, 1, a.Gateway.NS},
	} {
		port++
		source := netip.MustParseAddr("fe80::66")
		inner := dataplane.Packet6(netip.AddrPortFrom(source, 1234), netip.AddrPortFrom(netip.MustParseAddr("ff02::1"), port), []byte("forged"))
		outer := dataplane.Packet(netip.AddrPortFrom(attack.source, 40000), netip.AddrPortFrom(attack.target, overlay.Port),
			dataplane.Encapsulate(o.Overlay, vni(attack.node), overlay.MAC{2, 0, 0, 0, 0, 1}, overlay.MAC{0x33, 0x33, 0, 0, 0, 1}, inner))
		if dataplane.Receives(t, attack.at, port, source, func() error { return dataplane.SendRaw(attack.from, outer) }) {
			t.Errorf("%s: IPv6 in a multicast frame arrives", name)
		}
	}
	// No forged source is needed where multicast packets are not checked. The MAC addresses are right, so they are not
	// why the packet is dropped.
	{
		port++
		node := a.Nodes[0]
		inner := dataplane.Packet(netip.AddrPortFrom(remote.Mapped, 1234), netip.AddrPortFrom(node.Pod.Addr, port), []byte("forged"))
		outer := dataplane.Packet(netip.AddrPortFrom(node.Pod.Addr, 40000), netip.AddrPortFrom(netip.MustParseAddr("224.0.0.1"), overlay.Port),
			dataplane.Encapsulate(o.Overlay, vni(0), a.Key.MAC(vni(0), gateway), a.Key.MAC(vni(0), node.Overlay.Addr), inner))
		if dataplane.Receives(t, node.Pod.NS, port, remote.Mapped, func() error { return dataplane.SendRaw(node.Pod.NS, outer) }) {
			t.Error("an overlay packet of a pod to all hosts is accepted")
		}
	}
	// Without the overlay: a pod's source in a packet that the pod did not send, through a node to the peer, and a
	// peer's source in a packet from elsewhere. The nodes do not check sources themselves.
	node := a.Nodes[1]
	for _, n := range a.Nodes {
		n.Sysctl(t, "ipv4/conf/all/rp_filter", "0")
		n.Sysctl(t, "ipv4/conf/eth0/rp_filter", "0")
		t.Cleanup(func() { n.Sysctl(t, "ipv4/conf/all/rp_filter", "1") })
	}
	n.LAN.Route(t, dataplane.Ranges().MappedPods, node.Host.Addr)
	for name, forged := range map[string]struct {
		source, seen, dst netip.Addr
		at                *netns.NS
	}{
		"the node's own pod":    {node.Pod.Addr, node.Pod.Mapped, remote.Mapped, remote.NS},
		"a pod of another node": {a.Nodes[0].Pod.Addr, a.Nodes[0].Pod.Mapped, remote.Mapped, remote.NS},
		"no pod yet":            {mapped("10.244.2.99"), mapped("10.61.2.99"), remote.Mapped, remote.NS},
		"a pod of the peer":     {remote.Mapped, remote.Mapped, node.Pod.Addr, node.Pod.NS},
	} {
		port++
		packet := dataplane.Packet(netip.AddrPortFrom(forged.source, 1234), netip.AddrPortFrom(forged.dst, port), []byte("forged"))
		if dataplane.Receives(t, forged.at, port, forged.seen, func() error { return dataplane.SendRaw(n.LAN.NS, packet) }) {
			t.Errorf("a packet of a host in the LAN arrives with the source of %s", name)
		}
	}
	// Packets of the LAN do arrive, so the results above have the right cause.
	port++
	packet := dataplane.Packet(netip.AddrPortFrom(n.LAN.Addr, 1234), netip.AddrPortFrom(node.Host.Addr, port), []byte("plain"))
	if !dataplane.Receives(t, node.NS, port, n.LAN.Addr, func() error { return dataplane.SendRaw(n.LAN.NS, packet) }) {
		t.Error("a host in the LAN does not reach a node by its own address: the test proves nothing")
	}
}

// testFrames sends frames of other types: ARP, which needs no secret and must not be answered, so that nobody becomes a
// neighbor, and frames with a VLAN tag.
func testFrames(t *testing.T, n *dataplane.Topology, o dataplane.Options, port *uint16) {
	a, remote, gateway := n.A, n.B.Nodes[0].Pod, n.A.Overlay.Addr
	vni := kit.Must(ipam.VNI(0, 2))(t)
	evil, all := overlay.MAC{2, 0x66}, overlay.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	node := a.Nodes[1]
	node.Route(t, netip.MustParsePrefix("0.0.0.0/0"), n.LAN.Addr) // real nodes have one
	for name, attack := range map[string]struct {
		source, target, self netip.Addr
		at                   *netns.NS
		link                 string
	}{
		"to a node":      {a.Gateway.Addr, node.Host.Addr, node.Overlay.Addr, node.NS, wire.NodeLink(0, 0)},
		"to the gateway": {a.Outer(t, 1), a.Gateway.Addr, gateway, a.Gateway.NS, wire.GatewayLink(2)},
	} {
		send := func(dst overlay.MAC, etherType uint16, payload []byte) error {
			return dataplane.SendRaw(n.LAN.NS, dataplane.Packet(netip.AddrPortFrom(attack.source, 40000), netip.AddrPortFrom(attack.target, overlay.Port),
				dataplane.EncapsulateFrame(o.Overlay, vni, evil, dst, etherType, payload)))
		}
		signals := monitor(t, attack.at)
		for i := range 20 {
			asked := netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})
			for _, operation := range []uint16{1, 2} {
				kit.NoError(t, send(all, unix.ETH_P_ARP, dataplane.ARP(operation, evil, asked, overlay.MAC{}, attack.self)))
			}
		}
		// The frames after them show that they were processed.
		*port++
		packet := dataplane.Packet(netip.AddrPortFrom(remote.Mapped, 1234), netip.AddrPortFrom(node.Pod.Addr, *port), []byte("tagged"))
		if attack.at == node.NS {
			mac := a.Key.MAC(vni, attack.self)
			tagged := func(vlan byte) []byte { return append([]byte{0, vlan, 8, 0}, packet...) }
			if !dataplane.Receives(t, node.Pod.NS, *port, remote.Mapped, func() error { return send(mac, unix.ETH_P_8021Q, tagged(0)) }) {
				t.Error("with the right MAC address, a tagged frame does not arrive either, so the test proves nothing")
			}
			for what, try := range map[string]struct {
				dst  overlay.MAC
				vlan byte
			}{"the broadcast address": {all, 0}, "a multicast address": {overlay.MAC{1, 0, 0x5e, 0, 0, 1}, 0}, "a wrong address": {evil, 0}, "the right address, of a VLAN": {mac, 5}} {
				*port++
				packet = dataplane.Packet(netip.AddrPortFrom(remote.Mapped, 1234), netip.AddrPortFrom(node.Pod.Addr, *port), []byte("tagged"))
				if dataplane.Receives(t, node.Pod.NS, *port, remote.Mapped, func() error { return send(try.dst, unix.ETH_P_8021Q, tagged(try.vlan)) }) {
					t.Errorf("a tagged frame arrives with %s", what)
				}
			}
		} else if err := dataplane.Ping(node.Pod.NS, remote.Mapped, 56, patience); err != nil {
			t.Error(err)
		}
		attack.at.WithLink(t, attack.link, func(l netlink.Link) error {
			neighbors, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_V4)
			if len(neighbors) != 1 {
				t.Errorf("%s: after 20 forged ARP requests, the neighbors are %v, want only the other end", name, neighbors)
			}
			return err
		})
		if len(signals) > 0 {
			t.Errorf("%s: forged ARP wakes the agent", name)
		}
	}
	node.Do(t, func() error {
		return netlink.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: n.LAN.Addr.AsSlice()})
	})
}

// monitor returns the kernel's signals that would wake an agent.
func monitor(t *testing.T, ns *netns.NS) <-chan struct{} {
	t.Helper()
	signals := notify.NewSignal()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	ns.Do(t, func() error {
		k, err := overlay.New()
		if err != nil {
			return err
		}
		t.Cleanup(k.Close)
		return k.Monitor(ctx, signals)
	})
	return signals
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
