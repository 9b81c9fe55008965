package peering

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// A node from which no packets pass, and a pod outside of the ranges, do not cause the gateways of all planes to be replaced at once.
func TestDegradedPeeringIsReplacedPlaneByPlane(t *testing.T) {
	kit.Play(t)
	a, b := pairOf(t, 2)
	run := newRun(a.Cluster, b.Cluster, engine.Options{Image: "image:2"}, kube.Quiet{})
	run.ticket = newTickets(1)[0]
	kit.NoError(t, run.observe(t.Context()))
	silent := kubetest.Node("a-9", true, "172.18.1.99") // its agent does not report
	kit.NoError(t, a.Raw.Create(t.Context(), silent))
	a.Mu.Lock()
	a.slow = silent.Name
	a.did = nil
	a.Mu.Unlock()
	views, err := status.Views(t.Context(), a.Cluster)
	kit.FatalIf(t, err != nil || views[0].State != status.Degraded, "%+v, %v", views, err)
	turns, err := run.batches(t.Context())
	kit.ErrorIf(t, err != nil || !slices.EqualFunc(turns, [][]int32{{0}, {1}}, slices.Equal), "turns %v, %v", turns, err)
}

// One of two planes is down, for example because its gateway cannot be scheduled. Packets use the other one, including those to a host.
func TestExposeHostWhileOnePlaneIsDown(t *testing.T) {
	kit.Play(t)
	a, b := pairOf(t, 2)
	d := &appsv1.Deployment{}
	name := types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.GatewayName("b", 1)}
	kit.NoError(t, a.Raw.Get(t.Context(), name, d))
	a.Mu.Lock()
	a.lossy = "dead:1"
	a.Mu.Unlock()
	d.Spec.Template.Spec.Containers[0].Image = "dead:1"
	kit.NoError(t, a.Raw.Update(t.Context(), d))
	views, err := status.Views(t.Context(), a.Cluster)
	kit.FatalIf(t, err != nil || !slices.ContainsFunc(views[0].Planes, func(p status.PlaneView) bool { return !p.Connected }),
		"%+v, %v", views, err)
	addr, err := ExposeHost(kit.Timeout(t, 20*time.Second), a.Cluster, b.Cluster, netip.MustParseAddr("192.168.1.50"), kube.Quiet{})
	kit.ErrorIf(t, err != nil || !addr.IsValid(), "%v, %v", addr, err)
	p := &v1alpha1.Peering{}
	err = a.Raw.Get(t.Context(), client.ObjectKey{Name: "b"}, p)
	kit.ErrorIf(t, err != nil || len(p.Spec.Local.Hosts) != 1 || p.PlaneStatus(0).ObservedGeneration != p.Generation, "%+v, %v", p, err)
}

// damages are faults that a command cannot fix.
func damages() map[string]func(a *Site) {
	return map[string]func(*Site){
		"a gateway has no node":          func(a *Site) { a.unplaced = 1 },
		"a node is silent":               func(a *Site) { a.silent = "a-2" },
		"a pod is outside of the ranges": func(a *Site) { a.outside = netip.MustParseAddr("10.99.0.7") },
	}
}

// What did not work before, for a reason that no command can fix, does not prevent changes of the peering. The result
// has a note about it.
func TestChangeDegradedPeering(t *testing.T) {
	kit.Play(t)
	for name, damage := range damages() {
		for what, change := range map[string]func(ctx context.Context, a, b *Site) (Result, error){
			"a limit": func(ctx context.Context, a, b *Site) (Result, error) {
				return Peer(ctx, a.Cluster, b.Cluster, engine.Options{Clusters: map[string]engine.ClusterOptions{a.ID: {LimitNew: new(int64(7))}}}, kube.Quiet{})
			},
			"an image": func(ctx context.Context, a, b *Site) (Result, error) {
				return Peer(ctx, a.Cluster, b.Cluster, engine.Options{Image: "image:2"}, kube.Quiet{})
			},
			"keys": func(ctx context.Context, a, b *Site) (Result, error) {
				return Rotate(ctx, a.Cluster, b.Cluster, Rotation{}, kube.Quiet{})
			},
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				t.Parallel()
				a, b := pairOf(t, 2)
				a.Mu.Lock()
				damage(a)
				a.Mu.Unlock()
				keys := a.keysOf(t)
				r := kit.Must(change(kit.Timeout(t, time.Minute), a, b))(t)
				if r.Views[0].State != status.Degraded || a.outside.IsValid() == slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "as before") }) {
					t.Errorf("%s, notes %q", r.Views[0].State, r.Notes)
				}
				switch p := a.peering(t); what {
				case "a limit":
					kit.ErrorIf(t, p.Spec.Limits.NewConnections != 7, "limits %+v", p.Spec.Limits)
				case "keys":
					rotated(t, keys, a.keysOf(t), "key", "pre-shared", "overlay")
				}
			})
		}
	}
}

// What worked before must work afterwards, even if only its node is lost.
func TestPlaneThatWorkedIsWaitedFor(t *testing.T) {
	kit.Play(t)
	a, b := pairOf(t, 2)
	a.BeforeWriteAt, a.BeforeWrite = 1, func() {
		a.Mu.Lock()
		defer a.Mu.Unlock()
		a.unplaced = 1
	}
	ctx := kit.Timeout(t, 5*time.Second)
	_, err := Peer(ctx, a.Cluster, b.Cluster, engine.Options{Clusters: map[string]engine.ClusterOptions{a.ID: {LimitNew: new(int64(7))}}}, kube.Quiet{})
	if err == nil { // either cluster may be the first to report what it waits for
		t.Error("it does not wait for a plane that worked")
	}
	p := a.peering(t)
	kit.ErrorIf(t, p.Spec.Limits.NewConnections != 0, "it was not put back: %+v", p.Spec.Limits)
}

// Gateways are replaced in batches if each node that reaches the peer can use another plane in the meantime, otherwise all at once.
func TestPassesByAll(t *testing.T) {
	up, down := status.PlaneView{Connected: true}, status.PlaneView{}
	for name, tt := range map[string]struct {
		planes []status.PlaneView
		nodes  [][]int32 // planes through which each reaches the peer
		want   bool
	}{
		"all is well":                                {[]status.PlaneView{up, up}, [][]int32{{0, 1}, {0, 1}}, true},
		"one plane":                                  {[]status.PlaneView{up}, [][]int32{{0}}, true},
		"a node reaches nobody":                      {[]status.PlaneView{up, up}, [][]int32{{0, 1}, nil}, true},
		"no node reaches anybody":                    {[]status.PlaneView{up, up}, [][]int32{nil, nil}, false},
		"there is no node":                           {[]status.PlaneView{up, up}, nil, false},
		"a plane is down":                            {[]status.PlaneView{up, down}, [][]int32{{0}, {0}}, false},
		"a plane is down, and reports are older":     {[]status.PlaneView{up, down}, [][]int32{{0, 1}, {0, 1}}, false},
		"both are down":                              {[]status.PlaneView{down, down}, [][]int32{nil, nil}, false},
		"a plane is reached by no node":              {[]status.PlaneView{up, up}, [][]int32{{1}, {1}}, false},
		"one node of two has one plane":              {[]status.PlaneView{up, up}, [][]int32{{0, 1}, {0}}, false},
		"each plane is reached by some nodes only":   {[]status.PlaneView{up, up}, [][]int32{{0}, {1}}, false},
		"the same, and a node reaches nobody":        {[]status.PlaneView{up, up}, [][]int32{{0}, {1}, nil}, false},
		"as many planes, but one is no longer there": {[]status.PlaneView{up, up}, [][]int32{{0, 2}}, false},
	} {
		v := status.View{State: status.Degraded} // for any other reason
		for i, plane := range tt.planes {
			plane.Index = int32(i)
			v.Planes = append(v.Planes, plane)
		}
		for _, planes := range tt.nodes {
			v.Nodes = append(v.Nodes, status.NodeView{Ready: len(planes) > 0, Planes: planes})
			if len(planes) > 0 {
				v.NodesReady++
			}
		}
		kit.Check(t, name, passesThroughAll(v), tt.want)
	}
}
