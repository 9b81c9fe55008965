package peering_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/liqonet/liqonet/pkg/diagnose"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/test/kubetest"
)

// doctor --fix that is given the one cluster completes the roll-out there.
func TestAttackFixOfOneCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, _, c := peering.Trio(t, engine.Options{})
		if err := peering.RollsOut["upgrade"](t.Context(), (&peering.Dying{Writes: 1}).Of(a), c.Cluster); !errors.Is(err, peering.ErrInjected) {
			t.Fatal(err)
		}
		clusters := []*kube.Cluster{a.Cluster}
		facts, err := diagnose.ReadFacts(t.Context(), clusters, make([]error, 1), diagnose.DoctorOptions{ObjectsOnly: true}, kubetest.Silent{})
		if err == nil {
			_, err = diagnose.Fix(t.Context(), clusters, facts, doctor.Examine(facts), kubetest.Silent{})
		}
		if err != nil {
			t.Error(err)
		}
		a.IsRolledOut(t)
	})
}
