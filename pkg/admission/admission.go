// Package admission says what a cluster's own rules do to our objects: they refuse them, or change them. Pure.
//
// Out of scope: asking the API server (pkg/kube).
package admission

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// Hint returns what has to change so that the cluster accepts a request that its own rules refused, empty if the message is not about such
// rules. They also apply to administrators, so another user is no help.
func Hint(message string) string {
	has := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(message, text) })
	}
	const exempt = "exempt namespace " + v1alpha1.Namespace + " from it"
	switch {
	case has("security context constraint"):
		return "allow it: oc adm policy add-scc-to-group privileged system:serviceaccounts:" + v1alpha1.Namespace
	case has("autogke-"):
		return "use a cluster of GKE's Standard mode: Autopilot forbids what node agents need, and allows no exemption"
	case has("status unknown for quota", "resource quota evaluation timed out"):
		return "try again: the cluster has not counted yet what its quotas limit; if that stays, check that kube-controller-manager runs"
	case has("exceeded quota", "failed quota", "insufficient quota"):
		return "raise the quota, or " + exempt + lo.Ternary(has("limits.", "requests.", "cpu", "memory"), ": "+manifests.PodNeeds, "")
	case has(" per Container is ", " per Pod is ", "limit to request ratio"):
		return "change the LimitRange, or " + exempt + ": " + manifests.PodNeeds
	case has("failed calling webhook"):
		return "repair the admission webhook that does not answer, or " + exempt
	case has("violates PodSecurity"):
		return "have the namespace " + v1alpha1.Namespace + " keep its label pod-security.kubernetes.io/enforce=privileged, or exempt it: agents need the host network and NET_ADMIN"
	case has("denied request:", "denied the request"):
		return "a policy of the cluster refuses it to everybody: " + exempt + ", or meet it, for example with an image that it allows (--agent-image)"
	}
	return ""
}

// Same reports whether two versions of an object differ only in what every write changes.
func Same(a, b *unstructured.Unstructured) bool {
	return reflect.DeepEqual(content(a), content(b))
}

func content(u *unstructured.Unstructured) map[string]any {
	out := u.DeepCopy()
	out.SetManagedFields(nil)
	out.SetResourceVersion("")
	out.SetGeneration(0)
	delete(out.Object, "status") // controllers write it at any time
	unstructured.RemoveNestedField(out.Object, "metadata", "annotations", appsv1.DeprecatedTemplateGeneration)
	return out.Object
}

// maxFields is how many fields are named.
const maxFields = 5

// Differences returns the first fields in which a live object differs from what would be made of it, with the managers that have set them. A
// field without one was set by admission, or is new.
func Differences(live, made *unstructured.Unstructured) []string {
	out := lo.Map(differences(content(live), content(made), nil), func(path []string, _ int) string {
		field := strings.Join(path, ".")
		if managers := foreignManagers(live, path); len(managers) > 0 {
			return fmt.Sprintf("%s was set by %s", field, strings.Join(managers, " and "))
		}
		return field + " differs"
	})
	if more := len(out) - maxFields; more > 0 {
		out = append(out[:maxFields], fmt.Sprintf("%d more fields differ", more))
	}
	return out
}

// foreignManagers returns the managers other than ours that have set a field, or a part of it.
func foreignManagers(live *unstructured.Unstructured, path []string) (out []string) {
	for _, entry := range live.GetManagedFields() {
		set := &fieldpath.Set{}
		if entry.FieldsV1 == nil || strings.HasPrefix(entry.Manager, v1alpha1.FieldManager) || set.FromJSON(bytes.NewReader(entry.FieldsV1.Raw)) != nil {
			continue
		}
		for _, name := range path[:len(path)-1] {
			set = set.WithPrefix(fieldpath.PathElement{FieldName: &name})
		}
		last := fieldpath.PathElement{FieldName: &path[len(path)-1]}
		if set.Members.Has(last) || !set.WithPrefix(last).Empty() {
			out = append(out, strconv.Quote(entry.Manager))
		}
	}
	return out
}

// differences returns the paths of the fields in which two objects differ. Lists are compared as a whole.
func differences(a, b map[string]any, path []string) (out [][]string) {
	keys := slices.Compact(slices.Sorted(slices.Values(slices.Concat(lo.Keys(a), lo.Keys(b)))))
	for _, k := range keys {
		inner := append(slices.Clone(path), k)
		x, isMap := a[k].(map[string]any)
		if y, both := b[k].(map[string]any); isMap && both {
			out = append(out, differences(x, y, inner)...)
		} else if !reflect.DeepEqual(a[k], b[k]) {
			out = append(out, inner)
		}
	}
	return out
}
