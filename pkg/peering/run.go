package peering

import (
	"context"
	"sync"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

// step is a step of a command, part is what it does in one cluster.
type (
	step = func(context.Context) error
	part func(ctx context.Context, s, peer *engine.Side) error
)

// Result is the result of peering two clusters.
type Result struct {
	// Changed lists the changes, as "cluster: object". Empty if the clusters were already peered in this way.
	Changed []string
	// Views are the views of both sides, in the order of the arguments.
	Views [2]status.View
	// Notes tell what was inferred instead of read, and what was skipped.
	Notes []string
}

// pairing is two clusters, the latest plan for them, and what came of it.
type pairing struct {
	sides [2]*engine.Side
	plan  *plan.Plan

	mu     sync.Mutex
	result Result
}

// watcher waits until packets pass in a pairing.
type watcher struct {
	pairing
	roles *roleExchange
	// skipsNodeAgents is true if another command replaces the node agents.
	skipsNodeAgents bool
	// skipped is what was idle at each side's last check, and is not waited for.
	skipped [2]engine.PriorFailures
}

// pusher applies the plan of a pairing.
type pusher struct {
	watcher
	// dropped are planes that are no longer planned, but carry packets until others have taken over.
	dropped []int32
}

// run is one command for two clusters.
type run struct {
	pusher
	options  engine.Options
	reporter kube.Reporter
	// needsRollback is true if there may be changes to roll back on failure.
	needsRollback bool
	// recognised are the ledger entries with which each cluster recognised the other, by side.
	recognised [2]*v1alpha1.PeerAllocation
	// started is true if the gateways of a new peering start before all node agents have reported.
	started bool
	ticket  ticket
	// ledgers are the ledgers as left by earlier plans, by cluster ID.
	ledgers map[string]*v1alpha1.ClusterNetwork
}

func newRun(a, b *kube.Cluster, o engine.Options, r kube.Reporter) *run {
	p := &run{options: o, reporter: r, ticket: newTickets(1)[0]}
	p.sides = [2]*engine.Side{engine.NewSide(a, 0), engine.NewSide(b, 1)}
	p.roles = &roleExchange{timeout: o.ConnectTimeout}
	return p
}

// ticket makes pairs allocate indexes and ranges in order.
type ticket struct {
	// ready is closed when the previous pairs have released their tickets.
	ready <-chan struct{}
	// release waits until the ticket is ready, so that a pair that fails does not let the next one overtake the previous
	// ones.
	release func()
}

func newTickets(n int) []ticket {
	before := make(chan struct{})
	close(before)
	tickets := make([]ticket, n)
	for i := range tickets {
		ready, next := before, make(chan struct{})
		tickets[i] = ticket{ready, sync.OnceFunc(func() {
			<-ready
			close(next)
		})}
		before = next
	}
	return tickets
}

// forEachSide runs a part for both sides in parallel.
func (p *pairing) forEachSide(ctx context.Context, do part) error {
	return failure.ForEach(ctx, p.sides[:], func(ctx context.Context, s *engine.Side) error {
		return do(ctx, s, p.sides[1-s.Index])
	})
}

// onBoth returns the step that runs a part for both sides in parallel.
func (p *pairing) onBoth(do part) step {
	return func(ctx context.Context) error { return p.forEachSide(ctx, do) }
}

// reported returns a step that is reported under a name.
func (p *run) reported(name string, do step) step {
	return func(ctx context.Context) error { return p.reporter.Step(ctx, name, do) }
}

func (p *pairing) planOf(s *engine.Side) *plan.ClusterPlan { return &p.plan.Clusters[s.Index] }

// planes returns the planes of the plan.
func (p *pairing) planes() []int32 {
	return lo.Map(p.plan.Clusters[0].Gateways, func(g manifests.Gateway, _ int) int32 { return g.Plane })
}

// observe reads both clusters and makes the plan.
func (p *run) observe(ctx context.Context) error {
	err := p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) error {
		return s.Observe(ctx, peer.Cluster, p.options)
	})
	if err != nil {
		return err
	}
	for _, s := range p.sides {
		if after := p.ledgers[s.ID]; after != nil {
			s.Facts.Ledger = after
		}
	}
	return p.makePlan(ctx)
}

// values returns the current facts about both clusters, and their intents.
func (p *pairing) values() ([2]plan.Facts, [2]plan.Intent) {
	a, b := p.sides[0], p.sides[1]
	return [2]plan.Facts{a.Facts, b.Facts}, [2]plan.Intent{a.Intent, b.Intent}
}

// makePlan makes a plan from the current facts.
func (p *pairing) makePlan(context.Context) (err error) {
	p.plan, err = plan.Both(p.values())
	return err
}
