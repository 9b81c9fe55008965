package e2e

import (
	"testing"
	"time"
)

// staleLimit is how soon packets pass again when a server's gateway was replaced, and a node on the way goes on sending to
// the one before. Most of it is the new pod's start.
const staleLimit = 15 * time.Second

// A node on the way to a server's gateway leads packets to the pod before, and goes on doing so: nobody changes its rules,
// and the client's packets keep its connection entry alive. Another node leads to the new pod.
func TestStaleConnections(t *testing.T) {
	a, b := fx.gamma, fx.delta
	ctx := begin(t)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "1", "--server", a.Name, "--service-type", "NodePort")
	checkPair(t, ctx, a, b)
	for _, n := range a.nodes { // by one of them the client calls
		t.Run(n.Node.Name, func(t *testing.T) {
			fs := startFlows(t, ctx, a, b, 0, 0)
			fs.answering(t, ctx, callTimeout)
			defer paused(t, processOf(t, n.Node.Name, "kube-proxy"))()
			before := a.gatewayAgent(t)
			a.kubectl(t, ctx, "-n", "liqonet-system", "delete", "pods", "-l", "app.kubernetes.io/component=gateway", "--grace-period=0", "--force")
			eventually(t, ctx, podTimeout, "another gateway runs", func() string {
				found := a.agents(t, "gateway")
				return unless(len(found) == 1 && found[0].pid != before.pid, "%v", found)
			})
			fs.answering(t, ctx, moveTimeout)
			fs.interrupted(t, "another gateway", staleLimit)
		})
	}
	checkMended(t, ctx, a, b)
	unpeered(t, ctx, a, b)
}
