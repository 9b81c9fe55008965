package attack_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	celgo "github.com/google/cel-go/cel"
	"github.com/samber/lo"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
)

// expression is one of a policy, for an API server's compiler.
type expression struct {
	name, text string
	returns    []*celgo.Type
}

func (e expression) GetName() string            { return e.name }
func (e expression) GetExpression() string      { return e.text }
func (e expression) ReturnTypes() []*celgo.Type { return e.returns }

// asStored returns an object as an API server has it.
func asStored(t *testing.T, obj client.Object) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	kit.NoError(t, json.Unmarshal(kit.Must(json.Marshal(obj))(t), &u.Object))
	return u
}

// admit evaluates the policies for a new object, and returns what the most expensive one costs, in the units of an API server's
// budget. It ends the test if a policy denies the object, or exceeds a limit.
func admit(t *testing.T, account string, obj client.Object, resource schema.GroupVersionResource, ledger *v1alpha1.ClusterNetwork) (most int64) {
	t.Helper()
	by := &user.DefaultInfo{Name: "system:serviceaccount:" + v1alpha1.Namespace + ":" + account}
	attributes := admission.NewAttributesRecord(asStored(t, obj), nil, schema.GroupVersionKind{}, obj.GetNamespace(), obj.GetName(), resource, "", admission.Create, nil, false, by)
	request := cel.CreateAdmissionRequest(attributes, metav1.GroupVersionResource(resource), metav1.GroupVersionKind{})
	for _, o := range manifests.ServicesPolicies() {
		p, isPolicy := o.(*admissionv1.ValidatingAdmissionPolicy)
		if !isPolicy || !slices.ContainsFunc(p.Spec.MatchConstraints.ResourceRules, func(r admissionv1.NamedRuleWithOperations) bool {
			return slices.Contains(r.Resources, resource.Resource) && slices.Contains(r.APIGroups, resource.Group)
		}) {
			continue
		}
		declared, bound := cel.OptionalVariableDeclarations{}, cel.OptionalVariableBindings{}
		if p.Spec.ParamKind != nil {
			declared.HasParams, bound.VersionedParams = true, asStored(t, ledger)
		}
		compiler := kit.Must(cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())))(t)
		for _, v := range p.Spec.Variables {
			compiler.CompileAndStoreVariable(expression{v.Name, v.Expression, []*celgo.Type{celgo.AnyType, celgo.DynType}}, declared, environment.StoredExpressions)
		}
		validations := lo.Map(p.Spec.Validations, func(v admissionv1.Validation, _ int) cel.ExpressionAccessor {
			return expression{"", v.Expression, []*celgo.Type{celgo.BoolType}}
		})
		versioned := &admission.VersionedAttributes{Attributes: attributes}
		versioned.VersionedObject.Set(attributes.GetObject())
		results, left, err := compiler.CompileCondition(validations, declared, environment.StoredExpressions).ForInput(t.Context(), versioned, request, bound, nil, celconfig.RuntimeCELCostBudget)
		kit.NoError(t, err, "%s", p.Name)
		for i, r := range results {
			kit.FatalIf(t, r.Error != nil || r.EvalResult.Value() != true, "%s: %s: %v", p.Name, p.Spec.Validations[i].Message, r.Error)
		}
		most = max(most, celconfig.RuntimeCELCostBudget-left)
	}
	kit.FatalIf(t, most == 0, "no policy is for %s", resource.Resource)
	return most
}

// The largest objects that agents write are admitted within the API server's limits, with as many peers and ranges as a ledger may have.
// All addresses are in the last range.
func TestPoliciesAreWithinTheBudget(t *testing.T) {
	t.Parallel()
	const peering, last = "p510", 510
	x := &exchange{owner: manifests.OwnerReferences(peering, "u")[0]}
	address := func(i int) string { return fmt.Sprintf("172.30.%d.%d", 192+i/250, 1+i%250) }
	slice := x.slice(fmt.Sprint("id", last), address(0), func(s *discoveryv1.EndpointSlice) {
		for i := range v1alpha1.MaxSliceEndpoints - 1 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address(1 + i)}})
		}
	})
	received := x.received(peering+".shop.web", address(0), func(r *v1alpha1.ReceivedService) {
		r.Labels[v1alpha1.LabelPeering], r.Spec.Slices = peering, nil
		for s := range v1alpha1.MaxRecordEndpoints / v1alpha1.MaxSliceEndpoints {
			of := v1alpha1.RecordSlice{ID: fmt.Sprint("s", s)}
			for e := range v1alpha1.MaxSliceEndpoints {
				of.Endpoints = append(of.Endpoints, v1alpha1.RecordEndpoint{Address: v1alpha1.IP{Addr: addr(address(s*v1alpha1.MaxSliceEndpoints + e))}})
			}
			r.Spec.Slices = append(r.Spec.Slices, of)
		}
	})
	for _, ranges := range []int{2, 64} {
		ledger := ledgerOf(last+1, ranges)
		for _, tt := range []struct {
			what, account string
			obj           client.Object
			resource      schema.GroupVersionResource
		}{
			{"a slice with 100 endpoints", v1alpha1.ServicesName, slice, discoveryv1.SchemeGroupVersion.WithResource("endpointslices")},
			{"a peer's service with 1000 endpoints", manifests.Gateway{Peering: peering}.Name(), received, v1alpha1.GroupVersion.WithResource("receivedservices")},
		} {
			begin := time.Now()
			cost := admit(t, tt.account, tt.obj, tt.resource, ledger)
			t.Logf("%s, and %d peers with %d ranges each: %d of %d units, compiled and evaluated in %s", tt.what, last+1, ranges, cost, celconfig.RuntimeCELCostBudget, time.Since(begin))
		}
	}
}
