package peering

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
)

// ExposeHost lets the peer's pods and nodes reach an address outside of this
// cluster that this cluster's nodes reach. It returns the address by which the
// peer knows it, when gateway and nodes have applied it. Doing so again changes
// nothing.
func (c *Cluster) ExposeHost(ctx context.Context, peer *Cluster, host netip.Addr) (netip.Addr, error) {
	p, err := c.peeringWith(ctx, peer)
	if err != nil {
		return netip.Addr{}, err
	}
	if err := c.canExpose(ctx, p, host); err != nil {
		return netip.Addr{}, &Error{Kind: Usage, Cluster: c.Name, Doing: fmt.Sprintf("expose host %s to %q", host, peer.Name), Err: err}
	}
	number := 0
	err = c.changeHosts(ctx, peer, func(a *v1alpha1.PeerAllocation) error {
		taken := map[int]bool{}
		for _, h := range a.Hosts {
			if h.Address.Addr == host {
				number = int(h.Number)
				return errUnchanged
			}
			taken[int(h.Number)] = true
		}
		if len(a.Hosts) >= maxHosts {
			return fmt.Errorf("%d hosts are exposed to %q already", maxHosts, peer.Name)
		}
		if number, err = ipam.HostNumber(host, func(n int) bool { return taken[n] }); err != nil {
			return err
		}
		a.Hosts = append(a.Hosts, v1alpha1.ExposedHost{Address: v1alpha1.IP{Addr: host}, Number: int32(number)})
		return nil
	})
	if err != nil {
		return netip.Addr{}, err
	}
	return ipam.HostAddr(p.Spec.Local.ExternalCIDR.Prefix, number)
}

// HideHost takes back what ExposeHost did, and says whether there was anything.
func (c *Cluster) HideHost(ctx context.Context, peer *Cluster, host netip.Addr) (was bool, err error) {
	if _, err := c.peeringWith(ctx, peer); err != nil {
		return false, err
	}
	err = c.changeHosts(ctx, peer, func(a *v1alpha1.PeerAllocation) error {
		before := len(a.Hosts)
		a.Hosts = slices.DeleteFunc(a.Hosts, func(h v1alpha1.ExposedHost) bool { return h.Address.Addr == host })
		if len(a.Hosts) == before {
			return errUnchanged
		}
		was = true
		return nil
	})
	return was, err
}

// maxHosts is what a Peering has room for.
const maxHosts = 256

// canExpose says why an address is none of a host outside.
func (c *Cluster) canExpose(ctx context.Context, p *v1alpha1.Peering, host netip.Addr) error {
	if !p.Carries(host) || host.IsLoopback() || host.IsMulticast() || host.IsUnspecified() || host.IsLinkLocalUnicast() {
		return errors.New("it is not an IPv4 address that nodes send to")
	}
	for _, m := range p.Spec.Local.Pods {
		if m.Real.Contains(host) {
			return fmt.Errorf("it is in the pods' range %s: pods need not be exposed", m.Real)
		}
	}
	if p.Spec.Local.InternalCIDR.Contains(host) {
		return fmt.Errorf("it is in the overlay's range %s", p.Spec.Local.InternalCIDR)
	}
	var peerings v1alpha1.PeeringList
	if err := c.Client.List(ctx, &peerings); err != nil {
		return c.fail("list Peerings", err)
	}
	for _, other := range peerings.Items {
		for _, r := range other.RemoteRanges() {
			if r.Contains(host) {
				return fmt.Errorf("it is in the range %s of the peer %q", r, other.Spec.Remote.Name)
			}
		}
	}
	var list corev1.NodeList
	if err := c.Client.List(ctx, &list); err != nil {
		return c.fail("list nodes", err)
	}
	for i := range list.Items {
		if nodes.HasAddress(&list.Items[i], host) {
			return fmt.Errorf("it is node %s: nodes are not open to peers", list.Items[i].Name)
		}
	}
	return nil
}

// changeHosts changes the hosts of the peer's entry in the ledger, has the Peering
// say the same, and waits until gateway and nodes have applied it.
func (c *Cluster) changeHosts(ctx context.Context, peer *Cluster, change func(*v1alpha1.PeerAllocation) error) error {
	cn, err := c.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
		a := plan.Allocation(cn, peer.ID)
		if a == nil {
			return errUnpeered
		}
		return change(a)
	})
	if err != nil {
		return c.fail("write the exposed hosts to the ledger", err)
	}
	name := plan.Allocation(cn, peer.ID).Name
	kinds := []kind{all(&v1alpha1.ClusterNetworkList{}), all(&v1alpha1.PeeringList{}), all(&v1alpha1.NodeNetworkList{}), all(&corev1.NodeList{}), inNamespace(&coordinationv1.LeaseList{})}
	beats := heartbeats{}
	return c.await(ctx, "wait until gateway and nodes have applied it", c.podsHint(), kinds, func(ctx context.Context, o objects) (string, error) {
		beats.note(of[*coordinationv1.Lease](o), c.now())
		p := byName[*v1alpha1.Peering](o, name)
		if p == nil {
			return "", errUnpeered
		}
		hosts, err := c.currentHosts(ctx, peer, p.Spec.Local.ExternalCIDR.Prefix)
		if err != nil {
			return "", err
		}
		if !slices.Equal(hosts, p.Spec.Local.Hosts) {
			return "the Peering has just been changed", c.applyHosts(ctx, p, hosts)
		}
		ready, _ := nodesByReadiness(of[*corev1.Node](o))
		v, err := view(c.Name, p, values[v1alpha1.NodeNetwork](o), ready, beats)
		if err != nil {
			return "", err
		}
		return settled(p, v), nil
	})
}

// currentHosts are the exposed hosts as the ledger has them now: others may change it
// at the same time.
func (c *Cluster) currentHosts(ctx context.Context, peer *Cluster, external netip.Prefix) ([]v1alpha1.AddressMapping, error) {
	cn, err := c.ledger(ctx)
	if err != nil {
		return nil, err
	}
	if cn == nil || plan.Allocation(cn, peer.ID) == nil {
		return nil, errUnpeered
	}
	return plan.HostMappings(plan.Allocation(cn, peer.ID), external)
}

// applyHosts changes the hosts of the Peering, if it still is as it was read: what
// somebody else has changed meanwhile is not undone.
func (c *Cluster) applyHosts(ctx context.Context, p *v1alpha1.Peering, hosts []v1alpha1.AddressMapping) error {
	spec := *p.Spec.DeepCopy()
	spec.Local.Hosts = hosts
	obj := manifests.Peering(p.Name, spec)
	obj.ResourceVersion = p.ResourceVersion
	_, err := c.applyAll(ctx, obj)
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}
