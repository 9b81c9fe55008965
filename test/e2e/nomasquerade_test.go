package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/liqonet/liqonet/test/lab"
)

// Pods of a cluster leave its nodes with their own addresses, which nobody outside can
// answer. It is peered all the same: with a cluster of the same ranges and with one of
// others, as server and as client, and with a cluster of its own kind.
func TestNoMasquerade(t *testing.T) {
	added := useClusters(
		t,
		lab.ClusterSpec{Name: "routed", Network: lab.NetworkRouted, Workers: 2},
		lab.ClusterSpec{Name: "routed-too", Network: lab.NetworkRouted, ProxyMode: lab.ProxyNFTables, Workers: 1},
	)
	routed, too := added[0], added[1]
	if routed.spec.PodCIDR != fx.alpha.spec.PodCIDR || routed.spec.PodCIDR.Overlaps(fx.gamma.spec.PodCIDR) {
		t.Fatalf("%s has the pods %s: the rest proves nothing", routed.Name, routed.spec.PodCIDR)
	}
	for _, test := range []struct {
		name         string
		peer, server *cluster
	}{
		{"equal ranges, as client", fx.alpha, fx.alpha},
		{"equal ranges, as server", fx.alpha, routed},
		{"disjoint ranges, as client", fx.gamma, fx.gamma},
		{"disjoint ranges, as server", fx.gamma, routed},
		{"both of this kind", too, too},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := begin(t)
			checkAnonymous(t, routed)
			mustLiqonet(t, ctx, "peer", routed.Name, test.peer.Name, "--server", test.server.Name)
			checkPair(t, ctx, routed, test.peer)
			if test.server != routed {
				checkNodeAddress(t, ctx, routed, test.peer)
			}
			mustLiqonet(t, ctx, "unpeer", routed.Name, test.peer.Name)
			checkNothingLeft(t, ctx)
		})
	}
}

// checkAnonymous makes sure that a pod gets no answer from outside of its cluster: not
// from another cluster's API server, which is no pod and answers everybody else.
func checkAnonymous(t *testing.T, c *cluster) {
	t.Helper()
	server, err := fx.lab.Node(fx.gamma.Name + "-cp")
	if err != nil {
		t.Fatal(err)
	}
	connect := func(v *vantage) error {
		return v.do(func() error {
			conn, err := net.DialTimeout("tcp4", netip.AddrPortFrom(server.Address, 6443).String(), shortTimeout)
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
	if err := connect(c.nodes[0].vantage); err != nil {
		t.Fatalf("a node does not reach another cluster's API server: the rest proves nothing: %v", err)
	}
	if connect(c.pods[0].vantage) == nil {
		t.Fatalf("a pod of %s is answered from outside: the rest proves nothing", c.Name)
	}
}

// checkNodeAddress gives the node of the calling gateway another address for a while.
// Its pods reach the peer by that one. What the other nodes know of it is not mended
// here: they have static routes.
func checkNodeAddress(t *testing.T, ctx context.Context, c, peer *cluster) {
	t.Helper()
	name := c.gatewayNode(t)
	i := slices.IndexFunc(c.nodes, func(n node) bool { return n.Node.Name == name })
	n := c.nodes[i]
	bits := c.spec.NodeSubnet.Bits()
	old := netip.PrefixFrom(n.Address, bits)
	replaced := netip.PrefixFrom(n.Address, bits)
	for range 100 { // out of the way of nodes
		replaced = netip.PrefixFrom(replaced.Addr().Next(), bits)
	}
	replace := func(ctx context.Context, from, to netip.Prefix) {
		t.Helper()
		if _, err := n.shell(ctx, fmt.Sprintf(`set -e
			before=$(sysctl -n net.ipv4.conf.eth0.promote_secondaries)
			sysctl -q net.ipv4.conf.eth0.promote_secondaries=1
			ip addr add %s brd + dev eth0; ip addr del %s dev eth0
			sysctl -q net.ipv4.conf.eth0.promote_secondaries=$before`, to, from)); err != nil {
			t.Fatal(err)
		}
	}
	views := status(t, ctx, 0, c, peer)
	target := peer.pods[0]
	address := viewOf(t, views, peer, c).seenAs(t, target.IP)
	want := answer{target.Pod.Name, viewOf(t, views, c, peer).seenAs(t, c.pods[i].IP)}
	reached := func() string {
		got, err := c.pods[i].call("udp", address, callTimeout)
		if err != nil {
			return err.Error()
		}
		if got != want {
			return fmt.Sprintf("it was answered by %v, want %v", got, want)
		}
		return ""
	}
	replace(ctx, old, replaced)
	back := sync.OnceFunc(func() { replace(context.WithoutCancel(ctx), replaced, old) })
	defer back()
	eventually(t, ctx, callTimeout*3, "pods on the gateway's node reach the peer with another address of that node", reached)
	back()
	eventually(t, ctx, callTimeout*3, "and again with the first one", reached)
	checkMended(t, ctx, c, peer)
}
