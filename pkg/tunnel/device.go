// Package tunnel keeps the WireGuard tunnel between two gateways, and measures it by
// probes. It works in the network namespace of the calling thread.
//
// There are two backends: the kernel, and wireguard-go inside this process. A [Device] of
// either behaves alike. WireGuard is only touched if its configuration differs from
// the wanted one.
//
// Out of scope: which keys, endpoints and prefixes a tunnel has, routes through it
// (package overlay), and translation (package nat).
package tunnel

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/samber/lo"
	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/wire"
)

// Backend says who does WireGuard's work.
type Backend string

const (
	// Kernel is the kernel's own implementation.
	Kernel Backend = "Kernel"
	// Userspace is wireguard-go inside this process, over a TUN device.
	Userspace Backend = "UserSpace"
)

const (
	// OverheadIPv4 is how many bytes WireGuard adds to a packet over IPv4: outer IP 20, UDP
	// 8, message header 16, Poly1305 tag 16. Padding never makes packets larger than the
	// interface's MTU.
	OverheadIPv4 = 60
	// OverheadIPv6 is the same over IPv6, whose header has 40 bytes.
	OverheadIPv6 = 80

	// LinkKind is the kind of interfaces of the kernel's backend.
	LinkKind = "wireguard"
	// InterfaceName of the tunnel inside a gateway's network namespace.
	InterfaceName = "wg0"
	// ListenPort of a gateway, UDP.
	ListenPort uint16 = wire.TunnelPort
	// EntryInterface is one end of a veth pair in a gateway. Packets that are sent into it
	// are aggregated by the other end.
	EntryInterface = "gro0in"
	// ReceiveInterface is the other end of that pair.
	ReceiveInterface = "gro0"
	// Group is the interface group of the tunnel's interface (IFLA_GROUP).
	Group uint32 = 27762
	// ReceiveGroup is the interface group of ReceiveInterface.
	ReceiveGroup uint32 = 27763
	// ProbePort is the UDP port of the echo responder of a gateway.
	ProbePort uint16 = 6095
)

// Overhead is what WireGuard adds to packets that are sent to an endpoint, in
// bytes; that of IPv4 while there is none.
func Overhead(endpoint netip.Addr) int {
	if endpoint.Unmap().Is6() {
		return OverheadIPv6
	}
	return OverheadIPv4
}

// Config is the wanted state of a tunnel. It has exactly one peer.
type Config struct {
	PrivateKey wgtypes.Key
	// PresharedKey is what both gateways have besides their key pairs, the zero value for
	// none. It is here and not in Peer, since a Peer may be printed.
	PresharedKey wgtypes.Key
	ListenPort   uint16
	MTU          int
	// Address is the gateway's own (its overlay address), as a /32 or /128.
	Address netip.Addr
	// Underlay is the interface by which packets of the peer and of nodes come. For them
	// EntryInterface and ReceiveInterface are made, and the caller sends them there (see
	// package nat). If it is empty there is no such pair.
	Underlay string
	Peer     Peer
}

// Peer is the other gateway.
type Peer struct {
	PublicKey wgtypes.Key
	// Endpoint is where the peer listens. It is the zero value on a server, which learns it
	// from the client's first packet.
	Endpoint netip.AddrPort
	// AllowedIPs are the peer's mapped ranges, from which all its packets have to come.
	AllowedIPs []netip.Prefix
	// Keepalive is the interval of empty packets, whole seconds, 0 for none.
	Keepalive time.Duration
}

// Stats is what WireGuard itself knows of the peer.
type Stats struct {
	// LastHandshake is the zero time where there was none.
	LastHandshake    time.Time
	Endpoint         netip.AddrPort
	RxBytes, TxBytes int64
	// AsConfigured is false where somebody has changed what WireGuard was told by
	// the last Configure. It says nothing of the interface.
	AsConfigured bool
}

// Device is a tunnel's WireGuard interface. Its methods may be called at once
// from several goroutines.
type Device struct {
	name    string
	backend Backend
	report  func(error)
	conn    *link.Conn

	mu sync.Mutex
	wg wireGuard
	// applied is the last configuration that this process wrote, nil if there is none.
	applied *Config
}

// wireGuard are the methods of wgctrl's client, which talks to the kernel. The userspace
// backend has the same.
type wireGuard interface {
	Device(name string) (*wgtypes.Device, error)
	ConfigureDevice(name string, cfg wgtypes.Config) error
	Close() error
}

// Open makes the interface of a tunnel, or takes over the one which an earlier
// process left. An interface of this name that is of another kind and not ours
// is an error. Nothing is configured yet. The userspace backend reports errors of its
// packet handling, from any goroutine.
func Open(backend Backend, name string, report func(error)) (*Device, error) {
	if backend != Kernel && backend != Userspace {
		return nil, fmt.Errorf("open tunnel %q: unknown backend %q", name, backend)
	}
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

// ensureInterface makes the interface if there is none: somebody may have deleted it.
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
		return notOurs(have)
	}
	if d.wg == nil {
		// After the interface was made: wgctrl only sees a loaded module.
		wg, err := wgctrl.New()
		if err != nil {
			return err
		}
		d.wg = wg
	}
	return nil
}

// ensureTUN makes the TUN device and wireguard-go over it.
func (d *Device) ensureTUN(have *link.State) error {
	if d.wg != nil {
		if have != nil {
			return nil
		}
		_ = d.wg.Close() // it never fails
	}
	// What the kernel's backend left is in the way; a TUN device vanishes with
	// its process, so one that is there belongs to somebody.
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

// Configure makes interface and WireGuard what the configuration says, and
// says whether anything had to be changed. The endpoint of a peer that is
// already there is only changed when the configured one has changed since
// the last call, because WireGuard follows a peer that moves. If there was one
// and none is wanted any more, the peer is re-created, and its session dropped.
func (d *Device) Configure(c Config) (changed bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
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
		err = u.device.Up() // it follows the interface, but in a while
	}
	return err
}

// Stats returns what WireGuard knows of the peer, the zero value where
// there is none.
func (d *Device) Stats() (stats Stats, err error) {
	err = d.ask("read tunnel", func(applied Config) error {
		have, err := d.wg.Device(d.name)
		if err == nil {
			stats = statsOf(have, applied)
		}
		return err
	})
	return stats, err
}

// Call has packets sent to another endpoint of the peer, until WireGuard follows the peer elsewhere. Its session
// stays, and so does what was configured.
func (d *Device) Call(endpoint netip.AddrPort) error {
	return d.ask("change the endpoint of tunnel", func(applied Config) error {
		return d.wg.ConfigureDevice(d.name, wgtypes.Config{Peers: []wgtypes.PeerConfig{{
			PublicKey: applied.Peer.PublicKey, UpdateOnly: true, Endpoint: net.UDPAddrFromAddrPort(endpoint),
		}}})
	})
}

// Reset re-creates the peer of the last Configure, and so drops its
// session. With a keepalive and a known endpoint a new handshake starts at
// once, otherwise with the next packet.
func (d *Device) Reset() error {
	return d.ask("reset tunnel", func(applied Config) error {
		have, err := d.wg.Device(d.name)
		if err != nil {
			return err
		}
		return d.wg.ConfigureDevice(d.name, resetPeer(have, applied))
	})
}

// ask does something with the peer of the last Configure, if there was one.
func (d *Device) ask(what string, do func(applied Config) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.applied == nil {
		return nil
	}
	if err := do(*d.applied); err != nil {
		return fmt.Errorf("%s %q: %w", what, d.name, err)
	}
	return nil
}

// Close releases what this process holds. The interface of the kernel's
// backend stays and keeps forwarding, that of the userspace backend
// vanishes.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn.Close()
	return d.wg.Close()
}

// String leaves the keys out that are secret.
func (c Config) String() string {
	return fmt.Sprintf("port %d mtu %d address %s peer %s endpoint %s allowed %v keepalive %s",
		c.ListenPort, c.MTU, c.Address, c.Peer.PublicKey, c.Peer.Endpoint, c.Peer.AllowedIPs, c.Peer.Keepalive)
}

// GoString leaves them out, too.
func (c Config) GoString() string { return c.String() }

// difference returns what WireGuard must be told, nil for nothing. applied is
// the last configuration that this process wrote, nil if there is none.
func difference(have *wgtypes.Device, want Config, applied *Config) *wgtypes.Config {
	out := wgtypes.Config{
		PrivateKey: change(have.PrivateKey, want.PrivateKey), ListenPort: change(have.ListenPort, int(want.ListenPort)),
	}
	var told netip.AddrPort // the endpoint that this process told of this peer
	if applied != nil && applied.Peer.PublicKey == want.Peer.PublicKey {
		told = applied.Peer.Endpoint
	}
	// WireGuard cannot forget an endpoint: the peer goes, and comes without one.
	forget := told.IsValid() && !want.Peer.Endpoint.IsValid()
	var present wgtypes.Peer
	for _, p := range have.Peers {
		if p.PublicKey == want.Peer.PublicKey && !forget {
			present = p
			continue
		}
		out.Peers = append(out.Peers, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true})
	}
	p := peerDifference(present, want, told)
	if !reflect.DeepEqual(p, wgtypes.PeerConfig{PublicKey: p.PublicKey, UpdateOnly: true}) {
		out.Peers = append(out.Peers, p)
	}
	if reflect.ValueOf(out).IsZero() {
		return nil
	}
	return &out
}

// change is nil if there is nothing to change.
func change[T comparable](have, want T) *T {
	if have == want {
		return nil
	}
	return &want
}

// peerDifference also describes a peer that is not there yet: the one without a key.
func peerDifference(have wgtypes.Peer, config Config, told netip.AddrPort) wgtypes.PeerConfig {
	want := config.Peer
	p := wgtypes.PeerConfig{
		PublicKey: want.PublicKey, UpdateOnly: have.PublicKey == want.PublicKey,
		PresharedKey:                change(have.PresharedKey, config.PresharedKey),
		PersistentKeepaliveInterval: change(have.PersistentKeepaliveInterval, want.Keepalive),
	}
	if allowed := ipNets(want.AllowedIPs); !slices.Equal(sorted(have.AllowedIPs), sorted(allowed)) {
		p.ReplaceAllowedIPs, p.AllowedIPs = true, allowed
	}
	// A peer that moved was found by WireGuard itself: only a new wish counts.
	known := p.UpdateOnly && (want.Endpoint == told || want.Endpoint == udpEndpoint(have.Endpoint))
	if want.Endpoint.IsValid() && !known {
		p.Endpoint = net.UDPAddrFromAddrPort(want.Endpoint)
	}
	return p
}

// resetPeer removes the peer and adds it again, with the endpoint that is
// wanted, or else with the one that WireGuard has learned.
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
	// The kernel says "never" by the beginning of 1970.
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
	slices.Sort(out)
	return slices.Compact(out)
}
