package peering

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// observe reads all that a plan is made from. It changes nothing, and needs no
// other permission than to read.
func (s *side) observe(ctx context.Context, peer *Cluster, o Options) (err error) {
	f := plan.Facts{Kubeconfig: s.Server}
	defer func() { s.facts = f }()
	overrides := o.Facts[s.ID]
	overrides.Name = s.Name
	f.Network, err = discovery.Discover(ctx, s.Client, overrides)
	switch {
	case errors.Is(err, discovery.ErrOutside) && len(overrides.PodCIDRs)+len(overrides.ServiceCIDRs) > 0:
		return &Error{Kind: Usage, Doing: "compare the ranges given with what runs", Err: err}
	case errors.Is(err, discovery.ErrUnknown), errors.Is(err, discovery.ErrOutside):
		return &Error{Kind: Ranges, Doing: "find out the ranges", Err: err}
	case errors.Is(err, ipam.ErrInvalid):
		return &Error{Kind: Usage, Doing: "find out the ranges", Err: err}
	case err != nil:
		return s.fail("find out its ranges", err)
	}
	if err := s.checkNamespace(ctx); err != nil {
		return err
	}
	if f.APIServer, err = s.apiServerAddresses(ctx); err != nil {
		return err
	}
	// After the nodes: one that is gone knows no key of which this ledger does not tell.
	if f.Ledger, err = s.ledger(ctx); err != nil {
		return err
	}
	if err := s.readAgents(ctx, &f); err != nil {
		return err
	}
	s.intent = plan.Intent{
		Version: s.Version, DefaultImage: s.DefaultImage, Overrides: o.of(s.ID),
		KeepOverlayKey: o.keepOverlayKey && len(f.OverlayKeys) > 0 && f.LostOverlayKey == 0,
	}
	var reports v1alpha1.NodeNetworkList
	var peerings v1alpha1.PeeringList
	if err := s.lists(ctx, &reports, &peerings); err != nil {
		return err
	}
	f.Reports = reports.Items
	if f.Ledger == nil || !f.Ledger.DeletionTimestamp.IsZero() {
		return nil
	}
	f.OtherPeerings = slices.DeleteFunc(peerings.Items, func(p v1alpha1.Peering) bool { return p.Spec.Remote.ClusterID == peer.ID || p.Incomplete() })
	if entry := plan.Allocation(f.Ledger, peer.ID); entry != nil {
		s.wasActive = entry.Active()
		if err := s.readPeering(ctx, entry.Name, &f); err != nil {
			return err
		}
	}
	f, err = f.ConcludePods()
	return err
}

// readAgents reads what there is of the node agents.
func (c *Cluster) readAgents(ctx context.Context, f *plan.Facts) error {
	ds, err := c.nodeAgents(ctx)
	if err != nil {
		return err
	}
	if ds != nil {
		*f = f.WithNodeAgents(ds)
	} else if gateways, err := c.ours(ctx, &appsv1.DeploymentList{}, nil); err != nil || len(gateways) == 0 {
		return err // there need not be a key yet
	}
	secrets, err := c.ours(ctx, secretNames(), nil)
	if err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	for _, secret := range secrets {
		f.NewestOverlayKey = max(f.NewestOverlayKey, manifests.OverlayGeneration(secret.GetName()))
	}
	generations := f.OverlayKeys
	if len(generations) == 0 {
		generations = []int32{plan.OverlayKey(f.Ledger)}
	}
	for _, generation := range generations {
		switch key, err := c.key(ctx, manifests.OverlaySecretName(generation), v1alpha1.OverlayKeyFile); {
		case apierrors.IsForbidden(err):
		case err != nil:
			return err
		case key == nil:
			f.LostOverlayKey = generation
		}
	}
	return nil
}

// nodeAgents is their DaemonSet, nil if there is none that stays.
func (c *Cluster) nodeAgents(ctx context.Context) (*appsv1.DaemonSet, error) {
	ds, err := get[appsv1.DaemonSet](ctx, c, v1alpha1.Namespace, v1alpha1.NodeAgentName)
	if ds != nil && !ds.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	return ds, err
}

// readPeering reads what there is of the peering already.
func (c *Cluster) readPeering(ctx context.Context, name string, f *plan.Facts) (err error) {
	f.Planes = map[int32]plan.PlaneFacts{}
	if f.Existing, err = get[v1alpha1.Peering](ctx, c, "", name); err != nil {
		return err
	}
	if f.Owner = ""; f.Existing != nil {
		f.Owner = f.Existing.UID
		if f.Existing.Incomplete() {
			f.Existing = nil // it is written again
		}
	}
	if f.Service, err = get[corev1.Service](ctx, c, v1alpha1.Namespace, v1alpha1.GatewayService(name)); err != nil {
		return err
	}
	indexes := f.PlaneIndexes()
	if f.Existing != nil {
		for _, p := range f.Existing.Spec.Planes {
			if p.Temporary {
				indexes = append(indexes, p.Index)
			}
		}
	}
	for _, index := range indexes {
		var plane plan.PlaneFacts
		g := f.Gateway(name, index)
		key, err := c.key(ctx, g.SecretName(), v1alpha1.KeyFilePrivate)
		if plane.KeyUnreadable = apierrors.IsForbidden(err); err != nil && !plane.KeyUnreadable {
			return err
		}
		if key != nil {
			plane.PublicKey, plane.KeyTime = publicOf(key.value), key.made
		}
		named, _ := f.NamedPresharedKey(index)
		if plane.PresharedKey, err = c.presharedKey(ctx, g, named); err != nil {
			return err
		}
		f.Planes[index] = plane
	}
	return nil
}

// apiServerAddresses are those to which every node and pod has to get.
func (c *Cluster) apiServerAddresses(ctx context.Context) (out []netip.Addr, err error) {
	endpoints, err := c.endpoints(ctx, "default", "kubernetes")
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	for _, e := range endpoints {
		out = append(out, e.Addr())
	}
	return out, err
}
