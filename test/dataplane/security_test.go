package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// Without any rules on nodes, as if a network plugin takes packets from an interface before netfilter does, a peer
// reaches no node: its gateway accepts only packets that look like replies. A node gets replies to its own requests,
// from any port.
func TestGatewayIsABarrierToo(t *testing.T) {
	const service = 9123
	o := anyPair(t)
	n := dataplane.New(t, o)
	a, from, node := n.A, n.B.Nodes[1].Pod.NS, n.A.Nodes[0]
	for _, c := range []*dataplane.Cluster{n.A, n.B} {
		dataplane.ServeTCP(t, c.Nodes[0].Pod.NS, dataplane.WebPort)
		dataplane.ServeUDP(t, c.Nodes[0].Pod.NS, dataplane.RemotePort)
	}
	t.Run("answers", func(t *testing.T) {
		to := n.B.Nodes[0].Pod
		if source, err := dataplane.UDPFrom(node.NS, 123, to.Mapped, dataplane.RemotePort, 100); err != nil || source != node.Overlay.Mapped {
			t.Errorf("UDP from a node's port 123: seen as %s, want %s: %v", source, node.Overlay.Mapped, err)
		}
		for i := range a.Nodes {
			source, err := dataplane.UDPFrom(n.LAN.NS, 2000, a.Nodes[i].Host.Addr, dataplane.RemoteNodePort, 100)
			if err != nil || source != a.Nodes[i].Overlay.Mapped {
				t.Errorf("a host that calls node %d's NodePort from port 2000: seen as %s, want %s: %v", i, source, a.Nodes[i].Overlay.Mapped, err)
			}
		}
		testFlow(t, node.Overlay, to)
	})
	dataplane.ServeTCP(t, node.NS, service)
	dataplane.ServeUDP(t, node.NS, service)
	netns.In(t, node, nat.Purge)
	target := node.Overlay.Mapped
	reached := func() map[string]bool {
		return map[string]bool{
			"a service of the node by TCP": dataplane.Reaches(from, target, service),
			"a service of the node by UDP": dataplane.ReachesUDP(from, target, service),
			"a NodePort by TCP":            dataplane.Reaches(from, target, dataplane.WebNodePort),
			"a ping":                       dataplane.Ping(from, target, 56, time.Second) == nil,
		}
	}
	for what, got := range reached() {
		kit.ErrorIf(t, got, "a peer's pod reaches %s", what)
	}
	kit.CheckNoError(t, dataplane.Ping(n.B.Gateway.NS, a.Overlay.Mapped, 56, patience), "the gateway does not answer pings")
	// The same gateway, with nodes treated like pods.
	open := a.GatewayTable(t)
	open.Local, open.Internal = append(open.Local, open.Internal), nat.Mapping{Real: netip.MustParsePrefix("192.0.2.0/24"), Mapped: netip.MustParsePrefix("192.0.2.0/24")}
	netns.In(t, a.Gateway, func() (bool, error) { return nat.ApplyGateway(context.Background(), open) })
	for what, got := range reached() {
		kit.ErrorIf(t, !got, "without the barrier, a peer's pod does not reach %s either, so the test proves nothing", what)
	}
}

// Nodes of a peer have addresses in the range of another peer. Tunnels work in both directions, through any node of the
// server. No other packets to these addresses leave unencrypted, and all other packets from them are dropped.
func TestEndsOfTunnelsInAnothersRange(t *testing.T) {
	for name, tt := range map[string]struct {
		server       int
		noMasquerade bool
	}{
		"by the gateway's node":                      {0, false},
		"by the gateway's node, which sees the node": {0, true}, // as with externalTrafficPolicy Local
		"by another node":                            {1, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := anyPair(t)
			o.NoMasquerade = tt.noMasquerade
			n := dataplane.New(t, o)
			n.A.Config.Peer.Endpoint = netip.AddrPortFrom(n.B.Nodes[tt.server].Host.Addr, dataplane.TunnelNodePort)
			testEnds(t, n, o, tt.server)
		})
	}
}

func testEnds(t *testing.T, n *dataplane.Topology, o dataplane.Options, server int) {
	a, end := n.A, n.B.Nodes[server].Host
	for i := range a.Nodes {
		a.Nodes[i].Do(t, dataplane.AcceptForward)
		n.LAN.Route(t, netip.PrefixFrom(a.Nodes[i].Pod.Addr, 24).Masked(), a.Nodes[i].Host.Addr)
	}
	port := uint16(9950)
	// fromEnd reports whether UDP with the end's source reaches a host, and whether other protocols do.
	fromEnd := func(to dataplane.Host) (udp, other bool) {
		const protocol, experimental = 9, 253
		port++
		packet := dataplane.Packet(netip.AddrPortFrom(end.Addr, 1234), netip.AddrPortFrom(to.Addr, port), []byte("plain"))
		send := func() error { return dataplane.SendRaw(n.LAN.NS, packet) }
		udp = dataplane.Receives(t, to.NS, port, end.Addr, send)
		packet[protocol] = experimental
		c := netns.In(t, to, func() (net.PacketConn, error) {
			return net.ListenPacket(fmt.Sprintf("ip4:%d", experimental), "0.0.0.0")
		})
		defer func() { _ = c.Close() }()
		kit.NoError(t, send())
		_ = c.SetReadDeadline(time.Now().Add(400 * time.Millisecond))
		_, _, err := c.ReadFrom(make([]byte, 100))
		return udp, err == nil
	}
	inside := map[string]dataplane.Host{
		"a pod": a.Nodes[0].Pod, "a pod of the other node": a.Nodes[1].Pod, "a node": a.Nodes[0].Host, "the other node": a.Nodes[1].Host,
	}
	for what, to := range inside {
		// Where pods are masqueraded, so are packets to them from elsewhere.
		if udp, other := fromEnd(to); !udp && o.NoMasquerade || !other {
			t.Errorf("without a range that contains the end's address, %s is not reached from there either (%v, %v), so the test proves nothing", what, udp, other)
		}
	}
	for _, c := range []struct{ own, peer *dataplane.Cluster }{{n.A, n.B}, {n.B, n.A}} {
		// A third cluster has the range that contains the peer's nodes.
		third := netip.PrefixFrom(c.peer.Nodes[0].Host.Addr, 24).Masked()
		for i := range c.own.Nodes {
			table, state := c.own.NodeTable(i), c.own.NodeState(t, o.Overlay, i)
			table.Remote = append(table.Remote, third)
			for j := range c.peer.Nodes {
				table.Endpoints = append(table.Endpoints, c.peer.Nodes[j].Host.Addr)
			}
			state.Routes = append(state.Routes, overlay.Route{Table: overlay.Table, Dst: third, Unreachable: true, Metric: 4000})
			state.Bypass = []netip.AddrPort{
				netip.AddrPortFrom(c.own.Gateway.Addr, tunnel.ListenPort), netip.AddrPortFrom(c.own.Nodes[i].Host.Addr, 0),
			}
			dataplane.ApplyNode(t, c.own.Nodes[i].NS, table, state)
		}
	}
	n.A.Tunnel.Configure(t, n.A.Config)
	ping := func() error { return dataplane.Ping(n.A.Gateway.NS, n.B.Overlay.Mapped, 56, time.Second) }
	kit.Eventually(t, 20*time.Second, "the tunnel works", ping)
	n.A.Tunnel.Reset(t)
	kit.Eventually(t, 20*time.Second, "the tunnel works with a new handshake", ping)
	// The tables of the peer and of the gateway, and reverse path filters would also drop packets, so they are disabled.
	netns.In(t, end, nat.Purge)
	netns.In(t, a.Gateway, nat.Purge)
	for i := range a.Nodes {
		a.Nodes[i].Sysctl(t, "ipv4/conf/all/rp_filter", "0")
		a.Nodes[i].Sysctl(t, "ipv4/conf/eth0/rp_filter", "0")
	}
	nothingLeaves := func(when string) {
		for what, from := range map[string]dataplane.Host{
			"a pod": a.Nodes[0].Pod, "the gateway, from another port": a.Gateway, "a node": a.Nodes[1].Host, "a node, with its overlay address": a.Nodes[1].Overlay,
		} {
			port++
			packet := dataplane.Packet(netip.AddrPortFrom(from.Addr, 1234), netip.AddrPortFrom(end.Addr, port), []byte("plain"))
			kit.ErrorIf(t, dataplane.Receives(t, end.NS, port, netip.Addr{}, func() error { return orRefused(dataplane.SendRaw(from.NS, packet)) }),
				"packets of %s to the address leave unencrypted%s", what, when)
		}
		port++
		own := netns.In(t, a.Nodes[1], func() (net.Conn, error) {
			local := net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.Nodes[1].Host.Addr, 0))
			return net.DialUDP("udp4", local, net.UDPAddrFromAddrPort(netip.AddrPortFrom(end.Addr, port)))
		})
		defer func() { kit.CheckNoError(t, own.Close()) }()
		kit.ErrorIf(t, dataplane.Receives(t, end.NS, port, netip.Addr{}, func() error { return orRefused(kit.Err(own.Write([]byte("plain")))) }),
			"packets of a node with its own address to the address leave unencrypted%s", when)
	}
	nothingLeaves("")
	for i := range a.Nodes {
		a.Nodes[i].Do(t, func() error { return netlink.RuleDel(ourRule()) })
	}
	nothingLeaves(", because our routing rule was deleted")
	inside["the gateway"] = a.Gateway
	for what, to := range inside {
		if udp, other := fromEnd(to); udp || other {
			t.Errorf("%s receives packets with a peer's source from outside the overlay: UDP %v, others %v", what, udp, other)
		}
	}
}

// orRefused returns an error unless the kernel refuses to send a packet.
func orRefused(err error) error {
	if errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

// A gateway reports the address of a pod as its own. Peers still reach that pod, except at ports of gateways.
func TestReportedAddressCutsOffNoPod(t *testing.T) {
	o := anyPair(t)
	n := dataplane.New(t, o)
	from := n.B.Nodes[1].Pod.NS
	for i := range n.A.Nodes {
		victim, table := n.A.Nodes[i].Pod, n.A.NodeTable(i)
		reported := table.Gateways[0]
		reported.Pod, reported.Link, reported.Overlay = victim.Addr, "loq9-0", reported.Overlay.Prev()
		table.Gateways = append(table.Gateways, reported)
		dataplane.ApplyNode(t, n.A.Nodes[i].NS, table, n.A.NodeState(t, o.Overlay, i))
		dataplane.ServeTCP(t, victim.NS, dataplane.WebPort)
		dataplane.ServeUDP(t, victim.NS, dataplane.RemotePort)
		got := map[string]bool{
			"ping": dataplane.Ping(from, victim.Mapped, 56, patience) == nil,
			"TCP":  dataplane.Reaches(from, victim.Mapped, dataplane.WebPort), "UDP": dataplane.ReachesUDP(from, victim.Mapped, dataplane.RemotePort),
			"metrics": dataplane.Reaches(from, victim.Mapped, v1alpha1.MetricsPort), "health": dataplane.Reaches(from, victim.Mapped, v1alpha1.HealthPort),
			"tunnel": dataplane.ReachesUDP(from, victim.Mapped, tunnel.ListenPort), "overlay": dataplane.ReachesUDP(from, victim.Mapped, overlay.Port),
		}
		kit.Check(t, fmt.Sprintf("what peers reach of the pod on node %d", i), got, map[string]bool{
			"ping": true, "TCP": true, "UDP": true, "metrics": false, "health": false, "tunnel": false, "overlay": false,
		})
	}
}

// A gateway reaches no pod by the links of another gateway: it does not have that gateway's key, and nodes compare the
// outer source with the link's gateway.
func TestGatewayUsesOwnLinksOnly(t *testing.T) {
	each(t, func(t *testing.T, o dataplane.Options) {
		o.Third = true
		n := dataplane.New(t, o)
		a, other, node := n.A, n.A.Others[0], n.A.Nodes[1]
		source, vni := n.C.Nodes[0].Pod.Mapped, n.A.Others[0].VNI(t, 1)
		port := uint16(9940) // one for each packet, so that a late one is not confused with another
		arrives := func(from netip.Addr, key overlay.Key) bool {
			port++
			inner := dataplane.Packet(netip.AddrPortFrom(source, 1234), netip.AddrPortFrom(node.Pod.Addr, port), []byte("forged"))
			outer := dataplane.Packet(netip.AddrPortFrom(from, 40000), netip.AddrPortFrom(node.Host.Addr, overlay.Port),
				dataplane.Encapsulate(o.Overlay, vni, key.MAC(vni, other.Overlay.Addr), key.MAC(vni, node.Overlay.Addr), inner))
			return dataplane.Receives(t, node.Pod.NS, port, source, func() error { return dataplane.SendRaw(a.Gateway.NS, outer) })
		}
		kit.ErrorIf(t, !arrives(other.Gateway.Addr, other.Key), "with the other gateway's key and address, no packet arrives either, so the test proves nothing")
		kit.ErrorIf(t, arrives(a.Gateway.Addr, a.Key), "a packet arrives with the gateway's own key and address")
		kit.ErrorIf(t, arrives(other.Gateway.Addr, a.Key), "a packet arrives with the other gateway's address")
		kit.ErrorIf(t, arrives(a.Gateway.Addr, other.Key), "a packet arrives with the other gateway's key")
		for _, c := range []*dataplane.Cluster{n.B, n.C} {
			kit.CheckNoError(t, dataplane.Ping(node.Pod.NS, c.Nodes[0].Pod.Mapped, 56, patience), "peer %s", c.Name)
		}
	})
}
