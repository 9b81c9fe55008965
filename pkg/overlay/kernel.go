// Package overlay keeps the links between the nodes and gateways of one cluster, with
// their routes and policy rules. It works in the network namespace of the calling thread.
//
// [Kernel.Apply] compares a [State] with the kernel and changes the difference only. It
// recognises what is ours in the kernel itself:
//
//   - links by name prefix and alias;
//   - routes by protocol and table;
//   - rules by priority, protocol and table.
//
// So a new process repairs and removes what an old one made, and nothing else.
//
// Out of scope: tunnels between clusters (package tunnel), packet filters and
// translation (package nat), and deciding what the State is.
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
	// Port is the UDP port of the overlay, on nodes and gateways. Two users of one port
	// cannot share a machine. So it is neither a registered one (4789, 6081) nor one that a
	// network plugin is known to use (8472).
	Port uint16 = wire.OverlayPort

	// Group is the group of every overlay interface (IFLA_GROUP).
	Group uint32 = wire.Table

	// Table is our routing table: on nodes for all peerings, and in gateways for packets
	// to the peer and the nodes.
	Table = wire.Table
	// InboundTable is the gateway's table for packets that came out of the tunnel.
	InboundTable = 27762
	// RulePriority is the priority of our policy rules. It precedes those of
	// EKS (512, 1024, 1536) and Cilium. The ones before and after it are for
	// State.Bypass.
	RulePriority = 90
	// Protocol marks the routes and rules that are ours (rtm_protocol).
	Protocol = 108

	// OverheadIPv4 is how many bytes Geneve without options and VXLAN both add to a packet
	// over IPv4: outer IP 20, UDP 8, header 8, inner Ethernet 14.
	OverheadIPv4 = 50
	// OverheadIPv6 is the same over IPv6, whose header has 40 bytes.
	OverheadIPv6 = 70
)

// Overhead is what the overlay adds to packets that are sent to an outer
// address, in bytes.
func Overhead(remote netip.Addr) int {
	if remote.Unmap().Is6() {
		return OverheadIPv6
	}
	return OverheadIPv4
}

// Link is one end of a point-to-point overlay link between a node and a
// gateway.
type Link struct {
	Name string
	Kind Kind
	// VNI tells the links of one machine apart, 24 bits.
	VNI uint32
	// Local and Peer are the overlay addresses of this and the other end.
	Local, Peer netip.Addr
	// LocalMAC and PeerMAC are those of both ends (Key.MAC).
	LocalMAC, PeerMAC MAC
	// Remote is the outer address of the other end: where encapsulated
	// packets are sent to and, with Geneve, the only source accepted.
	Remote netip.Addr
	// Port is the outer UDP port, on both ends.
	Port uint16
	// MTU of the interface in bytes, without encapsulation.
	MTU int
}

// Route is a route in one of our tables.
type Route struct {
	Table int
	Dst   netip.Prefix
	// Unreachable makes the route answer with an ICMP error; Dev, Via, Hops, Src
	// and MTU are then empty.
	Unreachable bool
	Dev         string
	// Via is the next hop, reachable on Dev without another route (onlink).
	// The zero value means that Dst is on the link.
	Via netip.Addr
	// Hops are the next hops of a route by several links, which has no Dev and Via of its own. The
	// kernel chooses one of them for each packet, by its hash (net.ipv4.fib_multipath_hash_policy).
	Hops []Hop
	// Src is the source that packets of this machine get.
	Src netip.Addr
	// MTU of the path in bytes, 0 for the device's.
	MTU int
	// Metric orders routes of the same Dst, lowest first.
	Metric int
}

// Hop is one of several next hops, with equal shares. Both are as in Route.
type Hop struct {
	Dev string
	Via netip.Addr
}

// hops are the next hops of a route that leads somewhere, one or several.
func (r Route) hops() []Hop {
	if len(r.Hops) > 0 {
		return r.Hops
	}
	return []Hop{{r.Dev, r.Via}}
}

// equal says that two routes are the same.
func (r Route) equal(other Route) bool {
	return slices.Equal(r.Hops, other.Hops) && r.Table == other.Table && r.Dst == other.Dst && r.Unreachable == other.Unreachable &&
		r.Dev == other.Dev && r.Via == other.Via && r.Src == other.Src && r.MTU == other.MTU && r.Metric == other.Metric
}

// String is close to what ip(8) prints.
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
	// IIF restricts the rule to packets that came in by this interface.
	IIF   string
	Table int
}

// State is all that this package keeps in a network namespace.
type State struct {
	Links  []Link
	Routes []Route
	Rules  []Rule
	// Bypass are sources to whose packets Rules do not apply: the next rules decide. With a
	// port it is about UDP from there only.
	Bypass []netip.AddrPort
}

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
		conn.Close()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	// Without it (kernels before 4.20) the library filters.
	_ = routes.SetStrictCheck(true)
	return &Kernel{conn: conn, routes: routes}, nil
}

// Close releases the connections to the kernel and changes nothing in it.
func (k *Kernel) Close() {
	k.routes.Close()
	k.conn.Close()
}

// Apply makes the kernel hold want. First it adds and repairs links, then routes, then
// rules. Then it removes what is ours and not wanted, in the reverse order. If nothing
// differs it writes nothing.
//
// It leaves foreign things alone that are in the way, and reports them. These are an
// interface with a wanted name, and routes or rules of another protocol in our tables. The
// rest is applied all the same, also where the kernel refuses something. The error is a
// [PartialError] if it concerns some links only. Apply returns the changes that it made in
// any case, in words, as "changed link loq1-0: mtu 1400, up".
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
			// The next steps rely on this one.
			return a.changes, errors.Join(append(a.failed.errs, err)...)
		}
		step.write()
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
	errs          []error
}

func (e *PartialError) Error() string { return errors.Join(e.errs...).Error() }

func (e *PartialError) Unwrap() []error { return e.errs }

// Purge removes all that is ours.
func (k *Kernel) Purge(ctx context.Context) (changes []string, err error) {
	return k.Apply(ctx, State{})
}

// Supports says whether this kernel can make links of a kind, also of one that is not the
// overlay's. It may load the kernel's module for it.
func (k *Kernel) Supports(kind Kind) (bool, error) {
	return k.conn.Supports(string(kind))
}

// applier is one run of Apply.
type applier struct {
	kernel *Kernel
	want   State
	// wantedLinks and wantedRoutes are those of want.
	wantedLinks  map[string]Link
	wantedRoutes map[routeKey]Route
	changes      []string
	// failed is what could not be done, and allFailed says that all links lack some of it.
	failed    PartialError
	allFailed bool

	links map[string]*link.State
	// forwarding are the entries of VXLAN links' forwarding tables, by interface.
	forwarding map[int][]netlink.Neigh
	routes     map[routeKey]kernelRoute
	// surplus are routes of ours that are in the way of one in routes.
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

// removed keeps whether something could be removed.
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

// except leaves out the error that says that somebody else has removed it.
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

// index sorts the links and routes that are wanted, and refuses what could not be recognised as
// ours later on. Of two that the kernel cannot both hold it takes the first one: the second may
// be what one node or peer says, and the others need theirs.
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
