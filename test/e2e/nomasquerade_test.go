package e2e

import (
	"net"
	"net/netip"
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
	require(t, routed.spec.PodCIDR == fx.alpha.spec.PodCIDR && !routed.spec.PodCIDR.Overlaps(fx.gamma.spec.PodCIDR),
		"%s has the pods %s: the rest proves nothing", routed.Name, routed.spec.PodCIDR)
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
			unpeered(t, ctx, routed, test.peer)
		})
	}
}

// checkAnonymous makes sure that a pod gets no answer from outside of its cluster: not
// from another cluster's API server, which is no pod and answers everybody else.
func checkAnonymous(t *testing.T, c *cluster) {
	server := must(fx.lab.Node(fx.gamma.Name + "-cp"))(t)
	connect := func(v *vantage) error {
		return v.do(func() error {
			conn, err := net.DialTimeout("tcp4", netip.AddrPortFrom(server.Address, 6443).String(), shortTimeout)
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
	err := connect(c.nodes[0].vantage)
	require(t, err == nil, "a node does not reach another cluster's API server: the rest proves nothing: %v", err)
	require(t, connect(c.pods[0].vantage) != nil, "a pod of %s is answered from outside: the rest proves nothing", c.Name)
}
