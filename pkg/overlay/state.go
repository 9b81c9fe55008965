package overlay

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"
	"github.com/vishvananda/netlink"

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

	// Overhead is the number of bytes that both Geneve without options and VXLAN add to a packet: outer IPv4 20, UDP 8,
	// header 8, inner Ethernet 14.
	Overhead = 50
)

// Link is one end of a point-to-point overlay link between a node and a gateway.
type Link struct {
	// Name starts with wire.LinkPrefix.
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
	// MTU is that of the interface in bytes, without encapsulation.
	MTU int
}

// Route is a route.
type Route struct {
	// Table is Table or InboundTable.
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
	return lo.Ternary(len(r.Hops) > 0, r.Hops, []Hop{{r.Dev, r.Via}})
}

// equal reports whether two routes are the same.
func (r Route) equal(other Route) bool {
	return slices.Equal(r.Hops, other.Hops) && r.Table == other.Table && r.Dst == other.Dst && r.Unreachable == other.Unreachable &&
		r.Dev == other.Dev && r.Via == other.Via && r.Src == other.Src && r.MTU == other.MTU && r.Metric == other.Metric
}

// String returns a text similar to the output of ip(8).
func (r Route) String() string {
	var b strings.Builder
	part := func(present bool, format string, values ...any) {
		if present {
			fmt.Fprintf(&b, format, values...)
		}
	}
	part(r.Unreachable, "unreachable ")
	part(true, "%s", r.Dst)
	part(r.Via.IsValid(), " via %s", r.Via)
	part(r.Dev != "", " dev %s", r.Dev)
	for _, h := range r.Hops {
		part(true, " nexthop via %s dev %s", h.Via, h.Dev)
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
	IIF string
	// Table is Table or InboundTable.
	Table int
}

// State is everything that this package maintains in a network namespace. All of its addresses are of IPv4.
type State struct {
	Links  []Link
	Routes []Route
	Rules  []Rule
	// Bypass are sources to whose packets Rules do not apply: the next rules decide. With a port, it applies only to
	// UDP from that port.
	Bypass []netip.AddrPort
}

func isOurTable(table int) bool {
	return table == Table || table == InboundTable
}

func addrFrom(ip []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// KeyBytes is the length of a Key.
const KeyBytes = wire.GatewayKeyBytes

// Key is a secret of the nodes of one cluster, or of one gateway and these nodes (see Keys.ForGateway). The MAC addresses
// inside the overlay are derived from a gateway's key. The kernel drops frames to other addresses, because they are not for the link on which they arrive. So forging outer
// addresses, as anyone on the nodes' network can, is not enough to send into the overlay.
type Key [KeyBytes]byte

// Keys are the keys that an agent knows, by generation. Links change their keys one after the other, so an agent may
// need several.
type Keys map[int32]Key

// ReadKeys reads the keys in a directory, where each file is named after its generation. It returns an error if there
// is no key, or a file that is not a key.
func ReadKeys(dir string) (Keys, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the overlay's keys: %w", err)
	}
	keys := Keys{}
	for _, e := range entries {
		generation, err := strconv.ParseInt(e.Name(), 10, 32)
		if err != nil {
			continue // a kubelet's own directories
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the overlay's key: %w", err)
		}
		if len(b) != KeyBytes {
			return nil, fmt.Errorf("read the overlay's key: %s has %d bytes instead of %d", e.Name(), len(b), KeyBytes)
		}
		keys[int32(generation)] = Key(b)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("read the overlay's keys: there is none in %s", dir)
	}
	return keys, nil
}

// ForGeneration returns the key of a generation, or the oldest key if that generation is unknown. Both ends of a link
// whose key was never chosen use the oldest key, even if other links have newer ones.
func (k Keys) ForGeneration(generation int32) Key { return k[k.known(generation)] }

// ForGateway returns the key of a gateway's links. k are the cluster's keys, generation is as in ForGeneration.
func (k Keys) ForGateway(name string, generation int32) Key {
	generation = k.known(generation)
	secret := k[generation]
	return Key(wire.GatewayKey(secret[:], name, generation))
}

func (k Keys) known(generation int32) int32 {
	return lo.Ternary(lo.HasKey(k, generation), generation, lo.Min(lo.Keys(k)))
}

// MAC is an Ethernet address.
type MAC [6]byte

// MAC derives the MAC address of the link end with the address addr. It is locally administered and unicast, and has 46
// bits that cannot be guessed.
func (k Key) MAC(vni uint32, addr netip.Addr) MAC {
	h := hmac.New(sha256.New, k[:])
	h.Write(binary.BigEndian.AppendUint32(nil, vni))
	h.Write(addr.AsSlice())
	m := MAC(h.Sum(nil)[:6])
	m[0] = m[0]&^0x01 | 0x02
	return m
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

// applier is one run of Apply.
type applier struct {
	kernel *Kernel
	want   State
	// wantedLinks and wantedRoutes are the links and routes of want.
	wantedLinks  map[string]Link
	wantedRoutes map[routeKey]Route
	changes      []string
	// failedLinks is what could not be done. allFailed is true if that affects all links.
	failedLinks PartialError
	allFailed   bool

	links map[string]*link.State
	// forwarding are the links' own entries of forwarding tables, by interface index.
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
	a.failedLinks.errs = append(a.failedLinks.errs, fmt.Errorf(format, args...))
}

func (a *applier) failLink(name string, err error) {
	a.fail("%w", err)
	a.failedLinks.Links = append(a.failedLinks.Links, name)
}

// removed records and returns whether a removal succeeded.
func (a *applier) removed(err error, format string, args ...any) bool {
	what := fmt.Sprintf(format, args...)
	if err != nil {
		a.fail("remove %s: %w", what, err)
		a.failedLinks.RemovalFailed = true
		return false
	}
	a.changed("removed %s", what)
	return true
}

func (a *applier) err() error {
	switch {
	case len(a.failedLinks.errs) == 0:
		return nil
	case a.allFailed:
		return errors.Join(a.failedLinks.errs...)
	}
	a.failedLinks.Links = slices.Compact(slices.Sorted(slices.Values(a.failedLinks.Links)))
	return &a.failedLinks
}
