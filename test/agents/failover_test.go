package agents

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samber/lo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/bare"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/kit"
)

const (
	echoPort = 7777
	// switchTimeout is how long the test waits until packets use another plane. Whether that took too long is decided by
	// several runs: see checkOutages.
	switchTimeout = 10 * time.Second
	// settleTimeout is how long agents may take until both planes work.
	settleTimeout = 90 * time.Second
	// settledFor is longer than the time during which nodes avoid a plane that has lost packets.
	settledFor = 3 * time.Second
	// leaveTimeout is how long a node may take to leave a plane. Requests change their port after 1.6 s.
	leaveTimeout = 15 * time.Second
	// learnTime is longer than the interval of all packets whose flows have to be known.
	learnTime = 6 * time.Second
	// slow is how long agents of nodes do nothing, as on a busy machine. A gateway takes at least a second to end.
	slow = 1500 * time.Millisecond
	// largeSize is larger than large, with all headers, and smaller than the MTU of the path.
	largeSize, large = 1200, 1100
)

// fault disrupts a gateway in one way. size is the size of the packets that are sent during the fault.
type fault struct {
	name string
	size int
	do   func(t *testing.T, c *cluster, gateway *process) (repair func())
	// lossless is true if no packets may be lost.
	lossless bool
	// unrecorded is true if only nodes notice the fault, and not the gateways.
	unrecorded bool
}

// faults returns all faults in make test-long, otherwise one.
func faults(random *rand.Rand) []fault {
	drop := func(in, out bool, above uint32) func(t *testing.T, _ *cluster, gateway *process) func() {
		return func(t *testing.T, _ *cluster, gateway *process) func() {
			t.Helper()
			return gateway.Drop(t, "eth0", in, out, above)
		}
	}
	end := func(t *testing.T, gateway *process, during func()) func() {
		t.Helper()
		gateway.signal(t, syscall.SIGTERM)
		during()
		kit.CheckNoError(t, gateway.cmd.Wait())
		return func() { gateway.start(t) }
	}
	all := []fault{
		{"killed", 8, func(t *testing.T, _ *cluster, gateway *process) func() {
			t.Helper()
			gateway.kill()
			return func() { gateway.start(t) }
		}, false, false},
		{"ended", 8, func(t *testing.T, _ *cluster, gateway *process) func() {
			t.Helper()
			return end(t, gateway, func() {})
		}, true, false},
		{"ended while nodes' agents are slow", 8, func(t *testing.T, c *cluster, gateway *process) func() {
			t.Helper()
			nodes := c.agents[:len(c.nodes)]
			for _, n := range nodes {
				n.signal(t, syscall.SIGSTOP)
			}
			return end(t, gateway, func() {
				time.Sleep(slow) // this is the fault
				for _, n := range nodes {
					n.signal(t, syscall.SIGCONT)
				}
			})
		}, true, false},
		{"SIGSTOP", 8, func(t *testing.T, _ *cluster, gateway *process) func() {
			t.Helper()
			gateway.signal(t, syscall.SIGSTOP)
			return func() { gateway.signal(t, syscall.SIGCONT) }
		}, false, false},
		{"link cut", 8, drop(true, true, 0), false, false},
		{"cut in one direction, out", 8, drop(false, true, 0), false, false},
		{"cut in one direction, in", 8, drop(true, false, 0), false, false},
		{"large packets dropped", largeSize, drop(true, true, large), false, false},
		{"new flows of the overlay dropped", 8, func(t *testing.T, _ *cluster, gateway *process) func() {
			t.Helper()
			return dropNewFlows(t, gateway)
		}, true, true},
	}
	if !kit.Full() {
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:1]
	}
	return all
}

// Whatever happens to one gateway, packets soon use the other plane.
func TestFailover(t *testing.T) {
	o := dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace}
	clusters := newClusters(t, o)
	settled(t, clusters)
	random, recorded := kit.Random(t), false
	sides := random.Perm(len(clusters))
	// A fault is caused five times. Without Full, it happens in one of the planes modes.
	inSpread := kit.Full() || random.IntN(2) == 0
	if !kit.Full() {
		sides = sides[:lo.Ternary(inSpread, 0, 1)]
	}
	limit := bare.Limit(t)
	for _, side := range sides {
		for _, f := range faults(random) {
			recorded = recorded || !f.unrecorded && !f.lossless
			t.Run(fmt.Sprintf("%s-%s/%s at the %s", o.Overlay, o.Tunnel, f.name, []string{"server", "client"}[side]), func(t *testing.T) {
				f.checkOutages(t, clusters, clusters[side], random, limit, func() {})
			})
		}
	}
	for i, c := range clusters {
		// A gateway that was killed records nothing, but its peer does.
		if recorded && (kit.Full() || !slices.Contains(sides, i)) {
			c.checkHistory(t)
		}
		c.checkLogLevel(t)
	}
	t.Run("spread", func(t *testing.T) { trySpread(t, clusters, random, limit, inSpread) })
	checkNoSecret(t, clusters)
}

// checkOutages causes the fault several times, each time after prepare, and compares the median of the outages with a limit.
func (f fault) checkOutages(t *testing.T, clusters [2]*cluster, c *cluster, random *rand.Rand, limit time.Duration, prepare func()) {
	t.Helper()
	var outages []time.Duration
	for range lo.Ternary(f.lossless, 1, bare.Runs) {
		prepare()
		outages = append(outages, f.try(t, clusters, c, random))
	}
	if median := bare.Median(outages); median > limit {
		t.Errorf("the median of %v is %s, limit %s", outages, median, limit)
	}
}

// try causes the fault at a gateway that a cluster's first node uses. It returns for how long packets were lost.
func (f fault) try(t *testing.T, clusters [2]*cluster, c *cluster, random *rand.Rand) (outage time.Duration) {
	t.Helper()
	settled(t, clusters)
	peer := clusters[0]
	if peer == c {
		peer = clusters[1]
	}
	flows := []*flow.Flow{send(t, c, peer, f.size), send(t, peer, c, f.size)}
	for _, fl := range flows {
		kit.Within(t, flow.Patience, "packets pass", func() string { return fl.Unanswered(50, flow.Patience) })
	}
	inUse := c.nodes[0].planes(t)
	if len(inUse) > 1 {
		flows = append(flows, sendByBoth(t, c, peer, f.size)...)
	}
	plane := inUse[random.IntN(len(inUse))]
	repair := f.do(t, c, c.gateways[plane])
	defer repair()
	kit.Within(t, leaveTimeout, "the node leaves the plane", func() string {
		if now := c.nodes[0].planes(t); slices.Contains(now, plane) {
			return fmt.Sprintf("it sends over the planes %v", now)
		}
		return ""
	})
	moved := time.Now().Add(time.Second)
	for _, fl := range flows {
		kit.Within(t, switchTimeout, "packets pass by the other plane", func() string { return fl.NoneSince(moved) })
	}
	for _, r := range flow.End(flows...) {
		t.Logf("%s; packets were sent %s late", r, r.Late.Round(time.Millisecond))
		kit.ErrorIf(t, f.lossless && r.Lost > 0, "%s, although none may be lost", r)
		outage = max(outage, r.Gap)
	}
	return outage
}

// dropNewFlows drops packets of nodes to a gateway if they belong to flows that have not passed before.
func dropNewFlows(t *testing.T, gateway *process) (repair func()) {
	t.Helper()
	rule := func(action string) {
		gateway.Output(t, "nft", fmt.Sprintf("flush chain ip fault in; add rule ip fault in udp dport %d %s", overlay.Port, action))
	}
	gateway.Output(t, "nft", `add table ip fault
		add set ip fault known { type ipv4_addr . inet_service; flags dynamic; size 65535; }
		add chain ip fault in { type filter hook prerouting priority -500; }`)
	rule("add @known { ip saddr . udp sport }")
	kit.Within(t, flow.Patience, "flows are known", func() string {
		if !strings.Contains(gateway.Output(t, "nft", "list set ip fault known"), "elements") {
			return "none has passed"
		}
		return ""
	})
	time.Sleep(learnTime)
	rule("ip saddr . udp sport != @known drop")
	return func() { gateway.Output(t, "nft", "delete table ip fault") }
}

// settled waits until both planes work for all nodes.
func settled(t testing.TB, clusters [2]*cluster) {
	t.Helper()
	for _, c := range clusters {
		kit.WithinFor(t, settleTimeout, settledFor, "both planes of "+c.name+" work", func() string {
			var p v1alpha1.Peering
			if err := c.api.Client.Get(t.Context(), types.NamespacedName{Name: c.peer()}, &p); err != nil {
				return err.Error()
			}
			for i := range c.gateways {
				if s := p.PlaneStatus(int32(i)); s == nil || !s.Connected {
					return fmt.Sprintf("plane %d: %+v", i, s)
				}
			}
			var list v1alpha1.NodeNetworkList
			if err := c.api.Client.List(t.Context(), &list); err != nil {
				return err.Error()
			}
			ready := 0
			for _, n := range list.Items {
				for _, g := range n.Status.Gateways {
					if g.Ready {
						ready++
					}
				}
			}
			if want := len(c.nodes) * planes; ready != want {
				return fmt.Sprintf("%d paths of nodes work, want %d", ready, want)
			}
			return ""
		})
	}
}

// plane returns the plane over which the kernel of a node sends packets to the peer.
func (m *machine) plane(t testing.TB) int {
	t.Helper()
	planes := m.planes(t)
	kit.FatalIf(t, len(planes) != 1, "%s sends over the planes %d", m.name, planes)
	return planes[0]
}

// planes returns the planes over which the kernel of a node sends packets to the peer.
func (m *machine) planes(t testing.TB) (planes []int) {
	t.Helper()
	m.Do(t, func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: overlay.Table}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		best := -1
		for i, r := range routes {
			if r.Dst != nil && r.Dst.String() == mappedPods && r.Type == unix.RTN_UNICAST && (best < 0 || r.Priority < routes[best].Priority) {
				best = i
			}
		}
		if best < 0 {
			return fmt.Errorf("no route to %s: %v", mappedPods, routes)
		}
		hops := routes[best].MultiPath
		if len(hops) == 0 {
			hops = []*netlink.NexthopInfo{{LinkIndex: routes[best].LinkIndex}}
		}
		for _, h := range hops {
			plane, err := planeOf(h.LinkIndex)
			if err != nil {
				return err
			}
			planes = append(planes, plane)
		}
		return nil
	})
	return planes
}

// planeOf returns the plane of a link, in the namespace of this thread.
func planeOf(link int) (plane int, err error) {
	dev, err := netlink.LinkByIndex(link)
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(dev.Attrs().Name, wire.LinkPrefix+"1-%d", &plane)
	return plane, err
}

// send sends packets from the first pod of a cluster to the second pod of the other.
func send(t testing.TB, from, to *cluster, size int) *flow.Flow {
	t.Helper()
	return dataplane.Send(t, from.nodes[0].pod, mapped(to.nodes[1].podAddr), echoPort, from.name+" to "+to.name, size)
}

// mapped returns the address by which the peer knows a pod.
func mapped(pod netip.Addr) netip.Addr {
	addr, base := pod.As4(), netip.MustParsePrefix(mappedPods).Addr().As4()
	copy(addr[:2], base[:2])
	return netip.AddrFrom4(addr)
}
