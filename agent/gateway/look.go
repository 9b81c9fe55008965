package gateway

import (
	"context"
	"time"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// Look measures the tunnel and repairs it. It asks to be called more often than a tunnel that does not work is
// probed.
func (a *agent) Look(ctx context.Context) (changed bool, next time.Duration) {
	if a.device.Device == nil || a.peer.prober == nil || a.peering == nil {
		return false, loop.LookInterval
	}
	a.probes = a.peer.prober.Snapshot()
	stats, _ := a.device.Stats() // without stats, Configure below reports the problem
	received := stats.RxBytes > a.tunnel.RxBytes
	a.tunnel = stats
	if !stats.AsConfigured {
		// The kernel does not report when others change WireGuard's configuration.
		repaired, err := a.device.Configure(a.desired.tunnel)
		if err != nil {
			a.Log.Error("cannot repair the tunnel", "error", err)
		} else if repaired {
			a.Log.Info("repaired the tunnel")
		}
	}
	if received {
		a.caller.redialer.lastReceived = time.Now()
	}
	down := a.verdict().lost
	a.caller.observe(down)
	if down && received {
		a.peer.prober.Hurry()
	}
	next = min(loop.LookInterval, a.probes.Pause*2/3)
	if plane := a.peering.Plane(a.local.plane); plane != nil && plane.Role == v1alpha1.Client {
		switch {
		case !down:
			if again := a.callPreferred(); again > 0 {
				next = min(next, again)
			}
		case a.caller.redialer.shouldRedial(a.probes):
			a.redial(ctx)
		}
	}
	return a.measurePath(), next
}

// callPreferred sends packets to the preferred endpoint, unless that refuses them. It returns how long to wait before
// the next call, 0 if that does not matter.
func (a *agent) callPreferred() (again time.Duration) {
	to, again, err := a.caller.preferred(a.tunnel.Endpoint, a.answers.inUse(), a.probes.Median)
	if err != nil {
		a.Log.Debug("the node of the peer's gateway cannot be called", "error", err)
	}
	if to.IsValid() {
		a.Log.Debug("calling the node of the peer's gateway", "endpoint", to, "before", a.tunnel.Endpoint)
		if err := a.device.Call(to); err != nil {
			a.Log.Error("cannot change the endpoint", "error", err)
		}
		// The next packet decides: if it comes from the peer, WireGuard may return to the previous endpoint.
		a.peer.prober.Probe()
	}
	return again
}

// redial starts another handshake.
func (a *agent) redial(ctx context.Context) {
	if !a.probes.LastReply.IsZero() {
		a.Log.Debug("probes are not answered: restarting the handshake",
			"for", time.Since(a.probes.LastReply).Round(time.Millisecond), "probes", a.probes.Unanswered)
	}
	// The first time, no handshake has failed yet.
	if !a.caller.redialer.redialed.IsZero() {
		a.caller.endpoints.next()
		if endpoint, err := a.caller.endpoints.current(ctx); err == nil && endpoint != a.local.endpoint {
			a.local.endpoint = endpoint
			a.desired.tunnel.Peer.Endpoint = endpoint
			if _, err := a.device.Configure(a.desired.tunnel); err != nil {
				a.Log.Error("cannot change the endpoint", "error", err)
			}
		}
		if err := a.device.Reset(); err != nil {
			a.Log.Error("cannot restart the handshake", "error", err)
		}
	}
	a.caller.redialer.redialed = time.Now()
}

// verdict returns whether the tunnel works, by the latest measurements.
func (a *agent) verdict() verdict {
	e := a.answers.evidence()
	e.probes, e.received = a.probes, a.caller.redialer.lastReceived
	return judge(e, time.Now())
}

// measurePath updates the maximum size of packets to the peer, and reports whether the path has changed.
func (a *agent) measurePath() bool {
	now := a.local.path
	now.agreed = a.peerMTU.update(int(a.probes.RemoteMTU), time.Now())
	if a.tunnel.Endpoint.IsValid() && time.Since(a.pathRead) >= loop.LookInterval {
		a.pathRead = time.Now()
		endpoint := a.tunnel.Endpoint.Addr().Unmap()
		now.overhead, now.mtu = tunnel.Overhead(endpoint), 0
		if _, mtu, err := a.kernel.SourceTo(endpoint); err == nil {
			now.mtu = mtu
		}
	}
	changed := now != a.local.path
	a.local.path = now
	return changed
}
