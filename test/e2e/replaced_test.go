package e2e

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"github.com/liqonet/liqonet/test/lab"
)

// All nodes of the cluster that is called are replaced, one by one, until no address is
// left by which the client called it at first. The client learns the new ones from
// the peer's gateway, and calls them, also when its own gateway starts anew.
func TestDefect1_13_NodesReplaced(t *testing.T) {
	server := useClusters(t, lab.ClusterSpec{Name: "replaced", PodCIDR: netip.MustParsePrefix("10.61.0.0/16"), Workers: 1})[0]
	client := fx.alpha
	ctx := begin(t)
	lc, err := fx.lab.Cluster(server.Name)
	if err != nil {
		t.Fatal(err)
	}
	mustLiqonet(t, ctx, "peer", server.Name, client.Name, "--server", server.Name, "--service-type=NodePort")
	checkPair(t, ctx, server, client)
	called := func(path string) (hosts []string) {
		t.Helper()
		var endpoints []string
		out := jsonPath(t, ctx, client, path, "get", "peerings.liqonet.io", server.Name)
		if out == "" {
			return nil
		}
		if err := json.Unmarshal([]byte(out), &endpoints); err != nil {
			t.Fatalf("%s: %v: %s", path, err, out)
		}
		for _, e := range endpoints {
			hosts = append(hosts, netip.MustParseAddrPort(e).Addr().String())
		}
		return hosts
	}
	const given, learned = "{.spec.planes[0].endpoints}", "{.status.planes[0].remote.endpoints}"
	first := server.nodes[0].Node
	for range 2 {
		old := server.nodes[0].Node
		added, err := lc.AddNode(ctx)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, ctx, podTimeout, "the client learns the address of "+added.Name, func() string {
			if hosts := called(learned); !slices.Contains(hosts, added.Address.String()) {
				return "it knows " + jsonPath(t, ctx, client, learned, "get", "peerings.liqonet.io", server.Name)
			}
			return ""
		})
		server.moveGateway(t, ctx, func(node string) bool { return node == added.Name })
		server.removeNode(t, ctx, old)
		fx.nodes = slices.DeleteFunc(fx.nodes, func(n *lab.Node) bool { return n.Name == old.Name })
		delete(fx.before, old.Name)
		server.nodes, server.pods = nil, nil
		eventually(t, ctx, podTimeout, "the test pod runs on "+added.Name, func() string {
			server.nodes, server.pods = nil, nil
			if err := server.connect(ctx, lc); err != nil {
				return err.Error()
			}
			if len(server.nodes) != 1 || server.nodes[0].Node.Name != added.Name {
				return "not yet"
			}
			return ""
		})
		if t.Failed() {
			t.FailNow()
		}
		checkMended(t, ctx, server, client)
		eventually(t, ctx, podTimeout, "the client forgets the address of "+old.Name, func() string {
			if slices.Contains(called(learned), old.Address.String()) {
				return "it is still there"
			}
			return ""
		})
	}
	// Otherwise the rest proves nothing.
	for _, host := range called(given) {
		if host == server.nodes[0].Address.String() {
			t.Fatalf("what the CLI has given leads to a node that is there: %s (the first one was %s)", host, first.Name)
		}
	}
	if _, err := client.Run(ctx, "", "-n", "liqonet-system", "delete", "pods", "-l", "app.kubernetes.io/component=gateway"); err != nil {
		t.Fatal(err)
	}
	checkMended(t, ctx, server, client)
	mustLiqonet(t, ctx, "unpeer", server.Name, client.Name)
	checkNothingLeft(t, ctx)
}
