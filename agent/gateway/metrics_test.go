package gateway

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/test/kit"
)

func TestPlaneState(t *testing.T) {
	for _, tt := range []struct {
		name                      string
		connected, works, leaving bool
		hasSession                bool
		want                      string
	}{
		{"one plane", true, true, false, false, metrics.Up},
		{"probes are not answered", false, true, false, false, metrics.Down},
		{"the kernel lacks something", true, false, false, false, metrics.Down},
		{"the peer does not answer", true, true, false, true, metrics.Down},
		{"about to end", true, true, true, false, metrics.Leaving},
	} {
		e := healthInputs{datapathReady: tt.works, leaving: tt.leaving, hasSession: tt.hasSession}
		if tt.connected {
			e.probes = liveness.ProbeStats{Window: 1, LastReply: time.Now()}
		}
		v := evaluate(e, time.Now())
		if got, _ := v.publicState(v1alpha1.PlaneStatus{Connected: v.connected}); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestCountNodes(t *testing.T) {
	p := peering(t, v1alpha1.Client, newKey(t))
	does := func(address string, entries ...v1alpha1.NodeGateway) v1alpha1.NodeNetwork {
		n := node("n", address, "172.18.0.2", 1450)
		n.Status.Gateways = entries
		return n
	}
	mine := v1alpha1.NodeGateway{PeeringName: p.Name, Ready: true, Active: true}
	spare, other, unready := mine, mine, mine
	spare.Active, other.Plane, unready.Ready = false, 1, false
	going := does("10.80.0.9", mine)
	going.DeletionTimestamp = new(metav1.Now())
	nodes := []v1alpha1.NodeNetwork{
		does("10.80.0.1", mine), does("10.80.0.2", spare), does("10.80.0.3", other), does("10.80.0.4", unready), does("10.80.0.5"),
		going, does("10.99.0.1", mine), does("nonsense", mine),
	}
	synctest.Test(t, func(t *testing.T) {
		var s requesters
		var c conditions
		c.read(p, nodes)
		expect := func(when string, want map[string]int) {
			t.Helper()
			kit.Check(t, when, c.countNodes(0, &s), want)
		}
		all := map[string]int{metrics.NodesKnown: 5, metrics.NodesReady: 2, metrics.NodesActive: 2}
		s.setKnown(addr("10.80.0.1"), addr("10.80.0.2"), addr("10.80.0.4"))
		expect("no node has asked yet", all)
		time.Sleep(requesterTimeout)
		expect("no node asks", all)
		s.record(addr("10.80.0.2"), liveness.Request{})
		expect("all others are dead", map[string]int{metrics.NodesKnown: 5, metrics.NodesReady: 1, metrics.NodesActive: 0})
		s.record(addr("10.80.0.2"), liveness.Request{Reached: liveness.ReachKnown | 2})
		expect("it says that it reaches the peer through another plane", map[string]int{metrics.NodesKnown: 5, metrics.NodesReady: 0, metrics.NodesActive: 0})
		s.record(addr("10.80.0.4"), liveness.Request{Reached: liveness.ReachKnown | 1})
		expect("one says sooner than its report that it reaches the peer", map[string]int{metrics.NodesKnown: 5, metrics.NodesReady: 1, metrics.NodesActive: 1})
	})
}

// Metrics are served at the address that the nftables table lets in.
func TestMetricsIP(t *testing.T) {
	for want, addrs := range map[string][]netip.Addr{
		"10.244.1.9": {addr("fd00::9"), addr("10.244.1.9")}, "10.244.1.8": {addr("10.244.1.8"), addr("fd00::8")}, "fd00::7": {addr("fd00::7")},
	} {
		if got := metricsIP(addrs); got.String() != want {
			t.Errorf("of %v it is %s, want %s", addrs, got, want)
		}
	}
}
