package peering

import (
	"context"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
)

// addTemporary adds a plane for packets while the gateways of another one are replaced.
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

// removeTemporary moves nodes off the temporary plane, and removes it.
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

// readPeerings reads the current Peerings of both sides.
func (p *run) readPeerings(ctx context.Context) error {
	return p.forEachSide(ctx, func(ctx context.Context, s, _ *engine.Side) error {
		s.Intent.Renew = nil
		err := engine.ReadPeering(ctx, s.Cluster, p.planOf(s).Peering.Name, &s.Facts)
		if err == nil && s.Facts.Existing == nil {
			err = s.Fail("read the Peering", kube.ErrUnpeered)
		}
		return err
	})
}
