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
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/wire"
)

// Kind is the encapsulation of an overlay link.
type Kind string

const (
	// Geneve is RFC 8926.
	Geneve Kind = "geneve"
	// VXLAN is RFC 7348.
	VXLAN Kind = "vxlan"
)

const (
	// Port is the UDP port of the overlay, on nodes and gateways. Two programs on one machine cannot share a port. So
	// it is neither a registered one (4789, 6081) nor one that a network plugin is known to use (8472).
	Port uint16 = wire.OverlayPort

	// Group is the group of every overlay interface (IFLA_GROUP).
	Group uint32 = wire.Table

	// Table is our routing table: for all peerings on nodes, and for packets to the peer and the nodes in gateways.
	Table = wire.Table
	// InboundTable is the gateway's table for packets from the tunnel.
	InboundTable = 27762
	// RulePriority is the priority of our policy rules. It precedes those of EKS (512, 1024, 1536) and Cilium. The
	// priorities next to it are for State.Bypass.
	RulePriority = 90
	// Protocol marks our routes and rules (rtm_protocol).
	Protocol = 108

	// OverheadIPv4 is the number of bytes that both Geneve without options and VXLAN add to a packet over IPv4: outer
	// IP 20, UDP 8, header 8, inner Ethernet 14.
	OverheadIPv4 = 50
	// OverheadIPv6 is the same over IPv6, whose header has 40 bytes.
	OverheadIPv6 = 70
)

// Overhead returns the number of bytes that the overlay adds to packets to an outer address.
func Overhead(remote netip.Addr) int {
	if remote.Unmap().Is6() {
		return OverheadIPv6
	}
	return OverheadIPv4
}

// Link is one end of a point-to-point overlay link between a node and a gateway.
type Link struct {
	Name string
	Kind Kind
	// VNI distinguishes the links of one machine. It has 24 bits.
	VNI uint32
	// Local and Peer are the overlay addresses of this and the other end.
	Local, Peer netip.Addr
	// LocalMAC and PeerMAC are the MAC addresses of both ends (Key.MAC).
	LocalMAC, PeerMAC MAC
	// Remote is the outer address of the other end: the destination of encapsulated packets and, with Geneve, the only
	// accepted source.
	Remote netip.Addr
	// Port is the outer UDP port, on both ends.
	Port uint16
	// MTU is that of the interface in bytes, without encapsulation.
	MTU int
}

// Route is a route in one of our tables.
type Route struct {
	Table int
	Dst   netip.Prefix
	// Unreachable makes the route reply with an ICMP error. Dev, Via, Hops, Src and MTU are then empty.
	Unreachable bool
	Dev         string
	// Via is the next hop, reachable on Dev without another route (onlink). If it is the zero value, Dst is on the
	// link.
	Via netip.Addr
	// Hops are the next hops of a route over several links, for which Dev and Via are empty. The kernel chooses one of
	// them for each packet, by hash (net.ipv4.fib_multipath_hash_policy).
	Hops []Hop
	// Src is the source address for packets of this machine.
	Src netip.Addr
	// MTU is that of the path in bytes, 0 for the device's.
	MTU int
	// Metric orders routes of the same Dst, lowest first.
	Metric int
}

// Hop is one of several next hops with equal shares. Its fields are as in Route.
type Hop struct {
	Dev string
	Via netip.Addr
}

// hops returns the next hops of a route that is not unreachable, one or several.
func (r Route) hops() []Hop {
	if len(r.Hops) > 0 {
		return r.Hops
	}
	return []Hop{{r.Dev, r.Via}}
}

// equal reports whether two routes are the same.
func (r Route) equal(other Route) bool {
	return slices.Equal(r.Hops, other.Hops) && r.Table == other.Table && r.Dst == other.Dst && r.Unreachable == other.Unreachable &&
		r.Dev == other.Dev && r.Via == other.Via && r.Src == other.Src && r.MTU == other.MTU && r.Metric == other.Metric
}

// String returns a text similar to the output of ip(8).
func (r Route) String() string {
	var b strings.Builder
	part := func(present bool, format string, value any) {
		if present {
			fmt.Fprintf(&b, format, value)
		}
	}
	part(r.Unreachable, "%s ", "unreachable")
	part(true, "%s", r.Dst)
	part(r.Via.IsValid(), " via %s", r.Via)
	part(r.Dev != "", " dev %s", r.Dev)
	for _, h := range r.Hops {
		part(true, " nexthop via %s", h.Via)
		part(true, " dev %s", h.Dev)
	}
	part(true, " table %d", r.Table)
	part(r.Src.IsValid(), " src %s", r.Src)
	part(r.MTU != 0, " mtu %d", r.MTU)
	part(r.Metric != 0, " metric %d", r.Metric)
	return b.String()
}

// Rule is a policy routing rule at RulePriority.
type Rule struct {
	// IIF restricts the rule to packets that arrived on this interface.
	IIF   string
	Table int
}

// State is everything that this package maintains in a network namespace.
type State struct {
	Links  []Link
	Routes []Route
	Rules  []Rule
	// Bypass are sources to whose packets Rules do not apply: the next rules decide. With a port, it applies only to
	// UDP from that port.
	Bypass []netip.AddrPort
}

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
	if err := a.index(); err != nil {
		return nil, err
	}
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
			return a.changes, errors.Join(append(a.failed.errs, err)...)
		}
		step.write()
	}
	return a.changes, a.err()
}

// PartialError is what Apply could not do. Everything else that is wanted is in the kernel.
type PartialError struct {
	// Links are the interfaces that are not as wanted, or that lack a route, sorted. It is empty if the only problem is
	// an object of others.
	Links []string
	// RemovalFailed is true if an unwanted object of ours is still present.
	RemovalFailed bool
	errs          []error
}

func (e *PartialError) Error() string { return errors.Join(e.errs...).Error() }

func (e *PartialError) Unwrap() []error { return e.errs }

// Purge removes everything that is ours.
func (k *Kernel) Purge(ctx context.Context) (changes []string, err error) {
	return k.Apply(ctx, State{})
}

// Supports reports whether this kernel supports a kind of links, including kinds that the overlay does not use. It may
// load the kernel's module for it.
func (k *Kernel) Supports(kind Kind) (bool, error) {
	return k.conn.Supports(string(kind))
}

// applier is one run of Apply.
type applier struct {
	kernel *Kernel
	want   State
	// wantedLinks and wantedRoutes are the links and routes of want.
	wantedLinks  map[string]Link
	wantedRoutes map[routeKey]Route
	changes      []string
	// failed is what could not be done. allFailed is true if that affects all links.
	failed    PartialError
	allFailed bool

	links map[string]*link.State
	// forwarding are the entries of VXLAN links' forwarding tables, by interface index.
	forwarding map[int][]netlink.Neigh
	routes     map[routeKey]kernelRoute
	// surplus are routes of ours with the same key as one in routes.
	surplus []kernelRoute
	rules   []netlink.Rule
}

func (a *applier) changed(format string, args ...any) {
	a.changes = append(a.changes, fmt.Sprintf(format, args...))
}

func (a *applier) fail(format string, args ...any) {
	a.failed.errs = append(a.failed.errs, fmt.Errorf(format, args...))
}

func (a *applier) failLink(name string, err error) {
	a.fail("%w", err)
	a.failed.Links = append(a.failed.Links, name)
}

// removed records and returns whether a removal succeeded.
func (a *applier) removed(err error, format string, args ...any) bool {
	what := fmt.Sprintf(format, args...)
	if err != nil {
		a.fail("remove %s: %w", what, err)
		a.failed.RemovalFailed = true
		return false
	}
	a.changed("removed %s", what)
	return true
}

// except ignores the error which means that someone else has removed the object.
func except(err, gone error) error {
	if errors.Is(err, gone) {
		return nil
	}
	return err
}

func (a *applier) err() error {
	switch {
	case len(a.failed.errs) == 0:
		return nil
	case a.allFailed:
		return errors.Join(a.failed.errs...)
	}
	slices.Sort(a.failed.Links)
	a.failed.Links = slices.Compact(a.failed.Links)
	return &a.failed
}

func isOurTable(table int) bool {
	return table == Table || table == InboundTable
}

// index indexes the wanted links and routes, and rejects those that could not be recognized as ours later. Of two that
// the kernel cannot hold at the same time, it takes the first. The second may come from one node or peer, and must not
// affect the others.
func (a *applier) index() error {
	links, routes := a.want.Links, a.want.Routes
	a.wantedLinks, a.wantedRoutes = make(map[string]Link, len(links)), make(map[routeKey]Route, len(routes))
	a.want.Links, a.want.Routes = nil, make([]Route, 0, len(routes))
	for _, l := range links {
		if !strings.HasPrefix(l.Name, wire.LinkPrefix) {
			return fmt.Errorf("link name %q does not start with %q", l.Name, wire.LinkPrefix)
		}
		if _, twice := a.wantedLinks[l.Name]; twice {
			a.failLink(l.Name, fmt.Errorf("link %s is wanted twice", l.Name))
			continue
		}
		a.wantedLinks[l.Name] = l
		a.want.Links = append(a.want.Links, l)
	}
	for _, r := range routes {
		if !isOurTable(r.Table) {
			return fmt.Errorf("route %s: the table is not ours", r)
		}
		if first, twice := a.wantedRoutes[r.key()]; twice {
			if !first.equal(r) {
				a.failLink(r.Dev, fmt.Errorf("route %s: there is %s already", r, first))
			}
			continue
		}
		a.wantedRoutes[r.key()] = r
		a.want.Routes = append(a.want.Routes, r)
	}
	for _, r := range a.want.Rules {
		if !isOurTable(r.Table) {
			return fmt.Errorf("rule for table %d: it is not ours", r.Table)
		}
	}
	return nil
}

func addrFrom(ip []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
