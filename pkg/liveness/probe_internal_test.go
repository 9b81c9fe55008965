package liveness

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liqonet/liqonet/test/kit"
)

// A peer that no longer answers is probed often for a minute, and then less and less often, down to the usual interval,
// until an event makes a reply likely.
func TestProbesOfADeadPeerSlowDown(t *testing.T) {
	for name, answered := range map[string]int{"never answered": 0, "answered once": 1, "answered before": ProbeWindow + 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const interval = 5 * time.Second
				p := NewProber(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:6098"), interval)
				for range answered {
					p.answered(p.record(time.Now()), time.Now(), 0)
				}
				p.record(time.Now())
				for range 2 {
					sent := map[time.Duration]int{}
					last := time.Duration(0)
					for start := time.Now(); time.Since(start) < 10*time.Minute; {
						pause := p.snapshot(time.Now()).Pause
						if at := time.Since(start); at > time.Second && (pause < last || at < 59*time.Second && pause != fastInterval) {
							t.Fatalf("after %v it waits for %v, before for %v", at, pause, last)
						}
						last = pause
						time.Sleep(time.Until(p.nextAt()))
						p.record(time.Now())
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
					p.ExpectReply()
				}
			})
		})
	}
}

// A requested probe is due immediately, and only once.
func TestProbeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProber(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:6098"), 5*time.Second)
		for range ProbeWindow + 1 {
			p.answered(p.record(time.Now()), time.Now(), 0)
		}
		for _, wanted := range []bool{false, true, false} {
			if wanted {
				p.Probe()
			}
			if due := !p.nextAt().After(time.Now()); due != wanted {
				t.Errorf("wanted: %v, due: %v", wanted, due)
			}
			p.answered(p.record(time.Now()), time.Now(), 0)
		}
	})
}

// Each probe is either answered or lost, and counts once, after a second. Those before the path worked do not count.
func TestProbesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProber(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:6098"), 5*time.Second)
		var answered []time.Duration
		lost := 0
		p.Answered = func(d time.Duration) { answered = append(answered, d) }
		p.Lost = func() { lost++ }
		answer := func(sequence uint32, after time.Duration) {
			time.Sleep(after)
			p.answered(sequence, time.Now(), 0)
		}
		for range 2 * len(p.window) { // no peer
			p.record(time.Now())
			time.Sleep(ProbeTimeout)
		}
		answer(p.record(time.Now()), time.Millisecond) // the first reply, which may have waited for a handshake
		answer(p.record(time.Now()), 20*time.Millisecond)
		p.record(time.Now()) // lost
		overtaken := p.record(time.Now())
		answer(p.record(time.Now()), 30*time.Millisecond)
		answer(overtaken, 10*time.Millisecond)
		late := p.record(time.Now())
		answer(late, ProbeTimeout)
		answer(late, 0) // a duplicate
		p.record(time.Now())
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

func TestSnapshot(t *testing.T) {
	p := NewProber(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:6098"), time.Second)
	start := time.Now()
	if s := p.snapshot(start); s != (ProbeStats{Pause: fastInterval}) {
		t.Errorf("before the first probe: %+v", s)
	}
	// Twelve probes, 100 ms apart. Every third one is not answered.
	at := func(i int) time.Time { return start.Add(time.Duration(i) * 100 * time.Millisecond) }
	for i := range 12 {
		n := p.record(at(i))
		if i%3 != 0 {
			p.answered(n, at(i).Add(time.Duration(i+1)*time.Millisecond), 1440)
			// A duplicate does not count.
			p.answered(n, at(i).Add(time.Hour), 1440)
		}
	}
	s := p.snapshot(at(100))
	want := ProbeStats{
		Window: 10, Loss: 0.3, Median: 8 * time.Millisecond, Jitter: 1500 * time.Microsecond, LastReply: at(11).Add(12 * time.Millisecond), RemoteMTU: 1440, Pause: s.Pause,
	}
	kit.ErrorIf(t, s != want, "got %+v", s)
	// A probe in flight is neither lost nor answered.
	p.record(at(100))
	if got := p.snapshot(at(101)); got.Loss != 0.3 || got.Unanswered != 1 {
		t.Errorf("a probe in flight counts: %+v", got)
	}
	if got := p.snapshot(at(200)); got.Loss <= 0.3 {
		t.Errorf("a lost probe does not count: %+v", got)
	}
}

// At the shortest interval, lost probes keep counting as lost.
func TestSnapshotOfLoss(t *testing.T) {
	p := NewProber(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:6098"), MinProbeInterval-1)
	kit.ErrorIf(t, p.interval != MinProbeInterval, "the interval is %s", p.interval)
	now := time.Now()
	for range 1000 {
		now = now.Add(MinProbeInterval)
		p.record(now)
	}
	if s := p.snapshot(now); s.Window != ProbeWindow || s.Loss != 1 {
		t.Errorf("all were lost: %+v", s)
	}
}

// A probe that is not answered in time is soon followed by others, until one is answered.
func TestHurry(t *testing.T) {
	const interval = 1500 * time.Millisecond
	p := NewProber(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:6098"), interval)
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	want := func(what string, ms int, unanswered uint32) {
		t.Helper()
		if got := p.nextAt().Sub(start); got != at(ms).Sub(start) {
			t.Errorf("%s: the next probe is due after %s, want %d ms", what, got, ms)
		}
		if got := p.snapshot(at(ms)).Unanswered; got != unanswered {
			t.Errorf("%s: %d are unanswered, want %d", what, got, unanswered)
		}
	}
	first := p.record(at(0))
	want("never answered", 100, 1)
	p.answered(first, at(10), 1440)
	want("answered for the first time", 100, 0)
	for range ProbeWindow {
		p.answered(p.record(at(0)), at(10), 1440)
	}
	want("answered", 1500, 0)
	second := p.record(at(1500))
	want("in flight", 1800, 1)
	p.record(at(1800))
	want("late", 1900, 2)
	fourth := p.record(at(1900))
	want("late again", 2000, 3)
	// A reply is now late after twice the time that this one took.
	p.answered(second, at(2000), 1440)
	want("a slow answer", 1800+1000, 2)
	p.answered(fourth, at(2010), 1440)
	want("answered, with one lost", 1900+1500, 0)
	// No more replies: even forgotten probes count as late.
	for i := range 2 * len(p.window) {
		p.record(at(3400 + 100*i))
	}
	want("all lost", 3400+100*2*len(p.window), uint32(2*len(p.window)))
}
