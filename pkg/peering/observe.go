package peering

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

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
)

// observe reads all that a plan is made from. It changes nothing, and needs no
// other permission than to read.
func (s *side) observe(ctx context.Context, peer *Cluster, o Options) (err error) {
	s.wish = o.Clusters[s.ID]
	overrides := o.Facts[s.ID]
	overrides.Name = s.Name
	s.facts, err = discovery.Discover(ctx, s.Client, overrides)
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
	if s.apiServer, err = s.apiServerAddresses(ctx); err != nil {
		return err
	}
	if s.image, s.imageReason, err = s.agentImage(ctx, o.Image); err != nil {
		return err
	}
	internal, err := ipam.Allocate(ipam.Space{Used: s.ownRanges()}, ipam.InternalRequest(s.ID, s.Name))
	if err != nil {
		return &Error{Kind: Ranges, Cluster: s.Name, Doing: "find a range for the overlay", Err: err}
	}
	s.internal, s.internalReason = internal[0].Prefix, internal[0].Reason
	var nodes v1alpha1.NodeNetworkList
	if err := s.Client.List(ctx, &nodes); err != nil && !absent(err) {
		return s.fail("list NodeNetworks", err)
	}
	s.nodes = nodes.Items
	s.endpoints = s.wish.Endpoints
	if err := s.observeOverlayKey(ctx); err != nil {
		return err
	}
	if s.ledger, err = s.Cluster.ledger(ctx); err != nil || s.ledger == nil || !s.ledger.DeletionTimestamp.IsZero() {
		return err
	}
	var peerings v1alpha1.PeeringList
	if err := s.Client.List(ctx, &peerings); err != nil && !absent(err) {
		return s.fail("list Peerings", err)
	}
	s.others = slices.DeleteFunc(peerings.Items, func(p v1alpha1.Peering) bool { return p.Spec.Remote.ClusterID == peer.ID })
	if entry := allocation(s.ledger, peer.ID); entry != nil {
		s.wasEstablished = entry.Established
		return s.observePeering(ctx, entry.Name)
	}
	return nil
}

// observeOverlayKey reads which key the overlay has. Who may not read Secrets is
// told by the pods that have it.
func (s *side) observeOverlayKey(ctx context.Context) error {
	secret, ds := &corev1.Secret{}, &appsv1.DaemonSet{}
	err := s.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.OverlaySecret}, secret)
	switch {
	case err == nil:
		s.overlayKey = manifests.OverlayKeyOf(secret.Data[v1alpha1.OverlayKeyFile])
		return nil
	case absent(err):
		return nil
	case !apierrors.IsForbidden(err):
		return s.fail("read Secret "+v1alpha1.OverlaySecret, err)
	}
	err = s.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}, ds)
	if err != nil && !absent(err) {
		return s.fail("read DaemonSet "+v1alpha1.NodeAgentName, err)
	}
	s.overlayKey = manifests.OverlayKeyIn(&ds.Spec.Template)
	return nil
}

// observePeering reads what there is of the peering already.
func (s *side) observePeering(ctx context.Context, name string) error {
	g := manifests.Gateway{Peering: name}
	key := types.NamespacedName{Namespace: v1alpha1.Namespace, Name: g.Name()}
	existing, svc, secret := &v1alpha1.Peering{}, &corev1.Service{}, &corev1.Secret{}
	s.existing, s.service, s.endpoints = nil, nil, s.wish.Endpoints
	if err := s.Client.Get(ctx, types.NamespacedName{Name: name}, existing); err == nil {
		s.existing = existing
	} else if !absent(err) {
		return s.fail("read Peering "+name, err)
	}
	if err := s.Client.Get(ctx, key, svc); err == nil {
		s.service = svc
		if given := svc.Annotations[annotationEndpoints]; given != "" && len(s.endpoints) == 0 && !s.wish.AutoEndpoints {
			s.endpoints = strings.Split(given, ",")
		}
	} else if !absent(err) {
		return s.fail("read Service "+key.String(), err)
	}
	switch err := s.Client.Get(ctx, key, secret); {
	case apierrors.IsForbidden(err):
		s.keyUnread = true
	case err == nil:
		if k, err := wgtypes.NewKey(secret.Data[v1alpha1.KeyFilePrivate]); err == nil {
			s.publicKey = k.PublicKey().String()
		}
	case !absent(err):
		return s.fail("read Secret "+key.String(), err)
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

// agentImage is the wished one, or that of the agents which are there.
func (c *Cluster) agentImage(ctx context.Context, wish string) (image, reason string, err error) {
	if wish != "" {
		return wish, "given by --agent-image", nil
	}
	ds := &appsv1.DaemonSet{}
	err = c.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}, ds)
	if apierrors.IsNotFound(err) || err == nil && !ds.DeletionTimestamp.IsZero() {
		return c.DefaultImage, "the one of this version of the command", nil
	}
	if err != nil {
		return "", "", c.fail("read DaemonSet "+v1alpha1.NodeAgentName, err)
	}
	return ds.Spec.Template.Spec.Containers[0].Image, "the one of the node agents that are there", nil
}
