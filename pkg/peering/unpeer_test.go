package peering

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// foreign are objects that are not ours, some with similar names.
func foreign() []client.Object {
	return []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "liqonet-of-somebody-else"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gateway-b-0", Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{v1alpha1.LabelPeering: "b"}}},
		&apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "peerings.example.com"}},
	}
}

// Unpeer removes all that peer made, and nothing else. Again, it removes nothing.
func TestUnpeerLeavesNothing(t *testing.T) {
	kit.Slow(t)
	a, b := TwoSites(t, foreign()...)
	before := []map[string]string{a.versions(t), b.versions(t)}
	MustPeer(t, a, b, engine.Options{})
	for _, want := range []engine.Removed{{Peering: true, Agents: true}, {}} {
		inA, inB, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{})
		kit.NoError(t, err)
		kit.Check(t, "what was removed", [2]engine.Removed{inA, inB}, [2]engine.Removed{want, want})
		for i, w := range []*Site{a, b} {
			kit.Check(t, "the objects of "+w.Name, w.versions(t), before[i])
			Get(t, w, "default", "web", &corev1.Pod{})
		}
	}
}

// TestPermissionsToRemove compares the permissions that are checked with those that removing a peering uses.
func TestPermissionsToRemove(t *testing.T) {
	var mu sync.Mutex
	used := map[string]bool{}
	a, b := Peered(t)
	c := a.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if slices.Contains([]string{"get", "list", "update", "delete", "deletecollection"}, r.Verb) && r.Sub == "" {
			mu.Lock()
			defer mu.Unlock()
			plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: r.Kind})
			used[r.Verb+" "+plural.Resource] = true
		}
		return r.Send(ctx)
	})
	kit.Must(remove(t.Context(), c, b.ID, 0, kube.Quiet{}, func() {}))(t)
	for _, p := range engine.RemovePermissions() {
		delete(used, p.Verb+" "+p.Resource)
	}
	kit.ErrorIf(t, len(used) > 0, "not asked for: %v", slices.Sorted(maps.Keys(used)))
}

// record returns the record of an agent whose clock shows clock when the API server's shows stamp.
func record(t *testing.T, name string, labels map[string]string, clock, stamp time.Time, entries ...history.Entry) *corev1.ConfigMap {
	t.Helper()
	data := map[string]string{history.ClockKey: clock.Format(time.RFC3339Nano)}
	for i, e := range entries {
		e.Number = int64(i + 1)
		value := kit.Must(history.Encode(e))(t)
		data[history.Key(e.Number)] = value
	}
	all := map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}
	for k, v := range labels {
		all[k] = v
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.Namespace, Name: name, Labels: all,
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "agent", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1("{}"), Time: new(metav1.NewTime(stamp))}},
		},
		Data: data,
	}
}

// Records of agents in two clusters, with five wrong clocks, are merged into one time line.
func TestHistory(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	entry := func(when time.Time, to string) history.Entry {
		return history.Entry{Time: when, Peering: "p", Plane: new(int32(0)), Subject: "plane", From: "x", To: to, Reason: "r"}
	}
	gateway := map[string]string{v1alpha1.LabelPlane: "0"}
	// Agents are an hour behind, exact, and 90 s ahead of their API servers. b's API server is a minute ahead of a's.
	behind, ahead, minute := -time.Hour, 90*time.Second, time.Minute
	a := kubetest.NewCluster(t, "a", interceptor.Funcs{}, record(t, "history-gateway-p-0", gateway, at.Add(behind), at.Truncate(time.Second), entry(at.Add(behind-40*time.Second), "1"), entry(at.Add(behind-20*time.Second), "3")),
		record(t, "history-node-w1", nil, at.Add(400*time.Millisecond), at, entry(at.Add(-30*time.Second), "2")),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "history-foreign"}, Data: map[string]string{"001": `{"number":1,"to":"no"}`}})
	b := kubetest.NewCluster(t, "b", interceptor.Funcs{}, record(t, "history-gateway-p-0", gateway, at.Add(minute+ahead), at.Add(minute), entry(at.Add(minute+ahead-10*time.Second), "4")))
	a.Now = func() time.Time { return at }
	b.Now = func() time.Time { return at.Add(minute) }
	var all []status.HistoryEntry
	for _, c := range []*kube.Cluster{b, a} {
		entries := kit.Must(status.History(t.Context(), c, a))(t)
		all = append(all, entries...)
	}
	status.SortHistory(all)
	var got []string
	for i, e := range all {
		got = append(got, e.Cluster+" "+e.Agent+" "+e.To)
		want := at.Add(time.Duration(i-4) * 10 * time.Second)
		kit.ErrorIf(t, e.Time.Sub(want).Abs() > time.Second, "%s was at %s, want %s", got[i], e.Time, want)
	}
	kit.Check(t, "result", got, []string{"a gateway 0 1", "a node w1 2", "a gateway 0 3", "b gateway 0 4"})
	want := at.Add(-30 * time.Second)
	kit.ErrorIf(t, !all[1].Time.Equal(want), "a clock that is right was corrected: %s, want %s", all[1].Time, want)
}

// Removing a peering leaves no Events, and nothing in the records of remaining agents.
func TestUnpeerForgets(t *testing.T) {
	now := time.Now()
	a, b := Peered(t)
	event := func(name, kind, about string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: name},
			InvolvedObject: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Name: about},
		}
	}
	nodes := record(t, "history-node-a-1", nil, now, now, history.Entry{Peering: "b", To: "1"}, history.Entry{Peering: "c", To: "2"}, history.Entry{Peering: "b", To: "3"})
	for _, o := range []client.Object{event("1", "Peering", "b"), event("2", "Peering", "c"), nodes} {
		kit.NoError(t, a.Raw.Create(t.Context(), o))
	}
	// The next command does not mistake a history for the journal of an interrupted one.
	own := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "history-gateway-b-0"}}
	kit.NoError(t, a.Raw.Patch(t.Context(), own, client.RawPatch(types.MergePatchType, []byte(`{"data":{"clock":"x"}}`))))
	MustPeer(t, a, b, engine.Options{})
	if err := a.Raw.Get(t.Context(), client.ObjectKeyFromObject(own), own); err != nil || own.Data[history.ClockKey] != "x" {
		t.Errorf("peering again has changed the history: %v, %v", own.Data, err)
	}
	kit.NoError(t, engine.DeleteHistory(t.Context(), a.Cluster, "b"))
	entries, err := status.History(t.Context(), a.Cluster, a.Cluster)
	kit.ErrorIf(t, err != nil || len(entries) != 1 || entries[0].To != "2", "it keeps %v: %v", entries, err)
	MustUnpeer(t, a, b)
	var events corev1.EventList
	var records corev1.ConfigMapList
	kit.NoError(t, a.Raw.List(t.Context(), &events))
	kit.NoError(t, a.Raw.List(t.Context(), &records, client.InNamespace(v1alpha1.Namespace)))
	kit.ErrorIf(t, len(events.Items)+len(records.Items) > 0, "it leaves %v and %v", events.Items, records.Items)
}

// Kubernetes' Events about Endpoints of our Services are in the default namespace, among those about others.
func TestMisplacedEvents(t *testing.T) {
	event := func(kind, about, message string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: about},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: kind, Name: about}, Message: message,
		}
	}
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{},
		event("Endpoints", "gateway-b", "Failed to create endpoint for service liqonet-system/gateway-b: it already exists"),
		event("Endpoints", "web", "Failed to create endpoint for service default/web: it already exists"),
		event("Pod", "client", "calls liqonet-system/gateway-b"))
	kit.NoError(t, engine.DeleteMisplacedEvents(t.Context(), c))
	var left corev1.EventList
	kit.NoError(t, c.Client.List(t.Context(), &left))
	var names []string
	for _, e := range left.Items {
		names = append(names, e.Name)
	}
	kit.Check(t, "names", names, []string{"client", "web"})
}

// Whenever the clusters are unpeered while another command works on them, that command ends soon, and nothing of the
// peering is left. If it was the last one, nothing of liqonet is left. Only an upgrade is waited for.
func TestUnpeerMeanwhile(t *testing.T) {
	kit.Play(t)
	first, step := 1, 1
	if !kit.Full() {
		first, step = 1+rand.New(rand.NewPCG(kubetest.Seed(), 0)).IntN(31), 61 // unpeer at different moments
		t.Logf("-seed %d: at write %d", kubetest.Seed(), first)
	}
	for name, do := range kubetest.SomeOf(t, 2, map[string]func(ctx context.Context, a, b *kube.Cluster) error{
		"upgrade": RollsOut["upgrade"], "upgrade of both": verbs["upgrade"], "rotate-keys": verbs["rotate-keys"], "peer": verbs["peer"],
	}) {
		for _, last := range []bool{false, true} {
			t.Run(fmt.Sprint(name, map[bool]string{false: " next to another peering", true: " of the last one"}[last]), func(t *testing.T) {
				t.Parallel()
				isDone := false
				for at := first; !isDone; at += step {
					synctest.Test(t, func(t *testing.T) { // with the real timeouts of commands
						a, b := unpeeredPair(t, 2)
						if !last {
							a.PeeredWith(t, "c", "10.244.0.0/16", "172.18.3.11")
							a.Peer = b
						}
						before := []map[string]string{a.versions(t), b.versions(t)}
						MustPeer(t, a, b, engine.Options{})
						unpeered, begun := false, time.Now()
						var unpeering sync.WaitGroup
						a.Writes, a.BeforeWriteAt, a.BeforeWrite = 0, at, func() {
							unpeered, begun = true, time.Now()
							unpeering.Go(func() {
								_, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{})
								kit.ErrorIf(t, err != nil, "at write %d: unpeer: %v", at, err)
							})
							if at%2 == 1 && !strings.HasPrefix(name, "upgrade") { // unpeer waits for it
								unpeering.Wait()
							}
						}
						ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
						err := do(ctx, a.Cluster, b.Cluster)
						cancel()
						unpeering.Wait()
						if !unpeered {
							kit.ErrorIf(t, at < 5, "%d writes are none", at)
							isDone = true
							return
						}
						e := (*failure.Error)(nil)
						kit.ErrorIf(t, err != nil && (!errors.As(err, &e) || e.Kind == failure.Unexpected), "at write %d: %v", at, err)
						if time.Since(begun) > 20*time.Second || errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("at write %d: after %s: %v", at, time.Since(begun), err)
						}
						t.Logf("at write %d after %s: %v", at, time.Since(begun), err)
						for i, w := range []*Site{a, b} {
							for _, name := range slices.Sorted(maps.Keys(w.versions(t))) {
								// If all keys are replaced, another peering need not have the first one.
								isKey := err == nil && name == "Secret liqonet-system/liqonet-overlay-2"
								_, was := before[i][name]
								kit.ErrorIf(t, !was && !isKey, "at write %d: %s still has %s", at, w.Name, name)
							}
						}
					})
				}
			})
		}
	}
}
