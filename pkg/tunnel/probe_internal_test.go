package tunnel

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A peer that no longer answers is probed often for a minute, and then less and less often, down to the usual interval,
// until an event makes a reply likely.
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

// A requested probe is due immediately, and only once.
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

// Each probe is either answered or lost, and counts once, after a second. Those before the path worked do not count.
func TestProbesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProber(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:6095"), 5*time.Second)
		var answered []time.Duration
		lost := 0
		p.Answered = func(d time.Duration) { answered = append(answered, d) }
		p.Lost = func() { lost++ }
		answer := func(sequence uint64, after time.Duration) {
			time.Sleep(after)
			p.answered(sequence, time.Now(), 0)
		}
		for range 2 * len(p.window) { // no peer
			p.mark(time.Now())
			time.Sleep(ProbeTimeout)
		}
		answer(p.mark(time.Now()), time.Millisecond) // the first reply, which may have waited for a handshake
		answer(p.mark(time.Now()), 20*time.Millisecond)
		p.mark(time.Now()) // lost
		overtaken := p.mark(time.Now())
		answer(p.mark(time.Now()), 30*time.Millisecond)
		answer(overtaken, 10*time.Millisecond)
		late := p.mark(time.Now())
		answer(late, ProbeTimeout)
		answer(late, 0) // a duplicate
		p.mark(time.Now())
		p.Snapshot() // the last one is in flight
		want := []time.Duration{20 * time.Millisecond, 30 * time.Millisecond, 40 * time.Millisecond}
		if diff := cmp.Diff(want, answered); diff != "" || lost != 2 {
			t.Errorf("%d probes were lost, want 2; answered: %s", lost, diff)
		}
		time.Sleep(ProbeTimeout)
		if p.Snapshot(); lost != 3 {
			t.Errorf("%d probes were lost in the end, want 3", lost)
		}
	})
}
