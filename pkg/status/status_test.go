package status

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// world is the input of a view. It starts with two nodes on which everything works.
type world struct {
	peering *v1alpha1.Peering
	nodes   []v1alpha1.NodeNetwork
	beats   Heartbeats
	// ready and notReady are the nodes that have agents.
	ready, notReady []string
}

// beat renews an agent's Lease in the past. The agent's clock is an hour ahead.
func (w *world) beat(name string, ago time.Duration) {
	w.beats[name] = heartbeat{changed: time.Now().Add(-ago), lease: coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: agentsNow}},
	}}
}

// agentsNow is the agents' time when they renewed their Leases.
var agentsNow = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func newWorld() *world {
	w := &world{
		ready: []string{"n1", "n2"}, beats: Heartbeats{},
		peering: kubetest.SomePeering(),
	}
	w.peering.Status = v1alpha1.PeeringStatus{Planes: []v1alpha1.PlaneStatus{{
		ObservedGeneration: 4, NodeName: "n1", MTU: 1390, Connected: true, Endpoint: "192.0.2.1:51840", RTTMicroseconds: 1250, LossPercent: 1,
		LastHandshake: new(metav1.NewTime(agentsNow.Add(-time.Minute))),
	}}}
	for _, n := range []v1alpha1.NodeNetwork{kubetest.Report("n2", "10.80.0.2", nil), kubetest.Report("n1", "10.80.0.1", nil)} {
		w.beat(n.LeaseName(), 0)
		n.Status.Gateways = []v1alpha1.NodeGateway{{PeeringName: "other", Ready: false}, {PeeringName: "b", ObservedGeneration: 4, Ready: true, RTTMicroseconds: 500}}
		w.nodes = append(w.nodes, n)
	}
	w.beat("gateway-b-0", 0)
	return w
}

func (w *world) plane() *v1alpha1.PlaneStatus { return &w.peering.Status.Planes[0] }

func (w *world) disconnect(message string) *world {
	w.plane().Connected, w.plane().Message = false, message
	return w
}

// says makes a node's agent report a problem.
func (w *world) says(node int, problem string) {
	w.nodes[node].Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "CannotApply", Message: problem}}
}

func (w *world) gateway(node int) *v1alpha1.NodeGateway { return &w.nodes[node].Status.Gateways[1] }

// addPlane adds a second pair of gateways like the first one.
func (w *world) addPlane() {
	spec, status := w.peering.Spec.Planes[0], w.peering.Status.Planes[0]
	spec.Index, status.Index = 1, 1
	w.peering.Spec.Planes, w.peering.Status.Planes = append(w.peering.Spec.Planes, spec), append(w.peering.Status.Planes, status)
	for i := range w.nodes {
		g := *w.gateway(i)
		g.Plane = 1
		w.nodes[i].Status.Gateways = append(w.nodes[i].Status.Gateways, g)
	}
	w.beat("gateway-b-1", 0)
}

func (w *world) view(t *testing.T) View {
	t.Helper()
	v := kit.Must(ViewFrom(&kube.Cluster{Name: "a", Now: time.Now}, w.peering, w.nodes, w.ready, w.notReady, w.beats))(t)
	return v
}

func TestView(t *testing.T) {
	w := newWorld()
	want := View{
		Name: "b", Cluster: "a", Peer: "b", PeerID: "id-of-b", State: Connected,
		LocalPods:  ipam.Mappings{{Real: kubetest.Prefix("10.244.0.0/16"), Mapped: kubetest.Prefix("10.20.0.0/16")}},
		LocalNodes: ipam.Mapping{Real: kubetest.Prefix("10.80.0.0/19"), Mapped: kubetest.Prefix("10.70.64.0/19")},
		RemotePods: ipam.Mappings{{Real: kubetest.Prefix("10.245.0.0/16"), Mapped: kubetest.Prefix("10.245.0.0/16")}},
		Overlay:    "Geneve", PlanesMode: "Single", NodesTotal: 2, NodesReady: 2,
		Planes: []PlaneView{{
			Role: "Server", Backend: "Kernel", Endpoint: "192.0.2.1:51840", Node: "n1", MTU: 1390,
			RTT: new(1.25), LossPercent: 1, HandshakeAge: new(int64(60)), Connected: true,
		}},
		Nodes: []NodeView{
			{Name: "n1", Address: netip.MustParseAddr("10.80.0.1"), SeenAs: netip.MustParseAddr("10.70.64.1"), Ready: true, Planes: []int32{0}, RTT: new(0.5)},
			{Name: "n2", Address: netip.MustParseAddr("10.80.0.2"), SeenAs: netip.MustParseAddr("10.70.64.2"), Ready: true, Planes: []int32{0}, RTT: new(0.5)},
		},
	}
	kit.Check(t, "view", w.view(t), want, kit.Compare)
}

// A view shows the mode of planes, and the planes that each node uses.
func TestViewNamesPlanesInUse(t *testing.T) {
	w := newWorld()
	w.addPlane()
	w.peering.Spec.PlanesMode = v1alpha1.PlanesSpread
	for _, use := range []struct {
		node  int
		plane int32
	}{{0, 0}, {0, 1}, {1, 1}} {
		w.nodes[use.node].Gateway("b", use.plane).Active = true
	}
	v := w.view(t)
	got := map[string][]int32{}
	for _, n := range v.Nodes {
		got[n.Name] = n.PlanesInUse
	}
	diff := cmp.Diff(map[string][]int32{"n1": {1}, "n2": {0, 1}}, got)
	kit.ErrorIf(t, diff != "" || v.PlanesMode != "Spread", "mode %q, planes in use (-want +got):\n%s", v.PlanesMode, diff)
}

// Nodes that are not ready are named and have no other effect.
func TestViewNamesNodesThatAreNotReady(t *testing.T) {
	for _, tt := range []struct {
		notReady []string
		want     string
	}{
		{nil, ""},
		{[]string{"n3"}, "not ready, and left out: n3"},
		{[]string{"1", "2", "3", "4", "5", "6", "7"}, "not ready, and left out: 1, 2, 3, 4, 5 (and 2 more)"},
	} {
		w := newWorld()
		want := w.view(t)
		want.Message, want.NodesNotReady = tt.want, tt.notReady
		w.notReady = tt.notReady
		kit.Check(t, "view", w.view(t), want, kit.Compare)
		w.gateway(0).Ready = false
		kit.Check(t, "message", w.view(t).Message, strings.TrimSuffix("1 of 2 nodes reach the peer; "+tt.want, "; "))
	}
}

// A gateway's Lease is newer than its status. A Lease of an older version, an invalid one, or one that was renewed before
// the first probe had a result changes nothing.
func TestViewOfMeasured(t *testing.T) {
	for told, want := range map[string]PlaneView{
		`{"rttMicroseconds":2500,"lossPercent":0,"lastHandshake":"2026-11-21T11:59:50Z"}`: {RTT: new(2.5), LossPercent: 0, HandshakeAge: new(int64(10))},
		`{"lossPercent":100}`: {LossPercent: 100},
		`{"sentBytes":1}`:     {RTT: new(1.25), LossPercent: 1, HandshakeAge: new(int64(60))},
		`{"lossPercent":0}`:   {RTT: new(1.25), LossPercent: 1, HandshakeAge: new(int64(60))},
		`{"lossPercent":101}`: {RTT: new(1.25), LossPercent: 1, HandshakeAge: new(int64(60))},
	} {
		w := newWorld()
		beat := w.beats["gateway-b-0"]
		beat.lease.Annotations = map[string]string{v1alpha1.AnnotationMeasurements: told}
		w.beats["gateway-b-0"] = beat
		p := w.view(t).Planes[0]
		kit.Check(t, told, PlaneView{RTT: p.RTT, LossPercent: p.LossPercent, HandshakeAge: p.HandshakeAge}, want)
	}
}

// Routes into ranges of the peering are named and have no other effect.
func TestViewConflicts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		routes [2][]v1alpha1.CIDR // of n2 and n1
		reason string             // for being disconnected
		want   string
	}{
		{name: "elsewhere", routes: [2][]v1alpha1.CIDR{{kubetest.Cidr("192.0.2.0/24"), kubetest.Cidr("10.246.0.0/16"), kubetest.Cidr("fd00::/64")}}},
		{
			name: "pods", routes: [2][]v1alpha1.CIDR{{kubetest.Cidr("192.0.2.0/24"), kubetest.Cidr("10.245.7.0/24")}},
			want: "node n2 has a route to 10.245.7.0/24, but 10.245.0.0/16 is a range of the peer's pods: peer again for another range",
		},
		{
			name: "the overlay", routes: [2][]v1alpha1.CIDR{1: {kubetest.Cidr("10.80.31.0/24")}},
			want: "node n1 has a route to 10.80.31.0/24, but 10.80.0.0/19 is the overlay's own range: " +
				"unpeer this cluster from all, and peer again, for another one",
		},
		{
			name: "more, and not connected", routes: [2][]v1alpha1.CIDR{{kubetest.Cidr("10.80.0.0/12")}, {kubetest.Cidr("10.70.63.0/24")}}, reason: "no handshake",
			want: "no handshake; node n1 has a route to 10.70.63.0/24, but 10.70.0.0/18 is the range of the peer's nodes: " +
				"peer again for another range (and 1 more)",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			for i, r := range tt.routes {
				w.nodes[i].Status.Routes = r
			}
			state := Connected
			if w.plane().Message = tt.reason; tt.reason != "" {
				w.plane().Connected, state = false, Disconnected
			}
			if v := w.view(t); v.State != state || v.Message != tt.want || v.NodesReady != 2 {
				t.Errorf("%s, %d nodes ready, message %q, want %s, 2, %q", v.State, v.NodesReady, v.Message, state, tt.want)
			}
		})
	}
}

func TestViewState(t *testing.T) {
	// silentAfter is when a gateway counts as silent.
	silentAfter := v1alpha1.LeaseTimeout("gateway-b-0")
	tests := []struct {
		name    string
		change  func(w *world)
		state   State
		message string
		// without is how many nodes do not reach the peer.
		without int
		// settled is the expected result of MissingExcept, the message if empty.
		settled string
	}{
		{name: "all well", change: func(*world) {}, state: Connected},
		{
			name: "the gateway never reported", state: Unknown, message: "the gateway has not reported yet", settled: "the gateway has not applied",
			change: func(w *world) { w.peering.Status.Planes = nil },
		},
		{
			name: "a gateway that never renewed its Lease", state: Unknown, message: "the gateway does not renew its Lease",
			change: func(w *world) { delete(w.beats, "gateway-b-0") },
		},
		{
			name: "only another plane reported", state: Unknown, message: "the gateway has not reported yet", settled: "the gateway has not applied",
			change: func(w *world) { w.plane().Index = 1 },
		},
		{name: "just not silent", state: Connected, change: func(w *world) { w.beat("gateway-b-0", silentAfter-time.Second) }},
		{
			name: "silent", state: Unknown, message: "the gateway has not renewed its Lease for 16s",
			change: func(w *world) { w.beat("gateway-b-0", silentAfter+time.Second) },
		},
		{
			name: "silent wins over disconnected", state: Unknown, message: "has not renewed its Lease for 1m0s",
			change: func(w *world) { w.disconnect("no handshake").beat("gateway-b-0", time.Minute) },
		},
		{name: "disconnected", state: Disconnected, message: "no handshake", change: func(w *world) { w.disconnect("no handshake") }},
		{name: "disconnected, without a reason", state: Disconnected, settled: " ", change: func(w *world) { w.disconnect("") }},
		{
			name: "a node does not reach the peer", state: Degraded, message: "1 of 2 nodes reach the peer", without: 1,
			change: func(w *world) { w.gateway(0).Ready = false },
		},
		{
			name: "a node says why it does not reach the peer", state: Degraded, message: "1 of 2 nodes reach the peer; n2: apply: no", without: 1,
			change: func(w *world) { w.gateway(0).Ready = false; w.says(0, "apply: no") },
		},
		{
			name: "a node has an older configuration", state: Degraded, message: "1 of 2 nodes", without: 1,
			change: func(w *world) { w.gateway(0).ObservedGeneration = 3 },
		},
		{
			name: "a node knows nothing of the peering", state: Degraded, message: "1 of 2 nodes", without: 1,
			change: func(w *world) { w.nodes[1].Status.Gateways = nil },
		},
		{
			name: "a ready node has no agent", state: Degraded, message: "1 of 2 nodes", without: 1,
			change: func(w *world) { w.nodes = w.nodes[:1] },
		},
		{
			name: "a node that is not ready does not count", state: Connected, without: 1,
			change: func(w *world) { w.ready, w.gateway(0).Ready = []string{"n1"}, false },
		},
		{
			name: "the gateway has an older configuration", state: Connected, settled: "the gateway has not applied",
			change: func(w *world) { w.plane().ObservedGeneration = 3 },
		},
		{
			name: "a node's agent is dead since an hour", state: Degraded, message: "1 of 2 nodes", without: 1,
			change: func(w *world) { w.beat(w.nodes[0].LeaseName(), time.Hour) },
		},
		{
			name: "a node that was added cannot do the overlay", state: Degraded, without: 1,
			message: "1 of 2 nodes reach the peer; n1: its kernel (6.1) has no geneve; load the module, or peer again with --overlay auto",
			change: func(w *world) {
				w.gateway(1).Ready = false
				w.nodes[1].Status.Kernel = &v1alpha1.KernelFacts{Release: "6.1", VXLAN: true}
				w.says(1, "add link loq0-0: operation not supported")
			},
		},
		{
			name: "a node has an outdated NodeNetwork as well", state: Degraded, message: "1 of 2 nodes", without: 1,
			change: func(w *world) {
				w.nodes[0] = *w.nodes[1].DeepCopy()
				w.nodes[0].Name, w.nodes[0].ResourceVersion, w.nodes[1].ResourceVersion = "10.80.0.77", "99", "100"
			},
		},
		{name: "a second plane that is well", state: Connected, change: func(w *world) { w.addPlane() }},
		{
			name: "one of two planes is down", state: Degraded, message: "no handshake",
			change: func(w *world) {
				w.addPlane()
				w.disconnect("no handshake")
				w.gateway(0).Ready, w.gateway(1).Ready = false, false
			},
		},
		{
			name: "both planes are down", state: Disconnected, message: "plane 0: no handshake; plane 1: the gateway has not renewed its Lease for 1m0s",
			change: func(w *world) {
				w.addPlane()
				w.disconnect("no handshake").beat("gateway-b-1", time.Minute)
			},
		},
		{
			name: "the gateway of a second plane has an older configuration", state: Connected, settled: "the gateway has not applied",
			change: func(w *world) {
				w.addPlane()
				w.peering.Status.Planes[1].ObservedGeneration = 3
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			tt.change(w)
			v := w.view(t)
			kit.ErrorIf(t, v.State != tt.state || !strings.Contains(v.Message, tt.message) || v.NodesReady != 2-tt.without,
				"want %s, %q, without %d nodes; got %s, %q, %d nodes", tt.state, tt.message, tt.without, v.State, v.Message, v.NodesReady)
			kit.ErrorIf(t, (v.State == Connected) != (v.Message == ""), "state %s with message %q", v.State, v.Message)
			got := MissingExcept(w.peering, v, func(PlaneView) bool { return false }, nil)
			switch want := strings.TrimSpace(tt.settled); {
			case want != "" && !strings.Contains(got, want):
				t.Errorf("MissingExcept: want %q, got %q", want, got)
			case tt.settled == "" && got != v.Message, tt.settled != "" && got == "":
				t.Errorf("MissingExcept: got %q, message %q", got, v.Message)
			}
			kit.ErrorIf(t, len(v.Nodes) > len(w.ready), "%d nodes of %d", len(v.Nodes), len(w.ready))
			kit.ErrorIf(t, v.State == Unknown && v.Planes[0].RTT != nil, "a silent gateway has a round trip time: %+v", v.Planes[0])
		})
	}
}

// The roles are swapped only if all gateways have applied the configuration and none gets a reply.
func TestUnanswered(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(w *world)
		want   bool
	}{
		"both planes are down":           {func(*world) {}, true},
		"one is up":                      {func(w *world) { w.peering.Status.Planes[1].Connected = true }, false},
		"one has an older configuration": {func(w *world) { w.peering.Status.Planes[1].ObservedGeneration = 3 }, false},
		"one has not reported":           {func(w *world) { w.peering.Status.Planes = w.peering.Status.Planes[:1] }, false},
	} {
		w := newWorld()
		w.plane().Connected = false
		w.addPlane()
		tt.change(w)
		kit.Check(t, name, Unanswered(w.peering), tt.want)
	}
}

// A NodeNetwork that no agent wrote does not stand in for a node.
func TestNodeNetworkWithoutAnAddress(t *testing.T) {
	w := newWorld()
	want := w.view(t)
	other := w.nodes[0].DeepCopy()
	other.Name, other.Status.Address = "n3", v1alpha1.IP{}
	w.nodes = append(w.nodes, *other)
	kit.Check(t, "view", w.view(t), want, kit.Compare)
}

// Bad conditions have a hint. The conditions of gateways count while one of them reports, even if no node is ready.
func TestViewOfConditions(t *testing.T) {
	condition := func(what string, status metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: what, Status: status, Reason: "Said"}
	}
	hinted := func(w *world) (out []string) {
		for _, c := range w.view(t).Conditions {
			out = append(out, fmt.Sprint(c.Type, " ", c.Status, " ", c.Reason, " ", c.Hint != ""))
		}
		return out
	}
	for name, tt := range map[string]struct {
		change func(*world)
		want   []string
	}{
		"well":             {func(*world) {}, []string{"Connected True Said false", "Degraded False Said false", "KeysFresh False Said true"}},
		"no node is ready": {func(w *world) { w.ready = nil }, []string{"Connected True Said false", "Degraded False Said false", "KeysFresh False Said true"}},
		"degraded": {
			func(w *world) {
				w.peering.Status.Conditions[1].Status = metav1.ConditionTrue
				w.gateway(0).Ready = false
			},
			[]string{"Connected True Said false", "Degraded True Said true", "KeysFresh False Said true"},
		},
		"degraded, and nodes have reported since": {
			func(w *world) { w.peering.Status.Conditions[1].Status = metav1.ConditionTrue },
			[]string{"Connected True Said false", "Degraded True Said false", "KeysFresh False Said true"},
		},
		"no gateway has reported": {
			func(w *world) { w.peering.Status.Conditions = w.peering.PendingConditions()[:4] },
			[]string{"Connected Unknown Pending true", "Degraded Unknown Pending false", "KeysFresh Unknown Pending true", "Ready Unknown Pending false"},
		},
		"no gateway reports": {
			func(w *world) { w.beat("gateway-b-0", time.Hour) },
			[]string{"Connected Unknown GatewaysSilent true", "Degraded Unknown GatewaysSilent true", "KeysFresh Unknown GatewaysSilent true"},
		},
	} {
		w := newWorld()
		w.peering.Status.Conditions = []metav1.Condition{
			condition(v1alpha1.ConditionConnected, metav1.ConditionTrue), condition(v1alpha1.ConditionDegraded, metav1.ConditionFalse), condition(v1alpha1.ConditionKeysFresh, metav1.ConditionFalse),
		}
		tt.change(w)
		kit.Check(t, name, hinted(w), tt.want)
	}
}

func TestViews(t *testing.T) {
	ctx := t.Context()
	t.Run("no custom resources", func(t *testing.T) {
		c := kubetest.NewCluster(t, "a", interceptor.Funcs{})
		v, err := Views(ctx, c)
		kit.ErrorIf(t, err != nil || len(v) != 0, "got %v, %v", v, err)
	})
	t.Run("by name of the peer", func(t *testing.T) {
		var objs []client.Object
		for _, name := range []string{"z", "m"} {
			w := newWorld()
			w.peering.Name, w.peering.Spec.Remote.Name = "p-"+name, name
			objs = append(objs, w.peering)
		}
		objs = append(objs, kubetest.Node("n1", true))
		v, err := Views(ctx, kubetest.NewCluster(t, "a", interceptor.Funcs{}, objs...))
		kit.ErrorIf(t, err != nil || len(v) != 2 || v[0].Peer != "m" || v[1].Peer != "z", "got %+v, %v", v, err)
	})
	t.Run("a Peering that cannot be read", func(t *testing.T) {
		unread := newWorld().peering
		unread.Name, unread.Spec = "bad", v1alpha1.PeeringSpec{}
		v, err := Views(ctx, kubetest.NewCluster(t, "a", interceptor.Funcs{}, unread, newWorld().peering, kubetest.Node("n1", true)))
		kit.FatalIf(t, err != nil || len(v) != 2, "got %+v, %v", v, err)
		kit.ErrorIf(t, v[0].Name != "b" || v[1].State != Unknown || !strings.Contains(v[1].Message, "Peering bad cannot be read"), "got %+v", v)
	})
	t.Run("at once, whatever Leases say", func(t *testing.T) {
		w := newWorld()
		c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, manifests.Namespace(), w.peering, kubetest.Node("n1", true), kubetest.Node("n2", true), &w.nodes[0], &w.nodes[1])
		c.Now = func() time.Time { return time.Now().Add(time.Hour) }
		for _, name := range []string{"gateway-b-0", w.nodes[0].LeaseName(), w.nodes[1].LeaseName()} {
			l := &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("pod"), RenewTime: &metav1.MicroTime{Time: time.Now()}},
			}
			kit.NoError(t, c.Client.Create(ctx, l, client.FieldOwner("agent")))
		}
		start := time.Now()
		v, err := Views(ctx, c)
		took := time.Since(start)
		kit.ErrorIf(t, took > time.Second, "it took %s", took)
		if err != nil || len(v) != 1 || v[0].State != Unknown || !strings.Contains(v[0].Message, "has not renewed its Lease for 1h0m") {
			t.Errorf("got %+v, %v", v, err)
		}
	})
	t.Run("no node is ready", func(t *testing.T) {
		v, err := Views(ctx, kubetest.NewCluster(t, "a", interceptor.Funcs{}, newWorld().peering, kubetest.Node("n1", false)))
		kit.ErrorIf(t, err != nil || len(v) != 1 || v[0].State == Connected, "got %+v, %v", v, err)
	})
}

// Status shows the image digests that kubelets report for node agents and for the peering's gateways. A user who may
// not read pods sees the rest.
func TestStatusNamesTheImages(t *testing.T) {
	pod := func(name, peering, imageID string, running bool) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name, Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}}}
		if peering != "" {
			p.Labels[v1alpha1.LabelPeering] = peering
		}
		s := corev1.ContainerStatus{ImageID: imageID}
		if running {
			s.State.Running = &corev1.ContainerStateRunning{}
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{s}
		return p
	}
	foreign := pod("x", "", "foreign", true)
	foreign.Labels = nil
	objs := []client.Object{
		newWorld().peering, kubetest.Node("n1", true), foreign,
		pod("node-1", "", "registry/agent@sha256:2", true), pod("node-2", "", "registry/agent@sha256:2", true), pod("node-3", "", "registry/agent@sha256:3", false),
		pod("gateway-b", "b", "registry/agent@sha256:1", true), pod("gateway-c", "c", "registry/agent@sha256:4", true), pod("starting", "b", "", true),
	}
	for _, tt := range []struct {
		name  string
		funcs interceptor.Funcs
		want  []string
	}{
		{"", interceptor.Funcs{}, []string{"registry/agent@sha256:1", "registry/agent@sha256:2"}},
		{"not allowed to read pods", interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if _, ok := l.(*corev1.PodList); ok {
				return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no"))
			}
			return c.List(ctx, l, opts...)
		}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, err := Views(t.Context(), kubetest.NewCluster(t, "a", tt.funcs, objs...))
			kit.FatalIf(t, err != nil || len(v) != 1, "got %+v, %v", v, err)
			kit.Check(t, "v", v[0].Images, tt.want, kit.Compare)
		})
	}
}

func TestMapFor(t *testing.T) {
	ctx := t.Context()
	w := newWorld()
	n1 := kubetest.Report("n1", "10.80.0.1", nil)
	n1.Status.NodeIPs = []v1alpha1.IP{{Addr: netip.MustParseAddr("172.18.0.2")}}
	a := kubetest.NewCluster(t, "a", interceptor.Funcs{}, w.peering, kubetest.Node("n1", true, "172.18.0.2"), &n1,
		kubetest.PodWith("10.244.3.4"), kubetest.PodWith(""), kubetest.PodWith("fd00::4", "10.244.3.7"), kubetest.PodWith("fd00::8"),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.7"}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "idle"}},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			Ports:      []discoveryv1.EndpointPort{{Port: new(int32(8080))}, {Port: new(int32(9090))}},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"10.244.3.5"}},
				{Addresses: []string{"10.244.3.4"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}},
				{Addresses: []string{"10.244.3.6"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
			},
		},
		&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-2", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv6,
			Ports:       []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"fd00::5"}}},
		})
	tests := []struct {
		what, want string
		kind       kube.Kind
	}{
		{what: "10.244.3.4", want: "10.20.3.4"},
		{what: "default/pod-10.244.3.4", want: "10.20.3.4"},
		{what: "default/pod-fd00::4", want: "10.20.3.7"},
		{what: "default/pod-fd00::8", kind: kube.Usage},
		{what: "172.18.0.2", want: "10.70.64.1"},
		{what: "10.80.0.1", want: "10.70.64.1"},
		{what: "10.80.31.254", want: "10.70.95.254"},
		{what: "default/web", want: "10.20.3.4:8080 10.20.3.4:9090 10.20.3.5:8080 10.20.3.5:9090"},
		{what: "10.96.0.7", want: "10.20.3.4:8080 10.20.3.4:9090 10.20.3.5:8080 10.20.3.5:9090"},
		{what: "default/idle", kind: kube.NotReady},
		{what: "default/pod-", kind: kube.NotReady},
		{what: "default/none", kind: kube.Usage},
		{what: "10.99.0.1", kind: kube.Usage},
		{what: "web-0", kind: kube.Usage},
		{what: "", kind: kube.Usage},
		{what: "fd00::1", kind: kube.Usage},
	}
	for _, tt := range tests {
		t.Run(tt.what, func(t *testing.T) {
			got, err := MapToPeer(ctx, a, kubetest.PeerNamed("b"), tt.what)
			if tt.want != "" {
				kit.ErrorIf(t, err != nil || strings.Trim(fmt.Sprint(got), "[]") != tt.want, "want %s, got %s, %v", tt.want, got, err)
			} else if kind := kubetest.KindOf(t, err); kind != tt.kind {
				t.Errorf("want kind %d, got %d: %v", tt.kind, kind, err)
			}
		})
	}
	for mapped, want := range map[string]string{"10.20.3.4": "10.244.3.4", "10.70.64.1": "10.80.0.1", "10.99.0.1": "", "x": ""} {
		got, err := MapFromPeer(ctx, a, kubetest.PeerNamed("b"), mapped)
		kit.ErrorIf(t, want == "" && kubetest.KindOf(t, err) != kube.Usage || want != "" && (err != nil || strings.Join(got, " ") != want),
			"back from %s: want %q, got %s, %v", mapped, want, got, err)
	}
	t.Run("not peered", func(t *testing.T) {
		kubetest.Fails(t, kit.Err(MapToPeer(ctx, a, kubetest.PeerNamed("c"), "10.244.3.4")), kube.Usage)
	})
}

// Heartbeats trust no other machine's clock, not even that the API server's timestamp and its Date header agree.
func TestHeartbeatsNeedNoClock(t *testing.T) {
	lease := func(version string, agent, stamp time.Time) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name: "gateway-l", ResourceVersion: version, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "liqonet-gateway-0", Time: &metav1.Time{Time: stamp}}},
			},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: new("pod"), RenewTime: &metav1.MicroTime{Time: agent}},
		}
	}
	for _, agentOff := range []time.Duration{-time.Hour, 0, time.Hour} {
		for _, tt := range []struct {
			name  string
			stamp time.Duration // offset of the API server that wrote it from the one that answers
			first bool          // whether the agent is alive when first seen
		}{
			{"stamped now", 0, true},
			{"stamped just now", -v1alpha1.LeaseTimeout("gateway-b-0") / 2, true},
			{"stamped long ago", -time.Hour, false},
			{"stamped in the future", time.Hour, false},
			{"stamped by an API server that is a little ahead", v1alpha1.LeaseTimeout("gateway-b-0") / 2, true},
		} {
			synctest.Test(t, func(t *testing.T) {
				server := time.Now()
				h := Heartbeats{}
				h.Observe([]*coordinationv1.Lease{lease("1", server.Add(agentOff), server.Add(tt.stamp))}, server)
				kit.Check(t, fmt.Sprintf("%s, agent %s off: alive", tt.name, agentOff), h.Alive("gateway-l"), tt.first)
				time.Sleep(v1alpha1.ReportInterval)
				h.Observe([]*coordinationv1.Lease{lease("2", server.Add(agentOff+v1alpha1.ReportInterval), server.Add(tt.stamp))}, server)
				kit.ErrorIf(t, !h.Alive("gateway-l"), "%s, agent %s off: a Lease that was renewed is dead", tt.name, agentOff)
				if age := h.since("gateway-l", server.Add(agentOff)); age == nil || *age != v1alpha1.ReportInterval {
					t.Errorf("%s, agent %s off: what was %s ago is said to be %v ago", tt.name, agentOff, v1alpha1.ReportInterval, age)
				}
				time.Sleep(v1alpha1.LeaseTimeout("gateway-b-0") + time.Second)
				h.Observe([]*coordinationv1.Lease{lease("2", server.Add(agentOff+v1alpha1.ReportInterval), server.Add(tt.stamp))}, server.Add(-time.Hour))
				kit.ErrorIf(t, h.Alive("gateway-l"), "%s, agent %s off: a Lease that is renewed no more is alive", tt.name, agentOff)
			})
		}
	}
}
