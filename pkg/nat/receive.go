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

// Receive sends incoming packets of tunnel and overlay into an interface whose other end
// aggregates them (see pkg/tunnel).
type Receive struct {
	// Underlay is the interface by which they come, and Entry the one that they are sent
	// into. If one of them is missing, packets stay where they are.
	Underlay, Entry string
	// Ports are UDP ports.
	Ports []uint16
}

const receiveChain = "receive"

// ApplyReceive gives the calling thread's network namespace the wanted table of the family
// netdev, and says whether it changed anything.
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

// rules names interfaces with their numbers in the comments. The kernel knows an interface
// by its number, so a rule for one that was made anew is not the wanted rule.
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
	return read(c, table{family: nftables.TableFamilyNetdev})
}

// replace makes the table anew in one transaction. Where the kernel has no
// nft_fwd_netdev, nothing of it stays, and nobody is notified of the attempt. The
// nftables library has no expression for `fwd to gro0in`, so the messages are made here.
func (r Receive) replace(exists bool, rules []rule, labels []string, entry uint32) error {
	var b batch
	if exists {
		b.add(unix.NFT_MSG_DELTABLE, 0, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_TABLE_NAME, TableName)
		})
	}
	b.add(unix.NFT_MSG_NEWTABLE, netlink.Create, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_TABLE_NAME, TableName)
		e.Uint32(unix.NFTA_TABLE_FLAGS, 0)
	})
	b.add(unix.NFT_MSG_NEWCHAIN, netlink.Create, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_CHAIN_TABLE, TableName)
		e.String(unix.NFTA_CHAIN_NAME, receiveChain)
		e.Nested(unix.NFTA_CHAIN_HOOK, func(e *netlink.AttributeEncoder) error {
			e.Uint32(unix.NFTA_HOOK_HOOKNUM, unix.NF_NETDEV_INGRESS)
			e.Uint32(unix.NFTA_HOOK_PRIORITY, 0)
			e.String(unix.NFTA_HOOK_DEV, r.Underlay)
			return nil
		})
		e.Uint32(unix.NFTA_CHAIN_POLICY, uint32(nftables.ChainPolicyAccept))
		e.String(unix.NFTA_CHAIN_TYPE, string(nftables.ChainTypeFilter))
	})
	for i, rule := range rules {
		b.add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_RULE_TABLE, TableName)
			e.String(unix.NFTA_RULE_CHAIN, receiveChain)
			e.Nested(unix.NFTA_RULE_EXPRESSIONS, func(e *netlink.AttributeEncoder) error {
				load := &expr.Immediate{Register: 1, Data: binary.NativeEndian.AppendUint32(nil, entry)}
				for _, x := range append(slices.Clone(rule.exprs), load) {
					data, err := expr.Marshal(byte(nftables.TableFamilyNetdev), x)
					if err != nil {
						return err
					}
					e.Bytes(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, data)
				}
				e.Nested(unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) error {
					e.String(unix.NFTA_EXPR_NAME, "fwd")
					e.Nested(unix.NFTA_EXPR_DATA, func(e *netlink.AttributeEncoder) error {
						e.Uint32(unix.NFTA_FWD_SREG_DEV, 1) // register 1 has the interface
						return nil
					})
					return nil
				})
				return nil
			})
			e.Bytes(unix.NFTA_RULE_USERDATA, nft.EncodeComment(labels[i]))
		})
	}
	return b.send()
}

// batch is one transaction of nftables, of family netdev.
type batch struct {
	messages []netlink.Message
	err      error
}

func (b *batch) add(typ int, flags netlink.HeaderFlags, attributes func(*netlink.AttributeEncoder)) {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	attributes(e)
	data, err := e.Encode()
	b.err = errors.Join(b.err, err)
	b.messages = append(b.messages, netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ),
			Flags: netlink.Request | netlink.Acknowledge | flags,
		},
		Data: append([]byte{byte(nftables.TableFamilyNetdev), unix.NFNETLINK_V0, 0, 0}, data...),
	})
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
	bracket := func(typ netlink.HeaderType) []netlink.Message {
		return []netlink.Message{{
			Header: netlink.Header{Type: typ, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}}
	}
	if _, err := conn.SendMessages(slices.Concat(bracket(unix.NFNL_MSG_BATCH_BEGIN), b.messages, bracket(unix.NFNL_MSG_BATCH_END))); err != nil {
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
