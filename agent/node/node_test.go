package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/agent/history"
	"github.com/liqonet/liqonet/agent/logs"
	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// A link that the kernel refuses does not stop the agent from reporting and probing other peerings, or from removing
// a deleted one from its report.
func TestReconcileDespiteFailure(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Output(t, "sh", "-ec", `ip link add eth0 type bridge; ip link set eth0 up; ip addr add 192.0.2.1/24 dev eth0
		ip route add default via 192.0.2.254; ip link add loq2-0 type bridge; ip link set loq2-0 alias theirs`)
	own := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "1"}}
	// It is from a previous agent, on a kernel that could make the link.
	own.Status.Gateways = []v1alpha1.NodeGateway{{
		PeeringName: "c", ObservedGeneration: 2, GatewayIP: v1alpha1.IP{Addr: addr("10.244.9.2")}, Source: v1alpha1.IP{Addr: addr("192.0.2.1")}, Ready: true,
	}}
	b := peering("b", 1, mapping("10.244.0.0/16", "10.61.0.0/16"), mapping("10.244.0.0/16", "10.62.0.0/16"), "10.70.0.0/18")
	c := peering("c", 2, mapping("10.244.0.0/16", "10.61.0.0/16"), mapping("10.244.0.0/16", "10.63.0.0/16"), "10.71.0.0/18")
	b.Spec.Overlay, c.Spec.Overlay = "VXLAN", "VXLAN"
	node := newNode("n1", "1")
	server := newClient(t, interceptor.Funcs{}, own, node, &b, &c)
	a := &agent{
		Config:  Config{NodeName: "n1", Log: slog.New(slog.DiscardHandler), Level: &logs.Level{}, metrics: metrics.New(metrics.Node, "")},
		history: history.New(&history.Record{Log: slog.New(slog.DiscardHandler)}),
		view:    &watch.View{Reader: server, Client: server},
		local:   local{name: "n1", address: netip.MustParseAddr("10.80.0.1"), planesInUse: map[string]planesInUse{}}, objects: objects{own: own, node: node},
		machine: machine{paths: map[pathKey]pathInfo{}}, probers: map[planeKey]*prober{},
	}
	a.kernel = netns.In(t, ns, overlay.New)
	t.Cleanup(a.kernel.Close)
	reported := func() (out []v1alpha1.NodeGateway) {
		t.Helper()
		ns.Do(t, func() error {
			if inSync, err := a.Reconcile(t.Context(), true); err == nil || inSync {
				t.Errorf("link of others: in sync %v, error %v", inSync, err)
			}
			return nil
		})
		status, _ := a.Status("")
		for _, g := range status.Gateways {
			g.MTU = 0
			out = append(out, g)
		}
		return out
	}
	failed := own.Status.Gateways[0]
	failed.Ready = false
	made := failed
	made.PeeringName, made.ObservedGeneration, made.GatewayIP, made.Active = "b", 3, v1alpha1.IP{Addr: addr("10.244.9.1")}, true
	equal := cmp.Comparer(func(a, b v1alpha1.NodeGateway) bool { return a == b })
	kit.Check(t, "with both peerings", reported(), []v1alpha1.NodeGateway{made, failed}, equal)
	kit.ErrorIf(t, a.probers[planeKey{peering: "b"}] == nil || len(a.probers) != 1, "%d probers, want that of b", len(a.probers))
	shown := func() (planes int) {
		ns.Do(t, func() error {
			s, err := a.readMetrics()
			for _, p := range s.Planes {
				kit.ErrorIf(t, p.Peering != "b" || p.State != metrics.Down || !p.Active || p.Traffic == nil, "metrics: %+v", p)
			}
			kit.ErrorIf(t, len(s.Drops) == 0, "metrics: there are no counters of drops")
			planes = len(s.Planes)
			return err
		})
		return planes
	}
	if n := shown(); n != 1 {
		t.Errorf("metrics are of %d planes, want that of b", n)
	}
	kit.NoError(t, server.Delete(t.Context(), &b))
	kit.Check(t, "without b", reported(), []v1alpha1.NodeGateway{failed}, equal)
	kit.ErrorIf(t, len(a.probers) != 0, "%d probers, want none", len(a.probers))
	if n := shown(); n != 0 {
		t.Errorf("metrics are of %d planes, want none", n)
	}
	if families, err := a.metrics.Gatherer().Gather(); err != nil || slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "liqonet_node_rtt_seconds" }) {
		t.Errorf("metrics of probes that have ended: %v", err)
	}
}

func TestAfterPartialApply(t *testing.T) {
	wanted := []gateway{{peering: "b", link: "loq1-0"}, {peering: "c", link: "loq2-0"}, {peering: "new", link: "loq3-0"}}
	c, gone := v1alpha1.NodeGateway{PeeringName: "c", MTU: 1400}, v1alpha1.NodeGateway{PeeringName: "gone", Plane: 1}
	own := &v1alpha1.NodeNetwork{Status: v1alpha1.NodeNetworkStatus{Gateways: []v1alpha1.NodeGateway{{PeeringName: "b"}, c, gone}}}
	for name, test := range map[string]struct {
		partial overlay.PartialError
		linked  []gateway
		kept    []v1alpha1.NodeGateway
	}{
		"nothing of ours": {linked: wanted},
		"links":           {overlay.PartialError{Links: []string{"loq2-0", "loq3-0"}}, wanted[:1], []v1alpha1.NodeGateway{c, {PeeringName: "new"}}},
		"a removal":       {overlay.PartialError{RemovalFailed: true}, wanted, []v1alpha1.NodeGateway{gone}},
	} {
		linked, kept := afterPartialApply(&test.partial, wanted, own)
		kit.ErrorIf(t, !slices.Equal(linked, test.linked) || !slices.Equal(kept, test.kept), "%s: linked %+v, kept %+v", name, linked, kept)
	}
}

// A starting agent survives an API server that refuses or fails for a while.
func TestAgentOutlivesRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		refusals := []error{errForbidden, errUnauthorized, apierrors.NewInternalError(errors.New("no leader"))}
		asked := 0
		c := newClient(t, interceptor.Funcs{Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			err := refusals[asked%len(refusals)]
			if _, ok := obj.(*corev1.Node); ok {
				if asked++; asked == 2*len(refusals) {
					cancel()
				}
			}
			return err
		}})
		if err := run(ctx, Config{NodeName: "n1", Log: slog.New(slog.DiscardHandler)}, overlay.Keys{}, c, nil, nil); err != nil || asked < 2*len(refusals) {
			t.Errorf("after %d attempts it ended: %v", asked, err)
		}
	})
}

// Routes of a kernel that do not fit into the report are counted.
func TestRoutesOfAKernel(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Output(t, "sh", "-ec", `ip link add eth0 type bridge; ip link set eth0 up; ip addr add 9.9.9.1/24 dev eth0`)
	const more = `i=0; while [ $i -lt 260 ]; do echo "route add 10.$((i / 128)).$((i % 128 * 2)).0/24 dev eth0"; i=$((i + 1)); done | ip -batch -`
	a := newAgent(t)
	a.kernel = netns.In(t, ns, overlay.New)
	t.Cleanup(a.kernel.Close)
	if err := a.readRoutes(); err != nil || a.machine.omittedRoutes > 0 {
		t.Fatal(a.machine.omittedRoutes, err)
	}
	n := len(a.machine.routes) + 260 - maxRoutes
	ns.Output(t, "sh", "-ec", more)
	kit.NoError(t, a.readRoutes())
	kit.ErrorIf(t, len(a.machine.routes) != maxRoutes || a.machine.omittedRoutes != n,
		"%d routes are reported, and %d left out, want %d", len(a.machine.routes), a.machine.omittedRoutes, n)
}
