// Package engine changes one cluster, under a lock. It claims an entry of the ledger, installs agents, makes keys, and replaces agents while
// packets pass. It writes down what was there before, and puts it back. It removes a peering, or all.
//
// Out of scope: what two clusters do together, and in which order (pkg/peering).
package engine

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
)

// Side is one of the two clusters during a run.
type Side struct {
	*kube.Cluster
	// Index is 0 or 1, as in the plan and in the result.
	Index int
	// Facts are what was read of the cluster last, intent is what is wanted of it.
	Facts  plan.Facts
	Intent plan.Intent
	// WasActive says that the peering worked before this command, removed that it has failed and was removed.
	WasActive, Removed bool
	// RangesChanged says that this command gave the peer other ranges.
	RangesChanged bool
	// Identity is the public half of the cluster's, once it is installed.
	Identity string
	// AdoptNamespace says that our namespace may be one that somebody else has made.
	AdoptNamespace bool
	// Foreign are ranges that its nodes have for something else than the overlay.
	Foreign []netip.Prefix
	// Worked are the ways by which packets passed before agents were replaced, patience is how long they may not since: 0 for lostTimeout.
	Worked   ways
	Patience time.Duration
	// Idle is what did not work before this command.
	Idle Idle
	// Others are the fields that somebody else has changed.
	Others others
	// Journal has how things were before they were changed.
	Journal *journal

	mu sync.Mutex
	// Changed is what the run has changed, as "cluster: object".
	Changed []string
}

// NewSide begins a run for a cluster.
func NewSide(c *kube.Cluster, index int) *Side {
	return &Side{Cluster: c, Index: index, Journal: &journal{Cluster: c, turn: make(chan struct{}, 1)}}
}

// HasChanged notes what the run has changed.
func (s *Side) HasChanged(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if what = s.Name + ": " + what; !slices.Contains(s.Changed, what) {
		s.Changed = append(s.Changed, what)
	}
}
