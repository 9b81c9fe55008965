package plan

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// sent returns an offer as it arrives at its reader.
func sent(t *testing.T, o Offer) (out Offer, raw []byte) {
	t.Helper()
	raw = kit.Must(json.Marshal(o))(t)
	kit.NoError(t, json.Unmarshal(raw, &out))
	return out, raw
}

// UnmarshalJSON reads the output of MarshalJSON.
func (v *Value) UnmarshalJSON(raw []byte) error {
	var later struct{ DuringRun string }
	if json.Unmarshal(raw, &later) == nil && later.DuringRun != "" {
		*v = Pending(later.DuringRun)
		return nil
	}
	*v = Value{}
	return json.Unmarshal(raw, &v.known)
}

// plannedApart plans each cluster separately, from two offers of the other that arrive as JSON.
func plannedApart(t *testing.T, a, b *input) (*Plan, error) {
	t.Helper()
	clusters := [2]*input{a, b}
	var first, second [2]Offer
	for i, f := range clusters {
		o, err := FirstOffer(f.facts, f.Intent, clusters[1-i].facts.Network.ClusterID)
		if err != nil {
			return nil, err
		}
		first[i], _ = sent(t, o)
	}
	for i, f := range clusters {
		o, err := SecondOffer(f.facts, f.Intent, first[1-i])
		if err != nil {
			return nil, err
		}
		second[i], _ = sent(t, o)
	}
	var plans [2][]ClusterPlan
	for i, f := range clusters {
		var err error
		if plans[i], err = choose(f.facts, f.Intent, second[1-i]); err != nil {
			return nil, err
		}
	}
	return joinPlans(plans), nil
}

// Two clusters that are planned together, and two that know each other only from their offers, get the same plan in
// either order.
func TestPlannedTogetherAndApart(t *testing.T) {
	rounds := 2500
	if testing.Short() {
		rounds = 250
	}
	seen := map[string]int{}
	exact := cmp.Options{compare, cmpopts.EquateErrors(), cmp.AllowUnexported(Plan{}, ClusterPlan{}, unknown{}, Value{})}
	for seed := range rounds {
		a, b := randomPair(rand.New(rand.NewPCG(uint64(seed), 7)))
		together, err := chooseBoth(a, b)
		apart, err2 := plannedApart(t, a, b)
		kit.FatalIf(t, fmt.Sprint(err) != fmt.Sprint(err2), "seed %d: together %v, apart %v", seed, err, err2)
		if err != nil {
			seen["refused"]++
			continue
		}
		if !reflect.DeepEqual(together, apart) {
			kit.MustBe(t, fmt.Sprintf("seed %d: the plans differ when made apart", seed), apart, together, exact)
		}
		other := kit.Must(chooseBoth(b, a))(t)
		for _, p := range other.Candidates() {
			slices.Reverse(p.Clusters[:])
		}
		if !reflect.DeepEqual(together, other) {
			kit.MustBe(t, fmt.Sprintf("seed %d: the plan depends on which cluster is named first", seed), other, together, exact)
		}
		for _, p := range together.Candidates() {
			x, y := p.Clusters[0].Peering.Spec, p.Clusters[1].Peering.Spec
			kit.ErrorIf(t, p.Clusters[0].Role == p.Clusters[1].Role || len(x.Planes) != len(y.Planes) || x.PlanesMode != y.PlanesMode,
				"seed %d: %+v and %+v do not fit", seed, x, y)
			for i, plane := range x.Planes {
				kit.ErrorIf(t, plane.PresharedKey.Fingerprint != y.Planes[i].PresharedKey.Fingerprint || plane.Index != y.Planes[i].Index,
					"seed %d: plane %d differs: %+v, %+v", seed, i, plane, y.Planes[i])
			}
		}
		// The random pairs must contain these cases for the test to be meaningful.
		count := func(what string, is bool) {
			if is {
				seen[what]++
			}
		}
		c := &together.Clusters[0]
		count("several planes", len(c.Gateways) > 1)
		count("spread", c.Peering.Spec.PlanesMode == v1alpha1.PlanesSpread)
		count("a Peering that is there", a.facts.Existing != nil)
		count("a ledger that is not", a.facts.Ledger == nil)
		count("a conflict", slices.ContainsFunc(c.Peering.Spec.Remote.Pods, func(m v1alpha1.CIDRMapping) bool { return m.Real != m.Mapped }))
		count("overridden ranges", len(b.Overrides.Map) > 0)
		count("overridden endpoints", len(b.Overrides.Endpoints) > 0)
		count("an unknown endpoint", slices.ContainsFunc(c.unknown, func(u unknown) bool { return u.field == "endpoints" }))
		count("two candidates", len(together.Candidates()) > 1)
	}
	t.Logf("of %d pairs: %v", rounds, seen)
	for _, what := range []string{"refused", "several planes", "spread", "a Peering that is there", "a ledger that is not", "a conflict", "overridden ranges", "overridden endpoints", "an unknown endpoint", "two candidates"} {
		kit.ErrorIf(t, seen[what] < rounds/100, "%s: only %d of %d", what, seen[what], rounds)
	}
}

// An offer contains nothing about third clusters.
func TestOfferIsNotAboutOthers(t *testing.T) {
	looked := 0
	for seed := range 500 {
		a, b := randomPair(rand.New(rand.NewPCG(uint64(seed), 7)))
		if a.facts.Ledger == nil {
			continue
		}
		var private []string
		for i := range a.facts.Ledger.Spec.Peers {
			p := &a.facts.Ledger.Spec.Peers[i]
			if p.ClusterID == b.facts.Network.ClusterID {
				continue
			}
			private = append(private, p.ClusterID, p.Name, p.ExternalCIDR.String())
			for _, m := range p.Pods {
				private = append(private, m.Mapped.String())
			}
		}
		for i := range a.facts.OtherPeerings {
			p := &a.facts.OtherPeerings[i].Spec
			private = append(private, p.Remote.ClusterID, p.Remote.Name)
			for _, ip := range p.Remote.NodeIPs {
				private = append(private, `"`+ip.String()+`"`)
			}
			for _, plane := range p.Planes {
				private = append(private, plane.RemotePublicKey)
				private = append(private, plane.Endpoints...)
			}
		}
		first, err := FirstOffer(a.facts, a.Intent, b.facts.Network.ClusterID)
		reader, err2 := FirstOffer(b.facts, b.Intent, a.facts.Network.ClusterID)
		if err != nil || err2 != nil {
			continue
		}
		second, err := SecondOffer(a.facts, a.Intent, reader)
		if err != nil {
			continue
		}
		// The reader may have the range by which the cluster knows another one.
		_, its := sent(t, reader)
		private = slices.DeleteFunc(private, func(of string) bool { return strings.Contains(string(its), of) })
		for _, o := range []Offer{first, second} {
			_, raw := sent(t, o)
			for _, of := range private {
				if !strings.Contains(string(raw), of) {
					continue
				}
				t.Errorf("seed %d: %s of another cluster is in %s", seed, of, raw)
			}
			looked += len(private)
		}
	}
	kit.ErrorIf(t, looked < 1000, "only %d values of other clusters were checked", looked)
}
