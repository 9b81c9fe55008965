package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/samber/lo"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

// peerClusters peers both clusters. It returns when packets pass from every ready node. If it fails, it rolls back its changes:
// a peering that worked before is restored, and other peerings are not affected.
func peerClusters(ctx context.Context, a, b *kube.Cluster, o engine.Options, r kube.Reporter, t ticket) (Result, error) {
	if err := kube.Distinct(a, b); err != nil {
		return Result{}, err
	}
	a, b = a.Recording(), b.Recording()
	b, ctx, stop := b.WatchResponses(ctx) // the first cluster is the user's own
	defer stop()
	p := newRun(a, b, o, r)
	p.ticket = t
	// A rejected plan leaves no trace, not even a lock.
	if err := failure.RunSteps(ctx, p.withProgress("Reading both clusters", p.discover)); err != nil {
		return Result{}, kube.ContextError(ctx, err)
	}
	select {
	case <-t.ready:
	case <-ctx.Done():
		return Result{}, kube.ContextError(ctx, &kube.Error{Op: "wait for the pairs before this one"})
	}
	for retried := false; ; retried = true {
		for _, c := range []*kube.Cluster{a, b} {
			if err := engine.CompleteRemoval(ctx, c, r); err != nil {
				return Result{}, kube.ContextError(ctx, err)
			}
		}
		err := engine.WithLocks(ctx, "peer", r.Step, engine.PairLocks(a, b, false), func(ctx context.Context) error {
			return p.runLocked(ctx, p.attempt)
		})
		again := err != nil && !retried && ctx.Err() == nil && (p.avoidConflicts() || errors.Is(err, kube.ErrUninstalling))
		// Remove what a failed new peering leaves behind, or what is no longer used.
		err = errors.Join(err, p.forEachSide(context.WithoutCancel(ctx), func(left context.Context, s, peer *engine.Side) error {
			left, cancel := s.Isolated(left, kube.RollbackTimeout)
			defer cancel()
			if p.isOvertaken && !s.Peering.WasActive {
				if err := removeReserved(left, s, peer); err != nil {
					return err
				}
			}
			if s.Peering.Removed {
				_, err := engine.RemoveUnused(left, s.Cluster, 0, r)
				return err
			}
			engine.TryCompleteOthers(ctx, s.Cluster, r)
			if s.Intent.Overrides.Services.Exchange != plan.ServicesOff {
				return nil
			}
			return engine.RemoveUnusedServices(left, s.Cluster, r)
		}))
		if !again {
			return p.result, err
		}
		recognized := p.evidence
		p = newRun(a, b, p.options, r)
		p.ticket, p.evidence = t, recognized
	}
}

// discover makes a plan before anything is changed, and rejects what cannot work, as far as that is known without
// agents.
func (p *run) discover(ctx context.Context) error {
	checkPermissions := func(ctx context.Context, s, _ *engine.Side) error {
		return s.CheckPermissions(ctx, engine.InstallPermissions())
	}
	checkServices := func(ctx context.Context, s, _ *engine.Side) error {
		if !p.planOf(s).Services {
			return nil
		}
		return s.CheckPermissions(ctx, engine.ServicesPermissions())
	}
	return failure.RunSteps(ctx, p.requirePermissions(checkPermissions), p.observe, p.onBothSides(checkServices))
}

// avoidConflicts makes the next attempt avoid ranges that conflict with those of nodes. It reports whether there are any.
func (p *run) avoidConflicts() (any bool) {
	facts := lo.Assign(p.options.Facts)
	for _, s := range p.sides {
		f := facts[s.ID]
		f.Reserved = append(slices.Clone(f.Reserved), s.Peering.ConflictingRoutes...)
		facts[s.ID] = f
		any = any || len(s.Peering.ConflictingRoutes) > 0
	}
	p.options.Facts = facts
	return any
}

// runLocked runs steps of a command under the locks of both clusters. If they fail, it rolls them back.
func (p *run) runLocked(ctx context.Context, steps ...step) error {
	err := kube.ContextError(ctx, failure.RunSteps(ctx, steps...))
	p.result.Changed = slices.Concat(p.sides[0].Changes.List, p.sides[1].Changes.List)
	switch {
	case err == nil:
		notes := lo.FlatMap(p.plan.Clusters[:], func(c plan.ClusterPlan, _ int) []string { return c.Notes })
		p.result.Notes = slices.Concat(p.result.Notes, notes, p.identityNotes(func(s *engine.Side) string { return s.Peering.Identity }), p.notesOfSkipped())
		for i, s := range p.sides {
			p.result.Identities[i] = Identity{s.Name, s.ID, manifests.IdentityFingerprint(s.Peering.Identity)}
		}
		p.readKeyExchanges(ctx)
		return nil
	case !p.needsRollback: // nothing changed, or committed
		return err
	case lock.Lost(ctx) != nil: // left to another command
		p.isOvertaken = true
		return err
	case p.options.KeepFailed && !p.sides[0].Peering.WasActive && !p.sides[1].Peering.WasActive:
		return p.keepFailed(context.WithoutCancel(ctx), err)
	}
	if undoErr := p.rollBack(context.WithoutCancel(ctx)); undoErr != nil {
		a, b := failure.Quote(p.sides[0].Name), failure.Quote(p.sides[1].Name)
		return errors.Join(err, fmt.Errorf("the changes could not be rolled back: %w; run: kubectl liqonet peer %s %s, or kubectl liqonet unpeer %s %s", undoErr, a, b, a, b))
	}
	if p.sides[0].Peering.Removed || p.sides[1].Peering.Removed {
		return kube.WithoutRemovedObjects(err)
	}
	return err
}

// keepFailed keeps the objects of a new peering that has failed, so that the user can look at them. Without planes, agents
// apply nothing. The entries stay reserved, and the next command rolls the changes back, as those of a killed one.
func (p *run) keepFailed(ctx context.Context, failed error) error {
	ctx, cancel := kube.WithRollbackTimeout(ctx)
	defer cancel()
	err := p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) error {
		entry, err := s.ReadLedgerEntry(ctx, peer.ID)
		if entry == nil {
			return err
		}
		live, err := kube.Get[v1alpha1.Peering](ctx, s.Cluster, "", entry.Name)
		if live == nil || err != nil {
			return err
		}
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"planes":null}}`))
		return s.Wrap("disable Peering "+live.Name, kube.IgnoreAbsent(s.Client.Patch(ctx, live, patch, kube.FieldOwner)))
	})
	a, b := failure.Quote(p.sides[0].Name), failure.Quote(p.sides[1].Name)
	return errors.Join(failed, fmt.Errorf("the failed peering is kept without a data path (--keep-failed); to remove it: kubectl liqonet unpeer %s %s", a, b), err)
}

// attempt runs all steps once.
func (p *run) attempt(ctx context.Context) error {
	// Other commands may have changed the clusters since the first plan, and a killed one is rolled back before the new one.
	err := failure.RunSteps(ctx, p.reverifyIdentities, p.onBothSides(rollBackKilled), p.observe, p.recordPriorFailures,
		p.withProgress("Installing the node agents", p.install))
	if err != nil {
		return err
	}
	for push := p.push; ; push = p.apply {
		if err := p.reporter.Step(ctx, "Pushing ranges, keys and gateways", push); err != nil {
			return err
		}
		err := p.reporter.Step(ctx, "Waiting until packets pass", p.awaitAndCommit)
		if !errors.Is(err, errUnanswered) {
			return p.roles.explain(err, p.plan)
		}
		p.plan = p.roles.next(p.plan)
	}
}

// rollBackKilled removes what a killed command has left of the peering in one cluster.
func rollBackKilled(ctx context.Context, s, peer *engine.Side) error {
	entry, err := s.ReadLedgerEntry(ctx, peer.ID)
	switch {
	case entry == nil:
		return err
	case entry.IsBeingRemoved():
		_, err := engine.RemovePeer(ctx, s.Cluster, peer.ID)
		return err
	}
	if err := engine.RevertInterrupted(ctx, s.Cluster, peer.ID, entry.Name, false); err != nil {
		return err
	}
	if entry.Previous != nil { // without a journal, that command was complete
		if _, err := engine.UpdateEntry(ctx, s.Cluster, peer.ID, engine.ForgetPrevious); err != nil {
			return s.Wrap("write to the ledger that an earlier command is complete", err)
		}
	}
	// The garbage collector is deleting the objects of a Peering that was deleted. They cannot be reused.
	if live, err := kube.Get[v1alpha1.Peering](ctx, s.Cluster, "", entry.Name); live != nil || err != nil {
		return err
	}
	return engine.DeleteAll(ctx, s.Cluster, kube.PeeringLabels(entry.Name))
}

// recordPriorFailures records what does not work in an active peering.
func (p *pairing) recordPriorFailures(ctx context.Context) error {
	err := p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) error {
		if !s.Peering.WasActive {
			return nil
		}
		v, err := view(ctx, s, peer)
		s.Health.PriorFailures = engine.PriorFailures{
			Peering: v.Name,
			Planes:  lo.FilterMap(v.Planes, func(plane status.PlaneView, _ int) (int32, bool) { return plane.Index, !plane.Connected }),
			Nodes:   lo.FilterMap(v.Nodes, func(n status.NodeView, _ int) (string, bool) { return n.Name, !n.Ready }),
		}
		return err
	})
	planes := slices.Concat(p.sides[0].Health.PriorFailures.Planes, p.sides[1].Health.PriorFailures.Planes)
	for _, s := range p.sides {
		s.Health.PriorFailures.Planes = planes
	}
	return err
}

// install installs the node agents, and starts the gateways of a new peering.
func (p *run) install(ctx context.Context) error {
	p.needsRollback = true
	p.startsEarly = !slices.ContainsFunc(p.sides[:], func(s *engine.Side) bool { return s.Peering.WasActive || s.Facts.Existing != nil })
	steps := []step{p.onBothSides(func(ctx context.Context, s, peer *engine.Side) error {
		return s.Install(ctx, peer.Cluster, p.planOf(s))
	}), p.confirmIdentities}
	if p.startsEarly {
		steps = append(steps, p.startGateways)
	}
	readReports := func(ctx context.Context, s, _ *engine.Side) (err error) {
		if err := s.AwaitReports(ctx, false); err != nil {
			return err
		}
		if s.Facts.Ledger, err = s.ReadLedger(ctx); err == nil {
			s.Facts, err = s.Facts.InferPods()
		}
		return err
	}
	if err := failure.RunSteps(ctx, append(steps, p.onBothSides(readReports), p.checkInternalRange)...); err != nil {
		return err
	}
	// If a kernel lacks the backend that the user requires, fail before there is more than the agents.
	_, err := plan.Offers(p.planInputs())
	return err
}

// startGateways starts the gateways of a new peering before all node agents have reported, so that their pods start
// in parallel and wait for their Peering. Only the WireGuard backend depends on the reports, and the first one
// decides. If the kernel of another node turns out to lack it, push replaces the gateways.
func (p *run) startGateways(ctx context.Context) error {
	readLedger := func(ctx context.Context, s, peer *engine.Side) (err error) {
		if s.Facts.Ledger, err = s.ReadLedger(ctx); err == nil && plan.Allocation(s.Facts.Ledger, peer.ID) == nil {
			err = kube.ErrUnpeered
		}
		return s.Wrap("start the gateways", err)
	}
	awaitReport := func(ctx context.Context, s, _ *engine.Side) error { return s.AwaitReports(ctx, true) }
	start := func(ctx context.Context, s, peer *engine.Side) error {
		g, ctx := failure.NewGroup(ctx)
		g.Go(func() error { return p.pushServices(ctx, s, peer) })
		for _, gateway := range p.planOf(s).Gateways {
			g.Go(func() error { return applyGateway(ctx, s, p.planOf(s), gateway, true) })
		}
		return g.Wait()
	}
	return failure.RunSteps(ctx, p.onBothSides(readLedger), p.makeAllKeys, p.onBothSides(awaitReport), p.makePlan, p.onBothSides(start))
}

// checkInternalRange fails if a node uses addresses of the overlay's range for something else, which only agents can see.
// If a peer already depends on the range, it is too late to choose another.
func (p *pairing) checkInternalRange(context.Context) error {
	var errs []error
	for _, s := range p.sides {
		cn := s.Facts.Ledger
		if cn == nil || slices.ContainsFunc(cn.Spec.Peers, func(a v1alpha1.PeerAllocation) bool { return a.Active() }) {
			continue
		}
		for _, n := range s.Facts.Reports {
			routes, _ := plan.NodeRoutes(&n)
			for _, r := range routes {
				if !r.Overlaps(cn.Spec.InternalCIDR.Prefix) {
					continue
				}
				s.Peering.ConflictingRoutes = append(s.Peering.ConflictingRoutes, r)
				hint := fmt.Sprintf("try again with --reserve %s=%s", failure.Quote(s.Name), r)
				errs = append(errs, s.Errorf(kube.Ranges, "find a range for the overlay", hint,
					"the chosen range %s overlaps %s, to which node %s has a route", cn.Spec.InternalCIDR, r, n.Name))
			}
		}
	}
	return errors.Join(errs...)
}

// push makes the plan from the agents' reports, and applies it. Gateways that were started remain if the plan still has them.
func (p *run) push(ctx context.Context) error {
	steps := []step{p.onBothSides(p.allocate), p.onBothSides(func(ctx context.Context, s, _ *engine.Side) error {
		return s.InstallServices(ctx, p.planOf(s).Objects)
	})}
	if !p.startsEarly {
		// Only after the other side has chosen ranges, which depend on this side's endpoints.
		steps = append(steps, p.makeAllKeys)
	}
	if err := failure.RunSteps(ctx, steps...); err != nil {
		return err
	}
	p.ticket.release()
	before := p.plan
	if err := p.makePlan(ctx); err != nil {
		return err
	}
	p.roles.candidates = p.plan.Candidates()
	if p.startsEarly && p.plan.SameGateways(before) {
		return p.pushPeerings()(ctx)
	}
	return p.apply(ctx)
}

// allocate writes the ranges that the cluster uses for the peer into the ledger, and the identity of a replaced peer: before anything
// of that peer is pushed.
func (p *pairing) allocate(ctx context.Context, s, peer *engine.Side) (err error) {
	isNew := false
	offer, err := plan.FirstOffer(peer.Facts, peer.Intent, s.ID)
	if err != nil {
		return err
	}
	own := s.Facts
	s.Facts.Ledger, err = engine.UpdateLedger(ctx, s.Cluster, func(cn *v1alpha1.ClusterNetwork) (err error) {
		replaced := plan.ReplacePeer(cn, peer.ID, peer.Peering.Identity)
		isNew, err = plan.Allocate(cn, own, offer)
		isNew = isNew || replaced
		return cmp.Or(err, plan.AllocateServices(cn, p.planOf(s), peer.ID))
	})
	if err == nil && isNew {
		s.Peering.RangesChanged = true
		s.RecordChange("ranges of the ledger")
	}
	return s.Wrap("allocate ranges", err)
}

// awaitAndCommit waits until both sides' gateways and all nodes report that packets pass, with the agents that were applied.
// Then it commits the changes, and deletes objects that are no longer needed.
func (p *run) awaitAndCommit(ctx context.Context) error {
	// Until the journals are closed, everything can be rolled back, in both clusters, also by a command that overtakes this one.
	commit := func(ctx context.Context, s, _ *engine.Side) error { return s.Changes.Journal.Close(ctx, s.Cluster) }
	awaitServices := func(ctx context.Context, s, _ *engine.Side) error { return s.AwaitServices(ctx, p.planOf(s).Objects) }
	if err := failure.RunSteps(ctx, p.onBothSides(p.waitForPackets), p.onBothSides(awaitServices), p.onBothSides(commit), lock.Lost, p.onBothSides(activate)); err != nil {
		return err
	}
	p.needsRollback = false
	if len(p.dropped) > 0 {
		if err := p.dropPlanes(ctx); err != nil {
			return fmt.Errorf("the peering works as requested, but gateways of removed planes are left for the next peer: %w", kube.ContextError(ctx, err))
		}
		return nil
	}
	return p.forEachSide(ctx, p.cleanUp)
}

// activate records in the ledger that the peering works, and the peer's identity.
func activate(ctx context.Context, s, peer *engine.Side) error {
	_, err := engine.UpdateEntry(ctx, s.Cluster, peer.ID, func(entry *v1alpha1.PeerAllocation) error {
		entry.Phase, entry.IdentityKey = v1alpha1.PeerActive, peer.Peering.Identity
		return nil
	})
	return s.Wrap("write to the ledger that the peering works", err)
}

// rollBack rolls back the changes of this command. In each cluster, a peering that was not active in its ledger is
// removed.
func (p *run) rollBack(ctx context.Context) error {
	name := "Rolling back the changes"
	if slices.ContainsFunc(p.sides[:], func(s *engine.Side) bool { return !s.Peering.WasActive }) {
		name = fmt.Sprintf("Removing the peering of %s and %s", p.sides[0].Name, p.sides[1].Name)
	}
	return p.reporter.Step(ctx, name, func(ctx context.Context) error {
		var errs [2]error // one side continues if the other fails
		_ = p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) error {
			ctx, cancel := s.Isolated(ctx, kube.RollbackTimeout)
			defer cancel()
			errs[s.Index] = kube.ContextError(ctx, failure.RecoverPanic(func() error { return rollBack(ctx, s, peer) }))
			return nil
		})
		return errors.Join(errs[:]...)
	})
}

// rollBack is one side's part. It restores shared objects first.
func rollBack(ctx context.Context, s *engine.Side, peer *engine.Side) error {
	if s.Peering.WasActive && s.Peering.RangesChanged {
		if err := engine.RestoreRanges(ctx, s.Cluster, peer.ID); err != nil {
			return err
		}
	}
	if err := engine.Revert(ctx, s.Cluster, peer.ID, s.Changes.Journal.Changes, !s.Peering.WasActive); err != nil {
		return err
	}
	if !s.Peering.WasActive {
		if _, err := engine.RemovePeer(ctx, s.Cluster, peer.ID); err != nil {
			return err
		}
		s.Peering.Removed = true
	}
	return s.Changes.Journal.Close(ctx, s.Cluster)
}

// removeReserved removes what a new peering left in a cluster when the command lost a lock, perhaps only the one in the other cluster. It
// goes by this cluster alone, and leaves everything to a command that holds the lock here.
func removeReserved(ctx context.Context, s, peer *engine.Side) error {
	own := engine.LockFor(s.Cluster, peer.ID)
	own.Timeout = engine.EndTolerance
	err := engine.WithLocks(ctx, "peer", kube.Quiet{}.Step, []lock.Cluster{own}, func(ctx context.Context) error {
		entry, err := s.ReadLedgerEntry(ctx, peer.ID)
		if entry == nil || entry.Active() || err != nil {
			return err
		}
		_, err = engine.RemovePeer(ctx, s.Cluster, peer.ID)
		s.Peering.Removed = err == nil
		return err
	})
	if e, is := errors.AsType[*kube.Error](err); is && e.Kind == kube.Busy {
		return nil
	}
	return err
}

// Pair is two clusters to be peered.
type Pair [2]*kube.Cluster

func (p Pair) String() string { return p[0].Name + " - " + p[1].Name }

// Outcome is the outcome for one of several pairs.
type Outcome struct {
	Pair Pair
	// Result is the result of PeerAll.
	Result Result
	// Removed is the result of UnpeerAll, in the order of the pair.
	Removed [2]engine.Removed
	Err     error
}

// maxParallelPairs limits how many pairs are handled in parallel.
const maxParallelPairs = 8

// PeerAll peers all pairs. A pair that fails is rolled back, and does not stop the others. Ranges and indexes are
// allocated in the order of the pairs, as in a dry run. The gateways of all pairs start in parallel.
func PeerAll(ctx context.Context, pairs []Pair, o engine.Options, reporter func(Pair) kube.Reporter) []Outcome {
	tickets := newTickets(len(pairs))
	return forEachPair(pairs, func(i int, out *Outcome) (err error) {
		defer tickets[i].release()
		out.Result, err = peerClusters(ctx, out.Pair[0], out.Pair[1], o, reporter(out.Pair), tickets[i])
		return err
	})
}

// UnpeerAll removes the peerings of all pairs, as Unpeer does. A pair that fails does not stop the others.
func UnpeerAll(ctx context.Context, pairs []Pair, reporter func(Pair) kube.Reporter) []Outcome {
	return forEachPair(pairs, func(_ int, out *Outcome) (err error) {
		out.Removed[0], out.Removed[1], err = Unpeer(ctx, out.Pair[0], out.Pair[1], reporter(out.Pair))
		return err
	})
}

// forEachPair handles several pairs in parallel, and starts them in order.
func forEachPair(pairs []Pair, fn func(i int, out *Outcome) error) []Outcome {
	out := make([]Outcome, len(pairs))
	_ = failure.ForEachLimit(context.Background(), maxParallelPairs, pairs, func(_ context.Context, i int, pair Pair) error {
		out[i].Pair = pair
		out[i].Err = failure.RecoverPanic(func() error { return fn(i, &out[i]) })
		return nil
	})
	return out
}

// PlanAll returns what PeerAll would do, and changes nothing. It needs read permissions only, and marks as unclear
// what it may not read. Each plan builds on the outcome of the previous ones. An error is about the first pair that
// cannot be planned.
func PlanAll(ctx context.Context, pairs []Pair, o engine.Options, r kube.Reporter) ([]*plan.Plan, error) {
	plans := make([]*plan.Plan, 0, len(pairs))
	ledgers := map[string]*v1alpha1.ClusterNetwork{}
	made := map[string]bool{}
	name := lo.Ternary(len(pairs) > 1, "Reading all clusters", "Reading both clusters")
	err := r.Step(ctx, name, func(ctx context.Context) error {
		for _, pair := range pairs {
			if err := kube.Distinct(pair[:]...); err != nil {
				return err
			}
			p := newRun(pair[0], pair[1], o, r)
			p.ledgers = ledgers
			if err := failure.RunSteps(ctx, p.dryRun); err != nil && len(pairs) > 1 {
				return fmt.Errorf("%s: %w", pair, err)
			} else if err != nil {
				return err
			}
			for _, c := range kube.Pointers(p.plan.Clusters[:]) {
				ledgers[c.ClusterID] = c.Ledger
				for _, object := range kube.Pointers(c.Objects) {
					key := fmt.Sprint(c.ClusterID, object.Kind, object.Namespace, object.Name)
					if made[key] && object.Kind != "ClusterNetwork" {
						object.Action, object.Reason = plan.Keep, object.Reason+"; by an earlier one of these plans"
					}
					made[key] = made[key] || object.Action != plan.Keep
				}
			}
			plans = append(plans, p.plan)
		}
		return nil
	})
	return plans, kube.ContextError(ctx, err)
}

// CountNodes returns the number of nodes in the clusters of all pairs. It serves to estimate timeouts, so it ignores
// clusters that do not respond.
func CountNodes(ctx context.Context, pairs []Pair) (nodes int64) {
	for _, c := range lo.Uniq(lo.FlatMap(pairs, func(p Pair, _ int) []*kube.Cluster { return p[:] })) {
		list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
		if c.SkipReason == nil && c.Client.List(ctx, list, client.Limit(1)) == nil {
			nodes += int64(len(list.Items)) + lo.FromPtr(list.RemainingItemCount)
		}
	}
	return nodes
}

// dryRun makes a plan and compares it with the live objects.
func (p *run) dryRun(ctx context.Context) error {
	unclear, err := p.verifyIdentities(ctx)
	if err != nil {
		return err
	}
	compare := func(ctx context.Context, s, _ *engine.Side) error {
		return compareObjects(ctx, s, p.planOf(s).Objects, false)
	}
	if err := failure.RunSteps(ctx, p.observe, p.onBothSides(compare)); err != nil {
		return err
	}
	c := &p.plan.Clusters[0]
	c.Notes = append(c.Notes, p.identityNotes(func(s *engine.Side) string { return p.evidence[s.Index].Key })...)
	if unclear != nil {
		c.Warnings = append(c.Warnings, fmt.Sprintf("unverified: whether both clusters are those that were peered is not known: %v", unclear))
	}
	return nil
}
