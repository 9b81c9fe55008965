package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

// peer connects the pods of both clusters. It returns when packets pass from every ready node. If it fails, it rolls back its changes: a peering that worked before is restored, and other peerings
// are not affected.
func (p *run) peer(ctx context.Context) (Result, error) {
	if a, b := p.sides[0].Cluster, p.sides[1].Cluster; a.ID == b.ID {
		return Result{}, kube.SameCluster(a, b)
	}
	ctx, stop := p.watchResponses(ctx)
	defer stop()
	a, b := p.sides[0].Cluster, p.sides[1].Cluster
	// A rejected plan leaves no trace, not even a lock.
	if err := failure.InOrder(ctx, p.reported("Reading both clusters", p.discover)); err != nil {
		return Result{}, kube.ContextError(ctx, err)
	}
	select {
	case <-p.ticket.ready:
	case <-ctx.Done():
		return Result{}, &kube.Error{Kind: kube.NotReady, Doing: "wait for the pairs before this one", Err: context.Cause(ctx)}
	}
	for retried := false; ; retried = true {
		for _, c := range []*kube.Cluster{a, b} {
			if err := engine.CompleteRemoval(ctx, c, p.reporter); err != nil {
				return Result{}, kube.ContextError(ctx, err)
			}
		}
		err := engine.UnderLocks(ctx, "peer", p.reporter.Step, engine.PairLocks(a, b, false), func(ctx context.Context) error {
			return p.runLocked(ctx, p.attempt)
		})
		again := err != nil && !retried && ctx.Err() == nil && (p.avoidConflicts() || errors.Is(err, kube.ErrUninstalling))
		// Remove what a failed new peering leaves behind, or what is no longer used.
		err = errors.Join(err, p.forEachSide(context.WithoutCancel(ctx), func(left context.Context, s, _ *engine.Side) error {
			left, cancel := s.Isolated(left, kube.RollbackTimeout)
			defer cancel()
			if s.Removed {
				_, err := engine.RemoveUnused(left, s.Cluster, p.reporter)
				return err
			}
			engine.CompleteIfPossible(ctx, s.Cluster, p.reporter)
			engine.RetireIfPossible(left, s.Cluster)
			return nil
		}))
		if !again {
			return p.result, err
		}
		p.reset(a, b)
	}
}

// watchResponses returns a context that ends once the second cluster is unresponsive. The first one is the user's own.
func (p *run) watchResponses(ctx context.Context) (answering context.Context, stop context.CancelFunc) {
	s := p.sides[1]
	s.Cluster, answering, stop = s.WatchResponses(ctx)
	s.Journal.Cluster = s.Cluster
	return answering, stop
}

// runLocked runs steps of a command under the locks of both clusters. If they fail, it rolls them back.
func (p *run) runLocked(ctx context.Context, steps ...step) error {
	err := kube.ContextError(ctx, failure.InOrder(ctx, steps...))
	p.result.Changed = append(p.sides[0].Changed, p.sides[1].Changed...)
	switch {
	case err == nil:
		notes := lo.FlatMap(p.plan.Clusters[:], func(c plan.ClusterPlan, _ int) []string { return c.Notes })
		p.result.Notes = slices.Concat(p.result.Notes, notes, p.notesOfSkipped())
		p.readExchanges(ctx)
		return nil
	case !p.needsRollback, lock.Lost(ctx) != nil: // nothing changed, or committed, or left to another command
		return err
	}
	if undoErr := p.rollBack(context.WithoutCancel(ctx)); undoErr != nil {
		a, b := p.sides[0].Name, p.sides[1].Name
		return errors.Join(err, fmt.Errorf("the changes could not be rolled back: %w; run: kubectl liqonet peer %s %s, or kubectl liqonet unpeer %s %s", undoErr, a, b, a, b))
	}
	return err
}

// attempt runs all steps once.
func (p *run) attempt(ctx context.Context) error {
	if err := failure.InOrder(ctx, p.planUnderLocks, p.reported("Installing the node agents", p.install)); err != nil {
		return err
	}
	for push := p.push; ; push = p.apply {
		if err := p.reporter.Step(ctx, "Pushing ranges, keys and gateways", push); err != nil {
			return err
		}
		err := p.reporter.Step(ctx, "Waiting until packets pass", p.wait)
		if !errors.Is(err, errUnanswered) {
			return p.roles.explain(err, p.plan)
		}
		p.plan = p.roles.next(p.plan)
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

// planUnderLocks makes the plan again, under the locks, as other commands may have changed the clusters.
// It first rolls back a killed command.
func (p *run) planUnderLocks(ctx context.Context) error {
	return failure.InOrder(ctx, p.recogniseAgain, p.onBoth(rollBackKilled), p.observe, p.recordPriorFailures)
}

// rollBackKilled removes what a killed command has left of the peering in one cluster.
func rollBackKilled(ctx context.Context, s, peer *engine.Side) error {
	entry, err := s.Entry(ctx, peer.ID)
	switch {
	case entry == nil:
		return err
	case entry.Leaving():
		_, err := engine.RemovePeer(ctx, s.Cluster, peer.ID)
		return err
	}
	if err := engine.RevertInterrupted(ctx, s.Cluster, peer.ID, entry.Name, false); err != nil {
		return err
	}
	// The garbage collector is deleting the objects of a Peering that was deleted. They cannot be reused.
	if live, err := kube.Get[v1alpha1.Peering](ctx, s.Cluster, "", entry.Name); live != nil || err != nil {
		return err
	}
	return engine.DeleteAll(ctx, s.Cluster, kube.PeeringLabels(entry.Name))
}

// recordPriorFailures records what does not work in an active peering.
func (p *run) recordPriorFailures(ctx context.Context) error {
	err := p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) error {
		if !s.WasActive {
			return nil
		}
		v, err := view(ctx, s, peer)
		s.PriorFailures = engine.PriorFailures{
			Peering: v.Name,
			Planes:  lo.FilterMap(v.Planes, func(plane status.PlaneView, _ int) (int32, bool) { return plane.Index, !plane.Connected }),
			Nodes:   lo.FilterMap(v.Nodes, func(n status.NodeView, _ int) (string, bool) { return n.Name, !n.Ready }),
		}
		return err
	})
	planes := slices.Concat(p.sides[0].PriorFailures.Planes, p.sides[1].PriorFailures.Planes)
	for _, s := range p.sides {
		s.PriorFailures.Planes = planes
	}
	return err
}

// install installs the node agents, and starts the gateways of a new peering.
func (p *run) install(ctx context.Context) error {
	p.needsRollback = true
	p.started = !slices.ContainsFunc(p.sides[:], func(s *engine.Side) bool { return s.WasActive || s.Facts.Existing != nil })
	steps := []step{p.onBoth(func(ctx context.Context, s, peer *engine.Side) error {
		return s.Install(ctx, peer.Cluster, p.planOf(s))
	})}
	if p.started {
		steps = append(steps, p.startGateways)
	}
	readReports := func(ctx context.Context, s, _ *engine.Side) (err error) {
		if err := s.AwaitReports(ctx, false); err != nil {
			return err
		}
		if s.Facts.Ledger, err = s.Ledger(ctx); err == nil {
			s.Facts, err = s.Facts.InferPods()
		}
		return err
	}
	if err := failure.InOrder(ctx, append(steps, p.onBoth(readReports), p.checkInternal)...); err != nil {
		return err
	}
	// If a kernel lacks the backend that the user requires, fail before there is more than the agents.
	_, err := plan.Offers(p.values())
	return err
}

// checkInternal fails if a node uses addresses of the overlay's range for something else, which only agents can see.
// If a peer already depends on the range, it is too late to choose another.
func (p *run) checkInternal(context.Context) error {
	var errs []error
	for _, s := range p.sides {
		cn := s.Facts.Ledger
		if cn == nil || slices.ContainsFunc(cn.Spec.Peers, func(a v1alpha1.PeerAllocation) bool { return a.Active() }) {
			continue
		}
		for _, n := range s.Facts.Reports {
			for _, r := range n.Status.Routes {
				if !r.Overlaps(cn.Spec.InternalCIDR.Prefix) {
					continue
				}
				s.ConflictingRoutes = append(s.ConflictingRoutes, r.Prefix)
				hint := fmt.Sprintf("try again with --reserve %s=%s", s.Name, r)
				errs = append(errs, s.Errorf(kube.Ranges, "find a range for the overlay", hint,
					"the chosen range %s overlaps %s, to which node %s has a route", cn.Spec.InternalCIDR, r, n.Name))
			}
		}
	}
	return errors.Join(errs...)
}

// avoidConflicts makes the next attempt avoid ranges that conflict with those of nodes. It reports whether there are any.
func (p *run) avoidConflicts() (any bool) {
	facts := lo.Assign(p.options.Facts)
	for _, s := range p.sides {
		f := facts[s.ID]
		f.Reserved = append(slices.Clone(f.Reserved), s.ConflictingRoutes...)
		facts[s.ID] = f
		any = any || len(s.ConflictingRoutes) > 0
	}
	p.options.Facts = facts
	return any
}

// rollBack rolls back the changes of this command. In each cluster, a peering that was not active in its ledger is
// removed.
func (p *run) rollBack(ctx context.Context) error {
	name := "Rolling back the changes"
	if slices.ContainsFunc(p.sides[:], func(s *engine.Side) bool { return !s.WasActive }) {
		name = fmt.Sprintf("Removing the peering of %s and %s", p.sides[0].Name, p.sides[1].Name)
	}
	return p.reporter.Step(ctx, name, func(ctx context.Context) error {
		var errs [2]error // one side continues if the other fails
		_ = p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) error {
			ctx, cancel := s.Isolated(ctx, kube.RollbackTimeout)
			defer cancel()
			errs[s.Index] = kube.ContextError(ctx, failure.Caught(func() error { return rollBack(ctx, s, peer) }))
			return nil
		})
		return errors.Join(errs[:]...)
	})
}

// rollBack is one side's part. It restores shared objects first.
func rollBack(ctx context.Context, s *engine.Side, peer *engine.Side) error {
	if s.WasActive && s.RangesChanged {
		if err := engine.RestoreRanges(ctx, s.Cluster, peer.ID); err != nil {
			return err
		}
	}
	if err := engine.Revert(ctx, s.Cluster, peer.ID, s.Journal.Changes, !s.WasActive); err != nil {
		return err
	}
	if !s.WasActive {
		if _, err := engine.RemovePeer(ctx, s.Cluster, peer.ID); err != nil {
			return err
		}
		s.Removed = true
	}
	return s.Journal.Close(ctx)
}

// errUnanswered means that one gateway got no reply from the other, and that there is another candidate.
var errUnanswered = errors.New("no answer")

// defaultConnectTimeout exceeds the time to try all endpoints, and the time until a Service works.
const defaultConnectTimeout = 12 * time.Second

// roleExchange decides when client and server swap roles because the server does not reply.
type roleExchange struct {
	// timeout is the timeout of the first attempt, 0 for the default.
	timeout time.Duration

	mu sync.Mutex
	// unanswered marks the gateways that have applied everything and get no reply, since says since when both do.
	unanswered [2]bool
	since      time.Time
	// attempts describes the failed attempts.
	attempts []string
	// candidates are the plans to try in turn.
	candidates []*plan.Plan
}

// observe records the report of one side's gateway. It returns true if it is time to try the next candidate, if there is
// one.
func (x *roleExchange) observe(side int, silent bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.unanswered[side] = silent
	if !x.unanswered[0] || !x.unanswered[1] {
		x.since = time.Time{}
		return false
	}
	if x.since.IsZero() {
		x.since = time.Now()
	}
	// Longer each time: on a slow machine the first attempt may have been right.
	return len(x.candidates) > 1 && time.Since(x.since) > cmp.Or(x.timeout, defaultConnectTimeout)<<min(len(x.attempts), 4)
}

// next records a failed attempt, and returns the plan to try next, round robin.
func (x *roleExchange) next(p *plan.Plan) *plan.Plan {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.attempts = append(x.attempts, x.describeAttempt(p))
	x.unanswered, x.since = [2]bool{}, time.Time{}
	return x.candidates[len(x.attempts)%len(x.candidates)]
}

// explain adds the failed attempts to the error of a wait, if there were any.
func (x *roleExchange) explain(err error, p *plan.Plan) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := (*kube.Error)(nil)
	if err == nil || !errors.As(err, &e) || e.Kind != kube.NotReady || x.since.IsZero() && len(x.attempts) == 0 {
		return err
	}
	if !x.since.IsZero() {
		x.attempts = append(x.attempts, x.describeAttempt(p))
	}
	return &kube.Error{
		Kind: kube.NotReady, Cluster: e.Cluster, Doing: e.Doing,
		Err: fmt.Errorf("no gateway reaches the other: %s; %w", strings.Join(x.attempts, "; "), e.Err),
		Hint: "open UDP to one of these addresses, or set how a cluster can be reached: --service-type CLUSTER=LoadBalancer, " +
			"--service-type CLUSTER=NodePort:PORT with --endpoint CLUSTER=ADDRESS:PORT, --server CLUSTER",
	}
}

// describeAttempt describes the current attempt, and its duration.
func (x *roleExchange) describeAttempt(p *plan.Plan) string {
	server, caller := p.Clusters[p.Server()], p.Clusters[1-p.Server()]
	endpoints := lo.FlatMap(caller.Peering.Spec.Planes, func(plane v1alpha1.Plane, _ int) []string { return plane.Endpoints })
	return fmt.Sprintf("%s called %s at %s (%s) for %s", caller.Cluster, server.Cluster,
		strings.Join(endpoints, ", "), server.Service.Spec.Type, time.Since(x.since).Round(time.Second))
}
