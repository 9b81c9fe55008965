package tunnel_test

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/kit"
)

// TestReceiver damages the pair of interfaces that aggregates packets. The next Configure repairs it.
func TestReceiver(t *testing.T) {
	server, client := pair(t, tunnel.Userspace)
	configure := func(want bool, what string) {
		t.Helper()
		if got := server.proc.Configure(t, *server.tunnel); got != want {
			t.Errorf("%s: changed is %v", what, got)
		}
		kit.ErrorIf(t, server.proc.Configure(t, *server.tunnel), "%s: a second Configure changed something", what)
	}
	configure(false, "without underlay")
	server.tunnel.Underlay = "eth0"
	configure(true, "first")

	for _, name := range []string{tunnel.EntryInterface, tunnel.ReceiveInterface} {
		for what, damage := range map[string]func(netlink.Link) error{
			"mtu":     func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) },
			"down":    netlink.LinkSetDown,
			"group":   func(l netlink.Link) error { return netlink.LinkSetGroup(l, 1) },
			"deleted": netlink.LinkDel,
			"alias":   func(l netlink.Link) error { return netlink.LinkSetAlias(l, "") },
		} {
			server.ns.WithLink(t, name, damage)
			configure(true, name+" "+what)
		}
	}
	server.ns.Features(t, tunnel.EntryInterface, true, "tx-tcp-segmentation")
	configure(true, "segments are taken")
	server.ns.Features(t, tunnel.ReceiveInterface, false, "rx-gro")
	configure(true, "nothing is aggregated")
	// The interface has to accept packets to the underlay's MAC.
	server.ns.WithLink(t, "eth0", func(l netlink.Link) error {
		mac := append([]byte{}, l.Attrs().HardwareAddr...)
		mac[5]++
		return netlink.LinkSetHardwareAddr(l, mac)
	})
	configure(true, "mac of the underlay")
	client.ns.WithLink(t, "eth0", func(l netlink.Link) error { // removes the old MAC
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: underlay(0).AsSlice()})
	})
	server.ns.MTU(t, "eth0", 1450)
	configure(true, "mtu of the underlay")
	ping(t, client, 0)

	server.tunnel.Underlay = ""
	configure(true, "without underlay again")
	server.tunnel.Underlay = "eth0"
	configure(true, "once more")
	server.proc.Stop()
	server.ns.Do(t, func() error {
		if err := tunnel.Remove(tunnel.InterfaceName); err != nil {
			return err
		}
		links, err := netlink.LinkList()
		for _, l := range links {
			if name := l.Attrs().Name; name != "lo" && name != "eth0" {
				t.Errorf("interface %s was left", name)
			}
		}
		return err
	})
}
