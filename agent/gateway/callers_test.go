package gateway

import (
	"net/netip"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// step is a probe of a caller, a letter, that comes from an endpoint.
type step struct {
	caller   byte
	endpoint string
}

// play has callers send probes, and returns the time of the last one.
func (c *callers) play(gap time.Duration, steps []step) (now time.Time) {
	now = time.Now()
	for _, s := range steps {
		now = now.Add(gap)
		c.hear([8]byte{s.caller}, now)
		endpoint, _ := netip.ParseAddrPort(s.endpoint) // invalid if it is not known
		c.observe(endpoint, now)
	}
	return now
}

// Two callers send probes in turn. One caller does not, from whatever endpoints its packets come.
func TestCallers(t *testing.T) {
	const a, b, c, d = "192.0.2.1:51840", "198.51.100.1:51840", "192.0.2.1:1024", "192.0.2.1:1025"
	alternating := []step{{'a', a}, {'b', b}, {'a', a}, {'b', b}, {'a', a}}
	var wanders []step
	for i := range 300 { // a client tries its endpoints in turn for five minutes, and is restarted in between
		wanders = append(wanders, step{'a' + byte(i/100), []string{a, b, c}[i%3]})
	}
	for _, tt := range []struct {
		name  string
		gap   time.Duration
		steps []step
		want  string
	}{
		{"one caller", time.Second, []step{{'a', a}, {'a', a}, {'a', a}}, ""},
		{"one caller by three endpoints", time.Second, wanders, ""},
		{"the gateway restarts again and again", time.Second, []step{{'a', a}, {'b', a}, {'c', a}, {'d', a}, {'e', a}, {'f', a}}, ""},
		{"late packets of a gateway that has moved", time.Second, []step{{'a', a}, {'b', b}, {'a', a}, {'b', b}, {'b', b}}, ""},
		{"two callers", time.Second, alternating, b},
		{"two callers, slowly", 30 * time.Second, alternating, b},
		{"two callers behind one NAT", time.Second, []step{{'a', c}, {'b', d}, {'a', c}, {'b', d}, {'a', c}}, d},
		{"two callers that change their ports", time.Second, []step{{'a', a}, {'b', b}, {'a', c}, {'b', "198.51.100.1:2"}, {'a', d}}, "198.51.100.1:2"},
		{"two callers, one of them by a new endpoint", time.Second, []step{{'a', a}, {'b', b}, {'a', a}, {'b', b}, {'a', b}, {'b', b}, {'a', a}}, b},
		{"three callers", time.Second, []step{{'a', a}, {'b', b}, {'c', c}, {'a', a}, {'b', b}, {'c', c}}, b},
		{"two callers, too slowly", callersWindow, alternating, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var x callers
			now := x.play(tt.gap, tt.steps)
			got := x.other(x.endpoint, now)
			want, _ := netip.ParseAddrPort(tt.want)
			kit.ErrorIf(t, got != want, "the other caller is %s, want %q", got, tt.want)
			kit.ErrorIf(t, len(x.recent) > maxCallers || len(x.returns) > minReturns, "it remembers %d callers and %d returns", len(x.recent), len(x.returns))
			got = x.other(x.endpoint, now.Add(goneAfter))
			kit.ErrorIf(t, got.IsValid(), "the other caller is still %s when it has been gone for %s", got, goneAfter)
		})
	}
}

// A caller does not get the endpoint of another one, if its probe arrives after WireGuard was asked. The message does not
// alternate with the callers.
func TestEndpointOfAnotherCaller(t *testing.T) {
	a, b, now := netip.MustParseAddrPort("192.0.2.1:51840"), netip.MustParseAddrPort("198.51.100.1:51840"), time.Now()
	var x callers
	x.hear([8]byte{'a'}, now)
	x.observe(a, now)
	x.hear([8]byte{'b'}, now)
	x.observe(a, now)
	kit.ErrorIf(t, x.recent[0].endpoint.IsValid(), "the second caller has the endpoint of the first: %+v", x.recent)
	x.observe(b, now)
	kit.ErrorIf(t, x.recent[0].endpoint != b || x.recent[1].endpoint != a, "%+v", x.recent)
	kit.Check(t, "message", callersMessage(b.String(), a.String()), callersMessage(a.String(), b.String()))
}

// Only probes from the address of the peer's gateway count: each of the peer's nodes sends some, too.
func TestProbesOfCallers(t *testing.T) {
	peer, node := netip.MustParseAddr("10.70.95.254"), netip.MustParseAddr("10.80.0.1")
	var s livenessServer
	s.peerGateway.setKnown(peer)
	for by, want := range map[netip.Addr]int{node: 0, peer: 2} {
		s.callers.recent = nil
		for i := range 10 {
			s.handleProbe(by, [8]byte{byte(i % 2)})
		}
		kit.ErrorIf(t, len(s.callers.recent) != want, "probes from %s are of the callers %v", by, s.callers.recent)
	}
}

// The last handshake is forgotten while one of two callers keeps the other from connecting, and while the only one fails to
// connect, but not while it has the tunnel.
func TestTurns(t *testing.T) {
	const a, b = "192.0.2.1:51840", "198.51.100.1:51840"
	for _, tt := range []struct {
		name  string
		steps []step
		down  bool
		want  int
		// named is set if another plane has two callers.
		named bool
	}{
		{"two callers", []step{{'a', a}, {'b', b}, {'a', a}, {'b', b}, {'a', a}}, false, 12, false},
		{"two callers, and the tunnel is down", []step{{'a', a}, {'b', b}, {'a', a}, {'b', b}, {'a', a}}, true, 12, false},
		{"one caller by two endpoints", []step{{'a', a}, {'a', b}, {'a', a}, {'a', b}, {'a', a}}, false, 0, false},
		{"one caller, and the tunnel is down", []step{{'a', a}, {'a', b}}, true, 6, false},
		{"a caller was replaced, and another plane has two", []step{{'a', a}, {'b', b}}, false, 12, true},
		{"a caller was replaced", []step{{'a', a}, {'b', b}}, false, 0, false},
		{"one caller, and another plane has two", []step{{'a', a}}, false, 0, true},
		{"none has called", nil, true, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var x callers
			now, n := x.play(time.Second, tt.steps), 0
			for since := time.Duration(0); since <= time.Minute; since += watchInterval {
				if x.turn(tt.down, tt.named, now.Add(since)) {
					n++
				}
			}
			kit.ErrorIf(t, n != tt.want, "in a minute, it forgot %d handshakes, want %d", n, tt.want)
			if late := now.Add(callersWindow); tt.named && x.turn(tt.down, true, late) {
				t.Error("it forgot a handshake although the caller changed long ago")
			}
		})
	}
}
