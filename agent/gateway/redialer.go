package gateway

import (
	"time"

	"github.com/liqonet/liqonet/pkg/tunnel"
)

const (
	// redialFirst and redialLater are the times without an answer after which a client
	// starts the handshake anew: while it was never answered, and later. WireGuard itself
	// waits 5 s, and 15 s if the server forgot the session. They grow to redialMost.
	redialFirst, redialLater, redialMost = 300 * time.Millisecond, time.Second, 2 * time.Second
	// minUnanswered is how many probes in a row have to be unanswered before a session
	// that has worked counts as down. On a bad link or a busy machine some are lost, and a
	// new handshake would drop all packets on their way.
	minUnanswered = 5
	// oneWayTimeout is the time without an answer after which a session is down even
	// though packets come from the peer: they may pass one way only.
	oneWayTimeout = 6 * time.Second
)

// redialer watches a tunnel's session, and decides when a client starts the handshake
// anew.
type redialer struct {
	// downSince is zero while the session works. redialed is when the handshake was last
	// started anew.
	downSince, redialed time.Time
	// lastReceived is when something last came from the peer.
	lastReceived time.Time
}

// observe takes what was measured, and whether anything has come from the peer. It returns
// whether the session is down.
func (r *redialer) observe(probes tunnel.ProbeStats, received bool) bool {
	if received {
		r.lastReceived = time.Now()
	}
	switch {
	case !r.sessionDown(probes):
		r.downSince = time.Time{}
	case r.downSince.IsZero():
		r.downSince = time.Now()
	}
	return !r.downSince.IsZero()
}

// sessionDown goes by probes, and by when something last came from the peer: then
// answers may only be late on a busy machine.
func (r *redialer) sessionDown(probes tunnel.ProbeStats) bool {
	if probes.LastReply.IsZero() {
		return true
	}
	silent := time.Since(probes.LastReply)
	if silent <= probeInterval+redialLater || probes.Unanswered < minUnanswered {
		return false
	}
	return time.Since(r.lastReceived) >= redialLater || silent >= oneWayTimeout
}

// shouldRedial says that the handshake is to be started anew. A server may begin to
// answer at any moment, so the first attempts follow each other fast. From far away an
// answer takes longer: each attempt gets a third of the time that all have taken. Where
// the peer has sent something since the last attempt, the handshake goes on: the
// answers to probes come after it.
func (r *redialer) shouldRedial(probes tunnel.ProbeStats) bool {
	if r.downSince.IsZero() {
		return false
	}
	since := time.Since(r.redialed)
	if r.lastReceived.After(r.redialed) && time.Since(r.lastReceived) < redialMost && since < oneWayTimeout {
		return false
	}
	least := redialLater
	if probes.LastReply.IsZero() {
		least = redialFirst
	}
	return since >= min(max(time.Since(r.downSince)/3, least), redialMost)
}
