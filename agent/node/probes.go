package node

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/failover"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

const (
	// probeInterval is the time between probes to a peer's gateway. Gateways probe each
	// other more often. Every node's probes pass both of them, which costs these most of
	// what they use when idle.
	probeInterval = 5 * time.Second
	// silence is the time without an answer after which a peer is not reached.
	silence = probeInterval + 2*time.Second

	// useInterval is how often the kernel is asked whether packets are sent by a link, and inUse how
	// long after the last one the plane counts as in use.
	useInterval, inUse = 100 * time.Millisecond, 2 * time.Second
	// downInterval is how often a node looks for another plane while the one in use is down.
	downInterval = 50 * time.Millisecond
)

type probeKey struct {
	remote netip.Addr
	plane  int32
}

// prober probes one gateway of a peer. Where the peering has several planes, it also asks the own
// gateway often whether the plane works.
type prober struct {
	*tunnel.Prober
	session *liveness.Session // nil where there is no other plane
	// active says that the plane is in use, mtu what its packets may have, in bytes.
	active atomic.Bool
	mtu    atomic.Int64
	stop   context.CancelFunc
	// gateway is as it was last: when it changes, an answer is likely.
	gateway gateway
	// stats and ready are of the last look.
	stats tunnel.ProbeStats
	ready bool
}

// Look measures, more often than probes are sent to whom does not answer.
func (a *agent) Look(context.Context) (changed bool, next time.Duration) {
	next = loop.LookInterval
	for _, p := range a.probers {
		before := p.ready
		p.stats = p.Snapshot()
		if p.ready = time.Since(p.stats.LastReply) < silence; p.ready != before {
			clear(a.paths) // a route that leads nowhere is no change that the kernel is watched for
		}
		next = min(next, p.stats.Pause*2/3)
	}
	changed, down := a.choosePlanes()
	if down {
		next = min(next, downInterval)
	}
	return changed, next
}

// choosePlanes has packets sent by another plane, where the one in use does not work. It says whether
// some plane in use is down.
func (a *agent) choosePlanes() (changed, down bool) {
	now := time.Now()
	for peering := range a.choices {
		if !slices.ContainsFunc(a.gateways, func(g gateway) bool { return g.peering == peering && !g.alone }) {
			delete(a.choices, peering)
			delete(a.local.active, peering)
		}
	}
	for i, first := range a.gateways {
		if first.alone || slices.ContainsFunc(a.gateways[:i], func(g gateway) bool { return g.peering == first.peering }) {
			continue
		}
		var planes []failover.Plane
		for _, g := range a.want.planesOf(first.peering) {
			p := failover.Plane{Index: g.plane}
			if prober := a.probers[probeKey{g.remote, g.plane}]; prober != nil && prober.session != nil {
				s := prober.session.State()
				p.Up, p.Leaving, p.Down, p.Clean = s.Up, s.Leaving, s.Down, s.Clean
			}
			planes = append(planes, p)
		}
		if len(planes) == 0 {
			continue
		}
		c := a.choices[first.peering]
		if c == nil {
			c = &failover.Choice{}
			a.choices[first.peering] = c
		}
		before, chosen := a.local.active[first.peering]
		active := c.Next(now, planes)
		down = down || slices.ContainsFunc(planes, func(p failover.Plane) bool { return p.Index == active && !p.Up })
		if chosen && active == before {
			continue
		}
		if err := a.kernel.Switch(a.want.ways[way{first.peering, active}]); err != nil {
			a.Log.Error("cannot change the plane", "peering", first.peering, "plane", active, "error", err)
		} else if chosen {
			a.Log.Info("packets are sent by another plane", "peering", first.peering, "plane", active, "before", before)
		}
		a.local.active[first.peering], changed = active, true
	}
	for _, p := range a.probers {
		active, chosen := a.local.active[p.gateway.peering]
		p.active.Store(chosen && active == p.gateway.plane)
	}
	return changed, down
}

// watchUse tells the session of a plane whether packets are sent by it, until ctx ends.
func (a *agent) watchUse(ctx context.Context, p *prober, link string) {
	ticker := time.NewTicker(useInterval)
	defer ticker.Stop()
	var sent, own uint64
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !p.active.Load() {
			p.session.Use(false, 0)
			continue
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

// probe has one prober for each gateway that there is a link to.
func (a *agent) probe(ctx context.Context, gateways []gateway) {
	wanted := map[probeKey]bool{}
	for _, g := range gateways {
		key := probeKey{g.remote, g.plane}
		if !g.pod.IsValid() {
			continue
		}
		wanted[key] = true
		p := a.probers[key]
		if p != nil && (p.session == nil) != g.alone {
			p.stop() // the peering has got other planes, or has lost them
			p = nil
		}
		if p == nil {
			p = &prober{Prober: tunnel.NewProber(a.local.address, netip.AddrPortFrom(g.remote, tunnel.ProbePort), probeInterval)}
			probing, stop := context.WithCancel(ctx)
			p.stop = stop
			a.probers[key] = p
			go p.Run(probing)
			if !g.alone {
				p.session = liveness.New(a.local.address, netip.AddrPortFrom(g.address, liveness.Port), a.wake)
				go p.session.Run(probing)
				go a.watchUse(probing, p, g.link)
			}
		}
		p.mtu.Store(int64(g.mtu))
		if p.gateway != g {
			p.gateway = g
			p.Hurry()
		}
	}
	for key, p := range a.probers {
		if !wanted[key] {
			p.stop()
			delete(a.probers, key)
		}
	}
}
