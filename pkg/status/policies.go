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
// none if the user may not read them. If withServices is set, those for the exchange of services are among them.
func WeakPolicies(ctx context.Context, c *kube.Cluster, withServices bool) (weak, changed []string, err error) {
	var policies admissionv1.ValidatingAdmissionPolicyList
	var bindings admissionv1.ValidatingAdmissionPolicyBindingList
	if err := c.ListAll(ctx, &policies, &bindings); kube.IgnoreAbsent(err) != nil {
		return nil, nil, kube.IgnoreForbidden(err)
	}
	wanted := manifests.Policies()
	if withServices {
		wanted = append(wanted, manifests.ServicesPolicies()...)
	}
	for i, o := range wanted {
		ours, isPolicy := o.(*admissionv1.ValidatingAdmissionPolicy)
		if !isPolicy {
			continue
		}
		binding := wanted[i+1].(*admissionv1.ValidatingAdmissionPolicyBinding) // it follows its policy
		live, _ := lo.Find(policies.Items, func(p admissionv1.ValidatingAdmissionPolicy) bool { return p.Name == ours.Name })
		switch {
		case !denies(live.Spec) || !slices.ContainsFunc(bindings.Items, func(b admissionv1.ValidatingAdmissionPolicyBinding) bool { return binds(b, binding) }):
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

// binds reports whether a binding makes the API server deny all that the policy of our binding denies.
func binds(b admissionv1.ValidatingAdmissionPolicyBinding, ours *admissionv1.ValidatingAdmissionPolicyBinding) bool {
	return b.Spec.PolicyName == ours.Spec.PolicyName && b.Spec.MatchResources == nil && equality.Semantic.DeepEqual(b.Spec.ParamRef, ours.Spec.ParamRef) &&
		slices.Contains(b.Spec.ValidationActions, admissionv1.Deny) && b.DeletionTimestamp.IsZero()
}
