package nat

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/nft"
)

// TableName is the name of our nftables table in each address family.
const TableName = nft.TableName

// table is the desired content of our table for one address family.
type table struct {
	family nftables.TableFamily
	chains []chain
	sets   []set
	// forward is the interface to which all rules forward packets, in the family netdev.
	forward uint32
}

// chain is a base chain with its rules in order or, without a hook, a chain that rules of others jump to.
type chain struct {
	nftables.Chain
	rules rules
}

// rule is a rule with a comment about its purpose.
type rule struct {
	comment string
	exprs   exprs
}

// rules are the rules of a chain, in order.
type rules []rule

func (r *rules) add(comment string, parts ...exprs) { *r = append(*r, rule{comment, concat(parts...)}) }

// set is a named set of addresses. An interval set has the starts of ranges, and the addresses after their ends. A set
// of several fields has both ends in one element.
type set struct {
	nftables.Set
	elements []nftables.SetElement
}

// Priorities of chains that the nftables library does not define.
const (
	// priorityEarly precedes all chains of others and connection tracking.
	priorityEarly nftables.ChainPriority = -310
	// priorityFirst is the first priority at which chains may translate destinations.
	priorityFirst nftables.ChainPriority = -199
	// priorityBefore precedes the masquerading by others.
	priorityBefore nftables.ChainPriority = 99
	// priorityLate follows kube-proxy's IPVS, which takes packets to services at the hook input.
	priorityLate nftables.ChainPriority = 101
)

// The source ports of a node's own UDP packets to peers: Linux's ephemeral ports, which are higher than all NodePorts.
const firstPort, lastPort = 32768, 60999

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
	setSenders       = "senders"
)

// regular returns a chain that others jump to.
func regular(name string, rules rules) chain {
	return chain{nftables.Chain{Name: name}, rules}
}

// base returns a filter chain that accepts packets that no rule decides on.
func base(name string, hook *nftables.ChainHook, priority nftables.ChainPriority, rules rules) chain {
	policy := nftables.ChainPolicyAccept
	return chain{nftables.Chain{
		Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: &priority, Policy: &policy,
	}, rules}
}

// translating makes a base chain see only the first packet of each tracked connection. Other packets cost nothing.
func translating(c chain) chain {
	c.Type = nftables.ChainTypeNAT
	return c
}

// denyByDefault makes a base chain drop packets that no rule decides on. The last rule drops them too, to count them.
func denyByDefault(hook string, c chain) chain {
	*c.Policy = nftables.ChainPolicyDrop
	c.rules = append(c.rules, rule{"nothing else", drop(hook, "not-allowed")})
	return c
}

// blockIPv6 returns the table that drops all IPv6 packets from interfaces of the groups. Anyone can send frames to
// multicast addresses into the overlay, and a router advertisement would give a node addresses and a default route.
func blockIPv6(groups ...uint32) table {
	var guard rules
	for _, g := range groups {
		guard.add(fmt.Sprintf("no IPv6 by interfaces of group %d", g), iifGroup(g), drop(hookPrerouting, "ipv6"))
	}
	return table{
		family: nftables.TableFamilyIPv6,
		chains: []chain{base("guard", nftables.ChainHookPrerouting, priorityEarly, guard)},
	}
}

// prefixSet returns the union of IPv4 prefixes. Overlapping and adjacent prefixes become one range, because the kernel
// refuses overlaps.
func prefixSet(name string, prefixes []netip.Prefix) set {
	s := set{Set: nftables.Set{Name: name, KeyType: nftables.TypeIPAddr, Interval: true}}
	for _, r := range ipam.Set(prefixes).Ranges() {
		s.elements = append(s.elements, nftables.SetElement{Key: r.From().AsSlice()})
		if end := r.To().Next(); end.IsValid() {
			s.elements = append(s.elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return s
}

// senderSet returns pairs of an interface and a source range that is allowed on it.
func senderSet(name string, gateways []NodeGateway) set {
	s := set{Set: nftables.Set{
		Name: name, KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr), Interval: true, Concatenation: true,
	}}
	for _, g := range gateways {
		for _, r := range ipam.Set(append(slices.Clone(g.Remote), netip.PrefixFrom(g.Overlay, g.Overlay.BitLen()))).Ranges() {
			s.elements = append(s.elements, nftables.SetElement{
				Key: append(ifname(g.Link), r.From().AsSlice()...), KeyEnd: append(ifname(g.Link), r.To().AsSlice()...),
			})
		}
	}
	return s
}

func addrSet(name string, addrs []netip.Addr) set {
	element := func(a netip.Addr, _ int) nftables.SetElement { return nftables.SetElement{Key: a.AsSlice()} }
	return set{nftables.Set{Name: name, KeyType: nftables.TypeIPAddr}, lo.Map(addrs, element)}
}

// labels returns the comments of rules in the kernel, by the description of their chain.
func (t table) labels() map[string][]string {
	out := map[string][]string{}
	for _, c := range t.chains {
		out[describeChain(&c.Chain)] = lo.Map(c.rules, func(r rule, _ int) string { return t.label(r) })
	}
	return out
}

func (t table) label(r rule) string { return nft.Label(r.comment, t.family, r.exprs) }

// describeChain returns the properties that distinguish a chain from others.
func describeChain(c *nftables.Chain) string {
	if c.Hooknum == nil {
		return "chain " + c.Name
	}
	return fmt.Sprintln("chain", c.Name, c.Type, *c.Hooknum, *c.Priority, *c.Policy)
}

// describe returns the properties that distinguish a set from others.
func (s set) describe() string {
	return fmt.Sprintln("set", s.Name, s.KeyType.Name, s.Interval, s.IsMap)
}

// members groups the elements that belong together: a single one, or both ends of a range. The kernel lists elements in
// any order.
func (s set) members() map[string][]nftables.SetElement {
	slices.SortFunc(s.elements, func(a, b nftables.SetElement) int {
		// Where one range ends and the next begins, the end comes first.
		return cmp.Or(bytes.Compare(a.Key, b.Key), lo.Ternary(a.IntervalEnd, -1, 1))
	})
	size := lo.Ternary(s.Interval && !s.Concatenation, 2, 1)
	out := map[string][]nftables.SetElement{}
	for m := range slices.Chunk(s.elements, size) {
		out[string(m[0].Key)+string(m[len(m)-1].Key)+string(m[0].KeyEnd)] = m
	}
	return out
}

// Our tables are for IPv4. IPv6 is only blocked (see blockIPv6 and Gateway.tableIPv6).

const (
	// Offsets in the IPv4 header, and the length of an address.
	fragmentAt, checksumAt, sourceAt, destinationAt, addressLength = 6, 10, 12, 16, 4

	// icmpHeader is the offset, in an ICMP error, of the packet that caused it.
	icmpHeader = 8

	// ICMP types.
	echoReply, echoRequest, timestampRequest = 0, 8, 13
)

// icmpErrors returns the types that carry the packet that caused them (RFC 792): unreachable, time exceeded, parameter
// problem.
func icmpErrors() []byte { return []byte{3, 11, 12} }

// icmpLocal returns the types that also carry a packet, but are never forwarded. Redirects are for the neighbors of a
// router (RFC 1122, section 3.2.2.2). Source quenches are deprecated (RFC 6633).
func icmpLocal() []byte { return []byte{4, 5} }

// icmp6Input returns the ICMPv6 types that a gateway accepts (RFC 4443, RFC 2710, RFC 4861). The tunnel needs the
// errors to find its MTU. The others are neighbor solicitations and advertisements, and multicast listener queries.
// Without replies to these queries, a bridge may not forward neighbor solicitations.
func icmp6Input() []byte { return []byte{1, 2, 3, 4, 130, 135, 136} }

// onlyIPv4 rejects other addresses. The kernel would reject the whole table without a reason.
func onlyIPv4(addrs []netip.Addr, prefixes ...[]netip.Prefix) error {
	for _, p := range slices.Concat(prefixes...) {
		addrs = append(addrs, p.Addr())
	}
	if other, found := lo.Find(addrs, func(a netip.Addr) bool { return !a.Is4() }); found {
		return fmt.Errorf("nftables table %q: %s is not an IPv4 address", TableName, other)
	}
	return nil
}

// counters returns the names of the counters that rules refer to, sorted.
func (t table) counters() []string {
	all := lo.FlatMap(t.chains, func(c chain, _ int) []rule { return c.rules })
	names := lo.FlatMap(all, func(r rule, _ int) []string { return lo.FilterMap(r.exprs, counterName) })
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

func counterName(e expr.Any, _ int) (name string, is bool) {
	o, is := e.(*expr.Objref)
	return lo.FromPtr(o).Name, is
}

// dropCounters removes the counters from the rules.
func (t table) dropCounters() {
	for _, c := range t.chains {
		for i, r := range c.rules {
			c.rules[i].exprs = lo.Reject(r.exprs, func(e expr.Any, _ int) bool { _, is := e.(*expr.Objref); return is })
		}
	}
}
