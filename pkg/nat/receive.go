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

// ApplyReceive gives the calling thread's network namespace the wanted table of the family
// netdev, and says whether it changed anything.
func ApplyReceive(ctx context.Context, r Receive) (changed bool, err error) {
	return apply(ctx, r.table())
}

// table has no chain if an interface is missing. It names interfaces with their numbers in
// the comments. The kernel knows an interface by its number, so a rule for one that was
// made anew is not the wanted rule.
func (r Receive) table() table {
	underlay, entry := index(r.Underlay), index(r.Entry)
	t := table{family: nftables.TableFamilyNetdev, forward: entry}
	if underlay == 0 || entry == 0 {
		return t
	}
	var rules []rule
	for _, port := range r.Ports {
		rules = append(rules, rule{
			comment: fmt.Sprintf("port %d: from %s (%d) to %s (%d)", port, r.Underlay, underlay, r.Entry, entry),
			exprs:   udpDport(port),
		})
	}
	receive := base("receive", nftables.ChainHookIngress, *nftables.ChainPriorityFilter, rules)
	receive.Device = r.Underlay
	t.chains = []chain{receive}
	return t
}

// index is 0 where there is no such interface.
func index(name string) uint32 {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0
	}
	return uint32(i.Index)
}

// replaceNetdev is replace for the family netdev. The nftables library has no expression
// for `fwd to gro0in`, so the messages are made here. Where the kernel has no
// nft_fwd_netdev, nothing of the transaction stays, and nobody is notified of the attempt.
func (t table) replaceNetdev(exists bool) error {
	// In messages about tables, chains and rules alike the first attribute is the table's
	// name.
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
			for _, e := range append(r.exprs, &expr.Immediate{Register: 1, Data: binary.NativeEndian.AppendUint32(nil, t.forward)}) {
				data, err := expr.Marshal(byte(t.family), e)
				if err != nil {
					return err
				}
				elements = append(elements, attribute(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, data...))
			}
			elements = append(elements, nested(
				unix.NFTA_LIST_ELEM, text(unix.NFTA_EXPR_NAME, "fwd"), nested(unix.NFTA_EXPR_DATA, number(unix.NFTA_FWD_SREG_DEV, 1)),
			))
			add(
				unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, name, text(unix.NFTA_RULE_CHAIN, c.Name),
				nested(unix.NFTA_RULE_EXPRESSIONS, elements...),
				attribute(unix.NFTA_RULE_USERDATA, nft.EncodeComment(nft.Label(r.comment, t.family, r.exprs))...),
			)
		}
	}
	return send(batch)
}

// send sends one transaction, and waits until the kernel has taken all of it, or says what
// is wrong.
func send(batch []netlink.Message) (err error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return sendBy(conn, batch)
}

// sendBy is send by a socket that stays open.
func sendBy(conn *netlink.Conn, batch []netlink.Message) error {
	bracket := func(typ netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: typ, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	if _, err := conn.SendMessages(slices.Concat(
		[]netlink.Message{bracket(unix.NFNL_MSG_BATCH_BEGIN)}, batch, []netlink.Message{bracket(unix.NFNL_MSG_BATCH_END)},
	)); err != nil {
		return err
	}
	// Each message is acknowledged, or refused; and with one, all.
	for range batch {
		if _, err := conn.Receive(); err != nil {
			return err
		}
	}
	return nil
}
