package beliefs_test

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
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
	{name: "apply with a UID on a missing object", play: func(r *run) {
		c := r.configMap("c", "a", "1")
		r.say("apply", r.apply("m", withUID(c, uuid.NewUUID())))
		r.say("apply with a version too", r.apply("m", withVersion(c, "1")))
		r.isThere(c)
	}, want: `
		apply: Conflict
		apply with a version too: Conflict
		c is gone`},
	{name: "apply with a resourceVersion alone on a missing object", play: func(r *run) {
		c := r.configMap("c", "a", "1")
		r.create(c)
		old := c.ResourceVersion
		r.must(r.Delete(r.Context(), c))
		r.moves("apply", c, func() error { return r.apply("m", withVersion(r.configMap("c", "a", "1"), old)) })
		r.isThere(c)
	}, want: `
		apply, UID moves, version moves: ok
		c is there`},
	{name: "apply with UID and resourceVersion on an object", play: func(r *run) {
		c := r.configMap("c", "a", "1")
		r.create(c)
		uid, old := c.UID, c.ResourceVersion
		r.must(edit(r, c, func(c *corev1.ConfigMap) { c.Data["b"] = "2" }))
		r.moves("old version", c, func() error { return r.apply("m", withVersion(r.configMap("c", "c", "3"), old)) })
		r.moves("another UID", c, func() error { return r.apply("m", withUID(r.configMap("c", "c", "3"), uuid.NewUUID())) })
		r.moves("another UID and an old version", c, func() error {
			return r.apply("m", withVersion(withUID(r.configMap("c", "c", "3"), uuid.NewUUID()), old))
		})
		r.moves("both", c, func() error {
			return r.apply("m", withVersion(withUID(r.configMap("c", "c", "3"), uid), c.ResourceVersion))
		})
	}, want: `
		old version: Conflict
		another UID: Invalid
		another UID and an old version: Conflict
		both, version moves: ok`},
	{name: "apply that changes nothing", play: func(r *run) {
		for _, obj := range []func() client.Object{
			func() client.Object { return r.configMap("c", "a", "1") }, func() client.Object { return r.deployment("d") },
			func() client.Object { return r.peering() }, func() client.Object { return r.lease("l") },
		} {
			r.must(r.apply("m", obj()))
			r.moves("again", obj(), func() error { return r.apply("m", obj()) })
			r.moves("by another manager", obj(), func() error { return r.apply("other", obj()) })
		}
	}, want: `
		again: ok
		by another manager, version moves: ok
		again: ok
		by another manager, version moves: ok
		again: ok
		by another manager, version moves: ok
		again: ok
		by another manager, version moves: ok`},
	{name: "apply to another manager's field", play: func(r *run) {
		c := r.configMap("c", "a", "1", "b", "1")
		r.must(r.apply("first", c))
		r.moves("apply", c, func() error { return r.apply("second", r.configMap("c", "a", "2", "b", "1")) })
		r.moves("dry run", c, func() error { return r.apply("second", r.configMap("c", "a", "2"), client.DryRunAll) })
		r.moves("dry run with force", c, func() error {
			return r.apply("second", r.configMap("c", "a", "2"), client.DryRunAll, client.ForceOwnership)
		})
		r.moves("with force", c, func() error { return r.apply("second", r.configMap("c", "a", "2"), client.ForceOwnership) })
		r.say("the first one again", r.apply("first", r.configMap("c", "a", "1", "b", "1")))
		r.must(edit(r, c, func(c *corev1.ConfigMap) { c.Data["b"] = "3" }))
		r.say("after an update", r.apply("first", r.configMap("c", "b", "1")))
		r.say("dry run of a missing one", r.apply("first", r.configMap("missing"), client.DryRunAll))
		r.isThere(r.configMap("missing"))
		r.has(c, "data")
	}, want: `
		apply: Conflict, .data.a of first
		dry run: Conflict, .data.a of first
		dry run with force: ok
		with force, version moves: ok
		the first one again: Conflict, .data.a of second
		after an update: Conflict, .data.b of editor
		dry run of a missing one: ok
		missing is gone
		data is {"a":"2","b":"3"}`},
	{name: "a field that is applied no more", play: func(r *run) {
		c := r.configMap("c")
		r.must(r.apply("first", r.configMap("c", "a", "1", "b", "1", "c", "1")))
		r.must(r.apply("second", r.configMap("c", "b", "1")))
		r.moves("without two", c, func() error { return r.apply("first", r.configMap("c", "c", "1")) })
		r.has(c, "data")
		r.moves("none at all", c, func() error { return r.apply("second", r.configMap("c")) })
		r.has(c, "data")
	}, want: `
		without two, version moves: ok
		data is {"b":"1","c":"1"}
		none at all, version moves: ok
		data is {"c":"1"}`},
	{name: "delete with preconditions", play: func(r *run) {
		c := r.configMap("c", "a", "1")
		r.create(c)
		uid, version := c.UID, c.ResourceVersion
		r.must(r.Delete(r.Context(), r.configMap("c")))
		r.say("UID of a missing one", r.Delete(r.Context(), c, client.Preconditions{UID: &uid}))
		r.say("version of a missing one", r.Delete(r.Context(), c, client.Preconditions{ResourceVersion: &version}))
		r.say("none of a missing one", r.Delete(r.Context(), c))
		c = r.configMap("c", "a", "1")
		r.create(c)
		r.say("UID of the one before", r.Delete(r.Context(), c, client.Preconditions{UID: &uid}))
		r.say("version of the one before", r.Delete(r.Context(), c, client.Preconditions{ResourceVersion: &version}))
		uid, version = c.UID, c.ResourceVersion
		r.must(edit(r, c, func(c *corev1.ConfigMap) { c.Data["a"] = "2" }))
		r.say("old version", r.Delete(r.Context(), c, client.Preconditions{UID: &uid, ResourceVersion: &version}))
		r.isThere(c)
		r.say("as it is", r.Delete(r.Context(), c, client.Preconditions{UID: &uid, ResourceVersion: &c.ResourceVersion}))
		r.isThere(c)
	}, want: `
		UID of a missing one: NotFound
		version of a missing one: NotFound
		none of a missing one: NotFound
		UID of the one before: Conflict
		version of the one before: Conflict
		old version: Conflict
		c is there
		as it is: ok
		c is gone`},
	{name: "a namespace that is going", play: func(r *run) {
		kept, other := withFinalizer(r.configMap("kept", "a", "1")), r.secret("other")
		r.create(kept, other)
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.ns}}
		r.say("delete", r.Delete(r.Context(), ns))
		r.goes(other)
		r.until("kept is going", kept, isGoing)
		r.until("the namespace is terminating", ns, func(u *unstructured.Unstructured) bool {
			phase, _, _ := unstructured.NestedString(u.Object, "status", "phase")
			return u.GetDeletionTimestamp() != nil && phase == string(corev1.NamespaceTerminating)
		})
		r.say("create", r.Create(r.Context(), r.secret("new")))
		r.say("create a Lease", r.Create(r.Context(), r.lease("new")))
		r.say("apply", r.apply("m", r.configMap("new")))
		r.say("apply to what is there", r.apply("m", r.configMap("kept", "b", "1")))
		r.say("patch what is there", r.patch(kept, types.MergePatchType, `{"data":{"c":"1"}}`))
		r.say("create what is there", r.Create(r.Context(), r.configMap("kept")))
		r.say("delete again", client.IgnoreNotFound(r.Delete(r.Context(), ns)))
		r.must(release(r, kept))
		r.goes(kept, ns)
		r.say("create where none is", r.Create(r.Context(), r.configMap("new")))
		r.say("apply where none is", r.apply("m", r.configMap("new")))
	}, want: `
		delete: ok
		other goes
		kept is going
		the namespace is terminating
		create: Forbidden, NamespaceTerminating
		create a Lease: Forbidden, NamespaceTerminating
		apply: Forbidden, NamespaceTerminating
		apply to what is there: ok
		patch what is there: ok
		create what is there: Forbidden, NamespaceTerminating
		delete again: ok
		kept goes
		NAMESPACE goes
		create where none is: NotFound
		apply where none is: NotFound`},
	{name: "a Lease is compared and swapped", play: func(r *run) {
		l := r.lease("l")
		r.create(l)
		r.must(r.Delete(r.Context(), l))
		r.say("update of a missing one with its UID", r.Update(r.Context(), l.DeepCopy()))
		r.isThere(l)
		r.say("update of a missing one without", r.Update(r.Context(), withUID(l.DeepCopy(), "")))
		r.isThere(l)
		r.must(client.IgnoreNotFound(r.Delete(r.Context(), l)))
		l = r.lease("l")
		r.create(l)
		r.say("create again", r.Create(r.Context(), r.lease("l")))
		mine, other := l.DeepCopy(), l.DeepCopy()
		other.Spec.HolderIdentity, mine.Spec.HolderIdentity = new("b"), new("c")
		r.moves("the first one", l, func() error { return r.Update(r.Context(), other) })
		r.moves("the second one", l, func() error { return r.Update(r.Context(), mine) })
		r.moves("nothing new", l, func() error { return r.Update(r.Context(), other.DeepCopy()) })
		r.say("no version", r.Update(r.Context(), withVersion(other.DeepCopy(), "")))
		r.say("another UID", r.Update(r.Context(), withUID(other.DeepCopy(), uuid.NewUUID())))
		r.must(r.Delete(r.Context(), l))
		r.create(r.lease("l"))
		r.say("the one before", r.Update(r.Context(), other))
		r.has(l, "spec", "holderIdentity")
	}, want: `
		update of a missing one with its UID: Conflict
		l is gone
		update of a missing one without: ok
		l is there
		create again: AlreadyExists
		the first one, version moves: ok
		the second one: Conflict
		nothing new: ok
		no version: Invalid
		another UID: Conflict
		the one before: Conflict
		spec.holderIdentity is "a"`},
	{name: "spec, labels and status", play: func(r *run) {
		p := r.peering()
		r.create(p)
		r.has(p, "metadata", "generation")
		r.moves("status", p, func() error {
			p.Spec.Overlay, p.Status.Planes = "VXLAN", planes(1300)
			return r.Status().Update(r.Context(), p)
		})
		r.has(p, "spec", "overlay")
		r.moves("status again", p, func() error { return r.Status().Update(r.Context(), p) })
		r.moves("labels", p, func() error {
			return edit(r, p, func(p *v1alpha1.Peering) { p.Labels = map[string]string{"a": "b"} })
		})
		r.moves("spec", p, func() error {
			return edit(r, p, func(p *v1alpha1.Peering) { p.Spec.Overlay, p.Status.Planes[0].MTU = "VXLAN", 1200 })
		})
		r.said = append(r.said, fmt.Sprint("MTU: ", p.Status.Planes[0].MTU))
		d := r.deployment("d")
		r.create(d)
		r.moves("replicas", d, func() error { return edit(r, d, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(3)) }) })
		r.moves("their status", d, func() error { d.Status.ObservedGeneration = 2; return r.Status().Update(r.Context(), d) })
	}, want: `
		metadata.generation is 1
		status, version moves: ok
		spec.overlay is "Geneve"
		status again: ok
		labels, version moves: ok
		spec, version moves, generation moves: ok
		MTU: 1300
		replicas, version moves, generation moves: ok
		their status, version moves: ok`},
	{name: "apply of a list that becomes empty again", play: func(r *run) {
		p, all := r.peering(), r.peering().Spec.Planes
		for _, planes := range [][]v1alpha1.Plane{{}, all, {}} {
			p.Spec.Planes, p.ManagedFields, p.ResourceVersion = planes, nil, ""
			r.say(fmt.Sprint(len(planes)), r.apply("one", p.DeepCopy()))
		}
	}, want: `
		0: ok
		1: ok
		0: ok`},
	{name: "apply of a status", play: func(r *run) {
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
		r.say("of a missing one", applied(missing))
		r.create(p)
		r.moves("apply", p, func() error { return applied(p.DeepCopy()) })
		r.has(p, "spec", "overlay")
		p.Labels = map[string]string{"a": "b"}
		r.moves("another UID", p, func() error {
			p := withUID(p.DeepCopy(), uuid.NewUUID())
			p.Status.Planes = planes(1300)
			return applied(p)
		})
		r.has(p, "metadata", "labels", "a")
		r.moves("update with another UID", p, func() error {
			r.must(r.Get(r.Context(), client.ObjectKeyFromObject(p), p))
			p.Status.Planes = planes(1200)
			return r.Status().Update(r.Context(), withUID(p.DeepCopy(), uuid.NewUUID()))
		})
	}, want: `
		of a missing one: NotFound
		apply, version moves: ok
		spec.overlay is "Geneve"
		another UID, version moves: ok
		metadata.labels.a is nothing
		update with another UID: Conflict`},
	{name: "patches", play: func(r *run) {
		c := r.configMap("c", "a", "1")
		r.say("of a missing one", r.patch(r.configMap("c"), types.MergePatchType, `{"data":{"a":"2"}}`))
		r.create(c)
		before := c.DeepCopy()
		r.moves("nothing new", c, func() error { return r.patch(r.configMap("c"), types.MergePatchType, `{"data":{"a":"1"}}`) })
		r.moves("merge", c, func() error {
			return r.patch(r.configMap("c"), types.MergePatchType, `{"data":{"a":null,"b":"2"}}`)
		})
		r.has(c, "data")
		changed := before.DeepCopy()
		changed.Data["a"] = "3"
		r.say("with an old version", r.Patch(r.Context(), changed, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
		r.say("with another UID", r.patch(r.configMap("c"), types.MergePatchType, fmt.Sprintf(`{"metadata":{"uid":%q}}`, uuid.NewUUID())))
		r.say("a test that fails", r.patch(r.configMap("c"), types.JSONPatchType, `[{"op":"test","path":"/data/b","value":"1"},{"op":"remove","path":"/data/b"}]`))
		r.moves("one that does not", c, func() error {
			return r.patch(r.configMap("c"), types.JSONPatchType, `[{"op":"test","path":"/data/b","value":"2"},{"op":"remove","path":"/data/b"}]`)
		})
	}, want: `
		of a missing one: NotFound
		nothing new: ok
		merge, version moves: ok
		data is {"b":"2"}
		with an old version: Conflict
		with another UID: Invalid
		a test that fails: Invalid
		one that does not, version moves: ok`},
	{name: "a finalizer", play: func(r *run) {
		d := withFinalizer(r.deployment("d"))
		r.create(d)
		r.moves("delete", d, func() error { return r.Delete(r.Context(), r.deployment("d")) })
		r.isThere(d)
		r.moves("delete again", d, func() error { return r.Delete(r.Context(), r.deployment("d")) })
		r.say("create", r.Create(r.Context(), r.deployment("d")))
		r.moves("apply", d, func() error { return r.apply("m", withFinalizer(r.deployment("d"))) })
		more := r.deployment("d")
		more.Finalizers = []string{"liqonet.io/other"}
		r.say("another finalizer", r.apply("other", more))
		r.say("release", release(r, d))
		r.isThere(d)
	}, want: `
		delete, version moves, generation moves: ok
		d is going
		delete again: ok
		create: AlreadyExists
		apply, version moves: ok
		another finalizer: Invalid
		release: ok
		d is gone`},
	{name: "an owner that does not exist", play: func(r *run) {
		gone := metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Peering", Name: r.ns, UID: uuid.NewUUID()}
		objs := []client.Object{
			owned(r.configMap("configmap"), gone), owned(r.lease("lease"), gone), owned(r.secret("secret"), gone),
			owned(&corev1.ServiceAccount{ObjectMeta: r.meta("account")}, gone), owned(r.deployment("deployment"), gone),
			owned(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: r.ns}}, gone),
		}
		r.create(r.peering()) // of that name, but another one
		r.create(objs...)
		r.say("apply", r.apply("m", owned(r.configMap("applied"), gone)))
		r.goes(append(objs, r.configMap("applied"))...)
		r.isThere(r.peering())
	}, want: `
		apply: ok
		configmap goes
		lease goes
		secret goes
		account goes
		deployment goes
		NAMESPACE goes
		applied goes
		NAMESPACE is there`},
	{name: "an owner that is deleted", play: func(r *run) {
		p := r.peering()
		r.create(p)
		of := r.owner(p)
		kept := withFinalizer(owned(r.configMap("kept"), of))
		objs := []client.Object{
			owned(r.lease("lease"), of), owned(r.secret("secret"), of), owned(r.deployment("deployment"), of),
			owned(&rbacv1.Role{ObjectMeta: r.meta("role")}, of), owned(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: r.ns}}, of),
		}
		r.create(append(objs, kept, r.configMap("free"))...)
		r.say("delete", r.Delete(r.Context(), p, client.PropagationPolicy(metav1.DeletePropagationBackground)))
		r.isThere(p)
		r.goes(objs...)
		r.until("kept is going", kept, isGoing)
		r.isThere(r.configMap("free"))
		r.must(release(r, kept))
		r.isThere(kept)
	}, want: `
		delete: ok
		NAMESPACE is gone
		lease goes
		secret goes
		deployment goes
		role goes
		NAMESPACE goes
		kept is going
		free is there
		kept is gone`},
	{name: "an owner that is deleted without a word about dependents", play: func(r *run) {
		p := r.peering()
		r.create(p)
		secret := owned(r.secret("secret"), r.owner(p))
		r.create(secret)
		r.say("delete", r.Delete(r.Context(), p))
		r.isThere(p)
		r.goes(secret)
	}, want: `
		delete: ok
		NAMESPACE is gone
		secret goes`},
	{name: "one of two owners", play: func(r *run) {
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
	}, want: `
		c has one
		c goes`},
	{name: "an owner that waits for its dependents", play: func(r *run) {
		p := r.peering()
		r.create(p)
		blocking := r.owner(p)
		blocking.BlockOwnerDeletion = new(true)
		kept, free := withFinalizer(owned(r.secret("kept"), blocking)), withFinalizer(owned(r.secret("free"), r.owner(p)))
		r.create(kept, free)
		r.collectorKnows(free)
		r.moves("delete", p, func() error {
			return r.Delete(r.Context(), p, client.PropagationPolicy(metav1.DeletePropagationForeground))
		})
		r.isThere(p)
		r.until("kept is going", kept, isGoing)
		r.until("free is going", free, isGoing)
		r.has(p, "metadata", "finalizers")
		r.must(release(r, kept))
		r.goes(p) // for free it does not wait
		r.isThere(free)
		r.must(release(r, free))
	}, want: `
		delete, version moves, generation moves: ok
		NAMESPACE is going
		kept is going
		free is going
		metadata.finalizers is ["foregroundDeletion"]
		NAMESPACE goes
		free is going`},
	{name: "an owner that leaves its dependents", play: func(r *run) {
		p := r.peering()
		r.create(p)
		c := owned(r.secret("c"), r.owner(p))
		r.create(c)
		r.collectorKnows(c)
		r.say("delete", r.Delete(r.Context(), p, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
		r.goes(p)
		r.has(c, "metadata", "ownerReferences")
	}, want: `
		delete: ok
		NAMESPACE goes
		metadata.ownerReferences is nothing`},
	{name: "a definition that is deleted", play: func(r *run) {
		network := func(name string) *v1alpha1.NodeNetwork {
			n := schema.Examples()["NodeNetwork"].(*v1alpha1.NodeNetwork)
			n.Name, n.Status = name, v1alpha1.NodeNetworkStatus{}
			return n
		}
		one, kept := network("10.80.0.1"), withFinalizer(network("10.80.0.2"))
		r.create(one, kept)
		definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "nodenetworks." + v1alpha1.GroupVersion.Group}}
		r.say("delete", r.Delete(r.Context(), definition))
		r.goes(one)
		r.until("the other is going", kept, isGoing)
		r.isThere(definition)
		r.say("create", r.Create(r.Context(), network("10.80.0.3")))
		r.say("apply", r.apply("m", network("10.80.0.3")))
		r.must(release(r, kept))
		r.goes(definition)
		apiserver.Wait(r.T, "the kind is served no more", func() error { // some requests later
			if err := r.Create(r.Context(), network("10.80.0.3")); answer(err) != "NotFound" {
				return fmt.Errorf("create: %w", err)
			}
			return nil
		})
		r.say("apply without a definition", r.apply("m", network("10.80.0.3")))
		r.say("get", r.Get(r.Context(), client.ObjectKeyFromObject(one), network("")))
		r.say("list", r.List(r.Context(), &v1alpha1.NodeNetworkList{}))
		for _, d := range manifests.CRDs() {
			if d.Name == definition.Name {
				r.create(d)
			}
		}
		apiserver.Wait(r.T, "the kind is served again", func() error { return r.apply("m", network("10.80.0.4")) })
		r.isThere(one, network("10.80.0.4"))
	}, want: `
		delete: ok
		10.80.0.1 goes
		the other is going
		nodenetworks.liqonet.io is going
		create: Forbidden
		apply: Forbidden
		nodenetworks.liqonet.io goes
		apply without a definition: NotFound
		get: NotFound
		list: NotFound
		10.80.0.1 is gone
		10.80.0.4 is there`, played: `
		delete: ok
		10.80.0.1 goes
		the other is going
		nodenetworks.liqonet.io is going
		create: Forbidden
		apply: Forbidden
		nodenetworks.liqonet.io goes
		apply without a definition: NotFound
		get: NotFound
		list: ok
		10.80.0.1 is gone
		10.80.0.4 is there`, why: "tests ask for lists to see that a command has left nothing, and few of them install definitions"},
	{name: "deletion of all with a label", play: func(r *run) {
		labelled := func(c *corev1.ConfigMap) *corev1.ConfigMap {
			c.Labels = map[string]string{"a": "b"}
			return c
		}
		one, kept, other := labelled(r.configMap("one")), withFinalizer(labelled(r.configMap("kept"))), r.configMap("other")
		r.create(one, kept, other)
		r.say("delete", r.DeleteAllOf(r.Context(), &corev1.ConfigMap{}, client.InNamespace(r.ns), client.MatchingLabels{"a": "b"}))
		r.isThere(one, kept, other)
		r.must(release(r, kept))
		r.say("delete none", r.DeleteAllOf(r.Context(), &corev1.ConfigMap{}, client.InNamespace(r.ns), client.MatchingLabels{"a": "b"}))
	}, want: `
		delete: ok
		one is gone
		kept is going
		other is there
		delete none: ok`},
	{name: "a watch from a list on", play: func(r *run) {
		r.create(r.configMap("old"), r.configMap("changed", "a", "1"))
		var list corev1.ConfigMapList
		r.must(r.List(r.Context(), &list, client.InNamespace(r.ns)))
		r.create(r.configMap("new"))
		r.must(edit(r, r.configMap("changed"), func(c *corev1.ConfigMap) { c.Data["a"] = "2" }))
		r.must(r.Delete(r.Context(), r.configMap("old")))
		w, err := r.Watch(r.Context(), &corev1.ConfigMapList{}, client.InNamespace(r.ns), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
		r.must(err)
		defer w.Stop()
		r.events(r.Context(), w.ResultChan(), 3)
		r.must(r.apply("m", r.configMap("new", "a", "1")))
		r.events(r.Context(), w.ResultChan(), 1)
		r.must(r.apply("m", r.configMap("new", "a", "1")))
		r.must(r.Delete(r.Context(), r.configMap("new")))
		r.events(r.Context(), w.ResultChan(), 1)
		r.create(r.configMap("new"))
		r.events(r.Context(), w.ResultChan(), 1)
	}, want: `
		ADDED new, DELETED old, MODIFIED changed
		MODIFIED new
		DELETED new
		ADDED new`},
	{name: "what nobody may change", play: func(r *run) {
		s, d := r.secret("s"), r.deployment("d")
		s.Immutable = new(true)
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: r.ns}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "a"}}
		v := &appsv1.ControllerRevision{ObjectMeta: r.meta("v"), Data: runtime.RawExtension{Raw: []byte(`{"a":"1"}`)}, Revision: 1}
		r.create(s, d, b, v)
		r.say("data", edit(r, s, func(s *corev1.Secret) { s.Data["a"] = []byte("2") }))
		applied := r.secret("s")
		applied.Data["b"] = []byte("2")
		r.say("data by apply", r.apply("m", applied, client.ForceOwnership))
		r.say("that it is so", edit(r, s, func(s *corev1.Secret) { s.Immutable = nil }))
		r.say("labels", edit(r, s, func(s *corev1.Secret) { s.Labels = map[string]string{"a": "b"} }))
		r.say("a selector", edit(r, d, func(d *appsv1.Deployment) {
			d.Spec.Selector.MatchLabels = map[string]string{"app": "x"}
			d.Spec.Template.Labels = map[string]string{"app": "x"}
		}))
		r.say("a role", edit(r, b, func(b *rbacv1.ClusterRoleBinding) { b.RoleRef.Name = "b" }))
		r.say("a revision", edit(r, v, func(v *appsv1.ControllerRevision) { v.Data.Raw = []byte(`{"a":"2"}`) }))
		r.say("its number", edit(r, v, func(v *appsv1.ControllerRevision) { v.Revision = 2 }))
	}, want: `
		data: Invalid
		data by apply: Invalid
		that it is so: Invalid
		labels: ok
		a selector: Invalid
		a role: Invalid
		a revision: Invalid
		its number: ok`},
	{name: "create", play: func(r *run) {
		uid := uuid.NewUUID()
		c := withUID(r.configMap("c"), uid)
		r.say("with a UID", r.Create(r.Context(), c))
		r.said = append(r.said, fmt.Sprint("it has that one: ", c.UID == uid, ", and one: ", c.UID != ""))
		r.say("again", r.Create(r.Context(), r.configMap("c")))
		names := map[string]bool{}
		for range 2 {
			e := r.configMap("")
			e.GenerateName = "prefix-"
			r.create(e)
			names[e.Name] = len(e.Name) > len(e.GenerateName) && e.CreationTimestamp.After(time.Now().Add(-time.Hour))
		}
		r.said = append(r.said, fmt.Sprint("names: ", len(names)))
		r.say("update of a missing one", r.Update(r.Context(), r.configMap("missing")))
		r.moves("update without a version", c, func() error { return r.Update(r.Context(), r.configMap("c", "a", "1")) })
	}, want: `
		with a UID: ok
		it has that one: false, and one: true
		again: AlreadyExists
		names: 2
		update of a missing one: NotFound
		update without a version, version moves: ok`},
	{name: "create with a status", play: func(r *run) {
		p := r.peering()
		p.Status.Planes = planes(1300)
		r.create(p)
		r.said = append(r.said, fmt.Sprint("planes: ", len(p.Status.Planes)))
	}, want: `
		planes: 0`, played: `
		planes: 1`, why: "tests make the objects that controllers have already reported on in one request"},
	{name: "defaults and validation", play: func(r *run) {
		d := r.deployment("d")
		r.create(d)
		r.has(d, "spec", "replicas")
		r.say("a name that is none", r.Create(r.Context(), r.configMap("A_B")))
		p := r.peering()
		p.Spec.Index = -1
		r.say("a number that is none", r.Create(r.Context(), p))
	}, want: `
		spec.replicas is 1
		a name that is none: Invalid
		a number that is none: Invalid`, played: `
		spec.replicas is nothing
		a name that is none: ok
		a number that is none: ok`, why: "test/schema has our definitions' validation; the rest would be a second API server"},
}
