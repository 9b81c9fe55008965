// Package nat keeps our own nftables tables in the network namespace of the calling
// thread.
//
//   - On a gateway they translate the addresses of its own cluster, without connection
//     tracking, and shut the peer out of everything but pods and nodes.
//   - On a node they choose the sources of packets to peers, shut peers out of the node,
//     and clamp the segment size of TCP.
//
// [ApplyGateway] and [ApplyNode] compute the tables as a value, compare it with what the
// kernel has, and send the difference in one transaction. Every rule has a comment that
// ends with a hash of the rule, so that a changed one is found.
//
// Out of scope: tables of others (package firewall), which prefixes are translated to
// which (package ipam), and routes (package overlay).
package nat

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
)

// elementsPerMessage keeps a list of set elements below the 64 KiB of a
// netlink attribute.
const elementsPerMessage = 500

// ApplyGateway gives the calling thread's network namespace the tables of a gateway, and
// says whether it changed anything.
func ApplyGateway(ctx context.Context, g Gateway) (changed bool, err error) {
	if err := g.validate(); err != nil {
		return false, err
	}
	return applyBoth(ctx, g.table(), g.tableIPv6())
}

// ApplyNode gives the calling thread's network namespace the tables of a node, and says
// whether it changed anything. It also makes the kernel forget tunnels that were tracked
// with a source that is not the node's.
func ApplyNode(ctx context.Context, n Node) (changed bool, err error) {
	if err := n.validate(); err != nil {
		return false, err
	}
	if changed, err = applyBoth(ctx, n.table(), blockIPv6(n.OverlayGroup)); err != nil {
		return changed, err
	}
	for _, g := range n.callers() {
		forgotten, err := forgetUntranslated(netip.AddrPortFrom(g, n.TunnelPort))
		if changed = changed || forgotten; err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// applyBoth applies a table and the one that blocks IPv6. A kernel without IPv6, or
// without nftables for it, goes without.
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

// Purge removes our tables from the calling thread's network namespace, and
// says whether there were any.
func Purge(ctx context.Context) (changed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	c := &nftables.Conn{}
	tables, err := c.ListTables()
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == TableName && (t.Family == nftables.TableFamilyIPv4 || t.Family == nftables.TableFamilyIPv6 ||
			t.Family == nftables.TableFamilyNetdev) || isLeftWatcher(t) {
			c.DelTable(t)
			changed = true
		}
	}
	if err := c.Flush(); err != nil {
		return false, fmt.Errorf("remove nftables table %q: %w", TableName, err)
	}
	return changed, nil
}

// transactionBytes is more than any table of ours has. The kernel takes a transaction as one
// message, and the usual limit of one is 208 KiB, which is some 5,000 elements of sets.
const transactionBytes = 64 << 20

// forTransactions lets a socket send such a message, and hold the answers to its parts.
func forTransactions(c *netlink.Conn) error {
	return errors.Join(c.SetWriteBuffer(transactionBytes), c.SetReadBuffer(transactionBytes))
}

// apply sends what differs between a table and the kernel's.
func apply(ctx context.Context, want table) (changed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	// Not a lasting connection: answers to what the kernel refuses may stay in it.
	c, err := nftables.New(nftables.WithSockOptions(forTransactions))
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	have, err := read(c, want.family)
	if err != nil {
		return false, err
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
			// Somebody may have changed something since it was read. A new table does not depend
			// on what there was.
		}
		err = want.replace(c, have.table != nil)
	}
	if errors.Is(err, unix.ENOENT) && len(want.counters()) > 0 {
		want.dropCounters() // this kernel may have none with names
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
	// labels are the comments of rules by the description of their chain.
	labels map[string][]string
	// sets are by their description, counters by their name.
	sets     map[string]set
	counters map[string]nftables.CounterObj
}

func read(c *nftables.Conn, family nftables.TableFamily) (have content, err error) {
	have = content{labels: map[string][]string{}, sets: map[string]set{}}
	tables, err := c.ListTablesOfFamily(family)
	if err != nil {
		return have, fmt.Errorf("list nftables tables: %w", err)
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName && t.Family == family })
	if i < 0 {
		return have, nil
	}
	have.table = tables[i]
	chains, err := nft.ListChains(c, family)
	if err != nil {
		return have, err
	}
	for _, ch := range chains {
		if ch.Table.Name != TableName {
			continue
		}
		present, err := c.GetRules(have.table, ch)
		if err != nil {
			return have, fmt.Errorf("list rules of nftables chain %q: %w", ch.Name, err)
		}
		have.chains = append(have.chains, ch)
		have.labels[describeChain(ch)] = lo.Map(present, func(r *nftables.Rule, _ int) string {
			return nft.DecodeComment(r.UserData)
		})
	}
	sets, err := c.GetSets(have.table)
	if err != nil {
		return have, fmt.Errorf("list nftables sets: %w", err)
	}
	for _, s := range sets {
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

// sameRules says that everything is as wanted, apart from elements of sets.
func (have content) sameRules(want table) bool {
	if len(want.chains) == 0 || have.table == nil {
		return len(want.chains) == 0 && have.table == nil
	}
	return have.table.Flags == 0 && maps.EqualFunc(have.labels, want.labels(), slices.Equal) &&
		len(have.sets) == len(want.sets) && lo.EveryBy(want.sets, have.hasSet)
}

func (have content) hasSet(s set) bool { return lo.HasKey(have.sets, s.describe()) }

// update makes the kernel's table the wanted one. Sets come first, in a transaction of their own.
// The kernel lets rules begin before it has the elements of sets of several fields (nft_set_pipapo,
// at least up to Linux 6.18). In a table that is replaced as a whole, rules found such a set empty
// for a millisecond.
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
	t.updateRules(c, have)
	return true, c.Flush()
}

// updateRules queues what replaces all chains, and removes sets and counters that no rule needs any more.
// Counters of rules that stay keep their values.
func (t table) updateRules(c *nftables.Conn, have content) {
	for _, ch := range have.chains {
		c.FlushChain(ch)
	}
	for _, ch := range have.chains {
		c.DelChain(ch)
	}
	wanted := lo.KeyBy(t.sets, set.describe)
	for description, s := range have.sets {
		if !lo.HasKey(wanted, description) {
			c.DelSet(&s.Set)
		}
	}
	names := t.counters()
	for name, counter := range have.counters {
		if !slices.Contains(names, name) {
			c.DeleteObject(&counter)
		}
	}
	for _, name := range names {
		if !lo.HasKey(have.counters, name) {
			c.AddObj(&nftables.CounterObj{Table: have.table, Name: name})
		}
	}
	for _, ch := range t.chains {
		ch.Table = have.table
		c.AddChain(&ch.Chain)
		for _, r := range ch.rules {
			label := nft.EncodeComment(t.label(r))
			c.AddRule(&nftables.Rule{Table: have.table, Chain: &ch.Chain, Exprs: r.exprs, UserData: label})
		}
	}
}

// updateSets queues what sets lack, and what differs between their elements. What stays is not
// touched: kernels may miss a range while a transaction removes it and adds it again.
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
		gone, missing := without(present.members(), s.members()), without(s.members(), present.members())
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

// without returns the elements of a that are not in b, sorted: kernels list some sets as they were written.
func without(a, b map[string][]nftables.SetElement) (out []nftables.SetElement) {
	for _, key := range slices.Sorted(maps.Keys(a)) {
		if b[key] == nil {
			out = append(out, a[key]...)
		}
	}
	return out
}

// replace writes the whole table. Deleting and adding it in one transaction
// leaves no moment without it.
func (t table) replace(c *nftables.Conn, exists bool) error {
	k := &nftables.Table{Name: TableName, Family: t.family}
	if exists {
		c.DelTable(k)
	}
	c.AddTable(k)
	return t.fill(c, k)
}

// fill writes what is in a new table.
func (t table) fill(c *nftables.Conn, k *nftables.Table) error {
	made := content{table: k}
	if _, err := t.updateSets(c, made); err != nil {
		return err
	}
	t.updateRules(c, made)
	return c.Flush()
}

// Monitor subscribes to the kernel's notifications of the calling thread's network
// namespace, and signals after each change of our tables, whoever made it (see [nft.Subscribe]).
func Monitor(ctx context.Context) (<-chan struct{}, error) {
	return nft.Subscribe(ctx, func(_ int, table string) bool { return table == TableName })
}
