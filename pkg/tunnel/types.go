package tunnel

import (
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Backend says who does WireGuard's work.
type Backend string

const (
	// Kernel is the kernel's own implementation.
	Kernel Backend = "kernel"
	// Userspace is wireguard-go inside this process, over a TUN device.
	Userspace Backend = "userspace"
)

const (
	// OverheadIPv4 and OverheadIPv6 are the bytes that WireGuard adds to a
	// packet: outer IP 20 or 40, UDP 8, message header 16, Poly1305 tag 16. What
	// it pads packets with never makes them larger than the interface's MTU.
	OverheadIPv4 = 60
	OverheadIPv6 = 80

	// InterfaceName of the tunnel inside a gateway's network namespace.
	InterfaceName = "wg0"
	// ListenPort of a gateway, UDP.
	ListenPort uint16 = 51840
	// EntryInterface and ReceiveInterface are the two ends of a veth pair in a
	// gateway. What is sent into the former is aggregated by the latter.
	EntryInterface   = "gro0in"
	ReceiveInterface = "gro0"
	// Group and ReceiveGroup are the groups of the tunnel's interface and of
	// ReceiveInterface (IFLA_GROUP).
	Group        uint32 = 27762
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

// Config is what a tunnel shall be. It has exactly one peer.
type Config struct {
	Name       string
	PrivateKey wgtypes.Key
	ListenPort uint16
	MTU        int
	// Address is the gateway's own (its overlay address), as a /32 or /128.
	Address netip.Addr
	// Underlay is the interface by which packets of the peer and of nodes come.
	// EntryInterface and ReceiveInterface are made for them; it is up to the
	// caller to lead them there (pkg/nat). Without it there is no such pair.
	Underlay string
	Peer     Peer
}

// Peer is the other gateway.
type Peer struct {
	PublicKey wgtypes.Key
	// Endpoint is where the peer listens; the zero value on a server, which
	// learns it from the client's first packet.
	Endpoint netip.AddrPort
	// AllowedIPs are the peer's mapped ranges: all that may come from it.
	AllowedIPs []netip.Prefix
	// Keepalive is the interval of empty packets, 0 for none.
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
