package fakeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/applyconfigurations"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// API is the fake client with what a real API server does and the fake client does not, as far as commands
// rely on it: test/beliefs compares them. What becomes of a namespace or a definition that is deleted
// is done at once. The garbage collector looks only when CollectGarbage is called.
type API struct {
	client.WithWatch
	store *store
}

// Changes is how many changes there were of any object.
func (a *API) Changes() int64 {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	return a.store.changes
}

// LastChange is the number of the last change of an object of these resources.
func (a *API) LastChange(resources ...string) (last int64) {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	for gvr, number := range a.store.changed {
		if slices.Contains(resources, gvr.Resource) {
			last = max(last, number)
		}
	}
	return last
}

// Each is called with all objects as they are at one moment. It must not change them.
func (a *API) Each(do func(metav1.Object)) {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	for _, obj := range a.store.objects {
		do(obj)
	}
}

// NewClient returns the API of a cluster that has the objects.
func NewClient(objs ...client.Object) (*API, error) {
	own, err := OwnTypes()
	if err != nil {
		return nil, err
	}
	scheme, err := knownKinds()
	if err != nil {
		return nil, err
	}
	extended, err := Scheme() // the fake client adds kinds that it does not know to its own, under its own lock
	if err != nil {
		return nil, err
	}
	s := &store{
		ObjectTracker: testing.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder()), scheme: scheme, version: firstVersion,
		objects: map[key]metav1.Object{}, readings: map[form]reading{}, changed: map[schema.GroupVersionResource]int64{}, ended: map[string]bool{}, kinds: map[schema.GroupVersionKind]*runtime.Scheme{},
		converter: converters{own, kubernetesTypes(), managedfields.NewDeducedTypeConverter()},
	}
	base := fake.NewClientBuilder().WithScheme(extended).WithObjectTracker(s).WithObjects(objs...).
		WithStatusSubresource(&v1alpha1.Peering{}, &v1alpha1.NodeNetwork{}, &mcs.ServiceExport{}, &mcs.ServiceImport{}).WithReturnManagedFields().
		WithIndex(&corev1.Event{}, "involvedObject.kind", func(o client.Object) []string { return []string{o.(*corev1.Event).InvolvedObject.Kind} }).Build()
	var writing sync.Mutex // what was checked holds until what it was checked for is done
	written := func(ctx context.Context, c client.Client, obj client.Object, uid types.UID, write func() error) error {
		writing.Lock()
		defer writing.Unlock()
		if err := s.checkUID(obj, uid); err != nil {
			return err
		}
		if err := write(); err != nil {
			return err
		}
		if _, isUntyped := obj.(runtime.Unstructured); !isUntyped {
			return nil // the store has filled it in
		}
		return client.IgnoreNotFound(s.get(ctx, c, client.ObjectKeyFromObject(obj), obj)) // the last finalizer may have gone
	}
	return &API{store: s, WithWatch: interceptor.NewClient(base, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, at client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			return s.get(ctx, c, at, obj, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return s.list(ctx, c, list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return written(ctx, c, obj, "", func() error { return c.Create(ctx, obj, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			return written(ctx, c, obj, obj.GetUID(), func() error { return s.update(ctx, c, obj, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			return written(ctx, c, obj, obj.GetUID(), func() error { return c.SubResource(sub).Update(ctx, obj, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			writing.Lock()
			defer writing.Unlock()
			return c.Patch(ctx, obj, patch, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			writing.Lock()
			defer writing.Unlock()
			if err := c.Get(ctx, client.ObjectKeyFromObject(obj), obj.DeepCopyObject().(client.Object)); err != nil {
				return err // also where one is applied
			}
			return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			u, err := applied(obj)
			if err != nil {
				return err
			}
			o := (&client.ApplyOptions{}).ApplyOptions(opts)
			if len(o.DryRun) > 0 {
				return dryApply(ctx, c, obj, u, o)
			}
			writing.Lock()
			defer writing.Unlock()
			if err := s.apply(keyOf(u), u, o.AsPatchOptions()); err != nil {
				return err
			}
			return returned(u, obj)
		},
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			u, err := applied(obj)
			if err != nil {
				return err
			}
			writing.Lock()
			defer writing.Unlock()
			if k := keyOf(u); !s.has(k) {
				return apierrors.NewNotFound(k.gvr.GroupResource(), k.name)
			}
			return c.SubResource(sub).Apply(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			writing.Lock()
			defer writing.Unlock()
			o := (&client.DeleteOptions{}).ApplyOptions(opts)
			if p := o.Preconditions; p != nil && p.UID != nil {
				if err := s.checkUID(obj, *p.UID); err != nil {
					return err
				}
			}
			return c.Delete(ctx, obj, opts...)
		},
	})}, nil
}

// knownKinds is the scheme of all stores, which nothing changes.
var knownKinds = sync.OnceValues(Scheme)

// kubernetesTypes knows how Kubernetes' own kinds are merged. It is made of a schema of all of them.
var kubernetesTypes = sync.OnceValue(func() managedfields.TypeConverter { return applyconfigurations.NewTypeConverter(clientgoscheme.Scheme) })

// applied is what is applied.
func applied(obj runtime.ApplyConfiguration) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	raw, err := json.Marshal(obj)
	if err == nil {
		err = utiljson.Unmarshal(raw, &u.Object) // with integers
	}
	return u, err
}

// returned puts into what was applied what has become of it.
func returned(u *unstructured.Unstructured, obj runtime.ApplyConfiguration) error {
	raw, err := json.Marshal(u)
	if err != nil {
		return err
	}
	if _, isUntyped := obj.(json.Unmarshaler); !isUntyped { // what is not there any more goes
		reflect.ValueOf(obj).Elem().SetZero()
	}
	return json.Unmarshal(raw, obj)
}

func keyOf(u *unstructured.Unstructured) key {
	gvr, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
	return key{gvr, u.GetNamespace(), u.GetName()}
}

// update replaces an object, or makes it where an API server would.
func (s *store) update(ctx context.Context, c client.Client, obj client.Object, opts ...client.UpdateOption) error {
	kind, err := apiutil.GVKForObject(obj, s.scheme)
	if err != nil {
		return err
	}
	gvr, _ := meta.UnsafeGuessKindToResource(kind)
	k, version := key{gvr, obj.GetNamespace(), obj.GetName()}, obj.GetResourceVersion()
	if !s.has(k) && createdByUpdate[gvr.Resource] {
		if obj.GetUID() != "" {
			return anotherUID(k, obj.GetUID(), "")
		}
		obj.SetResourceVersion("")
		return c.Create(ctx, obj, client.FieldOwner((&client.UpdateOptions{}).ApplyOptions(opts).FieldManager))
	}
	err = c.Update(ctx, obj, opts...)
	if version == "" && apierrors.IsConflict(err) {
		return invalid(k, field.Required(field.NewPath("metadata", "resourceVersion"), "must be specified for an update"))
	}
	return err
}

// dryApply tries it on a copy: the fake client's dry run does nothing at all.
func dryApply(ctx context.Context, c client.Client, obj runtime.ApplyConfiguration, live *unstructured.Unstructured, o *client.ApplyOptions) error {
	var there []client.Object
	if err := c.Get(ctx, client.ObjectKeyFromObject(live), live); err == nil {
		there = append(there, live)
	} else if !apierrors.IsNotFound(err) {
		return err
	}
	if ns := live.GetNamespace(); ns != "" {
		there = append(there, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	}
	copied, err := NewClient(there...)
	if err != nil {
		return err
	}
	wet := *o
	wet.DryRun = nil
	return copied.Apply(ctx, obj, &wet)
}

// checkUID refuses a write to another object than the one that is meant; an empty UID means any.
func (s *store) checkUID(obj client.Object, uid types.UID) error {
	kind, err := apiutil.GVKForObject(obj, s.scheme)
	if err != nil || uid == "" {
		return err
	}
	gvr, _ := meta.UnsafeGuessKindToResource(kind)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{gvr, obj.GetNamespace(), obj.GetName()}
	if live := s.objects[k]; live != nil && live.GetUID() != uid {
		return anotherUID(k, uid, live.GetUID())
	}
	return nil
}

func anotherUID(k key, want, have types.UID) error {
	return apierrors.NewConflict(k.gvr.GroupResource(), k.name, fmt.Errorf("precondition failed: UID in precondition: %s, UID in object meta: %s", want, have))
}

// converters are asked in their order whether they know a kind. The first that does converts everything of that kind, also what it
// refuses: what is applied and what is there are merged by one schema.
type converters []managedfields.TypeConverter

func (c converters) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	nothing := &unstructured.Unstructured{}
	nothing.SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind())
	for _, one := range c {
		if _, err := one.ObjectToTyped(nothing); err == nil {
			return one.ObjectToTyped(obj, opts...)
		}
	}
	return nil, fmt.Errorf("no converter knows %s", nothing.GroupVersionKind())
}

// TypedToObject needs no schema.
func (c converters) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	return c[0].TypedToObject(v)
}
