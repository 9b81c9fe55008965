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
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
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
	for _, g := range n.callers() {
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

// Monitor subscribes to the kernel's notifications of the calling thread's network namespace. It sends a signal after
// each change of our tables, no matter who made it (see [nft.Subscribe]).
func Monitor(ctx context.Context) (<-chan struct{}, error) {
	return nft.Subscribe(ctx, func(_ int, table string) bool { return table == TableName })
}

// ApplyReceive applies the wanted table of the family netdev in the calling thread's network namespace, and reports
// whether it changed anything.
func ApplyReceive(ctx context.Context, r Receive) (changed bool, err error) {
	return apply(ctx, r.table())
}
