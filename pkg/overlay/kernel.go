// Package overlay maintains the links between the nodes and gateways of one cluster, with their routes and policy
// rules. It works in the network namespace of the calling thread.
//
// [Kernel.Apply] compares a [State] with the kernel, and changes only the differences. It identifies our objects in the
// kernel:
//
//   - links by name prefix and alias;
//   - routes by protocol and table;
//   - rules by priority, protocol and table.
//
// So a new process repairs and removes the objects that an old one created, and no others.
//
// Out of scope: tunnels between clusters (package tunnel), packet filters and translation (package nat), and
// determining the State.
package overlay

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
)

// Kernel is the network namespace in which it was opened. Its methods may be called from any thread, but Apply and
// Purge not concurrently.
type Kernel struct {
	conn *link.Conn
	// routes has strict checking enabled, so that the kernel itself filters dumps by table: a node may have many routes
	// that are not ours.
	routes *netlink.Handle
}

// New opens the calling thread's network namespace.
func New() (*Kernel, error) {
	conn, err := link.Open()
	if err != nil {
		return nil, err
	}
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	// If this fails (kernels before 4.20), the library filters.
	_ = routes.SetStrictCheck(true)
	return &Kernel{conn: conn, routes: routes}, nil
}

// Close closes the connections to the kernel, and changes nothing in it.
func (k *Kernel) Close() {
	k.routes.Close()
	k.conn.Close()
}

// Apply makes the kernel match want. It first adds and repairs links, then routes, then rules. Then it removes unwanted
// objects of ours, in reverse order. If there are no differences, it writes nothing.
//
// It reports conflicting objects of others, and leaves them alone: an interface with a wanted name, and routes or rules
// of another protocol in our tables. It applies the rest in any case, also if the kernel refuses something. The error
// is a [PartialError] if only some links are affected. Apply always returns descriptions of the changes that it made,
// such as "changed link loq1-0: mtu 1400, up".
func (k *Kernel) Apply(ctx context.Context, want State) (changes []string, err error) {
	a := &applier{kernel: k, want: want}
	a.index()
	for _, step := range []struct {
		read  func() error
		write func()
	}{
		{a.readLinks, a.addLinks},
		{a.readRoutes, a.addRoutes},
		{a.readRules, a.addRules},
		{ctx.Err, a.removeRules},
		{ctx.Err, a.removeRoutes},
		{ctx.Err, a.removeLinks},
	} {
		err := ctx.Err()
		if err == nil {
			err = step.read()
		}
		if err != nil {
			// The next steps depend on this one.
			return a.changes, errors.Join(append(a.failedLinks.errs, err)...)
		}
		step.write()
	}
	return a.changes, a.err()
}

// Supports reports whether this kernel supports a kind of links, including kinds that the overlay does not use. It may
// load the kernel's module for it.
func (k *Kernel) Supports(kind Kind) (bool, error) {
	return k.conn.Supports(string(kind))
}

// index indexes the wanted links and routes. Of two that the kernel cannot hold at the same time, it takes the first.
// The second may come from one node or peer, and must not affect the others.
func (a *applier) index() {
	name := func(l Link) string { return l.Name }
	a.want.Links, a.wantedLinks = distinct(a.want.Links, name, func(_, l Link) {
		a.failLink(l.Name, fmt.Errorf("link %s is wanted twice", l.Name))
	})
	a.want.Routes, a.wantedRoutes = distinct(a.want.Routes, Route.key, func(first, r Route) {
		if !first.equal(r) {
			a.failLink(r.Dev, fmt.Errorf("route %s: there is %s already", r, first))
		}
	})
}

// distinct returns the first item of each key, and calls twice for the others.
func distinct[K comparable, T any](items []T, key func(T) K, twice func(first, other T)) (kept []T, byKey map[K]T) {
	kept, byKey = make([]T, 0, len(items)), make(map[K]T, len(items))
	for _, item := range items {
		if first, known := byKey[key(item)]; known {
			twice(first, item)
			continue
		}
		byKey[key(item)] = item
		kept = append(kept, item)
	}
	return kept, byKey
}
