package nat

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"go4.org/netipx"
)

// table is the desired content of our table for one address family.
type table struct {
	family nftables.TableFamily
	chains []chain
	sets   []set
}

// chain is a base chain with its rules in order, or, without a hook, one that rules
// of others jump to.
type chain struct {
	name     string
	typ      nftables.ChainType
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	policy   nftables.ChainPolicy
	rules    []rule
}

// rule is a rule, with a comment that says what it is for.
type rule struct {
	comment string
	exprs   []expr.Any
}

// set is a named set of addresses. In an interval set, elements may be ranges of more
// than one address.
type set struct {
	name     string
	interval bool
	elements []netipx.IPRange
}

// Priorities of chains, relative to the kernel's own (enum nf_ip_hook_priorities).
const (
	// priorityEarly is before everything that others do, and before
	// connection tracking.
	priorityEarly  nftables.ChainPriority = -310
	priorityRaw    nftables.ChainPriority = -300
	priorityMangle nftables.ChainPriority = -150
	priorityFilter nftables.ChainPriority = 0
	// priorityBefore precedes the masquerade of others.
	priorityBefore nftables.ChainPriority = 99
	priorityNATSrc nftables.ChainPriority = 100
)

// Names of sets.
const (
	setRemote        = "remote"
	setHosts         = "hosts"
	setEndpoints     = "endpoints"
	setNodes         = "nodes"
	setPods          = "pods"
	setOwnPods       = "own-pods"
	setGateways      = "gateways"
	setLocalGateways = "local-gateways"
	setOverlay       = "gateways-overlay"
	setCallers       = "calling-gateways"
)

// blockIPv6 is the table that drops all IPv6 that comes by interfaces of the groups.
// Anybody can send frames to multicast addresses into the overlay, and a router
// advertisement would give a node addresses and a default route.
func blockIPv6(groups ...uint32) table {
	guard := chain{
		name: "guard", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting,
		priority: priorityEarly, policy: nftables.ChainPolicyAccept,
	}
	for _, g := range groups {
		guard.rules = append(guard.rules, rule{
			fmt.Sprintf("no IPv6 by interfaces of group %d", g), concat(iifGroup(g), drop()),
		})
	}
	return table{family: nftables.TableFamilyIPv6, chains: []chain{guard}}
}

// prefixSet is the union of prefixes; overlapping and adjacent ones become one
// range, because the kernel refuses overlaps.
func prefixSet(name string, prefixes []netip.Prefix) (set, error) {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p)
	}
	s, err := b.IPSet()
	if err != nil {
		return set{}, fmt.Errorf("set %s: %w", name, err)
	}
	return set{name: name, interval: true, elements: s.Ranges()}, nil
}

func addrSet(name string, addrs []netip.Addr) set {
	addrs = slices.Clone(addrs)
	slices.SortFunc(addrs, netip.Addr.Compare)
	s := set{name: name}
	for _, a := range slices.Compact(addrs) {
		s.elements = append(s.elements, netipx.IPRangeFrom(a, a))
	}
	return s
}

// encode returns elements as the kernel wants them: single keys, or the start
// of a range and the address after its end.
func (s set) encode(elements []netipx.IPRange) []nftables.SetElement {
	var out []nftables.SetElement
	for _, r := range elements {
		out = append(out, nftables.SetElement{Key: r.From().AsSlice()})
		if end := r.To().Next(); s.interval && end.IsValid() {
			out = append(out, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

// decode is the inverse of encode for what the kernel lists, in any order.
func (s set) decode(elements []nftables.SetElement) []netipx.IPRange {
	if !s.interval {
		var addrs []netip.Addr
		for _, e := range elements {
			a, _ := netip.AddrFromSlice(e.Key)
			addrs = append(addrs, a)
		}
		return addrSet(s.name, addrs).elements
	}
	slices.SortFunc(elements, func(a, b nftables.SetElement) int {
		if c := slices.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		// Where one range ends and the next begins, the end comes first.
		if a.IntervalEnd != b.IntervalEnd && a.IntervalEnd {
			return -1
		}
		return 1
	})
	var out []netipx.IPRange
	var from netip.Addr
	for _, e := range elements {
		a, _ := netip.AddrFromSlice(e.Key)
		switch {
		case !e.IntervalEnd:
			from = a
		case from.IsValid():
			out = append(out, netipx.IPRangeFrom(from, a.Prev()))
			from = netip.Addr{}
		}
	}
	if from.IsValid() {
		out = append(out, netipx.RangeOfPrefix(netip.PrefixFrom(from, 0).Masked()))
		out[len(out)-1] = netipx.IPRangeFrom(from, out[len(out)-1].To())
	}
	return out
}
