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
	kit.Play(t)
	a, b := TwoSites(t)
	for i, w := range []*Site{a, b} {
		kit.NoError(t, w.Raw.Create(t.Context(), kubetest.Node(w.Name+"-2", true, fmt.Sprintf("172.%d.1.12", 18+i))))
	}
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
	n := DryRun(t, a, b, engine.Options{}).Changes()
	kit.ErrorIf(t, n > 0, "without the flag there would be %d changes", n)
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
