package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/liqonet/liqonet/agent/loop"
)

const (
	// callersWindow is how long a change of the caller counts. A copy whose pre-shared key is outdated calls every 30 s.
	callersWindow = 2 * time.Minute
	// minReturns is how often WireGuard has to return to an endpoint that it has left. A gateway that moves, or a NAT that forgets
	// its mapping, leaves an endpoint for good, and an interrupted path may bring it back once or twice.
	minReturns = 3
	// watchFor is how long a server looks every watchInterval after a change: a copy may take over within seconds.
	watchFor, watchInterval = 10 * time.Second, 100 * time.Millisecond
	// turnAfter is how long one of two callers keeps the tunnel, and forgetAfter how long the only one may fail to connect.
	turnAfter, forgetAfter = 5 * time.Second, 10 * time.Second
)

// callers detects that two gateways call with the same key. Either a copy of the peer runs, made from a snapshot, or a node
// that is cut off still runs its gateway. Each packet of one of them directs WireGuard's packets there, so the endpoint alternates.
//
// WireGuard refuses handshakes that are older than the last one. If the clock of one caller is ahead, the other is refused
// from then on, even after the former is gone. Therefore a server forgets the last handshake (turn).
type callers struct {
	current netip.AddrPort
	// returns are when WireGuard returned to the previous endpoint, or to another port of its address. A client without
	// answers calls from each of its ports in turn, which is no return.
	returns []time.Time
	// previous is the last endpoint that is not the current one. changed is when it changed, and turned when the last
	// handshake was forgotten.
	previous        netip.AddrPort
	changed, turned time.Time
}

// observe takes WireGuard's endpoint.
func (c *callers) observe(endpoint netip.AddrPort, now time.Time) {
	old := func(at time.Time) bool { return now.Sub(at) >= callersWindow }
	c.returns = slices.DeleteFunc(c.returns, old)
	if !endpoint.IsValid() || endpoint == c.current {
		return
	}
	back := endpoint == c.previous || endpoint.Addr() != c.current.Addr() && endpoint.Addr() == c.previous.Addr()
	if back && !old(c.changed) {
		c.returns = append(c.returns, now)
	}
	if c.current.IsValid() {
		c.previous, c.changed = c.current, now
	}
	c.current = endpoint
}

// other returns the endpoint of the other one of two callers, invalid if there is one.
func (c *callers) other() netip.AddrPort {
	if len(c.returns) < minReturns {
		return netip.AddrPort{}
	}
	return c.previous
}

// turn returns whether to forget the last handshake, and which caller to send to then: another one may be refused.
func (c *callers) turn(down bool, now time.Time) (to netip.AddrPort, isDue bool) {
	to = c.other()
	stable := now.Sub(c.changed)
	// While the tunnel works, forgetting would lose packets: a client that tries its endpoints in turn also returns.
	switch {
	case !down:
	case to.IsValid():
		isDue = stable >= turnAfter && now.Sub(c.turned) >= turnAfter
	default:
		isDue = c.current.IsValid() && stable >= forgetAfter && now.Sub(c.turned) >= forgetAfter
	}
	if isDue {
		c.turned = now
	}
	return to, isDue
}

// message describes the callers, empty if there is only one.
func (c *callers) message() string {
	if to := c.other(); to.IsValid() {
		return callersMessage(c.current.String(), to.String())
	}
	return ""
}

func callersMessage(a, b string) string {
	if b < a { // they alternate, and the message must not
		a, b = b, a
	}
	return fmt.Sprintf("two gateways call with the same key, from %s and %s: is a copy of the peer running, or is a node with a gateway cut off?", a, b)
}

// watchCallers looks for a second caller, and returns how long to wait before the next look.
func (a *agent) watchCallers(down bool) (next time.Duration) {
	now, c := time.Now(), &a.callers
	c.observe(a.measurements.tunnel.Endpoint, now)
	if to, isDue := c.turn(down, now); isDue {
		a.cfg.Log.Debug("forgetting the last handshake, as the peer's clock may have been set back", "endpoint", c.current, "other", to)
		err := a.device.Reset()
		if err == nil && to.IsValid() {
			err = a.device.SetEndpoint(to)
		}
		if err != nil {
			a.cfg.Log.Error("cannot forget the last handshake", "error", err)
		}
	}
	if now.Sub(c.changed) < watchFor {
		return watchInterval
	}
	return loop.MeasureInterval
}
