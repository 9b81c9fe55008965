package overlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
)

// ipv6DefaultMetric is what the kernel makes of metric 0 in IPv6
// (IP6_RT_PRIO_USER).
const ipv6DefaultMetric = 1024

// routeKey is what the kernel tells routes of a table apart by; a route with
// the same one is replaced.
type routeKey struct {
	table  int
	dst    netip.Prefix
	metric int
}

func (r Route) key() routeKey {
	metric := r.Metric
	if metric == 0 && r.Dst.Addr().Is6() {
		metric = ipv6DefaultMetric
	}
	return routeKey{table: r.Table, dst: r.Dst, metric: metric}
}

// kernelRoute is a route of the kernel, with what of it fits into a Route.
type kernelRoute struct {
	raw   netlink.Route
	route Route
	// other says that it has properties which no route of ours has.
	other bool
}

func (r kernelRoute) ours() bool {
	return r.raw.Protocol == Protocol
}

// listTable returns the routes of one table, of both families.
func (k *Kernel) listTable(table int) ([]netlink.Route, error) {
	var out []netlink.Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := link.Dump(func() ([]netlink.Route, error) {
			return k.routes.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
		})
		switch {
		case errors.Is(err, unix.ENOENT):
			// Tables come and go with their routes.
			continue
		case family == netlink.FAMILY_V6 && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)):
			continue
		case err != nil:
			return nil, err
		}
		out = append(out, routes...)
	}
	return out, nil
}

func (a *applier) readRoutes() error {
	names := make(map[int]string, len(a.links))
	for _, l := range a.links {
		names[l.Index] = l.Name
	}
	a.routes = nil
	for _, table := range []int{Table, InboundTable} {
		routes, err := a.kernel.listTable(table)
		if err != nil {
			a.failed("list routes of table %d: %w", table, err)
			return errIncomplete
		}
		for _, raw := range routes {
			r := convert(raw, names)
			if !r.ours() {
				a.failed("foreign route in our table %d (protocol %d): %s", table, raw.Protocol, r.route)
				continue
			}
			a.routes = append(a.routes, r)
		}
	}
	return nil
}

// errIncomplete ends Apply after a failure that was already recorded.
var errIncomplete = errors.New("the rest was not applied")

func convert(raw netlink.Route, names map[int]string) kernelRoute {
	r := Route{Table: raw.Table, Src: addrFrom(raw.Src), Via: addrFrom(raw.Gw), MTU: raw.MTU, Metric: raw.Priority}
	r.Unreachable, r.Throw = raw.Type == unix.RTN_UNREACHABLE, raw.Type == unix.RTN_THROW
	if !r.Unreachable && !r.Throw {
		// IPv6 reports the loopback device for unreachable routes.
		r.Dev = names[raw.LinkIndex]
	}
	if raw.Dst != nil {
		bits, _ := raw.Dst.Mask.Size()
		r.Dst = netip.PrefixFrom(addrFrom(raw.Dst.IP), bits)
	} else {
		r.Dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if raw.Family == netlink.FAMILY_V6 {
			r.Dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	}
	other := raw.Tos != 0 || len(raw.MultiPath) > 0 || raw.Encap != nil || raw.AdvMSS != 0 || raw.MTULock ||
		(raw.Type != unix.RTN_UNICAST && raw.Type != unix.RTN_UNREACHABLE && raw.Type != unix.RTN_THROW) ||
		(r.Via.IsValid() && raw.Flags&unix.RTNH_F_ONLINK == 0)
	return kernelRoute{raw: raw, route: r, other: other}
}

func (a *applier) addRoutes() error {
	present := a.dropDuplicates()
	for _, want := range a.want.Routes {
		have, ok := present[want.key()]
		if ok && have.is(want) {
			continue
		}
		raw, err := a.toKernel(want)
		if err == nil {
			err = a.kernel.conn.Handle.RouteReplace(raw)
		}
		if err != nil {
			a.failedLink(want.Dev, fmt.Errorf("set route %s: %w", want, err))
			a.allFailed = a.allFailed || want.Dev == ""
			continue
		}
		if ok {
			a.changed("replaced", "route "+want.String(), "was "+have.route.String())
		} else {
			a.changed("added", "route "+want.String(), "")
		}
	}
	return nil
}

// dropDuplicates removes all but one of several routes of ours with the same
// key, which only somebody else can have made, and returns the others. The one
// that is wanted stays, if there is such, so that there is always a route.
func (a *applier) dropDuplicates() map[routeKey]kernelRoute {
	wanted := make(map[routeKey]Route, len(a.want.Routes))
	for _, w := range a.want.Routes {
		wanted[w.key()] = w
	}
	keep := make(map[routeKey]kernelRoute, len(a.routes))
	var rest []kernelRoute
	for _, r := range a.routes {
		key := r.route.key()
		kept, ok := keep[key]
		switch {
		case !ok:
			keep[key] = r
		case r.is(wanted[key]):
			keep[key], rest = r, append(rest, kept)
		default:
			rest = append(rest, r)
		}
	}
	for _, r := range rest {
		a.removeRoute(r)
	}
	a.routes = a.routes[:0]
	for _, r := range keep {
		a.routes = append(a.routes, r)
	}
	return keep
}

func (r kernelRoute) is(want Route) bool {
	return !r.other && sameRoute(want, r.route)
}

// sameRoute compares but for the key.
func sameRoute(want, have Route) bool {
	want.Metric, have.Metric = 0, 0
	return want == have
}

func (a *applier) toKernel(r Route) (*netlink.Route, error) {
	raw := &netlink.Route{
		Table: r.Table, Protocol: Protocol, Priority: r.Metric, Type: unix.RTN_UNICAST,
		Dst: &net.IPNet{IP: r.Dst.Addr().AsSlice(), Mask: net.CIDRMask(r.Dst.Bits(), r.Dst.Addr().BitLen())},
	}
	switch {
	case r.Unreachable:
		raw.Type = unix.RTN_UNREACHABLE
		return raw, nil
	case r.Throw:
		raw.Type = unix.RTN_THROW
		return raw, nil
	}
	l := a.links[r.Dev]
	if l == nil {
		return nil, errors.New("there is no such device")
	}
	raw.LinkIndex, raw.MTU = l.Index, r.MTU
	if r.Src.IsValid() {
		raw.Src = r.Src.AsSlice()
	}
	if r.Via.IsValid() {
		raw.Gw, raw.Flags = r.Via.AsSlice(), unix.RTNH_F_ONLINK
	} else if r.Dst.Addr().Is4() {
		raw.Scope = netlink.SCOPE_LINK
	}
	return raw, nil
}

func (a *applier) removeRoutes() error {
	wanted := make(map[routeKey]bool, len(a.want.Routes))
	for _, w := range a.want.Routes {
		wanted[w.key()] = true
	}
	for _, have := range a.routes {
		if !wanted[have.route.key()] {
			a.removeRoute(have)
		}
	}
	return nil
}

func (a *applier) removeRoute(r kernelRoute) {
	raw := r.raw
	// The kernel reports the state of a next hop by flags that it does not
	// accept.
	raw.Flags &= unix.RTNH_F_ONLINK
	if err := a.kernel.conn.Handle.RouteDel(&raw); err != nil && !errors.Is(err, unix.ESRCH) {
		a.failed("remove route %s: %w", r.route, err)
		a.removalFailed = true
		return
	}
	a.changed("removed", "route "+r.route.String(), "")
}
