package agents

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
)

// tcpNoticed is longer than a connection is used, and nothing has to arrive by TCP.
const tcpNoticed = 3 * time.Minute

// If TCP does not pass between two gateways although UDP does, both clusters report that, until it passes again. The
// same holds for a gateway and the nodes of its cluster.
func TestTCPThatDoesNotPass(t *testing.T) {
	kit.NotShort(t)
	if !kit.Full() {
		t.Skip("make test-long runs it: that takes minutes")
	}
	clusters := newClusters(t, dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace})
	settled(t, clusters)
	await := func(what string, isSaid bool) {
		t.Helper()
		for _, n := range clusters[0].nodes {
			kit.Within(t, tcpNoticed, "node "+n.name+" reports that TCP "+what, func() string {
				var network v1alpha1.NodeNetwork
				if err := clusters[0].api.Client.Get(t.Context(), types.NamespacedName{Name: n.name}, &network); err != nil {
					return err.Error()
				}
				ready := meta.FindStatusCondition(network.Status.Conditions, v1alpha1.ConditionReady)
				if strings.Contains(ready.Message, "TCP does not pass between this node and gateway") != isSaid || ready.Status != metav1.ConditionTrue {
					return ready.Message
				}
				return ""
			})
		}
		for _, c := range clusters {
			kit.Within(t, tcpNoticed, c.name+" reports that TCP "+what, func() string {
				var p v1alpha1.Peering
				if err := c.api.Client.Get(t.Context(), types.NamespacedName{Name: c.peer()}, &p); err != nil {
					return err.Error()
				}
				s := p.PlaneStatus(0)
				if says := strings.Contains(s.Message, "TCP does not pass between the gateways"); says != isSaid || !s.Connected {
					return fmt.Sprintf("%+v", s)
				}
				return ""
			})
		}
	}
	gateway := clusters[0].nodes[0].gateway
	gateway.Output(t, "nft", fmt.Sprintf(`add table ip fault; add chain ip fault in { type filter hook input priority -500; }
		add rule ip fault in tcp dport { %d, %d } drop`, exchange.Port, liveness.Port))
	await("does not pass", true)
	gateway.Output(t, "nft", "delete table ip fault")
	await("passes", false)
}
