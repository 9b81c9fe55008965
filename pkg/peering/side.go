package peering

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/liqonet/liqonet/pkg/plan"
)

// side is one of the two clusters during a run.
type side struct {
	*Cluster
	// index is 0 or 1, as in the plan and in the result.
	index int
	// facts are what was read of the cluster last, intent is what is wanted of it.
	facts  plan.Facts
	intent plan.Intent
	// wasActive says that the peering worked before this command, removed that it has failed and was removed.
	wasActive, removed bool
	// rangesChanged says that this command gave the peer other ranges.
	rangesChanged bool
	// identity is the public half of the cluster's, once it is installed.
	identity string
	// adoptNamespace says that our namespace may be one that somebody else has made.
	adoptNamespace bool
	// foreign are ranges that its nodes have for something else than the overlay.
	foreign []netip.Prefix
	// worked are the ways by which packets passed before agents were replaced, patience is how long they may not since: 0 for lostTimeout.
	worked   ways
	patience time.Duration
	// idle is what did not work before this command.
	idle idle
	// others are the fields that somebody else has changed.
	others others
	// journal has how things were before they were changed.
	journal *journal

	mu sync.Mutex
	// changed is what the run has changed, as "cluster: object".
	changed []string
}

func newSide(c *Cluster, index int) *side {
	return &side{Cluster: c, index: index, journal: &journal{cluster: c, turn: make(chan struct{}, 1)}}
}

// hasChanged notes what the run has changed.
func (s *side) hasChanged(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if what = s.Name + ": " + what; !slices.Contains(s.changed, what) {
		s.changed = append(s.changed, what)
	}
}
