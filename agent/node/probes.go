package node

import (
	"context"
	"net/netip"
	"time"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

const (
	// lookInterval is how often measurements are looked at, fastLookInterval the same for
	// a peer that is not reached.
	lookInterval, fastLookInterval = time.Second, 50 * time.Millisecond
	// probeInterval is the time between probes to a peer's gateway, fastProbeInterval the
	// same for one that does not answer. Gateways probe each other more often. Every
	// node's probes pass both of them, which costs these most of what they use when idle.
	probeInterval, fastProbeInterval = 5 * time.Second, 100 * time.Millisecond
	// silence is the time without an answer after which a peer is not reached.
	silence = probeInterval + 2*time.Second
)

type probeKey struct {
	remote netip.Addr
	plane  int32
}

// prober probes one gateway of a peer.
type prober struct {
	*tunnel.Prober
	stop context.CancelFunc
	// gateway is as it was when changed was set: then something happened that makes an
	// answer likely.
	gateway gateway
	changed time.Time
	// stats and ready are of the last look.
	stats tunnel.ProbeStats
	ready bool
}

// look measures, and sets the speed of the probes. It returns when to look again.
func (p *prober) look() time.Duration {
	before := p.ready
	p.stats = p.Snapshot()
	p.ready = time.Since(p.stats.LastReply) < silence
	if before && !p.ready {
		p.changed = time.Now()
	}
	switch {
	case !p.ready:
		p.SetInterval(loop.Pace(p.changed, fastProbeInterval, probeInterval))
		return loop.Pace(p.changed, fastLookInterval, lookInterval)
	case p.stats.Window < tunnel.ProbeWindow:
		p.SetInterval(fastProbeInterval)
	default:
		p.SetInterval(probeInterval)
	}
	return lookInterval
}

// Look measures.
func (a *agent) Look(context.Context) (changed bool, next time.Duration) {
	next = lookInterval
	for _, p := range a.probers {
		before := p.ready
		next = min(next, p.look())
		if p.ready != before {
			clear(a.paths) // a route that leads nowhere is no change that the kernel is watched for
		}
	}
	return false, next
}

// probe has one prober for each gateway that there is a link to. Where the link has
// failed there may still be the one of before.
func (a *agent) probe(ctx context.Context, gateways []gateway) {
	wanted := map[probeKey]bool{}
	for _, g := range gateways {
		key := probeKey{g.remote, g.plane}
		if !g.pod.IsValid() {
			continue
		}
		wanted[key] = true
		p := a.probers[key]
		if p == nil && !g.failed {
			if p = a.newProber(ctx, g); p != nil {
				a.probers[key] = p
			}
		}
		if p != nil && p.gateway != g {
			p.gateway, p.changed = g, time.Now()
		}
	}
	for key, p := range a.probers {
		if !wanted[key] {
			p.stop()
			delete(a.probers, key)
		}
	}
}

func (a *agent) newProber(ctx context.Context, g gateway) *prober {
	p, err := tunnel.NewProber(a.local.address, netip.AddrPortFrom(g.remote, tunnel.ProbePort), fastProbeInterval)
	if err != nil {
		a.Log.Error("cannot probe", "peering", g.peering, "error", err)
		return nil
	}
	probing, stop := context.WithCancel(ctx)
	go func() { _ = p.Run(probing) }() // it ends with its context
	return &prober{Prober: p, stop: stop}
}
