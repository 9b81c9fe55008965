package gateway

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// Two callers alternate. A gateway that moves, a NAT that assigns another port, and a path that fails over and back do not.
func TestCallers(t *testing.T) {
	var ports []string
	for i := range 50 {
		ports = append(ports, fmt.Sprintf("192.0.2.1:%d", 51840+i%16))
	}
	const a, b, c, d = "192.0.2.1:51840", "198.51.100.1:51840", "192.0.2.1:1024", "192.0.2.1:1025"
	for _, tt := range []struct {
		name string
		gap  time.Duration
		seen []string
		want string
	}{
		{"one caller", time.Second, []string{a, a, a}, ""},
		{"not known yet", time.Second, []string{"", a, "", a}, ""},
		{"the gateway moves", time.Second, []string{a, b, b}, ""},
		{"it moves back", time.Second, []string{a, b, a}, ""},
		{"a NAT assigns ports", time.Second, []string{a, c, d, b}, ""},
		{"a path fails over and back, every minute", time.Minute, []string{a, b, a, b, a, b}, ""},
		{"one without answers, from each of its ports", 2 * time.Second, ports, ""},
		{"two callers", time.Second, []string{a, b, a, b, a}, b},
		{"two callers behind one NAT", time.Second, []string{c, d, c, d, c}, d},
		{"two callers that change their ports", time.Second, []string{a, b, c, "198.51.100.1:2", d}, "198.51.100.1:2"},
		{"a copy with an outdated pre-shared key", 15 * time.Second, []string{a, b, a, b, a}, b},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var x callers
			now := time.Now()
			for _, e := range tt.seen {
				now = now.Add(tt.gap)
				endpoint, _ := netip.ParseAddrPort(e) // invalid if it is not known
				x.observe(endpoint, now)
			}
			want, _ := netip.ParseAddrPort(tt.want)
			kit.ErrorIf(t, x.other() != want, "the other caller is %s, want %q", x.other(), tt.want)
			x.observe(x.current, now.Add(callersWindow))
			kit.ErrorIf(t, x.other().IsValid(), "the other caller is still %s when it has been gone for %s", x.other(), callersWindow)
		})
	}
}

// The last handshake is forgotten while one of two callers keeps the other from connecting, and while the only one fails to
// connect, but not while the tunnel works.
func TestTurns(t *testing.T) {
	a, b := netip.MustParseAddrPort("192.0.2.1:51840"), netip.MustParseAddrPort("198.51.100.1:51840")
	start := time.Now()
	turns := func(x *callers, down bool, until time.Duration) (n int, to netip.AddrPort) {
		for since := time.Duration(0); since < until; since += watchInterval {
			if next, isDue := x.turn(down, start.Add(since)); isDue {
				n, to = n+1, next
			}
		}
		return n, to
	}
	two := &callers{}
	for _, e := range []netip.AddrPort{a, b, a, b, a} {
		two.observe(e, start)
	}
	if n, _ := turns(two, false, time.Minute); n != 0 {
		t.Errorf("%d handshakes were forgotten while the tunnel works", n)
	}
	n, to := turns(two, true, time.Minute)
	kit.ErrorIf(t, n != 11 || to != b, "in a minute, the callers took %d turns, the last one of %s", n, to)
	for down, want := range map[bool]int{true: 5, false: 0} {
		one := &callers{}
		one.observe(b, start)
		one.observe(a, start)
		n, to := turns(one, down, time.Minute)
		kit.ErrorIf(t, n != want || to.IsValid(), "down %t: in a minute, one caller took %d turns, the last one of %s", down, n, to)
	}
}
