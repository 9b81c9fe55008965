package dataplane_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

const echoPort = 7777

func TestMain(m *testing.M) {
	dataplane.ChildMain()
	flag.Parse()
	os.Exit(m.Run())
}

// pairs returns the backends to test: by default, the only pair that needs no special kernel. The virtual machine's
// kernel supports all pairs.
func pairs() []dataplane.Options {
	all := []dataplane.Options{
		{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace},
		{Overlay: overlay.VXLAN, Tunnel: tunnel.Kernel},
		{Overlay: overlay.Geneve, Tunnel: tunnel.Userspace},
		{Overlay: overlay.Geneve, Tunnel: tunnel.Kernel},
	}
	switch os.Getenv("LIQONET_TEST_BACKENDS") {
	case "all":
		return all
	case "kernel":
		return all[3:]
	}
	return all[:1]
}

// anyPair returns a pair for tests that are the same with all backends. The virtual machine is slow, and runs these
// only in test-long.
func anyPair(t *testing.T) dataplane.Options {
	t.Helper()
	if os.Getenv("LIQONET_TEST_BACKENDS") == "kernel" {
		t.Skip("make test-long-vm runs it")
	}
	return pairs()[0]
}

func each(t *testing.T, f func(*testing.T, dataplane.Options)) {
	for _, o := range pairs() {
		t.Run(fmt.Sprintf("%s-%s", o.Overlay, o.Tunnel), func(t *testing.T) { f(t, o) })
	}
}

// serve has all pods of A and B reply.
func serve(t *testing.T, n *dataplane.Topology) {
	t.Helper()
	for _, c := range []*dataplane.Cluster{n.A, n.B} {
		for i := range c.Nodes {
			dataplane.ServeTCP(t, c.Nodes[i].Pod.NS, dataplane.WebPort)
			dataplane.ServeUDP(t, c.Nodes[i].Pod.NS, echoPort)
		}
	}
}

func TestDataPlane(t *testing.T) {
	each(t, func(t *testing.T, o dataplane.Options) {
		n := dataplane.New(t, o)
		serve(t, n)
		t.Run("flows", func(t *testing.T) { testFlows(t, n) })
		t.Run("errors", func(t *testing.T) { testErrors(t, n) })
		t.Run("full size", func(t *testing.T) { testFullSize(t, n, o.MTU()) })
		t.Run("mtu", func(t *testing.T) { testMTU(t, n) })
		t.Run("links", func(t *testing.T) { testLinks(t, n) })
		t.Run("stateless", func(t *testing.T) { testStateless(t, n) })
		t.Run("exposed host", func(t *testing.T) { testExposedHost(t, n) })
		t.Run("isolation", func(t *testing.T) { testIsolation(t, n) })
		t.Run("forgery", func(t *testing.T) { testForgery(t, n, o) })
		t.Run("malicious", func(t *testing.T) { testMalicious(t, n, o) })
		t.Run("purge", func(t *testing.T) { testPurge(t, n) })
	})
}

// TestKernel checks what this kernel supports, and changes links in place.
func TestKernel(t *testing.T) {
	each(t, func(t *testing.T, o dataplane.Options) {
		ns := netns.New(t, "node")
		dataplane.WithKernel(t, ns, func(k *overlay.Kernel) error {
			ok, err := k.Supports(o.Overlay)
			if err != nil || !ok {
				t.Errorf("supports %s: %v, %v", o.Overlay, ok, err)
			}
			if o.Tunnel == tunnel.Kernel {
				if ok, err := k.Supports(tunnel.LinkKind); err != nil || !ok {
					t.Errorf("supports WireGuard: %v, %v", ok, err)
				}
			}
			return changeInPlace(t, k, o.Overlay)
		})
	})
}

func changeInPlace(t *testing.T, k *overlay.Kernel, kind overlay.Kind) error {
	t.Helper()
	link := overlay.Link{
		Name: "loq0-0", Kind: kind, VNI: 7, Local: mapped("10.80.0.1"), Peer: mapped("10.80.31.254"),
		LocalMAC: overlay.MAC{2, 1}, PeerMAC: overlay.MAC{2, 2}, Remote: mapped("192.0.2.2"), MTU: 1400,
	}
	apply := func() (string, int, error) {
		changes, err := k.Apply(context.Background(), overlay.State{Links: []overlay.Link{link}})
		l, linkErr := netlink.LinkByName(link.Name)
		if err := errors.Join(err, linkErr); err != nil {
			return "", 0, err
		}
		return fmt.Sprint(changes), l.Attrs().Index, nil
	}
	_, index, err := apply()
	if err != nil {
		return err
	}
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() {}, "[]"},
		{func() { link.Remote = mapped("192.0.2.3") }, "[changed link loq0-0: remote 192.0.2.3]"},
		{func() {}, "[]"},
		{func() { link.MTU = 1350 }, "[changed link loq0-0: mtu 1350]"},
		{func() {}, "[]"},
	} {
		step.change()
		got, i, err := apply()
		if err != nil {
			return err
		}
		if got != step.want || i != index {
			t.Errorf("%s: changed %s instead of %s, re-created: %v", kind, got, step.want, i != index)
		}
	}
	for setting, want := range map[string]string{"forwarding": "1", "rp_filter": "2", "arp_ignore": "8"} {
		got, err := os.ReadFile("/proc/sys/net/ipv4/conf/loq0-0/" + setting)
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s is %q: %v", setting, got, err)
		}
	}
	_, err = k.Apply(context.Background(), overlay.State{})
	return err
}

// testFlows sends from every pod and node to every pod of the other cluster.
func testFlows(t *testing.T, n *dataplane.Topology) {
	for _, direction := range []struct{ from, to *dataplane.Cluster }{{n.A, n.B}, {n.B, n.A}} {
		for i := range direction.from.Nodes {
			for j := range direction.to.Nodes {
				from, to := &direction.from.Nodes[i], direction.to.Nodes[j].Pod
				for _, source := range []dataplane.Host{from.Pod, from.Overlay} {
					name := fmt.Sprintf("%s %s to %s", source.Name, source.Mapped, to.Name)
					t.Run(name, func(t *testing.T) { testFlow(t, source, to) })
				}
			}
		}
	}
}

func testFlow(t *testing.T, source, to dataplane.Host) {
	kit.CheckNoError(t, dataplane.Ping(source.NS, to.Mapped, 56, patience), "ping")
	kit.CheckNoError(t, dataplane.Ping(source.NS, to.Mapped, 5000, patience), "ping in fragments")
	// The content of a later fragment is not taken for the type of an ICMP error.
	for _, typ := range []byte{3, 4, 5, 11, 12} {
		if err := dataplane.PingWith(source.NS, to.Mapped, bytes.Repeat([]byte{typ}, 5000), patience); err != nil {
			t.Errorf("ping in fragments, all of %d: %v", typ, err)
		}
	}
	for _, size := range []int{1, 300_000} {
		got, err := dataplane.TCP(source.NS, to.Mapped, dataplane.WebPort, size)
		if err != nil || got != source.Mapped {
			t.Errorf("TCP %d: source %s instead of %s, %v", size, got, source.Mapped, err)
		}
	}
	for _, size := range []int{1, 1400, 4000, 20_000, 60_000} {
		got, err := dataplane.UDP(source.NS, to.Mapped, echoPort, size)
		if err != nil || got != source.Mapped {
			t.Errorf("UDP %d: source %s instead of %s, %v", size, got, source.Mapped, err)
		}
	}
}

// testErrors checks that the ICMP errors of every hop arrive.
func testErrors(t *testing.T, n *dataplane.Topology) {
	for _, direction := range []struct{ from, to *dataplane.Cluster }{{n.A, n.B}, {n.B, n.A}} {
		for i := range direction.from.Nodes {
			from, to := direction.from.Nodes[i].Pod, direction.to.Nodes[1].Pod
			// The hops are node, gateway, gateway, node, pod.
			for ttl := 1; ttl <= 4; ttl++ {
				if err := dataplane.Hop(from.NS, to.Mapped, echoPort, ttl); !errors.Is(err, unix.EHOSTUNREACH) {
					t.Errorf("%s to %s: %d hops: %v", from.Name, to.Name, ttl, err)
				}
			}
			kit.CheckNoError(t, dataplane.Hop(from.NS, to.Mapped, echoPort, 5), "%s to %s: 5 hops", from.Name, to.Name)
			_, err := dataplane.UDP(from.NS, to.Mapped, echoPort+1, 100)
			if !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s to %s: closed port: %v", from.Name, to.Name, err)
			}
		}
	}
}

func testMTU(t *testing.T, n *dataplane.Topology) {
	from, to := n.A.Nodes[1].Pod, n.B.Nodes[1].Pod
	if err := dataplane.NotFragmented(from.NS, to.Mapped, echoPort, dataplane.MTU-16); err != nil {
		// The reply is 16 bytes longer.
		t.Errorf("a packet of the MTU: %v", err)
	}
	if got, err := dataplane.DiscoverMTU(from.NS, to.Mapped, echoPort, dataplane.MTU+1); err != nil || got != dataplane.MTU {
		t.Errorf("MTU seen from a pod is %d: %v", got, err)
	}
	// A narrow interface on the far side.
	const narrow = 1300
	n.B.Nodes[1].MTU(t, "veth-pod", narrow)
	to.NS.MTU(t, "eth0", narrow)
	other := n.A.Nodes[0].Pod
	if got, err := dataplane.DiscoverMTU(other.NS, to.Mapped, echoPort, 1400); err != nil || got != narrow {
		t.Errorf("MTU of the far side seen from a pod is %d: %v", got, err)
	}
	if got, err := dataplane.TCP(other.NS, to.Mapped, dataplane.WebPort, 100_000); err != nil || got != other.Mapped {
		t.Errorf("TCP to it: %v, %v", got, err)
	}
	n.B.Nodes[1].MTU(t, "veth-pod", dataplane.UnderlayMTU)
	to.NS.MTU(t, "eth0", dataplane.UnderlayMTU)
}

func testStateless(t *testing.T, n *dataplane.Topology) {
	for _, c := range []*dataplane.Cluster{n.A, n.B} {
		c.Gateway.Do(t, func() error {
			b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if count := strings.TrimSpace(string(b)); err == nil && count != "0" {
				t.Errorf("gateway %s tracks %s connections", c.Name, count)
			}
			return err
		})
	}
}

// testExposedHost connects pods of the peer to a host next to the nodes. The host needs no configuration, and sees a
// node's address. Nothing is open in the other direction.
func testExposedHost(t *testing.T, n *dataplane.Topology) {
	const port = 8090
	dataplane.ServeTCP(t, n.LAN.NS, port)
	dataplane.ServeUDP(t, n.LAN.NS, port)
	for i := range n.B.Nodes {
		for _, from := range []*netns.NS{n.B.Nodes[i].Pod.NS, n.B.Nodes[i].NS} {
			for name, call := range map[string]func(*netns.NS, netip.Addr, uint16, int) (netip.Addr, error){"TCP": dataplane.TCP, "UDP": dataplane.UDP} {
				source, err := call(from, n.LAN.Mapped, port, 5000)
				if err != nil || source != n.A.Nodes[0].Host.Addr {
					t.Errorf("%s calls the host by %s: it saw source %s, want %s: %v", from, name, source, n.A.Nodes[0].Host.Addr, err)
				}
			}
			kit.CheckNoError(t, dataplane.Ping(from, n.LAN.Mapped, 56, patience), "%s pings the host", from)
		}
	}
	n.LAN.Route(t, dataplane.Ranges().MappedPods, n.A.Nodes[0].Host.Addr)
	if dataplane.Reaches(n.LAN.NS, netip.Addr{}, n.B.Nodes[0].Pod.Mapped, dataplane.WebPort) {
		t.Error("the host reaches the peer's pods")
	}
	n.LAN.Do(t, dropRoutes)
}

// testLinks checks that every overlay link has its machine's address on both ends, and that each end reaches the other.
// A gateway has a link for each node, and a node has one for the gateway.
func testLinks(t *testing.T, n *dataplane.Topology) {
	for _, c := range []*dataplane.Cluster{n.A, n.B} {
		machines := []dataplane.Host{{NS: c.Gateway.NS, Addr: c.Overlay.Addr}}
		for i := range c.Nodes {
			machines = append(machines, dataplane.Host{NS: c.Nodes[i].NS, Addr: c.Nodes[i].Overlay.Addr})
			kit.CheckNoError(t, dataplane.Ping(c.Gateway.NS, c.Nodes[i].Overlay.Addr, 56, patience), "from gateway %s to node %d", c.Name, i+1)
			kit.CheckNoError(t, dataplane.Ping(c.Nodes[i].NS, c.Overlay.Addr, 56, patience), "from node %d to gateway %s", i+1, c.Name)
		}
		for i, m := range machines {
			links := 0
			m.Do(t, func() error {
				all, err := netlink.LinkList()
				for _, l := range all {
					if !strings.HasPrefix(l.Attrs().Name, wire.LinkPrefix) {
						continue
					}
					links++
					addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
					if err != nil {
						return err
					}
					if len(addrs) != 1 || addrs[0].IPNet.String() != m.Addr.String()+"/32" {
						t.Errorf("link %s of %s has %v, want %s/32", l.Attrs().Name, m.Name, addrs, m.Addr)
					}
				}
				return err
			})
			want := 1
			if i == 0 {
				want = len(c.Nodes)
			}
			kit.Check(t, "overlay links of "+m.Name, links, want)
		}
	}
}

// testIsolation tries what the pods and hosts of a correctly configured peer could try.
func testIsolation(t *testing.T, n *dataplane.Topology) {
	r := dataplane.Ranges()
	pod := n.B.Nodes[1].Pod
	a := n.A
	for i := range a.Nodes {
		dataplane.ServeTCP(t, a.Nodes[i].NS, 22)
	}
	dataplane.ServeTCP(t, a.Gateway.NS, 22)
	if !dataplane.Reaches(pod.NS, netip.Addr{}, a.Nodes[0].Pod.Mapped, dataplane.WebPort) {
		t.Error("a pod is not reached, so the test proves nothing")
	}
	denied := map[string]struct {
		dst  netip.Addr
		port uint16
	}{
		"node by its overlay address":              {a.Nodes[0].Overlay.Mapped, 22},
		"NodePort by the node's overlay address":   {a.Nodes[0].Overlay.Mapped, dataplane.WebNodePort},
		"NodePort by the other node's address":     {a.Nodes[1].Overlay.Mapped, dataplane.WebNodePort},
		"node by its address in the pod range":     {mapped("10.61.1.1"), 22},
		"NodePort by the address in the pod range": {mapped("10.61.1.1"), dataplane.WebNodePort},
		"NodePort by the second node's address":    {mapped("10.61.2.1"), dataplane.WebNodePort},
		"gateway's port by its pod address":        {a.Gateway.Mapped, 22},
		"gateway's port by its overlay address":    {a.Overlay.Mapped, 22},
	}
	for name, d := range denied {
		if dataplane.Reaches(pod.NS, netip.Addr{}, d.dst, d.port) {
			t.Errorf("a peer's pod reaches: %s", name)
		}
	}
	// The gateway itself can be pinged from the other one.
	kit.CheckNoError(t, dataplane.Ping(n.B.Gateway.NS, a.Overlay.Mapped, 56, patience), "ping from gateway to gateway")
	for i := range a.Nodes {
		kit.CheckNoError(t, dataplane.Ping(a.Gateway.NS, a.Nodes[i].Overlay.Addr, 56, patience), "ping from gateway to node %d", i+1)
		kit.CheckNoError(t, dataplane.Ping(a.Nodes[i].NS, a.Overlay.Addr, 56, patience), "ping from node %d to gateway", i+1)
	}
	// A host next to the nodes that routes the peer's pods through one of them.
	n.LAN.Route(t, r.MappedPods, a.Nodes[1].Host.Addr)
	if dataplane.Reaches(n.LAN.NS, netip.Addr{}, n.B.Nodes[0].Pod.Mapped, dataplane.WebPort) {
		t.Error("a host in the LAN reaches the peer's pods through a node")
	}
	n.LAN.Do(t, dropRoutes)
	// A service of this cluster with an endpoint at the peer would be dnat. A packet to the overlay's port from
	// elsewhere is not accepted.
	for _, target := range []dataplane.Host{a.Nodes[0].Host, a.Nodes[1].Host} {
		if dataplane.ReachesUDP(n.LAN.NS, netip.Addr{}, target.Addr, overlay.Port) {
			t.Errorf("a host in the LAN reaches the overlay's port of %s", target.Name)
		}
	}
}

// testMalicious makes the gateway of B behave as badly as possible: it routes everything into the tunnel, and filters
// nothing.
func testMalicious(t *testing.T, n *dataplane.Topology, o dataplane.Options) {
	r := dataplane.Ranges()
	a, b := n.A, n.B
	evil := b.Config
	evil.Peer.AllowedIPs = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	b.Tunnel.Configure(t, evil)
	source := mapped("10.61.1.66")
	spoofed := mapped("192.0.2.66")
	b.Gateway.Do(t, func() error {
		if _, err := nat.Purge(); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, s := range []netip.Addr{source, spoofed} {
			if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: netlink.NewIPNet(s.AsSlice())}); err != nil {
				return err
			}
		}
		return nil
	})
	t.Cleanup(func() {
		b.Tunnel.Configure(t, b.Config)
		b.Apply(t, o.Overlay)
	})
	for _, target := range []string{"10.244.1.0/24", "10.244.2.0/24", "10.96.0.0/16", "172.18.1.0/24", "10.80.0.0/19", "172.18.9.0/24"} {
		through(t, b.Gateway.NS, netip.MustParsePrefix(target), source)
	}
	if !dataplane.Reaches(b.Gateway.NS, source, a.Nodes[0].Pod.Mapped, dataplane.WebPort) {
		t.Error("a pod is not reached, so the test proves nothing")
	}
	denied := map[string]struct {
		source, dst netip.Addr
		port        uint16
	}{
		"pod by its real address":               {source, a.Nodes[1].Pod.Addr, dataplane.WebPort},
		"ClusterIP":                             {source, r.ClusterIP, 80},
		"node's underlay address":               {source, a.Nodes[1].Host.Addr, 22},
		"NodePort by the underlay address":      {source, a.Nodes[1].Host.Addr, dataplane.WebNodePort},
		"node's real overlay address":           {source, a.Nodes[0].Overlay.Addr, dataplane.WebNodePort},
		"NodePort by the overlay address":       {source, a.Nodes[0].Overlay.Mapped, dataplane.WebNodePort},
		"host in the LAN":                       {source, n.LAN.Addr, 22},
		"gateway's port":                        {source, a.Overlay.Mapped, 22},
		"pod from a source that is not allowed": {spoofed, a.Nodes[0].Pod.Mapped, dataplane.WebPort},
	}
	dataplane.ServeTCP(t, n.LAN.NS, 22)
	for name, d := range denied {
		if dataplane.Reaches(b.Gateway.NS, d.source, d.dst, d.port) {
			t.Errorf("a malicious gateway reaches: %s", name)
		}
	}
	// Replies to a packet to a real address would come from the mapped one, so the test is whether the packet arrives
	// at all. Each packet has its own port, so that it is not confused with a late earlier one.
	pod := a.Nodes[1].Pod
	if !dataplane.Arrives(t, b.Gateway.NS, source, pod.Mapped, pod.NS, 9998) {
		t.Error("nothing arrives at a pod, so the test proves nothing")
	}
	if dataplane.Arrives(t, b.Gateway.NS, source, pod.Addr, pod.NS, 9997) {
		t.Error("a packet of a malicious gateway arrives at: pod by its real address")
	}
	if dataplane.Arrives(t, b.Gateway.NS, spoofed, pod.Mapped, pod.NS, 9996) {
		t.Error("a packet of a malicious gateway arrives at: pod from a source that is not allowed")
	}
	// Errors about connections that the peer has no part in, also in fragments, which nodes reassemble and gateways do
	// not.
	for _, first := range []int{0, 8, 24} {
		from := a.Nodes[0].Pod
		if dataplane.Broken(t, from, a.Nodes[1].Pod, echoPort, func(cause []byte) (err error) {
			for _, packet := range dataplane.Unreachable(source, from.Mapped, cause, first) {
				err = errors.Join(err, dataplane.SendRaw(b.Gateway.NS, packet))
			}
			return err
		}) {
			t.Errorf("a malicious gateway refuses a connection of others, first fragment of %d bytes", first)
		}
	}
	dataplane.ServeUDP(t, a.Gateway.NS, 9999)
	if dataplane.ReachesUDP(b.Gateway.NS, source, a.Overlay.Mapped, 9999) {
		t.Error("a malicious gateway reaches: gateway's UDP port")
	}
}

// through routes a prefix into the tunnel.
func through(t *testing.T, ns *netns.NS, dst netip.Prefix, source netip.Addr) {
	t.Helper()
	ns.WithLink(t, tunnel.InterfaceName, func(l netlink.Link) error {
		_, ipNet, err := netParse(dst)
		if err != nil {
			return err
		}
		// In a separate table, before all others.
		if err := netlink.RouteReplace(&netlink.Route{
			LinkIndex: l.Attrs().Index, Dst: ipNet, Src: source.AsSlice(), Table: 99, Scope: netlink.SCOPE_LINK,
		}); err != nil {
			return err
		}
		for _, from := range []string{"10.61.1.66/32", "192.0.2.66/32"} {
			rule := netlink.NewRule()
			rule.Priority, rule.Table = 10, 99
			_, rule.Src, _ = netParse(netip.MustParsePrefix(from))
			if err := netlink.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
		}
		return nil
	})
}

func testPurge(t *testing.T, n *dataplane.Topology) {
	for _, c := range []*dataplane.Cluster{n.A, n.B} {
		for _, ns := range []*netns.NS{c.Nodes[0].NS, c.Nodes[1].NS, c.Gateway.NS} {
			dataplane.WithKernel(t, ns, func(k *overlay.Kernel) error {
				if _, err := k.Apply(context.Background(), overlay.State{}); err != nil {
					return err
				}
				if _, err := nat.Purge(); err != nil {
					return err
				}
				forward, err := firewall.RemoveAcceptRules()
				if isNode := ns != c.Gateway.NS; err != nil || forward != isNode {
					t.Errorf("%s: rules in chains of others were removed: %v, want %v; %v", ns.Name, forward, isNode, err)
				}
				links, err := netlink.LinkList()
				for _, l := range links {
					if strings.HasPrefix(l.Attrs().Name, wire.LinkPrefix) {
						t.Errorf("%s: link %s was not removed", ns.Name, l.Attrs().Name)
					}
				}
				return err
			})
		}
	}
}
