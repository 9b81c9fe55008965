package peering

import (
	"fmt"
	"testing"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/test/kit"
)

// Both clusters get the mode of planes. It stays until a command changes it, even if only one cluster got it.
func TestPlanesModeIsKept(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	const one, spread = v1alpha1.PlanesSingle, v1alpha1.PlanesSpread
	for _, step := range []struct {
		name       string
		given      v1alpha1.PlanesMode
		want       v1alpha1.PlanesMode
		choice     string
		isNew      bool
		isWithdraw bool
	}{
		{name: "never given", want: one, isNew: true},
		{name: "given", given: spread, want: spread, choice: "all that work, chosen by pairs of addresses: given by --planes-mode"},
		{name: "not given", want: spread, choice: "all that work, chosen by pairs of addresses: as before"},
		{name: "half", want: spread, choice: "all that work, chosen by pairs of addresses: as before", isWithdraw: true},
		{name: "reset", given: one, want: one, choice: "one, and another one if that fails: given by --planes-mode"},
		{name: "not given again", want: one},
	} {
		o := engine.Options{PlanesMode: step.given}
		if step.isWithdraw {
			half := a.peering(t)
			half.Spec.PlanesMode = one
			kit.NoError(t, a.Raw.Update(t.Context(), half))
		}
		if step.isNew {
			MustPeer(t, a, b, o)
		}
		p := DryRun(t, a, b, o)
		choice := ""
		for _, c := range p.Clusters[0].Choices {
			if c.Subject == "planes that a node uses" {
				choice = c.Value.String() + ": " + c.Reason
			}
		}
		changes := step.given != "" || step.isWithdraw
		if choice != step.choice || p.Changes() > 0 != changes {
			t.Errorf("%s: the plan says %q, and changes %d objects", step.name, choice, p.Changes())
		}
		r := MustPeer(t, a, b, o)
		kit.ErrorIf(t, len(r.Changed) > 0 != changes, "%s: changed %v", step.name, r.Changed)
		for _, w := range []*Site{a, b} {
			kit.Check(t, fmt.Sprintf("%s: %s", step.name, w.Name), w.peering(t).Spec.PlanesMode, step.want)
		}
	}
}
