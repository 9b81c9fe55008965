// Package overlay maintains the links between the nodes and gateways of one cluster, with their routes and policy
// rules. It works in the network namespace of the calling thread.
//
// [Kernel.Apply] compares a [State] with the kernel, and changes only the differences. It identifies our objects in the
// kernel:
//
//   - links by name prefix and alias;
//   - routes by protocol and table;
//   - rules by priority, protocol and table.
//
// So a new process repairs and removes the objects that an old one created, and no others.
//
// Out of scope: tunnels between clusters (package tunnel), packet filters and translation (package nat), and
// determining the State.
package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/samber/lo"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/wire"
)

// Kernel is the network namespace in which it was opened. Its methods may be called from any thread, but Apply and
// Purge not concurrently.
type Kernel struct {
	conn *link.Conn
	// routes has strict checking enabled, so that the kernel itself filters dumps by table: a node may have many routes
	// that are not ours.
	routes *netlink.Handle
}

// New opens the calling thread's network namespace.
func New() (*Kernel, error) {
	conn, err := link.Open()
	if err != nil {
		return nil, err
	}
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	// If this fails (kernels before 4.20), the library filters.
	_ = routes.SetStrictCheck(true)
	return &Kernel{conn: conn, routes: routes}, nil
}

// Close closes the connections to the kernel, and changes nothing in it.
func (k *Kernel) Close() {
	k.routes.Close()
	k.conn.Close()
}

// Apply makes the kernel match want. It first adds and repairs links, then routes, then rules. Then it removes unwanted
// objects of ours, in reverse order. If there are no differences, it writes nothing.
//
// It reports conflicting objects of others, and leaves them alone: an interface with a wanted name, and routes or rules
// of another protocol in our tables. It applies the rest in any case, also if the kernel refuses something. The error
// is a [PartialError] if only some links are affected. Apply always returns descriptions of the changes that it made,
// such as "changed link loq1-0: mtu 1400, up".
func (k *Kernel) Apply(ctx context.Context, want State) (changes []string, err error) {
	a := &applier{kernel: k, want: want}
	a.index()
	for _, step := range []struct {
		read  func() error
		write func()
	}{
		{a.readLinks, a.addLinks},
		{a.readRoutes, a.addRoutes},
		{a.readRules, a.addRules},
		{ctx.Err, a.removeRules},
		{ctx.Err, a.removeRoutes},
		{ctx.Err, a.removeLinks},
	} {
		err := ctx.Err()
		if err == nil {
			err = step.read()
		}
		if err != nil {
			// The next steps depend on this one.
			return a.changes, errors.Join(append(a.failedLinks.errs, err)...)
		}
		step.write()
	}
	return a.changes, a.err()
}

// Supports reports whether this kernel supports a kind of links, including kinds that the overlay does not use. It may
// load the kernel's module for it.
func (k *Kernel) Supports(kind Kind) (bool, error) {
	return k.conn.Supports(string(kind))
}

// index indexes the wanted links and routes. Of two that the kernel cannot hold at the same time, it takes the first.
// The second may come from one node or peer, and must not affect the others.
func (a *applier) index() {
	name := func(l Link) string { return l.Name }
	links, routes := a.want.Links, a.want.Routes
	a.want.Links, a.want.Routes = lo.UniqBy(links, name), lo.UniqBy(routes, Route.key)
	a.wantedLinks, a.wantedRoutes = lo.KeyBy(a.want.Links, name), lo.KeyBy(a.want.Routes, Route.key)
	for _, l := range lo.FindDuplicatesBy(links, name) {
		a.failLink(l.Name, fmt.Errorf("link %s is wanted twice", l.Name))
	}
	for _, r := range routes {
		if first := a.wantedRoutes[r.key()]; !first.equal(r) {
			a.failLink(r.Dev, fmt.Errorf("route %s: there is %s already", r, first))
		}
	}
}

// routeKey distinguishes routes of a table in the kernel. A route with the same key is replaced.
type routeKey struct {
	table  int
	dst    netip.Prefix
	metric int
}

func (r Route) key() routeKey { return routeKey{table: r.Table, dst: r.Dst, metric: r.Metric} }

// kernelRoute is a route in the kernel, and its properties that a Route has.
type kernelRoute struct {
	// raw is nil if the route is as wanted, because there may be very many.
	raw   *netlink.Route
	route Route
}

// listRoutes returns the result of convert for the routes of both families that pass a filter.
func listRoutes[T any](k *Kernel, filter netlink.Route, mask uint64, convert func(netlink.Route) (T, bool)) (out []T, err error) {
	for _, family := range families {
		routes, err := link.Dump(func() (taken []T, err error) {
			err = k.routes.RouteListFilteredIter(family, &filter, mask, func(r netlink.Route) bool {
				if t, ok := convert(r); ok {
					taken = append(taken, t)
				}
				return true
			})
			return taken, err
		})
		// Tables exist only while they have routes.
		if err != nil && !errors.Is(err, unix.ENOENT) && !isMissingFamily(family, err) {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		out = append(out, routes...)
	}
	return out, nil
}

var families = [...]int{netlink.FAMILY_V4, netlink.FAMILY_V6}

// isMissingFamily reports whether an error means that the kernel has no IPv6.
func isMissingFamily(family int, err error) bool {
	return family == netlink.FAMILY_V6 && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP))
}

// readRoutes reads our tables. Of several routes with the same key, one stays: the wanted one if present, so that there
// is always a route. Only others can have created several.
func (a *applier) readRoutes() error {
	names := lo.MapEntries(a.links, func(name string, l *link.State) (int, string) { return l.Index, name })
	a.routes = map[routeKey]kernelRoute{}
	for _, table := range []int{Table, InboundTable} {
		routes, err := listRoutes(a.kernel, netlink.Route{Table: table}, netlink.RT_FILTER_TABLE, func(raw netlink.Route) (kernelRoute, bool) {
			route, isForeign := convert(raw, names)
			r := kernelRoute{route: route}
			if want, ok := a.wantedRoutes[route.key()]; raw.Protocol != Protocol || isForeign || !ok || !want.equal(route) {
				r.raw = new(raw) // a copy, so that the others are not kept
			}
			return r, true
		})
		if err != nil {
			return err
		}
		for _, r := range routes {
			key := r.route.key()
			switch other, ok := a.routes[key]; {
			case r.raw != nil && r.raw.Protocol != Protocol:
				a.fail("foreign route in our table %d (protocol %d): %s", table, r.raw.Protocol, r.route)
			case !ok:
				a.routes[key] = r
			case r.raw == nil:
				a.routes[key] = r
				a.surplus = append(a.surplus, other)
			default:
				a.surplus = append(a.surplus, r)
			}
		}
	}
	return nil
}

// convert also reports whether the route has properties that none of our routes has.
func convert(raw netlink.Route, names map[int]string) (r Route, isForeign bool) {
	r = Route{
		Table: raw.Table, Unreachable: raw.Type == unix.RTN_UNREACHABLE, Dev: names[raw.LinkIndex],
		Src: addrFrom(raw.Src), Via: addrFrom(raw.Gw), MTU: raw.MTU, Metric: raw.Priority,
	}
	r.Dst, _ = netipx.FromStdIPNet(raw.Dst)
	isForeign = raw.Tos != 0 || raw.Encap != nil || raw.AdvMSS != 0 || raw.MTULock ||
		(raw.Type != unix.RTN_UNICAST && raw.Type != unix.RTN_UNREACHABLE) ||
		(r.Via.IsValid() && raw.Flags&unix.RTNH_F_ONLINK == 0)
	for _, h := range raw.MultiPath {
		r.Hops = append(r.Hops, Hop{names[h.LinkIndex], addrFrom(h.Gw)})
		// A hop whose link was down stays dead until the link is up again, or the route is replaced.
		isForeign = isForeign || h.Hops != 0 || h.Encap != nil || h.Flags&(unix.RTNH_F_ONLINK|unix.RTNH_F_DEAD) != unix.RTNH_F_ONLINK
	}
	return r, isForeign
}

func (a *applier) addRoutes() {
	for _, r := range a.surplus {
		a.removeRoute(r)
	}
	for _, want := range a.want.Routes {
		have, ok := a.routes[want.key()]
		switch {
		case ok && have.raw == nil || !a.setRoute(want):
		case ok:
			a.changed("replaced route %s: was %s", want, have.route)
		default:
			a.changed("added route %s", want)
		}
	}
}

// setRoute sets a route, and reports whether it succeeded. A kernel may refuse a route over several links, without
// CONFIG_IP_ROUTE_MULTIPATH or while a link is missing. Then packets use only one of the links.
func (a *applier) setRoute(want Route) bool {
	err := a.kernel.replace(want, a.indexOf)
	if err == nil {
		return true
	}
	err = fmt.Errorf("set route %s: %w", want, err)
	for _, h := range want.Hops {
		one := want
		one.Hops, one.Dev, one.Via = nil, h.Dev, h.Via
		if a.kernel.replace(one, a.indexOf) == nil {
			a.fail("%w: by %s only", err, h.Dev)
			return false
		}
	}
	for _, h := range want.hops() {
		a.failLink(h.Dev, err)
	}
	a.allFailed = a.allFailed || want.Unreachable
	return false
}

// indexOf returns the index of an interface.
func (a *applier) indexOf(dev string) (int, error) {
	if l := a.links[dev]; l != nil {
		return l.Index, nil
	}
	return 0, errors.New("there is no such device")
}

// replace sets a route. index returns the index of the interface with a name.
func (k *Kernel) replace(r Route, index func(dev string) (int, error)) error {
	raw := &netlink.Route{
		Table: r.Table, Protocol: Protocol, Priority: r.Metric, Type: unix.RTN_UNREACHABLE,
		Dst: netipx.PrefixIPNet(r.Dst),
	}
	if !r.Unreachable {
		raw.Type, raw.MTU, raw.Src = unix.RTN_UNICAST, r.MTU, r.Src.AsSlice()
		for _, h := range r.hops() {
			link, err := index(h.Dev)
			if err != nil {
				return err
			}
			hop := &netlink.NexthopInfo{LinkIndex: link}
			if h.Via.IsValid() {
				hop.Gw, hop.Flags = h.Via.AsSlice(), unix.RTNH_F_ONLINK
			} else {
				raw.Scope = netlink.SCOPE_LINK
			}
			raw.MultiPath = append(raw.MultiPath, hop)
		}
		if hop := raw.MultiPath[0]; len(raw.MultiPath) == 1 {
			raw.LinkIndex, raw.Gw, raw.Flags, raw.MultiPath = hop.LinkIndex, hop.Gw, hop.Flags, nil
		}
	}
	return k.conn.Handle.RouteReplace(raw)
}

// ReplaceRoutes replaces the routes with the same prefixes and metrics. It is faster than Apply, whose wanted State has
// to contain the same routes from then on.
func (k *Kernel) ReplaceRoutes(routes []Route) error {
	indexes := map[string]int{} // many routes have the same few interfaces
	index := func(name string) (int, error) {
		if _, known := indexes[name]; !known {
			dev, err := k.link(name)
			if err != nil {
				return 0, err
			}
			indexes[name] = dev.Index
		}
		return indexes[name], nil
	}
	for _, r := range routes {
		if err := k.replace(r, index); err != nil {
			return fmt.Errorf("set route %s: %w", r, err)
		}
	}
	return nil
}

func (k *Kernel) link(name string) (*netlink.LinkAttrs, error) {
	dev, err := k.conn.Handle.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", name, err)
	}
	return dev.Attrs(), nil
}

// Traffic counts the bytes and packets that have passed one of our links since it was created.
type Traffic struct{ ReceivedBytes, SentBytes, ReceivedPackets, SentPackets uint64 }

// Traffic returns the counts of a link.
func (k *Kernel) Traffic(name string) (Traffic, error) {
	dev, err := k.link(name)
	if err != nil {
		return Traffic{}, err
	}
	s := dev.Statistics
	return Traffic{s.RxBytes, s.TxBytes, s.RxPackets, s.TxPackets}, nil
}

// Received returns how many packets have arrived on one of our links.
func (k *Kernel) Received(name string) (uint64, error) {
	t, err := k.Traffic(name)
	return t.ReceivedPackets, err
}

func (a *applier) removeRoutes() {
	for key, have := range a.routes {
		if _, wanted := a.wantedRoutes[key]; !wanted {
			a.removeRoute(have)
		}
	}
}

func (a *applier) removeRoute(r kernelRoute) {
	raw := *r.raw
	// The kernel reports the state of a next hop in flags that it does not accept.
	raw.Flags &= unix.RTNH_F_ONLINK
	a.removed(link.IgnoreError(a.kernel.conn.Handle.RouteDel(&raw), unix.ESRCH), "route %s", r.route)
}

func (a *applier) readRules() error {
	for _, family := range families {
		rules, err := link.Dump(func() ([]netlink.Rule, error) { return a.kernel.conn.Handle.RuleList(family) })
		if err != nil && !isMissingFamily(family, err) {
			return fmt.Errorf("list rules: %w", err)
		}
		for _, r := range rules {
			// The rules before and after ours have no table.
			adjacent := r.Table == 0 && (r.Priority == RulePriority-1 || r.Priority == RulePriority+1)
			switch {
			case r.Family != family || !isOurTable(r.Table) && !adjacent:
			case r.Protocol == Protocol && (adjacent || r.Priority == RulePriority):
				a.rules = append(a.rules, r)
			case !adjacent:
				a.fail("foreign rule with our table %d: priority %d, protocol %d", r.Table, r.Priority, r.Protocol)
			}
		}
	}
	return nil
}

// wantedRules returns the rules as the kernel has them. They are preceded by rules that jump over them. A jump needs a
// target rule, which does nothing.
func (a *applier) wantedRules() (out []netlink.Rule) {
	if len(a.want.Bypass) > 0 {
		out = append(out, newRule(RulePriority+1))
	}
	for _, source := range a.want.Bypass {
		jump := newRule(RulePriority - 1)
		jump.Goto, jump.Src = RulePriority+1, netipx.PrefixIPNet(netip.PrefixFrom(source.Addr(), source.Addr().BitLen()))
		if source.Port() != 0 {
			jump.IPProto, jump.Sport = unix.IPPROTO_UDP, netlink.NewRulePortRange(source.Port(), wire.EndOfRange(source.Port()))
		}
		out = append(out, jump)
	}
	for _, want := range a.want.Rules {
		rule := newRule(RulePriority)
		rule.Table, rule.IifName = want.Table, want.IIF
		out = append(out, rule)
	}
	return out
}

func newRule(priority int) netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Protocol = netlink.FAMILY_V4, priority, Protocol
	return *rule
}

func contains(rules []netlink.Rule, r netlink.Rule) bool {
	return slices.ContainsFunc(rules, func(o netlink.Rule) bool { return reflect.DeepEqual(r, o) })
}

func (a *applier) addRules() {
	for _, rule := range a.wantedRules() {
		if contains(a.rules, rule) {
			continue
		}
		if rule.Table == 0 && rule.Goto < 0 {
			rule.Type = nl.FR_ACT_NOP // the library does not read it
		}
		if err := a.kernel.conn.Handle.RuleAdd(&rule); err != nil {
			a.fail("add rule %s: %w", describe(rule), err)
			a.allFailed = true
			continue
		}
		a.changed("added rule %s", describe(rule))
	}
}

func (a *applier) removeRules() {
	wanted := a.wantedRules()
	for _, rule := range a.rules {
		if !contains(wanted, rule) {
			a.removed(link.IgnoreError(a.kernel.conn.Handle.RuleDel(&rule), unix.ENOENT), "rule %s", describe(rule))
		}
	}
}

// describe returns a text similar to the output of ip(8).
func describe(r netlink.Rule) string {
	switch {
	case r.Goto >= 0 && r.Sport != nil:
		return fmt.Sprintf("%d: from %s udp sport %d-%d goto %d", r.Priority, r.Src, r.Sport.Start, r.Sport.End, r.Goto)
	case r.Goto >= 0:
		return fmt.Sprintf("%d: from %s goto %d", r.Priority, r.Src, r.Goto)
	case r.Table == 0:
		return fmt.Sprintf("%d: nop", r.Priority)
	case r.IifName == "":
		return fmt.Sprintf("%d: lookup %d", r.Priority, r.Table)
	}
	return fmt.Sprintf("%d: iif %s lookup %d", r.Priority, r.IifName, r.Table)
}
