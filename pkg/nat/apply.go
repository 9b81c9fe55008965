package nat

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
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
	return applyBoth(ctx, g.table(), blockIPv6(g.OverlayGroup, g.TunnelGroup))
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
	for _, unsupported := range []error{unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.ENOENT} {
		if errors.Is(err, unsupported) {
			return changed, nil
		}
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
			t.Family == nftables.TableFamilyNetdev) {
			c.DelTable(t)
			changed = true
		}
	}
	if err := c.Flush(); err != nil {
		return false, fmt.Errorf("remove nftables table %q: %w", TableName, err)
	}
	return changed, nil
}

// apply compares a table with the kernel's, and replaces what differs: a set's elements,
// or else everything.
func apply(ctx context.Context, want table) (changed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	// Not a lasting connection: answers to what the kernel refuses may stay in it.
	c := &nftables.Conn{}
	t, have, err := read(c, want.family)
	if err != nil {
		return false, err
	}
	stale, same := want.compare(t, have)
	if same && len(stale) == 0 {
		return false, nil
	}
	if same {
		for _, s := range stale {
			s.Table = t
			c.FlushSet(&s.Set)
			if err := addElements(c, s); err != nil {
				return false, err
			}
		}
		if c.Flush() == nil {
			return true, nil
		}
		// Somebody may have changed a set since it was read. A new table does not depend
		// on what there was.
	}
	if want.family == nftables.TableFamilyNetdev {
		err = want.replaceNetdev(t != nil)
	} else {
		err = want.replace(c, t != nil)
	}
	if err != nil {
		return false, fmt.Errorf("replace nftables table %q: %w", TableName, err)
	}
	return true, nil
}

// read returns our table of a family, if there is one, and what is in it: the comments of
// rules by the description of their chain, and elements by that of their set.
func read(c *nftables.Conn, family nftables.TableFamily) (*nftables.Table, map[string][]string, error) {
	tables, err := c.ListTablesOfFamily(family)
	if err != nil {
		return nil, nil, fmt.Errorf("list nftables tables: %w", err)
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName && t.Family == family })
	if i < 0 {
		return nil, nil, nil
	}
	t, have := tables[i], map[string][]string{}
	chains, err := nft.ListChains(c, family)
	if err != nil {
		return nil, nil, err
	}
	for _, ch := range chains {
		if ch.Table.Name != TableName {
			continue
		}
		rules, err := c.GetRules(t, ch)
		if err != nil {
			return nil, nil, fmt.Errorf("list rules of nftables chain %q: %w", ch.Name, err)
		}
		var labels []string
		for _, r := range rules {
			labels = append(labels, nft.DecodeComment(r.UserData))
		}
		have[describeChain(ch)] = labels
	}
	sets, err := c.GetSets(t)
	if err != nil {
		return nil, nil, fmt.Errorf("list nftables sets: %w", err)
	}
	for _, s := range sets {
		elements, err := c.GetSetElements(s)
		if err != nil {
			return nil, nil, fmt.Errorf("list elements of nftables set %q: %w", s.Name, err)
		}
		have[describeSet(s)] = describeElements(elements)
	}
	return t, have, nil
}

// compare says whether what was read is as wanted, but for the elements of stale sets.
func (t table) compare(found *nftables.Table, have map[string][]string) (stale []set, same bool) {
	if len(t.chains) == 0 {
		return nil, found == nil
	}
	// A table with a flag is dormant: it does nothing.
	if found == nil || found.Flags != 0 || len(have) != len(t.chains)+len(t.sets) {
		return nil, false
	}
	for _, c := range t.chains {
		labels, there := have[describeChain(&c.Chain)]
		if !there || !slices.Equal(labels, c.labels(t.family)) {
			return nil, false
		}
	}
	for _, s := range t.sets {
		elements, there := have[describeSet(&s.Set)]
		if !there {
			return nil, false
		}
		if !slices.Equal(elements, describeElements(s.elements)) {
			stale = append(stale, s)
		}
	}
	return stale, true
}

// replace writes the whole table. Deleting and adding it in one transaction
// leaves no moment without it.
func (t table) replace(c *nftables.Conn, exists bool) error {
	k := &nftables.Table{Name: TableName, Family: t.family}
	if exists {
		c.DelTable(k)
	}
	c.AddTable(k)
	for _, s := range t.sets {
		s.Table = k
		if err := c.AddSet(&s.Set, nil); err != nil {
			return fmt.Errorf("add set %q: %w", s.Name, err)
		}
		if err := addElements(c, s); err != nil {
			return err
		}
	}
	for _, ch := range t.chains {
		ch.Table = k
		c.AddChain(&ch.Chain)
		for _, r := range ch.rules {
			label := nft.Label(r.comment, t.family, r.exprs)
			c.AddRule(&nftables.Rule{Table: k, Chain: &ch.Chain, Exprs: r.exprs, UserData: nft.EncodeComment(label)})
		}
	}
	return c.Flush()
}

func addElements(c *nftables.Conn, s set) error {
	for part := range slices.Chunk(s.elements, elementsPerMessage) {
		if err := c.SetAddElements(&s.Set, part); err != nil {
			return fmt.Errorf("add elements to nftables set %q: %w", s.Name, err)
		}
	}
	return nil
}
