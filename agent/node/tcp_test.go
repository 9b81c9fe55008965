package node

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// No attempt by TCP counts as use of the link, whether it is refused, accepted or dropped. Each other packet does.
func TestAttemptsByTCPAreNoUse(t *testing.T) {
	node, gateway := netns.New(t, "node"), netns.New(t, "gateway")
	node.Sysctl(t, "ipv6/conf/default/disable_ipv6", "1") // which would send packets, too
	netns.Veth(t, node, "eth0", gateway, "eth0")
	local, remote := netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("192.0.2.9/24")
	node.Addr(t, "eth0", local)
	gateway.Addr(t, "eth0", remote)
	kernel := netns.In(t, node, overlay.New)
	t.Cleanup(kernel.Close)
	listener := netns.In(t, gateway, func() (net.Listener, error) { return net.Listen("tcp4", "192.0.2.9:80") })
	t.Cleanup(func() { kit.CheckNoError(t, listener.Close()) })

	var p prober
	var sent sentPackets
	isUsed := func() bool {
		traffic, err := kernel.Traffic("eth0")
		kit.NoError(t, err)
		return sent.others(traffic.SentPackets, p.sentTCP.Load())
	}
	attempt := func(port uint16) {
		node.Do(t, func() error {
			p.attemptTCP(t.Context(), local.Addr(), netip.AddrPortFrom(remote.Addr(), port))
			return nil
		})
	}
	other := func() {
		node.Do(t, func() error {
			conn, err := net.Dial("udp4", "192.0.2.9:9")
			if err == nil {
				_, err = conn.Write([]byte("x"))
				err = errors.Join(err, conn.Close())
			}
			return err
		})
	}
	// As on a link to a gateway, no address is resolved, which would be another packet.
	knows := func(ns, other *netns.NS, addr netip.Addr) {
		var mac net.HardwareAddr
		other.WithLink(t, "eth0", func(l netlink.Link) error { mac = l.Attrs().HardwareAddr; return nil })
		ns.WithLink(t, "eth0", func(l netlink.Link) error {
			return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: addr.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
		})
	}
	knows(node, gateway, remote.Addr())
	knows(gateway, node, local.Addr())

	other()
	isUsed() // the first look
	try := func(what string, port uint16, wantFailed int32) {
		attempt(port)
		kit.ErrorIf(t, isUsed(), "%s attempt counts as use", what)
		kit.ErrorIf(t, p.failedTCP.Load() != wantFailed, "after %s attempt, %d have failed, want %d", what, p.failedTCP.Load(), wantFailed)
	}
	try("an accepted", 80, 1)
	try("a refused", 81, 0)
	gateway.Drop(t, "eth0", true, false, 0)
	try("a dropped", 81, 1)
	attempt(80)
	other()
	kit.ErrorIf(t, !isUsed(), "a packet of others does not count")
}
