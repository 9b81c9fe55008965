package gateway

import (
	"cmp"
	"net/netip"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
)

// announcements are those of this gateway and of the peer's.
type announcements struct {
	// channel connects to the peer's gateway, nil before the first connection.
	channel *exchange.Channel
	// announced is the usable part of the peer's announcement, nil if there is none.
	announced *v1alpha1.RemoteAnnouncement
}

// announcement returns what to announce to the peer: the addresses of all nodes, and the endpoints at which the Service
// leads to the gateway of this plane. Those on the gateway's own node come first.
func announcement(ownNode string, nodes []v1alpha1.NodeNetwork, svc *corev1.Service, plane int32) (out exchange.Announcement) {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n v1alpha1.NodeNetwork) bool { return !n.DeletionTimestamp.IsZero() })
	if i := slices.IndexFunc(nodes, func(n v1alpha1.NodeNetwork) bool { return n.Name == ownNode }); i > 0 {
		nodes[0], nodes[i] = nodes[i], nodes[0]
	}
	out.NodeIPs = lo.FlatMap(nodes, func(n v1alpha1.NodeNetwork, _ int) []v1alpha1.IP { return n.Status.NodeIPs })
	out.NodeIPs = slices.DeleteFunc(out.NodeIPs, func(ip v1alpha1.IP) bool { return !ip.IsValid() })
	out.NodeIPs = slices.Compact(slices.SortedFunc(slices.Values(out.NodeIPs), func(a, b v1alpha1.IP) int { return a.Compare(b.Addr) }))
	port := v1alpha1.ServicePort(svc, plane)
	if port == nil {
		return out
	}
	add := func(addr netip.Addr, port int32) {
		e := netip.AddrPortFrom(addr.Unmap(), uint16(port)).String()
		if addr.IsValid() && port > 0 && !slices.Contains(out.Endpoints, e) {
			out.Endpoints = append(out.Endpoints, e)
		}
	}
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		for _, in := range svc.Status.LoadBalancer.Ingress {
			addr, _ := netip.ParseAddr(in.IP) // none if it has a name
			add(addr, port.Port)
		}
	case corev1.ServiceTypeNodePort:
		// Take one address of each node first, so that the announcement covers as many nodes as possible.
		for i := 0; i < 16 && len(out.Endpoints) < exchange.MaxEndpoints; i++ {
			for _, n := range nodes {
				if i < len(n.Status.NodeIPs) {
					add(n.Status.NodeIPs[i].Addr, port.NodePort)
				}
			}
		}
	}
	return out
}

// endpoints returns the endpoints to try in turn. First come those that the peer's gateway has announced, then those
// announced by its other planes' gateways, and then those that the CLI wrote. podIPs are this pod's addresses.
//
// It also updates announced. Before the first announcement, that is what the previous gateway learned.
func (a *announcements) endpoints(p *v1alpha1.Peering, plane *v1alpha1.Plane, nodes []v1alpha1.NodeNetwork, podIPs []netip.Addr) []string {
	announced := ptr.Deref(p.PlaneStatus(plane.Index), v1alpha1.PlaneStatus{}).Remote
	if a.channel != nil {
		announced = cmp.Or(a.channel.Received(), announced)
	}
	// It is the API server's address for pods. A name cannot clash with an address that a peer announces.
	api, _ := netip.ParseAddr(os.Getenv("KUBERNETES_SERVICE_HOST"))
	own := append([]netip.Addr{api}, podIPs...)
	got := usableEndpoints(p, plane, nodes, own, ptr.Deref(announced, exchange.Announcement{}))
	if a.announced = nil; len(got.Endpoints)+len(got.NodeIPs) > 0 {
		a.announced = &got
	}
	var elsewhere []string
	if others := otherPlanesEndpoints(p, plane); len(others) > 0 {
		elsewhere = usableEndpoints(p, plane, nodes, own, exchange.Announcement{Endpoints: others}).Endpoints
	}
	return lo.Uniq(slices.Concat(got.Endpoints, elsewhere, plane.Endpoints))
}

// otherPlanesEndpoints returns the addresses that the gateways of the peer's other planes have announced, with this
// plane's port. So a plane that has missed a change learns about it through one that works.
func otherPlanesEndpoints(p *v1alpha1.Peering, plane *v1alpha1.Plane) (out []string) {
	var port uint16
	for _, e := range plane.Endpoints {
		if _, n, err := v1alpha1.SplitEndpoint(e); err == nil {
			port = n
		}
	}
	for _, s := range p.Status.Planes {
		if s.Index == plane.Index || s.Remote == nil || port == 0 {
			continue
		}
		for _, e := range s.Remote.Endpoints {
			if announced, err := netip.ParseAddrPort(e); err == nil {
				out = append(out, netip.AddrPortFrom(announced.Addr(), port).String())
			}
		}
	}
	return out
}

// usableEndpoints returns the usable part of a peer's announcement. own are addresses of this cluster other than those
// of its nodes and pods. Nodes and pods may have very many, so only the announced ones are looked up.
func usableEndpoints(p *v1alpha1.Peering, plane *v1alpha1.Plane, nodes []v1alpha1.NodeNetwork, own []netip.Addr, announced exchange.Announcement) exchange.Announcement {
	ranges := lo.Map(p.Spec.Local.Pods, func(m v1alpha1.CIDRMapping, _ int) netip.Prefix { return m.Real.Prefix })
	ranges = append(ranges, p.Spec.Local.InternalCIDR.Prefix)
	own = append(own, lo.Map(p.Spec.Local.Hosts, func(h v1alpha1.AddressMapping, _ int) netip.Addr { return h.Real.Addr })...)
	wanted := lo.Keyify(lo.Map(announced.NodeIPs, func(ip v1alpha1.IP, _ int) netip.Addr { return ip.Addr }))
	for _, e := range announced.Endpoints {
		if addrPort, err := netip.ParseAddrPort(e); err == nil {
			wanted[addrPort.Addr()] = struct{}{}
		}
	}
	for _, n := range nodes {
		ranges = append(ranges, v1alpha1.Prefixes(n.Status.PodCIDRs)...)
		for _, ips := range [][]v1alpha1.IP{n.Status.NodeIPs, n.Status.PodIPs} { // not copied, as there may be very many
			for _, ip := range ips {
				if _, is := wanted[ip.Addr]; is {
					own = append(own, ip.Addr)
				}
			}
		}
	}
	// An invalid address yields an invalid prefix, which matches nothing.
	ranges = append(ranges, lo.Map(own, func(a netip.Addr, _ int) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) })...)
	f := exchange.Filter{Own: ranges, Tunneled: p.RemoteRanges(), Endpoints: plane.Endpoints, NodeIPs: p.Spec.Remote.NodeIPs}
	return f.Usable(announced)
}
