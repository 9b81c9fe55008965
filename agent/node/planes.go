package node

import (
	"context"
	"time"

	"github.com/liqonet/liqonet/pkg/failover"
	"github.com/liqonet/liqonet/pkg/metrics"
)

const (
	// useInterval is how often the kernel is asked whether packets are sent by a link, and inUse how
	// long after the last one the plane counts as in use.
	useInterval, inUse = 160 * time.Millisecond, 2 * time.Second
	// idleQuestions is how many times as long the time between questions is while a plane is not in use.
	idleQuestions = 10
	// downInterval is how often a node looks for another plane while the one in use is down.
	downInterval = 50 * time.Millisecond
)

// choosePlanes has packets sent by another plane, where the one in use does not work. It says whether
// some plane in use is down.
func (a *agent) choosePlanes() (changed, down bool) {
	several := map[string]bool{}
	for _, g := range a.gateways {
		if !g.alone && !several[g.peering] {
			several[g.peering] = true
			c, d := a.choosePlane(g.peering)
			changed, down = changed || c, down || d
		}
	}
	for peering := range a.choices {
		if !several[peering] {
			delete(a.choices, peering)
			a.metrics.ForgetPlanes(peering)
			delete(a.local.active, peering)
		}
	}
	for _, p := range a.probers {
		active, chosen := a.local.active[p.gateway.peering]
		if now := chosen && active == p.gateway.plane; !p.active.Swap(now) && now {
			p.activated.Send()
		}
	}
	return changed, down
}

// choosePlane is the same for one peering.
func (a *agent) choosePlane(peering string) (changed, down bool) {
	var planes []failover.Plane
	for _, g := range a.want.planesOf(peering) {
		p := failover.Plane{Index: g.plane}
		if prober := a.probers[probeKey{g.remote, g.plane}]; prober != nil && prober.session != nil {
			s := prober.session.State()
			p.Up, p.Leaving, p.Down, p.Clean = s.Up, s.Leaving, s.Down, s.Clean
		}
		planes = append(planes, p)
	}
	if len(planes) == 0 {
		return false, false
	}
	if a.choices[peering] == nil {
		a.choices[peering] = &failover.Choice{}
		a.metrics.Planes(peering)
	}
	active := a.choices[peering].Next(time.Now(), planes)
	before, chosen := a.local.active[peering]
	for _, p := range planes {
		down = down || p.Index == active && !p.Up
	}
	if chosen && active == before {
		return false, down
	}
	if err := a.kernel.Switch(a.want.ways[way{peering, active}]); err != nil {
		a.Log.Error("cannot change the plane", "peering", peering, "plane", active, "error", err)
	} else if chosen {
		reason := whyLeft(before, planes)
		a.metrics.Switched(peering, reason)
		a.Log.Info("packets are sent by another plane", "peering", peering, "plane", active, "before", before, "reason", reason)
	}
	a.local.active[peering] = active
	return true, down
}

// whyLeft says why packets are not sent by a plane any more: it is down, it is leaving, or another one is preferred.
func whyLeft(left int32, planes []failover.Plane) string {
	for _, p := range planes {
		switch {
		case p.Index != left:
		case !p.Up:
			return metrics.Down
		case p.Leaving:
			return metrics.Leaving
		}
	}
	return metrics.Preferred
}

// watchUse tells the session of a plane whether packets are sent by it, until ctx ends.
func (a *agent) watchUse(ctx context.Context, p *prober, link string) {
	ticker := time.NewTicker(useInterval)
	defer ticker.Stop()
	var sent, own uint64
	var last time.Time
	for {
		next := ticker.C
		if !p.active.Load() {
			p.session.Use(false, 0)
			next = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-p.activated:
			continue
		case <-next:
		}
		// The agent's own packets by the link are none that somebody waits for.
		ownBefore, sentBefore := own, sent
		now, err := a.kernel.Sent(link)
		if err != nil {
			continue // it will be there again
		}
		sent, own = now, p.session.Asked()+p.Asked()
		if sent-sentBefore > own-ownBefore && sent > sentBefore && sentBefore > 0 {
			last = time.Now()
		}
		if time.Since(last) < inUse {
			p.session.Use(true, int(p.mtu.Load()))
		} else {
			p.session.Use(false, 0)
		}
	}
}
