package gateway

import (
	"context"
	"net/netip"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
)

// exchange has one channel to the peer's gateway, as soon as the tunnel's address is
// there.
func (a *agent) exchange(ctx context.Context, want desired) {
	if a.channel != nil && a.desired.address == want.address && a.desired.remote == want.remote && a.channel.Call == want.calls {
		return
	}
	if a.stopChannel != nil {
		a.stopChannel()
	}
	ctx, a.stopChannel = context.WithCancel(ctx)
	a.channel = exchange.New(want.address, want.remote, want.calls, a.news, func(err error) {
		a.Log.Info("channel to the peer's gateway", "error", err)
	})
	go a.channel.Run(ctx)
}

// tell has the peer told of this cluster.
func (a *agent) tell(ctx context.Context, plane *v1alpha1.Plane, nodes []v1alpha1.NodeNetwork) {
	if a.channel == nil {
		return
	}
	var svc *corev1.Service
	if plane.Role == v1alpha1.Server && plane.Service == a.objectName() {
		s := &corev1.Service{}
		if err := a.view.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: plane.Service}, s); err == nil {
			svc = s
		}
	}
	a.channel.Announce(announcement(a.NodeName, nodes, svc))
}

// announcement is what the peer is told: the addresses of all nodes, and those by which
// the Service leads to this gateway. The ways by its own node come first.
func announcement(ownNode string, nodes []v1alpha1.NodeNetwork, svc *corev1.Service) (out exchange.Announcement) {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n v1alpha1.NodeNetwork) bool { return !n.DeletionTimestamp.IsZero() })
	slices.SortFunc(nodes, func(a, b v1alpha1.NodeNetwork) int {
		return notFirst(a.Spec.NodeName == ownNode) - notFirst(b.Spec.NodeName == ownNode)
	})
	for _, n := range nodes {
		for _, ip := range n.Status.NodeIPs {
			if ip.IsValid() {
				out.NodeIPs = append(out.NodeIPs, ip.Addr)
			}
		}
	}
	slices.SortFunc(out.NodeIPs, netip.Addr.Compare)
	out.NodeIPs = slices.Compact(out.NodeIPs)
	if svc == nil || len(svc.Spec.Ports) == 0 {
		return out
	}
	add := func(addr netip.Addr, port int32) {
		e := netip.AddrPortFrom(addr.Unmap(), uint16(port))
		if addr.IsValid() && port > 0 && port < 1<<16 && !slices.Contains(out.Endpoints, e) {
			out.Endpoints = append(out.Endpoints, e)
		}
	}
	switch port := svc.Spec.Ports[0]; svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		for _, in := range svc.Status.LoadBalancer.Ingress {
			if addr, err := netip.ParseAddr(in.IP); err == nil {
				add(addr, port.Port)
			}
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

// hear takes what the peer's gateway has told, as far as it may be used. Before it has
// told anything that is what the gateway before this one has heard.
func (a *agent) hear(p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) {
	var heard exchange.Announcement
	if a.channel != nil && a.channel.Heard() != nil {
		heard = *a.channel.Heard()
	} else if s := p.PlaneStatus(a.local.plane); s != nil && s.Remote != nil {
		for _, e := range s.Remote.Endpoints {
			if addrPort, err := netip.ParseAddrPort(e); err == nil {
				heard.Endpoints = append(heard.Endpoints, addrPort)
			}
		}
		for _, ip := range s.Remote.NodeIPs {
			heard.NodeIPs = append(heard.NodeIPs, ip.Addr)
		}
	}
	a.heard = usable(p, p.Plane(a.local.plane), nodes, slices.Concat(a.PodIPs, apiServer()), heard)
}

// usable is what of a peer's announcement may be used; nil if nothing.
func usable(p *v1alpha1.Peering, plane *v1alpha1.Plane, nodes []v1alpha1.NodeNetwork, own []netip.Addr, heard exchange.Announcement) *v1alpha1.RemoteAnnouncement {
	var ranges []netip.Prefix
	single := func(a netip.Addr) {
		if a.IsValid() {
			ranges = append(ranges, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, m := range p.Spec.Local.Pods {
		ranges = append(ranges, m.Real.Prefix)
	}
	ranges = append(ranges, p.Spec.Local.InternalCIDR.Prefix)
	for _, h := range p.Spec.Local.Hosts {
		single(h.Real.Addr)
	}
	for _, a := range own {
		single(a)
	}
	for _, n := range nodes {
		ranges = append(ranges, v1alpha1.Prefixes(n.Status.PodCIDRs)...)
		for _, ip := range slices.Concat(n.Status.NodeIPs, n.Status.PodIPs) {
			single(ip.Addr)
		}
	}
	var called, known []netip.AddrPort
	for _, e := range plane.Endpoints {
		if addrPort, err := netip.ParseAddrPort(e); err == nil {
			called = append(called, addrPort)
		}
	}
	for _, ip := range p.Spec.Remote.NodeIPs {
		known = append(known, netip.AddrPortFrom(ip.Addr, 0))
	}
	out := &v1alpha1.RemoteAnnouncement{}
	for _, a := range (exchange.Filter{Own: ranges, Known: known}).NodeIPs(heard.NodeIPs) {
		out.NodeIPs = append(out.NodeIPs, v1alpha1.IP{Addr: a})
	}
	// What is called must not lead into the tunnel itself either.
	ranges = append(ranges, p.RemoteRanges()...)
	for _, e := range (exchange.Filter{Own: ranges, Known: called}).Endpoints(heard.Endpoints) {
		out.Endpoints = append(out.Endpoints, e.String())
	}
	if len(out.Endpoints)+len(out.NodeIPs) == 0 {
		return nil
	}
	return out
}

// apiServer is the address of the cluster's API server as pods know it.
func apiServer() []netip.Addr {
	addr, err := netip.ParseAddr(os.Getenv("KUBERNETES_SERVICE_HOST"))
	if err != nil {
		return nil
	}
	return []netip.Addr{addr}
}

// callable are the endpoints to try in turn: what the peer's gateway has told, and then
// those that the CLI wrote.
func callable(plane *v1alpha1.Plane, heard *v1alpha1.RemoteAnnouncement) []string {
	var out []string
	if heard != nil {
		out = slices.Clone(heard.Endpoints)
	}
	for _, e := range plane.Endpoints {
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}
