package schema_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields/managedfieldstest"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

// peerings has one Peering, and notes who owns which part of it, as an API server does.
func peerings(t *testing.T) managedfieldstest.TestFieldManager {
	t.Helper()
	converter := kit.Must(fakeapi.OwnTypes())(t)
	return managedfieldstest.NewTestFieldManager(converter, v1alpha1.GroupVersion.WithKind("Peering"))
}

// live is the Peering as it is stored.
func live(t *testing.T, fields managedfieldstest.TestFieldManager) (p v1alpha1.Peering) {
	t.Helper()
	kit.NoError(t, json.Unmarshal(encode(t, fields.Live()), &p))
	return p
}

// Gateways get the conditions that a command has written without a conflict, whichever of them is the first, and what none of them
// applies any more is gone: nobody else owns a part of it. The rules are an API server's own.
func TestGatewaysTakeOverConditions(t *testing.T) {
	for _, planes := range []int32{1, 2} {
		for first := range planes {
			t.Run(fmt.Sprintf("%d planes, %d is first", planes, first), func(t *testing.T) {
				fields := peerings(t)
				apply := func(manager string, status v1alpha1.PeeringStatus) {
					t.Helper()
					content := kit.Must(runtime.DefaultUnstructuredConverter.ToUnstructured(&status))(t)
					u := &unstructured.Unstructured{Object: map[string]any{"status": content}}
					u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Peering"))
					kit.NoError(t, fields.Apply(u, manager, true))
				}
				look := func() (types []string) {
					t.Helper()
					for _, c := range live(t, fields).Status.Conditions {
						kit.ErrorIf(t, c.Status == "" || c.Reason == "", "a part of a condition is left: %+v", c)
						types = append(types, c.Type)
					}
					return types
				}
				p := &v1alpha1.Peering{Spec: v1alpha1.PeeringSpec{Planes: make([]v1alpha1.Plane, planes)}}
				pending := p.PendingConditions()
				apply(v1alpha1.GatewayManager(0), v1alpha1.PeeringStatus{Conditions: pending})
				said := slices.Clone(pending)
				for i := range said {
					said[i].Status, said[i].Reason, said[i].Message, said[i].ObservedGeneration = metav1.ConditionTrue, "Said", "said", 1
				}
				apply(v1alpha1.GatewayManager(first), v1alpha1.PeeringStatus{Planes: []v1alpha1.PlaneStatus{{Index: first}}, Conditions: said})
				for plane := range planes {
					if plane != first {
						apply(v1alpha1.GatewayManager(plane), v1alpha1.PeeringStatus{Planes: []v1alpha1.PlaneStatus{{Index: plane}}})
					}
				}
				all := []string{"Ready", "Connected", "Degraded", "KeysFresh", "Redundant"}
				kit.Check(t, "look", look(), all[:3+planes])
				// As with one plane less.
				apply(v1alpha1.GatewayManager(first), v1alpha1.PeeringStatus{Planes: []v1alpha1.PlaneStatus{{Index: first}}, Conditions: said[:4]})
				kit.Check(t, "look", look(), all[:4])
			})
		}
	}
}

// A label or a toleration that a command applies no more is gone, also where somebody else had applied it too, and so is the last one.
func TestPlacementIsTakenBack(t *testing.T) {
	fields := peerings(t)
	managers := []string{"somebody", v1alpha1.FieldManager}
	for _, want := range []v1alpha1.GatewayPlacement{
		{NodeSelector: map[string]string{"pool": "gateways", "zone": "a"}, Tolerations: []corev1.Toleration{{Key: "spot", Effect: "NoExecute"}, {Key: "dedicated"}}},
		{NodeSelector: map[string]string{"pool": "gateways"}, Tolerations: []corev1.Toleration{{Key: "spot"}}},
		{NodeSelector: map[string]string{}, Tolerations: []corev1.Toleration{}},
	} {
		u := manifests.ToApply(manifests.Peering("b", v1alpha1.PeeringSpec{Gateways: &want}))
		for _, manager := range managers {
			kit.NoError(t, fields.Apply(u, manager, true))
		}
		managers = []string{v1alpha1.FieldManager}
		kit.Check(t, "Gateways", live(t, fields).Spec.Gateways, &want)
	}
}

// An apply that takes the last item of a list with keys removes the field. If the field were required, a command could
// not roll back to the empty list.
func TestListsWithKeysMayBeAbsent(t *testing.T) {
	lists := 0
	var check func(path string, s *apiextensionsv1.JSONSchemaProps)
	check = func(path string, s *apiextensionsv1.JSONSchemaProps) {
		if s.Items != nil {
			check(path+"[]", s.Items.Schema)
		}
		for name, field := range s.Properties {
			check(path+"."+name, &field)
			if field.XListType == nil || *field.XListType != "map" {
				continue
			}
			if lists++; slices.Contains(s.Required, name) {
				t.Errorf("%s.%s has keys, and is required", path, name)
			}
		}
	}
	for _, crd := range manifests.CRDs() {
		check(crd.Spec.Names.Kind, crd.Spec.Versions[0].Schema.OpenAPIV3Schema)
	}
	if lists < 6 {
		t.Errorf("only %d lists with keys", lists)
	}
}
