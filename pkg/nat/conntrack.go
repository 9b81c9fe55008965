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
	nfgenmsgLength    = 4
)

// forgetUntranslated removes connection entries of UDP packets from an address and
// port whose source is not translated, and says how many there were. The kernel asks
// the nat chains for a connection's first packet only. A gateway that calls its peer
// sends from one port all the time, so an entry from before our rule was there would
// never expire. Where the kernel has no netlink for connection tracking, nothing is
// removed.
func forgetUntranslated(source netip.AddrPort) (forgotten int, err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, fmt.Errorf("open connection tracking: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	address := attributes(func(e *netlink.AttributeEncoder) { e.Bytes(nl.CTA_IP_V4_SRC, source.Addr().AsSlice()) })
	port := attributes(func(e *netlink.AttributeEncoder) {
		e.Uint8(nl.CTA_PROTO_NUM, unix.IPPROTO_UDP)
		e.Uint16(nl.CTA_PROTO_SRC_PORT, source.Port())
	})
	filter := attributes(func(e *netlink.AttributeEncoder) {
		e.Bytes(ctaFilterOriginal, binary.NativeEndian.AppendUint32(nil, filterSource|filterProtocol|filterSourcePort))
	})
	entries, err := c.Execute(conntrack(nl.IPCTNL_MSG_CT_GET, netlink.Dump, attributes(func(e *netlink.AttributeEncoder) {
		e.Bytes(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, attributes(func(e *netlink.AttributeEncoder) {
			e.Bytes(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, address)
			e.Bytes(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, port)
		}))
		e.Bytes(unix.NLA_F_NESTED|ctaFilter, filter)
	})))
	if errors.Is(err, unix.EINVAL) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("list the connections of %s: %w", source, err)
	}
	for _, m := range entries {
		tuple, translated := entry(m)
		// Kernels before 5.8 ignore the filter. The entry's attributes are in the order in
		// which they were asked for.
		if translated || !bytes.Contains(tuple, address) || !bytes.Contains(tuple, port) {
			continue
		}
		_, err := c.Execute(conntrack(nl.IPCTNL_MSG_CT_DELETE, netlink.Acknowledge, attributes(func(e *netlink.AttributeEncoder) {
			e.Bytes(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, tuple)
		})))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return forgotten, fmt.Errorf("forget a connection of %s: %w", source, err)
		}
		forgotten++
	}
	return forgotten, nil
}

// attributes encodes attributes of known sizes, which cannot fail.
func attributes(f func(*netlink.AttributeEncoder)) []byte {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	f(e)
	b, _ := e.Encode()
	return b
}

func conntrack(typ int, flags netlink.HeaderFlags, attributes []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | typ), Flags: netlink.Request | flags},
		Data:   append([]byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0}, attributes...),
	}
}

// entry returns the addresses and ports of a connection, as the kernel encodes them,
// and whether its source is translated.
func entry(m netlink.Message) (tuple []byte, translated bool) {
	d, err := netlink.NewAttributeDecoder(m.Data[min(nfgenmsgLength, len(m.Data)):])
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
