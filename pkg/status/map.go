package status

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
)

// TranslationOf returns how this cluster's addresses are translated for the peer.
func TranslationOf(p *v1alpha1.Peering) (ipam.Translation, error) {
	nodes, err := ipam.ExternalMapping(p.Spec.Local.InternalCIDR.Prefix, p.Spec.Local.ExternalCIDR.Prefix)
	hosts := lo.Map(p.Spec.Local.Hosts, func(h v1alpha1.AddressMapping, _ int) ipam.Mapping {
		return ipam.Mapping{Real: netip.PrefixFrom(h.Real.Addr, h.Real.BitLen()), Mapped: netip.PrefixFrom(h.Mapped.Addr, h.Mapped.BitLen())}
	})
	return ipam.Translation{Pods: plan.Mappings(p.Spec.Local.Pods), Nodes: nodes, Hosts: hosts}, err
}

// Host is an address outside of a cluster that the peer may reach, and the address by which the peer reaches it.
type Host struct {
	Address netip.Addr `json:"address"`
	Mapped  netip.Addr `json:"mapped"`
}

// Hosts returns the hosts that the peer may reach.
func Hosts(p *v1alpha1.Peering) []Host {
	return lo.Map(p.Spec.Local.Hosts, func(h v1alpha1.AddressMapping, _ int) Host { return Host{h.Real.Addr, h.Mapped.Addr} })
}

// MapToPeer returns the address by which the peer reaches a pod (NAMESPACE/NAME) or an address of a pod, a node or the
// overlay. For a Service (NAMESPACE/NAME or its cluster IP), it returns the addresses and ports of its endpoints, as peers
// cannot reach its own address. If it is exported, it returns the address that it has in the peer's cluster.
func MapToPeer(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, what string) ([]string, error) {
	p, t, err := PeeringWith(ctx, c, peer)
	if err != nil {
		return nil, err
	}
	if namespace, name, isName := strings.Cut(what, "/"); isName {
		if out, isExported, err := mapService(ctx, c, peer, namespace, name); isExported || err != nil {
			return out, err
		}
	}
	real, err := addressesOf(ctx, c, what)
	if err != nil {
		return nil, err
	}
	// Pods and endpoints of dual-stack clusters also have an address of the other family.
	real = lo.CoalesceSliceOrEmpty(lo.Filter(real, func(a netip.AddrPort, _ int) bool { return p.CarriesFamily(a.Addr()) }), real)
	// Nodes first: where pods have addresses from the nodes' subnets (EKS), the pod ranges contain the nodes.
	var reports v1alpha1.NodeNetworkList
	if err := c.List(ctx, &reports); err != nil {
		return nil, err
	}
	overlay := map[netip.Addr]netip.Addr{} // by each of a node's own addresses
	for _, r := range plan.ReportsByNode(reports.Items) {
		for _, own := range r.Status.NodeIPs {
			overlay[own.Addr] = r.Status.Address.Addr
		}
	}
	out := make([]string, 0, len(real))
	for _, a := range real {
		mapped, ok := t.Translate(cmp.Or(overlay[a.Addr()], a.Addr()))
		switch {
		case !ok:
			return nil, c.Errorf(kube.Usage, fmt.Sprintf("map %s for %q", a.Addr(), peer.Name), "",
				"it is neither a pod's address nor a node's, nor of a Service; pods have %s", join(t.Pods))
		case a.Port() == 0:
			out = append(out, mapped.String())
		default:
			out = append(out, netip.AddrPortFrom(mapped, a.Port()).String())
		}
	}
	return out, nil
}

// MapFromPeer returns the address in this cluster for one that the peer uses. It is a list of one, as that of [MapToPeer].
func MapFromPeer(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, addr string) ([]string, error) {
	mapped, err := netip.ParseAddr(addr)
	if err != nil {
		return nil, &kube.Error{Kind: kube.Usage, Op: fmt.Sprintf("%q is not an address", addr)}
	}
	_, t, err := PeeringWith(ctx, c, peer)
	if err != nil {
		return nil, err
	}
	real, ok := t.Reverse(mapped)
	if !ok {
		return nil, c.Errorf(kube.Usage, fmt.Sprintf("map %s back from %q", mapped, peer.Name), "",
			"it is not in the ranges by which this cluster is known there: %s", join(append(t.Pods.Mapped(), t.Nodes.Mapped)))
	}
	return []string{real.String()}, nil
}

// PeeringWith reads the Peering with a peer, and its address translation.
func PeeringWith(ctx context.Context, c *kube.Cluster, peer *kube.Cluster) (p *v1alpha1.Peering, t ipam.Translation, err error) {
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return nil, t, err
	}
	p, isPeered := lo.Find(kube.Pointers(peerings.Items), func(p *v1alpha1.Peering) bool { return p.Spec.Remote.ClusterID == peer.ID })
	if isPeered {
		t, err = TranslationOf(p)
		return p, t, err
	}
	return nil, t, &kube.Error{
		Kind: kube.Usage, Cluster: c.Name, Op: fmt.Sprintf("it is not peered with %q", peer.Name),
		Hint: fmt.Sprintf("kubectl liqonet peer %s %s", failure.Quote(c.Name), failure.Quote(peer.Name)),
	}
}

// addressesOf returns a pod's addresses, the endpoints of a Service, or a parsed address. The port is 0 except for a
// Service.
func addressesOf(ctx context.Context, c *kube.Cluster, what string) (out []netip.AddrPort, err error) {
	namespace, name, isName := strings.Cut(what, "/")
	if !isName {
		addr, err := netip.ParseAddr(what)
		if err != nil {
			return nil, &kube.Error{Kind: kube.Usage, Op: fmt.Sprintf("%q is neither NAMESPACE/POD nor NAMESPACE/SERVICE nor an address", what)}
		}
		var services corev1.ServiceList
		if err := c.List(ctx, &services); err != nil && !apierrors.IsForbidden(err) {
			return nil, err
		}
		for _, svc := range services.Items {
			if slices.Contains(append(svc.Spec.ClusterIPs, svc.Spec.ClusterIP), addr.String()) {
				return readyEndpoints(ctx, c, svc.Namespace, svc.Name)
			}
		}
		return []netip.AddrPort{netip.AddrPortFrom(addr, 0)}, nil
	}
	pod, err := kube.Get[corev1.Pod](ctx, c, namespace, name)
	if err != nil {
		return nil, err
	}
	if pod == nil {
		if svc, _ := kube.Get[corev1.Service](ctx, c, namespace, name); svc != nil {
			return readyEndpoints(ctx, c, namespace, name)
		}
		return nil, c.Errorf(kube.Usage, "read pod or service "+what, c.Kubectl+" -n "+failure.Quote(namespace)+" get pods,services", "there is none")
	}
	for _, ip := range pod.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, netip.AddrPortFrom(addr, 0))
		}
	}
	if len(out) == 0 {
		return nil, c.Errorf(kube.NotReady, "read pod "+what, "", "it has no address, its phase is %s", pod.Status.Phase)
	}
	return out, nil
}

// readyEndpoints returns the ready endpoints of a Service. It fails if there are none.
func readyEndpoints(ctx context.Context, c *kube.Cluster, namespace, service string) ([]netip.AddrPort, error) {
	out, err := Endpoints(ctx, c, namespace, service)
	if err == nil && len(out) == 0 {
		err = c.Errorf(kube.NotReady, fmt.Sprintf("read the endpoints of service %s/%s", namespace, service), "", "none is ready")
	}
	return out, err
}

// Endpoints returns the ready endpoints of a Service. A port that is unknown is 0.
func Endpoints(ctx context.Context, c *kube.Cluster, namespace, service string) (out []netip.AddrPort, err error) {
	var list discoveryv1.EndpointSliceList
	if err := c.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{discoveryv1.LabelServiceName: service}); err != nil {
		return nil, err
	}
	for _, s := range list.Items {
		ports := lo.CoalesceSliceOrEmpty(s.Ports, []discoveryv1.EndpointPort{{Port: new(int32(0))}})
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, a := range e.Addresses {
				addr, err := netip.ParseAddr(a)
				for _, p := range ports {
					if err == nil && p.Port != nil {
						out = append(out, netip.AddrPortFrom(addr, uint16(*p.Port)))
					}
				}
			}
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out), nil
}

func join[T fmt.Stringer](values []T) string {
	return strings.Join(lo.Map(values, func(v T, _ int) string { return v.String() }), ", ")
}
