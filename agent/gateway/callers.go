package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

const (
	// callersWindow is how long a return of a caller counts, and minReturns how many of them show that there are two callers.
	// A packet of a gateway that has ended may arrive after one of the next.
	callersWindow, minReturns = 2 * time.Minute, 3
	// goneAfter is how long none may return until one of two callers counts as gone. While both call, they take turns every
	// few seconds.
	goneAfter = 30 * time.Second
	// maxCallers is how many callers are remembered.
	maxCallers = 4
	// watchFor is how long a server looks every watchInterval after a change: a copy may take over within seconds.
	watchFor, watchInterval = 10 * time.Second, 100 * time.Millisecond
	// turnAfter is how long one of two callers keeps the tunnel, and forgetAfter how long the only one may fail to connect.
	turnAfter, forgetAfter = 5 * time.Second, 10 * time.Second
)

// callers detects that two gateways call with the same key. Either a copy of the peer runs, made from a snapshot, or a node
// that is cut off still runs its gateway. The probes of each have another identifier, and arrive in turn. Endpoints prove
// nothing: a client calls several, from several ports, and packets of one client come from several addresses.
//
// WireGuard refuses handshakes that are older than the last one. If the clock of one caller is ahead, the other is refused
// from then on, even after the former is gone. Therefore a server forgets the last handshake (turn).
//
// Its methods are safe for concurrent use.
type callers struct {
	mu sync.Mutex
	// recent are the last callers. The first is the current one.
	recent []caller
	// returns are when probes of an earlier caller arrived again, the last minReturns of them.
	returns []time.Time
	// endpoint is WireGuard's. changed is when that or the caller changed, and turned when the last handshake was forgotten.
	endpoint        netip.AddrPort
	changed, turned time.Time
}

// caller is the identifier of a gateway's probes, and the last endpoint from which they came, invalid if it is not known.
type caller struct {
	id       [8]byte
	endpoint netip.AddrPort
}

// hear records a probe of the peer's gateway.
func (c *callers) hear(id [8]byte, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.recent, func(r caller) bool { return r.id == id })
	if i == 0 {
		return
	}
	is := caller{id: id}
	if i > 0 {
		is = c.recent[i]
		c.recent = slices.Delete(c.recent, i, i+1)
		c.returns = append(c.returns, now)
		c.returns = c.returns[max(0, len(c.returns)-minReturns):]
	}
	c.recent = slices.Insert(c.recent, 0, is)
	c.recent = c.recent[:min(len(c.recent), maxCallers)]
	c.changed = now
}

// observe takes WireGuard's endpoint.
func (c *callers) observe(endpoint netip.AddrPort, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if endpoint != c.endpoint {
		c.endpoint, c.changed = endpoint, now
	}
	// Another caller's probe may have arrived since WireGuard was asked.
	if len(c.recent) > 0 && !slices.ContainsFunc(c.recent[1:], func(r caller) bool { return r.endpoint == endpoint }) {
		c.recent[0].endpoint = endpoint
	}
}

// areTwo reports whether two gateways call. The caller holds the lock.
func (c *callers) areTwo(now time.Time) bool {
	return len(c.returns) == minReturns && now.Sub(c.returns[0]) < callersWindow
}

// other returns the endpoint of the other one of two callers, invalid if it is gone or there is one only. endpoint is
// WireGuard's.
func (c *callers) other(endpoint netip.AddrPort, now time.Time) netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !endpoint.IsValid() || !c.areTwo(now) || now.Sub(c.returns[minReturns-1]) >= goneAfter {
		return netip.AddrPort{}
	}
	i := slices.IndexFunc(c.recent, func(r caller) bool { return r.endpoint.IsValid() && r.endpoint != endpoint })
	if i < 0 {
		return netip.AddrPort{} // not known yet
	}
	return c.recent[i].endpoint
}

// turn returns whether to forget the last handshake, so that a caller whose handshakes are refused can connect. A caller
// that another plane has named may have been replaced here without returning: a copy of a cluster calls on all planes.
func (c *callers) turn(down, othersNamed bool, now time.Time) (isDue bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	after := forgetAfter
	if c.areTwo(now) || othersNamed && len(c.recent) > 1 && now.Sub(c.changed) < callersWindow {
		after = turnAfter
	} else if !down || !c.endpoint.IsValid() {
		return false // forgetting loses the packets in transit
	}
	if now.Sub(c.changed) < after || now.Sub(c.turned) < after {
		return false
	}
	c.turned = now
	return true
}

// isWatched reports whether something has changed recently.
func (c *callers) isWatched(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Sub(c.changed) < watchFor
}

// callersMessage describes two callers by their endpoints.
func callersMessage(a, b string) string {
	if b < a { // they alternate, and the message must not
		a, b = b, a
	}
	return fmt.Sprintf("two gateways call with the same key, from %s and %s: is a copy of the peer running, or is a node with a gateway cut off?", a, b)
}

// watchCallers looks for a second caller, and returns how long to wait before the next look.
func (a *agent) watchCallers(down bool) (next time.Duration) {
	now, c := time.Now(), &a.livenessServer.callers
	c.observe(a.measurements.tunnel.Endpoint, now)
	named := slices.ContainsFunc(a.peering.Status.Planes, func(p v1alpha1.PlaneStatus) bool { return p.OtherCaller != "" })
	if c.turn(down, named, now) {
		a.cfg.Log.Debug("forgetting the last handshake, as the peer's clock may have been set back", "endpoint", a.measurements.tunnel.Endpoint)
		if err := a.device.Reset(); err != nil {
			a.cfg.Log.Error("cannot forget the last handshake", "error", err)
		}
		a.peer.prober.Probe() // it starts a handshake with the current caller, which loses few packets
	}
	if c.isWatched(now) {
		return watchInterval
	}
	return loop.MeasureInterval
}
