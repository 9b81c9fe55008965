package nat

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
)

// Each function returns the expressions that nft makes of the text in its comment.

// l4Checksum has the kernel adapt the checksum of TCP and UDP to a
// changed address (NFT_PAYLOAD_L4CSUM_PSEUDOHDR). It leaves zero UDP checksums,
// later fragments, and protocols without a pseudo header alone.
const l4Checksum = unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR

const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpACK = 0x10
)

func concat(parts ...[]expr.Any) []expr.Any { return slices.Concat(parts...) }

// not inverts a comparison, or a lookup: `iifgroup != 27761`.
func not(e []expr.Any) []expr.Any {
	switch last := e[len(e)-1].(type) {
	case *expr.Cmp:
		last.Op = expr.CmpOpNeq
	case *expr.Lookup:
		last.Invert = true
	}
	return e
}

// masked compares some bits of what an expression loads.
func masked(load expr.Any, mask, value []byte) []expr.Any {
	size := uint32(len(mask))
	bits := &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)}
	return []expr.Any{load, bits, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}}
}

// iif: `iifname "eth0"`.
func iif(name string) []expr.Any { return nft.Meta(expr.MetaKeyIIFNAME, ifname(name)...) }

// ifname is the name of an interface as nftables compares it.
func ifname(name string) []byte {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

// iifGroup: `iifgroup 27761`. The kernel compares a number much faster than a name,
// for which it copies 16 bytes, and these comparisons are a good part of all rules.
func iifGroup(group uint32) []expr.Any {
	return nft.Meta(expr.MetaKeyIIFGROUP, binary.NativeEndian.AppendUint32(nil, group)...)
}

// oifGroup: `oifgroup 27761`.
func oifGroup(group uint32) []expr.Any {
	return nft.Meta(expr.MetaKeyOIFGROUP, binary.NativeEndian.AppendUint32(nil, group)...)
}

// forUs: `meta pkttype host`, true for frames whose destination is this interface's own
// address.
func forUs() []expr.Any { return nft.Meta(expr.MetaKeyPKTTYPE, unix.PACKET_HOST) }

// forgedSource: `fib saddr . iif oif missing`, true where the way back to the
// source is not by the interface that the packet came from.
func forgedSource() []expr.Any {
	return nft.Equal(&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, ResultOIF: true}, make([]byte, 4))
}

// proto: `meta l4proto udp`.
func proto(p byte) []expr.Any { return nft.Meta(expr.MetaKeyL4PROTO, p) }

func port(protocol byte, offset uint32, p uint16) []expr.Any {
	return concat(proto(protocol), nft.Equal(nft.TransportHeader(offset, 2), binary.BigEndian.AppendUint16(nil, p)))
}

// udpDport: `udp dport 6094`.
func udpDport(p uint16) []expr.Any { return port(unix.IPPROTO_UDP, 2, p) }

// udpSport: `udp sport 53`.
func udpSport(p uint16) []expr.Any { return port(unix.IPPROTO_UDP, 0, p) }

// udpDportBeyond: `udp dport != 32768-60999`.
func udpDportBeyond(first, last uint16) []expr.Any {
	return concat(proto(unix.IPPROTO_UDP), []expr.Any{nft.TransportHeader(2, 2), &expr.Range{
		Op: expr.CmpOpNeq, Register: 1, FromData: binary.BigEndian.AppendUint16(nil, first), ToData: binary.BigEndian.AppendUint16(nil, last),
	}})
}

// tcpDport: `tcp dport 6096`.
func tcpDport(p uint16) []expr.Any { return port(unix.IPPROTO_TCP, 2, p) }

// tcpSport: `tcp sport 6096`.
func tcpSport(p uint16) []expr.Any { return port(unix.IPPROTO_TCP, 0, p) }

// tcpFlags: `tcp flags & mask == value`.
func tcpFlags(mask, value byte) []expr.Any {
	return concat(proto(unix.IPPROTO_TCP), masked(nft.TransportHeader(13, 1), []byte{mask}, []byte{value}))
}

// icmpType: `icmp type echo-request`.
func icmpType(t byte) []expr.Any {
	return concat(proto(unix.IPPROTO_ICMP), nft.Equal(nft.TransportHeader(0, 1), []byte{t}))
}

// sctpChunk: `sctp chunk init exists`, true if the first chunk is of that type.
func sctpChunk(t byte) []expr.Any {
	return concat(proto(unix.IPPROTO_SCTP), nft.Equal(nft.TransportHeader(12, 1), []byte{t}))
}

// icmp6Type: `icmpv6 type nd-neighbor-solicit`.
func icmp6Type(t byte) []expr.Any {
	return concat(proto(unix.IPPROTO_ICMPV6), nft.Equal(nft.TransportHeader(0, 1), []byte{t}))
}

// notFragment: `ip frag-off & 0x1fff == 0`, true for whole packets and first
// fragments.
func notFragment() []expr.Any {
	return masked(nft.IPHeader(fragmentAt, 2), []byte{0x1f, 0xff}, []byte{0, 0})
}

// firstFragment: `ip frag-off & 0x2000 != 0`, true for all fragments but the last.
// Together with a match of what only first fragments have, it is those.
func firstFragment() []expr.Any {
	return not(masked(nft.IPHeader(fragmentAt, 2), []byte{0x20, 0}, []byte{0, 0}))
}

// inSet: `ip saddr @name`.
func inSet(offset uint32, name string) []expr.Any {
	return []expr.Any{nft.IPHeader(offset, addressLength), &expr.Lookup{SourceRegister: 1, SetName: name}}
}

// senderInSet: `iifname . ip saddr @name`.
func senderInSet(name string) []expr.Any {
	return byLinkInSet(nft.IPHeader(sourceAt, addressLength), name)
}

// innerReceiverInSet says whether the packet that an ICMP error carries went to who may send
// by this link.
func innerReceiverInSet(name string) []expr.Any {
	return byLinkInSet(nft.TransportHeader(icmpHeader+destinationAt, addressLength), name)
}

func byLinkInSet(address *expr.Payload, name string) []expr.Any {
	address.DestRegister = 2 // behind the name, which fills the first one
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, address, &expr.Lookup{SourceRegister: 1, SetName: name}}
}

// innerInSet is inSet for the packet that an ICMP error carries.
func innerInSet(offset uint32, name string) []expr.Any {
	return []expr.Any{nft.TransportHeader(icmpHeader+offset, addressLength), &expr.Lookup{SourceRegister: 1, SetName: name}}
}

// fromLocal: `fib saddr type local`.
func fromLocal() []expr.Any {
	return nft.Equal(&expr.Fib{Register: 1, FlagSADDR: true, ResultADDRTYPE: true}, binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL))
}

// toUnicast: `fib daddr type unicast`.
func toUnicast() []expr.Any {
	return nft.Equal(&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, binary.NativeEndian.AppendUint32(nil, unix.RTN_UNICAST))
}

// answers: `ct state established,related`.
func answers() []expr.Any {
	return ctBits(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
}

// destinationTranslated: `ct status dnat`.
func destinationTranslated() []expr.Any {
	const dnat = 1 << 5 // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h
	return ctBits(expr.CtKeySTATUS, dnat)
}

// ctBits is true if any of the bits is set.
func ctBits(key expr.CtKey, bits uint32) []expr.Any {
	return not(masked(&expr.Ct{Key: key, Register: 1}, binary.NativeEndian.AppendUint32(nil, bits), make([]byte, 4)))
}

// notInTable: `ct status & confirmed == 0`, true for the first packet of a connection, which gets
// into the table when the packet leaves. A state of new lasts until there is an answer.
func notInTable() []expr.Any {
	const confirmed = 1 << 3 // IPS_CONFIRMED of linux/netfilter/nf_conntrack_common.h
	return masked(&expr.Ct{Key: expr.CtKeySTATUS, Register: 1}, binary.NativeEndian.AppendUint32(nil, confirmed), make([]byte, 4))
}

// packetsOver: `limit rate over 1000/second burst 1000 packets`.
func packetsOver(perSecond uint32) []expr.Any {
	return []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(perSecond), Burst: perSecond, Unit: expr.LimitTimeSecond, Over: true}}
}

// bytesOver: `limit rate over 1000000 bytes/second`. To the kernel's bucket, which has room for
// what passes in one second, burst is added.
func bytesOver(perSecond uint64) []expr.Any {
	return []expr.Any{&expr.Limit{Type: expr.LimitTypePktBytes, Rate: perSecond, Unit: expr.LimitTimeSecond, Over: true}}
}

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }

func accept() []expr.Any        { return verdict(expr.VerdictAccept) }
func returnVerdict() []expr.Any { return verdict(expr.VerdictReturn) }

// drop: `counter name "forward/transit" drop`. All rules that drop at a hook for one reason have one
// counter, but for those that are about a link.
func drop(hook, reason string, link ...string) []expr.Any {
	name := strings.Join(append([]string{hook, reason}, link...), counterSeparator)
	return concat([]expr.Any{&expr.Objref{Type: int(nftables.ObjTypeCounter), Name: name}}, verdict(expr.VerdictDrop))
}

// jump: `jump from-peer`.
func jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// clearMark: `meta mark set 0`.
func clearMark() []expr.Any {
	return []expr.Any{&expr.Immediate{Register: 1, Data: make([]byte, 4)}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1}}
}

func notrack() []expr.Any    { return []expr.Any{&expr.Notrack{}} }
func masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }

// match loads an address into register 1 and goes on if it is in the prefix.
func match(address *expr.Payload, in netip.Prefix) []expr.Any {
	mask := net.CIDRMask(in.Bits(), in.Addr().BitLen())
	return []expr.Any{
		address,
		&expr.Bitwise{SourceRegister: 1, DestRegister: 2, Len: addressLength, Mask: mask, Xor: make([]byte, addressLength)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 2, Data: in.Masked().Addr().AsSlice()},
	}
}

// isAddress: `ip saddr 10.0.0.1`.
func isAddress(offset uint32, a netip.Addr) []expr.Any {
	return match(nft.IPHeader(offset, addressLength), netip.PrefixFrom(a, a.BitLen()))
}

// translate replaces the network part of an address in one prefix by that of another one:
// `ip daddr 10.1.0.0/16 ip daddr set ip daddr & 0.0.255.255 | 10.0.0.0`. The checksum of
// the address's IP header is corrected, and others by flags.
func translate(address *expr.Payload, ipChecksumAt uint32, flags uint32, from, to netip.Prefix) []expr.Any {
	host := binary.BigEndian.AppendUint32(nil, ^uint32(0)>>to.Bits())
	return concat(match(address, from), []expr.Any{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: addressLength, Mask: host, Xor: to.Masked().Addr().AsSlice()},
		&expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: 1, Base: address.Base, Offset: address.Offset, Len: addressLength,
			CsumType: expr.CsumTypeInet, CsumOffset: ipChecksumAt, CsumFlags: flags,
		},
	})
}

// translateOuter rewrites an address of the packet itself.
func translateOuter(offset uint32, from, to netip.Prefix) []expr.Any {
	return translate(nft.IPHeader(offset, addressLength), checksumAt, l4Checksum, from, to)
}

// translateInner rewrites an address of the packet that an ICMP error carries. The
// checksum of the inner IP header is corrected. It absorbs the change, so ICMP's own stays
// right (finding 2). That of the inner packet's TCP or UDP is left as it is: nobody looks
// at it, because most of that packet is not there.
func translateInner(offset uint32, from, to netip.Prefix) []expr.Any {
	return translate(nft.TransportHeader(icmpHeader+offset, addressLength), icmpHeader+checksumAt, 0, from, to)
}

// snatTo: `snat to 10.0.0.1`.
func snatTo(a netip.Addr) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: 1, Data: a.AsSlice()}, snat()}
}

// snatToPorts: `snat to 10.0.0.1:32768-60999`.
func snatToPorts(a netip.Addr, first, last uint16) []expr.Any {
	n := snat()
	n.RegProtoMin, n.RegProtoMax, n.Specified = 2, 3, true
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: a.AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, first)},
		&expr.Immediate{Register: 3, Data: binary.BigEndian.AppendUint16(nil, last)},
		n,
	}
}

// snatToSelf: `snat to ip saddr`.
func snatToSelf() []expr.Any { return []expr.Any{nft.IPHeader(sourceAt, addressLength), snat()} }

func snat() *expr.NAT {
	return &expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegAddrMax: 1}
}

// clampMSS: `tcp flags & (fin|syn) == syn tcp option maxseg size set rt mtu`.
// The kernel only ever lowers it, to what fits the routes of both directions.
func clampMSS() []expr.Any {
	const optionMSS = 2
	return concat(tcpFlags(tcpFIN|tcpSYN, tcpSYN), []expr.Any{
		&expr.Rt{Register: 1, Key: expr.RtTCPMSS},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 2, Size: 2},
		&expr.Exthdr{SourceRegister: 1, Type: optionMSS, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
	})
}
