package exchange

import (
	"net/netip"
	"slices"
)

// minPort is the lowest port of a tunnel that a peer may name by itself: below are well
// known services, which nobody shall have us call.
const minPort = 1024

// Filter says what a peer's announcement may be used for. A hostile peer must not have
// this cluster send packets to machines that are not its own. It may only lead its own
// tunnel astray.
type Filter struct {
	// Own are this cluster's addresses: of its pods, nodes, gateways and its API server.
	Own []netip.Prefix
	// Known are the peer's endpoints and nodes as somebody with access to both clusters
	// wrote them down. Where none of them is private, the peer is reached by the Internet,
	// and an address of a private network would be one of ours.
	Known []netip.AddrPort
}

// Endpoints returns those that may be called.
func (f Filter) Endpoints(in []netip.AddrPort) []netip.AddrPort {
	var out []netip.AddrPort
	for _, e := range in {
		known := slices.ContainsFunc(f.Known, func(k netip.AddrPort) bool { return k.Port() == e.Port() })
		if f.allows(e.Addr()) && (known || e.Port() >= minPort) && !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}

// NodeIPs returns those that may be taken for the peer's nodes, sorted.
func (f Filter) NodeIPs(in []netip.Addr) []netip.Addr {
	out := slices.DeleteFunc(slices.Clone(in), func(a netip.Addr) bool { return !f.allows(a) })
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

func (f Filter) allows(a netip.Addr) bool {
	if !a.IsGlobalUnicast() || a.Is4() && (a.As4()[0] == 0 || a.As4()[0] >= 240) {
		return false // loopback, link-local, multicast, broadcast, unspecified, reserved
	}
	if slices.ContainsFunc(f.Own, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return false
	}
	return !private(a) || slices.ContainsFunc(f.Known, func(k netip.AddrPort) bool { return private(k.Addr()) })
}

// sharedSpace is that of carriers (RFC 6598), which clouds use as well.
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

func private(a netip.Addr) bool { return a.IsPrivate() || sharedSpace.Contains(a) }
