package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// endpoints are the places where the server may be reached, tried in turn.
type endpoints struct {
	hosts []string
	index int
}

// set takes over the list and keeps the place in it.
func (e *endpoints) set(hosts []string) {
	if !slices.Equal(e.hosts, hosts) {
		e.hosts, e.index = hosts, 0
	}
}

// next goes to the next one.
func (e *endpoints) next() { e.index++ }

// current resolves the one that is to be tried now.
func (e *endpoints) current(ctx context.Context) (netip.AddrPort, error) {
	if len(e.hosts) == 0 {
		return netip.AddrPort{}, errors.New("no endpoint of the peer's gateway is known yet")
	}
	endpoint := e.hosts[e.index%len(e.hosts)]
	host, service, err := net.SplitHostPort(endpoint)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	return netip.AddrPortFrom(addrs[0].Unmap(), uint16(port)), nil
}
