package agents

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// deadTimeout is longer than a gateway trusts the report of a dead node.
const deadTimeout = time.Minute

// tryPowerOff kills all agents of a node with a gateway, as a power failure does. The node's last report stays. The
// conditions report that one plane is left, then that no packets pass when the other plane fails, and are True again
// when the nodes are back.
func tryPowerOff(t *testing.T, clusters [2]*cluster) {
	t.Helper()
	settled(t, clusters)
	a, b := clusters[0], clusters[1]
	a.awaitConditions(t, "both planes work", metav1.ConditionTrue, metav1.ConditionTrue)
	powerOnA := a.powerOff(0) // this node's gateway has written the conditions
	a.awaitConditions(t, "one plane is left", metav1.ConditionTrue, metav1.ConditionFalse)
	// The node counts as dead by its missing requests, which takes longer than a missing heartbeat of its gateway.
	kit.Within(t, switchTimeout, "the metrics report that a node is dead", func() string {
		text, err := scrape(a.nodes[1].pod, a.nodes[1].gatewayIP)
		if known, ready := value(text, "liqonet_gateway_nodes", `state="known"`), value(text, "liqonet_gateway_nodes", `state="ready"`); err != nil || known != 2 || ready != 1 {
			return fmt.Sprintf("%v are known, %v ready: %v", known, ready, err)
		}
		return ""
	})
	powerOnB := b.powerOff(1)
	a.awaitConditions(t, "no packets pass", metav1.ConditionFalse, metav1.ConditionFalse)
	powerOnA(t)
	powerOnB(t)
	for _, c := range clusters {
		c.awaitConditions(t, "both planes work again", metav1.ConditionTrue, metav1.ConditionTrue)
	}
}

// powerOff kills the agents of a node, and of the gateway on it. The function that it returns starts them again.
func (c *cluster) powerOff(node int) (powerOn func(testing.TB)) {
	agents := []*process{c.agents[node], c.gateways[node]}
	for _, p := range agents {
		p.kill()
	}
	return func(t testing.TB) {
		for _, p := range agents {
			p.start(t)
		}
	}
}

// awaitConditions waits until a cluster's Peering has these conditions.
func (c *cluster) awaitConditions(t testing.TB, when string, connected, redundant metav1.ConditionStatus) {
	t.Helper()
	kit.Within(t, deadTimeout, c.name+" reports: "+when, func() string {
		var p v1alpha1.Peering
		if err := c.api.Client.Get(t.Context(), types.NamespacedName{Name: c.peer()}, &p); err != nil {
			return err.Error()
		}
		got := map[string]metav1.ConditionStatus{}
		for _, c := range p.Status.Conditions {
			got[c.Type] = c.Status
		}
		if got[v1alpha1.ConditionConnected] != connected || got[v1alpha1.ConditionRedundant] != redundant {
			return fmt.Sprint(p.Status.Conditions)
		}
		return ""
	})
}
