package gateway

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/udp"
)

// measurements are the latest measurements.
type measurements struct {
	tunnel tunnel.Stats
	probes liveness.ProbeStats
	// pathRead is when the kernel was last asked for the path to the peer's gateway.
	pathRead time.Time
	// peerMTU is the MTU agreed with the peer, and nodesMTU that of the nodes.
	peerMTU, nodesMTU dampedMTU
	// reportedMTU is what the nodes last reported.
	reportedMTU int
	// usableAt is when the session last found no problem.
	usableAt time.Time
	// connectedSince is when the tunnel began to work, zero while it does not.
	connectedSince time.Time
	// foreign are chains and tables of others in this network namespace.
	foreign string
	// checksums are the wrong ones.
	checksums wrongChecksums
}

// wrongChecksums counts packets with wrong checksums: all at countedAt, and those of the window before that.
type wrongChecksums struct {
	all, recent uint64
	countedAt   time.Time
}

// checksumWindow is how long they are counted, and manyChecksums how many are reported. A few are damaged on the wire.
const checksumWindow, manyChecksums = time.Minute, 3

// update counts. read returns the number until now. It is called once each window, because reading each second takes 2 % of
// an idle gateway's processor time.
func (w *wrongChecksums) update(read func() uint64, now time.Time) {
	if now.Sub(w.countedAt) < checksumWindow {
		return
	}
	all := read()
	if !w.countedAt.IsZero() {
		w.recent = max(all, w.all) - w.all
	}
	w.all, w.countedAt = all, now
}

// tcpSilence is how long nothing may arrive by TCP while probes by UDP are answered.
const tcpSilence = 75 * time.Second

// problems are what is wrong although probes through the tunnel are answered.
func (m *measurements) problems(channel *exchange.Channel) (out []string) {
	if m.foreign != "" {
		out = append(out, "others have rules in this gateway's network namespace, which may redirect or drop packets of the peering: "+
			m.foreign+"; if a service mesh or network plugin adds them, exclude the namespace "+v1alpha1.Namespace)
	}
	if channel != nil && !m.connectedSince.IsZero() && time.Since(m.connectedSince) > tcpSilence && channel.Silence() > tcpSilence {
		out = append(out, "TCP does not pass between the gateways, although UDP does: is it redirected or dropped at either gateway?")
	}
	if m.checksums.recent >= manyChecksums {
		out = append(out, "packets arrive at this gateway with wrong checksums: does a network card or its driver compute them wrongly? "+
			"On the sending nodes: ethtool -K INTERFACE tx off")
	}
	return out
}

// findForeign finds rules of others in this network namespace if compare is set.
func (m *measurements) findForeign(log *slog.Logger, compare bool) {
	if !compare {
		return
	}
	foreign, err := firewall.Foreign()
	if m.foreign = strings.Join(foreign, ", "); err != nil {
		log.Error("cannot find rules of others", "error", err)
	}
}

// Measure measures the tunnel and repairs it. Its interval is shorter than that of probes through a tunnel that does
// not work.
func (a *agent) Measure(ctx context.Context) (changed bool, next time.Duration) {
	if a.device.Device == nil || a.peer.prober == nil || a.peering == nil {
		return false, loop.MeasureInterval
	}
	a.measurements.probes = a.peer.prober.Snapshot()
	a.measurements.checksums.update(udp.WrongChecksums, time.Now())
	stats, _ := a.device.Stats() // without stats, Configure below reports the problem
	received := stats.RxBytes > a.measurements.tunnel.RxBytes
	a.measurements.tunnel = stats
	if !stats.AsConfigured {
		// The kernel does not report when others change WireGuard's configuration.
		repaired, err := a.device.Configure(a.applied.desired.tunnel)
		if err != nil {
			a.cfg.Log.Error("cannot repair the tunnel", "error", err)
		} else if repaired {
			a.cfg.Log.Info("repaired the tunnel")
		}
	}
	if received {
		a.dialer.lastReceived, a.dialer.unanswered = time.Now(), 0
	}
	v := a.tunnelHealth()
	if v.isUsable() {
		a.measurements.usableAt = time.Now()
	}
	down := v.sessionLost
	if !v.connected {
		a.measurements.connectedSince = time.Time{}
	} else if a.measurements.connectedSince.IsZero() {
		a.measurements.connectedSince = time.Now()
	}
	a.dialer.observe(down)
	if down && received {
		a.peer.prober.ExpectReply()
	}
	next = min(loop.MeasureInterval, a.measurements.probes.Pause*2/3)
	plane := a.peering.Plane(a.local.plane)
	if plane != nil && plane.Role == v1alpha1.Server {
		next = min(next, a.watchCallers(down))
	}
	if plane != nil && plane.Role == v1alpha1.Client {
		switch {
		case !down:
			if again := a.tryPreferredEndpoint(); again > 0 {
				next = min(next, again)
			}
		case a.dialer.shouldRedial(a.measurements.probes) && !a.dialer.awaitsCookie():
			a.redial(ctx)
		}
	}
	return a.measurePath(), next
}

// tryPreferredEndpoint sends packets to the preferred endpoint, unless that refuses them. It returns how long to wait
// before the next attempt, 0 if that does not matter.
func (a *agent) tryPreferredEndpoint() (again time.Duration) {
	to, again, err := a.dialer.preferred(a.measurements.tunnel.Endpoint, a.livenessServer.inUse(), a.measurements.probes.Median)
	if err != nil {
		a.cfg.Log.Debug("cannot reach the node of the peer's gateway", "error", err)
	}
	if to.IsValid() {
		a.cfg.Log.Debug("trying the node of the peer's gateway", "endpoint", to, "before", a.measurements.tunnel.Endpoint)
		if err := a.device.SetEndpoint(to); err != nil {
			a.cfg.Log.Error("cannot change the endpoint", "error", err)
		}
		// The next packet decides: if it comes from the peer, WireGuard may return to the previous endpoint.
		a.peer.prober.Probe()
	}
	return again
}

// redial starts another handshake.
func (a *agent) redial(ctx context.Context) {
	if !a.measurements.probes.LastReply.IsZero() {
		a.cfg.Log.Debug("probes are not answered: restarting the handshake",
			"for", time.Since(a.measurements.probes.LastReply).Round(time.Millisecond), "probes", a.measurements.probes.Unanswered)
	}
	// The first time, no handshake has failed yet.
	if !a.dialer.redialed.IsZero() {
		a.dialer.endpoints.next()
		if endpoint, err := a.dialer.endpoints.current(ctx); err == nil {
			a.local.endpoint = endpoint
		}
		to := &a.applied.desired.tunnel
		a.local.port = a.dialer.nextPort(to.ListenPort)
		if before := *to; a.local.endpoint != before.Peer.Endpoint || a.local.port != before.ListenPort {
			to.Peer.Endpoint, to.ListenPort = a.local.endpoint, a.local.port
			if _, err := a.device.Configure(*to); err != nil {
				a.cfg.Log.Error("cannot change the endpoint or the port", "error", err)
			}
		}
		a.dialer.cookies, _ = nat.CookieReplies() // if unknown, it does not wait for one
		if err := a.device.Reset(); err != nil {
			a.cfg.Log.Error("cannot restart the handshake", "error", err)
		}
	}
	a.dialer.redialed = time.Now()
}

// tunnelHealth returns whether the tunnel works, by the latest measurements.
func (a *agent) tunnelHealth() tunnelHealth {
	e := a.livenessServer.healthInputs()
	e.probes, e.received, e.usableAt = a.measurements.probes, a.dialer.lastReceived, a.measurements.usableAt
	return evaluate(e, time.Now())
}

// measurePath updates the maximum size of packets to the peer, and reports whether the path has changed.
func (a *agent) measurePath() bool {
	now := a.local.path
	now.agreed = a.measurements.peerMTU.update(int(a.measurements.probes.RemoteMTU), time.Now())
	now.nodes = a.measurements.nodesMTU.update(a.measurements.reportedMTU, time.Now())
	if a.measurements.tunnel.Endpoint.IsValid() && time.Since(a.measurements.pathRead) >= loop.MeasureInterval {
		a.measurements.pathRead = time.Now()
		endpoint := a.measurements.tunnel.Endpoint.Addr().Unmap()
		now.overhead, now.mtu = tunnel.Overhead(endpoint), 0
		if _, mtu, err := a.kernel.SourceTo(endpoint); err == nil {
			now.mtu = mtu
		}
	}
	changed := now != a.local.path
	a.local.path = now
	return changed
}

// receive redirects packets to where they are aggregated. If the kernel does not support that, everything still
// works, but slower.
func (a *agent) receive(ctx context.Context, want desired) {
	ports := []uint16{overlay.Port}
	if tunnel.Backend(a.device.backend) == tunnel.Userspace {
		ports = append(ports, tunnel.ListenPort) // the kernel's WireGuard accepts no aggregated packets
	}
	_, err := nat.ApplyReceive(ctx, nat.Receive{Underlay: want.tunnel.Underlay, Entry: tunnel.EntryInterface, Ports: ports})
	if err != nil {
		a.cfg.Log.Warn("packets are not aggregated", "error", err)
	}
}

// device is the tunnel's device, nil while there is none, and its implementation.
type device struct {
	*tunnel.Device
	backend v1alpha1.WireGuardBackend
}

// open opens the device unless it is open already, and reports whether it is another one now, even after an error.
func (d *device) open(log *slog.Logger, backend v1alpha1.WireGuardBackend) (isNew bool, err error) {
	if d.Device != nil && d.backend == backend {
		return false, nil
	}
	d.close(log)
	if d.backend != "" {
		if err := tunnel.Remove(tunnel.InterfaceName); err != nil {
			return true, err
		}
	}
	opened, err := tunnel.Open(tunnel.Backend(backend), tunnel.InterfaceName, func(err error) {
		log.Warn("wireguard", "error", err)
	})
	if err != nil {
		return true, err
	}
	d.Device, d.backend = opened, backend
	return true, nil
}

// close closes the device only once, since its file descriptors may soon be reused.
func (d *device) close(log *slog.Logger) {
	if d.Device == nil {
		return
	}
	if err := d.Close(); err != nil {
		log.Error("cannot close the tunnel", "error", err)
	}
	d.Device = nil
}
