package nat

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
)

// Receive leads packets of tunnel and overlay, when they come in, into an
// interface whose other end aggregates them (see pkg/tunnel).
type Receive struct {
	// Underlay is the interface by which they come, Entry the one that they are
	// sent into. Where one of them is missing, nothing is led anywhere.
	Underlay, Entry string
	// Ports are UDP ports.
	Ports []uint16
}

const receiveChain = "receive"

// ApplyReceive makes the table of family netdev of the calling thread's network
// namespace what is wanted, and says whether anything had to be changed.
func ApplyReceive(ctx context.Context, r Receive) (changed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	c, err := dial()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, c.CloseLasting()) }()
	have, err := readReceive(c)
	if err != nil {
		return false, err
	}
	t := &nftables.Table{Name: TableName, Family: nftables.TableFamilyNetdev}
	underlay, entry := index(r.Underlay), index(r.Entry)
	if underlay == 0 || entry == 0 {
		if !have.exists {
			return false, nil
		}
		c.DelTable(t)
		if err := c.Flush(); err != nil {
			return false, fmt.Errorf("remove nftables table netdev %q: %w", TableName, err)
		}
		return true, nil
	}
	rules, labels, err := r.rules(underlay, entry)
	if err != nil {
		return false, err
	}
	if !have.dormant && len(have.chains) == 1 && have.setCount == 0 && slices.Equal(have.labels[receiveChain], labels) {
		return false, nil
	}
	if err := r.replace(have.exists, rules, labels, entry); err != nil {
		return false, fmt.Errorf("replace nftables table netdev %q: %w", TableName, err)
	}
	return true, nil
}

// rules names the interfaces in the comments, with their numbers, by which the
// kernel knows them: a rule for what is gone is not the wanted one.
func (r Receive) rules(underlay, entry uint32) (rules []rule, labels []string, err error) {
	for _, port := range r.Ports {
		rule := rule{
			comment: fmt.Sprintf("port %d: from %s (%d) to %s (%d)", port, r.Underlay, underlay, r.Entry, entry),
			exprs:   udpDport(port),
		}
		label, err := nft.Label(rule.comment, nftables.TableFamilyNetdev, rule.exprs)
		if err != nil {
			return nil, nil, err
		}
		rules, labels = append(rules, rule), append(labels, label)
	}
	return rules, labels, nil
}

// index is 0 where there is no such interface.
func index(name string) uint32 {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0
	}
	return uint32(i.Index)
}

func readReceive(c *nftables.Conn) (kernelTable, error) {
	return read(c, table{family: family{nft: nftables.TableFamilyNetdev}})
}

// replace makes the table anew in one transaction: where the kernel has no nft_fwd_netdev,
// nothing of it stays, and nobody is notified of an attempt. The nftables library has no
// expression for `udp dport 51840 fwd to gro0in`, so the messages are made here.
func (r Receive) replace(exists bool, rules []rule, labels []string, entry uint32) error {
	var b batch
	if exists {
		b.add(unix.NFT_MSG_DELTABLE, 0, []netlink.Attribute{{Type: unix.NFTA_TABLE_NAME, Data: zeroTerminated(TableName)}})
	}
	b.add(unix.NFT_MSG_NEWTABLE, netlink.Create, []netlink.Attribute{
		{Type: unix.NFTA_TABLE_NAME, Data: zeroTerminated(TableName)},
		{Type: unix.NFTA_TABLE_FLAGS, Data: be32(0)},
	})
	b.add(unix.NFT_MSG_NEWCHAIN, netlink.Create, []netlink.Attribute{
		{Type: unix.NFTA_CHAIN_TABLE, Data: zeroTerminated(TableName)},
		{Type: unix.NFTA_CHAIN_NAME, Data: zeroTerminated(receiveChain)},
		b.nested(unix.NFTA_CHAIN_HOOK,
			netlink.Attribute{Type: unix.NFTA_HOOK_HOOKNUM, Data: be32(unix.NF_NETDEV_INGRESS)},
			netlink.Attribute{Type: unix.NFTA_HOOK_PRIORITY, Data: be32(0)},
			netlink.Attribute{Type: unix.NFTA_HOOK_DEV, Data: zeroTerminated(r.Underlay)}),
		{Type: unix.NFTA_CHAIN_POLICY, Data: be32(uint32(nftables.ChainPolicyAccept))},
		{Type: unix.NFTA_CHAIN_TYPE, Data: zeroTerminated(string(nftables.ChainTypeFilter))},
	})
	for i, rule := range rules {
		var elements []netlink.Attribute
		for _, e := range append(slices.Clone(rule.exprs), &expr.Immediate{Register: 1, Data: binary.NativeEndian.AppendUint32(nil, entry)}) {
			data, err := expr.Marshal(byte(nftables.TableFamilyNetdev), e)
			if err != nil {
				return err
			}
			elements = append(elements, netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: data})
		}
		// The interface is in register 1.
		elements = append(elements, b.nested(unix.NFTA_LIST_ELEM,
			netlink.Attribute{Type: unix.NFTA_EXPR_NAME, Data: zeroTerminated("fwd")},
			b.nested(unix.NFTA_EXPR_DATA, netlink.Attribute{Type: unix.NFTA_FWD_SREG_DEV, Data: be32(1)})))
		b.add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, []netlink.Attribute{
			{Type: unix.NFTA_RULE_TABLE, Data: zeroTerminated(TableName)},
			{Type: unix.NFTA_RULE_CHAIN, Data: zeroTerminated(receiveChain)},
			b.nested(unix.NFTA_RULE_EXPRESSIONS, elements...),
			{Type: unix.NFTA_RULE_USERDATA, Data: nft.EncodeComment(labels[i])},
		})
	}
	return b.send()
}

func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

func zeroTerminated(s string) []byte { return append([]byte(s), 0) }

// batch is one transaction of nftables, of family netdev.
type batch struct {
	messages []netlink.Message
	err      error
}

func (b *batch) marshal(attrs []netlink.Attribute) []byte {
	data, err := netlink.MarshalAttributes(attrs)
	b.err = errors.Join(b.err, err)
	return data
}

func (b *batch) nested(typ uint16, attrs ...netlink.Attribute) netlink.Attribute {
	return netlink.Attribute{Type: unix.NLA_F_NESTED | typ, Data: b.marshal(attrs)}
}

func (b *batch) add(typ int, flags netlink.HeaderFlags, attrs []netlink.Attribute) {
	b.messages = append(b.messages, netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ),
			Flags: netlink.Request | netlink.Acknowledge | flags,
		},
		Data: append(generic(byte(nftables.TableFamilyNetdev), 0), b.marshal(attrs)...),
	})
}

// generic is struct nfgenmsg: family, version, resource in network byte order.
func generic(fam byte, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{fam, unix.NFNETLINK_V0}, resource)
}

// send waits until the kernel has taken everything, or says what is wrong.
func (b *batch) send() (err error) {
	if b.err != nil {
		return b.err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	bracket := func(typ netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: typ, Flags: netlink.Request},
			Data:   generic(0, unix.NFNL_SUBSYS_NFTABLES),
		}
	}
	sent := slices.Concat([]netlink.Message{bracket(unix.NFNL_MSG_BATCH_BEGIN)}, b.messages,
		[]netlink.Message{bracket(unix.NFNL_MSG_BATCH_END)})
	if _, err := conn.SendMessages(sent); err != nil {
		return err
	}
	// Each message is acknowledged, or refused; and with one, all.
	for range b.messages {
		if _, err := conn.Receive(); err != nil {
			return err
		}
	}
	return nil
}
