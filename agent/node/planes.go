package node

import (
	"context"
	"fmt"
	"time"

	"github.com/liqonet/liqonet/agent/history"
	"github.com/liqonet/liqonet/pkg/failover"
	form "github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/liveness"
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
	seen := map[string]bool{}
	for _, g := range a.gateways {
		switch {
		case seen[g.peering]:
		case g.alone:
			// Where planes are added later, packets go on by this one.
			a.local.active[g.peering] = g.plane
			delete(a.choices, g.peering)
		default:
			c, d := a.choosePlane(g.peering)
			changed, down = changed || c, down || d
		}
		seen[g.peering] = true
	}
	for peering := range a.local.active {
		if !seen[peering] {
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
		if plane, known := a.local.active[peering]; known {
			a.choices[peering].Begin(plane)
		}
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
		reason, why := whyLeft(before, planes)
		a.metrics.Switched(peering, reason)
		a.history.Note(history.Change{Entry: form.Entry{
			Peering: peering, Plane: &active, What: "plane in use", From: fmt.Sprint(before), To: fmt.Sprint(active), Reason: why,
		}})
	}
	a.local.active[peering] = active
	return true, down
}

// whyLeft says why packets are not sent by a plane any more, as metrics call it and as a person reads it.
func whyLeft(left int32, planes []failover.Plane) (reason, why string) {
	for _, p := range planes {
		switch {
		case p.Index != left:
		case !p.Up:
			return metrics.Down, fmt.Sprintf("plane %d is down: no answer for %.1f s", left, p.Down.Seconds())
		case p.Leaving:
			return metrics.Leaving, fmt.Sprintf("the gateway of plane %d is leaving", left)
		}
	}
	return metrics.Preferred, "this plane is preferred, and works again"
}

// watchUse tells the session of a plane whether packets are sent by it, until ctx ends.
func (a *agent) watchUse(ctx context.Context, p *prober, session *liveness.Session, link string) {
	ticker := time.NewTicker(useInterval)
	defer ticker.Stop()
	var sent, own uint64
	var last time.Time
	for {
		next := ticker.C
		if !p.active.Load() {
			session.Use(false, 0)
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
		sent, own = now, session.Asked()+p.Asked()
		if sent-sentBefore > own-ownBefore && sent > sentBefore && sentBefore > 0 {
			last = time.Now()
		}
		if time.Since(last) < inUse {
			session.Use(true, int(p.mtu.Load()))
		} else {
			session.Use(false, 0)
		}
	}
}

// noteReached notes whether this node reaches its peers, by any plane.
func (a *agent) noteReached() {
	reached := map[string]bool{}
	for _, p := range a.probers {
		reached[p.gateway.peering] = reached[p.gateway.peering] || p.ready
	}
	for peering, now := range reached {
		before, known := a.reached[peering]
		c := history.Change{Bad: !now, Entry: form.Entry{
			Peering: peering, What: "peer", From: "not reached", To: "reached", Reason: "probes are answered by the peer's gateway",
		}}
		if !now {
			c.From, c.To, c.Reason = c.To, c.From, fmt.Sprintf("no answer by the peer's gateways for %s", silence)
		}
		if now != before && (known || now) {
			a.history.Note(c)
		}
	}
	a.reached = reached
}
