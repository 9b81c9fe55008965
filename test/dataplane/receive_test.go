package dataplane_test

import (
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// ethernet is the length of the header that counters include.
const ethernet = 14

// TestAggregation makes nodes send single packets, like machines with plain network cards. The gateways have to
// aggregate them, otherwise each packet costs as much as a bundle.
func TestAggregation(t *testing.T) {
	if os.Getenv("LIQONET_TEST_BACKENDS") != "" {
		t.Skip("an emulated processor is too slow for packets to come close to each other: bundles have two with aggregation and without")
	}
	n := dataplane.New(t, pairs()[0])
	for _, c := range []*dataplane.Cluster{n.A, n.B} {
		c.SetSegmentation(t, false)
	}
	server := n.B.Nodes[1].Pod
	dataplane.ServeTCP(t, server.NS, dataplane.WebPort)
	const size = 64 << 20
	before := counters(t, n.A, n.B)
	kit.Must(dataplane.TCP(n.A.Nodes[1].Pod.NS, server.Mapped, dataplane.WebPort, size))(t)
	after := counters(t, n.A, n.B)
	between := func(name string) int { return after[name].mean(before[name]) }
	for _, plain := range []string{"b entered", "b left"} {
		if size := between(plain); size > dataplane.UnderlayMTU+ethernet {
			t.Errorf("%s: packets had %d bytes on average, but should not be aggregated", plain, size)
		}
	}
	// Without aggregation, it is two packets.
	const least = 4 * dataplane.MTU
	for _, bundled := range []string{"a to wireguard", "b from wireguard"} {
		if size := between(bundled); size < least {
			t.Errorf("%s: packets had %d bytes on average, want at least %d", bundled, size, least)
		}
	}
}

type counter struct{ bytes, packets uint64 }

func (c counter) mean(before counter) int {
	return int((c.bytes - before.bytes) / max(1, c.packets-before.packets))
}

// counters returns the counters of the interfaces on the path from a to b.
func counters(t *testing.T, a, b *dataplane.Cluster) map[string]counter {
	t.Helper()
	read := func(ns *netns.NS, dev string) (received, sent counter) {
		ns.WithLink(t, dev, func(l netlink.Link) error {
			s := l.Attrs().Statistics
			received, sent = counter{s.RxBytes, s.RxPackets}, counter{s.TxBytes, s.TxPackets}
			return nil
		})
		return received, sent
	}
	_, toWireGuard := read(a.Gateway.NS, tunnel.InterfaceName)
	_, entered := read(b.Gateway.NS, tunnel.EntryInterface)
	fromWireGuard, _ := read(b.Gateway.NS, tunnel.InterfaceName)
	left, _ := read(b.Nodes[1].NS, "eth0")
	return map[string]counter{"a to wireguard": toWireGuard, "b entered": entered, "b from wireguard": fromWireGuard, "b left": left}
}
