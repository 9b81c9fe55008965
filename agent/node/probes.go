package node

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

const (
	// probeInterval is the time between probes to a peer's gateway. Gateways probe each
	// other more often. Every node's probes pass both of them, which costs these most of
	// what they use when idle.
	probeInterval = 5 * time.Second
	// silence is the time without an answer after which a peer is not reached.
	silence = probeInterval + 2*time.Second
)

type probeKey struct {
	remote netip.Addr
	plane  int32
}

// prober probes one gateway of a peer. Where the peering has several planes, it also asks the own
// gateway often whether the plane works.
type prober struct {
	*tunnel.Prober
	// session lasts until endSession. It is nil where there is no other plane.
	session    *liveness.Session
	endSession context.CancelFunc
	// active says that the plane is in use, and activated that it is so again; mtu is what its packets
	// may have, in bytes.
	active    atomic.Bool
	activated notify.Signal
	mtu       atomic.Int64
	// probing lasts until stop.
	probing context.Context
	stop    context.CancelFunc
	// gateway is as it was last: when it changes, an answer is likely.
	gateway gateway
	// stats and ready are of the last look.
	stats tunnel.ProbeStats
	ready bool
}

// Look measures, more often than probes are sent to whom does not answer.
func (a *agent) Look(ctx context.Context) (changed bool, next time.Duration) {
	next = loop.LookInterval
	for _, p := range a.probers {
		before := p.ready
		p.stats = p.Snapshot()
		if p.ready = time.Since(p.stats.LastReply) < silence; p.ready != before {
			clear(a.paths) // a route that leads nowhere is no change that the kernel is watched for
		}
		next = min(next, p.stats.Pause*2/3)
	}
	a.noteReached()
	a.lookForSilence(ctx)
	changed, down := a.choosePlanes()
	if down {
		next = min(next, downInterval)
	}
	return changed, next
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
		if p == nil {
			p = &prober{Prober: tunnel.NewProber(a.local.address, netip.AddrPortFrom(g.remote, tunnel.ProbePort), probeInterval), activated: notify.NewSignal()}
			p.probing, p.stop = context.WithCancel(ctx)
			a.probers[key] = p
			p.Answered, p.Lost = a.metrics.Probes(g.peering, g.plane)
			go p.Run(p.probing)
		}
		switch {
		case g.alone && p.session != nil: // the peering has lost its other planes
			p.endSession()
			p.session = nil
		case !g.alone && p.session == nil:
			a.ask(p, g)
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
			a.forget(p.gateway)
		}
	}
}

// ask has a node ask its own gateway often whether a plane works.
func (a *agent) ask(p *prober, g gateway) {
	var ctx context.Context
	ctx, p.endSession = context.WithCancel(p.probing)
	p.session = liveness.New(a.local.address, netip.AddrPortFrom(g.address, liveness.Port), idleQuestions, a.wake)
	p.session.Assumed = p.ready
	p.session.Received = func() (uint64, error) { return a.kernel.Received(g.link) }
	go p.session.Run(ctx)
	go a.watchUse(ctx, p, p.session, g.link)
}
