package gateway

import (
	"context"
	"errors"
	"net/netip"
	"testing"
)

func TestEndpointNames(t *testing.T) {
	names := map[string][]netip.Addr{
		"192.0.2.1":  {netip.MustParseAddr("192.0.2.1")},
		"lb.example": {netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")},
	}
	lookups := 0
	e := endpoints{lookup: func(_ context.Context, _, host string) ([]netip.Addr, error) {
		lookups++
		if addrs := names[host]; addrs != nil {
			return addrs, nil
		}
		return nil, errors.New("no such host")
	}}
	want := func(endpoint string) {
		t.Helper()
		got, err := e.current(t.Context())
		if endpoint == "" && err == nil || endpoint != "" && (err != nil || got != netip.MustParseAddrPort(endpoint)) {
			t.Errorf("%v, %v, want %q", got, err, endpoint)
		}
	}
	want("")
	hosts := []string{"192.0.2.1:1", "lb.example:2", "gone.example:3"}
	e.set(hosts)
	want("192.0.2.1:1")
	e.next()
	want("198.51.100.1:2")
	before := lookups
	// Its name may have other addresses meanwhile, or in another order.
	names["lb.example"] = []netip.Addr{netip.MustParseAddr("198.51.100.3"), names["lb.example"][0]}
	want("198.51.100.1:2")
	e.set(hosts)
	want("198.51.100.1:2")
	if lookups != before {
		t.Error("a name was looked up again")
	}
	e.next()
	want("")
	e.next()
	want("192.0.2.1:1")
	e.next()
	want("198.51.100.1:2") // the second one of its addresses
	e.next()
	e.next()
	e.next()
	want("198.51.100.3:2")
	e.set(hosts[1:])
	want("198.51.100.3:2") // the first one
	e.set([]string{"192.0.2.1"})
	want("")
	e.set([]string{"192.0.2.1:99999"})
	want("")
}
