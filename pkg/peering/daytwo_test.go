package peering

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Changes returns what a dry run would do, as "cluster action kind name".
func Changes(p *plan.Plan) (out []string) {
	for _, c := range p.Clusters {
		for _, o := range c.Objects {
			if o.Action != plan.Keep {
				out = append(out, c.Cluster+" "+string(o.Action)+" "+o.Kind+" "+o.Name)
			}
		}
	}
	return out
}

// A pod range that a cluster gets later is added without changing the existing ones.
func TestPodRangeAdded(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	a, b := Peered(t)
	specB := b.peering(t).Spec
	workloads := func() map[string]any {
		out := a.contents(t)
		for name, o := range b.contents(t) {
			out["b "+name] = o
		}
		for _, name := range []string{"Peering b", "b Peering a", "b ClusterNetwork cluster"} {
			kit.ErrorIf(t, out[name] == nil, "there is no %s", name)
			delete(out, name)
		}
		return out
	}
	before := workloads()
	grown := engine.Options{Facts: map[string]discovery.Overrides{"id-of-a": {PodCIDRs: kubetest.Ipv4Prefixes("10.244.0.0/16", "10.99.0.0/16", "10.30.0.0/16")}}}
	want := []string{"a change Peering b", "b change ClusterNetwork cluster", "b change Peering a"}
	kit.Check(t, "dry run", Changes(DryRun(t, a, b, grown)), want)
	MustPeer(t, a, b, grown)
	got := b.peering(t).Spec
	if len(got.Remote.Pods) != 3 || !slices.Contains(got.Remote.Pods, specB.Remote.Pods[0]) || got.Remote.ExternalCIDR != specB.Remote.ExternalCIDR {
		t.Errorf("before %+v, after %+v", specB.Remote, got.Remote)
	}
	if !slices.Contains(got.Remote.Pods, kubetest.Mapping("10.30.0.0/16", "10.30.0.0/16")) { // free in b
		t.Errorf("got %+v", got.Remote.Pods)
	}
	got.Remote.Pods = specB.Remote.Pods
	kit.Check(t, "more than the ranges was changed", got, specB, kit.Compare)
	kit.Check(t, "other objects were changed", workloads(), before)
	Settled(t, a, b, grown)
}

// A subnet that a node gets later moves only the range that it overlaps.
func TestNodeSubnetAdded(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	a, b := Peered(t)
	was := b.peering(t).Spec
	free, inTheWay := kubetest.Prefix("192.0.2.0/24"), netip.PrefixFrom(was.Remote.Pods[0].Mapped.Addr(), 24)
	b.Mu.Lock()
	b.Routes = []netip.Prefix{free}
	b.Mu.Unlock()
	Settled(t, a, b, engine.Options{})
	b.Mu.Lock()
	b.Routes = append(b.Routes, inTheWay)
	b.Mu.Unlock()
	want := []string{"a change Peering b", "b change ClusterNetwork cluster", "b change Peering a"}
	kit.Check(t, "a subnet in the peer's range", Changes(DryRun(t, a, b, engine.Options{})), want)
	MustPeer(t, a, b, engine.Options{})
	now := b.peering(t).Spec
	kit.ErrorIf(t, now.Remote.Pods[0].Mapped.Overlaps(inTheWay) || now.Remote.ExternalCIDR != was.Remote.ExternalCIDR,
		"before %+v, after %+v", was.Remote, now.Remote)
	kit.Check(t, "the other direction was changed", now.Local, was.Local, kit.Compare)
}

// Routes that claim everything, in one piece or in several, prevent no peering and move no range. They are named.
func TestRoutesThatClaimEverything(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	a, b := TwoSites(t)
	claim := func(routes ...string) {
		b.Mu.Lock()
		defer b.Mu.Unlock()
		b.Routes = lo.Map(routes, func(r string, _ int) netip.Prefix { return kubetest.Prefix(r) })
	}
	claim("0.0.0.0/1", "128.0.0.0/1")
	MustPeer(t, a, b, engine.Options{})
	was := b.peering(t).Spec
	for _, routes := range [][]string{{"0.0.0.0/0"}, {"10.0.0.0/7"}, {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"}, {"10.0.0.0/9", "10.128.0.0/9", "172.16.0.0/12", "192.168.0.0/17", "192.168.128.0/17", "192.0.2.0/24"}} {
		claim(routes...)
		made := DryRun(t, a, b, engine.Options{})
		if got := strings.Join(made.Clusters[1].Warnings, "\n"); !strings.Contains(got, "reports routes to "+routes[0]) || !strings.Contains(got, "leave no room for peers") {
			t.Errorf("%v: the plan warns %q", routes, got)
		}
		MustPeer(t, a, b, engine.Options{})
		kit.Check(t, "the ranges", b.peering(t).Spec, was, kit.Compare)
	}
	claim("10.0.0.0/8", "192.168.0.0/16") // it leaves room
	if got := strings.Join(DryRun(t, a, b, engine.Options{}).Clusters[1].Warnings, "\n"); strings.Contains(got, "leave no room") {
		t.Errorf("the plan warns %q", got)
	}
}

// Only agents see that a node has a route into the range planned for the overlay. The overlay gets another range.
func TestInternalRangeTaken(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	a, b := TwoSites(t)
	made := DryRun(t, a, b, engine.Options{})
	chosen := made.Clusters[1].Ranges[0].Real
	b.Mu.Lock()
	b.Routes = []netip.Prefix{netip.PrefixFrom(chosen.Addr(), 24)}
	b.Mu.Unlock()
	MustPeer(t, a, b, engine.Options{})
	got := b.peering(t).Spec.Local.InternalCIDR.Prefix
	kit.ErrorIf(t, got.Overlaps(chosen), "the overlay has %s, though a node has a route to %s", got, b.Routes)
	Settled(t, a, b, engine.Options{})
	// Too late for another range: everything stays unchanged.
	b.Mu.Lock()
	b.Routes = []netip.Prefix{netip.PrefixFrom(got.Addr(), 24)}
	b.Mu.Unlock()
	MustPeer(t, a, b, engine.Options{})
	now := b.peering(t).Spec.Local.InternalCIDR.Prefix
	kit.ErrorIf(t, now != got, "the overlay's range %s has become %s", got, now)
}

// A user deletes the namespace, and so the journal, while peer runs: it starts over.
func TestNamespaceDeletedDuringCommand(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	once := sync.Once{}
	c := a.Through(func(ctx context.Context, r *fakeapi.Request) (err error) {
		if r.Of("apply", "ResourceQuota") {
			once.Do(func() {
				refused := apierrors.NewForbidden(corev1.Resource("resourcequotas"), "", errors.New("it is being terminated"))
				refused.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
				err = refused
				for _, s := range List[corev1.SecretList](t, a).Items {
					if strings.HasPrefix(s.Name, manifests.JournalSecret("").Name) {
						err = errors.Join(a.Raw.Delete(ctx, &s), err)
					}
				}
			})
		}
		if err != nil {
			return err
		}
		return r.Send(ctx)
	})
	kit.Must(Peer(t.Context(), c, b.Cluster, engine.Options{Image: "image:2"}, kube.Quiet{}))(t)
	kit.Check(t, "the node agents have the image", a.image(t), "image:2")
}

// A node from which no packets pass, and a pod outside of the ranges, do not cause the gateways of all planes to be replaced at once.
func TestDegradedPeeringIsReplacedPlaneByPlane(t *testing.T) {
	kit.Play(t)
	silent := func(t *testing.T, w *Site) {
		node := kubetest.Node("a-9", true, "172.18.1.99")
		kit.NoError(t, w.Raw.Create(t.Context(), node))
		w.Slow = node.Name
		w.did = nil
	}
	outside := func(_ *testing.T, w *Site) { w.Outside = netip.MustParseAddr("10.99.0.7") }
	for name, damage := range map[string]func(t *testing.T, w *Site){
		"the agent of a node does not report": silent,
		"a pod is outside of the ranges":      outside,
		"both":                                func(t *testing.T, w *Site) { silent(t, w); outside(t, w) },
	} {
		for i, in := range []string{"own", "other"} {
			t.Run(name+", in the "+in+" cluster", func(t *testing.T) {
				t.Parallel()
				a, b := pairOf(t, 2)
				run := newRun(a.Cluster, b.Cluster, engine.Options{Image: "image:2"}, kube.Quiet{})
				run.ticket = newTickets(1)[0]
				kit.NoError(t, run.observe(t.Context()))
				w := []*Site{a, b}[i]
				w.Mu.Lock()
				damage(t, w)
				w.Mu.Unlock()
				views, err := status.Views(t.Context(), w.Cluster)
				kit.FatalIf(t, err != nil || views[0].State != status.Degraded, "%+v, %v", views, err)
				turns, err := run.batches(t.Context())
				kit.ErrorIf(t, err != nil || !slices.EqualFunc(turns, [][]int32{{0}, {1}}, slices.Equal), "turns %v, %v", turns, err)
			})
		}
	}
}

// One of two planes is down, for example because its gateway cannot be scheduled. Packets use the other one, including those to a host.
func TestExposeHostWhileOnePlaneIsDown(t *testing.T) {
	kit.Play(t)
	synctest.Test(t, func(t *testing.T) {
		a, b := pairOf(t, 2)
		d := &appsv1.Deployment{}
		name := types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.GatewayName("b", 1)}
		kit.NoError(t, a.Raw.Get(t.Context(), name, d))
		a.Mu.Lock()
		a.Lossy = "dead:1"
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
	})
}

// damages are faults that a command cannot fix.
func damages() map[string]func(a *Site) {
	return map[string]func(*Site){
		"a gateway has no node":          func(a *Site) { a.Unplaced = 1 },
		"a node is silent":               func(a *Site) { a.Silent = "a-2" },
		"a pod is outside of the ranges": func(a *Site) { a.Outside = netip.MustParseAddr("10.99.0.7") },
	}
}

// What did not work before, for a reason that no command can fix, does not prevent changes of the peering. The result
// has a note about it.
func TestChangeDegradedPeering(t *testing.T) {
	kit.Play(t)
	for name, damage := range kubetest.SomeOf(t, 1, damages()) {
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
				if r.Views[0].State != status.Degraded || a.Outside.IsValid() == slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "as before") }) {
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
		a.Unplaced = 1
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
		"a plane is down":                            {[]status.PlaneView{up, down}, [][]int32{{0}, {0}}, false},
		"a plane is down, and reports are older":     {[]status.PlaneView{up, down}, [][]int32{{0, 1}, {0, 1}}, false},
		"one node of two has one plane":              {[]status.PlaneView{up, up}, [][]int32{{0, 1}, {0}}, false},
		"each plane is reached by some nodes only":   {[]status.PlaneView{up, up}, [][]int32{{0}, {1}}, false},
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

// Nodes without a Linux kernel of their own have no agents: peer does not wait for them, and a dry run plans nothing
// for them.
func TestNodesWithoutAgents(t *testing.T) {
	kit.Slow(t)
	var without []client.Object
	for kind, n := range fakeapi.Nodes() {
		if kind != "linux" {
			without = append(without, n)
		}
	}
	a, b := TwoSites(t, without...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // on a busy machine
	defer cancel()
	kit.Must(Peer(ctx, a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}))(t)
	for _, c := range DryRun(t, a, b, engine.Options{}).Clusters {
		for _, s := range append(slices.Clone(c.Facts), c.Choices...) {
			kit.ErrorIf(t, s.Assumed && s.Subject != "node range",
				"%s: %s is assumed, though all agents have reported: %s", c.Cluster, s.Subject, s.Reason)
		}
	}
	Settled(t, a, b, engine.Options{})
}

// An invalid Peering does not prevent peerings with others, and peer rewrites it.
func TestPeerReplacesAPeeringThatCannotBeRead(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	was := a.peering(t).Spec
	unreadable := a.peering(t)
	unreadable.Spec = v1alpha1.PeeringSpec{} // as it is decoded
	other := &v1alpha1.Peering{}
	other.Name = "other"
	kit.NoError(t, errors.Join(a.Raw.Update(t.Context(), unreadable), a.Raw.Create(t.Context(), other)))
	MustPeer(t, a, b, engine.Options{Replace: true})
	kit.NoError(t, a.Raw.Delete(t.Context(), other))
	now := a.peering(t).Spec
	// The former pre-shared key could no longer be checked for equality.
	k := now.Planes[0].PresharedKey
	kit.ErrorIf(t, k.Fingerprint == "" || k == was.Planes[0].PresharedKey, "pre-shared key %+v", k)
	was.Planes[0].PresharedKey = now.Planes[0].PresharedKey
	kit.Check(t, "now", now, was, kit.Compare)
}
