// Package admission says what a cluster's own rules do to our objects: they refuse them, or change them. Pure.
//
// Out of scope: asking the API server (pkg/kube).
package admission

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/samber/lo"
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
	case has("exceeded quota", "failed quota", "insufficient quota"):
		return "raise the quota, or " + exempt + ": " + manifests.PodNeeds
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
	return out.Object
}

// ForeignFields returns the fields in which a live object differs from what we would make of it, and which others have set,
// with their managers.
func ForeignFields(live, made *unstructured.Unstructured) (out []string) {
	for _, path := range differences(content(live), content(made), nil) {
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
				out = append(out, fmt.Sprintf("%s was set by %q", strings.Join(path, "."), entry.Manager))
			}
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
