package nat

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/samber/lo"
	"go4.org/netipx"

	"github.com/liqonet/liqonet/pkg/nft"
)

// TableName is the name of our nftables table in each address family.
const TableName = nft.TableName

// table is the desired content of our table for one address family.
type table struct {
	family nftables.TableFamily
	chains []chain
	sets   []set
	// forward is the interface to which all rules send packets, in the family netdev.
	forward uint32
}

// chain is a base chain with its rules in order, or, without a hook, one that rules
// of others jump to.
type chain struct {
	nftables.Chain
	rules rules
}

// rule is a rule, with a comment that says what it is for.
type rule struct {
	comment string
	exprs   exprs
}

// rules are those of a chain, in order.
type rules []rule

func (r *rules) add(comment string, parts ...exprs) { *r = append(*r, rule{comment, concat(parts...)}) }

// set is a named set of addresses. An interval set has the starts of ranges, and the
// addresses after their ends. One of several fields has both ends in one element.
type set struct {
	nftables.Set
	elements []nftables.SetElement
}

// Priorities of chains. Others have those of the nftables library.
const (
	// priorityEarly is before everything that others do, and before
	// connection tracking.
	priorityEarly nftables.ChainPriority = -310
	// priorityFirst is the first at which chains may translate destinations.
	priorityFirst nftables.ChainPriority = -199
	// priorityBefore precedes the masquerade of others.
	priorityBefore nftables.ChainPriority = 99
	// priorityLate is after kube-proxy's IPVS, which takes packets to services at the hook
	// input.
	priorityLate nftables.ChainPriority = 101
)

// The ports from which a node's own UDP packets leave to peers: those that Linux gives to
// sockets by itself, above all NodePorts.
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

// regular is a chain that others jump to.
func regular(name string, rules rules) chain {
	return chain{nftables.Chain{Name: name}, rules}
}

// base is a filter chain that accepts what no rule decides.
func base(name string, hook *nftables.ChainHook, priority nftables.ChainPriority, rules rules) chain {
	policy := nftables.ChainPolicyAccept
	return chain{nftables.Chain{
		Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: &priority, Policy: &policy,
	}, rules}
}

// translating makes a base chain one that sees only the first packet of each connection that is
// tracked. The others cost nothing.
func translating(c chain) chain {
	c.Type = nftables.ChainTypeNAT
	return c
}

// closed makes a base chain drop what no rule decides. The last rule does so, too, and counts it.
func closed(hook string, c chain) chain {
	*c.Policy = nftables.ChainPolicyDrop
	c.rules = append(c.rules, rule{"nothing else", drop(hook, "not-allowed")})
	return c
}

// blockIPv6 is the table that drops all IPv6 that comes by interfaces of the groups.
// Anybody can send frames to multicast addresses into the overlay, and a router
// advertisement would give a node addresses and a default route.
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

// prefixSet is the union of IPv4 prefixes; overlapping and adjacent ones become one
// range, because the kernel refuses overlaps.
func prefixSet(name string, prefixes []netip.Prefix) set {
	s := set{Set: nftables.Set{Name: name, KeyType: nftables.TypeIPAddr, Interval: true}}
	for _, r := range union(prefixes) {
		s.elements = append(s.elements, nftables.SetElement{Key: r.From().AsSlice()})
		if end := r.To().Next(); end.IsValid() {
			s.elements = append(s.elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return s
}

// union returns what prefixes cover, as ranges that are apart.
func union(prefixes []netip.Prefix) []netipx.IPRange {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p)
	}
	s, _ := b.IPSet() // fails only for prefixes that are none
	return s.Ranges()
}

// senderSet has pairs of an interface and of a range from which packets may come by it.
func senderSet(name string, gateways []NodeGateway) set {
	s := set{Set: nftables.Set{
		Name: name, KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr), Interval: true, Concatenation: true,
	}}
	for _, g := range gateways {
		for _, r := range union(append(slices.Clone(g.Remote), netip.PrefixFrom(g.Overlay, g.Overlay.BitLen()))) {
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

// labels are the comments of rules in the kernel, by the description of their chain.
func (t table) labels() map[string][]string {
	out := map[string][]string{}
	for _, c := range t.chains {
		out[describeChain(&c.Chain)] = lo.Map(c.rules, func(r rule, _ int) string { return t.label(r) })
	}
	return out
}

func (t table) label(r rule) string { return nft.Label(r.comment, t.family, r.exprs) }

// describeChain tells a chain from others, and from one that does something else.
func describeChain(c *nftables.Chain) string {
	if c.Hooknum == nil {
		return "chain " + c.Name
	}
	return fmt.Sprintln("chain", c.Name, c.Type, *c.Hooknum, *c.Priority, *c.Policy)
}

// describe does the same for a set.
func (s set) describe() string {
	return fmt.Sprintln("set", s.Name, s.KeyType.Name, s.Interval, s.IsMap)
}

// members are elements that belong together: one, or both of a range. The kernel lists
// elements in any order.
func (s set) members() map[string][]nftables.SetElement {
	slices.SortFunc(s.elements, func(a, b nftables.SetElement) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		// Where one range ends and the next begins, the end comes first.
		if a.IntervalEnd {
			return -1
		}
		return 1
	})
	size := 1
	if s.Interval && !s.Concatenation {
		size = 2
	}
	out := map[string][]nftables.SetElement{}
	for m := range slices.Chunk(s.elements, size) {
		out[string(m[0].Key)+string(m[len(m)-1].Key)+string(m[0].KeyEnd)] = m
	}
	return out
}

// Our tables are about IPv4. IPv6 is only blocked (see blockIPv6 and Gateway.tableIPv6).

const (
	// Offsets in the IPv4 header, and the length of an address.
	fragmentAt, checksumAt, sourceAt, destinationAt, addressLength = 6, 10, 12, 16, 4

	// icmpHeader is how far the packet that caused an ICMP error is inside of it.
	icmpHeader = 8

	// Types of ICMP.
	echoReply, echoRequest, timestampRequest = 0, 8, 13
)

// icmpErrors are the types that carry the packet that caused them (RFC 792):
// unreachable, time exceeded, parameter problem.
func icmpErrors() []byte { return []byte{3, 11, 12} }

// icmpLocal are types that carry a packet as well, and that nobody forwards. Redirects
// are for the neighbours of a router (RFC 1122, section 3.2.2.2). Source quenches are
// deprecated (RFC 6633).
func icmpLocal() []byte { return []byte{4, 5} }

// icmp6Input are the types of ICMPv6 that a gateway takes (RFC 4443, RFC 2710, RFC 4861).
// With the errors the tunnel finds its MTU. The others are a neighbour's question and answer,
// and the question for members of groups. Unless that is answered, a bridge may pass on no
// questions of neighbours.
func icmp6Input() []byte { return []byte{1, 2, 3, 4, 130, 135, 136} }

// onlyIPv4 refuses other addresses. The kernel would refuse the whole table without
// saying why.
func onlyIPv4(addrs []netip.Addr, prefixes ...[]netip.Prefix) error {
	for _, p := range slices.Concat(prefixes...) {
		addrs = append(addrs, p.Addr())
	}
	if other, found := lo.Find(addrs, func(a netip.Addr) bool { return !a.Is4() }); found {
		return fmt.Errorf("nftables table %q: %s is not an IPv4 address", TableName, other)
	}
	return nil
}
