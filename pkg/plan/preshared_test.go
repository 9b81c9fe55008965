package plan

import (
	"testing"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

func TestPresharedKeys(t *testing.T) {
	type key = v1alpha1.PresharedKey
	of := func(generation int32, fingerprint string) key {
		return key{Generation: generation, Fingerprint: fingerprint}
	}
	const one, other = "one", "other"
	// side is the key that a Peering names, nil if there is none, and the key that the gateway has.
	type side struct {
		named *key
		has   key
	}
	none := side{}
	with := func(generation int32, fingerprint string) side {
		return side{new(of(generation, fingerprint)), of(generation, fingerprint)}
	}
	without := side{named: &key{}}
	for _, tt := range []struct {
		name         string
		a, b         side
		wantA, wantB key
	}{
		{"a new peering", none, none, key{Generation: 1}, key{Generation: 1}},
		{"as before", with(1, one), with(1, one), of(1, one), of(1, one)},
		{"as before, under two generations", with(3, one), with(1, one), of(3, one), of(1, one)},
		{"they differ", with(3, one), with(1, other), key{Generation: 4}, key{Generation: 4}},
		{"the Secret of one is gone", with(1, one), side{named: new(of(1, one))}, key{Generation: 2}, key{Generation: 2}},
		{"both are gone", side{named: new(of(1, one))}, side{named: new(of(2, one))}, key{Generation: 3}, key{Generation: 3}},
		{"one names none", with(1, one), without, key{Generation: 2}, key{Generation: 2}},
		{"one Peering is gone", with(1, one), none, key{Generation: 2}, key{Generation: 2}},
		{"of an older version", without, without, key{}, key{}},
		{"of an older version, and one Peering is gone", without, none, key{Generation: 1}, key{Generation: 1}},
	} {
		offer := func(s side) Offer {
			f := newFacts("a", nil, "", "")
			f.facts.Planes = map[int32]PlaneFacts{0: {PresharedKey: s.has}}
			if s.named != nil {
				f.facts.Existing = &v1alpha1.Peering{Spec: v1alpha1.PeeringSpec{Overlay: "VXLAN", Planes: []v1alpha1.Plane{{WireGuard: "Kernel", PresharedKey: *s.named}}}}
			}
			return f.offerTo(f)
		}
		a, b := offer(tt.a), offer(tt.b)
		gotA, gotB := PresharedKeys(a, b, 0)
		kit.ErrorIf(t, gotA != tt.wantA || gotB != tt.wantB, "%s: got %+v and %+v, want %+v and %+v", tt.name, gotA, gotB, tt.wantA, tt.wantB)
		if gotB, gotA := PresharedKeys(b, a, 0); gotA != tt.wantA || gotB != tt.wantB {
			t.Errorf("%s, the other way round: got %+v and %+v, want %+v and %+v", tt.name, gotA, gotB, tt.wantA, tt.wantB)
		}
	}
}
