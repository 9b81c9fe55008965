package gateway

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// The address of a name stays while it answers, whatever name servers say.
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
	e.set([]string{"lb.example.test:51840"}, false)
	want := func(want string, wantLookups int) {
		t.Helper()
		for range 3 {
			got, err := e.current(t.Context())
			kit.ErrorIf(t, err != nil || got.String() != want, "got %v, %v, want %s", got, err, want)
		}
		kit.ErrorIf(t, lookups != wantLookups, "it was looked up %d times, want %d", lookups, wantLookups)
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
	e.set([]string{"other.example.test:51840"}, false)
	if got, err := e.current(t.Context()); !errors.Is(err, failed) {
		t.Errorf("a name that was never resolved: got %v, %v", got, err)
	}
	e.set([]string{"192.0.2.9:51840"}, false)
	want("192.0.2.9:51840", 5)
}

// The preferred endpoint is tried with increasing pauses, and immediately when the tunnel works again after an
// outage. If nothing answers, the last endpoint used is tried first.
func TestPreferredEndpoint(t *testing.T) {
	e, now, busy := newEndpoints(), time.Now(), false
	first, other := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:1")
	current := func(when string, want netip.AddrPort) {
		t.Helper()
		if got, err := e.current(t.Context()); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %s", when, got, err, want)
		}
	}
	try := func(when string, used netip.AddrPort, want bool) {
		t.Helper()
		if got, _ := e.nextAttempt(now, used, busy); got.IsValid() != want || want && got != first {
			t.Errorf("%s: %v; want one: %v", when, got, want)
		}
	}
	e.set([]string{"192.0.2.2:1", "192.0.2.1:1"}, false)
	try("none is preferred", other, false)
	e.set([]string{"192.0.2.1:1", "192.0.2.2:1"}, false)
	current("another order", other)
	e.set(e.hosts, true)
	try("nothing was sent yet", netip.AddrPort{}, false)
	try("another one is used", other, true)
	try("again immediately", other, false)
	now = now.Add(firstTryGap)
	try("WireGuard went back", other, true)
	now = now.Add(2*firstTryGap - 1)
	try("the doubled pause is not over", other, false)
	current("until it has answered", other)
	now = now.Add(1)
	try("it is", other, true)
	try("it has answered", first, false)
	current("it has answered", first)
	e.next()
	current("it stops answering", other)
	try("an outage that is not over", other, false)
	e.recovered()
	try("an outage that is", other, true)
	e.set([]string{"192.0.2.3:1", "192.0.2.2:1"}, true)
	first = netip.MustParseAddrPort("192.0.2.3:1")
	try("another node", other, true)
	e.recovered()
	busy = true
	try("nodes send packets", other, false)
	now = now.Add(busyDelay)
	try("and continue to", other, true)
	now = now.Add(busyDelay)
	try("a minute later", other, false)
	now = now.Add(busyDelay)
	try("two minutes later", other, true)
	e.set([]string{"lb.example.test:51840"}, true)
	try("a name", other, false)
}
