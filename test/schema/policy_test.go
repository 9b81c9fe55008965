package schema_test

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// evaluator decides by a policy, as an API server does.
func evaluator(t *testing.T, p *admissionv1.ValidatingAdmissionPolicy) validating.Validator {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	var variables []cel.NamedExpressionAccessor
	for _, v := range p.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	with := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	compiler.CompileAndStoreVariables(variables, with, environment.StoredExpressions)
	var conditions, validations, messages []cel.ExpressionAccessor
	for i := range p.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i]))
	}
	for _, v := range p.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason})
		messages = append(messages, &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression})
	}
	compile := func(all []cel.ExpressionAccessor) cel.ConditionEvaluator {
		return compiler.CompileCondition(all, with, environment.StoredExpressions)
	}
	return validating.NewValidator(compile(validations), matchconditions.NewMatcher(compile(conditions), p.Spec.FailurePolicy, "policy", "validate", p.Name), compile(nil), compile(messages), p.Spec.FailurePolicy, nil)
}

// An older command takes the level from what it applies, and is refused. Nobody else is: neither who unpeers, nor controllers and
// administrators, nor a command that goes back on purpose.
func TestLevelPolicy(t *testing.T) {
	account, _ := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
	var policy validating.Validator
	for _, o := range account {
		if p, is := o.(*admissionv1.ValidatingAdmissionPolicy); is && p.Name == manifests.LevelPolicy {
			policy = evaluator(t, p)
		}
	}
	type annotations map[string]string
	const level, lowered, version = v1alpha1.AnnotationLevel, v1alpha1.AnnotationLowered, v1alpha1.AnnotationVersion
	for _, tt := range []struct {
		name          string
		before, after annotations
		refused       bool
	}{
		{"a command of v0.1.0", annotations{version: "v0.2.0", level: "2"}, annotations{version: "v0.1.0"}, true},
		{"one that leaves no annotation", annotations{version: "v0.2.0", level: "2"}, nil, true},
		{"a command of a lower level", annotations{version: "v0.12.0", level: "10"}, annotations{version: "v0.11.0", level: "9"}, true},
		{"who has lowered it before is none that does now", annotations{version: "v0.2.0", level: "2", lowered: "3"}, annotations{version: "v0.1.0", lowered: "3"}, true},
		{"what is no number", annotations{version: "v0.2.0", level: "2"}, annotations{level: "x"}, true},
		{"the same command", annotations{version: "v0.2.0", level: "2"}, annotations{version: "v0.2.0", level: "2"}, false},
		{"a newer command", annotations{version: "v0.2.0", level: "2"}, annotations{version: "v0.3.0", level: "3"}, false},
		{"an administrator", annotations{version: "v0.2.0", level: "2"}, annotations{version: "v0.2.0", level: "2", "mine": "x"}, false},
		{"who goes back on purpose", annotations{version: "v0.2.0", level: "2"}, annotations{version: "v0.1.0", lowered: "2"}, false},
		{"who goes back on purpose, from a higher level", annotations{level: "10"}, annotations{level: "9", lowered: "10"}, false},
		{"unpeer of v0.1.0", annotations{version: "v0.2.0", level: "2", "controller-gen": "x"}, annotations{version: manifests.BeingRemoved}, false},
		{"what was never of a level", annotations{version: "v0.1.0"}, annotations{version: "v0.1.0"}, false},
		{"what has no annotations", nil, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			object := func(a annotations) *unstructured.Unstructured {
				u := manifests.Reference("apps/v1", "DaemonSet", v1alpha1.Namespace, v1alpha1.NodeAgentName)
				if a != nil {
					u.SetAnnotations(a)
				}
				return u
			}
			before, after := object(tt.before), object(tt.after)
			gvk, gvr := after.GroupVersionKind(), after.GroupVersionKind().GroupVersion().WithResource("daemonsets")
			request := &admission.VersionedAttributes{
				Attributes:    admission.NewAttributesRecord(after, before, gvk, after.GetNamespace(), after.GetName(), gvr, "", admission.Update, &metav1.PatchOptions{}, false, nil),
				VersionedKind: gvk, VersionedObject: admission.NewLazyObject(after), VersionedOldObject: admission.NewLazyObject(before),
			}
			decisions := policy.Validate(t.Context(), gvr, request, nil, nil, celconfig.RuntimeCELCostBudget, nil).Decisions
			refused, said := false, ""
			for _, d := range decisions {
				if d.Action == validating.ActionDeny {
					refused, said = true, d.Message
				}
			}
			if refused != tt.refused {
				t.Fatalf("refused: %t, %s", refused, said)
			}
			if refused && tt.after[level] != "x" && (!strings.Contains(said, "older than liqonet in the cluster") || !strings.Contains(said, tt.before[version])) {
				t.Errorf("it says %q", said)
			}
		})
	}
}
