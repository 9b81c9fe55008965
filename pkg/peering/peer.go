package peering

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/plan"
)

// rollbackTimeout is the time that taking back may need, beyond the command's
// own timeout.
const rollbackTimeout = 30 * time.Second

// Result of Peer.
type Result struct {
	// Changed lists what was changed, as "cluster: object". Empty if the clusters
	// were peered already, just so.
	Changed []string
	// Views are both sides', in the order of the arguments.
	Views [2]View
	// Notes are what was concluded and not read, and what was left out.
	Notes []string
}

// Peer makes the pods of both clusters reach each other. It returns when packets
// pass from every node that is ready, by agents as they were applied. If it fails,
// it puts back what it changed: a peering that worked before is as it was, and other
// peerings are left alone.
func Peer(ctx context.Context, a, b *Cluster, o Options, r Reporter) (Result, error) {
	return newRun(a, b, o, r).peer(ctx)
}

// run is one peer command for two clusters.
type run struct {
	sides    [2]*side
	options  Options
	reporter Reporter
	// claim is the random ID of this command in both ledgers.
	claim string
	// plan as it was made last.
	plan *plan.Plan
	// touched says that something may have been changed.
	touched bool
	roles   *roleExchange
	// serverGiven says that the user decided who is called.
	serverGiven bool
	turn        turn
	// foreign are ranges that nodes turned out to have, after the overlay was given
	// addresses of them, by the cluster's ID.
	foreign map[string][]netip.Prefix
	// ledgers are those that earlier plans leave behind, by the cluster's ID.
	ledgers map[string]*v1alpha1.ClusterNetwork
	result  Result
}

func newRun(a, b *Cluster, o Options, r Reporter) *run {
	p := &run{
		options: o, reporter: r, claim: strings.ToLower(rand.Text()[:10]),
		serverGiven: o.Server != "" && (o.Server == a.ID || o.Server == b.ID),
	}
	p.reset(a.patient(), b.patient())
	return p
}

// reset forgets what was read of both clusters.
func (p *run) reset(a, b *Cluster) {
	p.sides = [2]*side{newSide(a), newSide(b)}
	p.roles = &roleExchange{patience: p.options.Patience}
	p.touched, p.result = false, Result{}
}

func (p *run) peer(ctx context.Context) (Result, error) {
	a, b := p.sides[0].Cluster, p.sides[1].Cluster
	if a.ID == b.ID {
		return Result{}, sameCluster(a, b)
	}
	for again := false; ; again = true {
		err := ended(ctx, p.attempt(ctx))
		if err == nil {
			for _, c := range p.plan.Clusters {
				p.result.Notes = append(p.result.Notes, c.Notes...)
			}
		}
		if err == nil || !p.touched {
			return p.result, err
		}
		undo, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), rollbackTimeout, fmt.Errorf("not done after %s", rollbackTimeout))
		lost, undoErr := p.rollBack(undo)
		cancel()
		if undoErr != nil {
			return p.result, errors.Join(err, fmt.Errorf("what was done could not be taken back: %w; run: kubectl liqonet peer %s %s, or kubectl liqonet unpeer %s %s", undoErr, a.Name, b.Name, a.Name, b.Name))
		}
		switch {
		case ctx.Err() != nil:
			return p.result, err
		case lost:
			// Another command for the same clusters took back what both worked on.
		case len(p.foreign) > 0 && !again:
			p.options = p.options.reserving(p.foreign)
			p.foreign = nil
		default:
			return p.result, err
		}
		p.reset(a, b)
	}
}

// attempt does all steps once.
func (p *run) attempt(ctx context.Context) error {
	if err := p.reporter.Step(ctx, "Reading both clusters", p.discover); err != nil {
		return err
	}
	if err := p.reporter.Step(ctx, "Installing the node agents", p.install); err != nil {
		return err
	}
	for {
		if err := p.reporter.Step(ctx, "Pushing ranges, keys and gateways", p.push); err != nil {
			return err
		}
		err := p.reporter.Step(ctx, "Waiting until packets pass", p.wait)
		if !errors.Is(err, errUnanswered) {
			return p.roles.explain(err, p.plan)
		}
		p.options.Server = p.roles.exchange(p.plan)
	}
}

// both runs do for both sides at once. Each is given itself and its peer, and
// returns what it changed.
func (p *run) both(ctx context.Context, do func(ctx context.Context, s, peer *side) ([]string, error)) error {
	g, ctx := errgroup.WithContext(ctx)
	var changed [2][]string
	for i := range p.sides {
		g.Go(func() (err error) {
			changed[i], err = do(ctx, p.sides[i], p.sides[1-i])
			return err
		})
	}
	err := g.Wait()
	p.result.Changed = append(append(p.result.Changed, changed[0]...), changed[1]...)
	return err
}

// index of a side.
func (p *run) index(s *side) int {
	if s == p.sides[0] {
		return 0
	}
	return 1
}

func (p *run) planOf(s *side) *plan.ClusterPlan { return &p.plan.Clusters[p.index(s)] }

// observe reads both clusters and makes the plan.
func (p *run) observe(ctx context.Context) error {
	err := p.both(ctx, func(ctx context.Context, s, peer *side) ([]string, error) {
		return nil, s.observe(ctx, peer.Cluster, p.options)
	})
	if err != nil {
		return err
	}
	for _, s := range p.sides {
		if after := p.ledgers[s.ID]; after != nil {
			s.facts.Ledger = after
		}
	}
	return p.makePlan()
}

// override takes what the user overrules into the facts of both clusters.
func (p *run) override() {
	for _, s := range p.sides {
		s.facts.Overrides = p.options.of(s.ID)
	}
}

// makePlan plans with what is known now.
func (p *run) makePlan() (err error) {
	p.override()
	p.plan, err = plan.Make(p.sides[0].facts, p.sides[1].facts)
	return err
}

// discover makes a plan before anything is changed: what cannot work is refused
// here, as far as it is known without agents. What an interrupted command changed is
// put back first.
func (p *run) discover(ctx context.Context) error {
	err := p.both(ctx, func(ctx context.Context, s, peer *side) ([]string, error) {
		if err := s.checkPermissions(ctx, toInstall()); err != nil {
			return nil, err
		}
		cn, err := s.ledger(ctx)
		if err != nil || cn == nil || plan.Allocation(cn, peer.ID) == nil {
			return nil, err
		}
		_, err = s.undoInterrupted(ctx, peer.ID, plan.Allocation(cn, peer.ID).Name, false)
		return nil, err
	})
	if err != nil {
		return err
	}
	return p.observe(ctx)
}

// refuse fails if a backend that the user asks for is none that the kernels can
// serve: before there is more than the agents.
func (p *run) refuse() error {
	p.override()
	return plan.Check(&p.sides[0].facts, &p.sides[1].facts)
}

func (p *run) install(ctx context.Context) error {
	if err := p.turn.wait(ctx); err != nil {
		return err
	}
	p.touched = true
	err := p.both(ctx, func(ctx context.Context, s, peer *side) ([]string, error) {
		changed, err := s.install(ctx, peer.Cluster, p.claim, p.planOf(s))
		if err != nil {
			return changed, err
		}
		if s.facts.Reports, err = s.nodeReports(ctx); err != nil {
			return changed, err
		}
		return changed, s.concludePods(ctx)
	})
	if err == nil {
		err = p.checkInternal(ctx)
	}
	if err != nil {
		return err
	}
	return p.refuse()
}

// checkInternal fails if the overlay of a cluster has addresses that one of its
// nodes has for something else, which only agents see. Where a peer depends on
// them already, it is too late to choose others.
func (p *run) checkInternal(ctx context.Context) error {
	for _, s := range p.sides {
		cn, err := s.Cluster.ledger(ctx)
		if err != nil {
			return err
		}
		if cn == nil || slices.ContainsFunc(cn.Spec.Peers, func(a v1alpha1.PeerAllocation) bool { return a.Established }) {
			continue
		}
		for _, n := range s.facts.Reports {
			for _, r := range n.Status.Routes {
				if !r.Overlaps(cn.Spec.InternalCIDR.Prefix) {
					continue
				}
				if p.foreign == nil {
					p.foreign = map[string][]netip.Prefix{}
				}
				p.foreign[s.ID] = append(p.foreign[s.ID], r.Prefix)
				err = errors.Join(err, &Error{
					Kind: Ranges, Cluster: s.Name, Doing: "find a range for the overlay",
					Err:  fmt.Errorf("%s, which was chosen, has a part of %s, to which node %s has a route", cn.Spec.InternalCIDR, r, n.Spec.NodeName),
					Hint: fmt.Sprintf("try again with --reserve %s=%s", s.Name, r),
				})
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reserving are the options with ranges that are not to be used, by the cluster's
// ID.
func (o Options) reserving(ranges map[string][]netip.Prefix) Options {
	facts := maps.Clone(o.Facts)
	if facts == nil {
		facts = map[string]discovery.Overrides{}
	}
	for id, r := range ranges {
		f := facts[id]
		f.Reserved = append(slices.Clone(f.Reserved), r...)
		facts[id] = f
	}
	o.Facts = facts
	return o
}

// rollBack puts back what this command changed. What it made for a new peering is removed.
// Nothing is removed of a peering that works by now, whoever made it. lost says that another
// command has removed what both worked on.
func (p *run) rollBack(ctx context.Context) (lost bool, err error) {
	var takeBack [2]string
	works, removes := false, false
	for i, s := range p.sides {
		cn, err := s.ledger(ctx)
		if err != nil {
			return false, err
		}
		entry := (*v1alpha1.PeerAllocation)(nil)
		if cn != nil {
			entry = plan.Allocation(cn, p.sides[1-i].ID)
		}
		switch {
		case entry == nil:
			lost = lost || s.joined
			takeBack[i] = p.claim
		case entry.Established && !s.established:
			works = true
		case entry.Claim == p.claim:
			takeBack[i] = p.claim
		default:
			// Another command has claimed it. If that one was interrupted, this one cleans up.
			working, err := s.isWorking(ctx, entry.Name, entry.Claim)
			if err != nil {
				return false, err
			}
			if !working {
				takeBack[i] = entry.Claim
			}
		}
		removes = removes || takeBack[i] != ""
	}
	step := "Putting back what was changed"
	if removes && !works {
		step = fmt.Sprintf("Removing the peering of %s and %s", p.sides[0].Name, p.sides[1].Name)
	}
	return lost, p.reporter.Step(ctx, step, func(ctx context.Context) error {
		var errs [2]error
		var g errgroup.Group
		for i, s := range p.sides {
			g.Go(func() error {
				errs[i] = s.rollBack(ctx, p.sides[1-i], takeBack[i], works)
				return nil
			})
		}
		_ = g.Wait() // errors are in errs: one side goes on where the other cannot
		return errors.Join(errs[:]...)
	})
}

// rollBack is one side's part. With a claim it removes the peering, after it has put
// back what other peerings depend on.
func (s *side) rollBack(ctx context.Context, peer *side, claim string, works bool) error {
	s.journal.silence()
	removes := !works && claim != ""
	changes := slices.Clone(s.journal.changes)
	if removes {
		changes = slices.DeleteFunc(changes, func(c change) bool { return !c.shared() })
	} else if s.rangesChanged {
		if err := s.undoRanges(ctx, peer.ID); err != nil {
			return err
		}
	}
	if err := s.undo(ctx, changes); err != nil {
		return err
	}
	if removes {
		if _, err := s.unpeer(ctx, peer.ID, claim); err != nil {
			return err
		}
	}
	return s.journal.end(ctx)
}
