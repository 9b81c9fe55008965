package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/pkg/version"
)

// Observe reads everything that a plan needs. It changes nothing, and needs read permissions only.
func (s *Side) Observe(ctx context.Context, peer *kube.Cluster, o Options) (err error) {
	s.AdoptNamespace = o.AdoptNamespace
	f := plan.Facts{Kubeconfig: s.Server}
	defer func() { s.Facts = f }()
	s.Peering.WasActive = false // another command may have unpeered since it was read last
	overrides := o.Facts[s.ID]
	overrides.Name = s.Name
	f.Network, err = discovery.Discover(ctx, s.Client, overrides)
	switch {
	case errors.Is(err, discovery.ErrOutside) && len(overrides.PodCIDRs)+len(overrides.ServiceCIDRs) > 0:
		return &kube.Error{Kind: kube.Usage, Doing: "compare the ranges given with what runs", Err: err}
	case errors.Is(err, discovery.ErrUnknown), errors.Is(err, discovery.ErrOutside):
		return &kube.Error{Kind: kube.Ranges, Doing: "find out the ranges", Err: err}
	case errors.Is(err, ipam.ErrInvalid):
		return &kube.Error{Kind: kube.Usage, Doing: "find out the ranges", Err: err}
	case err != nil:
		return s.Fail("find out its ranges", err)
	}
	if err := checkNamespace(ctx, s.Cluster, o.AdoptNamespace); err != nil {
		return err
	}
	if f.APIServer, err = ApiServerAddresses(ctx, s.Cluster); err != nil {
		return err
	}
	// After the nodes: a node that has left by then knows only keys that this ledger records.
	if f.Ledger, err = s.Ledger(ctx); err != nil {
		return err
	}
	if err := ReadAgents(ctx, s.Cluster, &f); err != nil {
		return err
	}
	s.Intent = plan.Intent{
		Version: s.Version, DefaultImage: s.DefaultImage, Overrides: o.Of(s.ID),
		KeepOverlayKey: o.KeepOverlayKey && len(f.OverlayKeys) > 0 && f.LostOverlayKey == 0,
	}
	var reports v1alpha1.NodeNetworkList
	var peerings v1alpha1.PeeringList
	if err := s.Lists(ctx, &reports, &peerings); err != nil {
		return err
	}
	f.Reports = reports.Items
	if f.Ledger == nil || !f.Ledger.DeletionTimestamp.IsZero() {
		return nil
	}
	f.OtherPeerings = slices.DeleteFunc(peerings.Items, func(p v1alpha1.Peering) bool { return p.Spec.Remote.ClusterID == peer.ID || p.Incomplete() })
	if entry := plan.Allocation(f.Ledger, peer.ID); entry != nil {
		s.Peering.WasActive = entry.Active()
		if err := ReadPeering(ctx, s.Cluster, entry.Name, &f); err != nil {
			return err
		}
	}
	f, err = f.InferPods()
	return err
}

// ReadAgents reads the current state of the node agents.
func ReadAgents(ctx context.Context, c *kube.Cluster, f *plan.Facts) error {
	ds, err := c.NodeAgents(ctx)
	if err != nil {
		return err
	}
	if ds != nil {
		*f = f.WithNodeAgents(ds)
	} else if gateways, err := c.ListManaged(ctx, &appsv1.DeploymentList{}, nil); err != nil || len(gateways) == 0 {
		return err // there is no key yet
	}
	secrets, err := overlaySecrets(ctx, c)
	if err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	f.NewestOverlayKey = max(f.NewestOverlayKey, lo.Max(lo.Keys(secrets)))
	for _, generation := range lo.CoalesceSliceOrEmpty(f.OverlayKeys, []int32{plan.OverlayKey(f.Ledger)}) {
		switch secret, err := KeySecret(ctx, c, manifests.OverlaySecretName(generation), v1alpha1.OverlayKeyFile); {
		case apierrors.IsForbidden(err):
		case err != nil:
			return err
		case secret == nil:
			f.LostOverlayKey = generation
		}
	}
	return nil
}

// ReadPeering reads the current state of the peering.
func ReadPeering(ctx context.Context, c *kube.Cluster, name string, f *plan.Facts) (err error) {
	f.Planes = map[int32]plan.PlaneFacts{}
	if f.Existing, err = kube.Get[v1alpha1.Peering](ctx, c, "", name); err != nil {
		return err
	}
	if f.Owner = ""; f.Existing != nil {
		f.Owner = f.Existing.UID
		if f.Existing.Incomplete() {
			f.Existing = nil // it is written again
		}
	}
	if f.Service, err = kube.Get[corev1.Service](ctx, c, v1alpha1.Namespace, v1alpha1.GatewayService(name)); err != nil {
		return err
	}
	existing := lo.Map(lo.FromPtr(f.Existing).Spec.Planes, func(p v1alpha1.Plane, _ int) int32 { return p.Index }) // with temporary ones
	for _, index := range lo.Union(f.PlaneIndexes(), existing) {
		var plane plan.PlaneFacts
		g := f.Gateway(name, index)
		secret, err := KeySecret(ctx, c, g.SecretName(), v1alpha1.KeyFilePrivate)
		if plane.KeyUnreadable = apierrors.IsForbidden(err); err != nil && !plane.KeyUnreadable {
			return err
		}
		if secret != nil {
			plane.PublicKey, plane.KeyTime = PublicKey(secret.Data[v1alpha1.KeyFilePrivate]), secret.CreationTimestamp
		}
		named, _ := f.NamedPresharedKey(index)
		if plane.PresharedKey, err = presharedKey(ctx, c, g, named); err != nil {
			return err
		}
		f.Planes[index] = plane
	}
	return nil
}

// ApiServerAddresses returns the API server's addresses, which every node and pod must be able to reach.
func ApiServerAddresses(ctx context.Context, c *kube.Cluster) ([]netip.Addr, error) {
	endpoints, err := status.Endpoints(ctx, c, "default", "kubernetes")
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	return lo.Map(endpoints, func(e netip.AddrPort, _ int) netip.Addr { return e.Addr() }), err
}

// AgentNodes returns all nodes as plans for their agents need them.
func AgentNodes(ctx context.Context, c *kube.Cluster) ([]plan.Node, error) {
	var machines corev1.NodeList
	if err := c.List(ctx, &machines); err != nil {
		return nil, err
	}
	return lo.Map(machines.Items, func(n corev1.Node, _ int) plan.Node {
		return plan.Node{Name: n.Name, Ready: nodes.Ready(&n), RunsAgents: nodes.RunsAgents(&n)}
	}), nil
}

// CheckVersion fails if this command is older than the cluster's agents or definitions, as it would drop fields that
// it does not know. Every command except Unpeer calls it before its first write. A version that cannot be compared,
// such as a commit, is accepted.
func CheckVersion(ctx context.Context, c *kube.Cluster) error {
	definitions := &metav1.PartialObjectMetadataList{}
	definitions.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinitionList"))
	if err := c.List(ctx, definitions, client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}); err != nil {
		return err
	}
	versions := lo.Map(definitions.Items, func(crd metav1.PartialObjectMetadata, _ int) string {
		return crd.Annotations[v1alpha1.AnnotationVersion]
	})
	daemonSet, err := c.NodeAgents(ctx)
	if err != nil {
		return err
	}
	if daemonSet != nil {
		versions = append(versions, daemonSet.Annotations[v1alpha1.AnnotationVersion])
	}
	for _, there := range versions {
		if version.Older(c.Version, there) {
			return c.Errorf(kube.Usage, "compare versions", "use the command of that version, or a newer one",
				"liqonet in the cluster is of version %s, and this command of the older %s", there, c.Version)
		}
	}
	return nil
}

// checkNamespace fails if someone else created our namespace. They may have permissions in it, to read the keys or to
// run something in the agents' pods.
func checkNamespace(ctx context.Context, c *kube.Cluster, adopt bool) error {
	ns, err := kube.Get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	if ns == nil || kube.IsManaged(ns) || adopt {
		return err
	}
	hint := fmt.Sprintf("delete it if nobody needs it (%s delete namespace %s); if you trust all who have rights in it, give --adopt-namespace", c.Kubectl, ns.Name)
	return c.Errorf(kube.Usage, "install into namespace "+ns.Name, hint, "it exists and is not managed by liqonet: whoever created it may read the keys in it")
}
