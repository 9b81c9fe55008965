package peering

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
)

// MapFor returns the address by which the peer knows a pod (NAMESPACE/NAME) or
// an address of this cluster: a pod's, a node's or an overlay's.
func (c *Cluster) MapFor(ctx context.Context, peer *Cluster, what string) (netip.Addr, error) {
	p, err := c.peeringWith(ctx, peer)
	if err != nil {
		return netip.Addr{}, err
	}
	addr, err := c.addressOf(ctx, what)
	if err != nil {
		return netip.Addr{}, err
	}
	// Nodes first: where pods have addresses of the nodes' subnets (EKS), the pods'
	// ranges contain the nodes, too.
	overlay, err := c.overlayAddress(ctx, addr)
	if err != nil {
		return netip.Addr{}, err
	}
	if mapped, ok := mappings(p.Spec.Local.Pods).Translate(overlay); ok {
		return mapped, nil
	}
	for _, h := range p.Spec.Local.Hosts {
		if h.Real.Addr == addr {
			return h.Mapped.Addr, nil
		}
	}
	nodes, err := ipam.ExternalMapping(p.Spec.Local.InternalCIDR.Prefix, p.Spec.Local.ExternalCIDR.Prefix)
	if err != nil {
		return netip.Addr{}, err
	}
	if mapped, ok := nodes.Translate(overlay); ok {
		return mapped, nil
	}
	return netip.Addr{}, &Error{
		Kind: Usage, Cluster: c.Name, Doing: fmt.Sprintf("map %s for %q", addr, peer.Name),
		Err: fmt.Errorf("it is neither a pod's address nor a node's; pods have %s", rangesOf(p)),
	}
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

// addressOf reads a pod's address, or parses one.
func (c *Cluster) addressOf(ctx context.Context, what string) (netip.Addr, error) {
	namespace, name, isPod := strings.Cut(what, "/")
	if !isPod {
		addr, err := netip.ParseAddr(what)
		if err != nil {
			return addr, &Error{Kind: Usage, Doing: fmt.Sprintf("%q is neither NAMESPACE/POD nor an address", what)}
		}
		return addr, nil
	}
	pod := &corev1.Pod{}
	if err := c.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pod); err != nil {
		if absent(err) {
			return netip.Addr{}, &Error{Kind: Usage, Cluster: c.Name, Doing: "read pod " + what, Err: err, Hint: c.kubectl() + " -n " + namespace + " get pods"}
		}
		return netip.Addr{}, c.fail("read pod "+what, err)
	}
	addr, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil {
		return addr, &Error{Kind: NotReady, Cluster: c.Name, Doing: "read pod " + what, Err: fmt.Errorf("it has no address, its phase is %s", pod.Status.Phase)}
	}
	return addr, nil
}

// overlayAddress returns the overlay address of the node with that address, or
// the address itself.
func (c *Cluster) overlayAddress(ctx context.Context, addr netip.Addr) (netip.Addr, error) {
	var nodes corev1.NodeList
	if err := c.Client.List(ctx, &nodes); err != nil {
		return addr, c.fail("list nodes", err)
	}
	var networks v1alpha1.NodeNetworkList
	if err := c.Client.List(ctx, &networks); err != nil {
		return addr, c.fail("list NodeNetworks", err)
	}
	for _, n := range nodes.Items {
		for _, a := range n.Status.Addresses {
			if r := reportOf(networks.Items, n.Name); r != nil && a.Address == addr.String() {
				return netip.ParseAddr(r.Name)
			}
		}
	}
	return addr, nil
}
