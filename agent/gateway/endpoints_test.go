package gateway

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// What a name leads to stays as long as it answers, whatever name servers say.
func TestEndpointByName(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.1")}
	lookups := 0
	var failed error
	e := newEndpoints()
	e.lookup = func(context.Context, string, string) ([]netip.Addr, error) {
		lookups++
		slices.Reverse(addrs) // as name servers do, each time
		return slices.Clone(addrs), failed
	}
	e.set([]string{"lb.example.test:51840"})
	want := func(want string, wantLookups int) {
		t.Helper()
		for range 3 {
			got, err := e.current(t.Context())
			if err != nil || got.String() != want {
				t.Errorf("got %v, %v, want %s", got, err, want)
			}
		}
		if lookups != wantLookups {
			t.Errorf("it was looked up %d times, want %d", lookups, wantLookups)
		}
	}
	want("192.0.2.1:51840", 1)
	e.next() // it did not answer
	want("192.0.2.2:51840", 2)
	e.next()
	want("192.0.2.1:51840", 3)
	failed = errors.New("no name server answers")
	want("192.0.2.1:51840", 3)
	e.next()
	want("192.0.2.1:51840", 4)
	e.set([]string{"other.example.test:51840"})
	if got, err := e.current(t.Context()); !errors.Is(err, failed) {
		t.Errorf("a name that was never resolved: got %v, %v", got, err)
	}
	e.set([]string{"192.0.2.9:51840"})
	want("192.0.2.9:51840", 5)
}

// Where no endpoint answered, the preferred one is tried again as soon as one does. Packets that are sent elsewhere
// are led back, less and less often.
func TestPreferredEndpointAfterAnOutage(t *testing.T) {
	for _, tt := range []struct {
		name   string
		failed int
		want   string
	}{
		{"the preferred one did not answer, the other one does", 1, "192.0.2.2:1"},
		{"none answered", 3, "192.0.2.1:1"},
		{"none answered, and then the preferred one", 4, "192.0.2.1:1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, now := newEndpoints(), time.Now()
			e.set([]string{"192.0.2.1:1", "192.0.2.2:1"})
			e.prefer(now)
			for range tt.failed {
				e.next()
				e.prefer(now)
			}
			e.answered(now)
			e.prefer(now)
			if got, err := e.current(t.Context()); err != nil || got.String() != tt.want {
				t.Errorf("%v, %v", got, err)
			}
			// If it does not answer now, it is to blame.
			e.next()
			e.answered(now)
			e.prefer(now.Add(firstPreferGap - 1))
			if got, err := e.current(t.Context()); err != nil || got.String() == tt.want && tt.failed == 3 {
				t.Errorf("%v, %v: tried again at once", got, err)
			}
		})
	}
	e, now := newEndpoints(), time.Now()
	e.set([]string{"192.0.2.1:1", "192.0.2.2:1"})
	wanted, other := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.9:9")
	if e.strayed(now, other, wanted) {
		t.Error("none is preferred")
	}
	e.prefer(now)
	for i, step := range []struct {
		after time.Duration
		used  netip.AddrPort
		want  bool
	}{
		{0, wanted, false},
		{0, netip.AddrPort{}, false},
		{0, other, true},
		{firstStrayGap - 1, other, false},
		{1, other, true},
		{firstStrayGap, other, false},
		{firstStrayGap, other, true},
	} {
		if now = now.Add(step.after); e.strayed(now, step.used, wanted) != step.want {
			t.Errorf("step %d: want %v", i, step.want)
		}
	}
}

// The first endpoint is tried when it is a new one, and not again if it has not answered.
func TestPreferredEndpoint(t *testing.T) {
	e := newEndpoints()
	check := func(when, want string) {
		t.Helper()
		if got, err := e.current(t.Context()); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v; want %s", when, got, err, want)
		}
	}
	e.set([]string{"192.0.2.1:1", "192.0.2.2:1"})
	check("at first", "192.0.2.1:1")
	e.set([]string{"192.0.2.2:1", "192.0.2.1:1"})
	check("another order", "192.0.2.1:1")
	now := time.Now()
	e.prefer(now)
	check("the first is preferred", "192.0.2.2:1")
	e.next()
	e.prefer(now.Add(firstPreferGap - 1))
	check("it does not answer", "192.0.2.1:1")
	now = now.Add(firstPreferGap)
	e.prefer(now)
	check("once more", "192.0.2.2:1")
	e.next()
	e.prefer(now.Add(2*firstPreferGap - 1))
	check("it does not answer again", "192.0.2.1:1")
	e.set([]string{"192.0.2.3:1", "192.0.2.2:1"})
	e.prefer(now)
	check("another first", "192.0.2.3:1")
}
