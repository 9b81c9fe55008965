package manifests

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// Object is any object of an API, as clients have it.
type Object interface {
	metav1.Object
	runtime.Object
}

// ToApply turns an object into what server-side apply is given: without status and
// without fields that only the API server sets.
func ToApply(obj Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("convert %T %s: %w", obj, obj.GetName(), err)
	}
	u := &unstructured.Unstructured{Object: content}
	unstructured.RemoveNestedField(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "resourceVersion")
	return u, nil
}

// TranslationToApply is what the CLI writes into the status of the Peering of that
// name.
func TranslationToApply(peering string, t *v1alpha1.Translation) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(t)
	if err != nil {
		return nil, fmt.Errorf("convert the translation of Peering %s: %w", peering, err)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Peering", "metadata": map[string]any{"name": peering},
		"status": map[string]any{"translation": content},
	}}, nil
}
