package peering

import (
	"context"
	"errors"
	"slices"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
)

// connect peers both clusters. It returns when packets pass from every ready node. If it fails, it rolls back its changes:
// a peering that worked before is restored, and other peerings are not affected.
func connect(ctx context.Context, a, b *kube.Cluster, o engine.Options, r kube.Reporter, t ticket) (Result, error) {
	if a.ID == b.ID {
		return Result{}, kube.SameCluster(a, b)
	}
	b, ctx, stop := b.WatchResponses(ctx) // the first cluster is the user's own
	defer stop()
	p := newRun(a, b, o, r)
	p.ticket = t
	// A rejected plan leaves no trace, not even a lock.
	if err := failure.InOrder(ctx, p.reported("Reading both clusters", p.discover)); err != nil {
		return Result{}, kube.ContextError(ctx, err)
	}
	select {
	case <-t.ready:
	case <-ctx.Done():
		return Result{}, &kube.Error{Kind: kube.NotReady, Doing: "wait for the pairs before this one", Err: context.Cause(ctx)}
	}
	for retried := false; ; retried = true {
		for _, c := range []*kube.Cluster{a, b} {
			if err := engine.CompleteRemoval(ctx, c, r); err != nil {
				return Result{}, kube.ContextError(ctx, err)
			}
		}
		err := engine.UnderLocks(ctx, "peer", r.Step, engine.PairLocks(a, b, false), func(ctx context.Context) error {
			return p.runLocked(ctx, p.attempt)
		})
		again := err != nil && !retried && ctx.Err() == nil && (p.avoidConflicts() || errors.Is(err, kube.ErrUninstalling))
		// Remove what a failed new peering leaves behind, or what is no longer used.
		err = errors.Join(err, p.forEachSide(context.WithoutCancel(ctx), func(left context.Context, s, _ *engine.Side) error {
			left, cancel := s.Isolated(left, kube.RollbackTimeout)
			defer cancel()
			if s.Peering.Removed {
				_, err := engine.RemoveUnused(left, s.Cluster, r)
				return err
			}
			engine.CompleteIfPossible(ctx, s.Cluster, r)
			engine.RetireIfPossible(left, s.Cluster)
			return nil
		}))
		if !again {
			return p.result, err
		}
		recognised := p.recognised
		p = newRun(a, b, p.options, r)
		p.ticket, p.recognised = t, recognised
	}
}

// discover makes a plan before anything is changed, and rejects what cannot work, as far as that is known without
// agents.
func (p *run) discover(ctx context.Context) error {
	checkPermissions := func(ctx context.Context, s, _ *engine.Side) error {
		return s.CheckPermissions(ctx, engine.InstallPermissions())
	}
	return failure.InOrder(ctx, p.onBoth(checkPermissions), p.mustRecognise, p.observe)
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
