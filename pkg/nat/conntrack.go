package nat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h, where no library
// has it.
const (
	ctaFilter             = 25
	ctaFilterOriginal     = 1
	filterSource          = 1 << 0 // of the kernel's enum ctnetlink_filter flags
	filterProtocol        = 1 << 3
	filterSourcePort      = 1 << 4
	ctStatusSNAT          = 1 << 4 // IPS_SRC_NAT
	conntrackGenmsgLength = 4
)

// forgetUntranslated removes connection entries of UDP packets from an address and
// port whose source is not translated, and says how many there were. The kernel asks
// the nat chains for a connection's first packet only. A gateway that calls its peer
// sends from one port all the time, so an entry from before our rule was there would
// never expire. Kernels without netlink for connection tracking have nothing removed.
func forgetUntranslated(source netip.AddrPort) (forgotten int, err error) {
	if !source.Addr().Is4() {
		return 0, nil // IPv6 is not in use yet
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, fmt.Errorf("open connection tracking: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Nested(nl.CTA_TUPLE_ORIG, func(e *netlink.AttributeEncoder) error {
		e.Nested(nl.CTA_TUPLE_IP, func(e *netlink.AttributeEncoder) error {
			e.Bytes(nl.CTA_IP_V4_SRC, source.Addr().AsSlice())
			return nil
		})
		e.Nested(nl.CTA_TUPLE_PROTO, func(e *netlink.AttributeEncoder) error {
			e.Uint8(nl.CTA_PROTO_NUM, unix.IPPROTO_UDP)
			e.Uint16(nl.CTA_PROTO_SRC_PORT, source.Port())
			return nil
		})
		return nil
	})
	// Linux 5.8 and later list only what matches. Before they list everything.
	e.Nested(ctaFilter, func(e *netlink.AttributeEncoder) error {
		e.Bytes(ctaFilterOriginal, binary.NativeEndian.AppendUint32(nil, filterSource|filterProtocol|filterSourcePort))
		return nil
	})
	attributes, err := e.Encode()
	if err != nil {
		return 0, err
	}
	entries, err := c.Execute(conntrackMessage(nl.IPCTNL_MSG_CT_GET, netlink.Dump, attributes))
	if errors.Is(err, unix.EINVAL) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("list the connections of %s: %w", source, err)
	}
	for _, m := range entries {
		tuple, ok := untranslated(m, source)
		if !ok {
			continue
		}
		_, err := c.Execute(conntrackMessage(nl.IPCTNL_MSG_CT_DELETE, netlink.Acknowledge, tuple))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return forgotten, fmt.Errorf("forget a connection of %s: %w", source, err)
		}
		forgotten++
	}
	return forgotten, nil
}

func conntrackMessage(typ int, flags netlink.HeaderFlags, attributes []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | typ), Flags: netlink.Request | flags},
		Data:   append([]byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0}, attributes...),
	}
}

// untranslated returns the attribute that names an entry, if its packets come from a
// source and keep it.
func untranslated(m netlink.Message, source netip.AddrPort) (tuple []byte, ok bool) {
	if len(m.Data) < conntrackGenmsgLength {
		return nil, false
	}
	d, err := netlink.NewAttributeDecoder(m.Data[conntrackGenmsgLength:])
	if err != nil {
		return nil, false
	}
	d.ByteOrder = binary.BigEndian
	var from netip.Addr
	var port uint16
	var protocol uint8
	for d.Next() {
		switch d.Type() {
		case nl.CTA_TUPLE_ORIG:
			if tuple, err = netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NLA_F_NESTED | nl.CTA_TUPLE_ORIG, Data: d.Bytes()}}); err != nil {
				return nil, false
			}
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					part := d.Type()
					d.Nested(func(d *netlink.AttributeDecoder) error {
						for d.Next() {
							switch {
							case part == nl.CTA_TUPLE_IP && d.Type() == nl.CTA_IP_V4_SRC:
								from, _ = netip.AddrFromSlice(d.Bytes())
							case part == nl.CTA_TUPLE_PROTO && d.Type() == nl.CTA_PROTO_NUM:
								protocol = d.Uint8()
							case part == nl.CTA_TUPLE_PROTO && d.Type() == nl.CTA_PROTO_SRC_PORT:
								port = d.Uint16()
							}
						}
						return nil
					})
				}
				return nil
			})
		case nl.CTA_STATUS:
			if d.Uint32()&ctStatusSNAT != 0 {
				return nil, false
			}
		}
	}
	return tuple, d.Err() == nil && protocol == unix.IPPROTO_UDP && netip.AddrPortFrom(from, port) == source
}
