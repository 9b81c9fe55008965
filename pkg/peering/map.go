package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
)

// Address is where something can be called: a pod or a node, or a port of an
// endpoint of a Service.
type Address struct {
	Addr netip.Addr
	// Port is 0 where it is not about a port.
	Port int32
}

func (a Address) String() string {
	if a.Port == 0 {
		return a.Addr.String()
	}
	return net.JoinHostPort(a.Addr.String(), strconv.Itoa(int(a.Port)))
}

// TranslationOf is by which addresses the peer knows this cluster.
func TranslationOf(p *v1alpha1.Peering) (ipam.Translation, error) {
	nodes, err := ipam.ExternalMapping(p.Spec.Local.InternalCIDR.Prefix, p.Spec.Local.ExternalCIDR.Prefix)
	t := ipam.Translation{Pods: plan.Mappings(p.Spec.Local.Pods), Nodes: nodes}
	for _, h := range p.Spec.Local.Hosts {
		t.Hosts = append(t.Hosts, ipam.Mapping{
			Real: netip.PrefixFrom(h.Real.Addr, h.Real.BitLen()), Mapped: netip.PrefixFrom(h.Mapped.Addr, h.Mapped.BitLen()),
		})
	}
	return t, err
}

// MapFor returns the address by which the peer knows a pod (NAMESPACE/NAME) or
// an address of this cluster: a pod's, a node's or an overlay's. Of a Service
// (NAMESPACE/NAME, or its cluster IP), which itself is not known to the peer, it
// returns those of its endpoints.
func (c *Cluster) MapFor(ctx context.Context, peer *Cluster, what string) ([]Address, error) {
	p, err := c.peeringWith(ctx, peer)
	if err != nil {
		return nil, err
	}
	t, err := TranslationOf(p)
	if err != nil {
		return nil, err
	}
	real, err := c.addressesOf(ctx, what)
	if err != nil {
		return nil, err
	}
	// Pods and endpoints of dual-stack clusters have an address of the other family, too.
	is4 := p.Spec.Local.InternalCIDR.Addr().Is4()
	carried := slices.DeleteFunc(slices.Clone(real), func(a Address) bool { return a.Addr.Is4() != is4 })
	if len(carried) > 0 {
		real = carried
	}
	out := make([]Address, 0, len(real))
	for _, a := range real {
		// Nodes first: where pods have addresses of the nodes' subnets (EKS), the pods'
		// ranges contain the nodes, too.
		addr, err := c.overlayAddress(ctx, a.Addr)
		if err != nil {
			return nil, err
		}
		mapped, ok := t.Translate(addr)
		if !ok {
			return nil, &Error{
				Kind: Usage, Cluster: c.Name, Doing: fmt.Sprintf("map %s for %q", a.Addr, peer.Name),
				Err: fmt.Errorf("it is neither a pod's address nor a node's, nor of a Service; pods have %s", rangesOf(p)),
			}
		}
		out = append(out, Address{mapped, a.Port})
	}
	return out, nil
}

// MapBack returns the address in this cluster of what the peer knows by addr.
func (c *Cluster) MapBack(ctx context.Context, peer *Cluster, addr string) (netip.Addr, error) {
	mapped, err := netip.ParseAddr(addr)
	if err != nil {
		return netip.Addr{}, &Error{Kind: Usage, Doing: fmt.Sprintf("%q is not an address", addr)}
	}
	p, err := c.peeringWith(ctx, peer)
	if err != nil {
		return netip.Addr{}, err
	}
	t, err := TranslationOf(p)
	if err != nil {
		return netip.Addr{}, err
	}
	real, ok := t.Reverse(mapped)
	if !ok {
		var ranges []string
		for _, r := range append(t.Pods.Mapped(), t.Nodes.Mapped) {
			ranges = append(ranges, r.String())
		}
		return netip.Addr{}, &Error{
			Kind: Usage, Cluster: c.Name, Doing: fmt.Sprintf("map %s back from %q", mapped, peer.Name),
			Err: fmt.Errorf("it is not in the ranges by which this cluster is known there: %s", strings.Join(ranges, ", ")),
		}
	}
	return real, nil
}

func rangesOf(p *v1alpha1.Peering) string {
	var out []string
	for _, m := range p.Spec.Local.Pods {
		out = append(out, m.Real.String())
	}
	return strings.Join(out, ", ")
}

func (c *Cluster) peeringWith(ctx context.Context, peer *Cluster) (*v1alpha1.Peering, error) {
	var list v1alpha1.PeeringList
	if err := c.Client.List(ctx, &list); err != nil && !absent(err) {
		return nil, c.fail("list Peerings", err)
	}
	for i := range list.Items {
		if list.Items[i].Spec.Remote.ClusterID == peer.ID {
			return &list.Items[i], nil
		}
	}
	return nil, &Error{
		Kind: Usage, Cluster: c.Name, Doing: fmt.Sprintf("it is not peered with %q", peer.Name),
		Hint: fmt.Sprintf("kubectl liqonet peer %s %s", c.Name, peer.Name),
	}
}

// addressesOf reads a pod's address, or those of a Service's endpoints, or parses
// one.
func (c *Cluster) addressesOf(ctx context.Context, what string) ([]Address, error) {
	namespace, name, isName := strings.Cut(what, "/")
	if !isName {
		addr, err := netip.ParseAddr(what)
		if err != nil {
			return nil, &Error{Kind: Usage, Doing: fmt.Sprintf("%q is neither NAMESPACE/POD nor NAMESPACE/SERVICE nor an address", what)}
		}
		var services corev1.ServiceList
		if err := c.Client.List(ctx, &services); err != nil && !apierrors.IsForbidden(err) {
			return nil, c.fail("list services", err)
		}
		for i := range services.Items {
			if svc := &services.Items[i]; slices.Contains(append(svc.Spec.ClusterIPs, svc.Spec.ClusterIP), addr.String()) {
				return c.endpointsOf(ctx, svc)
			}
		}
		return []Address{{Addr: addr}}, nil
	}
	pod, svc := &corev1.Pod{}, &corev1.Service{}
	key := types.NamespacedName{Namespace: namespace, Name: name}
	err := c.Client.Get(ctx, key, pod)
	if absent(err) {
		if found := c.Client.Get(ctx, key, svc); found == nil {
			return c.endpointsOf(ctx, svc)
		}
		return nil, &Error{
			Kind: Usage, Cluster: c.Name, Doing: "read pod or service " + what, Err: err,
			Hint: c.kubectl() + " -n " + namespace + " get pods,services",
		}
	}
	if err != nil {
		return nil, c.fail("read pod "+what, err)
	}
	var out []Address
	for _, ip := range pod.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, Address{Addr: addr})
		}
	}
	if len(out) == 0 {
		return nil, &Error{Kind: NotReady, Cluster: c.Name, Doing: "read pod " + what, Err: fmt.Errorf("it has no address, its phase is %s", pod.Status.Phase)}
	}
	return out, nil
}

// endpointsOf are the ready endpoints of a Service, with their ports.
func (c *Cluster) endpointsOf(ctx context.Context, svc *corev1.Service) ([]Address, error) {
	doing := fmt.Sprintf("read the endpoints of service %s/%s", svc.Namespace, svc.Name)
	var list discoveryv1.EndpointSliceList
	err := c.Client.List(ctx, &list, client.InNamespace(svc.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: svc.Name})
	if err != nil {
		return nil, c.fail(doing, err)
	}
	var out []Address
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, a := range e.Addresses {
				addr, err := netip.ParseAddr(a)
				if err != nil {
					continue
				}
				if len(s.Ports) == 0 {
					out = append(out, Address{Addr: addr})
				}
				for _, p := range s.Ports {
					if p.Port != nil {
						out = append(out, Address{addr, *p.Port})
					}
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b Address) int { return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port)) })
	if out = slices.Compact(out); len(out) == 0 {
		return nil, &Error{Kind: NotReady, Cluster: c.Name, Doing: doing, Err: errors.New("none is ready")}
	}
	return out, nil
}

// overlayAddress returns the overlay address of the node with that address, or
// the address itself.
func (c *Cluster) overlayAddress(ctx context.Context, addr netip.Addr) (netip.Addr, error) {
	var list corev1.NodeList
	if err := c.Client.List(ctx, &list); err != nil {
		return addr, c.fail("list nodes", err)
	}
	var networks v1alpha1.NodeNetworkList
	if err := c.Client.List(ctx, &networks); err != nil {
		return addr, c.fail("list NodeNetworks", err)
	}
	reports := plan.ReportsByNode(networks.Items)
	for i := range list.Items {
		if r := reports[list.Items[i].Name]; r != nil && nodes.HasAddress(&list.Items[i], addr) {
			return netip.ParseAddr(r.Name)
		}
	}
	return addr, nil
}
