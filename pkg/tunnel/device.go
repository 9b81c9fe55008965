package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/link"
)

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
		return fmt.Errorf("there is an interface that is not ours (kind %q, alias %q)", have.Kind(), have.Alias)
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
	defer func() {
		if err != nil {
			err = fmt.Errorf("configure tunnel %q: %w", d.name, err)
		}
	}()
	if err := d.ensureInterface(); err != nil {
		return false, err
	}
	have, err := d.wg.Device(d.name)
	if err != nil {
		return false, err
	}
	if diff := difference(have, c, d.applied); diff != nil {
		if err := d.wg.ConfigureDevice(d.name, *diff); err != nil {
			return false, err
		}
		changed = true
	}
	d.applied = &c
	linkChanged, err := ensureLink(d.conn, d.name, c)
	changed = changed || linkChanged
	if u, ok := d.wg.(*userspace); ok && err == nil {
		err = u.device.Up() // it follows the interface, but in a while
	}
	return changed, err
}

// Stats returns what WireGuard knows of the peer, the zero value where
// there is none.
func (d *Device) Stats() (Stats, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.applied == nil {
		return Stats{}, nil
	}
	have, err := d.wg.Device(d.name)
	if err != nil {
		return Stats{}, fmt.Errorf("read tunnel %q: %w", d.name, err)
	}
	return statsOf(have, d.applied), nil
}

// Call has packets sent to another endpoint of the peer, until WireGuard follows the peer elsewhere. Its session
// stays, and so does what was configured.
func (d *Device) Call(endpoint netip.AddrPort) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.applied == nil {
		return nil
	}
	err := d.wg.ConfigureDevice(d.name, wgtypes.Config{Peers: []wgtypes.PeerConfig{{
		PublicKey: d.applied.Peer.PublicKey, UpdateOnly: true, Endpoint: net.UDPAddrFromAddrPort(endpoint),
	}}})
	if err != nil {
		return fmt.Errorf("change the endpoint of tunnel %q: %w", d.name, err)
	}
	return nil
}

// Reset re-creates the peer of the last Configure, and so drops its
// session. With a keepalive and a known endpoint a new handshake starts at
// once, otherwise with the next packet.
func (d *Device) Reset() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.applied == nil {
		return nil
	}
	have, err := d.wg.Device(d.name)
	if err == nil {
		err = d.wg.ConfigureDevice(d.name, resetPeer(have, *d.applied))
	}
	if err != nil {
		return fmt.Errorf("reset tunnel %q: %w", d.name, err)
	}
	return nil
}

// Close releases what this process holds. The interface of the kernel's
// backend stays and goes on forwarding, that of the userspace backend
// vanishes.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn.Close()
	return d.wg.Close()
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
	if err != nil {
		return err
	}
	if _, err := removeReceiver(conn, links); err != nil {
		return fmt.Errorf("remove tunnel %q: %w", name, err)
	}
	l := links[name]
	if l == nil {
		return nil
	}
	// One without an alias is an interface of ours that was just made.
	if l.Alias != link.Alias && (l.Alias != "" || l.Kind() != LinkKind) {
		return fmt.Errorf("remove tunnel %q: the interface is not ours (kind %q, alias %q)", name, l.Kind(), l.Alias)
	}
	if err := conn.Handle.LinkDel(l.Link); err != nil {
		return fmt.Errorf("remove tunnel %q: %w", name, err)
	}
	return nil
}

// String leaves the keys out that are secret.
func (c Config) String() string {
	return fmt.Sprintf("port %d mtu %d address %s peer %s endpoint %s allowed %v keepalive %s",
		c.ListenPort, c.MTU, c.Address, c.Peer.PublicKey, c.Peer.Endpoint, c.Peer.AllowedIPs, c.Peer.Keepalive)
}

// GoString leaves them out, too.
func (c Config) GoString() string { return c.String() }

// ensureLink makes the interface's own attributes right, and the pair before it.
func ensureLink(conn *link.Conn, name string, c Config) (changed bool, err error) {
	links, err := conn.List()
	if err != nil {
		return false, err
	}
	l := links[name]
	if l == nil {
		return false, errors.New("the interface is gone")
	}
	changes, err := conn.Ensure(l, link.Want{MTU: c.MTU, Group: Group, Address: c.Address})
	if err != nil {
		return len(changes) > 0, err
	}
	changed, err = ensureReceiver(conn, links, c)
	return changed || len(changes) > 0, err
}

// difference returns what WireGuard must be told, nil for nothing. applied is
// the last configuration that this process wrote, nil if there is none.
func difference(have *wgtypes.Device, want Config, applied *Config) *wgtypes.Config {
	var out wgtypes.Config
	changed := false
	if have.PrivateKey != want.PrivateKey {
		out.PrivateKey, changed = &want.PrivateKey, true
	}
	if port := int(want.ListenPort); have.ListenPort != port {
		out.ListenPort, changed = &port, true
	}
	// WireGuard cannot forget an endpoint: the peer goes, and comes without one.
	forget := applied != nil && applied.Peer.PublicKey == want.Peer.PublicKey &&
		applied.Peer.Endpoint.IsValid() && !want.Peer.Endpoint.IsValid()
	var present *wgtypes.Peer
	for _, p := range have.Peers {
		if p.PublicKey == want.Peer.PublicKey && !forget {
			present = &p
			continue
		}
		out.Peers, changed = append(out.Peers, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true}), true
	}
	if p := peerDifference(present, want, applied); p != nil {
		out.Peers, changed = append(out.Peers, *p), true
	}
	if !changed {
		return nil
	}
	return &out
}

func peerDifference(have *wgtypes.Peer, config Config, applied *Config) *wgtypes.PeerConfig {
	want := config.Peer
	if have == nil {
		return wholePeer(config, want.Endpoint)
	}
	p := wgtypes.PeerConfig{PublicKey: want.PublicKey, UpdateOnly: true}
	changed := false
	if have.PresharedKey != config.PresharedKey {
		p.PresharedKey, changed = &config.PresharedKey, true
	}
	if allowed := ipNets(want.AllowedIPs); !slices.Equal(sorted(have.AllowedIPs), sorted(allowed)) {
		p.ReplaceAllowedIPs, p.AllowedIPs, changed = true, allowed, true
	}
	if have.PersistentKeepaliveInterval != want.Keepalive {
		p.PersistentKeepaliveInterval, changed = &want.Keepalive, true
	}
	// A peer that moved was found by WireGuard itself: only a new wish counts.
	known := applied != nil && applied.Peer.PublicKey == want.PublicKey && applied.Peer.Endpoint == want.Endpoint
	if want.Endpoint.IsValid() && !known && udpEndpoint(have.Endpoint) != want.Endpoint {
		p.Endpoint, changed = net.UDPAddrFromAddrPort(want.Endpoint), true
	}
	if !changed {
		return nil
	}
	return &p
}

// wholePeer describes a peer that is not there yet.
func wholePeer(config Config, endpoint netip.AddrPort) *wgtypes.PeerConfig {
	want := config.Peer
	p := &wgtypes.PeerConfig{
		PublicKey: want.PublicKey, PresharedKey: &config.PresharedKey, ReplaceAllowedIPs: true, AllowedIPs: ipNets(want.AllowedIPs),
		PersistentKeepaliveInterval: &want.Keepalive,
	}
	if endpoint.IsValid() {
		p.Endpoint = net.UDPAddrFromAddrPort(endpoint)
	}
	return p
}

// resetPeer removes the peer and adds it again, with the endpoint that is
// wanted, or else with the one that WireGuard has learned.
func resetPeer(have *wgtypes.Device, want Config) wgtypes.Config {
	endpoint := want.Peer.Endpoint
	for _, p := range have.Peers {
		if p.PublicKey == want.Peer.PublicKey && !endpoint.IsValid() {
			endpoint = udpEndpoint(p.Endpoint)
		}
	}
	return wgtypes.Config{Peers: []wgtypes.PeerConfig{
		{PublicKey: want.Peer.PublicKey, Remove: true},
		*wholePeer(want, endpoint),
	}}
}

func statsOf(have *wgtypes.Device, applied *Config) Stats {
	for _, p := range have.Peers {
		if p.PublicKey == applied.Peer.PublicKey {
			s := Stats{
				Endpoint: udpEndpoint(p.Endpoint), RxBytes: p.ReceiveBytes, TxBytes: p.TransmitBytes,
				AsConfigured: difference(have, *applied, applied) == nil,
			}
			// The kernel says "never" by the beginning of 1970.
			if p.LastHandshakeTime.Unix() > 0 {
				s.LastHandshake = p.LastHandshakeTime
			}
			return s
		}
	}
	return Stats{}
}

func udpEndpoint(a *net.UDPAddr) netip.AddrPort {
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

func ipNets(prefixes []netip.Prefix) []net.IPNet {
	out := make([]net.IPNet, 0, len(prefixes))
	for _, p := range prefixes {
		out = append(out, *netipx.PrefixIPNet(p))
	}
	return out
}

// sorted makes lists of prefixes comparable.
func sorted(nets []net.IPNet) []string {
	out := make([]string, 0, len(nets))
	for _, n := range nets {
		out = append(out, n.String())
	}
	slices.Sort(out)
	return slices.Compact(out)
}
