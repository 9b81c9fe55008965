package fakeapi

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// form is an object as one type shows it.
type form struct {
	key
	in reflect.Type
}

// reading is what the fake client has made of an object, which takes it a conversion to JSON and one from it.
// It is valid as long as the store has the metadata that it was made of: each write brings others.
type reading struct {
	of  metav1.Object
	obj client.Object
}

// get does what the fake client does, which it asks once for each write.
func (s *store) get(ctx context.Context, c client.Client, at client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	kind, err := apiutil.GVKForObject(obj, s.scheme)
	if err != nil {
		return err
	}
	gvr, _ := meta.UnsafeGuessKindToResource(kind)
	f := form{key{gvr, at.Namespace, at.Name}, reflect.TypeOf(obj)}
	s.mu.Lock()
	live, known := s.objects[f.key], s.readings[f]
	s.mu.Unlock()
	if live != nil && known.of == live {
		reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(known.obj.DeepCopyObject()).Elem())
		return nil
	}
	if err := c.Get(ctx, at, obj, opts...); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if live != nil && s.objects[f.key] == live {
		s.readings[f] = reading{live, obj.DeepCopyObject().(client.Object)}
	}
	return nil
}

// list does what the fake client does, which it asks for what nobody has read yet.
func (s *store) list(ctx context.Context, c client.Client, list client.ObjectList, opts ...client.ListOption) (err error) {
	kind, err := apiutil.GVKForObject(list, s.scheme)
	if err != nil {
		return err
	}
	o := (&client.ListOptions{}).ApplyOptions(opts)
	item := kind.GroupVersion().WithKind(strings.TrimSuffix(kind.Kind, "List"))
	gvr, _ := meta.UnsafeGuessKindToResource(item)
	if seen, isForWatch := ctx.Value(ForWatch{}).(*int64); isForWatch {
		last := s.lastChange(gvr)
		if last == *seen {
			return errUnchanged
		}
		defer func() {
			if err == nil {
				*seen = last
			}
		}()
	}
	if !s.hasAny(gvr) || o.FieldSelector != nil {
		return c.List(ctx, list, opts...)
	}
	sample, err := s.emptyItem(list, item)
	if err != nil {
		return err
	}
	for {
		known, unread := s.known(gvr, o, reflect.TypeOf(sample))
		for _, k := range unread {
			obj, err := s.emptyItem(list, item)
			if err != nil {
				return err
			}
			if err := s.get(ctx, c, client.ObjectKey{Namespace: k.namespace, Name: k.name}, obj); client.IgnoreNotFound(err) != nil {
				return err
			}
		}
		if len(unread) > 0 {
			continue // what is listed was there at one moment
		}
		reflect.ValueOf(list).Elem().SetZero()
		if !sample.GetObjectKind().GroupVersionKind().Empty() {
			list.GetObjectKind().SetGroupVersionKind(kind)
		}
		objs := make([]runtime.Object, len(known))
		for i, obj := range known {
			objs[i] = obj.DeepCopyObject()
		}
		return meta.SetList(list, objs)
	}
}

// emptyItem is what a list has items of.
func (s *store) emptyItem(list client.ObjectList, item schema.GroupVersionKind) (client.Object, error) {
	var obj client.Object
	switch list.(type) {
	case *unstructured.UnstructuredList:
		obj = &unstructured.Unstructured{}
	case *metav1.PartialObjectMetadataList:
		obj = &metav1.PartialObjectMetadata{}
	default:
		typed, err := s.scheme.New(item)
		if err != nil {
			return nil, err
		}
		return typed.(client.Object), nil
	}
	obj.GetObjectKind().SetGroupVersionKind(item)
	return obj, nil
}

func (s *store) hasAny(gvr schema.GroupVersionResource) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.objects {
		if k.gvr == gvr {
			return true
		}
	}
	return false
}

func (s *store) lastChange(gvr schema.GroupVersionResource) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed[gvr]
}

// known are the readings of what a list selects, in its order, and what has to be read.
func (s *store) known(gvr schema.GroupVersionResource, o *client.ListOptions, in reflect.Type) (known []client.Object, unread []key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, live := range s.objects {
		isElsewhere := o.Namespace != "" && k.namespace != "" && k.namespace != o.Namespace // other kinds have no namespaces
		if k.gvr != gvr || isElsewhere || o.LabelSelector != nil && !o.LabelSelector.Matches(labels.Set(live.GetLabels())) {
			continue
		}
		if r := s.readings[form{k, in}]; r.of == live {
			known = append(known, r.obj)
		} else {
			unread = append(unread, k)
		}
	}
	slices.SortFunc(known, func(a, b client.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return known, unread
}
