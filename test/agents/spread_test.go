package agents

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/load"
	"github.com/liqonet/liqonet/test/netns"
)

const (
	// candidates is how many addresses a pod gets, so that the kernel sends some of them over each plane.
	candidates = 32
	// enough is the number of packets after which a plane counts as used. It is higher than the number of probes.
	enough = 200
)

// With the planes mode spread, packets use both planes, and soon only one after a gateway fails. No packets are lost
// when the mode changes, or when a node's agent restarts.
func trySpread(t *testing.T, clusters [2]*cluster, random *rand.Rand, limit time.Duration, withFaults bool) {
	t.Helper()
	side := random.IntN(2)
	c, peer := clusters[side], clusters[1-side]
	unnoticed := func(what string, do func()) {
		t.Helper()
		flows := []*flow.Flow{send(t, c, peer, 8), send(t, peer, c, 8)}
		do()
		for _, r := range flow.End(flows...) {
			if t.Logf("%s: %s", what, r); r.Lost > 0 {
				t.Error("a packet was lost")
			}
		}
	}
	unnoticed("from one plane to all", func() {
		setMode(t, clusters, v1alpha1.PlanesSpread)
	})
	// Restarted agents know of no failure, so they use both planes immediately.
	restart := func() { unnoticed("nodes' agents are killed", func() { restartNodeAgents(t, clusters) }) }
	chosen := faults(random)
	if !withFaults {
		chosen = nil
		restart()
	}
	for _, f := range chosen {
		t.Run(f.name, func(t *testing.T) { f.checkOutages(t, clusters, c, random, limit, restart) })
	}
	unnoticed("from all planes to one", func() {
		setMode(t, clusters, v1alpha1.PlanesSingle)
		awaitPlanes(t, clusters, 1)
	})
}

// restartNodeAgents kills the agents of all nodes, and waits until the new ones use all planes.
func restartNodeAgents(t testing.TB, clusters [2]*cluster) {
	t.Helper()
	const started = "this node has an address in the overlay"
	before := map[*process]int{}
	for _, c := range clusters {
		for _, agent := range c.agents[:len(c.nodes)] {
			before[agent] = strings.Count(agent.log.String(), started)
			agent.kill()
			agent.start(t)
		}
	}
	for agent, times := range before {
		kit.Within(t, settleTimeout, "an agent runs again", func() string {
			if strings.Count(agent.log.String(), started) == times {
				return agent.log.String()
			}
			return ""
		})
	}
	awaitPlanes(t, clusters, planes)
}

// setMode sets the planes mode in both clusters.
func setMode(t testing.TB, clusters [2]*cluster, mode v1alpha1.PlanesMode) {
	t.Helper()
	for _, c := range clusters {
		p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: c.peer()}}
		kit.NoError(t, c.api.Client.Patch(t.Context(), p, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"planesMode":"`+string(mode)+`"}}`))))
	}
}

// awaitPlanes waits until each node sends over this number of planes.
func awaitPlanes(t testing.TB, clusters [2]*cluster, want int) {
	t.Helper()
	kit.Within(t, settleTimeout, fmt.Sprintf("the number of planes over which nodes send is %d", want), func() string {
		for _, c := range clusters {
			for i := range c.nodes {
				if got := c.nodes[i].planes(t); len(got) != want {
					return fmt.Sprintf("%s sends over the planes %d", c.nodes[i].name, got)
				}
			}
		}
		return ""
	})
}

// sendByBoth sends packets from a node of a cluster to the other cluster over each plane, and waits until both carry
// them.
func sendByBoth(t *testing.T, c, peer *cluster, size int) (flows []*flow.Flow) {
	t.Helper()
	n, to := &c.nodes[0], mapped(peer.nodes[1].podAddr)
	before := n.sent(t)
	for plane, pairs := range n.pairs(t, n.addresses(t), []netip.Addr{to}) {
		conn := netns.In(t, n.pod, func() (*net.UDPConn, error) {
			return net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(pairs[0].from, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, echoPort)))
		})
		t.Cleanup(func() { _ = conn.Close() })
		f := kit.Must(flow.Start(t.Context(), conn, fmt.Sprintf("%s to %s over plane %d", c.name, peer.name, plane), size))(t)
		flows = append(flows, f)
	}
	kit.Within(t, settleTimeout, "both planes carry packets", func() string {
		now := n.sent(t)
		for plane := range now {
			if now[plane] < before[plane]+enough {
				return fmt.Sprintf("%d packets before, %d now", before, now)
			}
		}
		return ""
	})
	return flows
}

// addresses adds addresses to the node's pod, and returns them.
func (m *machine) addresses(t testing.TB) (out []netip.Addr) {
	t.Helper()
	addr := m.podAddr.As4()
	for i := range byte(candidates) {
		addr[3] = 100 + i
		out = append(out, netip.AddrFrom4(addr))
	}
	m.pod.WithLink(t, "eth0", func(dev netlink.Link) error {
		for _, a := range out {
			if err := netlink.AddrReplace(dev, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())}); err != nil {
				return err
			}
		}
		return nil
	})
	return out
}

// pair is the source and the destination of packets.
type pair struct{ from, to netip.Addr }

// pairs returns, for each plane, the pairs of pod addresses for which the node's kernel uses it.
func (m *machine) pairs(t testing.TB, from, to []netip.Addr) (out [planes][]pair) {
	t.Helper()
	m.Do(t, func() error {
		for _, f := range from {
			for _, to := range to {
				routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Iif: "cni0", SrcAddr: f.AsSlice()})
				if err != nil {
					return fmt.Errorf("route from %s to %s: %w", f, to, err)
				}
				plane, err := planeOf(routes[0].LinkIndex)
				if err != nil {
					return err
				}
				out[plane] = append(out[plane], pair{f, to})
			}
		}
		return nil
	})
	for plane, pairs := range out {
		kit.FatalIf(t, len(pairs) < len(from)*len(to)/8,
			"%d of %d pairs of addresses are sent over plane %d", len(pairs), len(from)*len(to), plane)
	}
	return out
}

// sent returns the number of packets that the node has sent over each plane.
func (m *machine) sent(t testing.TB) (out [planes]uint64) {
	t.Helper()
	m.Do(t, func() error {
		for plane := range out {
			dev, err := netlink.LinkByName(wire.NodeLink(1, int32(plane)))
			if err != nil {
				return err
			}
			out[plane] = dev.Attrs().Statistics.TxPackets
		}
		return nil
	})
	return out
}

// BenchmarkSpread measures the throughput between pods when the link of each gateway is limited: over one plane, and
// over two.
func BenchmarkSpread(b *testing.B) {
	const rate, duration, streams = 40, 3 * time.Second, 4
	clusters := newClusters(b, dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace})
	settled(b, clusters)
	from, to := &clusters[0].nodes[0], &clusters[1].nodes[1]
	for _, c := range clusters {
		for i := range c.nodes {
			c.nodes[i].gateway.Output(b, "tc", strings.Fields(fmt.Sprintf("qdisc add dev eth0 root tbf rate %dmbit burst 128k latency 50ms", rate))...)
		}
	}
	var listen, known []netip.Addr
	for _, a := range to.addresses(b) {
		listen, known = append(listen, a), append(known, mapped(a))
	}
	setMode(b, clusters, v1alpha1.PlanesSpread)
	awaitPlanes(b, clusters, planes)
	var paths []load.Path
	for _, pairs := range from.pairs(b, []netip.Addr{from.podAddr}, known) {
		for _, p := range pairs[:streams] {
			paths = append(paths, load.Path{From: from.pod.Run, To: to.pod.Run, Listen: listen[slices.Index(known, p.to)], Address: p.to})
		}
	}
	throughput := func() (sum float64) {
		var mu sync.Mutex
		var all sync.WaitGroup
		for _, p := range paths {
			all.Go(func() {
				bits, err := load.Throughput(b.Context(), p, 1, duration)
				mu.Lock()
				defer mu.Unlock()
				if sum += bits; err != nil {
					b.Error(err)
				}
			})
		}
		all.Wait()
		return sum / 1e6
	}
	for b.Loop() {
		spread := throughput()
		setMode(b, clusters, v1alpha1.PlanesSingle)
		awaitPlanes(b, clusters, 1)
		one := throughput()
		setMode(b, clusters, v1alpha1.PlanesSpread)
		awaitPlanes(b, clusters, planes)
		b.ReportMetric(one, "Mbit/s-one")
		b.ReportMetric(spread, "Mbit/s-spread")
		b.ReportMetric(spread/one, "spread-to-one")
	}
}
