package gateway

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/kit"
)

func TestSessionDown(t *testing.T) {
	for name, tc := range map[string]struct {
		// reply and received are the times since these events. A negative reply means never.
		reply, received time.Duration
		unanswered      uint32
		want            bool
	}{
		"never answered":                     {reply: -1, unanswered: 1, want: true},
		"answered":                           {reply: time.Second, received: time.Second},
		"one probe was lost":                 {reply: 2800 * time.Millisecond, received: 2800 * time.Millisecond, unanswered: 2},
		"many were":                          {reply: 2800 * time.Millisecond, received: 2800 * time.Millisecond, unanswered: 10, want: true},
		"many in a short time":               {reply: 2 * time.Second, received: 2 * time.Second, unanswered: 10},
		"this process was held up":           {reply: time.Minute, received: time.Minute, unanswered: 2},
		"many, but other packets come":       {reply: 2800 * time.Millisecond, received: 100 * time.Millisecond, unanswered: 10},
		"packets come, and none is answered": {reply: 6 * time.Second, unanswered: 40, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				now := time.Now()
				probes := liveness.ProbeStats{Unanswered: tc.unanswered}
				if tc.reply >= 0 {
					probes.LastReply = now.Add(-tc.reply)
				}
				if got := evaluate(healthInputs{probes: probes, received: now.Add(-tc.received)}, now).sessionLost; got != tc.want {
					t.Errorf("down is %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// redials runs a caller for some time, and returns when it redials.
func redials(r *dialer, d time.Duration, look func(at time.Duration) (liveness.ProbeStats, int64)) (out []time.Duration) {
	start, before := time.Now(), int64(0)
	for time.Since(start) < d {
		probes, received := look(time.Since(start))
		if received > before {
			r.lastReceived = time.Now()
		}
		before = received
		r.observe(evaluate(healthInputs{probes: probes, received: r.lastReceived}, time.Now()).sessionLost)
		if r.shouldRedial(probes) {
			out = append(out, time.Since(start))
			r.redialed = time.Now()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return out
}

func TestRedial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r dialer
		got := redials(&r, 20*time.Second, func(time.Duration) (liveness.ProbeStats, int64) { return liveness.ProbeStats{}, 0 })
		kit.FatalIf(t, len(got) < 5 || got[0] != 0 || got[1] != redialFirst, "a server that does not answer is called at %v", got)
		for i := 2; i < len(got); i++ {
			gap, before := got[i]-got[i-1], got[i-1]-got[i-2]
			if gap < before || gap > redialMost {
				t.Errorf("a server that does not answer is called at %v: each attempt gets more time, up to %v", got, redialMost)
				break
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		// The server's answer to the handshake arrives, and those to probes 1.5 s later.
		var r dialer
		got := redials(&r, 1800*time.Millisecond, func(at time.Duration) (liveness.ProbeStats, int64) {
			if at >= 250*time.Millisecond {
				return liveness.ProbeStats{}, 92
			}
			return liveness.ProbeStats{}, 0
		})
		kit.ErrorIf(t, len(got) != 1, "an answered handshake is restarted at %v", got)
	})
	synctest.Test(t, func(t *testing.T) {
		// A session has worked, and then packets pass in one direction only.
		start := time.Now()
		r := dialer{redialed: start.Add(-time.Hour)}
		got := redials(&r, 10*time.Second, func(at time.Duration) (liveness.ProbeStats, int64) {
			return liveness.ProbeStats{LastReply: start, Unanswered: uint32(at / (100 * time.Millisecond))}, int64(at) + 1
		})
		kit.ErrorIf(t, len(got) != 1 || got[0] < oneWayTimeout, "restarted at %v, want once, after %v", got, oneWayTimeout)
	})
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := dialer{redialed: start.Add(-time.Hour), lastReceived: start}
		got := redials(&r, 4*time.Second, func(at time.Duration) (liveness.ProbeStats, int64) {
			return liveness.ProbeStats{LastReply: start, Unanswered: uint32(at / (100 * time.Millisecond))}, 0
		})
		kit.ErrorIf(t, len(got) < 2 || got[0] <= probeInterval+redialLater || got[1]-got[0] < redialLater,
			"a lost session is restarted at %v", got)
	})
}

// A client that gets no answer calls from its port a few times, and then from each of its ports in turn, until it gets
// one.
func TestPortsOfHandshakes(t *testing.T) {
	const first = tunnel.ListenPort
	var c dialer
	port, used := first, map[uint16]int{}
	for range portTries {
		port = c.nextPort(port)
	}
	kit.Check(t, "port after the first handshakes", port, first)
	last := wire.EndOfRange(first)
	for range last - first + 1 {
		port = c.nextPort(port)
		used[port]++
	}
	kit.ErrorIf(t, len(used) != int(last-first)+1 || len(used) < 2 || port != first, "ports of the next handshakes: %v", used)
	port = c.nextPort(port)
	c.unanswered = 0 // a packet has arrived
	kit.Check(t, "port after an answer", c.nextPort(port), port)
}
