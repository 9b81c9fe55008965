package fakeapi

import (
	"context"
	"encoding/json"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// WithUIDs gives each object a UID that is made by applying it, which cannot be changed, as an API server does. The fake client gives none.
func WithUIDs(c client.WithWatch) client.WithWatch {
	var mu sync.Mutex
	identified := func(ctx context.Context, kind runtime.Object, name, namespace string) (*unstructured.Unstructured, error) {
		there := &unstructured.Unstructured{}
		there.SetGroupVersionKind(kind.GetObjectKind().GroupVersionKind())
		err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, there)
		if err == nil && there.GetUID() == "" {
			there.SetUID(uuid.NewUUID())
			err = c.Update(ctx, there)
		}
		return there, err
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			mu.Lock()
			defer mu.Unlock()
			u := &unstructured.Unstructured{}
			if err := copyInto(obj, u); err != nil {
				return err
			}
			there, err := identified(ctx, u, u.GetName(), u.GetNamespace())
			if err == nil && u.GetUID() != "" && u.GetUID() != there.GetUID() {
				return apierrors.NewInvalid(u.GroupVersionKind().GroupKind(), u.GetName(), field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), u.GetUID(), "field is immutable")})
			}
			if err := c.Apply(ctx, obj, opts...); err != nil {
				return err
			}
			there, err = identified(ctx, u, u.GetName(), u.GetNamespace())
			if err != nil {
				return err
			}
			return copyInto(there, obj)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
			mu.Lock()
			defer mu.Unlock()
			if err := c.Patch(ctx, obj, p, opts...); err != nil || p.Type() != types.ApplyPatchType {
				return err
			}
			kind, err := c.GroupVersionKindFor(obj)
			if err != nil {
				return err
			}
			obj.GetObjectKind().SetGroupVersionKind(kind)
			there, err := identified(ctx, obj, obj.GetName(), obj.GetNamespace())
			obj.SetUID(there.GetUID())
			return err
		},
	})
}

func copyInto(from, to any) error {
	raw, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, to)
}
