package nat

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/wire"
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
	setAsked         = "asked-gateways"
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

func (t table) label(r rule) string {
	content := slices.Clone(r.exprs)
	for _, e := range r.exprs {
		if own, is := e.(ownSet); is {
			content = append(content, lo.Map(own.elements, func(e nftables.SetElement, _ int) expr.Any { return immediate(1, e.Key) })...)
		}
	}
	return nft.Label(r.comment, t.family, content)
}

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

// exprs are all or some of a rule's expressions. Each function here returns the expressions that nft generates for the
// text in its comment.
type exprs = []expr.Any

// l4Checksum makes the kernel update the checksum of TCP and UDP after a change of an address
// (NFT_PAYLOAD_L4CSUM_PSEUDOHDR). It does not touch zero UDP checksums, later fragments, and protocols without a pseudo
// header.
const l4Checksum = unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR

const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpACK = 0x10
)

func concat(parts ...exprs) exprs { return slices.Concat(parts...) }

// native encodes a number in the kernel's byte order, network in that of packets.
func native(n uint32) []byte  { return binary.NativeEndian.AppendUint32(nil, n) }
func network(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }

// not inverts a comparison or a lookup: `iifgroup != 27761`.
func not(e exprs) exprs {
	e = slices.Clone(e)
	switch last := e[len(e)-1].(type) {
	case *expr.Cmp:
		e[len(e)-1] = &expr.Cmp{Op: expr.CmpOpNeq, Register: last.Register, Data: last.Data}
	case *expr.Range:
		e[len(e)-1] = &expr.Range{Op: expr.CmpOpNeq, Register: last.Register, FromData: last.FromData, ToData: last.ToData}
	case *expr.Lookup:
		e[len(e)-1] = &expr.Lookup{SourceRegister: last.SourceRegister, SetName: last.SetName, Invert: true}
	}
	return e
}

// masked keeps some bits of register 1.
func masked(mask []byte) *expr.Bitwise {
	size := uint32(len(mask))
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)}
}

// bits compares some bits of a loaded value.
func bits(load expr.Any, mask, value []byte) exprs {
	return exprs{load, masked(mask), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}}
}

// iif: `iifname "eth0"`.
func iif(name string) exprs { return nft.Meta(expr.MetaKeyIIFNAME, ifname(name)...) }

// ifname returns the name of an interface as nftables compares it.
func ifname(name string) []byte {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

// iifGroup: `iifgroup 27761`. The kernel compares a number much faster than a name, for which it copies 16 bytes, and
// many rules begin with this comparison.
func iifGroup(group uint32) exprs { return nft.Meta(expr.MetaKeyIIFGROUP, native(group)...) }

// oifGroup: `oifgroup 27761`.
func oifGroup(group uint32) exprs { return nft.Meta(expr.MetaKeyOIFGROUP, native(group)...) }

// forwarded: `meta iif != 0`, true for packets that arrived on an interface. Kernels before 5.7 do not know it at the
// hook postrouting.
func forwarded() exprs { return not(nft.Meta(expr.MetaKeyIIF, native(0)...)) }

// forUs: `meta pkttype host`, true for frames whose destination is this interface's own address.
func forUs() exprs { return nft.Meta(expr.MetaKeyPKTTYPE, unix.PACKET_HOST) }

// forgedSource: `fib saddr . iif oif missing`, true if the route back to the source is not by the interface on which
// the packet arrived.
func forgedSource() exprs {
	return nft.Equal(&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, ResultOIF: true}, make([]byte, 4))
}

// proto: `meta l4proto udp`.
func proto(p byte) exprs { return nft.Meta(expr.MetaKeyL4PROTO, p) }

// transport compares bytes of the transport header of a protocol's packets.
func transport(protocol byte, offset uint32, value ...byte) exprs {
	return concat(proto(protocol), nft.Equal(nft.TransportHeader(offset, uint32(len(value))), value))
}

// udpDport: `udp dport 6094`, and for the tunnel `udp dport 51840-51855`.
func udpDport(p uint16) exprs {
	return concat(proto(unix.IPPROTO_UDP), nft.Port(2, p, wire.EndOfRange(p)))
}

// vni: `@th,96,24 0x227`, in the header of both VXLAN and Geneve.
func vni(n uint32) exprs {
	return nft.Equal(nft.TransportHeader(12, 3), binary.BigEndian.AppendUint32(nil, n)[1:])
}

// cookieReply: `udp length 72 udp dport 51840-51855 @th,64,8 3`. It is true for WireGuard's replies with a cookie, which
// have 64 bytes.
func cookieReply(port uint16) exprs {
	const header, size, messageType = 8, 64, 3
	return concat(
		proto(unix.IPPROTO_UDP), exprs(nft.Equal(nft.TransportHeader(4, 2), network(uint16(header+size)))),
		exprs(nft.Equal(nft.TransportHeader(header, 1), []byte{messageType})), udpDport(port),
	)
}

// udpSport: `udp sport 53`, and for the tunnel `udp sport 51840-51855`.
func udpSport(p uint16) exprs {
	return concat(proto(unix.IPPROTO_UDP), nft.Port(0, p, wire.EndOfRange(p)))
}

// dportWithin: `udp dport 6094-6099`.
func dportWithin(protocol byte, first, last uint16) exprs {
	within := &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: network(first), ToData: network(last)}
	return concat(proto(protocol), exprs{nft.TransportHeader(2, 2), within})
}

// tcpDport: `tcp dport 6096`.
func tcpDport(p uint16) exprs { return transport(unix.IPPROTO_TCP, 2, network(p)...) }

// tcpSport: `tcp sport 6096`.
func tcpSport(p uint16) exprs { return transport(unix.IPPROTO_TCP, 0, network(p)...) }

// tcpFlags: `tcp flags & mask == value`.
func tcpFlags(mask, value byte) exprs {
	return concat(proto(unix.IPPROTO_TCP), bits(nft.TransportHeader(13, 1), []byte{mask}, []byte{value}))
}

// tcpConnect: `tcp flags & (syn | ack) == syn`, true for a connection's first packet.
func tcpConnect() exprs { return tcpFlags(tcpSYN|tcpACK, tcpSYN) }

// icmpType: `icmp type echo-request`.
func icmpType(t byte) exprs { return transport(unix.IPPROTO_ICMP, 0, t) }

// icmp6Type: `icmpv6 type nd-neighbor-solicit`.
func icmp6Type(t byte) exprs { return transport(unix.IPPROTO_ICMPV6, 0, t) }

// sctpChunk: `sctp chunk init exists`, true if the first chunk is of that type.
func sctpChunk(t byte) exprs { return transport(unix.IPPROTO_SCTP, 12, t) }

// notFragment: `ip frag-off & 0x1fff == 0`, true for whole packets and first fragments.
func notFragment() exprs { return bits(nft.IPHeader(fragmentAt, 2), network(0x1fff), network(0)) }

// firstFragment: `ip frag-off & 0x2000 != 0`, true for all fragments except the last. Combined with a match that only
// first fragments satisfy, it matches those.
func firstFragment() exprs {
	return not(bits(nft.IPHeader(fragmentAt, 2), network(0x2000), network(0)))
}

// address loads an address of the IP header, inner one of the packet inside an ICMP error.
func address(offset uint32) *expr.Payload { return nft.IPHeader(offset, addressLength) }

func inner(offset uint32) *expr.Payload { return nft.TransportHeader(icmpHeader+offset, addressLength) }

// from: `ip saddr @set`, and to: `ip daddr @set`.
func from(set string) exprs { return lookup(address(sourceAt), set) }
func to(set string) exprs   { return lookup(address(destinationAt), set) }

// ownSet is a lookup in a set that belongs to the rule, and has no name.
type ownSet struct {
	*expr.Lookup
	elements []nftables.SetElement
}

// innerTo: `@th,192,32 { 10.63.0.0-10.63.255.255 }`, true if the packet inside an ICMP error went to one of the ranges.
// Nft can read such a rule, but not one that compares these bytes with a named set of addresses.
func innerTo(ranges ...netip.Prefix) exprs {
	return exprs{inner(destinationAt), ownSet{&expr.Lookup{SourceRegister: 1}, prefixSet("", ranges).elements}}
}

func lookup(load expr.Any, name string) exprs {
	return exprs{load, &expr.Lookup{SourceRegister: 1, SetName: name}}
}

// senderInSet: `iifname . ip saddr @name`.
func senderInSet(name string) exprs {
	source := address(sourceAt)
	source.DestRegister = 2 // after the name, which fills register 1
	return concat(exprs{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}}, lookup(source, name))
}

// fromLocal: `fib saddr type local`.
func fromLocal() exprs {
	return nft.Equal(&expr.Fib{Register: 1, FlagSADDR: true, ResultADDRTYPE: true}, native(unix.RTN_LOCAL))
}

// toUnicast: `fib daddr type unicast`.
func toUnicast() exprs {
	return nft.Equal(&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, native(unix.RTN_UNICAST))
}

// From linux/netfilter/nf_conntrack_common.h: IPS_CONFIRMED, IPS_SRC_NAT, IPS_DST_NAT.
const ctConfirmed, ctSourceNAT, ctDestinationNAT = 1 << 3, 1 << 4, 1 << 5

// replies: `ct state established,related`.
func replies() exprs {
	return not(noCtBits(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED))
}

// destinationTranslated: `ct status dnat`.
func destinationTranslated() exprs { return not(noCtBits(expr.CtKeySTATUS, ctDestinationNAT)) }

// notInTable: `ct status & confirmed == 0`, true for the first packet of a connection, which enters the conntrack table
// when the packet leaves. The state new would last until there is a reply.
func notInTable() exprs { return noCtBits(expr.CtKeySTATUS, ctConfirmed) }

// noCtBits is true if none of the bits is set.
func noCtBits(key expr.CtKey, mask uint32) exprs {
	return bits(&expr.Ct{Key: key, Register: 1}, native(mask), native(0))
}

// packetsOver: `limit rate over 1000/second burst 1000 packets`.
func packetsOver(perSecond uint32) exprs {
	return exprs{&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(perSecond), Burst: perSecond, Unit: expr.LimitTimeSecond, Over: true}}
}

// bytesOver: `limit rate over 1000000 bytes/second`. The kernel's bucket holds the bytes of one second, plus the burst.
func bytesOver(perSecond uint64) exprs {
	return exprs{&expr.Limit{Type: expr.LimitTypePktBytes, Rate: perSecond, Unit: expr.LimitTimeSecond, Over: true}}
}

func verdict(k expr.VerdictKind) exprs { return exprs{&expr.Verdict{Kind: k}} }

func accept() exprs        { return verdict(expr.VerdictAccept) }
func returnVerdict() exprs { return verdict(expr.VerdictReturn) }

// drop: `counter name "forward/transit" drop`. All rules that drop at a hook for one reason share a counter, except
// those for a link.
func drop(hook, reason string, link ...string) exprs {
	name := strings.Join(append([]string{hook, reason}, link...), counterSeparator)
	return concat(counter(name), verdict(expr.VerdictDrop))
}

// counter: `counter name "plain"`.
func counter(name string) exprs {
	return exprs{&expr.Objref{Type: int(nftables.ObjTypeCounter), Name: name}}
}

// jump: `jump from-peer`.
func jump(chain string) exprs { return exprs{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}} }

// clearMark: `meta mark set 0`.
func clearMark() exprs {
	return exprs{immediate(1, native(0)), &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1}}
}

func notrack() exprs    { return exprs{&expr.Notrack{}} }
func masquerade() exprs { return exprs{&expr.Masq{}} }

// match loads an address into register 1 and continues if it is in the prefix.
func match(address *expr.Payload, in netip.Prefix) exprs {
	part := masked(net.CIDRMask(in.Bits(), in.Addr().BitLen()))
	part.DestRegister = 2
	return exprs{address, part, &expr.Cmp{Op: expr.CmpOpEq, Register: 2, Data: in.Masked().Addr().AsSlice()}}
}

// isAddress: `ip saddr 10.0.0.1`.
func isAddress(offset uint32, a netip.Addr) exprs {
	return match(address(offset), netip.PrefixFrom(a, a.BitLen()))
}

// translate replaces the network part of an address in one prefix with that of another: `ip daddr 10.1.0.0/16 ip daddr
// set ip daddr & 0.0.255.255 | 10.0.0.0`. It corrects the checksum of the address's IP header, and others according to
// flags.
func translate(address *expr.Payload, ipChecksumAt uint32, flags uint32, from, to netip.Prefix) exprs {
	replaced := masked(binary.BigEndian.AppendUint32(nil, ^uint32(0)>>to.Bits()))
	replaced.Xor = to.Masked().Addr().AsSlice()
	return concat(match(address, from), exprs{replaced, &expr.Payload{
		OperationType: expr.PayloadWrite, SourceRegister: 1, Base: address.Base, Offset: address.Offset, Len: addressLength,
		CsumType: expr.CsumTypeInet, CsumOffset: ipChecksumAt, CsumFlags: flags,
	}})
}

// translateOuter rewrites an address of the packet itself.
func translateOuter(offset uint32, from, to netip.Prefix) exprs {
	return translate(address(offset), checksumAt, l4Checksum, from, to)
}

// translateInner rewrites an address of the packet inside an ICMP error. It corrects the checksum of the inner IP
// header, which absorbs the change, so the ICMP checksum stays valid (finding 2). The checksum of the inner TCP or UDP
// packet stays: nobody checks it, because most of that packet is missing.
func translateInner(offset uint32, from, to netip.Prefix) exprs {
	return translate(inner(offset), icmpHeader+checksumAt, 0, from, to)
}

func immediate(register uint32, data []byte) expr.Any {
	return &expr.Immediate{Register: register, Data: data}
}

// snatTo: `snat to 10.0.0.1`.
func snatTo(a netip.Addr) exprs { return exprs{immediate(1, a.AsSlice()), snat()} }

// snatToPorts: `snat to 10.0.0.1:32768-60999`.
func snatToPorts(a netip.Addr, first, last uint16) exprs {
	n := snat()
	n.RegProtoMin, n.RegProtoMax, n.Specified = 2, 3, true
	return exprs{immediate(1, a.AsSlice()), immediate(2, network(first)), immediate(3, network(last)), n}
}

// snatToSelf: `snat to ip saddr`.
func snatToSelf() exprs { return exprs{address(sourceAt), snat()} }

func snat() *expr.NAT {
	return &expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegAddrMax: 1}
}

// clampMSS: `tcp flags & (fin|syn) == syn tcp option maxseg size set rt mtu`. The kernel only lowers it, to fit the
// routes of both directions.
func clampMSS() exprs {
	const optionMSS = 2
	return concat(tcpFlags(tcpFIN|tcpSYN, tcpSYN), exprs{
		&expr.Rt{Register: 1, Key: expr.RtTCPMSS},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 2, Size: 2},
		&expr.Exthdr{SourceRegister: 1, Type: optionMSS, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
	})
}
