package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// lookupTimeout is how long a name server may take, while everything else waits.
const lookupTimeout = 2 * time.Second

// endpoints are the places where the server may be reached, tried in turn.
//
// A name is resolved when it is first used, and when the place that it led to has
// not answered. In between its address stays. Name servers give a load balancer's
// addresses in another order each time. A name server that does not answer is no reason to
// leave a place that does.
type endpoints struct {
	// hosts are all of them as they were set, queue the same in the order in which they
	// are tried. Its first one is the current one.
	hosts, queue []string
	// known are the addresses that names have led to; stale says that the current
	// one has not answered since.
	known map[string]netip.Addr
	stale bool
	// preferred is the one that was preferred last, preferAt when it is again, after preferGap.
	preferred string
	preferAt  time.Time
	preferGap time.Duration
	// tried is how many have not answered since one did.
	tried int
	// strayAt is when packets are led back next that are sent elsewhere, and strayGap the last pause.
	strayAt  time.Time
	strayGap time.Duration
	// lookup resolves a name.
	lookup func(ctx context.Context, network, name string) ([]netip.Addr, error)
}

func newEndpoints() endpoints {
	return endpoints{known: map[string]netip.Addr{}, lookup: net.DefaultResolver.LookupNetIP}
}

// set takes over the list. The current one stays if it is in it, as long as it answers;
// after that a new list is tried from its beginning.
func (e *endpoints) set(hosts []string) {
	if slices.Equal(e.hosts, hosts) {
		return
	}
	before := e.queue
	e.hosts, e.queue = hosts, slices.Clone(hosts)
	if len(before) == 0 {
		return
	}
	if i := slices.Index(hosts, before[0]); i > 0 {
		e.queue = slices.Insert(slices.Delete(e.queue, i, i+1), 0, before[0])
	}
}

const (
	// firstPreferGap is the first pause before an endpoint is preferred again that has not answered.
	firstPreferGap = 15 * time.Second
	// firstStrayGap is the first pause before packets are led back again that are sent elsewhere.
	firstStrayGap = time.Second
	// lastPreferGap is the last one of both.
	lastPreferGap = 10 * time.Minute
)

// prefer has the first one tried now, if it is another one than at the last call. While another one
// is in use it is tried again, less and less often: it may only have been slow.
func (e *endpoints) prefer(now time.Time) {
	switch {
	case len(e.hosts) == 0:
		return
	case e.hosts[0] != e.preferred:
		e.preferred, e.preferGap = e.hosts[0], firstPreferGap
		e.strayAt, e.strayGap = time.Time{}, 0
	case e.queue[0] == e.preferred || now.Before(e.preferAt):
		return
	default:
		e.preferGap = min(2*e.preferGap, lastPreferGap)
	}
	e.preferAt, e.queue = now.Add(e.preferGap), slices.Clone(e.hosts)
}

// strayed says that packets are to be led back to the endpoint that is wanted, which is the preferred one:
// they are sent to another one. WireGuard sends to where the peer's last packet came from. That may be one
// that was on its way when the endpoint was changed. A peer may as well send from another address than
// it is called at, so the pauses grow.
func (e *endpoints) strayed(now time.Time, used, want netip.AddrPort) bool {
	if !used.IsValid() || used == want || len(e.queue) == 0 || e.queue[0] != e.preferred || now.Before(e.strayAt) {
		return false
	}
	e.strayGap = min(max(2*e.strayGap, firstStrayGap), lastPreferGap)
	e.strayAt = now.Add(e.strayGap)
	return true
}

// answered says that the current one answers, after others have not. If none did, the preferred one is not to blame:
// it is tried again at once, before nodes come back to this plane. It returns whether that is so.
func (e *endpoints) answered(now time.Time) bool {
	all := e.tried >= len(e.hosts)
	e.tried = 0
	if !all || len(e.queue) == 0 || e.preferred == "" || e.queue[0] == e.preferred {
		return false
	}
	e.preferAt, e.preferGap = now, firstPreferGap/2
	return true
}

// next goes to the next one.
func (e *endpoints) next() {
	e.stale = true
	e.tried++
	if len(e.queue) > 0 {
		e.queue = append(e.queue[1:], e.queue[0])
	}
}

// current is the one that is to be tried now.
func (e *endpoints) current(ctx context.Context) (netip.AddrPort, error) {
	if len(e.queue) == 0 {
		return netip.AddrPort{}, errors.New("no endpoint of the peer's gateway is known yet")
	}
	endpoint := e.queue[0]
	host, port, err := v1alpha1.SplitEndpoint(endpoint)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		addr, err = e.resolve(ctx, host)
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	return netip.AddrPortFrom(addr.Unmap(), port), nil
}

// resolve finds the address of a name. After one that has not answered comes the
// next one of the name's, in the order of numbers.
func (e *endpoints) resolve(ctx context.Context, name string) (netip.Addr, error) {
	before, known := e.known[name]
	if known && !e.stale {
		return before, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := e.lookup(ctx, "ip", name)
	e.stale = false
	if err != nil || len(addrs) == 0 {
		if known {
			return before, nil // better than none
		}
		return netip.Addr{}, cmp.Or(err, errors.New("it has no address"))
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	addr := addrs[0]
	if i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return known && a.Compare(before) > 0 }); i >= 0 {
		addr = addrs[i]
	}
	e.known[name] = addr
	return addr, nil
}
