package node

import (
	"context"
	"fmt"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/nat"
)

// shownPlane is a plane as metrics show it, with the link to its gateway.
type shownPlane struct {
	metrics.Plane
	link string
}

// show has what was last seen shown to who scrapes.
func (a *agent) show(entries []v1alpha1.NodeGateway) {
	planes := make([]shownPlane, len(a.gateways))
	for i, g := range a.gateways {
		planes[i] = shownPlane{metrics.Plane{Peering: g.peering, Index: g.plane, State: metrics.Down, MTU: g.mtu, Active: entries[i].Active}, g.link}
		p := a.probers[probeKey{g.remote, g.plane}]
		if p == nil {
			continue
		}
		up, leaving := p.ready, false
		if p.session != nil {
			s := p.session.State()
			up, leaving = s.Up, s.Leaving
		}
		switch {
		case up && leaving:
			planes[i].State = metrics.Leaving
		case up:
			planes[i].State = metrics.Up
		}
	}
	a.shown.Store(&planes)
}

// forget ends the series of a gateway's probes, unless the plane has another gateway now.
func (a *agent) forget(g gateway) {
	for _, p := range a.probers {
		if p.gateway.peering == g.peering && p.gateway.plane == g.plane {
			return
		}
	}
	a.metrics.ForgetProbes(g.peering, g.plane)
}

// readMetrics returns what was seen last, with what the kernel has counted by now.
func (a *agent) readMetrics() (s metrics.Snapshot, err error) {
	byLink := map[string]metrics.Plane{}
	if planes := a.shown.Load(); planes != nil {
		for _, p := range *planes {
			if t, err := a.kernel.Traffic(p.link); err == nil { // otherwise there is none now
				p.Traffic = (*metrics.Traffic)(&t)
			}
			s.Planes, byLink[p.link] = append(s.Planes, p.Plane), p.Plane
		}
	}
	drops, err := nat.Drops(context.Background())
	for _, d := range drops {
		out := metrics.Drop{Hook: d.Hook, Reason: d.Reason, Packets: d.Packets}
		if p, known := byLink[d.Link]; known {
			out.Peering, out.Plane = p.Peering, fmt.Sprint(p.Index)
		} else if d.Link != "" {
			continue // it is about to go
		}
		s.Drops = append(s.Drops, out)
	}
	return s, err
}
