package beliefs_test

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/apiserver"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

type event = watch.Event

const finalizer = "liqonet.io/beliefs"

func (r *run) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: r.ns, Name: name}
}

// configMap is one with a key for each of the pairs.
func (r *run) configMap(name string, pairs ...string) *corev1.ConfigMap {
	c := &corev1.ConfigMap{ObjectMeta: r.meta(name)}
	for i := 0; i < len(pairs); i += 2 {
		if c.Data == nil {
			c.Data = map[string]string{}
		}
		c.Data[pairs[i]] = pairs[i+1]
	}
	return c
}

func (r *run) lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: r.meta(name), Spec: coordinationv1.LeaseSpec{HolderIdentity: new("a")}}
}

func (r *run) secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: r.meta(name), Data: map[string][]byte{"a": []byte("1")}}
}

func (r *run) deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: r.meta(name), Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "image"}}}},
	}}
}

// peering is one whose name only this row has.
func (r *run) peering() *v1alpha1.Peering {
	p := schema.Examples()["Peering"].(*v1alpha1.Peering)
	p.Name, p.Status = r.ns, v1alpha1.PeeringStatus{}
	return p
}

func planes(mtu int32) []v1alpha1.PlaneStatus {
	p := schema.Examples()["Peering"].(*v1alpha1.Peering).Status.Planes
	p[0].MTU = mtu
	return p
}

func owned[T client.Object](obj T, owners ...metav1.OwnerReference) T {
	obj.SetOwnerReferences(owners)
	return obj
}

// owner is a reference to an object that is there.
func (r *run) owner(obj client.Object) metav1.OwnerReference {
	u := r.live(obj)
	return metav1.OwnerReference{APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Name: u.GetName(), UID: u.GetUID()}
}

func withUID[T client.Object](obj T, uid types.UID) T {
	obj.SetUID(uid)
	return obj
}

func withVersion[T client.Object](obj T, version string) T {
	obj.SetResourceVersion(version)
	return obj
}

func withFinalizer[T client.Object](obj T) T {
	obj.SetFinalizers([]string{finalizer})
	return obj
}

func release[T client.Object](r *run, obj T) error {
	return edit(r, obj, func(obj T) { obj.SetFinalizers(nil) })
}

func isGoing(u *unstructured.Unstructured) bool { return u.GetDeletionTimestamp() != nil }

var rows = []row{
	{"apply with a UID on a missing object", func(r *run) {
		c := r.configMap("c", "a", "1")
		r.say("apply", "Conflict", r.apply("m", withUID(c, uuid.NewUUID())))
		r.say("apply with a version too", "Conflict", r.apply("m", withVersion(c, "1")))
		r.is("gone", c)
	}},
	{"apply with a resourceVersion alone on a missing object", func(r *run) {
		c := r.configMap("c", "a", "1")
		r.create(c)
		old := c.ResourceVersion
		r.must(r.Delete(r.Context(), c))
		r.moves("apply", "UID moves, version moves", c, func() error { return r.apply("m", withVersion(r.configMap("c", "a", "1"), old)) })
		r.is("there", c)
	}},
	{"apply with UID and resourceVersion on an object", func(r *run) {
		c := r.configMap("c", "a", "1")
		r.create(c)
		uid, old := c.UID, c.ResourceVersion
		r.must(edit(r, c, func(c *corev1.ConfigMap) { c.Data["b"] = "2" }))
		r.moves("old version", "Conflict", c, func() error { return r.apply("m", withVersion(r.configMap("c", "c", "3"), old)) })
		r.moves("another UID", "Invalid", c, func() error { return r.apply("m", withUID(r.configMap("c", "c", "3"), uuid.NewUUID())) })
		r.moves("another UID and an old version", "Conflict", c, func() error {
			return r.apply("m", withVersion(withUID(r.configMap("c", "c", "3"), uuid.NewUUID()), old))
		})
		r.moves("both", "version moves", c, func() error {
			return r.apply("m", withVersion(withUID(r.configMap("c", "c", "3"), uid), c.ResourceVersion))
		})
	}},
	{"apply that changes nothing", func(r *run) {
		for _, obj := range []func() client.Object{
			func() client.Object { return r.configMap("c", "a", "1") }, func() client.Object { return r.deployment("d") },
			func() client.Object { return r.peering() }, func() client.Object { return r.lease("l") },
		} {
			r.must(r.apply("m", obj()))
			r.moves("again", "ok", obj(), func() error { return r.apply("m", obj()) })
			r.moves("by another manager", "version moves", obj(), func() error { return r.apply("other", obj()) })
		}
	}},
	{"apply to another manager's field", func(r *run) {
		c := r.configMap("c", "a", "1", "b", "1")
		r.must(r.apply("first", c))
		r.moves("apply", "Conflict, .data.a of first", c, func() error { return r.apply("second", r.configMap("c", "a", "2", "b", "1")) })
		r.moves("dry run", "Conflict, .data.a of first", c, func() error { return r.apply("second", r.configMap("c", "a", "2"), client.DryRunAll) })
		r.moves("dry run with force", "ok", c, func() error {
			return r.apply("second", r.configMap("c", "a", "2"), client.DryRunAll, client.ForceOwnership)
		})
		r.moves("with force", "version moves", c, func() error { return r.apply("second", r.configMap("c", "a", "2"), client.ForceOwnership) })
		r.say("the first one again", "Conflict, .data.a of second", r.apply("first", r.configMap("c", "a", "1", "b", "1")))
		r.must(edit(r, c, func(c *corev1.ConfigMap) { c.Data["b"] = "3" }))
		r.say("after an update", "Conflict, .data.b of editor", r.apply("first", r.configMap("c", "b", "1")))
		r.say("dry run of a missing one", "ok", r.apply("first", r.configMap("missing"), client.DryRunAll))
		r.is("gone", r.configMap("missing"))
		r.has(`{"a":"2","b":"3"}`, c, "data")
	}},
	{"a field that is applied no more", func(r *run) {
		c := r.configMap("c")
		r.must(r.apply("first", r.configMap("c", "a", "1", "b", "1", "c", "1")))
		r.must(r.apply("second", r.configMap("c", "b", "1")))
		r.moves("without two", "version moves", c, func() error { return r.apply("first", r.configMap("c", "c", "1")) })
		r.has(`{"b":"1","c":"1"}`, c, "data")
		r.moves("none at all", "version moves", c, func() error { return r.apply("second", r.configMap("c")) })
		r.has(`{"c":"1"}`, c, "data")
	}},
	{"delete with preconditions", func(r *run) {
		c := r.configMap("c", "a", "1")
		r.create(c)
		uid, version := c.UID, c.ResourceVersion
		r.must(r.Delete(r.Context(), r.configMap("c")))
		r.say("UID of a missing one", "NotFound", r.Delete(r.Context(), c, client.Preconditions{UID: &uid}))
		r.say("version of a missing one", "NotFound", r.Delete(r.Context(), c, client.Preconditions{ResourceVersion: &version}))
		r.say("none of a missing one", "NotFound", r.Delete(r.Context(), c))
		c = r.configMap("c", "a", "1")
		r.create(c)
		r.say("UID of the one before", "Conflict", r.Delete(r.Context(), c, client.Preconditions{UID: &uid}))
		r.say("version of the one before", "Conflict", r.Delete(r.Context(), c, client.Preconditions{ResourceVersion: &version}))
		uid, version = c.UID, c.ResourceVersion
		r.must(edit(r, c, func(c *corev1.ConfigMap) { c.Data["a"] = "2" }))
		r.say("old version", "Conflict", r.Delete(r.Context(), c, client.Preconditions{UID: &uid, ResourceVersion: &version}))
		r.is("there", c)
		r.say("as it is", "ok", r.Delete(r.Context(), c, client.Preconditions{UID: &uid, ResourceVersion: &c.ResourceVersion}))
		r.is("gone", c)
	}},
	{"a namespace that is going", func(r *run) {
		kept, other := withFinalizer(r.configMap("kept", "a", "1")), r.secret("other")
		r.create(kept, other)
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.ns}}
		r.say("delete", "ok", r.Delete(r.Context(), ns))
		r.goes(other)
		r.until("kept is going", kept, isGoing)
		r.until("the namespace is terminating", ns, func(u *unstructured.Unstructured) bool {
			phase, _, _ := unstructured.NestedString(u.Object, "status", "phase")
			return u.GetDeletionTimestamp() != nil && phase == string(corev1.NamespaceTerminating)
		})
		r.say("create", "Forbidden, NamespaceTerminating", r.Create(r.Context(), r.secret("new")))
		r.say("create a Lease", "Forbidden, NamespaceTerminating", r.Create(r.Context(), r.lease("new")))
		r.say("apply", "Forbidden, NamespaceTerminating", r.apply("m", r.configMap("new")))
		r.say("apply to what is there", "ok", r.apply("m", r.configMap("kept", "b", "1")))
		r.say("patch what is there", "ok", r.patch(kept, types.MergePatchType, `{"data":{"c":"1"}}`))
		r.say("create what is there", "Forbidden, NamespaceTerminating", r.Create(r.Context(), r.configMap("kept")))
		r.say("delete again", "ok", client.IgnoreNotFound(r.Delete(r.Context(), ns)))
		r.must(release(r, kept))
		r.goes(kept, ns)
		apiserver.Wait(r.T, "admission knows that the namespace is gone", func() error {
			if err := r.Create(r.Context(), r.configMap("new")); !apierrors.IsNotFound(err) {
				return fmt.Errorf("a create ends with %v", err)
			}
			return nil
		})
		r.say("create where none is", "NotFound", r.Create(r.Context(), r.configMap("new")))
		r.say("apply where none is", "NotFound", r.apply("m", r.configMap("new")))
	}},
	{"a Lease is compared and swapped", func(r *run) {
		l := r.lease("l")
		r.create(l)
		r.must(r.Delete(r.Context(), l))
		r.say("update of a missing one with its UID", "Conflict", r.Update(r.Context(), l.DeepCopy()))
		r.is("gone", l)
		r.say("update of a missing one without", "ok", r.Update(r.Context(), withUID(l.DeepCopy(), "")))
		r.is("there", l)
		r.must(client.IgnoreNotFound(r.Delete(r.Context(), l)))
		l = r.lease("l")
		r.create(l)
		r.say("create again", "AlreadyExists", r.Create(r.Context(), r.lease("l")))
		mine, other := l.DeepCopy(), l.DeepCopy()
		other.Spec.HolderIdentity, mine.Spec.HolderIdentity = new("b"), new("c")
		r.moves("the first one", "version moves", l, func() error { return r.Update(r.Context(), other) })
		r.moves("the second one", "Conflict", l, func() error { return r.Update(r.Context(), mine) })
		r.moves("nothing new", "ok", l, func() error { return r.Update(r.Context(), other.DeepCopy()) })
		r.say("no version", "Invalid", r.Update(r.Context(), withVersion(other.DeepCopy(), "")))
		r.say("another UID", "Conflict", r.Update(r.Context(), withUID(other.DeepCopy(), uuid.NewUUID())))
		r.must(r.Delete(r.Context(), l))
		r.create(r.lease("l"))
		r.say("the one before", "Conflict", r.Update(r.Context(), other))
		r.has(`"a"`, l, "spec", "holderIdentity")
	}},
	{"spec, labels and status", func(r *run) {
		p := r.peering()
		r.create(p)
		r.has("1", p, "metadata", "generation")
		r.moves("status", "version moves", p, func() error {
			p.Spec.Overlay, p.Status.Planes = "VXLAN", planes(1300)
			return r.Status().Update(r.Context(), p)
		})
		r.has(`"Geneve"`, p, "spec", "overlay")
		r.moves("status again", "ok", p, func() error { return r.Status().Update(r.Context(), p) })
		r.moves("labels", "version moves", p, func() error {
			return edit(r, p, func(p *v1alpha1.Peering) { p.Labels = map[string]string{"a": "b"} })
		})
		r.moves("spec", "version moves, generation moves", p, func() error {
			return edit(r, p, func(p *v1alpha1.Peering) { p.Spec.Overlay, p.Status.Planes[0].MTU = "VXLAN", 1200 })
		})
		kit.Check(r.T, "MTU", p.Status.Planes[0].MTU, 1300)
		d := r.deployment("d")
		r.create(d)
		r.moves("replicas", "version moves, generation moves", d, func() error { return edit(r, d, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(3)) }) })
		r.moves("their status", "version moves", d, func() error { d.Status.ObservedGeneration = 2; return r.Status().Update(r.Context(), d) })
	}},
	{"apply of a list that becomes empty again", func(r *run) {
		p, all := r.peering(), r.peering().Spec.Planes
		for _, planes := range [][]v1alpha1.Plane{{}, all, {}} {
			p.Spec.Planes, p.ManagedFields, p.ResourceVersion = planes, nil, ""
			r.say(fmt.Sprintf("%d planes", len(planes)), "ok", r.apply("one", p.DeepCopy()))
		}
	}},
	{"apply of a status", func(r *run) {
		p := r.peering()
		missing := r.peering()
		applied := func(p *v1alpha1.Peering) error {
			p.Spec.Overlay, p.Status.Conditions = "VXLAN", schema.Examples()["Peering"].(*v1alpha1.Peering).Status.Conditions
			p.ManagedFields, p.ResourceVersion = nil, ""
			p.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Peering"))
			u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p)
			r.must(err)
			return r.Status().Apply(r.Context(), client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: u}), client.FieldOwner("agent"), client.ForceOwnership)
		}
		r.say("of a missing one", "NotFound", applied(missing))
		r.create(p)
		r.moves("apply", "version moves", p, func() error { return applied(p.DeepCopy()) })
		r.has(`"Geneve"`, p, "spec", "overlay")
		p.Labels = map[string]string{"a": "b"}
		r.moves("another UID", "version moves", p, func() error {
			p := withUID(p.DeepCopy(), uuid.NewUUID())
			p.Status.Planes = planes(1300)
			return applied(p)
		})
		r.has("nothing", p, "metadata", "labels", "a")
		r.moves("update with another UID", "Conflict", p, func() error {
			r.must(r.Get(r.Context(), client.ObjectKeyFromObject(p), p))
			p.Status.Planes = planes(1200)
			return r.Status().Update(r.Context(), withUID(p.DeepCopy(), uuid.NewUUID()))
		})
	}},
	{"patches", func(r *run) {
		c := r.configMap("c", "a", "1")
		r.say("of a missing one", "NotFound", r.patch(r.configMap("c"), types.MergePatchType, `{"data":{"a":"2"}}`))
		r.create(c)
		before := c.DeepCopy()
		r.moves("nothing new", "ok", c, func() error { return r.patch(r.configMap("c"), types.MergePatchType, `{"data":{"a":"1"}}`) })
		r.moves("merge", "version moves", c, func() error {
			return r.patch(r.configMap("c"), types.MergePatchType, `{"data":{"a":null,"b":"2"}}`)
		})
		r.has(`{"b":"2"}`, c, "data")
		changed := before.DeepCopy()
		changed.Data["a"] = "3"
		r.say("with an old version", "Conflict", r.Patch(r.Context(), changed, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
		r.say("with another UID", "Invalid", r.patch(r.configMap("c"), types.MergePatchType, fmt.Sprintf(`{"metadata":{"uid":%q}}`, uuid.NewUUID())))
	}},
	{"a finalizer", func(r *run) {
		d := withFinalizer(r.deployment("d"))
		r.create(d)
		r.moves("delete", "version moves, generation moves", d, func() error { return r.Delete(r.Context(), r.deployment("d")) })
		r.is("going", d)
		r.moves("delete again", "ok", d, func() error { return r.Delete(r.Context(), r.deployment("d")) })
		r.say("create", "AlreadyExists", r.Create(r.Context(), r.deployment("d")))
		r.moves("apply", "version moves", d, func() error { return r.apply("m", withFinalizer(r.deployment("d"))) })
		more := r.deployment("d")
		more.Finalizers = []string{"liqonet.io/other"}
		r.say("another finalizer", "Invalid", r.apply("other", more))
		r.say("release", "ok", release(r, d))
		r.is("gone", d)
	}},
	{"an owner that does not exist", func(r *run) {
		gone := metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Peering", Name: r.ns, UID: uuid.NewUUID()}
		objs := []client.Object{
			owned(r.configMap("configmap"), gone), owned(r.lease("lease"), gone), owned(r.secret("secret"), gone),
			owned(&corev1.ServiceAccount{ObjectMeta: r.meta("account")}, gone), owned(r.deployment("deployment"), gone),
			owned(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: r.ns}}, gone),
		}
		r.create(r.peering()) // of that name, but another one
		r.create(objs...)
		r.say("apply", "ok", r.apply("m", owned(r.configMap("applied"), gone)))
		r.goes(append(objs, r.configMap("applied"))...)
		r.is("there", r.peering())
	}},
	{"an owner that is deleted", func(r *run) {
		p := r.peering()
		r.create(p)
		of := r.owner(p)
		kept := withFinalizer(owned(r.configMap("kept"), of))
		objs := []client.Object{
			owned(r.lease("lease"), of), owned(r.secret("secret"), of), owned(r.deployment("deployment"), of),
			owned(&rbacv1.Role{ObjectMeta: r.meta("role")}, of), owned(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: r.ns}}, of),
		}
		r.create(append(objs, kept, r.configMap("free"))...)
		r.say("delete", "ok", r.Delete(r.Context(), p, client.PropagationPolicy(metav1.DeletePropagationBackground)))
		r.is("gone", p)
		r.goes(objs...)
		r.until("kept is going", kept, isGoing)
		r.is("there", r.configMap("free"))
		r.must(release(r, kept))
		r.is("gone", kept)
	}},
	{"one of two owners", func(r *run) {
		p, other := r.peering(), r.configMap("other")
		r.create(p, other)
		c := owned(r.configMap("c"), r.owner(p), r.owner(other))
		r.create(c)
		r.must(r.Delete(r.Context(), p))
		r.until("c has one", c, func(u *unstructured.Unstructured) bool {
			return len(u.GetOwnerReferences()) == 1 && u.GetOwnerReferences()[0].Name == "other"
		})
		r.must(r.Delete(r.Context(), other))
		r.goes(c)
	}},
	{"a definition that is deleted", func(r *run) {
		network := func(name string) *v1alpha1.NodeNetwork {
			n := schema.Examples()["NodeNetwork"].(*v1alpha1.NodeNetwork)
			n.Name, n.Status = name, v1alpha1.NodeNetworkStatus{}
			return n
		}
		one, kept := network("10.80.0.1"), withFinalizer(network("10.80.0.2"))
		r.create(one, kept)
		definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "nodenetworks." + v1alpha1.GroupVersion.Group}}
		r.say("delete", "ok", r.Delete(r.Context(), definition))
		r.goes(one)
		r.until("the other is going", kept, isGoing)
		r.is("going", definition)
		r.say("create", "Forbidden", r.Create(r.Context(), network("10.80.0.3")))
		r.say("apply", "Forbidden", r.apply("m", network("10.80.0.3")))
		r.must(release(r, kept))
		r.goes(definition)
		apiserver.Wait(r.T, "the kind is served no more", func() error { // some requests later
			if err := r.Create(r.Context(), network("10.80.0.3")); answer(err) != "NotFound" {
				return fmt.Errorf("create: %w", err)
			}
			return nil
		})
		r.say("apply without a definition", "NotFound", r.apply("m", network("10.80.0.3")))
		r.say("get", "NotFound", r.Get(r.Context(), client.ObjectKeyFromObject(one), network("")))
		for _, d := range manifests.CRDs() {
			if d.Name == definition.Name {
				r.create(d)
			}
		}
		apiserver.Wait(r.T, "the kind is served again", func() error { return r.apply("m", network("10.80.0.4")) })
		r.is("gone", one)
		r.is("there", network("10.80.0.4"))
	}},
	{"a watch from a list on", func(r *run) {
		r.create(r.configMap("old"), r.configMap("changed", "a", "1"))
		var list corev1.ConfigMapList
		r.must(r.List(r.Context(), &list, client.InNamespace(r.ns)))
		r.create(r.configMap("new"))
		r.must(edit(r, r.configMap("changed"), func(c *corev1.ConfigMap) { c.Data["a"] = "2" }))
		r.must(r.Delete(r.Context(), r.configMap("old")))
		w, err := r.Watch(r.Context(), &corev1.ConfigMapList{}, client.InNamespace(r.ns), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
		r.must(err)
		defer w.Stop()
		r.events(w.ResultChan(), "ADDED new, DELETED old, MODIFIED changed")
		r.must(r.apply("m", r.configMap("new", "a", "1")))
		r.events(w.ResultChan(), "MODIFIED new")
		r.must(r.apply("m", r.configMap("new", "a", "1")))
		r.must(r.Delete(r.Context(), r.configMap("new")))
		r.events(w.ResultChan(), "DELETED new")
		r.create(r.configMap("new"))
		r.events(w.ResultChan(), "ADDED new")
	}},
	{"what nobody may change", func(r *run) {
		s, d := r.secret("s"), r.deployment("d")
		s.Immutable = new(true)
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: r.ns}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "a"}}
		v := &appsv1.ControllerRevision{ObjectMeta: r.meta("v"), Data: runtime.RawExtension{Raw: []byte(`{"a":"1"}`)}, Revision: 1}
		r.create(s, d, b, v)
		r.say("data", "Invalid", edit(r, s, func(s *corev1.Secret) { s.Data["a"] = []byte("2") }))
		applied := r.secret("s")
		applied.Data["b"] = []byte("2")
		r.say("data by apply", "Invalid", r.apply("m", applied, client.ForceOwnership))
		r.say("that it is so", "Invalid", edit(r, s, func(s *corev1.Secret) { s.Immutable = nil }))
		r.say("labels", "ok", edit(r, s, func(s *corev1.Secret) { s.Labels = map[string]string{"a": "b"} }))
		r.say("a selector", "Invalid", edit(r, d, func(d *appsv1.Deployment) {
			d.Spec.Selector.MatchLabels = map[string]string{"app": "x"}
			d.Spec.Template.Labels = map[string]string{"app": "x"}
		}))
		r.say("a role", "Invalid", edit(r, b, func(b *rbacv1.ClusterRoleBinding) { b.RoleRef.Name = "b" }))
		r.say("a revision", "Invalid", edit(r, v, func(v *appsv1.ControllerRevision) { v.Data.Raw = []byte(`{"a":"2"}`) }))
		r.say("its number", "ok", edit(r, v, func(v *appsv1.ControllerRevision) { v.Revision = 2 }))
	}},
	{"create", func(r *run) {
		uid := uuid.NewUUID()
		c := withUID(r.configMap("c"), uid)
		r.say("with a UID", "ok", r.Create(r.Context(), c))
		kit.Check(r.T, "it has that UID, or none", c.UID == uid || c.UID == "", false)
		r.say("again", "AlreadyExists", r.Create(r.Context(), r.configMap("c")))
		names := map[string]bool{}
		for range 2 {
			e := r.configMap("")
			e.GenerateName = "prefix-"
			r.create(e)
			names[e.Name] = len(e.Name) > len(e.GenerateName) && e.CreationTimestamp.After(time.Now().Add(-time.Hour))
		}
		kit.Check(r.T, "names", len(names), 2)
		r.say("update of a missing one", "NotFound", r.Update(r.Context(), r.configMap("missing")))
		r.moves("update without a version", "version moves", c, func() error { return r.Update(r.Context(), r.configMap("c", "a", "1")) })
	}},
}
