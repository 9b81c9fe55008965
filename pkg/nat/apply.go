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
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/notify"
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
		deleted, err := deleteUntranslated(netip.AddrPortFrom(g, n.TunnelPort))
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
	for _, t := range tables {
		if t.Name == TableName && (t.Family == nftables.TableFamilyIPv4 || t.Family == nftables.TableFamilyIPv6 ||
			t.Family == nftables.TableFamilyNetdev) || isStaleWatcher(t) {
			c.DelTable(t)
			changed = true
		}
	}
	if err := c.Flush(); err != nil {
		return false, fmt.Errorf("remove nftables table %q: %w", TableName, err)
	}
	return changed, nil
}

// isStaleWatcher reports whether a table belongs to a watcher that ended without removing it. Tables that the kernel
// removes cannot be removed by other processes.
func isStaleWatcher(t *nftables.Table) bool {
	return strings.HasPrefix(t.Name, watcherPrefix) && !nft.IsOwned(t)
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
	// Not a lasting connection: replies about refused messages may stay in it.
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

// sameRules reports whether everything except the elements of sets is as wanted.
func (have content) sameRules(want table) bool {
	if len(want.chains) == 0 || have.table == nil {
		return len(want.chains) == 0 && have.table == nil
	}
	return have.table.Flags == 0 && maps.EqualFunc(have.labels, want.labels(), slices.Equal) &&
		len(have.sets) == len(want.sets) && lo.EveryBy(want.sets, have.hasSet)
}

func (have content) hasSet(s set) bool { return lo.HasKey(have.sets, s.describe()) }

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
	t.updateRules(c, have)
	return true, c.Flush()
}

// updateRules queues the replacement of all chains, and the removal of sets and counters that no rule needs any more.
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
	t.updateRules(c, made)
	return c.Flush()
}

// counters returns the counters of a table, by name.
func counters(c *nftables.Conn, t *nftables.Table) (map[string]nftables.CounterObj, error) {
	objects, err := c.GetObjects(t)
	if err != nil {
		return nil, fmt.Errorf("list counters of nftables table %q: %w", t.Name, err)
	}
	out := map[string]nftables.CounterObj{}
	for _, o := range objects {
		if counter, ok := o.(*nftables.CounterObj); ok {
			out[counter.Name] = *counter
		}
	}
	return out, nil
}
