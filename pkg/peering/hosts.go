package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/identity"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/status"
)

// ExposeHost gives the peer's pods and nodes access to an address outside of this cluster. It returns the peer's
// address for it, once gateway and nodes have applied it. It is idempotent.
func ExposeHost(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, host netip.Addr, r kube.Reporter) (netip.Addr, error) {
	p, err := peeringToChange(ctx, c, peer)
	if err != nil {
		return netip.Addr{}, err
	}
	if err := checkExposable(ctx, c, p, host); err != nil {
		return netip.Addr{}, err
	}
	number := 0
	err = changeHosts(ctx, c, peer, r, func(a *v1alpha1.PeerAllocation) (err error) {
		if i := slices.IndexFunc(a.Hosts, func(h v1alpha1.ExposedHost) bool { return h.Address.Addr == host }); i >= 0 {
			number = int(a.Hosts[i].Number)
			return nil
		}
		if len(a.Hosts) >= maxHosts {
			return fmt.Errorf("%d hosts are exposed to %q already", maxHosts, peer.Name)
		}
		number, err = ipam.HostNumber(host, func(n int) bool {
			return slices.ContainsFunc(a.Hosts, func(h v1alpha1.ExposedHost) bool { return int(h.Number) == n })
		})
		a.Hosts = append(a.Hosts, v1alpha1.ExposedHost{Address: v1alpha1.IP{Addr: host}, Number: int32(number)})
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	return ipam.HostAddr(p.Spec.Local.ExternalCIDR.Prefix, number)
}

// UnexposeHost reverts ExposeHost, and reports whether the host was exposed.
func UnexposeHost(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, host netip.Addr, r kube.Reporter) (was bool, err error) {
	if _, err := peeringToChange(ctx, c, peer); err != nil {
		return false, err
	}
	err = changeHosts(ctx, c, peer, r, func(a *v1alpha1.PeerAllocation) error {
		before := len(a.Hosts)
		a.Hosts = slices.DeleteFunc(a.Hosts, func(h v1alpha1.ExposedHost) bool { return h.Address.Addr == host })
		was = was || len(a.Hosts) < before // an answer may be lost, and the request repeated
		return nil
	})
	return was, err
}

// peeringToChange reads the Peering with a peer that has proved its identity.
func peeringToChange(ctx context.Context, c *kube.Cluster, peer *kube.Cluster) (*v1alpha1.Peering, error) {
	p, _, err := status.PeeringWith(ctx, c, peer)
	if err != nil {
		return nil, err
	}
	entry, err := c.ReadLedgerEntry(ctx, peer.ID)
	if entry != nil { // before the lock: a command that does not fit overtakes no other one
		err = checkActive(c, peer, "change its exposed hosts", entry)
	}
	if err != nil {
		return nil, err
	}
	return p, identity.Check(ctx, c, peer)
}

// checkActive fails unless the peering has worked and is not being removed. Before, nothing may apply a change, and the peer
// has not proved its identity.
func checkActive(c, peer *kube.Cluster, op string, entry *v1alpha1.PeerAllocation) error {
	if entry != nil && entry.Active() {
		return nil
	}
	why := lo.Ternary(entry != nil && entry.IsBeingRemoved(), "its peering with %s is being removed", "it has no peering with %s that has ever worked")
	return c.Errorf(kube.Usage, op, fmt.Sprintf("kubectl liqonet peer %s %s", failure.Quote(c.Name), failure.Quote(peer.Name)), why, peer.Name)
}

// maxHosts is the maximum number of hosts in a Peering.
const maxHosts = 256

// checkExposable fails unless the address is that of an external host.
func checkExposable(ctx context.Context, c *kube.Cluster, p *v1alpha1.Peering, host netip.Addr) error {
	var refused error
	refuseIf := func(is bool, why string, args ...any) {
		if is && refused == nil {
			refused = c.Errorf(kube.Usage, fmt.Sprintf("expose host %s to %q", host, p.Spec.Remote.Name), "", why, args...)
		}
	}
	isUnusual := host.IsLoopback() || host.IsMulticast() || host.IsUnspecified() || host.IsLinkLocalUnicast()
	refuseIf(!p.CarriesFamily(host) || isUnusual, "it is not a routable unicast IPv4 address")
	for _, m := range p.Spec.Local.Pods {
		refuseIf(m.Real.Contains(host), "it is in the pods' range %s: pods need not be exposed", m.Real)
	}
	refuseIf(p.Spec.Local.InternalCIDR.Contains(host), "it is in the overlay's range %s", p.Spec.Local.InternalCIDR)
	var peerings v1alpha1.PeeringList
	var list corev1.NodeList
	if err := c.ListAll(ctx, &peerings, &list); err != nil {
		return cmp.Or(refused, err)
	}
	for _, other := range peerings.Items {
		for _, r := range other.RemoteRanges() {
			refuseIf(r.Contains(host), "it is in the range %s of the peer %q", r, other.Spec.Remote.Name)
		}
	}
	for _, n := range kube.Pointers(list.Items) {
		refuseIf(nodes.HasAddress(n, host), "it is node %s: nodes are not open to peers", n.Name)
	}
	servers, err := engine.APIServerAddresses(ctx, c)
	if err != nil {
		return cmp.Or(refused, err)
	}
	isServer := slices.Contains(append(servers, c.Server), host)
	refuseIf(isServer, "it is the API server of %s, which is not open to peers", c.Name)
	var services corev1.ServiceList
	if err := c.List(ctx, &services); err != nil {
		return cmp.Or(refused, err)
	}
	for _, s := range services.Items {
		isIP := slices.Contains(s.Spec.ClusterIPs, host.String())
		refuseIf(isIP, "it is the cluster IP of service %s/%s: services are not open to peers", s.Namespace, s.Name)
	}
	facts, err := discovery.Discover(ctx, c.Client, discovery.Overrides{Name: c.Name})
	// Ranges that contradict objects are ignored: peer was given other ranges.
	if err != nil && !errors.Is(err, discovery.ErrOutside) && !errors.Is(err, discovery.ErrUnknown) {
		return cmp.Or(refused, c.Wrap("find out its ranges", err))
	}
	for _, r := range facts.ServiceCIDRs {
		refuseIf(r.Value.Contains(host), "it is in the range of the services, %s (%s): services are not open to peers", r.Value, r.Source)
	}
	return refused
}

// changeHosts changes the exposed hosts in the peer's ledger entry and in the Peering, and waits until gateway and
// nodes have applied it.
func changeHosts(ctx context.Context, c, peer *kube.Cluster, r kube.Reporter, change func(*v1alpha1.PeerAllocation) error) error {
	c, peer = c.Recording(), peer.Recording()
	if err := engine.CheckInstallation(ctx, c); err != nil {
		return err
	}
	err := engine.WithLocks(ctx, "expose-host", r.Step, []lock.Cluster{engine.LockFor(c, peer.ID)}, func(ctx context.Context) error {
		if err := identity.Check(ctx, c, peer); err != nil { // a peering may have been created since
			return err
		}
		entry, err := engine.UpdateEntry(ctx, c, peer.ID, func(a *v1alpha1.PeerAllocation) error {
			if err := checkActive(c, peer, "change its exposed hosts", a); err != nil {
				return err
			}
			return change(a)
		})
		if err != nil {
			return c.Wrap("write the exposed hosts to the ledger", err)
		}
		beats := status.Heartbeats{}
		kinds := append(status.ViewKinds(), &v1alpha1.ClusterNetworkList{})
		return c.Await(ctx, "wait until gateway and nodes have applied it", c.PodsHint(), kinds, func(o kube.Objects) (string, error) {
			p := kube.ByName[*v1alpha1.Peering](o, entry.Name)
			if p == nil {
				return "", kube.ErrUnpeered
			}
			if changed, err := applyHosts(ctx, c, peer, p); changed || err != nil {
				return "the Peering has just been changed", err
			}
			v, err := status.ViewOf(c, p, o, beats)
			// A plane may be down for long, for example if its gateway cannot be scheduled. Packets use the others.
			return status.MissingExcept(p, v, func(plane status.PlaneView) bool { return !plane.Connected }, nil), err
		})
	})
	engine.TryCompleteOthers(ctx, c, r)
	return err
}

// applyHosts applies the ledger's hosts to the Peering, unless it was changed since it was read.
func applyHosts(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, p *v1alpha1.Peering) (changed bool, err error) {
	hosts, err := currentHosts(ctx, c, peer, p.Spec.Local.ExternalCIDR.Prefix)
	if err != nil || slices.Equal(hosts, p.Spec.Local.Hosts) {
		return false, err
	}
	spec := *p.Spec.DeepCopy()
	spec.Local.Hosts = hosts
	obj := manifests.Peering(p.Name, spec)
	obj.ResourceVersion, obj.UID = p.ResourceVersion, p.UID
	if err = engine.NewSide(c, 0).Apply(ctx, obj); apierrors.IsConflict(err) {
		err = nil // the next check reads the newer one
	}
	return true, err
}
