package peering

import (
	"slices"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// A cluster's limits for its peer are in its own Peering, where status shows them, and nowhere else. They stay until
// a command changes them.
func TestLimitsAreKept(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	give := func(limitNew, limitRate *int64) engine.Options {
		return wishFor("id-of-a", engine.ClusterOptions{LimitNew: limitNew, LimitRate: limitRate})
	}
	both := v1alpha1.Limits{NewConnections: 1000, BitsPerSecond: 5e8}
	for _, step := range []struct {
		name    string
		o       engine.Options
		want    v1alpha1.Limits
		choices []string
		changes bool
	}{
		{"given", give(new(int64(1000)), new(int64(5e8))), both, []string{"1000 per second and node: given by --limit-new", "500000000 bit/s: given by --limit-rate"}, true},
		{"not given", engine.Options{}, both, []string{"1000 per second and node: as before", "500000000 bit/s: as before"}, false},
		{"another one, and one taken back", give(new(int64(7)), new(int64)), v1alpha1.Limits{NewConnections: 7}, []string{"7 per second and node: given by --limit-new", "none: given by --limit-rate"}, true},
		{"none", give(new(int64), nil), v1alpha1.Limits{}, []string{"none: given by --limit-new"}, true},
	} {
		t.Run(step.name, func(t *testing.T) {
			p := DryRun(t, a, b, step.o)
			var choices []string
			for _, c := range p.Clusters[0].Choices {
				if slices.Contains([]string{"limit of new connections of the peer", "limit of the peer's rate"}, c.Subject) {
					choices = append(choices, c.Value.String()+": "+c.Reason)
				}
			}
			kit.ErrorIf(t, !slices.Equal(choices, step.choices), "the plan says %q, want %q", choices, step.choices)
			if p.Changes() > 0 != step.changes {
				t.Errorf("the plan changes %d objects", p.Changes())
			}
			r := MustPeer(t, a, b, step.o)
			kit.ErrorIf(t, len(r.Changed) > 0 != step.changes, "changed: %v", r.Changed)
			if got := r.Views[0].Limits; got != step.want || a.peering(t).Spec.Limits != step.want {
				t.Errorf("status shows %+v, the Peering has %+v, want %+v", got, a.peering(t).Spec.Limits, step.want)
			}
			kit.ErrorIf(t, r.Views[1].Limits != (v1alpha1.Limits{}) || b.peering(t).Spec.Limits != (v1alpha1.Limits{}), "the peer has limits too")
		})
	}
}

// A failed command leaves the limits unchanged, even if an older Peering has none.
func TestLimitsAreRolledBack(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	given := func(limitNew, limitRate int64) engine.Options {
		return wishFor("id-of-a", engine.ClusterOptions{LimitNew: &limitNew, LimitRate: &limitRate})
	}
	fails := func(o engine.Options, want v1alpha1.Limits) {
		t.Helper()
		a.unreachable = true
		defer func() { a.unreachable = false }()
		o.Image = "image:2" // gateways are replaced, and do not report
		kubetest.Fails(t, kit.Err(Peer(t.Context(), a.Cluster, b.Cluster, o, &impatient{1, 500 * time.Millisecond})), kube.NotReady)
		got := a.peering(t).Spec.Limits
		kit.ErrorIf(t, got != want, "the Peering has %+v, want %+v", got, want)
	}
	MustPeer(t, a, b, engine.Options{})
	fails(given(10, 1e6), v1alpha1.Limits{})
	MustPeer(t, a, b, given(1000, 5e8))
	fails(given(0, 0), v1alpha1.Limits{NewConnections: 1000, BitsPerSecond: 5e8})
}
