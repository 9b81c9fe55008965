package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/plan"
)

// shared is a peering with one plane of two clusters that are upgraded, and the command for both that gives it another plane
// meanwhile.
type shared struct {
	*rotation
	clusters [2]*upgrade
}

// addTemporary gives peerings with one plane another one, as far as their gateways are replaced.
func (u *upgrades) addTemporary(ctx context.Context) (out []*shared) {
	for _, ids := range u.temporary {
		s := &shared{clusters: [2]*upgrade{u.of(ids[0]), u.of(ids[1])}}
		a, b := s.clusters[0], s.clusters[1]
		if ctx.Err() != nil || a.err != nil && b.err != nil {
			continue
		}
		for i, c := range s.clusters {
			if other := s.clusters[1-i]; c.err == nil && other.err != nil {
				c.failed(ctx, fmt.Errorf("its peering with %s has one plane, and gets another one only if both are upgraded: %w", other.Name, other.err))
			}
		}
		if a.err != nil || !a.needsTemporary(b.ID) && !b.needsTemporary(a.ID) {
			continue
		}
		err := u.reporter.Step(ctx, fmt.Sprintf("%s and %s: a temporary plane", a.Name, b.Name), func(ctx context.Context) error {
			return failure.Caught(func() error { return s.add(ctx, u.reporter) })
		})
		if out = append(out, s); err != nil && !errors.Is(err, errUnpeered) { // the other peerings go on
			a.failed(ctx, err)
			b.failed(ctx, err)
		}
	}
	return out
}

// needsTemporary says that gateways to a peer are replaced, or that a command which was interrupted has left a temporary plane.
func (u *upgrade) needsTemporary(peerID string) bool {
	for _, p := range u.Peerings {
		if p.Spec.Remote.ClusterID != peerID {
			continue
		}
		if slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool { return plane.Temporary }) {
			return true
		}
		for _, o := range u.Objects {
			isOf := slices.ContainsFunc(slices.Concat(u.Gateways...), func(g plan.UpgradeGateway) bool { return g.Peering == p.Name && g.Name() == o.Name })
			if o.Kind == "Deployment" && o.Action != plan.Keep && isOf {
				return true
			}
		}
	}
	return false
}

// add reads both clusters as they are by now, and adds the plane.
func (s *shared) add(ctx context.Context, r Reporter) error {
	p := newRun(s.clusters[0].side.Cluster, s.clusters[1].side.Cluster, Options{keepOverlayKey: true}, r)
	p.ticket, p.leavesAgents = newTickets(1)[0], true
	s.rotation = &rotation{run: p}
	unclear, err := p.recognise(ctx)
	if err = cmp.Or(err, unclear); err != nil {
		return err
	}
	if err := p.observe(ctx); err != nil {
		return err
	}
	for i, side := range p.sides {
		s.peerings[i] = p.planOf(side).Peering.Name
	}
	return s.rotation.addTemporary(ctx)
}

// removeTemporary takes the planes away, also where something has failed. One that stays since the command was interrupted is taken
// away by the next one.
func (u *upgrades) removeTemporary(ctx context.Context, all []*shared) {
	for _, s := range all {
		a, b := s.clusters[0], s.clusters[1]
		if s.plan == nil || isInterrupted(ctx) {
			continue
		}
		ctx, cancel := withTime(ctx)
		err := u.reporter.Step(ctx, fmt.Sprintf("%s and %s: removing the temporary plane", a.Name, b.Name), s.rotation.removeTemporary)
		cancel()
		for i, c := range s.clusters {
			c.changed = append(c.changed, s.sides[i].changed...)
			if c.err == nil && err != nil && !errors.Is(err, errUnpeered) {
				c.err = err // all else is done
			}
		}
	}
}
