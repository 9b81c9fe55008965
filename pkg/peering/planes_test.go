package peering

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// A second plane is added, kept by later commands, and removed again with exactly the objects that belong to it.
func TestPlanes(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := TwoSites(t)
	for i, w := range []*Site{a, b} {
		if err := w.Raw.Create(t.Context(), kubetest.Node(w.Name+"-2", true, fmt.Sprintf("172.%d.1.12", 18+i))); err != nil {
			t.Fatal(err)
		}
	}
	one := engine.Options{Planes: 1}
	MustPeer(t, a, b, one)
	before := []map[string]any{a.contents(t), b.contents(t)}
	names := func(m map[string]any) (out []string) {
		for name := range m {
			out = append(out, name)
		}
		slices.Sort(out)
		return out
	}
	if _, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Planes: 3}, kube.Quiet{}); kubetest.KindOf(t, err) != kube.Usage {
		t.Errorf("three planes on two nodes: %v", err)
	}
	MustPeer(t, a, b, engine.Options{Planes: 2})
	ports := map[string]bool{}
	for _, w := range []*Site{a, b} {
		p := List[v1alpha1.PeeringList](t, w).Items[0]
		if len(p.Spec.Planes) != 2 || p.Spec.Planes[0].RemotePublicKey == p.Spec.Planes[1].RemotePublicKey ||
			p.Spec.Planes[0].RemoteAddress == p.Spec.Planes[1].RemoteAddress || p.Spec.Planes[0].PresharedKey.Fingerprint == p.Spec.Planes[1].PresharedKey.Fingerprint {
			t.Errorf("%s: planes %+v", w.Name, p.Spec.Planes)
		}
		if budgets := List[policyv1.PodDisruptionBudgetList](t, w).Items; len(budgets) != 1 || budgets[0].Labels[v1alpha1.LabelPeering] != p.Name {
			t.Errorf("%s: budgets %v", w.Name, budgets)
		}
		for _, svc := range List[corev1.ServiceList](t, w).Items {
			for _, port := range svc.Spec.Ports {
				ports[fmt.Sprint(port.Name, " ", port.Port, " ", port.TargetPort.String())] = true
			}
		}
	}
	if want := map[string]bool{"plane-0 51840 plane-0": true, "plane-1 51841 plane-1": true}; fmt.Sprint(ports) != fmt.Sprint(want) {
		t.Errorf("ports %v", ports)
	}
	if n := DryRun(t, a, b, engine.Options{}).Changes(); n > 0 {
		t.Errorf("without the flag there would be %d changes", n)
	}
	MustPeer(t, a, b, one)
	for i, w := range []*Site{a, b} {
		if budgets := List[policyv1.PodDisruptionBudgetList](t, w).Items; len(budgets) > 0 {
			t.Errorf("%s: with one plane there is still %v", w.Name, budgets)
		}
		if reported := List[v1alpha1.PeeringList](t, w).Items[0].Status.Planes; len(reported) != 1 || reported[0].Index != 0 {
			t.Errorf("%s: with one plane the status has %v", w.Name, reported)
		}
		if got, want := names(w.contents(t)), names(before[i]); !slices.Equal(got, want) {
			t.Errorf("%s has\n%s\nwant\n%s", w.Name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
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
	raw, err := json.Marshal(dead)
	if err != nil {
		t.Fatal(err)
	}
	p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	if err := c.Client.Status().Patch(t.Context(), p, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner("liqonet-gateway-1"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
	if err := pruneStatus(t.Context(), &engine.Side{Cluster: c}, "b"); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		t.Fatal(err)
	}
	if len(p.Status.Conditions) != 1 || p.Status.Conditions[0].Type != v1alpha1.ConditionConnected || p.PlaneStatus(1) != nil {
		t.Errorf("got %+v", p.Status)
	}
}
