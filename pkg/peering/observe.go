package peering

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/version"
)

// observe reads all that a plan is made from. It changes nothing, and needs no
// other permission than to read.
func (s *side) observe(ctx context.Context, peer *Cluster, o Options) (err error) {
	f := plan.FactSheet{Version: version.String(), DefaultImage: s.DefaultImage}
	defer func() { s.facts = f }()
	overrides := o.Facts[s.ID]
	overrides.Name = s.Name
	f.Facts, err = discovery.Discover(ctx, s.Client, overrides)
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
	if f.APIServer, err = s.apiServerAddresses(ctx); err != nil {
		return err
	}
	if f.InstalledImage, f.InstalledVersion, err = s.installedAgents(ctx); err != nil {
		return err
	}
	var nodes v1alpha1.NodeNetworkList
	if err := s.Client.List(ctx, &nodes); err != nil && !absent(err) {
		return s.fail("list NodeNetworks", err)
	}
	f.Reports = nodes.Items
	if f.OverlayKey, err = s.readOverlayKey(ctx); err != nil {
		return err
	}
	if f.Ledger, err = s.ledger(ctx); err != nil || f.Ledger == nil || !f.Ledger.DeletionTimestamp.IsZero() {
		return err
	}
	var peerings v1alpha1.PeeringList
	if err := s.Client.List(ctx, &peerings); err != nil && !absent(err) {
		return s.fail("list Peerings", err)
	}
	f.OtherPeerings = slices.DeleteFunc(peerings.Items, func(p v1alpha1.Peering) bool { return p.Spec.Remote.ClusterID == peer.ID })
	if entry := plan.Allocation(f.Ledger, peer.ID); entry != nil {
		s.wasEstablished = entry.Established
		if err := s.readPeering(ctx, entry.Name, &f); err != nil {
			return err
		}
	}
	return f.ConcludePods()
}

// concludePods takes into account what the agents have reported since the facts were
// read.
func (s *side) concludePods(ctx context.Context) (err error) {
	if s.facts.Ledger, err = s.ledger(ctx); err != nil {
		return err
	}
	return s.facts.ConcludePods()
}

// readOverlayKey reads which key the overlay has. If the user may not read Secrets,
// the pods that have it tell.
func (c *Cluster) readOverlayKey(ctx context.Context) (manifests.OverlayKey, error) {
	secret, ds := &corev1.Secret{}, &appsv1.DaemonSet{}
	err := c.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.OverlaySecret}, secret)
	switch {
	case err == nil:
		return manifests.OverlayKeyOf(secret.Data[v1alpha1.OverlayKeyFile]), nil
	case absent(err):
		return "", nil
	case !apierrors.IsForbidden(err):
		return "", c.fail("read Secret "+v1alpha1.OverlaySecret, err)
	}
	err = c.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}, ds)
	if err != nil && !absent(err) {
		return "", c.fail("read DaemonSet "+v1alpha1.NodeAgentName, err)
	}
	return manifests.OverlayKeyIn(&ds.Spec.Template), nil
}

// readPeering reads what there is of the peering already.
func (c *Cluster) readPeering(ctx context.Context, name string, f *plan.FactSheet) error {
	existing := &v1alpha1.Peering{}
	f.Existing, f.Planes = nil, map[int32]plan.PlaneFacts{}
	if err := c.Client.Get(ctx, types.NamespacedName{Name: name}, existing); err == nil {
		f.Existing = existing
	} else if !absent(err) {
		return c.fail("read Peering "+name, err)
	}
	for _, index := range f.PlaneIndexes() {
		var plane plan.PlaneFacts
		svc, secret := &corev1.Service{}, &corev1.Secret{}
		g := f.Gateway(name, index)
		key := types.NamespacedName{Namespace: v1alpha1.Namespace, Name: g.Name()}
		if err := c.Client.Get(ctx, key, svc); err == nil {
			plane.Service = svc
		} else if !absent(err) {
			return c.fail("read Service "+key.String(), err)
		}
		key.Name = g.SecretName()
		switch err := c.Client.Get(ctx, key, secret); {
		case apierrors.IsForbidden(err):
			plane.KeyUnreadable = true
		case err == nil:
			if k, err := wgtypes.NewKey(secret.Data[v1alpha1.KeyFilePrivate]); err == nil {
				plane.PublicKey = k.PublicKey().String()
			}
		case !absent(err):
			return c.fail("read Secret "+key.String(), err)
		}
		f.Planes[index] = plane
	}
	return nil
}

// apiServerAddresses are those to which every node and pod has to get.
func (c *Cluster) apiServerAddresses(ctx context.Context) ([]netip.Addr, error) {
	var endpoints discoveryv1.EndpointSliceList
	err := c.Client.List(ctx, &endpoints, client.InNamespace("default"), client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"})
	if absent(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, c.fail("read the addresses of the API server", err)
	}
	var out []netip.Addr
	for _, s := range endpoints.Items {
		for _, e := range s.Endpoints {
			for _, a := range e.Addresses {
				if addr, err := netip.ParseAddr(a); err == nil {
					out = append(out, addr)
				}
			}
		}
	}
	return out, nil
}

// installedAgents returns the image of the node agents, and the version of the command
// that installed them. Both are empty if there are none.
func (c *Cluster) installedAgents(ctx context.Context) (image, installed string, err error) {
	ds := &appsv1.DaemonSet{}
	err = c.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}, ds)
	if apierrors.IsNotFound(err) || err == nil && !ds.DeletionTimestamp.IsZero() {
		return "", "", nil
	}
	if err != nil {
		return "", "", c.fail("read DaemonSet "+v1alpha1.NodeAgentName, err)
	}
	return ds.Spec.Template.Spec.Containers[0].Image, ds.Annotations[v1alpha1.AnnotationVersion], nil
}
