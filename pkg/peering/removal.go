package peering

import (
	"context"
	"errors"
	"slices"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
)

// Removal is what unpeer would delete in a cluster.
type Removal struct {
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	// Agents is true if no peering remains, so that the agents would be removed, too.
	Agents  bool              `json:"agents"`
	Objects []plan.ObjectPlan `json:"objects"`
	// Refused is why nothing would be deleted: the cluster does not respond, or refuses.
	Refused string `json:"refused,omitempty"`
}

// PlanRemovals returns what UnpeerAll would delete, and last the clusters in which it can delete nothing. It changes nothing.
func PlanRemovals(ctx context.Context, pairs []Pair) ([]Removal, error) {
	peers := map[*kube.Cluster][]string{}
	var clusters []*kube.Cluster
	var without []Removal
	add := func(c *kube.Cluster, peerID string) {
		if peerID != "" {
			clusters, peers[c] = append(clusters, c), append(peers[c], peerID)
		}
	}
	for _, p := range pairs {
		a, b := p[0], p[1]
		id, refused, err := b.ID, b.SkipReason, error(nil)
		if refused != nil {
			id, _, err = findPeer(ctx, a, b.Name)
		} else {
			_, refused, err = prepareRemoval(ctx, a, b)
		}
		if err != nil {
			return nil, err
		}
		if add(a, id); refused == nil {
			add(b, a.ID)
		} else if !errors.Is(refused, kube.ErrSkipped) {
			without = append(without, Removal{Cluster: b.Name, ClusterID: b.ID, Objects: []plan.ObjectPlan{}, Refused: refused.Error()})
		}
	}
	removals, err := lo.MapErr(lo.Uniq(clusters), func(c *kube.Cluster, _ int) (Removal, error) { return planRemoval(ctx, c, peers[c]) })
	return append(removals, without...), err
}

func planRemoval(ctx context.Context, c *kube.Cluster, peerIDs []string) (Removal, error) {
	r := Removal{Cluster: c.Name, ClusterID: c.ID, Objects: []plan.ObjectPlan{}}
	cn, err := c.Ledger(ctx)
	if cn == nil || err != nil {
		return r, err
	}
	removed, kept := lo.FilterReject(cn.Spec.Peers, func(e v1alpha1.PeerAllocation, _ int) bool { return slices.Contains(peerIDs, e.ClusterID) })
	names := lo.Map(removed, func(e v1alpha1.PeerAllocation, _ int) string { return e.Name })
	r.Agents = len(kept) == 0
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return r, err
	}
	found := lo.FilterMap(peerings.Items, func(p v1alpha1.Peering, _ int) (client.Object, bool) { return &p, slices.Contains(names, p.Name) })
	kinds := append(slices.Concat(engine.Workloads(), engine.Accounts()), &apiextensionsv1.CustomResourceDefinitionList{}, &corev1.NamespaceList{})
	for _, kind := range kinds {
		objs, err := c.ListManaged(ctx, kind, nil)
		if err != nil {
			return r, err
		}
		found = append(found, lo.Filter(objs, func(obj client.Object, _ int) bool {
			peering := obj.GetLabels()[v1alpha1.LabelPeering]
			return slices.Contains(names, peering) || peering == "" && r.Agents
		})...)
	}
	if r.Agents {
		found = append(found, cn)
	}
	r.Objects, err = lo.MapErr(found, func(obj client.Object, _ int) (plan.ObjectPlan, error) {
		gvk, err := c.Client.GroupVersionKindFor(obj)
		name := obj.GetLabels()[v1alpha1.LabelPeering]
		if p, is := obj.(*v1alpha1.Peering); is {
			name = p.Name
		}
		return plan.ObjectPlan{
			Action: plan.Delete, APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Namespace: obj.GetNamespace(), Name: obj.GetName(),
			Reason: lo.Ternary(name == "", "no peering remains", "of peering "+name),
		}, err
	})
	return r, err
}
