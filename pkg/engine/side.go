// Package engine changes one cluster, under a lock. It reserves an entry in the ledger, installs agents, creates keys, and
// replaces agents while packets pass. It journals changes, rolls them back, and removes one peering or everything.
//
// Out of scope: what concerns two clusters, and in which order (pkg/peering).
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
	// Facts are what was last read from the cluster, Intent is what is wanted.
	Facts  plan.Facts
	Intent plan.Intent
	// WasActive is true if the peering worked before this command, Removed if the command failed and removed it.
	WasActive, Removed bool
	// RangesChanged is true if this command gave the peer other ranges.
	RangesChanged bool
	// Identity is the public key of the cluster's identity, once it is installed.
	Identity string
	// AdoptNamespace accepts a namespace that someone else created.
	AdoptNamespace bool
	// ConflictingRoutes are ranges of the overlay that nodes already use for something else.
	ConflictingRoutes []netip.Prefix
	// Baseline are the paths that passed packets before agents were replaced. LossTimeout is how long they may fail since, 0 for
	// lossTimeout. StallTimeout is how long the replacement may make no progress, 0 for any time.
	Baseline                  paths
	LossTimeout, StallTimeout time.Duration
	// PriorFailures is what did not work before this command.
	PriorFailures PriorFailures
	// FieldConflicts are the fields that other managers have changed.
	FieldConflicts fieldConflicts
	// Journal holds the former state of changed objects.
	Journal *journal

	mu sync.Mutex
	// Changed lists what the run has changed, as "cluster: object".
	Changed []string
}

// NewSide starts a run for a cluster.
func NewSide(c *kube.Cluster, index int) *Side {
	return &Side{Cluster: c, Index: index, Journal: &journal{Cluster: c, sem: make(chan struct{}, 1)}}
}

// RecordChange records a change of the run.
func (s *Side) RecordChange(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if what = s.Name + ": " + what; !slices.Contains(s.Changed, what) {
		s.Changed = append(s.Changed, what)
	}
}
