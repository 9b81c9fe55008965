package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
)

// Kernel is the network namespace in which it was opened. Its methods may be
// called from any thread; Apply and Purge not from two at once.
type Kernel struct {
	conn *link.Conn
	// routes has strict checking on, so that the kernel filters dumps by table
	// itself: a node may have many routes that are not ours.
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
		return nil, errors.Join(fmt.Errorf("open rtnetlink: %w", err), conn.Close())
	}
	// Without it (kernels before 4.20) the library filters.
	_ = routes.SetStrictCheck(true)
	return &Kernel{conn: conn, routes: routes}, nil
}

// Close releases the connections to the kernel and changes nothing in it.
func (k *Kernel) Close() error {
	k.routes.Close()
	return k.conn.Close()
}

// Apply makes the kernel hold want. First it adds and repairs links, then routes, then
// rules. Then it removes what is ours and not wanted, in the reverse order. If nothing
// differs it writes nothing.
//
// It leaves foreign things alone that are in the way, and reports them. These are an
// interface with a wanted name, and routes or rules of another protocol in our tables. The
// rest is applied all the same, also where the kernel refuses something. The error is a
// [PartialError] if it concerns some links only. Apply returns the changes that it made in
// any case.
func (k *Kernel) Apply(ctx context.Context, want State) ([]Change, error) {
	if err := want.validate(); err != nil {
		return nil, err
	}
	a := &applier{kernel: k, want: want}
	for _, step := range []func() error{
		a.readLinks, a.addLinks, a.readRoutes, a.addRoutes, a.readRules, a.addRules,
		a.removeRules, a.removeRoutes, a.removeLinks,
	} {
		if err := ctx.Err(); err != nil {
			return a.changes, errors.Join(append(a.errs, err)...)
		}
		if err := step(); err != nil {
			// The next steps rely on this one.
			return a.changes, errors.Join(append(a.errs, err)...)
		}
	}
	return a.changes, a.err()
}

// PartialError says what Apply could not do. Everything else that is wanted is in the
// kernel.
type PartialError struct {
	// Links are the interfaces that are not as wanted, or that lack a route, sorted. It is
	// empty if the only fault is that something foreign is there.
	Links []string
	// RemovalFailed says that something of ours is still there although it is not wanted.
	RemovalFailed bool
	err           error
}

func (e *PartialError) Error() string { return e.err.Error() }

func (e *PartialError) Unwrap() error { return e.err }

// Purge removes all that is ours.
func (k *Kernel) Purge(ctx context.Context) ([]Change, error) {
	return k.Apply(ctx, State{})
}

// Supports says whether this kernel can make links of a kind. It may load the
// kernel's module for it.
func (k *Kernel) Supports(kind Kind) (bool, error) {
	return k.conn.Supports(string(kind))
}

// applier is one run of Apply.
type applier struct {
	kernel  *Kernel
	want    State
	changes []Change
	errs    []error
	// failedLinks are the links that errs are about, by themselves or by a route.
	failedLinks []string
	// removalFailed says that one of errs is about a removal, and allFailed that one
	// concerns all links.
	removalFailed, allFailed bool

	links map[string]*link.State
	// forwarding are the entries of VXLAN links' forwarding tables, by interface.
	forwarding map[int][]netlink.Neigh
	routes     []kernelRoute
	rules      []netlink.Rule
}

func (a *applier) changed(action, object, detail string) {
	a.changes = append(a.changes, Change{Action: action, Object: object, Detail: detail})
}

func (a *applier) failed(format string, args ...any) {
	a.errs = append(a.errs, fmt.Errorf(format, args...))
}

func (a *applier) failedLink(name string, err error) {
	a.errs, a.failedLinks = append(a.errs, err), append(a.failedLinks, name)
}

func (a *applier) err() error {
	err := errors.Join(a.errs...)
	if err == nil || a.allFailed {
		return err
	}
	slices.Sort(a.failedLinks)
	return &PartialError{Links: slices.Compact(a.failedLinks), RemovalFailed: a.removalFailed, err: err}
}

func isOurTable(table int) bool {
	return table == Table || table == InboundTable
}

// validate refuses what could not be recognised as ours later on.
func (s State) validate() error {
	names := make(map[string]bool, len(s.Links))
	for _, l := range s.Links {
		switch {
		case !strings.HasPrefix(l.Name, NamePrefix) || len(l.Name) >= unix.IFNAMSIZ:
			return fmt.Errorf("link name %q does not start with %q or is longer than %d", l.Name, NamePrefix, unix.IFNAMSIZ-1)
		case names[l.Name]:
			return fmt.Errorf("link %q is wanted twice", l.Name)
		case l.Kind != Geneve && l.Kind != VXLAN:
			return fmt.Errorf("link %q is of unknown kind %q", l.Name, l.Kind)
		case l.VNI == 0 || l.VNI >= 1<<24:
			return fmt.Errorf("link %q: VNI %d is not between 1 and %d", l.Name, l.VNI, 1<<24-1)
		case !l.Local.IsValid() || !l.Peer.IsValid() || !l.Remote.IsValid():
			return fmt.Errorf("link %q lacks an address", l.Name)
		case l.Port == 0 || l.MTU <= 0:
			return fmt.Errorf("link %q lacks port or MTU", l.Name)
		}
		names[l.Name] = true
	}
	routes := make(map[routeKey]bool, len(s.Routes))
	for _, r := range s.Routes {
		switch {
		case !isOurTable(r.Table):
			return fmt.Errorf("route %s: table %d is not ours", r, r.Table)
		case !r.Dst.IsValid() || r.Dst != r.Dst.Masked():
			return fmt.Errorf("route %s: the destination is not a prefix", r)
		case routes[r.key()]:
			return fmt.Errorf("route %s: another one has the same destination and metric", r)
		case r.Unreachable && r.Throw:
			return fmt.Errorf("route %s: unreachable and throw exclude each other", r)
		case (r.Unreachable || r.Throw) && (r.Dev != "" || r.Via.IsValid() || r.Src.IsValid() || r.MTU != 0):
			return fmt.Errorf("route %s: unreachable with device, next hop, source or MTU", r)
		case !r.Unreachable && !r.Throw && r.Dev == "":
			return fmt.Errorf("route %s has no device", r)
		}
		routes[r.key()] = true
	}
	for _, r := range s.Rules {
		if !isOurTable(r.Table) {
			return fmt.Errorf("rule %s: table %d is not ours", r, r.Table)
		}
	}
	return nil
}

func addrFrom(ip []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
