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
	if a.device == nil || a.prober == nil || a.peering == nil {
		return false, loop.LookInterval
	}
	a.probes = a.prober.Snapshot()
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
	wasDown := !a.redialer.downSince.IsZero()
	if received {
		a.redialer.lastReceived = time.Now()
	}
	down := a.verdict().lost
	a.redialer.observe(down)
	if down && received {
		a.prober.Hurry()
	}
	next = min(loop.LookInterval, a.probes.Pause*2/3)
	if plane := a.peering.Plane(a.local.plane); plane != nil && plane.Role == v1alpha1.Client {
		switch {
		case !down:
			if again := a.callPreferred(wasDown); again > 0 {
				next = min(next, again)
			}
		case a.redialer.shouldRedial(a.probes):
			a.redial(ctx)
		}
	}
	return a.measurePath(), next
}

// callPreferred sends packets to the preferred endpoint, unless that refuses them. It returns how long to wait before
// the next call, 0 if that does not matter.
func (a *agent) callPreferred(wasDown bool) (again time.Duration) {
	if wasDown {
		// Nodes return to this plane after some seconds.
		a.endpoints.recovered()
	}
	busy := a.answers.inUse()
	if a.check != nil {
		if left := time.Until(a.check.until); left > 0 {
			return left
		}
		c := a.check
		a.check = nil
		if !c.refused() && (c.busy || !busy) {
			a.Log.Debug("calling the node of the peer's gateway", "endpoint", c.to, "before", a.tunnel.Endpoint)
			if err := a.device.Call(c.to); err != nil {
				a.Log.Error("cannot change the endpoint", "error", err)
			}
			// The next packet decides: if it comes from the peer, WireGuard may return to the previous endpoint.
			a.prober.Probe()
		}
		return firstTryGap
	}
	preferred, again := a.endpoints.try(time.Now(), a.tunnel.Endpoint, busy)
	if !preferred.IsValid() {
		return again
	}
	c, err := newPortCheck(preferred, busy, a.probes.Median)
	if err != nil {
		a.Log.Debug("the node of the peer's gateway cannot be called", "error", err)
		return again
	}
	a.check = c
	return time.Until(c.until)
}

// redial starts another handshake.
func (a *agent) redial(ctx context.Context) {
	if !a.probes.LastReply.IsZero() {
		a.Log.Debug("probes are not answered: restarting the handshake",
			"for", time.Since(a.probes.LastReply).Round(time.Millisecond), "probes", a.probes.Unanswered)
	}
	// The first time, no handshake has failed yet.
	if !a.redialer.redialed.IsZero() {
		a.endpoints.next()
		if endpoint, err := a.endpoints.current(ctx); err == nil && endpoint != a.local.endpoint {
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
	a.redialer.redialed = time.Now()
}

// verdict returns whether the tunnel works, by the latest measurements.
func (a *agent) verdict() verdict {
	e := a.answers.evidence()
	e.probes, e.received = a.probes, a.redialer.lastReceived
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
