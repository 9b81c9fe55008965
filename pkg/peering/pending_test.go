package peering

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// A Peering has all conditions from the start, and commands do not overwrite what gateways have written.
func TestConditionsFromTheBeginning(t *testing.T) {
	for planes, want := range map[int][]string{
		1: {"Ready", "Connected", "Degraded", "KeysFresh"}, 2: {"Ready", "Connected", "Degraded", "KeysFresh", "Redundant"},
	} {
		a, b := TwoSites(t)
		for i, w := range []*Site{a, b} {
			kit.NoError(t, w.Raw.Create(t.Context(), kubetest.Node(w.Name+"-2", true, fmt.Sprintf("172.%d.1.12", 18+i))))
		}
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
