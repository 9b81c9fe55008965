package schema_test

import (
	"slices"
	"testing"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

// Whatever an API server stores, our types read, all of it.
func TestHostileObjectsAreRead(t *testing.T) {
	kit.Slow(t)
	for kind, of := range schema.Examples() {
		t.Run(kind, func(t *testing.T) {
			large, bound := 0, schema.NewBound(t, "reading")
			schema.Hostile(t, 300, of, func(obj map[string]any) {
				if len(encode(t, obj)) > 50_000 {
					large++
				}
				bound.Of(obj, func() {
					err := readable(kind, obj)
					kit.ErrorIf(t, err != nil, "%v", err)
				})
			})
			t.Logf("%d of more than 50 kB", large)
		})
	}
}

// Each of our kinds that an agent may write has an example, of which hostile objects are made.
func TestWritableKindsHaveExamples(t *testing.T) {
	writable, examples := schema.Writable(), schema.Examples()
	found := 0
	for _, crd := range slices.Concat(manifests.CRDs(), manifests.ServicesCRDs()) {
		plural := crd.Spec.Names.Plural
		if slices.Contains(writable, plural) || slices.Contains(writable, plural+"/status") {
			found++
			kit.ErrorIf(t, examples[crd.Spec.Names.Kind] == nil, "there is no %s", crd.Spec.Names.Kind)
		}
	}
	kit.Check(t, "kinds that agents write", found, 4)
}

// A time that Go cannot read, among the field owners that an agent may forge, makes no object unreadable.
func TestForgedOwnersAreRead(t *testing.T) {
	for kind, of := range schema.Examples() {
		obj := kit.Must(schema.Unstructured(of))(t)
		meta := obj["metadata"].(map[string]any)
		meta["managedFields"] = []any{map[string]any{"manager": "x", "time": "10000-01-01T00:00:00Z"}}
		meta["labels"] = map[string]any{"a": "b"}
		switch kind {
		case "Peering":
			p := schema.Into[v1alpha1.Peering](t, obj)
			kit.ErrorIf(t, p.Name != of.GetName() || p.Labels["a"] != "b" || p.Spec.Overlay == "", "%+v", p)
		case "NodeNetwork":
			n := schema.Into[v1alpha1.NodeNetwork](t, obj)
			kit.ErrorIf(t, n.Name != of.GetName() || n.Labels["a"] != "b" || !n.Status.Address.IsValid(), "%+v", n)
		}
	}
}
