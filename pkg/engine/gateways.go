package engine

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// WritePending writes the initial conditions of a new Peering, with the first gateway as the field manager. That
// gateway removes those that it does not apply, and other gateways take over theirs.
func (s *Side) WritePending(ctx context.Context, wanted *v1alpha1.Peering) error {
	live, err := kube.Get[v1alpha1.Peering](ctx, s.Cluster, "", wanted.Name)
	if live == nil || err != nil || len(live.Status.Conditions)+len(live.Status.Planes) > 0 {
		return err
	}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.PeeringStatus{Conditions: wanted.PendingConditions()})
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": raw}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Peering"))
	u.SetName(live.Name)
	u.SetResourceVersion(live.ResourceVersion) // conflicts if a gateway writes concurrently
	manager := client.FieldOwner(v1alpha1.GatewayManager(wanted.Spec.Planes[0].Index))
	return s.Fail("write the conditions of Peering "+live.Name, s.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), manager, client.ForceOwnership))
}

// GatewaysOf returns the gateways of a plan.
func GatewaysOf(c *plan.ClusterPlan) (out []manifests.Gateway) {
	for _, g := range c.Gateways {
		out = append(out, g.Gateway)
	}
	return out
}
