package nat

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
)

// Of linux/netfilter/nfnetlink_conntrack.h, nf_conntrack_common.h and the kernel's
// nf_internals.h, which no library has.
const (
	ctaFilter         = 25
	ctaFilterOriginal = 1
	filterSource      = 1 << 0
	filterProtocol    = 1 << 3
	filterSourcePort  = 1 << 4
	ctStatusSNAT      = 1 << 4 // IPS_SRC_NAT
)

// forgetUntranslated removes connection entries of UDP packets from an address and
// port whose source is not translated, and says whether there were any. The kernel asks
// the nat chains for a connection's first packet only. A gateway that calls its peer
// sends from one port all the time, so an entry from before our rule was there would
// never expire. Where the kernel has no netlink for connection tracking, nothing is
// removed.
func forgetUntranslated(source netip.AddrPort) (forgotten bool, err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return false, fmt.Errorf("open connection tracking: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	address := attribute(nl.CTA_IP_V4_SRC, source.Addr().AsSlice()...)
	protocol := attribute(nl.CTA_PROTO_NUM, unix.IPPROTO_UDP)
	sourcePort := attribute(nl.CTA_PROTO_SRC_PORT, binary.BigEndian.AppendUint16(nil, source.Port())...)
	entries, err := c.Execute(conntrack(
		nl.IPCTNL_MSG_CT_GET, netlink.Dump,
		nested(nl.CTA_TUPLE_ORIG, nested(nl.CTA_TUPLE_IP, address), nested(nl.CTA_TUPLE_PROTO, protocol, sourcePort)),
		nested(ctaFilter, attribute(ctaFilterOriginal, binary.NativeEndian.AppendUint32(nil, filterSource|filterProtocol|filterSourcePort)...)),
	))
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list the connections of %s: %w", source, err)
	}
	for _, m := range entries {
		tuple, translated := entry(m)
		// Kernels before 5.8 ignore the filter. The entry's attributes are in the order in
		// which they were asked for.
		if translated || !bytes.Contains(tuple, encode(address)) || !bytes.Contains(tuple, encode(protocol, sourcePort)) {
			continue
		}
		_, err := c.Execute(conntrack(nl.IPCTNL_MSG_CT_DELETE, netlink.Acknowledge, attribute(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, tuple...)))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return forgotten, fmt.Errorf("forget a connection of %s: %w", source, err)
		}
		forgotten = true
	}
	return forgotten, nil
}

func conntrack(typ int, flags netlink.HeaderFlags, attributes ...netlink.Attribute) netlink.Message {
	return message(unix.NFNL_SUBSYS_CTNETLINK, typ, flags, unix.AF_INET, attributes...)
}

// entry returns the addresses and ports of a connection, as the kernel encodes them,
// and whether its source is translated.
func entry(m netlink.Message) (tuple []byte, translated bool) {
	d, err := netlink.NewAttributeDecoder(m.Data[nft.HeaderLength:])
	if err != nil {
		return nil, false
	}
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		switch d.Type() {
		case nl.CTA_TUPLE_ORIG:
			tuple = d.Bytes()
		case nl.CTA_STATUS:
			translated = d.Uint32()&ctStatusSNAT != 0
		}
	}
	return tuple, translated
}

// Messages of netfilter that the libraries do not have are made of these.

func attribute(typ uint16, data ...byte) netlink.Attribute {
	return netlink.Attribute{Type: typ, Data: data}
}

func number(typ uint16, n uint32) netlink.Attribute {
	return attribute(typ, binary.BigEndian.AppendUint32(nil, n)...)
}

func text(typ uint16, s string) netlink.Attribute { return attribute(typ, append([]byte(s), 0)...) }

func nested(typ uint16, attributes ...netlink.Attribute) netlink.Attribute {
	return attribute(unix.NLA_F_NESTED|typ, encode(attributes...)...)
}

// encode cannot fail: no attribute is as long as 64 KiB.
func encode(attributes ...netlink.Attribute) []byte {
	b, _ := netlink.MarshalAttributes(attributes)
	return b
}

// message is one to a part of netfilter, such as unix.NFNL_SUBSYS_NFTABLES.
func message(subsystem, typ int, flags netlink.HeaderFlags, family byte, attributes ...netlink.Attribute) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(subsystem<<8 | typ), Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, encode(attributes...)...),
	}
}
