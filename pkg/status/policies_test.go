package status

import (
	"context"
	"slices"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Status names each policy that has no effect, whatever is missing.
func TestWeakPolicies(t *testing.T) {
	all := []string{"liqonet-gateway", "liqonet-node"}
	one := all[1:]
	for what, tt := range map[string]struct {
		policy  func(*admissionv1.ValidatingAdmissionPolicy) bool
		binding func(*admissionv1.ValidatingAdmissionPolicyBinding) bool
		want    []string
		// changed is set if only policies of the same version do not allow it.
		changed bool
	}{
		"complete":   {},
		"no policy":  {policy: func(*admissionv1.ValidatingAdmissionPolicy) bool { return false }, want: one},
		"no binding": {binding: func(*admissionv1.ValidatingAdmissionPolicyBinding) bool { return false }, want: one},
		"errors allow": {policy: func(p *admissionv1.ValidatingAdmissionPolicy) bool {
			p.Spec.FailurePolicy = new(admissionv1.Ignore)
			return true
		}, want: one},
		"no rules": {policy: func(p *admissionv1.ValidatingAdmissionPolicy) bool { p.Spec.Validations = nil; return true }, want: one},
		"another condition": {policy: func(p *admissionv1.ValidatingAdmissionPolicy) bool {
			p.Spec.MatchConditions = append(p.Spec.MatchConditions, admissionv1.MatchCondition{Name: "never", Expression: "false"})
			return true
		}, want: one},
		"denies nothing": {policy: func(p *admissionv1.ValidatingAdmissionPolicy) bool {
			p.Spec.Validations = []admissionv1.Validation{{Expression: "true"}}
			return true
		}, want: one, changed: true},
		"matches nobody": {policy: func(p *admissionv1.ValidatingAdmissionPolicy) bool {
			p.Spec.MatchConditions[0].Expression = "false"
			return true
		}, want: one, changed: true},
		"matches no namespace": {policy: func(p *admissionv1.ValidatingAdmissionPolicy) bool {
			p.Spec.MatchConstraints.NamespaceSelector.MatchLabels = map[string]string{"x": "y"}
			return true
		}, want: one, changed: true},
		"leaves some objects out": {policy: func(p *admissionv1.ValidatingAdmissionPolicy) bool {
			p.Spec.MatchConstraints.ExcludeResourceRules = p.Spec.MatchConstraints.ResourceRules[:1]
			return true
		}, want: one},
		"audits only": {binding: func(b *admissionv1.ValidatingAdmissionPolicyBinding) bool {
			b.Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Audit}
			return true
		}, want: one},
		"some objects": {binding: func(b *admissionv1.ValidatingAdmissionPolicyBinding) bool {
			b.Spec.MatchResources = &admissionv1.MatchResources{}
			return true
		}, want: one},
		"another policy's": {binding: func(b *admissionv1.ValidatingAdmissionPolicyBinding) bool { b.Spec.PolicyName = "x"; return true }, want: one},
		"with parameters": {binding: func(b *admissionv1.ValidatingAdmissionPolicyBinding) bool {
			b.Spec.ParamRef = &admissionv1.ParamRef{Name: "x", ParameterNotFoundAction: new(admissionv1.AllowAction), Selector: &metav1.LabelSelector{}}
			return true
		}, want: one},
	} {
		var objs []client.Object
		for _, o := range manifests.Policies() {
			keep := true
			switch o := o.(type) {
			case *admissionv1.ValidatingAdmissionPolicy:
				keep = tt.policy == nil || o.Name != one[0] || tt.policy(o)
			case *admissionv1.ValidatingAdmissionPolicyBinding:
				keep = tt.binding == nil || o.Name != one[0] || tt.binding(o)
			}
			if keep {
				objs = append(objs, o.(client.Object))
			}
		}
		weak, changed, err := WeakPolicies(t.Context(), kubetest.NewCluster(t, "a", interceptor.Funcs{}, objs...), false)
		kit.NoError(t, err)
		kit.Check(t, what, slices.Concat(weak, changed), tt.want)
		kit.ErrorIf(t, len(changed) > 0 != tt.changed, "%s: changed are %v", what, changed)
	}
	weak, _, err := WeakPolicies(t.Context(), kubetest.NewCluster(t, "a", interceptor.Funcs{}), false)
	kit.NoError(t, err)
	kit.Check(t, "nothing", weak, all)
	weak, _, err = WeakPolicies(t.Context(), kubetest.NewCluster(t, "a", interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return apierrors.NewNotFound(schema.GroupResource{}, "")
		},
	}), false)
	kit.NoError(t, err)
	kit.Check(t, "a server without the API", weak, all)
}

// Policies that differ are no news while agents have another version: theirs may differ.
func TestChangedPoliciesOfAnotherVersion(t *testing.T) {
	for version, want := range map[string][]string{"v2": {"x"}, "": {"x"}, "v1": nil} {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l", Annotations: map[string]string{v1alpha1.AnnotationVersion: version}}}
		beats := Heartbeats{}
		beats.Observe([]*coordinationv1.Lease{l}, time.Now())
		kit.Check(t, "agents of version "+version, beats.ofVersion("v2", []string{"x"}), want)
	}
}
