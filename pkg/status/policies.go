package status

import (
	"context"
	"slices"

	"github.com/samber/lo"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// WeakPolicies returns the names of the agents' admission policies that are missing, or do not deny everywhere, also if
// the API server does not serve them. Without them, an agent's token can write more than agents do, and nothing else
// shows that. The policies in changed differ from those of this version in what they match or deny. WeakPolicies returns
// none if the user may not read them.
func WeakPolicies(ctx context.Context, c *kube.Cluster) (weak, changed []string, err error) {
	var policies admissionv1.ValidatingAdmissionPolicyList
	var bindings admissionv1.ValidatingAdmissionPolicyBindingList
	if err := c.ListAll(ctx, &policies, &bindings); kube.IgnoreAbsent(err) != nil {
		return nil, nil, kube.IgnoreForbidden(err)
	}
	for _, o := range manifests.Policies() {
		ours, isPolicy := o.(*admissionv1.ValidatingAdmissionPolicy)
		if !isPolicy {
			continue
		}
		live, _ := lo.Find(policies.Items, func(p admissionv1.ValidatingAdmissionPolicy) bool { return p.Name == ours.Name })
		switch {
		case !denies(live.Spec) || !slices.ContainsFunc(bindings.Items, func(b admissionv1.ValidatingAdmissionPolicyBinding) bool { return binds(b, ours.Name) }):
			weak = append(weak, ours.Name)
		case !equality.Semantic.DeepEqual(live.Spec, ours.Spec):
			changed = append(changed, ours.Name)
		}
	}
	return weak, changed, nil
}

// denies reports whether a policy of any version may deny what it matches.
func denies(p admissionv1.ValidatingAdmissionPolicySpec) bool {
	return ptr.Deref(p.FailurePolicy, admissionv1.Fail) == admissionv1.Fail && len(p.Validations) > 0 && len(p.MatchConditions) < 2 &&
		len(lo.FromPtr(p.MatchConstraints).ExcludeResourceRules) == 0
}

// binds reports whether a binding makes the API server deny all that the policy denies.
func binds(b admissionv1.ValidatingAdmissionPolicyBinding, policy string) bool {
	return b.Spec.PolicyName == policy && b.Spec.MatchResources == nil && b.Spec.ParamRef == nil &&
		slices.Contains(b.Spec.ValidationActions, admissionv1.Deny) && b.DeletionTimestamp.IsZero()
}
