package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
)

// addTemporary adds a plane that packets take while the gateways of another one are replaced.
func (p *run) addTemporary(ctx context.Context) error {
	if err := p.setTemporary(ctx, true); err != nil {
		return err
	}
	if err := p.makeAllKeys(ctx); err != nil {
		return err
	}
	if err := p.makePlan(); err != nil {
		return err
	}
	gateways := p.plan.Clusters[0].Gateways
	return p.pushPlane(ctx, gateways[len(gateways)-1].Plane)
}

// removeTemporary has nodes leave the temporary plane, and removes it.
func (p *run) removeTemporary(ctx context.Context) error {
	if err := p.setTemporary(ctx, false); err != nil {
		return err
	}
	p.dropped = p.notPlanned()
	return p.dropPlanes(ctx)
}

func (p *run) setTemporary(ctx context.Context, wanted bool) error {
	if err := p.readPeerings(ctx); err != nil {
		return err
	}
	for _, s := range p.sides {
		s.Intent.Temporary = wanted
	}
	return p.makePlan()
}

// readPeerings reads both Peerings as they are now.
func (p *run) readPeerings(ctx context.Context) error {
	return p.both(ctx, func(ctx context.Context, s, _ *engine.Side) error {
		s.Intent.Renew = nil
		err := engine.ReadPeering(ctx, s.Cluster, p.planOf(s).Peering.Name, &s.Facts)
		if err == nil && s.Facts.Existing == nil {
			err = s.Fail("read the Peering", kube.ErrUnpeered)
		}
		return err
	})
}

// shared is a peering with one plane of two clusters that are upgraded, and the command for both that gives it another plane
// for that time.
type shared struct {
	*run
	clusters [2]*upgrade
}

// addTemporary gives peerings with one plane another one, where anything is changed.
func (u *upgrades) addTemporary(ctx context.Context) (out []*shared) {
	for _, ids := range u.temporary {
		a, b := u.of(ids[0]), u.of(ids[1])
		if ctx.Err() != nil || a.done && b.done {
			continue
		}
		err := cmp.Or(a.err, b.err)
		if err != nil {
			err = fmt.Errorf("the peering of %s and %s has one plane, and gets another one only if both are upgraded: %w", a.Name, b.Name, err)
		} else {
			s := &shared{clusters: [2]*upgrade{a, b}}
			out = append(out, s)
			err = u.reporter.Step(ctx, fmt.Sprintf("%s and %s: a temporary plane", a.Name, b.Name), func(ctx context.Context) error {
				return failure.Caught(func() error { return s.add(ctx, u.reporter) })
			})
		}
		for _, c := range []*upgrade{a, b} {
			if c.err == nil && !errors.Is(err, kube.ErrUnpeered) { // the other peerings go on
				c.failed(ctx, err)
			}
		}
	}
	return out
}

// add reads both clusters as they are by now, and adds the plane.
func (s *shared) add(ctx context.Context, r kube.Reporter) error {
	p := newRun(s.clusters[0].Side.Cluster, s.clusters[1].Side.Cluster, engine.Options{KeepOverlayKey: true}, r)
	p.ticket, p.leavesAgents = newTickets(1)[0], true
	s.run = p
	unclear, err := p.recognise(ctx)
	if err = cmp.Or(err, unclear); err != nil {
		return err
	}
	if err := p.observe(ctx); err != nil {
		return err
	}
	return p.addTemporary(ctx)
}

// removeTemporary takes the planes away, also where something has failed. One that stays since the command was interrupted is taken
// away by the next one.
func (u *upgrades) removeTemporary(ctx context.Context, all []*shared) {
	for _, s := range all {
		a, b := s.clusters[0], s.clusters[1]
		if s.plan == nil || isInterrupted(ctx) {
			continue
		}
		ctx, cancel := kube.WithTime(ctx)
		err := u.reporter.Step(ctx, fmt.Sprintf("%s and %s: removing the temporary plane", a.Name, b.Name), s.run.removeTemporary)
		cancel()
		for i, c := range s.clusters {
			c.Changed = append(c.Changed, s.sides[i].Changed...)
			if c.err == nil && err != nil && !errors.Is(err, kube.ErrUnpeered) {
				c.err = err // all else is done
			}
		}
	}
}
