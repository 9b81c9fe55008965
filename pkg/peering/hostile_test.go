package peering

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
	"github.com/liqonet/liqonet/test/schema"
)

// hostile is an object that no program would write.
type hostile struct {
	kind, namespace, name string
	// how it was changed
	what   string
	object map[string]any
}

func (h hostile) String() string {
	return fmt.Sprintf("%s %s/%s %s", h.kind, h.namespace, h.name, h.what)
}

// replaces puts it in place of the object that was read.
func (h hostile) replaces(obj client.Object) error {
	kind := kube.KindName(obj)
	u, isUnstructured := obj.(*unstructured.Unstructured)
	if isUnstructured {
		kind = u.GetKind()
	}
	if kind != h.kind || obj.GetName() != h.name || obj.GetNamespace() != h.namespace {
		return nil
	}
	content := runtime.DeepCopyJSON(h.object)
	if isUnstructured {
		u.Object = content
		return nil
	}
	fresh := reflect.New(reflect.TypeOf(obj).Elem())
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, fresh.Interface()); err != nil {
		return err // a client rejects it
	}
	reflect.ValueOf(obj).Elem().Set(fresh.Elem())
	return nil
}

// isExtra reports whether it is an additional item in a list of its kind.
func (h hostile) isExtra(list client.ObjectList) bool {
	return h.name == "extra" && kube.KindName(list) == h.kind
}

// answering returns the same cluster, which returns the hostile object.
func (w *Site) answering(h hostile) *kube.Cluster {
	return w.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if err := r.Send(ctx); err != nil {
			return err
		}
		switch obj := r.Object.(type) {
		case client.Object:
			if r.Verb == "get" {
				return h.replaces(obj)
			}
		case client.ObjectList:
			if r.Verb == "list" {
				return h.replacesIn(obj)
			}
		}
		return nil
	})
}

// replacesIn puts it in place of an item, or adds it to the list.
func (h hostile) replacesIn(list client.ObjectList) error {
	items := reflect.ValueOf(list).Elem().FieldByName("Items")
	if h.isExtra(list) {
		items.Set(reflect.Append(items, reflect.New(items.Type().Elem()).Elem()))
		extra := items.Index(items.Len() - 1).Addr().Interface().(client.Object)
		extra.SetName(h.name)
		return h.replaces(extra)
	}
	for i := range items.Len() {
		if obj, ok := items.Index(i).Addr().Interface().(client.Object); ok {
			if err := h.replaces(obj); err != nil {
				return err
			}
		}
	}
	return nil
}

// spoiled returns all objects that result from one change to a cluster's objects: a field is missing, a list is
// empty, a number or a string differs. Each field of a kind is changed once.
func spoiled(t *testing.T, w *Site) (out []hostile) {
	t.Helper()
	known := map[string]bool{}
	for _, list := range append(
		append(engine.Workloads(), engine.Accounts()...), &coordinationv1.LeaseList{}, engine.RolloutKinds()[2], &corev1.NamespaceList{}, &corev1.NodeList{}, &corev1.PodList{}, &corev1.ConfigMapList{},
		&discoveryv1.EndpointSliceList{}, &v1alpha1.ClusterNetworkList{}, &v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{},
	) {
		kit.NoError(t, w.Client.List(t.Context(), list))
		objs := kube.Items(list)
		for _, obj := range objs {
			content := kit.Must(runtime.DefaultUnstructuredConverter.ToUnstructured(obj))(t)
			unstructured.RemoveNestedField(content, "metadata", "managedFields")
			add := func(path []any, what string, value any) {
				var fields []string
				for _, p := range path {
					if name, ok := p.(string); ok {
						fields = append(fields, name)
					}
				}
				h := hostile{kube.KindName(list), obj.GetNamespace(), obj.GetName(), strings.Join(fields, ".") + what, nil}
				if id := h.kind + h.what; !known[id] {
					known[id] = true
					h.object = replaced(runtime.DeepCopyJSON(content), path, value).(map[string]any)
					out = append(out, h)
				}
			}
			walk(content, nil, add)
		}
	}
	return out
}

// walk calls add with the changes of each field.
func walk(value any, path []any, add func(path []any, what string, value any)) {
	path = slices.Clip(path)
	switch v := value.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			add(append(path, k), " is missing", nil)
			walk(v[k], append(path, k), add)
		}
	case []any:
		add(path, " is empty", []any{})
		for i := range v {
			walk(v[i], append(path, i), add)
		}
	case int64:
		add(path, " is negative", int64(-7))
		add(path, " is large", int64(1)<<31-1)
	case string:
		add(path, " is another text", "?")
		add(path, " is another address", "fd00::1%x")
		add(path, " is another range", "0.0.0.0/0")
	}
}

// replaced returns the value with another one at the path; nil for none.
func replaced(in any, path []any, by any) any {
	if len(path) == 0 {
		return by
	}
	switch key := path[0].(type) {
	case string:
		m := in.(map[string]any)
		if m[key] = replaced(m[key], path[1:], by); m[key] == nil {
			delete(m, key)
		}
	case int:
		l := in.([]any)
		l[key] = replaced(l[key], path[1:], by)
	}
	return in
}

// isPanic reports whether an error is a recovered panic.
func isPanic(err error) bool {
	return err != nil && strings.Contains(err.Error(), "process the clusters' answers")
}

// frozen is the site without simulated agents: nothing changes any more.
func (w *Site) frozen() *Site {
	c := *w.Cluster
	c.Client = w.Raw
	return &Site{Cluster: &c, Raw: w.Raw}
}

// havePanicked are objects that once made commands panic.
var havePanicked = sets.New(
	"DaemonSet spec.template.spec.containers is missing", "Peering spec.planes is missing", "Peering spec.planes is empty", "Service spec.ports is empty",
)

// No object in a cluster makes a command panic.
func TestHostileObjects(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	a, b := TwoSites(t)
	MustPeer(t, a, b, engine.Options{Server: b.ID}) // which has a Service
	all := spoiled(t, b)
	a, b = a.frozen(), b.frozen()
	old := slices.DeleteFunc(slices.Clone(all), func(h hostile) bool { return !havePanicked.Has(h.kind + " " + h.what) })
	kit.Check(t, "objects that have panicked", len(old), len(havePanicked))
	for _, h := range append(old, kubetest.Some(t, all, 40, 600)...) {
		c := b.answering(h)
		_, err := status.Views(t.Context(), c)
		kit.ErrorIf(t, isPanic(err), "status, %s: %v", h, err)
		_, err = PlanAll(t.Context(), []Pair{{a.Cluster, c}}, engine.Options{}, kube.Quiet{})
		kit.ErrorIf(t, isPanic(err), "dry run, %s: %v", h, err)
	}
	for _, h := range kubetest.Some(t, all, 3, 40) {
		synctest.Test(t, func(t *testing.T) {
			a, b := Peered(t)
			c := b.answering(h)
			_, err := Peer(kit.Timeout(t, 5*time.Second), a.Cluster, c, engine.Options{Image: "image:2"}, kube.Quiet{})
			kit.ErrorIf(t, isPanic(err), "peer, %s: %v", h, err)
			_, _, err = Unpeer(kit.Timeout(t, 5*time.Second), a.Cluster, c, kube.Quiet{})
			kit.ErrorIf(t, isPanic(err), "unpeer, %s: %v", h, err)
		})
	}
}

// No object that an API server stores, whatever its contents, makes a command panic, is expensive, or hides another
// peering.
func TestHostileStoredObjects(t *testing.T) {
	kit.NotShort(t)
	a, b := Peered(t)
	a, b = a.frozen(), b.frozen()
	now := time.Now()
	b.Now = func() time.Time { return now } // agents are alive
	before, err := status.Views(t.Context(), b.Cluster)
	kit.FatalIf(t, err != nil || len(before) != 1 || before[0].State != status.Connected, "%v %v", before, err)
	const oneOf = 10
	for _, list := range []client.ObjectList{&v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{}, &v1alpha1.ClusterNetworkList{}} {
		t.Run(kube.KindName(list), func(t *testing.T) {
			kit.NoError(t, b.Client.List(t.Context(), list))
			objs := kube.Items(list)
			kit.FatalIf(t, len(objs) != 1, "%v", objs)
			objs[0].GetObjectKind().SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kube.KindName(list)))
			planned, tried, viewed, dryRun := 0, 0, schema.NewBound(t, "status"), schema.NewBound(t, "dry run")
			schema.Hostile(t, 100, objs[0], func(obj map[string]any) {
				h := hostile{kube.KindName(list), "", objs[0].GetName(), "as generated", obj}
				c := b.answering(h)
				viewed.Of(obj, func() {
					_, err := status.Views(t.Context(), c)
					kit.ErrorIf(t, err != nil, "status: %v", err)
				})
				if extra := h; h.kind == "Peering" {
					extra.name = "extra"
					views, err := status.Views(t.Context(), b.answering(extra))
					i := slices.IndexFunc(views, func(v status.View) bool { return v.Name == before[0].Name })
					kit.ErrorIf(t, err != nil || i < 0 || views[i].State != status.Connected, "the other peering: %v, %+v", err, views)
				}
				if tried++; tried%oneOf != 1 {
					return // a dry run is slow, mostly due to other objects
				}
				dryRun.Of(obj, func() {
					_, err := PlanAll(t.Context(), []Pair{{a.Cluster, c}}, engine.Options{}, kube.Quiet{})
					if isPanic(err) {
						t.Errorf("dry run: %v", err)
					} else if err == nil {
						planned++
					}
				})
			})
			t.Logf("%d were planned with", planned)
		})
	}
}

// A panic in any request becomes an error, and changes are rolled back until packets pass.
func TestPanicRollsBack(t *testing.T) {
	t.Parallel()
	requests := []int64{2, 25, 60}
	if kit.Full() {
		requests = nil
		for n := range int64(120) {
			requests = append(requests, n+1)
		}
	}
	for _, n := range requests {
		t.Run(fmt.Sprintf("request %d", n), func(t *testing.T) {
			t.Parallel()
			a, b := TwoSites(t)
			var count atomic.Int64
			c := b.Through(func(ctx context.Context, r *fakeapi.Request) error {
				if r.Verb == "get" && count.Add(1) == n {
					var none []string
					_ = none[n]
				}
				return r.Send(ctx)
			})
			_, err := Peer(t.Context(), a.Cluster, c, engine.Options{}, kube.Quiet{})
			if count.Load() < n {
				return
			}
			works := func(w, peer *Site) bool {
				entry := plan.Allocation(kubetest.ReadLedger(t, w.Cluster), peer.ID)
				return entry != nil && entry.Active()
			}
			isDone := works(a, b) && works(b, a) // what follows is cleanup, some of which may fail
			if e := (*kube.Error)(nil); (!isDone || err != nil) &&
				(!isPanic(err) || !errors.As(err, &e) || e.Kind != kube.Unexpected || !strings.Contains(err.Error(), "PanicRollsBack")) {
				t.Errorf("got %v", err)
			}
			if isDone {
				Settled(t, a, b, engine.Options{})
			} else {
				LeavesNothing(t, a, b)
			}
		})
	}
}
