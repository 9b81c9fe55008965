package tunnel

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// A peer that does not answer any more is asked often for a minute, and then as often as
// was set.
func TestDefect1_08_ProbesOfADeadPeerSlowDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = 5 * time.Second
		p, err := NewProber(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:6095"), interval)
		if err != nil {
			t.Fatal(err)
		}
		p.answered(p.mark(time.Now()), time.Now(), 0)
		sent := map[time.Duration]int{}
		for start := time.Now(); time.Since(start) < 10*time.Minute; {
			time.Sleep(time.Until(p.due()))
			p.mark(time.Now())
			sent[time.Since(start).Truncate(time.Minute)]++
		}
		if n := sent[0]; n < 300 {
			t.Errorf("%d probes in the first minute", n)
		}
		for at := 2 * time.Minute; at < 10*time.Minute; at += time.Minute {
			if n := sent[at]; n > int(time.Minute/interval)+1 {
				t.Errorf("%d probes in minute %v", n, at)
			}
		}
	})
}
