package gateway

import (
	"cmp"
	"context"
	"net/netip"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
)

// tell has the peer told of this cluster.
func (a *agent) tell(ctx context.Context, plane *v1alpha1.Plane, nodes []v1alpha1.NodeNetwork) {
	if a.channel == nil {
		return
	}
	svc := &corev1.Service{}
	if plane.Role == v1alpha1.Server {
		// As long as it is not there it has no port.
		_ = a.view.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: plane.ServiceName}, svc)
	}
	a.channel.Announce(announcement(a.NodeName, nodes, svc, plane.Index))
}

// announcement is what the peer is told: the addresses of all nodes, and those by which
// the Service leads to the gateway of this plane. The ways by its own node come first.
func announcement(ownNode string, nodes []v1alpha1.NodeNetwork, svc *corev1.Service, plane int32) (out exchange.Announcement) {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n v1alpha1.NodeNetwork) bool { return !n.DeletionTimestamp.IsZero() })
	if i := slices.IndexFunc(nodes, func(n v1alpha1.NodeNetwork) bool { return n.Name == ownNode }); i > 0 {
		nodes[0], nodes[i] = nodes[i], nodes[0]
	}
	out.NodeIPs = lo.FlatMap(nodes, func(n v1alpha1.NodeNetwork, _ int) []v1alpha1.IP { return n.Status.NodeIPs })
	out.NodeIPs = slices.DeleteFunc(out.NodeIPs, func(ip v1alpha1.IP) bool { return !ip.IsValid() })
	slices.SortFunc(out.NodeIPs, func(a, b v1alpha1.IP) int { return a.Compare(b.Addr) })
	out.NodeIPs = slices.Compact(out.NodeIPs)
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
			addr, _ := netip.ParseAddr(in.IP) // or none, where it has a name
			add(addr, port.Port)
		}
	case corev1.ServiceTypeNodePort:
		// First one address of each node, so that as many nodes as possible are among those
		// that are told.
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

// hear takes what the peer's gateway has told, as far as it may be used; nil if that is
// nothing. Before it has told anything that is what the gateway before this one has learned.
//
// It returns the endpoints to try in turn: what the peer's gateway has told, then what those of other planes have told,
// and then those that the CLI wrote.
func (a *agent) hear(p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) []string {
	announced := ptr.Deref(p.PlaneStatus(a.local.plane), v1alpha1.PlaneStatus{}).Remote
	if a.channel != nil {
		announced = cmp.Or(a.channel.Received(), announced)
	}
	// The API server, as pods know it; by a name it is no address that a peer could give.
	api, _ := netip.ParseAddr(os.Getenv("KUBERNETES_SERVICE_HOST"))
	plane, own := p.Plane(a.local.plane), append([]netip.Addr{api}, a.PodIPs...)
	got := usable(p, plane, nodes, own, ptr.Deref(announced, exchange.Announcement{}))
	if a.announced = nil; len(got.Endpoints)+len(got.NodeIPs) > 0 {
		a.announced = &got
	}
	var elsewhere []string
	if told := ofOtherPlanes(p, plane); len(told) > 0 {
		elsewhere = usable(p, plane, nodes, own, exchange.Announcement{Endpoints: told}).Endpoints
	}
	return lo.Uniq(slices.Concat(got.Endpoints, elsewhere, plane.Endpoints))
}

// ofOtherPlanes are the addresses that the peer's gateways of other planes have told, with this plane's port. So a plane
// that has missed a change learns of it by one that lives.
func ofOtherPlanes(p *v1alpha1.Peering, plane *v1alpha1.Plane) (out []string) {
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
			if told, err := netip.ParseAddrPort(e); err == nil {
				out = append(out, netip.AddrPortFrom(told.Addr(), port).String())
			}
		}
	}
	return out
}

// usable is what of a peer's announcement may be used. own are addresses of this cluster other
// than those of its nodes and pods. These may be very many: those that are announced are looked for.
func usable(p *v1alpha1.Peering, plane *v1alpha1.Plane, nodes []v1alpha1.NodeNetwork, own []netip.Addr, announced exchange.Announcement) exchange.Announcement {
	ranges := lo.Map(p.Spec.Local.Pods, func(m v1alpha1.CIDRMapping, _ int) netip.Prefix { return m.Real.Prefix })
	ranges = append(ranges, p.Spec.Local.InternalCIDR.Prefix)
	own = append(own, lo.Map(p.Spec.Local.Hosts, func(h v1alpha1.AddressMapping, _ int) netip.Addr { return h.Real.Addr })...)
	said := lo.Keyify(lo.Map(announced.NodeIPs, func(ip v1alpha1.IP, _ int) netip.Addr { return ip.Addr }))
	for _, e := range announced.Endpoints {
		if addrPort, err := netip.ParseAddrPort(e); err == nil {
			said[addrPort.Addr()] = struct{}{}
		}
	}
	for _, n := range nodes {
		ranges = append(ranges, v1alpha1.Prefixes(n.Status.PodCIDRs)...)
		for _, ips := range [][]v1alpha1.IP{n.Status.NodeIPs, n.Status.PodIPs} { // not copied: they may be very many
			for _, ip := range ips {
				if _, is := said[ip.Addr]; is {
					own = append(own, ip.Addr)
				}
			}
		}
	}
	// Of what is no address this is nothing.
	ranges = append(ranges, lo.Map(own, func(a netip.Addr, _ int) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) })...)
	f := exchange.Filter{Own: ranges, Tunneled: p.RemoteRanges(), Endpoints: plane.Endpoints, NodeIPs: p.Spec.Remote.NodeIPs}
	return f.Usable(announced)
}
