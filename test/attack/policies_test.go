package attack_test

import (
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/apiserver"
	"github.com/liqonet/liqonet/test/kit"
)

// What a real API server stores of our policies is what status compares with them. So each change of what they match or
// deny is named, also one that somebody makes while agents run.
func TestAttackPolicies(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	s := apiserver.Start(t)
	weak := func() []string {
		weak, changed, err := status.WeakPolicies(t.Context(), &kube.Cluster{Name: "a", Client: s.Admin}, false)
		kit.NoError(t, err)
		return slices.Concat(weak, changed)
	}
	for what, change := range map[string]func(*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding){
		"nothing": nil,
		"a rule that allows everything": func(p *admissionv1.ValidatingAdmissionPolicy, _ *admissionv1.ValidatingAdmissionPolicyBinding) {
			p.Spec.Validations = []admissionv1.Validation{{Expression: "true"}}
		},
		"a condition that nobody meets": func(p *admissionv1.ValidatingAdmissionPolicy, _ *admissionv1.ValidatingAdmissionPolicyBinding) {
			p.Spec.MatchConditions[0].Expression = "false"
		},
		"one condition more": func(p *admissionv1.ValidatingAdmissionPolicy, _ *admissionv1.ValidatingAdmissionPolicyBinding) {
			p.Spec.MatchConditions = append(p.Spec.MatchConditions, admissionv1.MatchCondition{Name: "never", Expression: "false"})
		},
		"other resources": func(p *admissionv1.ValidatingAdmissionPolicy, _ *admissionv1.ValidatingAdmissionPolicyBinding) {
			p.Spec.MatchConstraints.ResourceRules[0].Resources = []string{"x"}
		},
		"resources that are left out": func(p *admissionv1.ValidatingAdmissionPolicy, _ *admissionv1.ValidatingAdmissionPolicyBinding) {
			p.Spec.MatchConstraints.ExcludeResourceRules = p.Spec.MatchConstraints.ResourceRules
		},
		"a selector of objects": func(p *admissionv1.ValidatingAdmissionPolicy, _ *admissionv1.ValidatingAdmissionPolicyBinding) {
			p.Spec.MatchConstraints.ObjectSelector.MatchLabels = map[string]string{"x": "y"}
		},
		"errors that allow": func(p *admissionv1.ValidatingAdmissionPolicy, _ *admissionv1.ValidatingAdmissionPolicyBinding) {
			p.Spec.FailurePolicy = new(admissionv1.Ignore)
		},
		"a binding that warns": func(_ *admissionv1.ValidatingAdmissionPolicy, b *admissionv1.ValidatingAdmissionPolicyBinding) {
			b.Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Warn}
		},
		"a binding for some namespaces": func(_ *admissionv1.ValidatingAdmissionPolicy, b *admissionv1.ValidatingAdmissionPolicyBinding) {
			b.Spec.MatchResources = &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"x": "y"}}}
		},
		"no policy": func(p *admissionv1.ValidatingAdmissionPolicy, _ *admissionv1.ValidatingAdmissionPolicyBinding) {
			p.Name = ""
		},
		"no binding": func(_ *admissionv1.ValidatingAdmissionPolicy, b *admissionv1.ValidatingAdmissionPolicyBinding) {
			b.Name = ""
		},
	} {
		var want []string
		var p *admissionv1.ValidatingAdmissionPolicy
		var b *admissionv1.ValidatingAdmissionPolicyBinding
		for _, o := range manifests.Policies() {
			obj := o.(client.Object)
			kit.NoError(t, client.IgnoreNotFound(s.Admin.Delete(t.Context(), obj)))
			obj.SetResourceVersion("")
			kit.NoError(t, s.Admin.Create(t.Context(), obj))
			if created, is := o.(*admissionv1.ValidatingAdmissionPolicy); is && created.Name == v1alpha1.NodeAgentName {
				p = created
			} else if created, is := o.(*admissionv1.ValidatingAdmissionPolicyBinding); is && created.Name == v1alpha1.NodeAgentName {
				b = created
			}
		}
		if change != nil {
			want = []string{v1alpha1.NodeAgentName}
			of := [2]client.Object{p, b}
			was := [2]client.Object{p.DeepCopy(), b.DeepCopy()}
			change(p, b)
			for i, o := range of {
				if o.GetName() == "" {
					kit.NoError(t, s.Admin.Delete(t.Context(), was[i]))
				} else {
					kit.NoError(t, s.Admin.Update(t.Context(), o))
				}
			}
		}
		kit.Check(t, what, weak(), want)
	}
}
