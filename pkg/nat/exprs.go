package nat

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
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

	portDNS = 53
)

func concat(parts ...[]expr.Any) []expr.Any { return slices.Concat(parts...) }

// iif: `iifname "eth0"`.
func iif(name string) []expr.Any {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data},
	}
}

// iifGroup: `iifgroup 27761`. The kernel compares a number much faster than a name,
// for which it copies 16 bytes, and these comparisons are a good part of all rules.
func iifGroup(group uint32) []expr.Any { return ifgroup(expr.MetaKeyIIFGROUP, group) }

// oifGroup: `oifgroup 27761`.
func oifGroup(group uint32) []expr.Any { return ifgroup(expr.MetaKeyOIFGROUP, group) }

func ifgroup(key expr.MetaKey, group uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, group)},
	}
}

// not inverts a comparison: `iifgroup != 27761`.
func not(e []expr.Any) []expr.Any {
	e[1].(*expr.Cmp).Op = expr.CmpOpNeq
	return e
}

// notForUs: `meta pkttype != host`, true for frames whose destination is not
// this interface's own address.
func notForUs() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPKTTYPE, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.PACKET_HOST}},
	}
}

// forUs: `meta pkttype host`.
func forUs() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPKTTYPE, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.PACKET_HOST}},
	}
}

// forgedSource: `fib saddr . iif oif missing`, true where the way back to the
// source is not by the interface that the packet came from.
func forgedSource() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, ResultOIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)},
	}
}

// proto: `meta l4proto udp`.
func proto(p byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{p}},
	}
}

func port(offset uint32, p uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, p)},
	}
}

// udpDport: `udp dport 6094`.
func udpDport(p uint16) []expr.Any { return concat(proto(unix.IPPROTO_UDP), port(2, p)) }

// udpSport: `udp sport 53`.
func udpSport(p uint16) []expr.Any { return concat(proto(unix.IPPROTO_UDP), port(0, p)) }

// tcpDport: `tcp dport 6096`.
func tcpDport(p uint16) []expr.Any { return concat(proto(unix.IPPROTO_TCP), port(2, p)) }

// tcpSport: `tcp sport 6096`.
func tcpSport(p uint16) []expr.Any { return concat(proto(unix.IPPROTO_TCP), port(0, p)) }

// tcpFlags: `tcp flags & mask == value` (or !=).
func tcpFlags(mask, value byte, op expr.CmpOp) []expr.Any {
	return concat(proto(unix.IPPROTO_TCP), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: 1, Data: []byte{value}},
	})
}

// icmpType: `icmp type echo-request`.
func icmpType(t byte) []expr.Any {
	return concat(proto(unix.IPPROTO_ICMP), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{t}},
	})
}

// notFragment: `ip frag-off & 0x1fff == 0`, true for whole packets and first
// fragments.
func notFragment() []expr.Any { return fragment([]byte{0x1f, 0xff}, expr.CmpOpEq) }

// firstFragment: `ip frag-off & 0x2000 != 0`, true for all fragments but the last.
// Together with a match of what only first fragments have, it is those.
func firstFragment() []expr.Any { return fragment([]byte{0x20, 0}, expr.CmpOpNeq) }

// fragment compares bits of the header's flags and fragment offset with 0.
func fragment(bits []byte, op expr.CmpOp) []expr.Any {
	const offset = 6
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 2},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: bits, Xor: []byte{0, 0}},
		&expr.Cmp{Op: op, Register: 1, Data: []byte{0, 0}},
	}
}

// inSet: `ip saddr @name` or, inverted, `ip saddr != @name`.
func inSet(offset uint32, name string, invert bool) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: addressLength},
		&expr.Lookup{SourceRegister: 1, SetName: name, Invert: invert},
	}
}

// innerInSet is inSet for the packet that an ICMP error carries.
func innerInSet(offset uint32, name string, invert bool) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: icmpHeader + offset, Len: addressLength},
		&expr.Lookup{SourceRegister: 1, SetName: name, Invert: invert},
	}
}

// addrType: `fib saddr type local`, `fib daddr type != unicast`.
func addrType(source bool, typ uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagSADDR: source, FlagDADDR: !source, ResultADDRTYPE: true},
		&expr.Cmp{Op: op, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, typ)},
	}
}

// ctBits: `ct state established,related`, `ct status dnat`: any of the bits.
func ctBits(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }

func accept() []expr.Any        { return verdict(expr.VerdictAccept) }
func returnVerdict() []expr.Any { return verdict(expr.VerdictReturn) }
func drop() []expr.Any          { return verdict(expr.VerdictDrop) }

// jump: `jump from-peer`.
func jump(c chain) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: c.name}}
}

// match loads an address at an offset into register 1 and goes on if it is in
// the prefix.
func match(base expr.PayloadBase, offset uint32, in netip.Prefix) []expr.Any {
	mask, _ := masks(in.Bits())
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: addressLength},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 2, Len: addressLength, Mask: mask, Xor: make([]byte, addressLength)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 2, Data: in.Masked().Addr().AsSlice()},
	}
}

// rewrite replaces the network part of the address in register 1 by that of a
// prefix and writes it back: `ip daddr set ip daddr & 0.0.255.255 | 10.0.0.0`.
func rewrite(to netip.Prefix, write expr.Payload) []expr.Any {
	_, host := masks(to.Bits())
	write.OperationType, write.SourceRegister, write.Len = expr.PayloadWrite, 1, addressLength
	return []expr.Any{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: addressLength, Mask: host, Xor: to.Masked().Addr().AsSlice()},
		&write,
	}
}

// translate rewrites an address of the packet itself.
func translate(offset uint32, from, to netip.Prefix) []expr.Any {
	return concat(match(expr.PayloadBaseNetworkHeader, offset, from), rewrite(to, expr.Payload{
		Base: expr.PayloadBaseNetworkHeader, Offset: offset, CsumFlags: l4Checksum,
		CsumType: expr.CsumTypeInet, CsumOffset: checksumAt,
	}))
}

// icmpHeader is how far the packet that caused an ICMP error is inside of it.
const icmpHeader = 8

// translateInner rewrites an address of the packet that an ICMP error carries. The
// checksum of the inner IP header is corrected. It absorbs the change, so ICMP's own stays
// right (finding 2). That of the inner packet's TCP or UDP is left as it is: nobody looks
// at it, because most of that packet is not there.
func translateInner(offset uint32, from, to netip.Prefix) []expr.Any {
	return concat(
		match(expr.PayloadBaseTransportHeader, icmpHeader+offset, from),
		rewrite(to, expr.Payload{
			Base: expr.PayloadBaseTransportHeader, Offset: icmpHeader + offset,
			CsumType: expr.CsumTypeInet, CsumOffset: icmpHeader + checksumAt,
		}),
	)
}

// snatTo: `snat to 10.0.0.1`.
func snatTo(a netip.Addr) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: 1, Data: a.AsSlice()}, snat()}
}

// snatToSelf: `snat to ip saddr`.
func snatToSelf() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: sourceAt, Len: addressLength},
		snat(),
	}
}

func snat() expr.Any {
	return &expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegAddrMax: 1}
}

// clampMSS: `tcp flags & (fin|syn) == syn tcp option maxseg size set rt mtu`.
// The kernel only ever lowers it, to what fits the routes of both directions.
func clampMSS() []expr.Any {
	return concat(tcpFlags(tcpFIN|tcpSYN, tcpSYN, expr.CmpOpEq), []expr.Any{
		&expr.Rt{Register: 1, Key: expr.RtTCPMSS},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 2, Size: 2},
		&expr.Exthdr{SourceRegister: 1, Type: tcpOptionMSS, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
	})
}

const tcpOptionMSS = 2
