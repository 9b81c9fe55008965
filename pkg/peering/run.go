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
	"github.com/liqonet/liqonet/pkg/identity"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

// step is a step of a command, sideStep is what it does in one cluster.
type (
	step     = func(context.Context) error
	sideStep func(ctx context.Context, s, peer *engine.Side) error
)

// Result is the result of peering two clusters.
type Result struct {
	// Changed lists the changes, as "cluster: object". Empty if the clusters were already peered in this way.
	Changed []string
	// Views are the views of both sides, in the order of the arguments.
	Views [2]status.View
	// Identities are those of both clusters, in the order of the arguments.
	Identities [2]Identity
	// Notes tell what was inferred instead of read, and what was skipped.
	Notes []string
}

// Identity is the key by which peers recognize a cluster.
type Identity struct {
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	// Fingerprint is that of the public half, which is in the peers' ledgers.
	Fingerprint string `json:"fingerprint"`
}

// pairing is two clusters, the latest plan for them, and what came of it.
type pairing struct {
	sides [2]*engine.Side
	plan  *plan.Plan

	mu     sync.Mutex
	result Result
}

// pusher applies the plan of a pairing, and waits until packets pass.
type pusher struct {
	pairing
	roles *roleExchange
	// skipsNodeAgents is true if another command replaces the node agents.
	skipsNodeAgents bool
	// skipped is what was idle at each side's last check, and is not waited for.
	skipped [2]engine.PriorFailures
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
	// isOvertaken is true if the command lost a lock when it might have changes to roll back.
	isOvertaken bool
	// evidence is what each cluster had of the peering when the clusters recognized each other, by side.
	evidence [2]identity.Evidence
	// startsEarly is true if the gateways of a new peering start before all node agents have reported.
	startsEarly bool
	ticket      ticket
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
func (p *pairing) forEachSide(ctx context.Context, fn sideStep) error {
	return failure.ForEach(ctx, p.sides[:], func(ctx context.Context, s *engine.Side) error { return fn(ctx, s, p.sides[1-s.Index]) })
}

// onBothSides returns the step that runs a part for both sides in parallel.
func (p *pairing) onBothSides(fn sideStep) step {
	return func(ctx context.Context) error { return p.forEachSide(ctx, fn) }
}

// withProgress returns a step that is reported under a name.
func (p *run) withProgress(name string, fn step) step {
	return func(ctx context.Context) error { return p.reporter.Step(ctx, name, fn) }
}

func (p *pairing) planOf(s *engine.Side) *plan.ClusterPlan { return &p.plan.Clusters[s.Index] }

// planes returns the planes of the plan.
func (p *pairing) planes() []int32 {
	return lo.Map(p.plan.Clusters[0].Gateways, func(g manifests.Gateway, _ int) int32 { return g.Plane })
}

// observe reads both clusters and makes the plan.
func (p *run) observe(ctx context.Context) error {
	err := p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) error { return s.Observe(ctx, peer.Cluster, p.options) })
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

// planInputs returns the current facts about both clusters, and their intents.
func (p *pairing) planInputs() ([2]plan.Facts, [2]plan.Intent) {
	a, b := p.sides[0], p.sides[1]
	return [2]plan.Facts{a.Facts, b.Facts}, [2]plan.Intent{a.Intent, b.Intent}
}

// makePlan makes a plan from the current facts.
func (p *pairing) makePlan(context.Context) (err error) {
	p.plan, err = plan.MakePair(p.planInputs())
	return err
}

// waitForPackets is one side's part.
func (p *pusher) waitForPackets(ctx context.Context, s, peer *engine.Side) error {
	if c := p.planOf(s); c.NodeAgents.Ready && !p.skipsNodeAgents {
		if err := s.UpdateNodeAgents(ctx, c); err != nil {
			return err
		}
	}
	hint := fmt.Sprintf("%s -n %s logs -l app.kubernetes.io/name=liqonet --prefix", s.Kubectl, v1alpha1.Namespace)
	doing := fmt.Sprintf("wait until packets pass to %q", peer.Name)
	return engine.AwaitAgents(ctx, s.Cluster, doing, hint, engine.AgentSet{Gateways: p.planOf(s).Gateways, PriorFailures: s.Health.PriorFailures}, func(o kube.Objects, beats status.Heartbeats, missing string) (string, error) {
		return p.checkProgress(s, o, beats, missing)
	})
}

// checkProgress stores the side's view of the peering in the result, and returns what is missing. That includes the missing
// agents: the reports may be from their predecessors.
func (p *pusher) checkProgress(s *engine.Side, o kube.Objects, beats status.Heartbeats, agents string) (string, error) {
	live := kube.ByName[*v1alpha1.Peering](o, p.planOf(s).Peering.Name)
	if live == nil {
		return "", kube.ErrUnpeered
	}
	v, err := status.ViewOf(s.Cluster, live, o, beats)
	if err != nil {
		return "", err
	}
	p.result.Views[s.Index] = v
	still := s.Health.PriorFailures.Remaining(o, beats)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skipped[s.Index] = still
	missing := status.MissingExcept(live, v, func(plane status.PlaneView) bool { return p.isSkipped(plane.Index) }, still.Nodes)
	if p.roles.observe(s.Index, status.Unanswered(live)) {
		return "", errUnanswered
	}
	return cmp.Or(agents, missing), nil
}

// isSkipped reports whether neither cluster waits for a plane.
func (p *pusher) isSkipped(plane int32) bool {
	return slices.Contains(p.skipped[0].Planes, plane) || slices.Contains(p.skipped[1].Planes, plane)
}

// notesOfSkipped returns notes about what was not waited for, and why.
func (p *pusher) notesOfSkipped() (notes []string) {
	for i, s := range p.sides {
		for _, plane := range p.skipped[i].Planes {
			notes = append(notes, fmt.Sprintf("plane %d does not work, as before: its gateway in %s has no node", plane, s.Name))
		}
		if silent := p.skipped[i].Nodes; len(silent) > 0 {
			notes = append(notes, fmt.Sprintf("%s: as before, no agent reports from %s", s.Name, kube.JoinFirst(3, silent)))
		}
	}
	return notes
}

// view returns a side's view of the peering, or the zero value if there is none.
func view(ctx context.Context, s, peer *engine.Side) (status.View, error) {
	views, err := status.Views(ctx, s.Cluster)
	v, _ := lo.Find(views, func(v status.View) bool { return v.PeerID == peer.ID })
	return v, err
}

// passesThroughAll reports whether every node that reaches the peer does so through all planes. Other problems are no reason to
// replace all gateways at once. A plane that a node does not reach is repaired at once, as batches wait for all planes.
func passesThroughAll(v status.View) bool {
	return v.NodesReady > 0 && !slices.ContainsFunc(v.Planes, func(plane status.PlaneView) bool { return !plane.Connected }) &&
		!slices.ContainsFunc(v.Nodes, func(n status.NodeView) bool { return n.Ready && !status.ReachesThroughAll(n, v.Planes) })
}

// errUnanswered means that one gateway got no reply from the other, and that there is another candidate.
var errUnanswered = errors.New("no answer")

// defaultConnectTimeout exceeds the time to try all endpoints, and the time until a Service works.
const defaultConnectTimeout = 12 * time.Second

// roleExchange decides when client and server swap roles because the server does not reply. The pairing's mutex guards it
// while both sides observe.
type roleExchange struct {
	// timeout is the timeout of the first attempt, 0 for the default.
	timeout time.Duration

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
	x.attempts = append(x.attempts, x.describeAttempt(p))
	x.unanswered, x.since = [2]bool{}, time.Time{}
	return x.candidates[len(x.attempts)%len(x.candidates)]
}

// explain adds the failed attempts to the error of a wait, if there were any.
func (x *roleExchange) explain(err error, p *plan.Plan) error {
	e := (*kube.Error)(nil)
	if err == nil || !errors.As(err, &e) || e.Kind != kube.NotReady || x.since.IsZero() && len(x.attempts) == 0 {
		return err
	}
	if !x.since.IsZero() {
		x.attempts = append(x.attempts, x.describeAttempt(p))
	}
	return &kube.Error{
		Kind: kube.NotReady, Cluster: e.Cluster, Op: e.Op,
		Err: fmt.Errorf("no gateway reaches the other: %s; %w", strings.Join(x.attempts, "; "), e.Err),
		Hint: "open UDP to one of these addresses, or set how a cluster can be reached: --service-type CLUSTER=LoadBalancer, " +
			"--service-type CLUSTER=NodePort:PORT with --endpoint CLUSTER=ADDRESS:PORT, --server CLUSTER; " +
			fmt.Sprintf("to find out what drops it: kubectl liqonet doctor %s %s", failure.Quote(p.Clusters[0].Cluster), failure.Quote(p.Clusters[1].Cluster)),
	}
}

// describeAttempt describes the current attempt, and its duration.
func (x *roleExchange) describeAttempt(p *plan.Plan) string {
	server, caller := p.Clusters[p.Server()], p.Clusters[1-p.Server()]
	endpoints := lo.FlatMap(caller.Peering.Spec.Planes, func(plane v1alpha1.Plane, _ int) []string { return plane.Endpoints })
	return fmt.Sprintf("%s tried %s at %s (%s) for %s", caller.Cluster, server.Cluster,
		strings.Join(endpoints, ", "), server.Service.Spec.Type, time.Since(x.since).Round(time.Second))
}
