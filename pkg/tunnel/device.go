// Package tunnel maintains the WireGuard tunnel between two gateways. It works in the network namespace of the calling
// thread.
//
// There are two backends: the kernel, and wireguard-go inside this process. A [Device] of either behaves the same.
// WireGuard is only configured if its configuration differs from the wanted one.
//
// Out of scope: which keys, endpoints and prefixes a tunnel has, routes through it (package overlay), translation
// (package nat), and whether packets pass (package liveness).
package tunnel

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/samber/lo"
	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/wire"
)

// Backend is the implementation of WireGuard.
type Backend string

const (
	// Kernel is the kernel's own implementation.
	Kernel Backend = "Kernel"
	// Userspace is wireguard-go inside this process, over a TUN device.
	Userspace Backend = "UserSpace"
)

const (
	// OverheadIPv4 is the number of bytes that WireGuard adds to a packet over IPv4: outer IP 20, UDP 8, message header
	// 16, Poly1305 tag 16. Padding never makes packets larger than the interface's MTU.
	OverheadIPv4 = 60
	// OverheadIPv6 is the same over IPv6, whose header has 40 bytes.
	OverheadIPv6 = 80

	// LinkKind is the kind of the kernel backend's interfaces.
	LinkKind = "wireguard"
	// InterfaceName is the name of the tunnel's interface inside a gateway's network namespace.
	InterfaceName = "wg0"
	// ListenPort is the UDP port of a gateway.
	ListenPort uint16 = wire.TunnelPort
	// EntryInterface is one end of a veth pair in a gateway. The other end aggregates packets that are sent into it.
	EntryInterface = "gro0in"
	// ReceiveInterface is the other end of that pair.
	ReceiveInterface = "gro0"
	// Group is the interface group of the tunnel's interface (IFLA_GROUP).
	Group uint32 = 27762
	// ReceiveGroup is the interface group of ReceiveInterface.
	ReceiveGroup uint32 = 27763
)

// Overhead returns the number of bytes that WireGuard adds to packets to an endpoint; that of IPv4 if there is no
// endpoint.
func Overhead(endpoint netip.Addr) int {
	return lo.Ternary(endpoint.Unmap().Is6(), OverheadIPv6, OverheadIPv4)
}

// Config is the wanted state of a tunnel. It has exactly one peer.
type Config struct {
	PrivateKey wgtypes.Key
	// PresharedKey is a secret of both gateways in addition to their key pairs, the zero value for none. It is not in
	// Peer, because a Peer may be printed.
	PresharedKey wgtypes.Key
	ListenPort   uint16
	MTU          int
	// Address is the gateway's own overlay address, as a /32.
	Address netip.Addr
	// Underlay is the interface on which packets of the peer and of nodes arrive. For these, EntryInterface and
	// ReceiveInterface are created, and the caller forwards the packets there (see package nat). If it is empty, the
	// pair is not created.
	Underlay string
	Peer     Peer
}

// Peer is the other gateway.
type Peer struct {
	PublicKey wgtypes.Key
	// Endpoint is the address where the peer listens. It is the zero value on a server, which learns the endpoint from
	// the client's first packet.
	Endpoint netip.AddrPort
	// AllowedIPs are the peer's mapped ranges. All its packets have to come from these.
	AllowedIPs []netip.Prefix
	// Keepalive is the interval of empty packets in whole seconds, 0 for none.
	Keepalive time.Duration
}

// Stats is WireGuard's own state of the peer.
type Stats struct {
	// LastHandshake is the zero time if there was none.
	LastHandshake    time.Time
	Endpoint         netip.AddrPort
	RxBytes, TxBytes int64
	// AsConfigured is false if someone has changed the WireGuard configuration since the last Configure. It does not
	// cover the interface.
	AsConfigured bool
}

// Device is a tunnel's WireGuard interface. Its methods must not be called concurrently.
type Device struct {
	name    string
	backend Backend
	report  func(error)
	conn    *link.Conn
	wg      wireGuard
	// applied is the last configuration that this process wrote, nil if there is none.
	applied *Config
}

// wireGuard has the methods of wgctrl's client, which configures the kernel. The userspace backend has the same
// methods.
type wireGuard interface {
	Device(name string) (*wgtypes.Device, error)
	ConfigureDevice(name string, cfg wgtypes.Config) error
	Close() error
}

// Open creates the interface of a tunnel, or takes over the one that an earlier process left. It returns an error if an
// interface with this name is of another kind and not ours. It configures nothing yet. The userspace backend calls
// report, from any goroutine, for errors of its packet handling.
func Open(backend Backend, name string, report func(error)) (*Device, error) {
	conn, err := link.Open()
	if err != nil {
		return nil, err
	}
	d := &Device{name: name, backend: backend, report: report, conn: conn}
	if err := d.ensureInterface(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("open tunnel %q: %w", name, err)
	}
	return d, nil
}

// ensureInterface creates the interface if it is missing: someone may have deleted it.
func (d *Device) ensureInterface() error {
	links, err := d.conn.List()
	if err != nil {
		return err
	}
	have := links[d.name]
	if d.backend == Userspace {
		return d.ensureTUN(have)
	}
	switch {
	case have == nil:
		attrs := netlink.NewLinkAttrs()
		attrs.Name = d.name
		if err := d.conn.Handle.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
			return err
		}
	case have.Kind() != LinkKind || (have.Alias != "" && have.Alias != link.Alias):
		return foreignInterface(have)
	}
	if d.wg == nil {
		// After the interface was created, because wgctrl needs a loaded module.
		wg, err := wgctrl.New()
		if err != nil {
			return err
		}
		d.wg = wg
	}
	return nil
}

// ensureTUN creates the TUN device, and wireguard-go on it.
func (d *Device) ensureTUN(have *link.State) error {
	if d.wg != nil {
		if have != nil {
			return nil
		}
		_ = d.wg.Close() // never fails
	}
	// An interface of the kernel backend is replaced. A TUN device disappears with its process, so an existing one
	// belongs to someone else.
	if have != nil && have.Kind() == LinkKind {
		if err := remove(d.conn, d.name); err != nil {
			return err
		}
	}
	wg, err := newUserspace(d.name, d.report)
	if err != nil {
		return err
	}
	d.wg, d.applied = wg, nil
	return nil
}

// Configure applies the configuration to the interface and to WireGuard, and reports whether it changed anything. It
// changes the endpoint of an existing peer only if the configured endpoint has changed since the last call, because
// WireGuard follows a peer that moves. If the endpoint was configured before and no longer is, Configure re-creates the
// peer, which drops its session.
func (d *Device) Configure(c Config) (changed bool, err error) {
	var steps link.Steps
	if err := d.configure(&steps, c); err != nil {
		return len(steps.Changed) > 0, fmt.Errorf("configure tunnel %q: %w", d.name, err)
	}
	return len(steps.Changed) > 0, nil
}

func (d *Device) configure(steps *link.Steps, c Config) error {
	if err := d.ensureInterface(); err != nil {
		return err
	}
	have, err := d.wg.Device(d.name)
	if err != nil {
		return err
	}
	if diff := difference(have, c, d.applied); diff != nil {
		if err := d.wg.ConfigureDevice(d.name, *diff); err != nil {
			return err
		}
		steps.Changed = append(steps.Changed, "WireGuard")
	}
	d.applied = &c
	err = d.ensureLink(steps, c)
	if u, ok := d.wg.(*userspace); ok && err == nil {
		err = u.device.Up() // it also follows the interface, but later
	}
	return err
}

// Stats returns WireGuard's state of the peer, the zero value if there is no peer.
func (d *Device) Stats() (stats Stats, err error) {
	err = d.withApplied("read tunnel", func(applied Config) error {
		have, err := d.wg.Device(d.name)
		if err == nil {
			stats = statsOf(have, applied)
		}
		return err
	})
	return stats, err
}

// SetEndpoint directs packets to another endpoint of the peer, until WireGuard follows the peer elsewhere. It changes
// neither the session nor the rest of the configuration.
func (d *Device) SetEndpoint(endpoint netip.AddrPort) error {
	return d.withApplied("change the endpoint of tunnel", func(applied Config) error {
		return d.wg.ConfigureDevice(d.name, wgtypes.Config{Peers: []wgtypes.PeerConfig{{
			PublicKey: applied.Peer.PublicKey, UpdateOnly: true, Endpoint: net.UDPAddrFromAddrPort(endpoint),
		}}})
	})
}

// Reset re-creates the peer of the last Configure, which drops its session. With a keepalive and a known endpoint, a
// new handshake starts immediately, otherwise with the next packet.
func (d *Device) Reset() error {
	return d.withApplied("reset tunnel", func(applied Config) error {
		have, err := d.wg.Device(d.name)
		if err != nil {
			return err
		}
		return d.wg.ConfigureDevice(d.name, resetPeer(have, applied))
	})
}

// withApplied calls fn with the last applied configuration, if there is one.
func (d *Device) withApplied(what string, fn func(applied Config) error) error {
	if d.applied == nil {
		return nil
	}
	if err := fn(*d.applied); err != nil {
		return fmt.Errorf("%s %q: %w", what, d.name, err)
	}
	return nil
}

// Close releases the resources of this process. The interface of the kernel backend stays and keeps forwarding. That of
// the userspace backend disappears.
func (d *Device) Close() error {
	d.conn.Close()
	return d.wg.Close()
}

// String omits the secret keys.
func (c Config) String() string {
	return fmt.Sprintf("port %d mtu %d address %s peer %s endpoint %s allowed %v keepalive %s",
		c.ListenPort, c.MTU, c.Address, c.Peer.PublicKey, c.Peer.Endpoint, c.Peer.AllowedIPs, c.Peer.Keepalive)
}

// GoString omits them, too.
func (c Config) GoString() string { return c.String() }

// difference returns the configuration to send to WireGuard, nil if nothing differs. applied is the last configuration
// that this process wrote, nil if there is none.
func difference(have *wgtypes.Device, want Config, applied *Config) *wgtypes.Config {
	out := wgtypes.Config{
		PrivateKey: change(have.PrivateKey, want.PrivateKey), ListenPort: change(have.ListenPort, int(want.ListenPort)),
	}
	var configured netip.AddrPort // the endpoint that this process last configured for this peer
	if applied != nil && applied.Peer.PublicKey == want.Peer.PublicKey {
		configured = applied.Peer.Endpoint
	}
	// WireGuard cannot remove an endpoint, so the peer is removed, and added without one.
	removeEndpoint := configured.IsValid() && !want.Peer.Endpoint.IsValid()
	var present wgtypes.Peer
	for _, p := range have.Peers {
		if p.PublicKey == want.Peer.PublicKey && !removeEndpoint {
			present = p
			continue
		}
		out.Peers = append(out.Peers, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true})
	}
	p := peerDifference(present, want, configured)
	if !reflect.DeepEqual(p, wgtypes.PeerConfig{PublicKey: p.PublicKey, UpdateOnly: true}) {
		out.Peers = append(out.Peers, p)
	}
	if reflect.ValueOf(out).IsZero() {
		return nil
	}
	return &out
}

// change returns the wanted value, nil if it is the current one.
func change[T comparable](have, want T) *T {
	return lo.Ternary(have == want, nil, &want)
}

// peerDifference returns the configuration to send for a peer. A peer without a key does not exist yet.
func peerDifference(have wgtypes.Peer, config Config, configured netip.AddrPort) wgtypes.PeerConfig {
	want := config.Peer
	p := wgtypes.PeerConfig{
		PublicKey: want.PublicKey, UpdateOnly: have.PublicKey == want.PublicKey,
		PresharedKey:                change(have.PresharedKey, config.PresharedKey),
		PersistentKeepaliveInterval: change(have.PersistentKeepaliveInterval, want.Keepalive),
	}
	if allowed := ipNets(want.AllowedIPs); !slices.Equal(sorted(have.AllowedIPs), sorted(allowed)) {
		p.ReplaceAllowedIPs, p.AllowedIPs = true, allowed
	}
	// WireGuard itself has followed a peer that moved, so only a newly configured endpoint counts.
	known := p.UpdateOnly && (want.Endpoint == configured || want.Endpoint == udpEndpoint(have.Endpoint))
	if want.Endpoint.IsValid() && !known {
		p.Endpoint = net.UDPAddrFromAddrPort(want.Endpoint)
	}
	return p
}

// resetPeer removes the peer and adds it again, with the wanted endpoint, or with the one that WireGuard has learned.
func resetPeer(have *wgtypes.Device, want Config) wgtypes.Config {
	if p, known := peerOf(have, want); known && !want.Peer.Endpoint.IsValid() {
		want.Peer.Endpoint = udpEndpoint(p.Endpoint)
	}
	return wgtypes.Config{Peers: []wgtypes.PeerConfig{
		{PublicKey: want.Peer.PublicKey, Remove: true},
		peerDifference(wgtypes.Peer{}, want, netip.AddrPort{}),
	}}
}

func peerOf(have *wgtypes.Device, c Config) (wgtypes.Peer, bool) {
	return lo.Find(have.Peers, func(p wgtypes.Peer) bool { return p.PublicKey == c.Peer.PublicKey })
}

func statsOf(have *wgtypes.Device, applied Config) Stats {
	p, known := peerOf(have, applied)
	if !known {
		return Stats{}
	}
	s := Stats{
		Endpoint: udpEndpoint(p.Endpoint), RxBytes: p.ReceiveBytes, TxBytes: p.TransmitBytes,
		AsConfigured: difference(have, applied, &applied) == nil,
	}
	// The kernel represents "never" as the start of 1970.
	if p.LastHandshakeTime.Unix() > 0 {
		s.LastHandshake = p.LastHandshakeTime
	}
	return s
}

func udpEndpoint(a *net.UDPAddr) netip.AddrPort {
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

func ipNets(prefixes []netip.Prefix) []net.IPNet {
	return lo.Map(prefixes, func(p netip.Prefix, _ int) net.IPNet { return *netipx.PrefixIPNet(p) })
}

// sorted makes lists of prefixes comparable.
func sorted(nets []net.IPNet) []string {
	out := lo.Map(nets, func(n net.IPNet, _ int) string { return n.String() })
	return slices.Compact(slices.Sorted(slices.Values(out)))
}

// ensureLink ensures the attributes of the interface, and the pair that aggregates its packets.
func (d *Device) ensureLink(steps *link.Steps, c Config) error {
	links, err := d.conn.List()
	if err != nil {
		return err
	}
	l := links[d.name]
	if l == nil {
		return errors.New("the interface is gone")
	}
	d.conn.Ensure(steps, l, link.Want{MTU: c.MTU, Group: Group, Address: c.Address})
	return ensureReceiver(steps, d.conn, links, c)
}

// ensureReceiver ensures the pair of interfaces that aggregates the packets of the tunnel and the overlay.
//
// wireguard-go requests aggregated packets from the kernel (UDP_GRO), and relies on them: it reads two messages at a
// time, which contain 128 packets with aggregation and two without. Packets from other machines arrive one by one,
// unless an interface of this namespace aggregates them. So do the overlay's packets if the network plugin has a
// bridge, which splits aggregated encapsulated packets. The pod's own interface cannot aggregate: a veth does not
// aggregate packets from an end with segmentation offload (veth_skb_is_eligible_for_gro in the kernel). So the sending
// end of this pair has it disabled.
func ensureReceiver(steps *link.Steps, conn *link.Conn, links map[string]*link.State, c Config) (err error) {
	underlay := links[c.Underlay]
	if underlay == nil || len(underlay.HardwareAddr) != 6 {
		removeReceiver(steps, conn, links)
		return steps.Err
	}
	entry, receive := links[EntryInterface], links[ReceiveInterface]
	for _, l := range []*link.State{entry, receive} {
		if l != nil && !isReceiver(l) {
			return cmp.Or(steps.Err, foreignInterface(l))
		}
	}
	if entry == nil || receive == nil {
		removeReceiver(steps, conn, links)
		steps.Do(fmt.Sprintf("add interfaces %q and %q", EntryInterface, ReceiveInterface), func() (err error) {
			entry, receive, err = addReceiver(conn)
			return err
		})
		if steps.Err != nil || entry == nil {
			return steps.Err
		}
	}
	// The packets pass the loose reverse path filter because of the address. The MAC is their destination.
	conn.Ensure(steps, receive, link.Want{
		MTU: underlay.MTU, Group: ReceiveGroup, MAC: underlay.HardwareAddr, Address: c.Address,
		Offloads: map[link.Offload]bool{link.GRO: true},
	})
	conn.Ensure(steps, entry, link.Want{MTU: underlay.MTU, Offloads: map[link.Offload]bool{link.TSO: false}})
	return steps.Err
}

// addReceiver returns nil if the kernel does not support such interfaces.
func addReceiver(conn *link.Conn) (entry, receive *link.State, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = EntryInterface
	err = conn.Handle.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: ReceiveInterface})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	links, err := conn.List()
	return links[EntryInterface], links[ReceiveInterface], err
}

// removeReceiver removes the pair, or the remaining end.
func removeReceiver(steps *link.Steps, conn *link.Conn, links map[string]*link.State) {
	for _, name := range []string{EntryInterface, ReceiveInterface} {
		l := links[name]
		if l == nil || !isReceiver(l) {
			continue
		}
		steps.Do(fmt.Sprintf("remove interface %q", name), func() error {
			return link.IgnoreError(conn.Handle.LinkDel(l.Link), unix.ENODEV) // removed together with the other end
		}, "no "+name)
	}
}

// isReceiver reports whether an interface is ours. One without an alias was just created.
func isReceiver(l *link.State) bool {
	return l.Kind() == "veth" && (l.Alias == link.Alias || l.Alias == "")
}

// Remove deletes the interface of a tunnel, if there is one of ours.
func Remove(name string) error {
	conn, err := link.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	return remove(conn, name)
}

func remove(conn *link.Conn, name string) error {
	links, err := conn.List()
	steps := link.Steps{Err: err}
	removeReceiver(&steps, conn, links)
	switch l := links[name]; {
	case steps.Err != nil || l == nil:
	case l.Alias != link.Alias && (l.Alias != "" || l.Kind() != LinkKind):
		// An interface of this kind without an alias is ours, and was just created.
		steps.Err = foreignInterface(l)
	default:
		steps.Err = conn.Handle.LinkDel(l.Link)
	}
	if steps.Err != nil {
		return fmt.Errorf("remove tunnel %q: %w", name, steps.Err)
	}
	return nil
}

func foreignInterface(l *link.State) error {
	return fmt.Errorf("interface %q is not ours (kind %q, alias %q)", l.Name, l.Kind(), l.Alias)
}
