package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
)

// ExposeHost lets the peer's pods and nodes reach an address outside of this
// cluster that this cluster's nodes reach. It returns the address by which the
// peer knows it, when gateway and nodes have applied it. Doing so again changes
// nothing.
func (c *Cluster) ExposeHost(ctx context.Context, peer *Cluster, host netip.Addr, r Reporter) (netip.Addr, error) {
	p, err := c.peeringToChange(ctx, peer)
	if err != nil {
		return netip.Addr{}, err
	}
	if err := c.canExpose(ctx, p, host); err != nil {
		return netip.Addr{}, err
	}
	number := 0
	err = c.changeHosts(ctx, peer, r, func(a *v1alpha1.PeerAllocation) (err error) {
		used := sets.New[int]()
		for _, h := range a.Hosts {
			if h.Address.Addr == host {
				number = int(h.Number)
				return errUnchanged
			}
			used.Insert(int(h.Number))
		}
		if len(a.Hosts) >= maxHosts {
			return fmt.Errorf("%d hosts are exposed to %q already", maxHosts, peer.Name)
		}
		number, err = ipam.HostNumber(host, used.Has)
		a.Hosts = append(a.Hosts, v1alpha1.ExposedHost{Address: v1alpha1.IP{Addr: host}, Number: int32(number)})
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	return ipam.HostAddr(p.Spec.Local.ExternalCIDR.Prefix, number)
}

// HideHost takes back what ExposeHost did, and says whether there was anything.
func (c *Cluster) HideHost(ctx context.Context, peer *Cluster, host netip.Addr, r Reporter) (was bool, err error) {
	if _, err := c.peeringToChange(ctx, peer); err != nil {
		return false, err
	}
	err = c.changeHosts(ctx, peer, r, func(a *v1alpha1.PeerAllocation) error {
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

// peeringToChange reads the Peering with a peer that has proven who it is.
func (c *Cluster) peeringToChange(ctx context.Context, peer *Cluster) (*v1alpha1.Peering, error) {
	p, _, err := c.peeringWith(ctx, peer)
	if err != nil {
		return nil, err
	}
	return p, c.checkPeer(ctx, peer)
}

// maxHosts is what a Peering has room for.
const maxHosts = 256

// canExpose fails if an address is none of a host outside.
func (c *Cluster) canExpose(ctx context.Context, p *v1alpha1.Peering, host netip.Addr) error {
	refused := func(format string, args ...any) error {
		return c.errorf(Usage, fmt.Sprintf("expose host %s to %q", host, p.Spec.Remote.Name), "", format, args...)
	}
	if !p.Carries(host) || host.IsLoopback() || host.IsMulticast() || host.IsUnspecified() || host.IsLinkLocalUnicast() {
		return refused("it is not an IPv4 address that nodes send to")
	}
	for _, m := range p.Spec.Local.Pods {
		if m.Real.Contains(host) {
			return refused("it is in the pods' range %s: pods need not be exposed", m.Real)
		}
	}
	if p.Spec.Local.InternalCIDR.Contains(host) {
		return refused("it is in the overlay's range %s", p.Spec.Local.InternalCIDR)
	}
	var peerings v1alpha1.PeeringList
	var list corev1.NodeList
	if err := c.lists(ctx, &peerings, &list); err != nil {
		return err
	}
	for _, other := range peerings.Items {
		for _, r := range other.RemoteRanges() {
			if r.Contains(host) {
				return refused("it is in the range %s of the peer %q", r, other.Spec.Remote.Name)
			}
		}
	}
	for _, n := range pointers(list.Items) {
		if nodes.HasAddress(n, host) {
			return refused("it is node %s: nodes are not open to peers", n.Name)
		}
	}
	servers, err := c.apiServerAddresses(ctx)
	if err != nil {
		return err
	}
	if slices.Contains(append(servers, c.Server), host) {
		return refused("it is the API server of %s, which is not open to peers", c.Name)
	}
	return c.noService(ctx, host, refused)
}

// noService fails if an address is in a range of the cluster's services, or is of a
// service. What contradicts the ranges is no reason: they were given by peer, then.
func (c *Cluster) noService(ctx context.Context, host netip.Addr, refused func(format string, args ...any) error) error {
	var services corev1.ServiceList
	if err := c.list(ctx, &services); err != nil {
		return err
	}
	for _, s := range services.Items {
		if slices.Contains(s.Spec.ClusterIPs, host.String()) {
			return refused("it is the cluster IP of service %s/%s: services are not open to peers", s.Namespace, s.Name)
		}
	}
	facts, err := discovery.Discover(ctx, c.Client, discovery.Overrides{Name: c.Name})
	if err != nil && !errors.Is(err, discovery.ErrOutside) && !errors.Is(err, discovery.ErrUnknown) {
		return c.fail("find out its ranges", err)
	}
	for _, r := range facts.ServiceCIDRs {
		if r.Value.Contains(host) {
			return refused("it is in the range of the services, %s (%s): services are not open to peers", r.Value, r.Source)
		}
	}
	return nil
}

// changeHosts changes the hosts of the peer's entry in the ledger, has the Peering
// say the same, and waits until gateway and nodes have applied it.
func (c *Cluster) changeHosts(ctx context.Context, peer *Cluster, r Reporter, change func(*v1alpha1.PeerAllocation) error) error {
	if err := c.checkVersion(ctx); err != nil {
		return err
	}
	return underLocks(ctx, "expose-host", r.Step, []lock.Cluster{c.lock(peer.ID)}, func(ctx context.Context) error {
		if err := c.checkPeer(ctx, peer); err != nil { // a peering may have been made since
			return err
		}
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
		beats := heartbeats{}
		kinds := append(viewKinds(), &v1alpha1.ClusterNetworkList{})
		return c.await(ctx, "wait until gateway and nodes have applied it", c.podsHint(), kinds, func(ctx context.Context, o objects) (string, error) {
			p := byName[*v1alpha1.Peering](o, name)
			if p == nil {
				return "", errUnpeered
			}
			if changed, err := c.applyHosts(ctx, peer, p); changed || err != nil {
				return "the Peering has just been changed", err
			}
			v, _, err := c.viewOf(p, o, beats)
			// A plane that does not work, as where its gateway has no node, may stay so for long. Packets take the others.
			return settledBut(p, v, func(plane PlaneView) bool { return !plane.Connected }, nil), err
		})
	})
}

// currentHosts are the exposed hosts as the ledger has them now: others may change it at the same time.
func (c *Cluster) currentHosts(ctx context.Context, peer *Cluster, external netip.Prefix) ([]v1alpha1.AddressMapping, error) {
	entry, err := c.entry(ctx, peer.ID)
	if entry == nil {
		return nil, c.fail("read which hosts are exposed", cmp.Or(err, errUnpeered))
	}
	return plan.HostMappings(entry, external)
}

// applyHosts changes the hosts of the Peering to those of the ledger, if it still is as it was read: what somebody else has
// changed meanwhile is not undone.
func (c *Cluster) applyHosts(ctx context.Context, peer *Cluster, p *v1alpha1.Peering) (changed bool, err error) {
	hosts, err := c.currentHosts(ctx, peer, p.Spec.Local.ExternalCIDR.Prefix)
	if err != nil || slices.Equal(hosts, p.Spec.Local.Hosts) {
		return false, err
	}
	spec := *p.Spec.DeepCopy()
	spec.Local.Hosts = hosts
	obj := manifests.Peering(p.Name, spec)
	obj.ResourceVersion, obj.UID = p.ResourceVersion, p.UID
	if err = newSide(c, 0).apply(ctx, obj); apierrors.IsConflict(err) {
		err = nil // the next look is at the newer one
	}
	return true, err
}
