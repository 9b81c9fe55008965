package node

import (
	"context"
	"net/netip"
	"time"

	"github.com/liqonet/liqonet/agent/loop"
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

// prober probes one gateway of a peer.
type prober struct {
	*tunnel.Prober
	stop context.CancelFunc
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
	return false, next
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
			p = &prober{Prober: tunnel.NewProber(a.local.address, netip.AddrPortFrom(g.remote, tunnel.ProbePort), probeInterval)}
			probing, stop := context.WithCancel(ctx)
			p.stop = stop
			a.probers[key] = p
			go p.Run(probing)
		}
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
