package peering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// A setting stays until a command changes it, and a plan says why it has its value. If only one cluster got a setting of
// both, so does the other one. A cluster's own settings are in its own objects only.
func TestSettingsAreKept(t *testing.T) {
	kit.Play(t)
	type step struct {
		name    string
		o       engine.Options
		choices []string
		want    any
		changes bool
	}
	limits := func(limitNew, limitRate *int64) engine.Options {
		return wishFor("id-of-a", engine.ClusterOptions{LimitNew: limitNew, LimitRate: limitRate})
	}
	metrics := func(at string) engine.Options { return wishFor("id-of-a", engine.ClusterOptions{NodeMetrics: at}) }
	tolerate := func(all ...corev1.Toleration) engine.Options {
		return wishFor("id-of-a", engine.ClusterOptions{Gateways: v1alpha1.GatewayPlacement{Tolerations: append([]corev1.Toleration{}, all...)}})
	}
	mode := func(m v1alpha1.PlanesMode) engine.Options { return engine.Options{PlanesMode: m} }
	const single, spread, half = v1alpha1.PlanesSingle, v1alpha1.PlanesSpread, "only the other cluster has it"
	both := v1alpha1.Limits{NewConnections: 1000, BitsPerSecond: 5e8}
	for name, tt := range map[string]struct {
		subjects []string
		read     func(t *testing.T, w *Site) any
		isOfBoth bool
		steps    []step
	}{
		"limits": {
			subjects: []string{"limit of new connections of the peer", "limit of the peer's rate"},
			read:     func(t *testing.T, w *Site) any { return w.peering(t).Spec.Limits },
			steps: []step{
				{"by default", engine.Options{}, nil, v1alpha1.Limits{}, true},
				{"given", limits(new(int64(1000)), new(int64(5e8))), []string{"1000 per second and node: given by --limit-new", "500000000 bit/s: given by --limit-rate"}, both, true},
				{"not given", engine.Options{}, []string{"1000 per second and node: as before", "500000000 bit/s: as before"}, both, false},
				{"another one, and none", limits(new(int64(7)), new(int64)), []string{"7 per second and node: given by --limit-new", "none: given by --limit-rate"}, v1alpha1.Limits{NewConnections: 7}, true},
				{"none", limits(new(int64), nil), []string{"none: given by --limit-new"}, v1alpha1.Limits{}, true},
			},
		},
		"metrics of node agents": {
			subjects: []string{"metrics of node agents"},
			read: func(t *testing.T, w *Site) any {
				return manifests.ExposesNodeMetrics(kit.Must(w.ReadNodeAgents(t.Context()))(t))
			},
			steps: []step{
				{"by default", engine.Options{}, nil, false, true},
				{"given", metrics(plan.MetricsNode), []string{"at the nodes' own addresses: given by --node-metrics"}, true, true},
				{"not given", engine.Options{}, []string{"at the nodes' own addresses: as before"}, true, false},
				{"reset", metrics(plan.MetricsLoopback), []string{"at 127.0.0.1: given by --node-metrics"}, false, true},
				{"not given again", engine.Options{}, nil, false, false},
			},
		},
		"placement of gateways": {
			subjects: []string{"nodes of the gateway", "taint that the gateway tolerates"},
			read: func(t *testing.T, w *Site) any {
				is := func(o corev1.Toleration) bool { return o.Key == "dedicated" }
				return slices.ContainsFunc(List[appsv1.DeploymentList](t, w).Items[0].Spec.Template.Spec.Tolerations, is)
			},
			steps: []step{
				{"by default", engine.Options{}, []string{"any: --gateway-node-selector chooses others"}, false, true},
				{"given", tolerate(corev1.Toleration{Key: "dedicated", Operator: "Exists"}), []string{"any: --gateway-node-selector chooses others", "dedicated: given by --gateway-toleration"}, true, true},
				{"not given", engine.Options{}, []string{"any: as before", "dedicated: as before"}, true, false},
				{"reset", tolerate(), []string{"any: as before"}, false, true},
			},
		},
		"mode of planes": {
			subjects: []string{"planes that a node uses"}, isOfBoth: true,
			read: func(t *testing.T, w *Site) any { return w.peering(t).Spec.PlanesMode },
			steps: []step{
				{"by default", engine.Options{}, nil, single, true},
				{"given", mode(spread), []string{"all that work, chosen by pairs of addresses: given by --planes-mode"}, spread, true},
				{"not given", engine.Options{}, []string{"all that work, chosen by pairs of addresses: as before"}, spread, false},
				{half, engine.Options{}, []string{"all that work, chosen by pairs of addresses: as before"}, spread, true},
				{"reset", mode(single), []string{"one, and another one if that fails: given by --planes-mode"}, single, true},
				{"not given again", engine.Options{}, nil, single, false},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := TwoSites(t)
			unset := any(nil)
			for _, step := range tt.steps {
				if step.name == half {
					p := a.peering(t)
					p.Spec.PlanesMode = single
					kit.NoError(t, a.Raw.Update(t.Context(), p))
				}
				p := DryRun(t, a, b, step.o)
				var choices []string
				for _, c := range p.Clusters[0].Choices {
					if slices.Contains(tt.subjects, c.Subject) {
						choices = append(choices, c.Value.String()+": "+c.Reason)
					}
				}
				kit.Check(t, step.name+": the plan says", choices, step.choices)
				kit.Check(t, step.name+": the plan changes something", p.Changes() > 0, step.changes)
				r := MustPeer(t, a, b, step.o)
				kit.Check(t, step.name+": it changes something", len(r.Changed) > 0, step.changes)
				if unset == nil {
					unset = step.want
				}
				want := []any{step.want, unset}
				if tt.isOfBoth {
					want[1] = step.want
				}
				for i, w := range []*Site{a, b} {
					kit.Check(t, step.name+": "+w.Name, tt.read(t, w), want[i])
					kit.Check(t, step.name+": limits in the status of "+w.Name, r.Views[i].Limits, w.peering(t).Spec.Limits)
				}
			}
		})
	}
}

func (w *Site) peering(t *testing.T) *v1alpha1.Peering {
	t.Helper()
	var list v1alpha1.PeeringList
	err := w.Raw.List(t.Context(), &list)
	kit.FatalIf(t, err != nil || len(list.Items) != 1, "%v %v", list.Items, err)
	return &list.Items[0]
}

// services returns the types of the gateways' Services.
func (w *Site) services(t *testing.T) (out []corev1.ServiceType) {
	t.Helper()
	list := List[corev1.ServiceList](t, w)
	for _, s := range list.Items {
		if s.Namespace == v1alpha1.Namespace {
			out = append(out, s.Spec.Type)
		}
	}
	return out
}

func wishFor(id string, c engine.ClusterOptions) engine.Options {
	return engine.Options{Clusters: map[string]engine.ClusterOptions{id: c}}
}

func mapped(mappings ...ipam.Mapping) engine.ClusterOptions {
	return engine.ClusterOptions{Map: mappings}
}

// Impossible settings are rejected before anything is changed.
func TestRefusedBeforeAnythingIsChanged(t *testing.T) {
	tests := []struct {
		name string
		o    engine.Options
		want []string
	}{
		{"a range that is in use", wishFor("id-of-a", mapped(ipam.Mapping{Mapped: kubetest.Prefix("10.96.0.0/16")})), []string{`cluster "b"`, "10.96.0.0/16", "services of cluster b", "--map"}},
		{"a range of another length", wishFor("id-of-a", mapped(ipam.Mapping{Mapped: kubetest.Prefix("10.60.0.0/20")})), []string{"10.60.0.0/20", "/20"}},
		{"not a pod range", wishFor("id-of-a", mapped(ipam.Mapping{Real: kubetest.Prefix("10.1.0.0/16"), Mapped: kubetest.Prefix("10.60.0.0/16")})), []string{"10.1.0.0/16", "is not a pod range"}},
		{"reserved", wishFor("id-of-a", mapped(ipam.Mapping{Mapped: kubetest.Prefix("127.0.0.0/16")})), []string{"loopback"}},
		{"nodes' range in use", wishFor("id-of-a", engine.ClusterOptions{MapNodes: kubetest.Prefix("10.244.64.0/18")}), []string{"10.244.64.0/18", "pods of cluster b"}},
		{"two wishes that overlap", wishFor("id-of-a", engine.ClusterOptions{Map: ipam.Mappings{{Mapped: kubetest.Prefix("10.60.0.0/16")}}, MapNodes: kubetest.Prefix("10.60.0.0/18")}), []string{"10.60.0.0"}},
		{
			"an endpoint of the one that calls",
			engine.Options{Server: "id-of-b", Clusters: map[string]engine.ClusterOptions{"id-of-a": {Endpoints: []string{"203.0.113.1:1"}}}},
			[]string{"--endpoint", "--server"},
		},
		{
			"pods outside of the range given",
			engine.Options{Facts: map[string]discovery.Overrides{"id-of-a": {PodCIDRs: kubetest.Ipv4Prefixes("10.9.0.0/16")}}},
			[]string{"10.9.0.0/16", "10.244.0.7"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod := kubetest.PodWith("10.244.0.7")
			pod.Status.Phase = corev1.PodRunning
			a, b := TwoSites(t, pod)
			_, err := Peer(t.Context(), a.Cluster, b.Cluster, tt.o, kube.Quiet{})
			kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.Usage, "want a usage error, got %v", err)
			text := err.Error()
			if e := (*kube.Error)(nil); errors.As(err, &e) {
				text += " " + e.Hint
			}
			for _, w := range tt.want {
				kit.ErrorIf(t, !strings.Contains(text, w), "%q is not in %q", w, text)
			}
			kit.ErrorIf(t, a.Writes+b.Writes > 0, "%d writes", a.Writes+b.Writes)
		})
	}
	t.Run("what the kernels of agents that are there cannot do", func(t *testing.T) {
		a, b := Peered(t)
		a.Writes, b.Writes = 0, 0
		for _, o := range []engine.Options{{Overlay: "Geneve"}, {WireGuard: "Kernel"}, wishFor("id-of-b", engine.ClusterOptions{WireGuard: "Kernel"})} {
			_, err := Peer(t.Context(), a.Cluster, b.Cluster, o, kube.Quiet{})
			kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.Usage || a.Writes+b.Writes > 0, "%+v: %d writes, %v", o, a.Writes+b.Writes, err)
		}
	})
}

func TestWishedRanges(t *testing.T) {
	kit.Slow(t)
	a, b := TwoSites(t)
	o := wishFor("id-of-a", engine.ClusterOptions{Map: ipam.Mappings{{Mapped: kubetest.Prefix("10.60.0.0/16")}}, MapNodes: kubetest.Prefix("10.61.0.0/18")})
	MustPeer(t, a, b, o)
	check := func() {
		t.Helper()
		if got := b.peering(t).Spec.Remote; got.Pods[0] != kubetest.Mapping("10.244.0.0/16", "10.60.0.0/16") || got.ExternalCIDR != kubetest.Cidr("10.61.0.0/18") {
			t.Errorf("b knows a as %+v", got)
		}
		if got := a.peering(t).Spec.Local; got.Pods[0] != kubetest.Mapping("10.244.0.0/16", "10.60.0.0/16") || got.ExternalCIDR != kubetest.Cidr("10.61.0.0/18") {
			t.Errorf("a says that it is known as %+v", got)
		}
	}
	check()
	MustPeer(t, a, b, engine.Options{})
	check() // the setting is kept
	MustPeer(t, a, b, wishFor("id-of-a", mapped(ipam.Mapping{Real: kubetest.Prefix("10.244.0.0/16"), Mapped: kubetest.Prefix("10.62.0.0/16")})))
	kit.Check(t, "another wish: b knows a as", b.peering(t).Spec.Remote.Pods[0], kubetest.Mapping("10.244.0.0/16", "10.62.0.0/16"))
}

func TestServerAndEndpoint(t *testing.T) {
	kit.NotShort(t)
	a, b := TwoSites(t)
	roles := func() string { return string(a.peering(t).Spec.Planes[0].Role + b.peering(t).Spec.Planes[0].Role) }
	MustPeer(t, a, b, engine.Options{})
	if roles() != "ServerClient" {
		t.Fatal(roles())
	}
	MustPeer(t, a, b, engine.Options{Server: "id-of-b"})
	if roles() != "ClientServer" || len(a.services(t)) != 0 || len(b.services(t)) != 1 {
		t.Errorf("--server b: %s, services %v, %v", roles(), a.services(t), b.services(t))
	}
	MustPeer(t, a, b, engine.Options{})
	kit.Check(t, "it is not kept", roles(), "ClientServer")
	endpoints := []string{"203.0.113.5:31820", "nat.example.com:31820"}
	MustPeer(t, a, b, wishFor("id-of-a", engine.ClusterOptions{Endpoints: endpoints, ServiceType: "NodePort", NodePort: 31820}))
	for range 2 {
		if diff := cmp.Diff(endpoints, b.peering(t).Spec.Planes[0].Endpoints); roles() != "ServerClient" || diff != "" {
			t.Errorf("--endpoint a: %s\n%s", roles(), diff)
		}
		svc := &corev1.Service{}
		err := a.Raw.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.GatewayServiceName("b")}, svc)
		kit.ErrorIf(t, err != nil || svc.Spec.Ports[0].NodePort != 31820, "ports %+v, %v", svc.Spec.Ports, err)
		MustPeer(t, a, b, engine.Options{}) // it is kept
	}
	MustPeer(t, a, b, wishFor("id-of-a", engine.ClusterOptions{AutoEndpoints: true}))
	kit.Check(t, "--endpoint a=auto", b.peering(t).Spec.Planes[0].Endpoints, []string{"172.18.1.11:31820"})
	if _, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); err != nil || len(a.Ours(t))+len(b.Ours(t)) > 0 {
		t.Errorf("unpeer leaves %v, %v: %v", a.Ours(t), b.Ours(t), err)
	}
}

// impatient cancels the wait with that number after some time. It calls a function before, if there is one.
type impatient struct {
	after int
	time.Duration
	before func()
}

func (i *impatient) Step(ctx context.Context, name string, do func(context.Context) error) error {
	if name == "Waiting until packets pass" {
		if i.before != nil {
			i.before()
		}
		if i.after--; i.after == 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, i.Duration)
			defer cancel()
		}
	}
	return do(ctx)
}

// The side that can be reached is the server, whichever was tried first.
func TestUnreachableServer(t *testing.T) {
	kit.NotShort(t)
	t.Run("one", func(t *testing.T) {
		a, b := TwoSites(t)
		a.Unreachable = true
		MustPeer(t, a, b, engine.Options{ConnectTimeout: 10 * time.Millisecond})
		if a.peering(t).Spec.Planes[0].Role != v1alpha1.Client || len(a.services(t)) != 0 {
			t.Errorf("%+v, services %v", a.peering(t).Spec.Planes[0], a.services(t))
		}
	})
	t.Run("both", func(t *testing.T) {
		a, b := TwoSites(t)
		a.Unreachable, b.Unreachable = true, true
		_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{ConnectTimeout: 50 * time.Millisecond}, &impatient{after: 3, Duration: time.Millisecond})
		if kubetest.KindOf(t, err) != kube.NotReady || !strings.Contains(err.Error(), "b tried a at 172.18.1.11:30001 (NodePort)") ||
			!strings.Contains(err.Error(), "a tried b at 172.18.2.11:30001 (NodePort)") {
			t.Error(err)
		}
		if len(a.Ours(t))+len(b.Ours(t)) > 0 {
			t.Errorf("it leaves %v, %v", a.Ours(t), b.Ours(t))
		}
	})
	t.Run("the one that the user named", func(t *testing.T) {
		a, b := TwoSites(t)
		a.Unreachable = true
		_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Server: "id-of-a", ConnectTimeout: 10 * time.Millisecond}, &impatient{after: 1, Duration: 3 * time.Second})
		if kubetest.KindOf(t, err) != kube.NotReady || strings.Contains(err.Error(), "a tried b") || !strings.Contains(err.Error(), "b tried a") {
			t.Error(err)
		}
	})
}

// A second plane is added, kept by later commands, and removed again with exactly the objects that belong to it.
func TestPlanes(t *testing.T) {
	kit.Play(t)
	a, b := unpeeredPair(t, 2)
	one := engine.Options{Planes: 1}
	MustPeer(t, a, b, one)
	before := contentsOf(t, a, b)
	names := func(m map[string]any) (out []string) {
		for name := range m {
			out = append(out, name)
		}
		slices.Sort(out)
		return out
	}
	_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Planes: 3}, kube.Quiet{})
	kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.Usage, "three planes on two nodes: %v", err)
	MustPeer(t, a, b, engine.Options{Planes: 2})
	ports := map[string]bool{}
	for _, w := range []*Site{a, b} {
		p := List[v1alpha1.PeeringList](t, w).Items[0]
		if len(p.Spec.Planes) != 2 || p.Spec.Planes[0].RemotePublicKey == p.Spec.Planes[1].RemotePublicKey ||
			p.Spec.Planes[0].RemoteAddress == p.Spec.Planes[1].RemoteAddress || p.Spec.Planes[0].PresharedKey.Fingerprint == p.Spec.Planes[1].PresharedKey.Fingerprint {
			t.Errorf("%s: planes %+v", w.Name, p.Spec.Planes)
		}
		budgets := List[policyv1.PodDisruptionBudgetList](t, w).Items
		kit.ErrorIf(t, len(budgets) != 1 || budgets[0].Labels[v1alpha1.LabelPeering] != p.Name, "%s: budgets %v", w.Name, budgets)
		for _, svc := range List[corev1.ServiceList](t, w).Items {
			for _, port := range svc.Spec.Ports {
				ports[fmt.Sprint(port.Name, " ", port.Port, " ", port.TargetPort.String())] = true
			}
		}
	}
	want := map[string]bool{"plane-0 51840 plane-0": true, "plane-1 51841 plane-1": true}
	kit.ErrorIf(t, fmt.Sprint(ports) != fmt.Sprint(want), "ports %v", ports)
	Settled(t, a, b, engine.Options{})
	MustPeer(t, a, b, one)
	for i, w := range []*Site{a, b} {
		budgets := List[policyv1.PodDisruptionBudgetList](t, w).Items
		kit.ErrorIf(t, len(budgets) > 0, "%s: with one plane there is still %v", w.Name, budgets)
		reported := List[v1alpha1.PeeringList](t, w).Items[0].Status.Planes
		kit.ErrorIf(t, len(reported) != 1 || reported[0].Index != 0, "%s: with one plane the status has %v", w.Name, reported)
		got, want := names(w.contents(t)), names(before[i])
		kit.ErrorIf(t, !slices.Equal(got, want), "%s has\n%s\nwant\n%s", w.Name, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A removed gateway leaves no condition behind that no other gateway writes.
func TestForgetPlanes(t *testing.T) {
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, kubetest.SomePeering())
	dead := map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Peering", "metadata": map[string]any{"name": "b"}, "status": map[string]any{
		"planes": []any{map[string]any{"index": 1, "connected": true}}, "conditions": []any{
			map[string]any{"type": v1alpha1.ConditionRedundant, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
			map[string]any{"type": v1alpha1.ConditionConnected, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
		},
	}}
	raw := kit.Must(json.Marshal(dead))(t)
	p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	if err := c.Client.Status().Patch(t.Context(), p, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner("liqonet-gateway-1"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
	kit.NoError(t, pruneStatus(t.Context(), &engine.Side{Cluster: c}, "b"))
	kit.NoError(t, c.Client.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	kit.ErrorIf(t, len(p.Status.Conditions) != 1 || p.Status.Conditions[0].Type != v1alpha1.ConditionConnected || p.PlaneStatus(1) != nil,
		"got %+v", p.Status)
}

// If no object names the pod range, a dry run says that it becomes known during the run, and peer infers it from the
// agents' reports.
func TestRangeWithoutASource(t *testing.T) {
	a, b := TwoSites(t)
	withoutSource(t, a)
	a.Routes = []netip.Prefix{kubetest.Prefix("10.244.0.0/20")}
	made := DryRun(t, a, b, engine.Options{})
	s := made.Clusters[0].Facts[0]
	kit.ErrorIf(t, s.Subject != "pod range" || !s.DuringRun, "before there are agents, the first fact is %+v", s)
	left := a.Ours(t)
	kit.FatalIf(t, len(left) > 0, "the dry run made %v", left)
	r := MustPeer(t, a, b, engine.Options{})
	got := r.Views[0].LocalPods
	kit.ErrorIf(t, len(got) != 1 || got[0].Real != kubetest.Prefix("10.244.0.0/16"), "the peer knows %v", got)
	kit.ErrorIf(t, len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "10.244.0.0/16") || !strings.Contains(r.Notes[0], "--pod-cidr a="),
		"the result says %q", r.Notes)
	made = DryRun(t, a, b, engine.Options{})
	if s := made.Clusters[0].Facts[0]; s.Value.String() != "10.244.0.0/16" || !s.Assumed || !strings.Contains(s.Reason, "--pod-cidr a=") {
		t.Errorf("with agents, the first fact is %+v", s)
	}
	Settled(t, a, b, engine.Options{})
}

// The user must give the range if the agents do not report every pod, and nothing remains.
func TestRangeThatAgentsDoNotTell(t *testing.T) {
	a, b := TwoSites(t)
	withoutSource(t, a)
	kubetest.Fails(t, kit.Err(Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})), kube.Ranges, "--pod-cidr a=")
	for _, w := range []*Site{a, b} {
		left := w.Ours(t)
		kit.ErrorIf(t, len(left) > 0, "left in %s: %v", w.Name, left)
	}
}

// withoutSource removes the objects that name a cluster's pod range, and adds a pod.
func withoutSource(t *testing.T, w *Site) {
	t.Helper()
	n := &corev1.Node{}
	kit.NoError(t, w.Client.Get(t.Context(), types.NamespacedName{Name: w.Name + "-1"}, n))
	n.Spec.PodCIDR, n.Spec.PodCIDRs = "", nil
	kit.NoError(t, errors.Join(
		w.Client.Update(t.Context(), n),
		w.Client.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubeadm-config"}}),
		w.Client.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.PodSpec{NodeName: n.Name},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.9.7", PodIPs: []corev1.PodIP{{IP: "10.244.9.7"}}},
		}),
	))
}

// A Peering has all conditions from the start, and commands do not overwrite what gateways have written.
func TestConditionsFromTheBeginning(t *testing.T) {
	for planes, want := range map[int][]string{
		1: {"Ready", "Connected", "Degraded", "KeysFresh"}, 2: {"Ready", "Connected", "Degraded", "KeysFresh", "Redundant"},
	} {
		a, b := unpeeredPair(t, 2)
		MustPeer(t, a, b, engine.Options{Planes: planes})
		p := a.peering(t)
		var got []string
		for _, c := range p.Status.Conditions {
			if got = append(got, c.Type); c.Status != metav1.ConditionUnknown || c.Reason != v1alpha1.ReasonPending || c.LastTransitionTime.IsZero() {
				t.Errorf("%d planes: %+v", planes, c)
			}
		}
		kit.ErrorIf(t, !slices.Equal(got, want), "%d planes: %v, want %v", planes, got, want)
		p.Status.Conditions = p.Status.Conditions[:1]
		p.Status.Conditions[0].Status, p.Status.Conditions[0].Reason = metav1.ConditionTrue, "AllReached"
		kit.NoError(t, a.Client.Status().Update(t.Context(), p))
		MustPeer(t, a, b, engine.Options{Planes: planes, Clusters: map[string]engine.ClusterOptions{a.ID: {LimitNew: new(int64(7))}}})
		if now := a.peering(t); len(now.Status.Conditions) != 1 || now.Status.Conditions[0].Reason != "AllReached" || now.Spec.Limits.NewConnections != 7 {
			t.Errorf("%d planes: %+v", planes, now)
		}
	}
}
