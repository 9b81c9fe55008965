package dataplane_test

import (
	"testing"

	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
)

// The same arithmetic holds over IPv6, and with a large MTU of links.
func TestLinks(t *testing.T) {
	each(t, func(t *testing.T, o dataplane.Options) {
		o.UnderlayMTU, o.IPv6 = 9000, true
		n := dataplane.New(t, o)
		serve(t, n)
		testFullSize(t, n, 8920)
	})
}

// testFullSize checks that packets of exactly the MTU pass, and that larger ones are refused with the right MTU. TCP
// uses all of it. Nothing that fits is fragmented, in particular no packets of the tunnel.
func testFullSize(t *testing.T, n *dataplane.Topology, mtu int) {
	const port = 7790
	before := n.Fragments(t)
	for _, direction := range []struct{ from, to *dataplane.Cluster }{{n.A, n.B}, {n.B, n.A}} {
		for i := range direction.from.Nodes {
			to := direction.to.Nodes[1-i].Pod
			for _, from := range []dataplane.Host{direction.from.Nodes[i].Pod, direction.from.Nodes[i].Overlay} {
				kit.CheckNoError(t, dataplane.Delivers(from.NS, to.Mapped, to.NS, port, mtu), "%s to %s: %d bytes", from.Name, to.Name, mtu)
				kit.CheckNoError(t, kit.Err(dataplane.TCP(from.NS, to.Mapped, dataplane.WebPort, 300_000)), "%s to %s: TCP", from.Name, to.Name)
				if got, err := dataplane.DiscoverMTU(from.NS, to.Mapped, port, mtu+1); err != nil || got != mtu {
					t.Errorf("%s to %s: %d bytes: the MTU seen is %d, %v", from.Name, to.Name, mtu+1, got, err)
				}
			}
		}
	}
	kit.Check(t, "counters of fragments", n.Fragments(t), before)
}
