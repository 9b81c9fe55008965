// Package nat maintains our nftables tables in the network namespace of the calling thread.
//
//   - On a gateway, they translate the addresses of its own cluster, without connection tracking, and keep the peer out
//     of everything except pods and nodes.
//   - On a node, they choose the source addresses of packets to peers, keep peers out of the node, and clamp TCP's
//     segment size.
//
// [ApplyGateway] and [ApplyNode] compute the tables as values, compare them with the kernel's, and send the
// differences. Every rule has a comment that ends with a hash of the rule, so that a changed rule is detected.
//
// Out of scope: tables of others (package firewall), which prefix is translated to which (package ipam), and routes
// (package overlay).
package nat

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"github.com/samber/lo"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/wire"
)

// ApplyGateway applies the tables of a gateway in the calling thread's network namespace, and reports whether it
// changed anything.
func ApplyGateway(ctx context.Context, g Gateway) (changed bool, err error) {
	if err := g.validate(); err != nil {
		return false, err
	}
	return applyBoth(ctx, g.table(), g.tableIPv6())
}

// ApplyNode applies the tables of a node in the calling thread's network namespace, and reports whether it changed
// anything. It also deletes conntrack entries of tunnels whose source is not translated to the node's.
func ApplyNode(ctx context.Context, n Node) (changed bool, err error) {
	if err := n.validate(); err != nil {
		return false, err
	}
	if changed, err = applyBoth(ctx, n.table(), blockIPv6(n.OverlayGroup)); err != nil {
		return changed, err
	}
	for _, g := range n.initiators() {
		deleted, err := deleteUntranslated(g, n.TunnelPort)
		if changed = changed || deleted; err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// applyBoth applies a table and the one that blocks IPv6. It skips the latter if the kernel lacks IPv6, or nftables for
// it.
func applyBoth(ctx context.Context, want, block table) (changed bool, err error) {
	changed, err = apply(ctx, want)
	if err != nil {
		return changed, err
	}
	changedBlock, err := apply(ctx, block)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
		return changed, nil
	}
	return changed || changedBlock, err
}

// Purge removes our tables from the calling thread's network namespace, and reports whether there were any.
func Purge() (changed bool, err error) {
	c := &nftables.Conn{}
	tables, err := c.ListTables()
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	families := []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6, nftables.TableFamilyNetdev}
	for _, t := range tables {
		// A watcher may end without removing its table. Tables that the kernel removes cannot be removed by other processes.
		isStale := strings.HasPrefix(t.Name, watcherPrefix) && !nft.IsOwned(t)
		if isStale || t.Name == TableName && slices.Contains(families, t.Family) {
			c.DelTable(t)
			changed = true
		}
	}
	if err := c.Flush(); err != nil {
		return false, fmt.Errorf("remove nftables table %q: %w", TableName, err)
	}
	return changed, nil
}

// Monitor subscribes to the kernel's notifications of the calling thread's network namespace. It sends a signal after
// each change of our tables, no matter who made it (see [nft.Subscribe]).
func Monitor(ctx context.Context, changed notify.Signal) error {
	return nft.Subscribe(ctx, changed, func(_ int, table string) bool { return table == TableName })
}

// ApplyReceive applies the wanted table of the family netdev in the calling thread's network namespace, and reports
// whether it changed anything.
func ApplyReceive(ctx context.Context, r Receive) (changed bool, err error) {
	return apply(ctx, r.table())
}

// elementsPerMessage keeps a list of set elements below the 64 KiB of a netlink attribute.
const elementsPerMessage = 500

// transactionBytes exceeds the size of any of our tables. The kernel takes a transaction as one message, which is
// usually limited to 208 KiB, or about 5,000 set elements.
const transactionBytes = 64 << 20

// forTransactions lets a socket send a transaction of that size, and buffer the replies to its parts.
func forTransactions(c *netlink.Conn) error {
	return errors.Join(c.SetWriteBuffer(transactionBytes), c.SetReadBuffer(transactionBytes))
}

// apply sends the differences between a table and the kernel's.
func apply(ctx context.Context, want table) (changed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	have, err := read(want.family)
	if err != nil {
		return false, err
	}
	// Not a lasting connection: replies about refused messages may stay in it.
	c, err := nftables.New(nftables.WithSockOptions(forTransactions))
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	if want.family == nftables.TableFamilyNetdev {
		if have.sameRules(want) {
			return false, nil
		}
		err = want.replaceNetdev(have.table != nil)
	} else {
		// A table with a flag is dormant: it does nothing.
		if have.table != nil && have.table.Flags == 0 {
			if changed, err := want.update(c, have); err == nil {
				return changed, nil
			}
			// Another process may have changed something since the read. A new table does not depend on the previous
			// content.
		}
		err = want.replace(c, have.table != nil)
	}
	if errors.Is(err, unix.ENOENT) && len(want.counters()) > 0 {
		want.dropCounters() // this kernel may not support named counters
		return apply(ctx, want)
	}
	if err != nil {
		return false, fmt.Errorf("replace nftables table %q: %w", TableName, err)
	}
	return true, nil
}

// content is our table as the kernel has it.
type content struct {
	// table is nil if there is none.
	table  *nftables.Table
	chains []*nftables.Chain
	// labels are the comments of rules, by the description of their chain.
	labels map[string][]string
	// sets are keyed by description, counters by name.
	sets     map[string]set
	counters map[string]nftables.CounterObj
}

func read(family nftables.TableFamily) (have content, err error) {
	have = content{labels: map[string][]string{}, sets: map[string]set{}}
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return have, fmt.Errorf("open nftables: %w", err)
	}
	defer func() { err = errors.Join(err, c.CloseLasting()) }()
	tables, err := c.ListTablesOfFamily(family)
	if err != nil {
		return have, fmt.Errorf("list nftables tables: %w", err)
	}
	have.table, _ = lo.Find(tables, func(t *nftables.Table) bool { return t.Name == TableName && t.Family == family })
	if have.table == nil {
		return have, nil
	}
	chains, err := nft.ListChains(c, family)
	if err != nil {
		return have, err
	}
	have.chains = lo.Filter(chains, func(ch *nftables.Chain, _ int) bool { return ch.Table.Name == TableName })
	comments, err := comments(family)
	if err != nil {
		return have, err
	}
	for _, ch := range have.chains {
		have.labels[describeChain(ch)] = comments[ch.Name]
	}
	sets, err := c.GetSets(have.table)
	if err != nil {
		return have, fmt.Errorf("list nftables sets: %w", err)
	}
	for _, s := range sets {
		if s.Anonymous {
			continue // it belongs to a rule
		}
		elements, err := c.GetSetElements(s)
		if err != nil {
			return have, fmt.Errorf("list elements of nftables set %q: %w", s.Name, err)
		}
		present := set{*s, elements}
		have.sets[present.describe()] = present
	}
	have.counters, err = counters(c, have.table)
	return have, err
}

// comments returns the comments of our table's rules, by chain. The library lists rules by chain only, and decodes them.
func comments(family nftables.TableFamily) (map[string][]string, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	request := message(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETRULE, netlink.Dump, byte(family), text(unix.NFTA_RULE_TABLE, TableName))
	replies, err := conn.Execute(request)
	if err = errors.Join(err, conn.Close()); err != nil {
		return nil, fmt.Errorf("list rules of nftables table %q: %w", TableName, err)
	}
	out := map[string][]string{}
	for _, m := range replies {
		rule := link.Attributes(m.Data[nft.HeaderLength:])
		chain := unix.ByteSliceToString(rule[unix.NFTA_RULE_CHAIN])
		out[chain] = append(out[chain], nft.DecodeComment(rule[unix.NFTA_RULE_USERDATA]))
	}
	return out, nil
}

// sameRules reports whether everything except the elements of sets is as wanted.
func (have content) sameRules(want table) bool {
	if len(want.chains) == 0 || have.table == nil {
		return len(want.chains) == 0 && have.table == nil
	}
	return have.table.Flags == 0 && maps.EqualFunc(have.labels, want.labels(), slices.Equal) &&
		len(have.sets) == len(want.sets) && lo.EveryBy(want.sets, func(s set) bool { return lo.HasKey(have.sets, s.describe()) })
}

// update changes the kernel's table to the wanted one. Sets come first, in a separate transaction: if a set has several
// fields (nft_set_pipapo, at least up to Linux 6.18), the kernel activates rules before the set's elements. In a table
// that was replaced as a whole, rules found such a set empty for a millisecond.
func (t table) update(c *nftables.Conn, have content) (changed bool, err error) {
	if changed, err = t.updateSets(c, have); err != nil {
		return false, err
	}
	if changed {
		if err := c.Flush(); err != nil {
			return false, err
		}
	}
	if have.sameRules(t) {
		return changed, nil
	}
	if err := t.updateRules(c, have); err != nil {
		return false, err
	}
	return true, c.Flush()
}

// updateRules queues the replacement of all chains, and the removal of sets and counters that no rule needs any more.
// Counters of rules that stay keep their values.
func (t table) updateRules(c *nftables.Conn, have content) error {
	for _, ch := range have.chains {
		c.FlushChain(ch)
	}
	for _, ch := range have.chains {
		c.DelChain(ch)
	}
	wanted := lo.KeyBy(t.sets, set.describe)
	for _, s := range lo.OmitByKeys(have.sets, lo.Keys(wanted)) {
		c.DelSet(&s.Set)
	}
	names := t.counters()
	for _, counter := range lo.OmitByKeys(have.counters, names) {
		c.DeleteObject(&counter)
	}
	for _, name := range lo.Without(names, lo.Keys(have.counters)...) {
		c.AddObj(&nftables.CounterObj{Table: have.table, Name: name})
	}
	for _, ch := range t.chains {
		ch.Table = have.table
		c.AddChain(&ch.Chain)
		for _, r := range ch.rules {
			content, err := withOwnSets(c, have.table, r.exprs)
			if err != nil {
				return fmt.Errorf("rule %q: %w", r.comment, err)
			}
			label := nft.EncodeComment(t.label(r))
			c.AddRule(&nftables.Rule{Table: have.table, Chain: &ch.Chain, Exprs: content, UserData: label})
		}
	}
	return nil
}

// withOwnSets queues the creation of a rule's own sets, and returns its expressions with the numbers of these sets. The
// kernel removes the sets with the rule.
func withOwnSets(c *nftables.Conn, t *nftables.Table, rule exprs) (out exprs, err error) {
	for _, e := range rule {
		if own, is := e.(ownSet); is {
			s := &nftables.Set{Table: t, Anonymous: true, Constant: true, Interval: true, KeyType: nftables.TypeInteger}
			if err := c.AddSet(s, own.elements); err != nil {
				return nil, fmt.Errorf("add a set: %w", err)
			}
			e = &expr.Lookup{SourceRegister: own.SourceRegister, SetName: s.Name, SetID: s.ID}
		}
		out = append(out, e)
	}
	return out, nil
}

// updateSets queues the creation of missing sets, and the changes of elements. It does not touch elements that stay:
// kernels may miss a range while a transaction removes and re-adds it.
func (t table) updateSets(c *nftables.Conn, have content) (writes bool, err error) {
	for _, s := range t.sets {
		s.Table = have.table
		present, there := have.sets[s.describe()]
		if !there {
			present.Set = s.Set
			if err := c.AddSet(&s.Set, nil); err != nil {
				return false, fmt.Errorf("add set %q: %w", s.Name, err)
			}
		}
		gone, missing := difference(present.members(), s.members()), difference(s.members(), present.members())
		writes = writes || !there || len(gone) > 0 || len(missing) > 0
		for part := range slices.Chunk(gone, elementsPerMessage) {
			if err := c.SetDeleteElements(&s.Set, part); err != nil {
				return false, fmt.Errorf("remove elements from nftables set %q: %w", s.Name, err)
			}
		}
		for part := range slices.Chunk(missing, elementsPerMessage) {
			if err := c.SetAddElements(&s.Set, part); err != nil {
				return false, fmt.Errorf("add elements to nftables set %q: %w", s.Name, err)
			}
		}
	}
	return writes, nil
}

// difference returns the elements of a that are not in b, sorted: kernels list some sets in insertion order.
func difference(a, b map[string][]nftables.SetElement) (out []nftables.SetElement) {
	for _, key := range slices.Sorted(maps.Keys(a)) {
		if b[key] == nil {
			out = append(out, a[key]...)
		}
	}
	return out
}

// replace writes the whole table. It deletes and adds the table in one transaction, so that it is never missing.
func (t table) replace(c *nftables.Conn, exists bool) error {
	k := &nftables.Table{Name: TableName, Family: t.family}
	if exists {
		c.DelTable(k)
	}
	c.AddTable(k)
	return t.fill(c, k)
}

// fill writes the content of a new table.
func (t table) fill(c *nftables.Conn, k *nftables.Table) error {
	made := content{table: k}
	if _, err := t.updateSets(c, made); err != nil {
		return err
	}
	if err := t.updateRules(c, made); err != nil {
		return err
	}
	return c.Flush()
}

// counters returns the counters of a table, by name.
func counters(c *nftables.Conn, t *nftables.Table) (map[string]nftables.CounterObj, error) {
	objects, err := c.GetObjects(t)
	if err != nil {
		return nil, fmt.Errorf("list counters of nftables table %q: %w", t.Name, err)
	}
	return lo.FilterSliceToMap(objects, func(o nftables.Obj) (name string, counter nftables.CounterObj, ok bool) {
		found, ok := o.(*nftables.CounterObj)
		return lo.FromPtr(found).Name, lo.FromPtr(found), ok
	}), nil
}

// From linux/netfilter/nfnetlink_conntrack.h and the kernel's nf_internals.h. No library defines them.
const (
	ctaFilter         = 25
	ctaFilterOriginal = 1
	filterSource      = 1 << 0
	filterProtocol    = 1 << 3
)

// deleteUntranslated deletes the conntrack entries of UDP packets from an address and a range of ports whose source is
// not translated, and reports whether there were any. The kernel consults nat chains only for a connection's first
// packet. A gateway that calls its peer sends from the same port for as long as it is answered, so an entry that is
// older than our rule would never expire. If the kernel has no netlink for connection tracking, nothing is deleted.
func deleteUntranslated(source netip.Addr, first uint16) (deleted bool, err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return false, fmt.Errorf("open connection tracking: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	address := attribute(nl.CTA_IP_V4_SRC, source.AsSlice()...)
	protocol := attribute(nl.CTA_PROTO_NUM, unix.IPPROTO_UDP)
	entries, err := c.Execute(conntrack(
		nl.IPCTNL_MSG_CT_GET, netlink.Dump,
		nested(nl.CTA_TUPLE_ORIG, nested(nl.CTA_TUPLE_IP, address), nested(nl.CTA_TUPLE_PROTO, protocol)),
		nested(ctaFilter, attribute(ctaFilterOriginal, native(filterSource|filterProtocol)...)),
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
		if isTranslated || !bytes.Contains(tuple, encode(address)) || !bytes.Contains(tuple, encode(protocol)) {
			continue
		}
		port := link.Attributes(link.Attributes(tuple)[nl.CTA_TUPLE_PROTO])[nl.CTA_PROTO_SRC_PORT]
		if len(port) != 2 || binary.BigEndian.Uint16(port) < first || binary.BigEndian.Uint16(port) > wire.EndOfRange(first) {
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
			exprs := append(r.exprs, immediate(1, native(t.forward)))
			elements := lo.Map(exprs, func(e expr.Any, _ int) netlink.Attribute {
				data, _ := expr.Marshal(byte(t.family), e) // never fails: all are shorter than 64 KiB
				return attribute(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, data...)
			})
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
