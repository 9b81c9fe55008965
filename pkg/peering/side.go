package peering

import (
	"slices"

	"github.com/liqonet/liqonet/pkg/plan"
)

// side is one of the two clusters during a run.
type side struct {
	*Cluster
	// facts are what was read of the cluster, and what the run has added since.
	facts plan.FactSheet
	// wasEstablished says that the peering worked before this command.
	wasEstablished bool
	// journal has how things were before they were changed.
	journal journal
}

// hasGivenEndpoints says that the user told where a gateway of the cluster can be
// called.
func (s *side) hasGivenEndpoints() bool {
	return slices.ContainsFunc(s.facts.PlaneIndexes(), func(plane int32) bool { return len(s.facts.GivenEndpoints(plane)) > 0 })
}
