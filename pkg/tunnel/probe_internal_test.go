package tunnel

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// A peer that does not answer any more is asked often for a minute, and then less and less,
// down to the usual interval; until something happens that makes an answer likely.
func TestDefect1_08_ProbesOfADeadPeerSlowDown(t *testing.T) {
	for name, answered := range map[string]int{"never answered": 0, "answered once": 1, "answered before": ProbeWindow + 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const interval = 5 * time.Second
				p := NewProber(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:6095"), interval)
				for range answered {
					p.answered(p.mark(time.Now()), time.Now(), 0)
				}
				p.mark(time.Now())
				for range 2 {
					sent := map[time.Duration]int{}
					last := time.Duration(0)
					for start := time.Now(); time.Since(start) < 10*time.Minute; {
						pause := p.snapshot(time.Now()).Pause
						if at := time.Since(start); at > time.Second && (pause < last || at < 59*time.Second && pause != hurryInterval) {
							t.Fatalf("after %v it waits for %v, before for %v", at, pause, last)
						}
						last = pause
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
					p.Hurry()
				}
			})
		})
	}
}

// A probe that somebody wants is due at once, and once only.
func TestProbeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProber(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:6095"), 5*time.Second)
		for range ProbeWindow + 1 {
			p.answered(p.mark(time.Now()), time.Now(), 0)
		}
		for _, wanted := range []bool{false, true, false} {
			if wanted {
				p.Probe()
			}
			if due := !p.due().After(time.Now()); due != wanted {
				t.Errorf("wanted: %v, due: %v", wanted, due)
			}
			p.answered(p.mark(time.Now()), time.Now(), 0)
		}
	})
}
