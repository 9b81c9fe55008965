package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

const (
	// evictTimeout is within what Kubernetes gives a pod up whose node it does not hear of:
	// the node monitor's grace of 40 to 50 s, then our toleration, and what each takes.
	evictTimeout = 2 * time.Minute
	// cutTimeout is for the whole test.
	cutTimeout = 6 * time.Minute
)

// "One gateway at a time" is a rule and no guarantee: the node of the client's gateway
// is cut off from its API server only, and Kubernetes starts a second one, with the same
// key. As soon as the node is back there is one again, packets pass, and
// nothing is left of the other.
func TestDefect1_07_GatewayCutOff(t *testing.T) {
	a, b := fx.gamma, fx.delta
	begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), cutTimeout)
	defer cancel()
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--server", b.Name)
	checkPair(t, ctx, a, b)
	var at node
	for _, n := range a.nodes {
		if n.Node.Name == a.gatewayNode(t) {
			at = n
		}
	}
	// The kubelet's way, kube-proxy's, and the agents' by the Service's address.
	server, err := fx.lab.Node(a.Name + "-cp")
	if err != nil {
		t.Fatal(err)
	}
	cut := fmt.Sprintf(`nft add table ip e2e-cut
		for hook in output forward; do
			nft "add chain ip e2e-cut $hook { type filter hook $hook priority -300; }"
			nft "add rule ip e2e-cut $hook ip daddr { %s, %s } tcp dport { 443, 6443 } drop"
		done`, server.Address, a.server.Addr())
	if _, err := at.shell(ctx, cut); err != nil {
		t.Fatal(err)
	}
	heal := sync.OnceValue(func() error {
		_, err := at.shell(context.WithoutCancel(ctx), "nft delete table ip e2e-cut")
		return err
	})
	t.Cleanup(func() {
		if err := heal(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, ctx, evictTimeout, "a second gateway is started", func() string {
		if found := a.agents(t, "gateway"); len(found) != 2 {
			return fmt.Sprint(found)
		}
		return ""
	})
	if err := heal(); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, podTimeout, "there is one gateway", func() string {
		if found := a.agents(t, "gateway"); len(found) != 1 || found[0].node == at.Node.Name {
			return fmt.Sprint(found)
		}
		return ""
	})
	if _, err := a.Run(ctx, "", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
	checkMended(t, ctx, a, b)
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	checkNothingLeft(t, ctx)
}
