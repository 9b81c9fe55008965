package exchange

import (
	"net/netip"
	"slices"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
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
	// Tunneled are the ranges that lead to the peer through the tunnel: its endpoints are
	// not in them.
	Tunneled []netip.Prefix
	// Endpoints and NodeIPs are the peer's as somebody with access to both clusters wrote
	// them down. Where none of them is private, the peer is reached by the Internet, and
	// an address of a private network would be one of ours.
	Endpoints []string
	NodeIPs   []v1alpha1.IP
}

// Usable returns the endpoints that may be called, and what may be taken for the peer's
// nodes, sorted.
func (f Filter) Usable(in Announcement) (out Announcement) {
	own, tunneled := v1alpha1.SetOf(f.Own), v1alpha1.SetOf(f.Tunneled)
	allows := func(a netip.Addr, mayBePrivate bool) bool {
		return usable(a) && !own.Contains(a) && (mayBePrivate || !ipam.PrivateAddr(a))
	}
	var called []netip.AddrPort
	for _, e := range f.Endpoints {
		if addrPort, err := netip.ParseAddrPort(e); err == nil { // else it is a name
			called = append(called, addrPort)
		}
	}
	isPrivate := slices.ContainsFunc(called, func(e netip.AddrPort) bool { return ipam.PrivateAddr(e.Addr()) })
	for _, s := range in.Endpoints {
		e, err := netip.ParseAddrPort(s)
		known := slices.ContainsFunc(called, func(c netip.AddrPort) bool { return c.Port() == e.Port() })
		if err == nil && (known || e.Port() >= minPort) && allows(e.Addr(), isPrivate) && !tunneled.Contains(e.Addr()) && !slices.Contains(out.Endpoints, s) {
			out.Endpoints = append(out.Endpoints, s)
		}
	}
	isPrivate = slices.ContainsFunc(f.NodeIPs, func(ip v1alpha1.IP) bool { return ipam.PrivateAddr(ip.Addr) })
	out.NodeIPs = slices.DeleteFunc(slices.Clone(in.NodeIPs), func(ip v1alpha1.IP) bool { return !allows(ip.Addr, isPrivate) })
	slices.SortFunc(out.NodeIPs, func(a, b v1alpha1.IP) int { return a.Compare(b.Addr) })
	out.NodeIPs = slices.Compact(out.NodeIPs)
	return out
}

// usable says whether an address may be a machine's.
func usable(a netip.Addr) bool {
	// A zone, loopback, link-local, multicast, broadcast, unspecified, reserved are not.
	return a.Zone() == "" && a.IsGlobalUnicast() && (!a.Is4() || a.As4()[0] > 0 && a.As4()[0] < 240)
}
