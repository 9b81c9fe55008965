package plan

import (
	"encoding/json"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

// For any objects in an API server, planning succeeds or returns an error. The planned objects can be stored.
func TestHostileObjects(t *testing.T) {
	kit.NotShort(t)
	kinds := kit.Must(schema.Kinds(t.Context()))(t)
	stored := func(t *testing.T, of client.Object) {
		t.Helper()
		if p, ok := of.(*v1alpha1.Peering); ok {
			for i := range p.Spec.Planes { // set during the run
				p.Spec.Planes[i].RemotePublicKey = schema.Key
				p.Spec.Planes[i].PresharedKey.Fingerprint = schema.Fingerprint
			}
		}
		raw, err := json.Marshal(of)
		if err == nil {
			_, err = kinds[of.GetObjectKind().GroupVersionKind().Kind].Store(t.Context(), raw, nil)
		}
		// After a million keys there is no next generation.
		kit.ErrorIf(t, err != nil && !strings.Contains(err.Error(), "should be less than or equal to 1000000"),
			"planned objects are refused: %v", err)
	}
	for kind, of := range schema.Examples() {
		t.Run(kind, func(t *testing.T) {
			tried, made, bound := 0, 0, schema.NewBound(t, "a plan")
			schema.Hostile(t, 100, of, func(obj map[string]any) {
				a, b := newFacts("a", []string{"10.244.0.0/16"}, "10.96.0.0/16", "172.18.0.0/16"), newFacts("b", []string{"10.244.0.0/16"}, "10.96.0.0/16", "172.18.0.0/16")
				a.Overrides.Endpoints, b.Overrides.Endpoints = []string{"172.18.0.2:30001"}, []string{"172.18.0.2:30001"}
				tried++
				switch kind {
				case "ClusterNetwork":
					a.facts.Ledger = new(schema.Into[v1alpha1.ClusterNetwork](t, obj))
				case "NodeNetwork":
					a.facts.Reports = []v1alpha1.NodeNetwork{schema.Into[v1alpha1.NodeNetwork](t, obj)}
				case "Peering":
					p := schema.Into[v1alpha1.Peering](t, obj)
					if a.facts.OtherPeerings = []v1alpha1.Peering{p}; tried%2 == 0 {
						a.facts.OtherPeerings, a.facts.Existing = nil, &p
					}
				}
				var p *Plan
				bound.Of(obj, func() {
					p = nil
					var err error
					if a.facts, err = a.facts.InferPods(); err != nil {
						return
					}
					// The objects that are the same in each plan are left out.
					if p, err = chooseBoth(a, b); err != nil {
						p = nil
					}
				})
				if p == nil {
					return
				}
				made++
				for _, c := range p.Clusters {
					stored(t, c.Peering)
					stored(t, c.Ledger)
				}
			})
			kit.ErrorIf(t, made == 0, "no plan was made, so the test proves little")
			t.Logf("%d plans", made)
		})
	}
}
