package status

import (
	"context"
	"slices"

	"github.com/samber/lo"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// weakPolicies returns the names of the agents' admission policies that are missing, or do not deny everywhere. Without
// them, an agent's token can write more than agents do, and nothing else shows that. It returns none if the user may not
// read them.
func weakPolicies(ctx context.Context, c *kube.Cluster) ([]string, error) {
	var policies admissionv1.ValidatingAdmissionPolicyList
	var bindings admissionv1.ValidatingAdmissionPolicyBindingList
	if err := c.ListAll(ctx, &policies, &bindings); err != nil {
		return nil, lo.Ternary(apierrors.IsForbidden(err), nil, err)
	}
	effective := map[string]bool{}
	for _, b := range bindings.Items {
		if b.Spec.MatchResources == nil && b.Spec.ParamRef == nil && slices.Contains(b.Spec.ValidationActions, admissionv1.Deny) {
			effective["binding of "+b.Spec.PolicyName] = b.DeletionTimestamp.IsZero()
		}
	}
	for _, p := range policies.Items {
		if ptr.Deref(p.Spec.FailurePolicy, admissionv1.Fail) == admissionv1.Fail && len(p.Spec.Validations) > 0 && len(p.Spec.MatchConditions) < 2 {
			effective[p.Name] = effective["binding of "+p.Name]
		}
	}
	return lo.FilterMap(manifests.Policies(), func(o manifests.Object, _ int) (string, bool) {
		_, isPolicy := o.(*admissionv1.ValidatingAdmissionPolicy)
		return o.GetName(), isPolicy && !effective[o.GetName()]
	}), nil
}
