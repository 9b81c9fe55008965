package tunnel

import (
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

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
	// PresharedKey is what both gateways have beside their key pairs, the zero value for
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
