package peering

import (
	"context"
	"sync"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

// ticket lets pairs claim indexes and ranges one after the other.
type ticket struct {
	// ready is closed when the pairs before this one have released theirs.
	ready <-chan struct{}
	// release waits until the ticket is ready: a pair that fails does not let the next one
	// overtake those before it.
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

// Result is what peering two clusters has changed, and what came of it.
type Result struct {
	// Changed lists what was changed, as "cluster: object". Empty if the clusters
	// were peered already, just so.
	Changed []string
	// Views are both sides', in the order of the arguments.
	Views [2]status.View
	// Notes are what was concluded and not read, and what was left out.
	Notes []string
}

// run is one peer command for two clusters.
type run struct {
	sides    [2]*engine.Side
	options  engine.Options
	reporter kube.Reporter
	// plan as it was made last.
	plan *plan.Plan
	// dropped are planes that are not planned any more, and by which packets pass until others have taken over.
	dropped []int32
	// touched says that something may have been changed that is put back if the command fails.
	touched bool
	roles   *roleExchange
	// recognised are the ledgers' entries by which each cluster has recognised the other one, by the index of the side.
	recognised [2]*v1alpha1.PeerAllocation
	// leavesAgents says that node agents are replaced by another command.
	leavesAgents bool
	// needs are the permissions that are asked for before anything is changed.
	needs  func(*engine.Side) []kube.Permission
	ticket ticket
	// ledgers are those that earlier plans leave behind, by the cluster's ID.
	ledgers map[string]*v1alpha1.ClusterNetwork

	mu     sync.Mutex
	result Result
	// skipped is what was idle when each side looked last, and is not waited for.
	skipped [2]engine.Idle
}

func newRun(a, b *kube.Cluster, o engine.Options, r kube.Reporter) *run {
	p := &run{
		options: o, reporter: r, needs: func(*engine.Side) []kube.Permission { return engine.ToInstall() },
	}
	p.reset(a, b)
	return p
}

// reset forgets what was read of both clusters.
func (p *run) reset(a, b *kube.Cluster) {
	p.sides = [2]*engine.Side{engine.NewSide(a, 0), engine.NewSide(b, 1)}
	for _, s := range p.sides {
		s.AdoptNamespace = p.options.AdoptNamespace
	}
	p.roles = &roleExchange{patience: p.options.Patience}
	p.touched, p.result = false, Result{}
}

// both runs do for both sides at once. Each is given itself and its peer.
func (p *run) both(ctx context.Context, do func(ctx context.Context, s, peer *engine.Side) error) error {
	g, ctx := failure.NewGroup(ctx)
	for i, s := range p.sides {
		g.Go(func() error { return do(ctx, s, p.sides[1-i]) })
	}
	return g.Wait()
}

func (p *run) planOf(s *engine.Side) *plan.ClusterPlan { return &p.plan.Clusters[s.Index] }

// observe reads both clusters and makes the plan.
func (p *run) observe(ctx context.Context) error {
	err := p.both(ctx, func(ctx context.Context, s, peer *engine.Side) error {
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
	return p.makePlan()
}

// values are what is known of both clusters now, and wanted of them.
func (p *run) values() ([2]plan.Facts, [2]plan.Intent) {
	a, b := p.sides[0], p.sides[1]
	return [2]plan.Facts{a.Facts, b.Facts}, [2]plan.Intent{a.Intent, b.Intent}
}

// makePlan plans with what is known now.
func (p *run) makePlan() (err error) {
	p.plan, err = plan.Both(p.values())
	return err
}

// note adds to what the result says.
func (p *run) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.result.Notes = append(p.result.Notes, text)
}
