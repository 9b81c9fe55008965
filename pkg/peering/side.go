package peering

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/liqonet/liqonet/pkg/plan"
)

// side is one of the two clusters during a run.
type side struct {
	*Cluster
	// facts are what was read of the cluster, and what the run has added since.
	facts plan.FactSheet
	// joined says that another command had claimed the ledger's entry before, and the
	// peering did not work yet.
	joined bool
	// wasEstablished says that the peering worked before this command, established that
	// this command has noted so.
	wasEstablished, established bool
	// rangesChanged says that this command gave the peer other ranges.
	rangesChanged bool
	// later is the node agents' DaemonSet where it waits until the gateways run.
	later *appsv1.DaemonSet
	// journal has how things were before they were changed.
	journal *journal
}

func newSide(c *Cluster) *side { return &side{Cluster: c, journal: &journal{cluster: c}} }

// hasGivenEndpoints says that the user told where a gateway of the cluster can be
// called.
func (s *side) hasGivenEndpoints() bool {
	return slices.ContainsFunc(s.facts.PlaneIndexes(), func(plane int32) bool { return len(s.facts.GivenEndpoints(plane)) > 0 })
}
