package agents

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

const (
	echoPort = 7777
	// faultTime is how long a fault lasts. Packets have to pass before it ends.
	faultTime = 2 * time.Second
	// settleTimeout is how long agents may take until both planes work.
	settleTimeout = 90 * time.Second
	// largeSize is more than large, with all headers, and less than the MTU of the path.
	largeSize, large = 1200, 1100
)

// fault ends what a gateway does, in one way. size is that of the packets that are sent meanwhile.
type fault struct {
	name string
	size int
	do   func(t *testing.T, gateway *process) (mend func())
}

// faults are all of them, with every change one.
func faults() []fault {
	drop := func(in, out bool, above uint32) func(t *testing.T, gateway *process) func() {
		return func(t *testing.T, gateway *process) func() {
			t.Helper()
			return dropPackets(t, gateway.NS, in, out, above)
		}
	}
	all := []fault{
		{"killed", 8, func(t *testing.T, gateway *process) func() {
			t.Helper()
			gateway.kill()
			return func() { gateway.start(t) }
		}},
		{"SIGSTOP", 8, func(t *testing.T, gateway *process) func() {
			t.Helper()
			gateway.signal(t, syscall.SIGSTOP)
			return func() { gateway.signal(t, syscall.SIGCONT) }
		}},
		{"link cut", 8, drop(true, true, 0)},
		{"cut in one direction, out", 8, drop(false, true, 0)},
		{"cut in one direction, in", 8, drop(true, false, 0)},
		{"large packets dropped", largeSize, drop(true, true, large)},
	}
	if !kit.Full() {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:1]
	}
	return all
}

// Whatever happens to one gateway, packets soon pass by the other plane.
func TestFailover(t *testing.T) {
	o := dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace}
	clusters := newClusters(t, o)
	settled(t, clusters)
	for side, c := range clusters {
		for _, f := range faults() {
			t.Run(fmt.Sprintf("%s-%s/%s at the %s", o.Overlay, o.Tunnel, f.name, []string{"server", "client"}[side]), func(t *testing.T) {
				f.try(t, clusters, c)
			})
		}
	}
}

// try makes the fault at the gateway by which a cluster's first node sends.
func (f fault) try(t *testing.T, clusters [2]*cluster, c *cluster) {
	t.Helper()
	settled(t, clusters)
	peer := clusters[0]
	if peer == c {
		peer = clusters[1]
	}
	there, back := send(t, c, peer, f.size), send(t, peer, c, f.size)
	for _, fl := range []*flow.Flow{there, back} {
		eventually(t, flow.Patience, "packets pass", func() string { return fl.Unanswered(50, flow.Patience) })
	}
	mend := f.do(t, c.gateways[c.nodes[0].plane(t)])
	time.Sleep(faultTime) // it lasts so long
	results := flow.End(there, back)
	mend()
	for _, r := range results {
		t.Logf("%s; packets were sent %s late", r, r.Late.Round(time.Millisecond))
		if r.Gap >= faultTime {
			t.Errorf("%s: packets did not pass while the fault lasted, %s", r, faultTime)
		}
	}
}

// settled waits until both planes work for all nodes.
func settled(t *testing.T, clusters [2]*cluster) {
	t.Helper()
	for _, c := range clusters {
		eventually(t, settleTimeout, "both planes of "+c.name+" work", func() string {
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
				return fmt.Sprintf("%d ways of nodes work, want %d", ready, want)
			}
			return ""
		})
	}
}

// plane is the one by which the kernel of a node sends packets to the peer.
func (m *machine) plane(t *testing.T) (plane int) {
	t.Helper()
	m.Do(t, func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: overlay.Table}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		best := -1
		for i, r := range routes {
			if r.Dst != nil && r.Dst.String() == mappedPods && r.LinkIndex > 0 && (best < 0 || r.Priority < routes[best].Priority) {
				best = i
			}
		}
		if best < 0 {
			return fmt.Errorf("no route to %s: %v", mappedPods, routes)
		}
		dev, err := netlink.LinkByIndex(routes[best].LinkIndex)
		if err != nil {
			return err
		}
		_, err = fmt.Sscanf(dev.Attrs().Name, overlay.NamePrefix+"1-%d", &plane)
		return err
	})
	return plane
}

// send sends packets from the first pod of a cluster to the second one of the other.
func send(t *testing.T, from, to *cluster, size int) *flow.Flow {
	t.Helper()
	addr, base := to.nodes[1].podAddr.As4(), netip.MustParsePrefix(mappedPods).Addr().As4()
	copy(addr[:2], base[:2])
	var conn *net.UDPConn
	from.nodes[0].pod.Do(t, func() (err error) {
		conn, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(addr), echoPort)))
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	f, err := flow.Start(t.Context(), conn, from.name+" to "+to.name, size)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// echo answers packets as package flow expects.
func echo(t *testing.T, ns *netns.NS) {
	t.Helper()
	var c net.PacketConn
	ns.Do(t, func() (err error) {
		c, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", echoPort))
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 1<<12)
		buf[0] = '\n'
		for {
			n, from, err := c.ReadFrom(buf[1:])
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = c.WriteTo(buf[:n+1], from) // lost like any packet
			}
		}
	}()
}

// dropPackets has a gateway's interface lose packets with more bytes than above, those that come in, go out, or both.
func dropPackets(t *testing.T, ns *netns.NS, in, out bool, above uint32) (mend func()) {
	t.Helper()
	table := &nftables.Table{Name: "cut", Family: nftables.TableFamilyNetdev}
	ns.Do(t, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.AddTable(table)
		for name, hook := range map[string]*nftables.ChainHook{"in": nftables.ChainHookIngress, "out": nftables.ChainHookEgress} {
			if name == "in" && !in || name == "out" && !out {
				continue
			}
			chain := c.AddChain(&nftables.Chain{
				Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRef(-500), Device: "eth0",
			})
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
				&expr.Meta{Key: expr.MetaKeyLEN, Register: 1},
				&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
				&expr.Cmp{Op: expr.CmpOpGt, Register: 1, Data: []byte{byte(above >> 24), byte(above >> 16), byte(above >> 8), byte(above)}},
				&expr.Verdict{Kind: expr.VerdictDrop},
			}})
		}
		return c.Flush()
	})
	return func() {
		ns.Do(t, func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			c.DelTable(table)
			return c.Flush()
		})
	}
}
