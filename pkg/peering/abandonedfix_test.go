package peering_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/liqonet/liqonet/pkg/diagnose"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// doctor --fix also completes a rollout: node agents that no command replaces are out of date.
func TestFixCompletesTheRollOutOfTheKilled(t *testing.T) {
	kit.Play(t)
	for first, do := range peering.RollsOut {
		for _, writes := range kubetest.Some(t, []int{0, 1, 2, 3}, 1, 4) {
			kit.Bubble(t, fmt.Sprintf("%s, %d pods were deleted", first, writes), func(t *testing.T) {
				a, b, c := peering.Trio(t, engine.Options{})
				if err := do(t.Context(), (&peering.Dying{Writes: writes}).Of(a), c.Cluster); !errors.Is(err, peering.ErrInjected) {
					t.Fatal(err)
				}
				clusters := []*kube.Cluster{a.Cluster, b.Cluster}
				facts, err := diagnose.ReadFacts(t.Context(), clusters, nil, kube.Quiet{})
				if err == nil {
					_, err = diagnose.Fix(t.Context(), clusters, facts, doctor.Examine(facts), kube.Quiet{})
				}
				kit.ErrorIf(t, err != nil, "%v", err)
				a.IsRolledOut(t)
				left := a.UnusedKeys(t)
				kit.ErrorIf(t, len(left) > 0 && first != "peer", "there are keys that no link has: %v", left)
			})
		}
	}
}

// doctor --fix that is given the one cluster completes the rollout there.
func TestFixOfOneCluster(t *testing.T) {
	kit.Play(t)
	synctest.Test(t, func(t *testing.T) {
		a, _, c := peering.Trio(t, engine.Options{})
		if err := peering.RollsOut["upgrade"](t.Context(), (&peering.Dying{Writes: 1}).Of(a), c.Cluster); !errors.Is(err, peering.ErrInjected) {
			t.Fatal(err)
		}
		clusters := []*kube.Cluster{a.Cluster}
		facts, err := diagnose.ReadFacts(t.Context(), clusters, nil, kube.Quiet{})
		if err == nil {
			_, err = diagnose.Fix(t.Context(), clusters, facts, doctor.Examine(facts), kube.Quiet{})
		}
		kit.ErrorIf(t, err != nil, "%v", err)
		a.IsRolledOut(t)
	})
}
