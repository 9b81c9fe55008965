package overlay

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/wire"
)

// SourceTo returns how the kernel would send a packet to dst now: its source address, and its maximum size. The size in
// bytes is the MTU of the route or path if that is known, otherwise the interface's.
func (k *Kernel) SourceTo(dst netip.Addr) (src netip.Addr, mtu int, err error) {
	routes, err := k.conn.Handle.RouteGet(dst.AsSlice())
	if err == nil && len(routes) == 0 {
		err = unix.ENETUNREACH
	}
	if err != nil {
		return netip.Addr{}, 0, fmt.Errorf("route to %s: %w", dst, err)
	}
	l, err := k.conn.Handle.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return netip.Addr{}, 0, fmt.Errorf("route to %s: interface %d: %w", dst, routes[0].LinkIndex, err)
	}
	mtu = l.Attrs().MTU
	return addrFrom(routes[0].Src), min(mtu, cmp.Or(routes[0].MTU, mtu)), nil
}

// EgressMTU returns the maximum size in bytes of packets that leave a pod by an interface. It is the minimum of the
// MTUs of the interface and of its routes. Cilium does not change the interface's MTU, and sets the path's MTU on the
// default route.
func (k *Kernel) EgressMTU(name string) (int, error) {
	l, err := k.link(name)
	if err != nil {
		return 0, err
	}
	known := func(r netlink.Route) (int, bool) { return r.MTU, r.MTU > 0 }
	mtus, err := listRoutes(k, netlink.Route{LinkIndex: l.Index}, netlink.RT_FILTER_OIF, known)
	return slices.Min(append(mtus, l.MTU)), err
}

// LinkByAddress returns the interface that has an address, and its MTU in bytes.
func (k *Kernel) LinkByAddress(addr netip.Addr) (name string, mtu int, err error) {
	links, err := k.conn.List()
	if err != nil {
		return "", 0, err
	}
	for name, l := range links {
		if slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return p.Addr() == addr }) {
			return name, l.MTU, nil
		}
	}
	return "", 0, fmt.Errorf("no interface has the address %s", addr)
}

// Links returns the interfaces of this machine, by name.
func (k *Kernel) Links() (map[string]*link.State, error) { return k.conn.List() }

// Routes returns the prefixes that are routed on this machine, in any table, sorted and without duplicates. They
// determine which ranges are unused. It omits our own tables, default routes, local and broadcast addresses, and the
// ranges for loopback, link-local addresses and multicast.
func (k *Kernel) Routes() ([]netip.Prefix, error) {
	types := []int{unix.RTN_UNICAST, unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT}
	out, err := listRoutes(k, netlink.Route{}, netlink.RT_FILTER_TABLE, func(r netlink.Route) (p netip.Prefix, ok bool) {
		if isOurTable(r.Table) || !slices.Contains(types, r.Type) {
			return p, false
		}
		p, ok = netipx.FromStdIPNet(r.Dst)
		// VPNs split the default route into two halves.
		return p, ok && p.Bits() > 1 && isGlobal(p.Addr())
	})
	return slices.Compact(slices.SortedFunc(slices.Values(out), netip.Prefix.Compare)), err
}

// Uplinks returns the sorted names of the interfaces that lead to other machines: those of routes with a next hop, in
// any table except ours.
func (k *Kernel) Uplinks() ([]string, error) {
	links, err := k.conn.List()
	if err != nil {
		return nil, err
	}
	hops, err := listRoutes(k, netlink.Route{}, netlink.RT_FILTER_TABLE, func(r netlink.Route) ([]*netlink.NexthopInfo, bool) {
		hops := append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via})
		leading := lo.Filter(hops, func(h *netlink.NexthopInfo, _ int) bool { return h.Gw != nil || h.Via != nil })
		return leading, !isOurTable(r.Table) && r.Type == unix.RTN_UNICAST
	})
	used := lo.KeyBy(slices.Concat(hops...), func(h *netlink.NexthopInfo) int { return h.LinkIndex })
	uplinks := lo.PickBy(links, func(_ string, l *link.State) bool { return !isOurs(l) && lo.HasKey(used, l.Index) })
	return slices.Sorted(maps.Keys(uplinks)), err
}

// Addresses returns the addresses of this machine's interfaces except ours, sorted, without those of the loopback and
// link-local ranges.
func (k *Kernel) Addresses() ([]netip.Addr, error) {
	links, err := k.conn.List()
	if err != nil {
		return nil, err
	}
	out := lo.FlatMap(lo.Values(links), func(l *link.State, _ int) []netip.Addr {
		if isOurs(l) || l.Alias == link.Alias {
			return nil
		}
		return lo.FilterMap(l.Addrs, func(p netip.Prefix, _ int) (netip.Addr, bool) { return p.Addr(), isGlobal(p.Addr()) })
	})
	return slices.Compact(slices.SortedFunc(slices.Values(out), netip.Addr.Compare)), nil
}

func isGlobal(a netip.Addr) bool {
	return !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}

// EarlierRules describes the rules that come before ours, and send packets to any of the ranges elsewhere or drop them. It
// leaves out rules for marked packets and for sockets that are bound to an interface, which are not for pods.
func (k *Kernel) EarlierRules(ranges []netip.Prefix) (out []string, err error) {
	rules, err := link.Dump(k.rulesWithActions)
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	for _, r := range rules {
		if r.Protocol == Protocol && r.Priority == RulePriority {
			break // rules of one priority are in the order in which they were added
		}
		concerned := ranges
		if r.Dst != nil && !r.Invert {
			to, _ := netipx.FromStdIPNet(r.Dst) // from the kernel
			concerned = lo.Filter(ranges, func(p netip.Prefix, _ int) bool { return to.Overlaps(p) })
		}
		isMarked := (r.Mark != 0 || r.Mask != nil) && !r.Invert
		if r.Priority > RulePriority || r.Protocol == Protocol || len(concerned) == 0 || isMarked || r.OifName != "" {
			continue
		}
		takes := r.Goto > RulePriority || action(r) != ""
		if r.Table != 0 && r.Table != unix.RT_TABLE_LOCAL && !isOurTable(r.Table) {
			taken, err := listRoutes(k, netlink.Route{Table: r.Table}, netlink.RT_FILTER_TABLE, func(route netlink.Route) (p netip.Prefix, ok bool) {
				p, ok = netipx.FromStdIPNet(route.Dst)
				return p, ok && route.Type != unix.RTN_THROW && p.Bits() > r.SuppressPrefixlen && slices.ContainsFunc(concerned, p.Overlaps)
			})
			if err != nil {
				return nil, err
			}
			takes = len(taken) > 0
		}
		if takes {
			out = append(out, describeForeign(r))
		}
	}
	return out, nil
}

// rulesWithActions lists the rules in their order. The library's list lacks the actions.
func (k *Kernel) rulesWithActions() ([]netlink.Rule, error) {
	rules, err := k.conn.Handle.RuleList(netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	messages, err := k.conn.Send(unix.RTM_GETRULE, unix.NLM_F_DUMP, nl.NewIfInfomsg(netlink.FAMILY_V4))
	if err == nil && len(messages) != len(rules) {
		err = netlink.ErrDumpInterrupted
	}
	for i, m := range messages[:min(len(messages), len(rules))] {
		rules[i].Type = nl.DeserializeRtMsg(m).Type
	}
	return rules, err
}

// describeForeign returns a text similar to the output of ip(8).
func describeForeign(r netlink.Rule) string {
	text := fmt.Sprintf("%d:%s from %s", r.Priority, lo.Ternary(r.Invert, " not", ""), lo.Ternary(r.Src == nil, "all", r.Src.String()))
	if r.Dst != nil {
		text += " to " + r.Dst.String()
	}
	if r.IifName != "" {
		text += " iif " + r.IifName
	}
	switch drops := action(r); {
	case r.Goto >= 0:
		return fmt.Sprintf("%s goto %d", text, r.Goto)
	case drops != "":
		return text + " " + drops
	}
	return fmt.Sprintf("%s lookup %d", text, r.Table)
}

// action returns how a rule drops packets, "" if it does not.
func action(r netlink.Rule) string {
	// The numbers are those of routes.
	return map[uint8]string{unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit"}[r.Type]
}

// Inspection is what is ours in a node's kernel, and what conflicts with it.
type Inspection struct {
	// Links are all interfaces, Foreign those that have a name of ours but are not ours.
	Links   map[string]*link.State
	Foreign []string
	// Conflicts are rules and routes of others in our tables. PortUsers are interfaces of others with our port.
	Conflicts []string
	PortUsers []string
	// Neighbors are the learned hardware addresses of other machines.
	Neighbors map[netip.Addr]string
	// Routers are the next hops of default routes.
	Routers []netip.Addr
}

// Inspect returns an Inspection, and changes nothing.
func (k *Kernel) Inspect() (in Inspection, err error) {
	a := &applier{kernel: k}
	if in.Links, err = k.conn.List(); err != nil {
		return in, err
	}
	a.links = in.Links
	for name, l := range in.Links {
		if strings.HasPrefix(name, wire.LinkPrefix) && !isOurs(l) {
			in.Foreign = append(in.Foreign, name)
		} else if parametersOf(l).port == int(Port) && !isOurs(l) {
			in.PortUsers = append(in.PortUsers, fmt.Sprintf("interface %s (%s)", name, l.Kind()))
		}
	}
	if err := cmp.Or(a.readRoutes(), a.readRules()); err != nil {
		return in, err
	}
	in.Conflicts = lo.Map(a.failedLinks.errs, func(foreign error, _ int) string { return foreign.Error() })
	neighbors, err := link.Dump(func() ([]netlink.Neigh, error) { return k.conn.Handle.NeighList(0, netlink.FAMILY_V4) })
	if err != nil {
		return in, fmt.Errorf("list neighbors: %w", err)
	}
	in.Neighbors = lo.FilterSliceToMap(neighbors, func(n netlink.Neigh) (netip.Addr, string, bool) {
		isLearned := len(n.HardwareAddr) > 0 && n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) == 0
		return addrFrom(n.IP), n.HardwareAddr.String(), isLearned
	})
	routers, err := listRoutes(k, netlink.Route{}, netlink.RT_FILTER_TABLE, func(r netlink.Route) ([]netip.Addr, bool) {
		hops := append(r.MultiPath, &netlink.NexthopInfo{Gw: r.Gw})
		isDefault := r.Dst == nil || r.Dst.IP.IsUnspecified()
		return lo.Map(hops, func(h *netlink.NexthopInfo, _ int) netip.Addr { return addrFrom(h.Gw) }), isDefault && !isOurTable(r.Table)
	})
	in.Routers = slices.Concat(routers...)
	slices.Sort(in.Foreign)
	return in, err
}
