package fakeapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// key is an object's place.
type key struct {
	gvr             schema.GroupVersionResource
	namespace, name string
}

// store keeps the objects of an API. It does to each write what an API server does to it.
type store struct {
	testing.ObjectTracker
	scheme *runtime.Scheme
	// converter merges what is applied.
	converter managedfields.TypeConverter
	// kinds are schemes with one kind each.
	kinds map[schema.GroupVersionKind]*runtime.Scheme

	mu sync.Mutex
	// objects are all of them; only their metadata is read.
	objects  map[key]metav1.Object
	readings map[form]reading
	// changes counts what was changed, changed has the number of the last change of each kind.
	changes int64
	changed map[schema.GroupVersionResource]int64
	// ended are the names of definitions that were deleted.
	ended map[string]bool
	// version is the last one that was given.
	version int64
}

// firstVersion is what the fake client gives to objects that are there from the beginning.
const firstVersion = 999

// note counts a change of an object.
func (s *store) note(k key) {
	s.changes++
	s.changed[k.gvr] = s.changes
}

func (s *store) nextVersion() string {
	s.version++
	return strconv.FormatInt(s.version, 10)
}

// Add adds an object that is there from the beginning.
func (s *store) Add(obj runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	kinds, _, err := s.scheme.ObjectKinds(obj)
	if err != nil {
		return err
	}
	gvr, _ := meta.UnsafeGuessKindToResource(kinds[0])
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.GetUID() == "" {
		m.SetUID(uuid.NewUUID())
	}
	if m.GetGeneration() == 0 && hasGeneration[gvr.Resource] {
		m.SetGeneration(1)
	}
	if err := s.ObjectTracker.Add(obj); err != nil {
		return err
	}
	k := key{gvr, m.GetNamespace(), m.GetName()}
	s.objects[k] = obj.DeepCopyObject().(metav1.Object)
	s.note(k)
	return nil
}

// Create adds an object.
func (s *store) Create(gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.CreateOptions) error {
	return s.write(gvr, obj, ns, "create", "", func(t testing.ObjectTracker) error { return t.Create(gvr, obj, ns, opts...) })
}

// Update replaces an object.
func (s *store) Update(gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.UpdateOptions) error {
	return s.write(gvr, obj, ns, "update", "", func(t testing.ObjectTracker) error { return t.Update(gvr, obj, ns, opts...) })
}

// Patch replaces an object by what a patch has made of it.
func (s *store) Patch(gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.PatchOptions) error {
	return s.write(gvr, obj, ns, "patch", "", func(t testing.ObjectTracker) error { return t.Patch(gvr, obj, ns, opts...) })
}

// Apply applies a configuration.
func (s *store) Apply(gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.PatchOptions) error {
	manner, err := json.Marshal([]any{gvr, ns, opts})
	if err != nil {
		return err
	}
	return s.write(gvr, obj, ns, "patch", string(manner), func(t testing.ObjectTracker) error { return t.Apply(gvr, obj, ns, opts...) })
}

// Delete removes an object that has no finalizer.
func (s *store) Delete(gvr schema.GroupVersionResource, ns, name string, _ ...metav1.DeleteOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove(key{gvr, ns, name})
}

// managed makes a tracker in which field managers work, for one object: a write that would change nothing is none.
// Such a tracker looks at all kinds that it knows for each write.
func (s *store) managed(obj runtime.Object) (testing.ObjectTracker, error) {
	kind, err := apiutil.GVKForObject(obj, s.scheme)
	if err != nil {
		return nil, err
	}
	scheme := s.kinds[kind]
	if scheme == nil {
		empty, err := s.scheme.New(kind)
		if runtime.IsNotRegisteredError(err) {
			empty, err = &unstructured.Unstructured{}, nil
		}
		if err != nil {
			return nil, err
		}
		scheme = runtime.NewScheme()
		scheme.AddKnownTypeWithName(kind, empty)
		s.kinds[kind] = scheme
	}
	return testing.NewFieldManagedObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder(), s.converter), nil
}

// write lets a tracker with nothing but that object do it, and keeps what has become of the object. What comes of the same objects in
// the same manner is remembered, unless the manner is empty.
func (s *store) write(gvr schema.GroupVersionResource, given runtime.Object, ns, verb, manner string, do func(testing.ObjectTracker) error) error {
	m, err := meta.Accessor(given)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{gvr, ns, m.GetName()}
	before, err := s.ObjectTracker.Get(gvr, ns, k.name)
	isNew := apierrors.IsNotFound(err)
	if err != nil && !isNew {
		return err
	}
	if isNew || verb == "create" {
		if err := s.mayCreate(k, verb); err != nil {
			return err
		}
	}
	if !isNew {
		if uid := s.objects[k].GetUID(); verb != "create" && m.GetUID() != "" && m.GetUID() != uid {
			if verb == "update" {
				return anotherUID(k, m.GetUID(), uid)
			}
			return invalid(k, field.Invalid(field.NewPath("metadata", "uid"), m.GetUID(), "field is immutable"))
		}
	}
	merge := func() (runtime.Object, error) {
		scratch, err := s.managed(given)
		if err == nil && !isNew {
			err = scratch.Add(before)
		}
		if err == nil {
			err = do(scratch)
		}
		if err != nil {
			return nil, err
		}
		return scratch.Get(gvr, ns, k.name)
	}
	var now runtime.Object
	if manner == "" {
		now, err = merge()
	} else {
		now, err = remembered(manner, before, given, merge)
	}
	if err != nil {
		return err
	}
	if isNew {
		err = s.create(k, now)
	} else {
		err = s.replace(k, before, now)
	}
	if err != nil {
		return err
	}
	if stored, err := s.ObjectTracker.Get(gvr, ns, k.name); err == nil && reflect.TypeOf(stored) == reflect.TypeOf(given) {
		reflect.ValueOf(given).Elem().Set(reflect.ValueOf(stored).Elem())
	}
	return nil
}

func (s *store) has(k key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[k] != nil
}

// apply does what the fake client does with what is applied, which takes it several conversions to JSON and to YAML. Of an object
// that is being deleted the last finalizer may go. What has become of it is in u then.
func (s *store) apply(k key, u *unstructured.Unstructured, o *metav1.PatchOptions) error {
	if errs := validation.ValidatePatchOptions(o, types.ApplyPatchType); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "PatchOptions"}, "", errs)
	}
	if k.name == "" {
		return invalid(k, field.Required(field.NewPath("metadata", "name"), "name is required"))
	}
	s.mu.Lock()
	live := s.objects[k]
	s.mu.Unlock()
	if live == nil && u.GetUID() != "" {
		return anotherUID(k, u.GetUID(), "")
	}
	if live != nil {
		if v := u.GetResourceVersion(); v != "" && v != live.GetResourceVersion() {
			return apierrors.NewConflict(k.gvr.GroupResource(), k.name, errors.New("object was modified"))
		}
		u.SetDeletionTimestamp(live.GetDeletionTimestamp())
	}
	if hasStatusApart[k.gvr.GroupResource()] {
		unstructured.RemoveNestedField(u.Object, "status")
	}
	isLast := live != nil && !live.GetDeletionTimestamp().IsZero() && len(u.GetFinalizers()) == 0
	u.SetResourceVersion("")
	if err := s.Apply(k.gvr, u, k.namespace, *o); err != nil {
		return err
	}
	stored, err := s.Get(k.gvr, k.namespace, k.name)
	if err != nil {
		return err
	}
	kind := u.GroupVersionKind()
	if u.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(stored); err != nil {
		return err
	}
	u.SetGroupVersionKind(kind)
	if !isLast || len(u.GetFinalizers()) > 0 {
		return nil
	}
	return s.Delete(k.gvr, k.namespace, k.name)
}

// hasStatusApart are the resources of which a write changes either the status or all else.
var hasStatusApart = map[schema.GroupResource]bool{
	{Group: v1alpha1.GroupVersion.Group, Resource: "peerings"}: true, {Group: v1alpha1.GroupVersion.Group, Resource: "nodenetworks"}: true,
}

// createdByUpdate are the resources that an update creates where there is none.
var createdByUpdate = map[string]bool{
	"leases": true, "events": true, "services": true, "roles": true, "rolebindings": true, "clusterroles": true, "clusterrolebindings": true,
}

// mayCreate refuses what is to be created in a place that is not there, or is going.
func (s *store) mayCreate(k key, verb string) error {
	gr := k.gvr.GroupResource()
	switch d := s.objects[definition(gr.String())]; {
	case s.ended[gr.String()]:
		return apierrors.NewGenericServerResponse(http.StatusNotFound, verb, gr, "", "", 0, true)
	case d == nil || d.GetDeletionTimestamp().IsZero():
	default:
		return apierrors.NewForbidden(gr, k.name, errors.New("create not allowed while custom resource definition is terminating"))
	}
	if k.namespace == "" {
		return nil
	}
	switch ns := s.objects[namespace(k.namespace)]; {
	case ns == nil && !slices.Contains([]string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}, k.namespace):
		return apierrors.NewNotFound(corev1.Resource("namespaces"), k.namespace)
	case ns != nil && !ns.GetDeletionTimestamp().IsZero():
		err := apierrors.NewForbidden(gr, k.name, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", k.namespace))
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: corev1.NamespaceTerminatingCause, Message: "namespace " + k.namespace + " is being terminated", Field: "metadata.namespace",
		})
		return err
	}
	return nil
}

func (s *store) create(k key, obj runtime.Object) error {
	m := obj.(metav1.Object)
	m.SetUID(uuid.NewUUID())
	m.SetCreationTimestamp(metav1.NewTime(metav1.Now().Rfc3339Copy().Local())) // as a client reads it
	m.SetGeneration(0)
	if hasGeneration[k.gvr.Resource] {
		m.SetGeneration(1)
	}
	m.SetResourceVersion(s.nextVersion())
	if err := s.ObjectTracker.Create(k.gvr, obj, k.namespace); err != nil {
		return err
	}
	s.objects[k] = m
	s.note(k)
	if k == definition(k.name) {
		delete(s.ended, k.name)
	}
	return nil
}

// replace keeps what nobody can change, and refuses what must not be changed.
func (s *store) replace(k key, before, now runtime.Object) error {
	was, is := before.(metav1.Object), now.(metav1.Object)
	is.SetUID(was.GetUID())
	is.SetCreationTimestamp(was.GetCreationTimestamp())
	is.SetGeneration(was.GetGeneration())
	if !was.GetDeletionTimestamp().IsZero() {
		is.SetDeletionTimestamp(was.GetDeletionTimestamp())
	}
	is.SetResourceVersion(was.GetResourceVersion())
	if same, err := areSame(before, now); err != nil || same {
		return err
	}
	var old, want map[string]any
	if r := k.gvr.Resource; hasGeneration[r] || immutable[r] != nil || r == "configmaps" || r == "secrets" {
		var errs [2]error
		old, errs[0] = content(before)
		want, errs[1] = content(now)
		if err := cmp.Or(errs[:]...); err != nil {
			return err
		}
		if err := checkImmutable(k, old, want); err != nil {
			return err
		}
	}
	if more := slices.DeleteFunc(slices.Clone(is.GetFinalizers()), func(f string) bool { return slices.Contains(was.GetFinalizers(), f) }); len(more) > 0 && !was.GetDeletionTimestamp().IsZero() {
		return invalid(k, field.Forbidden(field.NewPath("metadata", "finalizers"), fmt.Sprint("no new finalizers can be added if the object is being deleted, found new finalizers ", more)))
	}
	isDeleted := was.GetDeletionTimestamp().IsZero() && !is.GetDeletionTimestamp().IsZero()
	if hasGeneration[k.gvr.Resource] && (isDeleted || !equality.Semantic.DeepEqual(old, want)) {
		is.SetGeneration(was.GetGeneration() + 1)
	}
	return s.put(k, now)
}

// put keeps an object with a new resourceVersion.
func (s *store) put(k key, obj runtime.Object) error {
	m := obj.(metav1.Object)
	m.SetResourceVersion(s.nextVersion())
	if err := s.ObjectTracker.Update(k.gvr, obj, k.namespace); err != nil {
		return err
	}
	s.objects[k] = m
	s.note(k)
	return nil
}

// areSame says whether a write has changed nothing; when a manager wrote last is nothing.
func areSame(before, now runtime.Object) (bool, error) {
	var texts [2][]byte
	for i, obj := range []runtime.Object{before.DeepCopyObject(), now.DeepCopyObject()} {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		m := obj.(metav1.Object)
		fields := m.GetManagedFields()
		for i := range fields {
			fields[i].Time = nil
		}
		m.SetManagedFields(fields)
		var err error
		if texts[i], err = json.Marshal(obj); err != nil {
			return false, err
		}
	}
	return bytes.Equal(texts[0], texts[1]), nil
}

// content is an object without metadata and status.
func content(obj runtime.Object) (map[string]any, error) {
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	for _, other := range []string{"metadata", "status", "apiVersion", "kind"} {
		delete(u, other)
	}
	return u, err
}

// hasGeneration are the kinds, of those that commands know, of which an API server counts the changes.
var hasGeneration = map[string]bool{
	"deployments": true, "daemonsets": true, "replicasets": true, "jobs": true, "pods": true, "poddisruptionbudgets": true, "networkpolicies": true,
	"customresourcedefinitions": true, "validatingadmissionpolicies": true, "validatingadmissionpolicybindings": true,
	"peerings": true, "nodenetworks": true, "clusternetworks": true,
}

// immutable are the fields that an API server lets nobody change, by resource.
var immutable = map[string][]string{
	"deployments": {"spec", "selector"}, "daemonsets": {"spec", "selector"}, "controllerrevisions": {"data"}, "rolebindings": {"roleRef"}, "clusterrolebindings": {"roleRef"},
}

func checkImmutable(k key, old, want map[string]any) error {
	path := immutable[k.gvr.Resource]
	if old["immutable"] == true {
		path = []string{"data"}
	}
	if path == nil {
		return nil
	}
	a, _, _ := unstructured.NestedFieldNoCopy(old, path...)
	b, _, _ := unstructured.NestedFieldNoCopy(want, path...)
	if equality.Semantic.DeepEqual(a, b) && (old["immutable"] != true || want["immutable"] == true) {
		return nil
	}
	return invalid(k, field.Invalid(field.NewPath(strings.Join(path, ".")), b, "field is immutable"))
}

func invalid(k key, err *field.Error) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: k.gvr.Group, Kind: k.gvr.Resource}, k.name, field.ErrorList{err})
}

func namespace(name string) key {
	return key{corev1.SchemeGroupVersion.WithResource("namespaces"), "", name}
}

func definition(name string) key {
	return key{schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}, "", name}
}

// contents are the objects that go with a namespace or a definition.
func (s *store) contents(k key) (in []key) {
	isNamespace, isDefinition := k == namespace(k.name), k == definition(k.name)
	if !isNamespace && !isDefinition {
		return nil
	}
	for other := range s.objects {
		if isNamespace && other.namespace == k.name || isDefinition && other.gvr.GroupResource().String() == k.name {
			in = append(in, other)
		}
	}
	return in
}

// remove removes an object that has no finalizer, as soon as nothing is in it any more.
func (s *store) remove(k key) error {
	for _, in := range s.contents(k) {
		if err := s.end(in); err != nil {
			return err
		}
	}
	if len(s.contents(k)) > 0 {
		return s.mark(k)
	}
	if err := s.ObjectTracker.Delete(k.gvr, k.namespace, k.name); err != nil {
		return err
	}
	delete(s.objects, k)
	s.note(k)
	maps.DeleteFunc(s.readings, func(f form, _ reading) bool { return f.key == k })
	if k == definition(k.name) {
		s.ended[k.name] = true
	}
	for _, around := range []key{namespace(k.namespace), definition(k.gvr.GroupResource().String())} {
		if m := s.objects[around]; m != nil && !m.GetDeletionTimestamp().IsZero() && len(m.GetFinalizers()) == 0 && len(s.contents(around)) == 0 {
			if err := s.remove(around); err != nil {
				return err
			}
		}
	}
	return nil
}

// end deletes an object. What has a finalizer stays until it has none.
func (s *store) end(k key) error {
	if m := s.objects[k]; m != nil && len(m.GetFinalizers()) == 0 {
		return s.remove(k)
	}
	return s.mark(k)
}

// mark gives an object a time of deletion.
func (s *store) mark(k key) error {
	if m := s.objects[k]; m == nil || !m.GetDeletionTimestamp().IsZero() {
		return nil
	}
	return s.edit(k, func(obj runtime.Object) {
		m := obj.(metav1.Object)
		m.SetDeletionTimestamp(new(metav1.Now()))
		if m.GetGeneration() > 0 {
			m.SetGeneration(m.GetGeneration() + 1)
		}
		if ns, is := obj.(*corev1.Namespace); is {
			ns.Status.Phase = corev1.NamespaceTerminating
		}
	})
}

func (s *store) edit(k key, change func(runtime.Object)) error {
	obj, err := s.ObjectTracker.Get(k.gvr, k.namespace, k.name)
	if err != nil {
		return err
	}
	change(obj)
	return s.put(k, obj)
}

// CollectGarbage does what the garbage collector does in the end: it removes what has owners of which none is there.
func (a *API) CollectGarbage() error {
	s := a.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		before := s.version
		count := len(s.objects)
		uids := map[types.UID]bool{}
		for _, m := range s.objects {
			uids[m.GetUID()] = true
		}
		for _, k := range slices.Collect(maps.Keys(s.objects)) {
			if err := s.collect(k, uids); err != nil {
				return err
			}
		}
		if s.version == before && len(s.objects) == count {
			return nil
		}
	}
}

func (s *store) collect(k key, uids map[types.UID]bool) error {
	m := s.objects[k]
	if m == nil || !m.GetDeletionTimestamp().IsZero() {
		return nil // it has gone with another one, or waits for its finalizers
	}
	var there []metav1.OwnerReference
	for _, owner := range m.GetOwnerReferences() {
		if uids[owner.UID] {
			there = append(there, owner)
		}
	}
	switch len(m.GetOwnerReferences()) - len(there) {
	case 0:
		return nil
	case len(m.GetOwnerReferences()):
		return s.end(k)
	}
	return s.edit(k, func(obj runtime.Object) { obj.(metav1.Object).SetOwnerReferences(there) })
}
