package nat

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Each function returns the expressions that nft makes of the text in its comment.

// l4Checksum has the kernel adapt the checksum of TCP, UDP and ICMPv6 to a
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
func (f family) icmpType(t byte) []expr.Any {
	return concat(proto(f.icmp), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{t}},
	})
}

// notFragment: `ip frag-off & 0x1fff == 0`, true for whole packets and first
// fragments; `exthdr frag missing`, true for whole packets. ICMPv6 errors are
// never so large that they had to be fragmented (RFC 4443, section 2.4).
func (f family) notFragment() []expr.Any { return f.fragment([]byte{0x1f, 0xff}, false) }

// firstFragment: `ip frag-off & 0x2000 != 0`, true for all fragments but the last;
// `exthdr frag exists`, true for all fragments. Together with a match of what only
// first fragments have, it is those.
func (f family) firstFragment() []expr.Any { return f.fragment([]byte{0x20, 0}, true) }

// fragment compares bits of an IPv4 header's flags and fragment offset with 0; in
// IPv6, whether there is a fragment header.
func (f family) fragment(bits []byte, set bool) []expr.Any {
	if f.nft == nftables.TableFamilyIPv6 {
		present := byte(0)
		if set {
			present = 1
		}
		return []expr.Any{
			&expr.Exthdr{
				DestRegister: 1, Op: expr.ExthdrOpIpv6, Type: unix.IPPROTO_FRAGMENT, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT,
			},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{present}},
		}
	}
	op := expr.CmpOpEq
	if set {
		op = expr.CmpOpNeq
	}
	const offset = 6
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 2},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: bits, Xor: []byte{0, 0}},
		&expr.Cmp{Op: op, Register: 1, Data: []byte{0, 0}},
	}
}

// isAddr: `ip saddr 10.0.0.1`.
func (f family) isAddr(offset uint32, a netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.addrLen},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()},
	}
}

// inSet: `ip saddr @name` or, inverted, `ip saddr != @name`.
func (f family) inSet(offset uint32, name string, invert bool) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.addrLen},
		&expr.Lookup{SourceRegister: 1, SetName: name, Invert: invert},
	}
}

// innerInSet is inSet for the packet that an ICMP error carries.
func (f family) innerInSet(offset uint32, name string, invert bool) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: icmpHeader + offset, Len: f.addrLen},
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
func (f family) match(base expr.PayloadBase, offset uint32, in netip.Prefix) []expr.Any {
	mask, _ := f.mask(in.Bits())
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: f.addrLen},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 2, Len: f.addrLen, Mask: mask, Xor: make([]byte, f.addrLen)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 2, Data: in.Masked().Addr().AsSlice()},
	}
}

// rewrite replaces the network part of the address in register 1 by that of a
// prefix and writes it back: `ip daddr set ip daddr & 0.0.255.255 | 10.0.0.0`.
func (f family) rewrite(to netip.Prefix, write expr.Payload) []expr.Any {
	_, host := f.mask(to.Bits())
	write.OperationType, write.SourceRegister, write.Len = expr.PayloadWrite, 1, f.addrLen
	return []expr.Any{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: f.addrLen, Mask: host, Xor: to.Masked().Addr().AsSlice()},
		&write,
	}
}

// translate rewrites an address of the packet itself.
func (f family) translate(offset uint32, from, to netip.Prefix) []expr.Any {
	write := expr.Payload{
		Base: expr.PayloadBaseNetworkHeader, Offset: offset, CsumFlags: l4Checksum,
		CsumType: expr.CsumTypeInet, CsumOffset: f.checksum,
	}
	if !f.hasChecksum {
		// The library sends the flags with a checksum only, so it gets one: in the
		// address itself, which the kernel overwrites after it (nft_payload_set_eval).
		write.CsumOffset = offset
	}
	return concat(f.match(expr.PayloadBaseNetworkHeader, offset, from), f.rewrite(to, write))
}

// icmpHeader is how far the packet that caused an ICMP error is inside of it.
const icmpHeader = 8

// icmpChecksum is the offset of ICMP's own checksum.
const icmpChecksum = 2

// translateInner rewrites an address of the packet that an ICMP error carries.
// The checksum that is corrected is that of the inner IP header. It absorbs
// the change, so ICMP's own stays right (finding 2). An IPv6 header has none, so
// there it is ICMP's own. That of the inner packet's TCP or UDP is left as it
// is, in both: nobody looks at it, because most of that packet is not there.
func (f family) translateInner(offset uint32, from, to netip.Prefix) []expr.Any {
	checksum := uint32(icmpChecksum)
	if f.hasChecksum {
		checksum = icmpHeader + f.checksum
	}
	return concat(
		f.match(expr.PayloadBaseTransportHeader, icmpHeader+offset, from),
		f.rewrite(to, expr.Payload{
			Base: expr.PayloadBaseTransportHeader, Offset: icmpHeader + offset,
			CsumType: expr.CsumTypeInet, CsumOffset: checksum,
		}),
	)
}

// snatTo: `snat to 10.0.0.1`.
func (f family) snatTo(a netip.Addr) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: 1, Data: a.AsSlice()}, f.snat()}
}

// snatToSelf: `snat to ip saddr`.
func (f family) snatToSelf() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.saddr, Len: f.addrLen},
		f.snat(),
	}
}

func (f family) snat() expr.Any {
	return &expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.nft), RegAddrMin: 1, RegAddrMax: 1}
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
