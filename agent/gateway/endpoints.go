package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// lookupTimeout bounds how long a name server keeps the agent waiting.
const lookupTimeout = 3 * time.Second

// endpoints are the places where the server may be reached, tried in turn.
type endpoints struct {
	hosts []string
	// index counts what was tried.
	index int
	// resolved is what is tried now, once its name was looked up. It stays until the
	// next one is tried: the name of a load balancer has its addresses in another
	// order every time, and a tunnel that works stays where it is.
	resolved netip.AddrPort
	// lookup is that of a net.Resolver, the default one if it is nil.
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// set takes over the list and keeps the place in it.
func (e *endpoints) set(hosts []string) {
	if !slices.Equal(e.hosts, hosts) {
		e.hosts, e.index, e.resolved = hosts, 0, netip.AddrPort{}
	}
}

// next goes to the next one.
func (e *endpoints) next() { e.index, e.resolved = e.index+1, netip.AddrPort{} }

// current resolves the one that is to be tried now. A name's addresses are tried in
// turn as well, one in each round.
func (e *endpoints) current(ctx context.Context) (netip.AddrPort, error) {
	if len(e.hosts) == 0 {
		return netip.AddrPort{}, errors.New("no endpoint of the peer's gateway is known yet")
	}
	if e.resolved.IsValid() {
		return e.resolved, nil
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
	lookup := e.lookup
	if lookup == nil {
		lookup = net.DefaultResolver.LookupNetIP
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := lookup(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	addr := addrs[e.index/len(e.hosts)%len(addrs)]
	e.resolved = netip.AddrPortFrom(addr.Unmap(), uint16(port))
	return e.resolved, nil
}
