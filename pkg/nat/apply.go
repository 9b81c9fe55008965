package nat

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
)

// elementsPerMessage keeps a list of set elements below the 64 KiB of a
// netlink attribute.
const elementsPerMessage = 500

// ApplyGateway gives the calling thread's network namespace the tables of a gateway, and
// says whether it changed anything.
func ApplyGateway(ctx context.Context, g Gateway) (changed bool, err error) {
	want, err := g.table()
	if err != nil {
		return false, err
	}
	return applyBoth(ctx, want, blockIPv6(g.OverlayGroup, g.TunnelGroup))
}

// ApplyNode gives the calling thread's network namespace the tables of a node, and says
// whether it changed anything. It also makes the kernel forget tunnels that were tracked
// with a source that is not the node's.
func ApplyNode(ctx context.Context, n Node) (changed bool, err error) {
	want, err := n.table()
	if err != nil {
		return false, err
	}
	if changed, err = applyBoth(ctx, want, blockIPv6(n.OverlayGroup)); err != nil {
		return changed, err
	}
	for _, g := range n.callers() {
		forgotten, err := forgetUntranslated(netip.AddrPortFrom(g, n.TunnelPort))
		if changed = changed || forgotten > 0; err != nil {
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
	c, err := dial()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, c.CloseLasting()) }()
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

func dial() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

func apply(ctx context.Context, want table) (changed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	c, err := dial()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, c.CloseLasting()) }()
	labels, err := want.labels()
	if err != nil {
		return false, err
	}
	have, err := read(c, want)
	if err != nil {
		return false, err
	}
	t := &nftables.Table{Name: TableName, Family: want.family}
	if have.sameRules(want, labels) {
		writes, err := updateElements(c, t, want, have)
		if err != nil || !writes {
			return false, err
		}
		if c.Flush() == nil {
			return true, nil
		}
		// Somebody may have changed a set since it was read. A new table does not depend
		// on what there was.
	}
	if err := replace(c, t, want, labels, have.exists); err != nil {
		return false, err
	}
	if err := c.Flush(); err != nil {
		return false, fmt.Errorf("replace nftables table %q: %w", TableName, err)
	}
	return true, nil
}

// labels returns the comments of all rules by chain.
func (t table) labels() (map[string][]string, error) {
	out := make(map[string][]string, len(t.chains))
	for _, c := range t.chains {
		out[c.name] = []string{}
		for _, r := range c.rules {
			l, err := nft.Label(r.comment, t.family, r.exprs)
			if err != nil {
				return nil, err
			}
			out[c.name] = append(out[c.name], l)
		}
	}
	return out, nil
}

// replace writes the whole table. Deleting and adding it in one transaction
// leaves no moment without it.
func replace(c *nftables.Conn, t *nftables.Table, want table, labels map[string][]string, exists bool) error {
	if exists {
		c.DelTable(t)
	}
	c.AddTable(t)
	for _, s := range want.sets {
		k := s.toKernel(t)
		if err := c.AddSet(k, nil); err != nil {
			return fmt.Errorf("add nftables set %q: %w", s.name, err)
		}
		if err := addElements(c, k, s, s.elements); err != nil {
			return err
		}
	}
	for _, ch := range want.chains {
		k := &nftables.Chain{Name: ch.name, Table: t}
		if ch.hook != nil {
			k.Type, k.Hooknum, k.Priority, k.Policy = ch.typ, ch.hook, &ch.priority, &ch.policy
		}
		c.AddChain(k)
		for i, r := range ch.rules {
			c.AddRule(&nftables.Rule{Table: t, Chain: k, Exprs: r.exprs, UserData: nft.EncodeComment(labels[ch.name][i])})
		}
	}
	return nil
}

func (s set) toKernel(t *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: t, Name: s.name, KeyType: nftables.TypeIPAddr, Interval: s.interval}
}

func addElements(c *nftables.Conn, k *nftables.Set, s set, elements []netipx.IPRange) error {
	for part := range slices.Chunk(elements, elementsPerMessage) {
		if err := c.SetAddElements(k, s.encode(part)); err != nil {
			return fmt.Errorf("add elements to nftables set %q: %w", s.name, err)
		}
	}
	return nil
}

// updateElements queues what differs between the sets.
func updateElements(c *nftables.Conn, t *nftables.Table, want table, have kernelTable) (writes bool, err error) {
	for _, s := range want.sets {
		present := have.sets[s.name]
		k := s.toKernel(t)
		gone, missing := without(present, s.elements), without(s.elements, present)
		writes = writes || len(gone) > 0 || len(missing) > 0
		for part := range slices.Chunk(gone, elementsPerMessage) {
			if err := c.SetDeleteElements(k, s.encode(part)); err != nil {
				return false, fmt.Errorf("remove elements from nftables set %q: %w", s.name, err)
			}
		}
		if err := addElements(c, k, s, missing); err != nil {
			return false, err
		}
	}
	return writes, nil
}

func without(a, b []netipx.IPRange) []netipx.IPRange {
	in := make(map[netipx.IPRange]bool, len(b))
	for _, r := range b {
		in[r] = true
	}
	var out []netipx.IPRange
	for _, r := range a {
		if !in[r] {
			out = append(out, r)
		}
	}
	return out
}
