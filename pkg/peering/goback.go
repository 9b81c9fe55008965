package peering

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liqonet/liqonet/pkg/plan"
)

// goBack puts back what was changed in the cluster: gateways as they came, a plane at a time and the last one first, and then all else.
// Definitions stay. So does what somebody else has changed meanwhile. It goes on where something cannot be put back.
func (u *upgrade) goBack(ctx context.Context) error {
	changes := slices.Clone(u.journal.changes)
	before := map[string]*unstructured.Unstructured{}
	others := slices.DeleteFunc(slices.Clone(changes), func(c change) bool {
		obj := c.object()
		if obj.GetKind() != "Deployment" || c.Before == nil {
			return false
		}
		if before[obj.GetName()] == nil {
			before[obj.GetName()] = &unstructured.Unstructured{Object: runtime.DeepCopyJSON(c.Before)}
		}
		return true
	})
	var errs []error
	for _, group := range slices.Backward(u.replaced) {
		errs = append(errs, u.replaceGroup(ctx, group, func(g plan.UpgradeGateway) (*unstructured.Unstructured, error) {
			return before[g.Name()], nil
		}))
	}
	errs = append(errs, u.undo(ctx, others))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return u.settle(ctx, slices.Concat(u.Nodes...), nil, 0)
}
