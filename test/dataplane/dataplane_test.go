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

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
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
		t.Run("forgery", func(t *testing.T) { testForgery(t, n, o) })
		t.Run("errors of others", func(t *testing.T) { testErrorsOfOthers(t, n, o) })
	})
}

// TestKernel checks what this kernel supports, and changes links in place.
func TestKernel(t *testing.T) {
	each(t, func(t *testing.T, o dataplane.Options) {
		ns := netns.New(t, "node")
		dataplane.WithKernel(t, ns, func(k *overlay.Kernel) error {
			ok, err := k.Supports(o.Overlay)
			kit.ErrorIf(t, err != nil || !ok, "supports %s: %v, %v", o.Overlay, ok, err)
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
		kit.ErrorIf(t, got != step.want || i != index, "%s: changed %s instead of %s, re-created: %v", kind, got, step.want, i != index)
	}
	for setting, want := range map[string]string{"forwarding": "1", "rp_filter": "2", "arp_ignore": "8"} {
		got, err := os.ReadFile("/proc/sys/net/ipv4/conf/loq0-0/" + setting)
		kit.ErrorIf(t, err != nil || strings.TrimSpace(string(got)) != want, "%s is %q: %v", setting, got, err)
	}
	if _, err := k.Apply(context.Background(), overlay.State{}); err != nil {
		return err
	}
	_, err = netlink.LinkByName(link.Name)
	kit.ErrorIf(t, err == nil, "%s: the link was not removed", kind)
	return nil
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
		kit.ErrorIf(t, err != nil || got != source.Mapped, "TCP %d: source %s instead of %s, %v", size, got, source.Mapped, err)
	}
	for _, size := range []int{1, 1400, 4000, 20_000, 60_000} {
		got, err := dataplane.UDP(source.NS, to.Mapped, echoPort, size)
		kit.ErrorIf(t, err != nil || got != source.Mapped, "UDP %d: source %s instead of %s, %v", size, got, source.Mapped, err)
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
			kit.ErrorIf(t, !errors.Is(err, unix.ECONNREFUSED), "%s to %s: closed port: %v", from.Name, to.Name, err)
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
	kit.ErrorIf(t, dataplane.Reaches(n.LAN.NS, n.B.Nodes[0].Pod.Mapped, dataplane.WebPort), "the host reaches the peer's pods")
	n.LAN.Do(t, dropRoutes)
}

// testLinks checks that a gateway and each node reach each other by their overlay addresses, and that the counters that
// agents read count.
func testLinks(t *testing.T, n *dataplane.Topology) {
	for _, c := range []*dataplane.Cluster{n.A, n.B} {
		for i := range c.Nodes {
			kit.CheckNoError(t, dataplane.Ping(c.Gateway.NS, c.Nodes[i].Overlay.Addr, 56, patience), "from gateway %s to node %d", c.Name, i+1)
			kit.CheckNoError(t, dataplane.Ping(c.Nodes[i].NS, c.Overlay.Addr, 56, patience), "from node %d to gateway %s", i+1, c.Name)
		}
		for link, ns := range map[string]*netns.NS{c.Link(): c.Nodes[0].NS, tunnel.InterfaceName: c.Gateway.NS} {
			dataplane.WithKernel(t, ns, func(k *overlay.Kernel) error {
				packets, err := k.Received(link)
				kit.ErrorIf(t, packets == 0, "%s: %s has received no packets", ns, link)
				return err
			})
		}
	}
}

// testErrorsOfOthers sends ICMP errors from the gateway of B, which has no rules, about connections of A that it has no
// part in. Errors in fragments are reassembled by nodes, and not by gateways.
func testErrorsOfOthers(t *testing.T, n *dataplane.Topology, o dataplane.Options) {
	a, b, source := n.A, n.B, mapped("10.61.1.66")
	netns.In(t, b.Gateway, nat.Purge)
	t.Cleanup(func() { b.Apply(t, o.Overlay) })
	const port = 9998
	pod := a.Nodes[1].Pod
	packet := dataplane.Packet(netip.AddrPortFrom(source, 1234), netip.AddrPortFrom(pod.Mapped, port), []byte("forged"))
	kit.ErrorIf(t, !dataplane.Receives(t, pod.NS, port, source, func() error { return dataplane.SendRaw(b.Gateway.NS, packet) }),
		"no packet of the gateway arrives at a pod, so the test proves nothing")
	for _, first := range []int{0, 8, 24} {
		from := a.Nodes[0].Pod
		if dataplane.Broken(t, from, pod, echoPort, func(cause []byte) (err error) {
			for _, packet := range dataplane.Unreachable(source, from.Mapped, cause, first) {
				err = errors.Join(err, dataplane.SendRaw(b.Gateway.NS, packet))
			}
			return err
		}) {
			t.Errorf("a peer's gateway refuses a connection of others, first fragment of %d bytes", first)
		}
	}
}
