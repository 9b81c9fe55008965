package nat

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/nft"
)

// From linux/netfilter/nfnetlink_conntrack.h and the kernel's nf_internals.h. No library defines them.
const (
	ctaFilter         = 25
	ctaFilterOriginal = 1
	filterSource      = 1 << 0
	filterProtocol    = 1 << 3
	filterSourcePort  = 1 << 4
)

// deleteUntranslated deletes the conntrack entries of UDP packets from an address and port whose source is not
// translated, and reports whether there were any. The kernel consults nat chains only for a connection's first packet.
// A gateway that calls its peer always sends from the same port, so an entry that is older than our rule would never
// expire. If the kernel has no netlink for connection tracking, nothing is deleted.
func deleteUntranslated(source netip.AddrPort) (deleted bool, err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return false, fmt.Errorf("open connection tracking: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	address := attribute(nl.CTA_IP_V4_SRC, source.Addr().AsSlice()...)
	protocol := attribute(nl.CTA_PROTO_NUM, unix.IPPROTO_UDP)
	sourcePort := attribute(nl.CTA_PROTO_SRC_PORT, network(source.Port())...)
	entries, err := c.Execute(conntrack(
		nl.IPCTNL_MSG_CT_GET, netlink.Dump,
		nested(nl.CTA_TUPLE_ORIG, nested(nl.CTA_TUPLE_IP, address), nested(nl.CTA_TUPLE_PROTO, protocol, sourcePort)),
		nested(ctaFilter, attribute(ctaFilterOriginal, native(filterSource|filterProtocol|filterSourcePort)...)),
	))
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list the connections of %s: %w", source, err)
	}
	for _, m := range entries {
		entry := link.Attributes(m.Data[nft.HeaderLength:])
		tuple, status := entry[nl.CTA_TUPLE_ORIG], entry[nl.CTA_STATUS]
		isTranslated := len(status) == 4 && binary.BigEndian.Uint32(status)&ctSourceNAT != 0
		// Kernels before 5.8 ignore the filter. The attributes of an entry are in the same order as in the request.
		if isTranslated || !bytes.Contains(tuple, encode(address)) || !bytes.Contains(tuple, encode(protocol, sourcePort)) {
			continue
		}
		_, err := c.Execute(conntrack(nl.IPCTNL_MSG_CT_DELETE, netlink.Acknowledge, attribute(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, tuple...)))
		if link.IgnoreError(err, unix.ENOENT) != nil {
			return deleted, fmt.Errorf("delete a connection of %s: %w", source, err)
		}
		deleted = true
	}
	return deleted, nil
}

func conntrack(typ int, flags netlink.HeaderFlags, attributes ...netlink.Attribute) netlink.Message {
	return message(unix.NFNL_SUBSYS_CTNETLINK, typ, flags, unix.AF_INET, attributes...)
}

// The following functions build netfilter messages that the libraries lack.

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

// encode returns attributes in wire format. It cannot fail: all are shorter than 64 KiB.
func encode(attributes ...netlink.Attribute) []byte {
	b, _ := netlink.MarshalAttributes(attributes)
	return b
}

// message returns a message to a subsystem of netfilter, such as unix.NFNL_SUBSYS_NFTABLES.
func message(subsystem, typ int, flags netlink.HeaderFlags, family byte, attributes ...netlink.Attribute) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(subsystem<<8 | typ), Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, encode(attributes...)...),
	}
}

// replaceNetdev is replace for the family netdev. The nftables library has no expression for `fwd to gro0in`, so the
// messages are built here. If the kernel has no nft_fwd_netdev, it discards the whole transaction and sends no
// notification about it.
func (t table) replaceNetdev(exists bool) (err error) {
	// In all messages about tables, chains and rules, the first attribute is the table's name.
	name := text(unix.NFTA_TABLE_NAME, TableName)
	var batch []netlink.Message
	add := func(typ int, flags netlink.HeaderFlags, attributes ...netlink.Attribute) {
		batch = append(batch, message(unix.NFNL_SUBSYS_NFTABLES, typ, netlink.Acknowledge|flags, byte(t.family), attributes...))
	}
	if exists {
		add(unix.NFT_MSG_DELTABLE, 0, name)
	}
	for _, c := range t.chains {
		add(unix.NFT_MSG_NEWTABLE, netlink.Create, name)
		add(
			unix.NFT_MSG_NEWCHAIN, netlink.Create, name, text(unix.NFTA_CHAIN_NAME, c.Name), text(unix.NFTA_CHAIN_TYPE, string(c.Type)),
			nested(
				unix.NFTA_CHAIN_HOOK, number(unix.NFTA_HOOK_HOOKNUM, uint32(*c.Hooknum)),
				number(unix.NFTA_HOOK_PRIORITY, uint32(*c.Priority)), text(unix.NFTA_HOOK_DEV, c.Device),
			),
		)
		for _, r := range c.rules {
			var elements []netlink.Attribute
			for _, e := range append(r.exprs, immediate(1, native(t.forward))) {
				data, err := expr.Marshal(byte(t.family), e)
				if err != nil {
					return err
				}
				elements = append(elements, attribute(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, data...))
			}
			fwd := nested(unix.NFTA_EXPR_DATA, number(unix.NFTA_FWD_SREG_DEV, 1))
			elements = append(elements, nested(unix.NFTA_LIST_ELEM, text(unix.NFTA_EXPR_NAME, "fwd"), fwd))
			add(
				unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, name, text(unix.NFTA_RULE_CHAIN, c.Name),
				nested(unix.NFTA_RULE_EXPRESSIONS, elements...),
				attribute(unix.NFTA_RULE_USERDATA, nft.EncodeComment(t.label(r))...),
			)
		}
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return send(conn, batch)
}

// send sends one transaction, and waits until the kernel has accepted all of it or returned an error.
func send(conn *netlink.Conn, batch []netlink.Message) error {
	bracket := func(typ netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: typ, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	begin, end := bracket(unix.NFNL_MSG_BATCH_BEGIN), bracket(unix.NFNL_MSG_BATCH_END)
	if _, err := conn.SendMessages(append(append([]netlink.Message{begin}, batch...), end)); err != nil {
		return err
	}
	// The kernel acknowledges or refuses each message. If it refuses one, it refuses all.
	for range batch {
		if _, err := conn.Receive(); err != nil {
			return err
		}
	}
	return nil
}
