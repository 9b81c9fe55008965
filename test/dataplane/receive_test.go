package dataplane_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

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

type counter struct{ bytes, packets int }

func (c counter) mean(before counter) int {
	return (c.bytes - before.bytes) / max(1, c.packets-before.packets)
}

// counters returns the counters of the interfaces on the path from a to b.
func counters(t *testing.T, a, b *dataplane.Cluster) map[string]counter {
	t.Helper()
	return map[string]counter{
		"a to wireguard":   read(t, a.Gateway.NS, tunnel.InterfaceName, 8),
		"b entered":        read(t, b.Gateway.NS, tunnel.EntryInterface, 8),
		"b from wireguard": read(t, b.Gateway.NS, tunnel.InterfaceName, 0),
		"b left":           read(t, b.Nodes[1].NS, "eth0", 0),
	}
}

// read reads bytes and packets from /proc/net/dev: received from column 0, sent from column 8.
func read(t *testing.T, ns *netns.NS, dev string, column int) (c counter) {
	t.Helper()
	text := netns.In(t, ns, func() ([]byte, error) { return os.ReadFile("/proc/thread-self/net/dev") })
	for line := range strings.Lines(string(text)) {
		name, numbers, ok := strings.Cut(line, ":")
		fields := strings.Fields(numbers)
		if !ok || strings.TrimSpace(name) != dev || len(fields) < column+2 {
			continue
		}
		c.bytes = kit.Must(strconv.Atoi(fields[column]))(t)
		c.packets = kit.Must(strconv.Atoi(fields[column+1]))(t)
		return c
	}
	t.Fatalf("%s has no interface %s", ns.Name, dev)
	return c
}
