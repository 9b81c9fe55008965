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
	if have.exists {
		c.DelTable(t)
	}
	c.AddTable(t)
	priority, policy := priorityFilter, nftables.ChainPolicyAccept
	c.AddChain(&nftables.Chain{
		Name: receiveChain, Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookIngress, Priority: &priority, Policy: &policy, Device: r.Underlay,
	})
	if err := c.Flush(); err != nil {
		return false, fmt.Errorf("replace nftables table netdev %q: %w", TableName, err)
	}
	for i, rule := range rules {
		if err := addForward(rule, labels[i], entry); err != nil {
			return true, fmt.Errorf("add a rule to nftables table netdev %q: %w", TableName, err)
		}
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
		label, err := rule.label(family{nft: nftables.TableFamilyNetdev})
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

// addForward appends a rule that sends what matches into an interface, which the
// nftables library has no expression for: `udp dport 51840 fwd to gro0in`.
func addForward(r rule, label string, to uint32) error {
	const fam = byte(nftables.TableFamilyNetdev)
	var elements []byte
	for _, e := range append(slices.Clone(r.exprs), &expr.Immediate{Register: 1, Data: binary.NativeEndian.AppendUint32(nil, to)}) {
		b, err := expr.Marshal(fam, e)
		if err != nil {
			return err
		}
		if elements, err = appendElement(elements, b); err != nil {
			return err
		}
	}
	// NFTA_FWD_SREG_DEV: the interface is in register 1.
	device, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_FWD_SREG_DEV, Data: be32(1)}})
	if err != nil {
		return err
	}
	forward, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_EXPR_NAME, Data: []byte("fwd\x00")},
		{Type: unix.NLA_F_NESTED | unix.NFTA_EXPR_DATA, Data: device},
	})
	if err != nil {
		return err
	}
	if elements, err = appendElement(elements, forward); err != nil {
		return err
	}
	data, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_RULE_TABLE, Data: []byte(TableName + "\x00")},
		{Type: unix.NFTA_RULE_CHAIN, Data: []byte(receiveChain + "\x00")},
		{Type: unix.NLA_F_NESTED | unix.NFTA_RULE_EXPRESSIONS, Data: elements},
		{Type: unix.NFTA_RULE_USERDATA, Data: comment(label)},
	})
	if err != nil {
		return err
	}
	return sendBatch(fam, unix.NFT_MSG_NEWRULE, data)
}

func appendElement(list, e []byte) ([]byte, error) {
	b, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: e}})
	return append(list, b...), err
}

func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

// sendBatch sends one message that appends something, in a transaction of its
// own, and waits until the kernel has taken it.
func sendBatch(fam byte, typ int, data []byte) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	// struct nfgenmsg: family, version, resource in network byte order.
	generic := func(fam byte, resource uint16) []byte {
		return binary.BigEndian.AppendUint16([]byte{fam, unix.NFNETLINK_V0}, resource)
	}
	_, err = conn.SendMessages([]netlink.Message{
		{
			Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: netlink.Request},
			Data:   generic(0, unix.NFNL_SUBSYS_NFTABLES),
		},
		{
			Header: netlink.Header{
				Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ),
				Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Append,
			},
			Data: append(generic(fam, 0), data...),
		},
		{
			Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_END, Flags: netlink.Request},
			Data:   generic(0, unix.NFNL_SUBSYS_NFTABLES),
		},
	})
	if err != nil {
		return err
	}
	_, err = conn.Receive() // the acknowledgement, or what is wrong
	return err
}
