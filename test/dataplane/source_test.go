package dataplane_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// Pods of both clusters leave their nodes with their own addresses, and both clusters have the same ones. The tunnel
// works although it was started before the nodes had their tables. It continues when the address of the client's node
// changes.
func TestClustersThatDoNotMasquerade(t *testing.T) {
	options := pairs()
	o := options[len(options)-1]
	o.NoMasquerade = true
	n := dataplane.New(t, o)
	serve(t, n)
	testFlows(t, n)
	ping := func(timeout time.Duration) error {
		return dataplane.Ping(n.A.Gateway.NS, n.B.Overlay.Mapped, 56, timeout)
	}
	kit.NoError(t, ping(patience))
	replaceAddress(t, n.A.Nodes[0].NS, "172.18.1.1/16", "172.18.1.77/16")
	kit.Eventually(t, 20*time.Second, "the gateways reach each other with another address of the node",
		func() error { return ping(500 * time.Millisecond) })
}

// replaceAddress replaces the address of eth0 of a node.
func replaceAddress(t *testing.T, ns *netns.NS, from, to string) {
	t.Helper()
	ns.Sysctl(t, "ipv4/conf/eth0/promote_secondaries", "1")
	ns.Addr(t, "eth0", netip.MustParsePrefix(to))
	ns.WithLink(t, "eth0", func(l netlink.Link) error {
		a, err := netlink.ParseAddr(from)
		if err != nil {
			return err
		}
		return netlink.AddrDel(l, a)
	})
}

// router is a node with three pods, and a host outside that replies to each packet with the source that it saw. The
// host has no route to pods.
type router struct {
	node, outside *netns.NS
	pods          [3]*netns.NS
}

var (
	routerPods    = [3]string{"10.244.1.11", "10.244.1.12", "10.244.1.13"}
	routerAddress = netip.MustParseAddr("172.18.0.1")
	outside       = netip.MustParseAddrPort("172.18.0.99:30840")
)

func newRouter(t *testing.T) *router {
	r := &router{node: netns.New(t, "node"), outside: netns.New(t, "outside")}
	netns.Veth(t, r.outside, "eth0", r.node, "eth0")
	r.outside.Addr(t, "eth0", netip.PrefixFrom(outside.Addr(), 24))
	r.node.Addr(t, "eth0", netip.PrefixFrom(routerAddress, 24))
	r.node.Sysctl(t, "ipv4/ip_forward", "1")
	r.node.Bridge(t, "cni0")
	r.node.Addr(t, "cni0", netip.MustParsePrefix("10.244.1.1/24"))
	for i, pod := range routerPods {
		ns := netns.New(t, "pod")
		netns.Veth(t, ns, "eth0", r.node, "veth"+pod[len(pod)-1:])
		r.node.Enslave(t, "veth"+pod[len(pod)-1:], "cni0")
		ns.Addr(t, "eth0", netip.PrefixFrom(netip.MustParseAddr(pod), 24))
		ns.Route(t, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.244.1.1"))
		r.pods[i] = ns
	}
	r.outside.Do(t, func() error {
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.IPv4Unspecified(), outside.Port())))
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			buf := make([]byte, 100)
			for {
				_, from, err := c.ReadFromUDPAddrPort(buf)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				_, _ = c.WriteToUDPAddrPort([]byte(from.String()), from)
			}
		}()
		return nil
	})
	return r
}

// socket opens a socket in a pod, connected to the host like a tunnel.
func (r *router) socket(t *testing.T, pod int, port uint16) *net.UDPConn {
	t.Helper()
	c := netns.In(t, r.pods[pod], func() (*net.UDPConn, error) {
		return net.DialUDP("udp4", &net.UDPAddr{Port: int(port)}, net.UDPAddrFromAddrPort(outside))
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// seen returns the source that the host outside sees, the zero value if its reply does not arrive.
func seen(t *testing.T, c *net.UDPConn) netip.AddrPort {
	t.Helper()
	kit.Must(c.Write([]byte("who am I")))(t)
	buf := make([]byte, 100)
	_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	n, err := c.Read(buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return netip.AddrPort{}
	}
	kit.NoError(t, err)
	return netip.MustParseAddrPort(string(buf[:n]))
}

// apply writes the node's table. Of its three pods, the first two are gateways that call their peer, and the third is
// one that is called.
func (r *router) apply(t *testing.T) (changed bool) {
	t.Helper()
	n := nat.Node{
		OverlayGroup: overlay.Group, OverlayPort: overlay.Port, TunnelPort: tunnel.ListenPort,
		Address: netip.MustParseAddr("10.80.0.1"), Pods: []netip.Prefix{dataplane.Ranges().Pods}, Uplinks: []string{"eth0"},
	}
	for i, pod := range routerPods {
		n.Gateways = append(n.Gateways, nat.NodeGateway{
			Pod: netip.MustParseAddr(pod), Overlay: netip.AddrFrom4([4]byte{10, 80, 31, byte(254 - i)}), Local: true, IsInitiator: i < 2,
		})
	}
	return netns.In(t, r.node, func() (bool, error) { return nat.ApplyNode(context.Background(), n) })
}

// A node sends the tunnels that its gateways call with its own address, but no other packets of its pods.
func TestTunnelSource(t *testing.T) {
	t.Run("no masquerade", func(t *testing.T) {
		r := newRouter(t)
		// If anything translates addresses, as kube-proxy does, the kernel decides only once for each connection.
		dataplane.Masquerade(t, r.node, netip.MustParsePrefix("192.0.2.0/24"))
		tunnels := []*net.UDPConn{r.socket(t, 0, tunnel.ListenPort), r.socket(t, 1, tunnel.ListenPort)}
		other, called := r.socket(t, 0, 4000), r.socket(t, 2, tunnel.ListenPort)
		beyond := r.socket(t, 0, wire.EndOfRange(tunnel.ListenPort)+1)
		// A client that gets no answer calls from another port.
		moved := []*net.UDPConn{r.socket(t, 0, tunnel.ListenPort+1), r.socket(t, 0, wire.EndOfRange(tunnel.ListenPort))}
		// They are tracked before the table exists.
		for _, c := range append(moved, tunnels[0], tunnels[1], other, called, beyond) {
			if got := seen(t, c); got.IsValid() {
				t.Fatalf("without the table %s was answered, seen as %s: the test proves nothing", c.LocalAddr(), got)
			}
		}
		kit.ErrorIf(t, !r.apply(t), "the table existed before")
		kit.ErrorIf(t, r.apply(t), "a second apply changed something")
		first, second := seen(t, tunnels[0]), seen(t, tunnels[1])
		kit.ErrorIf(t, first.Addr() != routerAddress || second.Addr() != routerAddress || first == second,
			"tunnels of two gateways are seen as %s and %s, want two ports of %s", first, second, routerAddress)
		for what, c := range map[string]*net.UDPConn{"another port of a gateway": other, "the next port": beyond, "a gateway that is called": called} {
			if got := seen(t, c); got.IsValid() {
				t.Errorf("%s: seen as %s", what, got)
			}
		}
		for _, c := range moved {
			if got := seen(t, c); got.Addr() != routerAddress || got == first {
				t.Errorf("a tunnel from %s is seen as %s", c.LocalAddr(), got)
			}
		}
		r.apply(t)
		if now := []netip.AddrPort{seen(t, tunnels[0]), seen(t, tunnels[1])}; !slices.Equal(now, []netip.AddrPort{first, second}) {
			t.Errorf("after a second apply, they are seen as %s, not as %s and %s", now, first, second)
		}
		// The node gets another address, which the tunnels then use.
		replaceAddress(t, r.node, routerAddress.String()+"/24", "172.18.0.2/24")
		for _, c := range tunnels {
			kit.Eventually(t, 20*time.Second, "the tunnel is seen with the new address", func() error {
				if got := seen(t, c); got.Addr() != netip.MustParseAddr("172.18.0.2") {
					return errors.New("seen as " + got.String())
				}
				return nil
			})
		}
	})

	t.Run("masqueraded by others", func(t *testing.T) {
		r := newRouter(t)
		dataplane.Masquerade(t, r.node, dataplane.Ranges().Pods)
		old := r.socket(t, 0, tunnel.ListenPort)
		before := seen(t, old)
		r.apply(t)
		kit.ErrorIf(t, r.apply(t), "a second apply changed something")
		if now := seen(t, old); before.Addr() != routerAddress || now != before {
			t.Errorf("a tunnel that was translated is seen as %s, and was as %s", now, before)
		}
		if got := seen(t, r.socket(t, 1, tunnel.ListenPort)); got.Addr() != routerAddress {
			t.Errorf("a new tunnel is seen as %s", got)
		}
	})
}
