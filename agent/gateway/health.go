package gateway

import (
	"cmp"
	"fmt"
	"time"

	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/metrics"
)

const (
	// probeInterval is the time between probes.
	probeInterval = 1500 * time.Millisecond
	// replyTimeout is the time without an answer after which the tunnel counts as not connected.
	replyTimeout = 3500 * time.Millisecond
	// minUnanswered is how many probes in a row have to be unanswered before a session that has worked counts as down. A
	// bad link or a busy machine loses some, and a new handshake would drop all packets in transit.
	minUnanswered = 5
	// oneWayTimeout is the time without an answer after which a session is down although packets arrive from the peer:
	// they may pass in one direction only.
	oneWayTimeout = 6 * time.Second
)

// healthInputs is the input of the decision whether the tunnel works.
type healthInputs struct {
	// datapathReady is set if the kernel matches the desired state except for single nodes' links. leaving is set if
	// this gateway is about to end.
	datapathReady, leaving bool
	// session is the state of the session, nil if the peering has no other plane.
	session *liveness.State
	// probes are the latest ones, and received is when a packet last came from the peer.
	probes   liveness.ProbeStats
	received time.Time
}

// tunnelHealth is whether packets pass through this gateway. Everything that is decided or reported about that follows
// from it.
type tunnelHealth struct {
	healthInputs
	// advertised is what nodes are told, as soon as possible: they leave a plane that is down for another one. If there
	// is no other plane, a node that asks has sent through this one until now.
	advertised liveness.State
	// connected is what the status reports: probes are answered, and at least one was measured.
	connected bool
	// sessionLost is set if WireGuard's session is, so that a client starts another handshake. That drops packets in
	// transit, so it is the slowest to decide. If a packet came from the peer recently, answers may just be late on a
	// busy machine.
	sessionLost bool
}

func evaluate(e healthInputs, now time.Time) tunnelHealth {
	v := tunnelHealth{healthInputs: e}
	switch {
	case !e.datapathReady:
	case e.session == nil:
		v.advertised.Up = true
	default:
		v.advertised = *e.session
	}
	v.advertised.Leaving = v.advertised.Leaving || e.leaving
	silent := now.Sub(e.probes.LastReply)
	v.connected = e.probes.Window > 0 && silent < replyTimeout
	v.sessionLost = e.probes.LastReply.IsZero() ||
		silent > probeInterval+redialLater && e.probes.Unanswered >= minUnanswered &&
			(now.Sub(e.received) >= redialLater || silent >= oneWayTimeout)
	return v
}

// publicState returns the state for metrics and the history (Up, Down or Leaving), and why. If there is another plane,
// it is what nodes are told, otherwise the result of probes. message is that of the status.
func (v tunnelHealth) publicState(message string) (state, why string) {
	switch {
	case v.leaving:
		return metrics.Leaving, "this gateway ends"
	case !v.datapathReady:
		return metrics.Down, message
	case v.session == nil && v.connected:
		return metrics.Up, "probes through the tunnel are answered"
	case v.session == nil:
		return metrics.Down, message
	// The session is faster than probes.
	case !v.advertised.Up && v.advertised.Down >= startGrace:
		return metrics.Down, cmp.Or(message, "no answer through the tunnel")
	case !v.advertised.Up:
		return metrics.Down, fmt.Sprintf("no answer for %.1f s", v.advertised.Down.Seconds())
	case v.advertised.Leaving:
		return metrics.Leaving, "the peer's gateway ends, or its nodes do not know it yet"
	}
	return metrics.Up, "the peer's gateway answers"
}
