package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/link"
)

// Device is a tunnel's WireGuard interface. Its methods may be called at once
// from several goroutines.
type Device interface {
	// Configure makes interface and WireGuard what the configuration says, and
	// says whether anything had to be changed. The endpoint of a peer that is
	// already there is only changed when the configured one has changed since
	// the last call, because WireGuard follows a peer that moves. If there was one
	// and none is wanted any more, the peer is re-created, and its session dropped.
	Configure(ctx context.Context, c Config) (changed bool, err error)
	// Stats returns what WireGuard knows of the peer, the zero value where
	// there is none.
	Stats() (Stats, error)
	// Reset re-creates the peer of the last Configure, and so drops its
	// session. With a keepalive and a known endpoint a new handshake starts at
	// once, otherwise with the next packet.
	Reset(ctx context.Context) error
	// Close releases what this process holds. The interface of the kernel's
	// backend stays and goes on forwarding, that of the userspace backend
	// vanishes.
	Close() error
}

// ErrNotConfigured is returned by Reset before the first Configure.
var ErrNotConfigured = errors.New("the tunnel was not configured yet")

// Option changes how a device is opened.
type Option func(*options)

type options struct {
	report func(error)
}

// WithErrors has the userspace backend report errors of its packet handling,
// from any goroutine. Without it they are dropped.
func WithErrors(report func(error)) Option {
	return func(o *options) { o.report = report }
}

// Open makes the interface of a tunnel, or takes over the one which an earlier
// process left. An interface of this name that is of another kind and not ours
// is an error. Nothing is configured yet.
func Open(ctx context.Context, backend Backend, name string, opts ...Option) (Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o := options{report: func(error) {}}
	for _, opt := range opts {
		opt(&o)
	}
	switch backend {
	case Kernel:
		return openKernel(name)
	case Userspace:
		return openUserspace(name, o)
	}
	return nil, fmt.Errorf("open tunnel %q: unknown backend %q", name, backend)
}

// Remove deletes the interface of a tunnel, if there is one of ours.
func Remove(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	conn, err := link.Open()
	if err != nil {
		return err
	}
	return errors.Join(remove(conn, name), conn.Close())
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
	if l.Alias != link.Alias && (l.Alias != "" || l.Kind() != kindWireGuard) {
		return fmt.Errorf("remove tunnel %q: the interface is not ours (kind %q, alias %q)", name, l.Kind(), l.Alias)
	}
	if err := conn.Handle.LinkDel(l.Link); err != nil {
		return fmt.Errorf("remove tunnel %q: %w", name, err)
	}
	return nil
}

// Supports says whether the kernel's backend can be used here. It may load the
// kernel's module.
func Supports(ctx context.Context) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	conn, err := link.Open()
	if err != nil {
		return false, err
	}
	ok, err := conn.Supports(kindWireGuard)
	return ok, errors.Join(err, conn.Close())
}

const kindWireGuard = "wireguard"

// String leaves the private key out.
func (c Config) String() string {
	return fmt.Sprintf("tunnel %s port %d mtu %d address %s peer %s endpoint %s allowed %v keepalive %s",
		c.Name, c.ListenPort, c.MTU, c.Address, c.Peer.PublicKey, c.Peer.Endpoint, c.Peer.AllowedIPs, c.Peer.Keepalive)
}

// GoString leaves the private key out.
func (c Config) GoString() string { return c.String() }

func (c Config) validate(name string) error {
	switch {
	case c.Name != "" && c.Name != name:
		return fmt.Errorf("configure tunnel %q: the configuration is for %q", name, c.Name)
	case c.PrivateKey == wgtypes.Key{}:
		return fmt.Errorf("configure tunnel %q: no private key", name)
	case c.Peer.PublicKey == wgtypes.Key{}:
		return fmt.Errorf("configure tunnel %q: the peer has no public key", name)
	case c.MTU <= 0 || !c.Address.IsValid():
		return fmt.Errorf("configure tunnel %q: MTU or address is missing", name)
	}
	return nil
}

// ensureLink makes the interface's own attributes right, and the pair before it.
func ensureLink(conn *link.Conn, name string, c Config) (changed bool, err error) {
	links, err := conn.List()
	if err != nil {
		return false, err
	}
	l := links[name]
	if l == nil {
		return false, fmt.Errorf("configure tunnel %q: the interface is gone", name)
	}
	changes, err := conn.Ensure(l, link.Want{MTU: c.MTU, Group: Group, Address: c.Address})
	if err != nil {
		return len(changes) > 0, err
	}
	changed, err = ensureReceiver(conn, links, c)
	if err != nil {
		return changed, fmt.Errorf("configure tunnel %q: %w", name, err)
	}
	return changed || len(changes) > 0, nil
}

// difference returns what WireGuard must be told, nil for nothing. applied is
// the last configuration that this process wrote, nil if there is none.
func difference(have wgtypes.Device, want Config, applied *Config) *wgtypes.Config {
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
	if p := peerDifference(present, want.Peer, applied); p != nil {
		out.Peers, changed = append(out.Peers, *p), true
	}
	if !changed {
		return nil
	}
	return &out
}

func peerDifference(have *wgtypes.Peer, want Peer, applied *Config) *wgtypes.PeerConfig {
	if have == nil {
		p := wholePeer(want, want.Endpoint)
		return &p
	}
	p := wgtypes.PeerConfig{PublicKey: want.PublicKey, UpdateOnly: true}
	changed := false
	if !slices.Equal(sortedPrefixes(have.AllowedIPs), sortedNetips(want.AllowedIPs)) {
		p.ReplaceAllowedIPs, p.AllowedIPs, changed = true, ipNets(want.AllowedIPs), true
	}
	if have.PersistentKeepaliveInterval != seconds(want.Keepalive) {
		keepalive := seconds(want.Keepalive)
		p.PersistentKeepaliveInterval, changed = &keepalive, true
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
func wholePeer(want Peer, endpoint netip.AddrPort) wgtypes.PeerConfig {
	keepalive := seconds(want.Keepalive)
	p := wgtypes.PeerConfig{
		PublicKey: want.PublicKey, ReplaceAllowedIPs: true, AllowedIPs: ipNets(want.AllowedIPs),
		PersistentKeepaliveInterval: &keepalive,
	}
	if endpoint.IsValid() {
		p.Endpoint = net.UDPAddrFromAddrPort(endpoint)
	}
	return p
}

// resetPeer removes the peer and adds it again, with the endpoint that is
// wanted, or else with the one that WireGuard has learned.
func resetPeer(have wgtypes.Device, want Config) wgtypes.Config {
	endpoint := want.Peer.Endpoint
	for _, p := range have.Peers {
		if p.PublicKey == want.Peer.PublicKey && !endpoint.IsValid() {
			endpoint = udpEndpoint(p.Endpoint)
		}
	}
	return wgtypes.Config{Peers: []wgtypes.PeerConfig{
		{PublicKey: want.Peer.PublicKey, Remove: true},
		wholePeer(want.Peer, endpoint),
	}}
}

func statsOf(have wgtypes.Device, applied *Config) Stats {
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

// seconds is the precision that WireGuard has.
func seconds(d time.Duration) time.Duration {
	return d.Truncate(time.Second)
}

func udpEndpoint(a *net.UDPAddr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

func ipNets(prefixes []netip.Prefix) []net.IPNet {
	out := make([]net.IPNet, 0, len(prefixes))
	for _, p := range prefixes {
		p = p.Masked()
		out = append(out, net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())})
	}
	return out
}

func sortedPrefixes(nets []net.IPNet) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(nets))
	for _, n := range nets {
		a, _ := netip.AddrFromSlice(n.IP)
		bits, _ := n.Mask.Size()
		out = append(out, netip.PrefixFrom(a.Unmap(), bits))
	}
	return sortedNetips(out)
}

func sortedNetips(prefixes []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		out = append(out, p.Masked())
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}
