package peering

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// house is everything of ours that a cluster with one peering has.
func house(t *testing.T, peers ...string) []client.Object {
	t.Helper()
	crds, err := manifests.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	var objs []client.Object
	for _, crd := range crds {
		objs = append(objs, crd)
	}
	account, daemonSet := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
	objs = append(objs, ledgerOf(peers...), manifests.Namespace(), daemonSet, node("n1", true))
	for _, o := range account {
		objs = append(objs, o)
	}
	n := report("n1", "10.80.0.1", &v1alpha1.KernelFacts{})
	n.Labels = map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}
	objs = append(objs, &n)
	for _, p := range peers {
		g := manifests.Gateway{Peering: p, Agents: manifests.Agents{Image: "image"}, Role: v1alpha1.Server, Port: 51840}
		account, deployment := g.Objects()
		for _, o := range account {
			objs = append(objs, o)
		}
		meta := metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: g.Name(), Labels: g.Labels()}
		objs = append(
			objs, deployment, manifests.GatewayService(p, corev1.ServiceTypeNodePort, 51840, []int32{0}), &corev1.Secret{ObjectMeta: meta}, &corev1.Pod{ObjectMeta: meta}, &appsv1.ReplicaSet{ObjectMeta: meta},
			&v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: p, Labels: g.Labels()}, Spec: somePeering().Spec},
		)
	}
	return objs
}

// foreign are objects that are not ours, some with like names.
func foreign() []client.Object {
	return []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "liqonet-of-somebody-else"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gateway-b-0", Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{v1alpha1.LabelPeering: "b"}}},
		&apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "peerings.example.com"}},
	}
}

// inventory lists everything in a cluster, as kind namespace/name.
func inventory(t *testing.T, c *Cluster) []string {
	t.Helper()
	var out []string
	for _, list := range append(
		append(workloads(), accounts()...), &coordinationv1.LeaseList{}, &corev1.PodList{}, &appsv1.ReplicaSetList{}, &corev1.NamespaceList{}, &apiextensionsv1.CustomResourceDefinitionList{},
		&v1alpha1.ClusterNetworkList{}, &v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{},
	) {
		if err := c.Client.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		objs, err := items(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objs {
			out = append(out, describe(o))
		}
	}
	slices.Sort(out)
	return out
}

func TestUnpeerLeavesNothing(t *testing.T) {
	want := inventory(t, newCluster(t, "a", interceptor.Funcs{}, foreign()...))
	a := newCluster(t, "a", interceptor.Funcs{}, append(house(t, "b"), foreign()...)...)
	b := newCluster(t, "b", interceptor.Funcs{}, foreign()...)
	inA, inB, err := Unpeer(t.Context(), a, b, Silent{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([2]Removed{{Peering: true, Agents: true}, {}}, [2]Removed{inA, inB}); diff != "" {
		t.Error(diff)
	}
	for _, c := range []*Cluster{a, b} {
		if diff := cmp.Diff(want, inventory(t, c)); diff != "" {
			t.Errorf("cluster %s:\n%s", c.Name, diff)
		}
	}
	inA, inB, err = Unpeer(t.Context(), b, a, Silent{})
	if diff := cmp.Diff([2]Removed{}, [2]Removed{inA, inB}); err != nil || diff != "" {
		t.Errorf("again: %v\n%s", err, diff)
	}
}

func TestUnpeerKeepsOtherPeerings(t *testing.T) {
	c := newCluster(t, "c", interceptor.Funcs{})
	a := newCluster(t, "a", interceptor.Funcs{}, append(house(t, "b", "c"), foreign()...)...)
	inA, _, err := Unpeer(t.Context(), a, c, Silent{})
	if err != nil || !inA.Peering || inA.Agents {
		t.Fatalf("%+v, %v", inA, err)
	}
	want := inventory(t, newCluster(t, "a", interceptor.Funcs{}, append(house(t, "b"), foreign()...)...))
	if diff := cmp.Diff(want, inventory(t, a)); diff != "" {
		t.Error(diff)
	}
	if cn := readLedger(t, a); len(cn.Spec.Peers) != 1 || cn.Spec.Peers[0].Name != "b" {
		t.Errorf("the ledger has %+v", cn.Spec.Peers)
	}
}

func TestUninstallWhileInUse(t *testing.T) {
	c := newCluster(t, "a", interceptor.Funcs{}, append(house(t, "b"), foreign()...)...)
	before, ledger := inventory(t, c), readLedger(t, c)
	if was, err := c.removeUnused(t.Context(), Silent{}); was || err != nil {
		t.Fatal(was, err)
	}
	if diff := cmp.Diff(before, inventory(t, c)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(ledger, readLedger(t, c), compare); diff != "" {
		t.Error(diff)
	}
}

func TestSameCluster(t *testing.T) {
	a := newCluster(t, "a", interceptor.Funcs{})
	b := *a
	b.Name = "b"
	_, err := Peer(t.Context(), a, &b, Options{}, Silent{})
	_, _, unpeerErr := Unpeer(t.Context(), a, &b, Silent{})
	if kindOf(t, err) != Usage || kindOf(t, unpeerErr) != Usage {
		t.Errorf("got %v, %v", err, unpeerErr)
	}
}

func TestNodesClean(t *testing.T) {
	dirty := func(name, address, peering string) *v1alpha1.NodeNetwork {
		n := report(name, address, nil)
		n.Status.Gateways = []v1alpha1.NodeGateway{{PeeringName: peering}}
		return &n
	}
	tests := []struct {
		name    string
		objs    []client.Object
		peering string
		skipped []string
		wait    bool
	}{
		{name: "nothing there", peering: "b"},
		{name: "of another peering", peering: "b", objs: []client.Object{node("n1", true), dirty("n1", "10.80.0.1", "c")}},
		{name: "still there", peering: "b", objs: []client.Object{node("n1", true), dirty("n1", "10.80.0.1", "b")}, wait: true},
		{name: "any peering", objs: []client.Object{node("n1", true), dirty("n1", "10.80.0.1", "b")}, wait: true},
		{name: "a node that is not ready", peering: "b", objs: []client.Object{node("n1", true), node("n2", false), dirty("n2", "10.80.0.2", "b")}, skipped: []string{"n2"}},
		{name: "no node is ready", peering: "b", objs: []client.Object{node("n2", false), dirty("n2", "10.80.0.2", "b")}, skipped: []string{"n2"}},
		{name: "a node that is gone", peering: "b", objs: []client.Object{node("n1", true), dirty("n9", "10.80.0.9", "b")}, skipped: []string{"n9"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			patience := time.Minute
			if tt.wait {
				patience = 3 * time.Second // the time for one look, on a busy machine
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("it waits"))
			defer cancel()
			c := newCluster(t, "a", interceptor.Funcs{}, tt.objs...)
			skipped, err := c.nodesClean(ctx, tt.peering)
			if (err != nil) != tt.wait {
				t.Fatal(err)
			}
			if err != nil && (kindOf(t, err) != NotReady || !strings.Contains(err.Error(), "still there on n1")) {
				t.Error(err)
			}
			if diff := cmp.Diff(tt.skipped, skipped, compare); !tt.wait && diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEnsureKey(t *testing.T) {
	cluster := newCluster(t, "a", interceptor.Funcs{}, manifests.Namespace())
	ensure := func(c *Cluster, g manifests.Gateway) (key plan.PlaneFacts, isNew bool, err error) {
		s := newSide(c, 0)
		key, err = s.ensureKey(t.Context(), g)
		return key, len(s.changed) > 0, err
	}
	g := manifests.Gateway{Peering: "b", Agents: manifests.Agents{Image: "image"}, KeyGeneration: 1}
	made, isNew, err := ensure(cluster, g)
	if err != nil || !isNew || made.KeyGeneration != 1 {
		t.Fatal(made, isNew, err)
	}
	public := made.PublicKey
	if again, isNew, err := ensure(cluster, g); err != nil || isNew || again != made {
		t.Errorf("again: new %t, %v, keys %+v, %+v", isNew, err, made, again)
	}
	secret := &corev1.Secret{}
	if err := cluster.Client.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.Namespace, Name: "gateway-b-0-1"}, secret); err != nil {
		t.Fatal(err)
	}
	private, err := wgtypes.NewKey(secret.Data[v1alpha1.KeyFilePrivate])
	if err != nil || private.PublicKey().String() != public || !bytes.Equal(secret.Data[v1alpha1.KeyFilePublic], func() []byte { k := private.PublicKey(); return k[:] }()) {
		t.Errorf("the public key is not that of the private one: %v", err)
	}
	if secret.Immutable == nil || !*secret.Immutable || secret.Labels[v1alpha1.LabelPeering] != "b" || secret.Labels[v1alpha1.LabelManagedBy] != v1alpha1.FieldManager {
		t.Errorf("secret %+v", secret.ObjectMeta)
	}
	if len(public) != 44 {
		t.Errorf("a Peering takes 44 characters, not %q", public)
	}

	t.Run("the private key is in no other object", func(t *testing.T) {
		objs := []any{v1alpha1.PeeringSpec{Planes: []v1alpha1.Plane{{RemotePublicKey: public}}}}
		account, deployment := g.Objects()
		objs = append(objs, deployment)
		for _, o := range account {
			objs = append(objs, o)
		}
		raw, err := json.Marshal(objs)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(raw), public) || strings.Contains(string(raw), base64.StdEncoding.EncodeToString(private[:])) {
			t.Error("the private key is in an object that is not a Secret")
		}
	})
	t.Run("two at once", func(t *testing.T) {
		keys := make([]string, 8)
		news := make([]bool, len(keys))
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() {
				key, isNew, err := ensure(cluster, manifests.Gateway{Peering: "c", KeyGeneration: 1})
				if keys[i], news[i] = key.PublicKey, isNew; err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		made := 0
		for i := range keys {
			if news[i] {
				made++
			}
			if keys[i] != keys[0] {
				t.Errorf("keys differ: %v", keys)
			}
		}
		if made != 1 {
			t.Errorf("%d say that they made it", made)
		}
	})
	t.Run("it is not a key", func(t *testing.T) {
		private := []byte("top secret")
		c := newCluster(t, "a", interceptor.Funcs{}, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "gateway-b-0-1"}, Data: map[string][]byte{v1alpha1.KeyFilePrivate: private},
		})
		if _, _, err := ensure(c, g); err == nil || strings.Contains(err.Error(), string(private)) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a pod has the one before", func(t *testing.T) {
		// A kubelet gives what was in a Secret to the next pod as well, while one has it.
		_, deployment := g.Objects()
		c := newCluster(t, "a", interceptor.Funcs{}, manifests.Namespace(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "gateway"}, Spec: deployment.Spec.Template.Spec,
		})
		for _, isNew := range []bool{true, false} {
			if key, made, err := ensure(c, g); err != nil || key.KeyGeneration != 2 || made != isNew {
				t.Errorf("key %+v, new %t, %v", key, made, err)
			}
		}
	})
}

// What agents write meanwhile is no change of the command's.
func TestApply(t *testing.T) {
	s := newSide(newCluster(t, "a", interceptor.Funcs{}, manifests.Namespace()), 0)
	if err := s.apply(t.Context(), manifests.Namespace(), node("n1", true)); err == nil || len(s.changed) > 0 {
		t.Errorf("an object without a kind: %v, changed %v", err, s.changed)
	}
	peering, lease := manifests.Peering("b", somePeering().Spec), &coordinationv1.Lease{}
	account, _ := manifests.Gateway{Peering: "b"}.Objects()
	for _, obj := range account {
		if l, ok := obj.(*coordinationv1.Lease); ok {
			lease = l
		}
	}
	apply := func(want ...string) {
		t.Helper()
		s.changed = nil
		if err := s.apply(t.Context(), peering, lease); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, s.changed, compare); diff != "" {
			t.Error(diff)
		}
	}
	apply("a: Peering b", "a: Lease liqonet-system/gateway-b-0")
	apply()
	renewed, reported := &coordinationv1.Lease{}, &v1alpha1.Peering{}
	if err := errors.Join(s.Client.Get(t.Context(), client.ObjectKeyFromObject(lease), renewed), s.Client.Get(t.Context(), client.ObjectKeyFromObject(peering), reported)); err != nil {
		t.Fatal(err)
	}
	renewed.Spec.HolderIdentity = new("pod")
	reported.Status.Planes = []v1alpha1.PlaneStatus{{Connected: true}}
	if err := errors.Join(s.Client.Update(t.Context(), renewed), s.Client.Status().Update(t.Context(), reported)); err != nil {
		t.Fatal(err)
	}
	apply()
	lease.Labels["a"] = "b"
	apply("a: Lease liqonet-system/gateway-b-0")
}

func TestWanted(t *testing.T) {
	_, deployment := manifests.Gateway{Peering: "b", Agents: manifests.Agents{Image: "image"}}.Objects()
	deployment.ResourceVersion, deployment.Status.Replicas = "7", 3
	u, err := manifests.ToApply(deployment)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := u.Object["status"]; ok || u.GetResourceVersion() != "" || u.GetKind() != "Deployment" {
		t.Errorf("got %v", u.Object)
	}
	raw, err := json.Marshal(u)
	if err != nil || strings.Contains(string(raw), "creationTimestamp") {
		t.Errorf("it sends creationTimestamp: %s", raw)
	}
}

// allowing answers reviews by allowed, and counts them.
func allowing(count *int, mu *sync.Mutex, allowed func(authorizationv1.ResourceAttributes) bool) interceptor.Funcs {
	return interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
		r, ok := obj.(*authorizationv1.SelfSubjectAccessReview)
		if !ok {
			return c.Create(ctx, obj, opts...)
		}
		mu.Lock()
		defer mu.Unlock()
		*count++
		r.Status.Allowed = allowed(*r.Spec.ResourceAttributes)
		return nil
	}}
}

func TestCheckPermissions(t *testing.T) {
	tests := []struct {
		name    string
		allowed func(authorizationv1.ResourceAttributes) bool
		// reviews is how many are asked for, missing what the error says.
		reviews int
		missing string
	}{
		{name: "an administrator", allowed: func(authorizationv1.ResourceAttributes) bool { return true }, reviews: 1},
		{name: "just enough", allowed: func(a authorizationv1.ResourceAttributes) bool { return a.Verb != "*" }, reviews: 1 + len(toInstall())},
		{
			name: "not quite", reviews: 1 + len(toInstall()), missing: "the user may not create deployments.apps, create secrets, get deployments.apps, get secrets, patch deployments.apps, patch secrets, watch deployments.apps",
			allowed: func(a authorizationv1.ResourceAttributes) bool {
				return a.Verb != "*" && (a.Resource != "secrets" || a.Verb == "delete" || a.Verb == "list") && (a.Resource != "deployments" || a.Verb == "delete" || a.Verb == "list")
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			count, mu := 0, sync.Mutex{}
			err := newCluster(t, "a", allowing(&count, &mu, tt.allowed)).checkPermissions(t.Context(), toInstall())
			if tt.missing == "" && err != nil {
				t.Fatal(err)
			}
			if tt.missing != "" && (kindOf(t, err) != Forbidden || !strings.HasSuffix(err.Error(), tt.missing)) {
				t.Errorf("want %q, got %v", tt.missing, err)
			}
			if tt.missing == "" && count != tt.reviews {
				t.Errorf("want %d reviews, got %d", tt.reviews, count)
			}
		})
	}
	t.Run("the question is refused", func(t *testing.T) {
		err := newCluster(t, "a", interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return apierrors.NewUnauthorized("no")
		}}).checkPermissions(t.Context(), toInstall())
		if kindOf(t, err) != Forbidden {
			t.Error(err)
		}
	})
}

// TestPermissionsToRemove compares the permissions that are asked for with those
// that taking a peering away uses.
func TestPermissionsToRemove(t *testing.T) {
	var mu sync.Mutex
	used := map[string]bool{}
	note := func(verb string, obj runtime.Object) {
		mu.Lock()
		defer mu.Unlock()
		plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kindName(obj)})
		used[verb+" "+plural.Resource] = true
	}
	c := newCluster(t, "a", interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			note("get", obj)
			return c.Get(ctx, key, obj, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			note("list", list)
			return c.List(ctx, list, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			note("update", obj)
			return c.Update(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			note("delete", obj)
			return c.Delete(ctx, obj, opts...)
		},
		DeleteAllOf: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteAllOfOption) error {
			note("deletecollection", obj)
			return c.DeleteAllOf(ctx, obj, opts...)
		},
	}, house(t, "b")...)
	if _, err := c.remove(t.Context(), "id-of-b", 0, Silent{}, nil, func() {}); err != nil {
		t.Fatal(err)
	}
	for _, p := range toRemove() {
		delete(used, p.verb+" "+p.resource)
	}
	if len(used) > 0 {
		t.Errorf("not asked for: %v", slices.Sorted(maps.Keys(used)))
	}
}

// TestPermissionsToGive: nobody may create a role with more than they have.
func TestPermissionsToGive(t *testing.T) {
	have := map[permission]bool{}
	for _, p := range toInstall() {
		p.namespace = ""
		have[p] = true
	}
	node, _ := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
	gateway, _ := manifests.Gateway{Peering: "b", Agents: manifests.Agents{Image: "image"}}.Objects()
	for _, obj := range append(node, gateway...) {
		role, ok := obj.(*rbacv1.ClusterRole)
		if !ok {
			continue
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						if !have[permission{group: group, resource: resource, verb: verb}] {
							t.Errorf("%s: %s %s.%s is given and not asked for", role.Name, verb, resource, group)
						}
					}
				}
			}
		}
	}
}

// Pods on nodes that are gone or not ready are deleted without waiting for these
// nodes; others get the time to end that they ask for.
func TestDeletePodsOfLostNodes(t *testing.T) {
	labels := map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name, Labels: labels, UID: types.UID("uid-of-" + name)},
			Spec:       corev1.PodSpec{NodeName: node},
		}
	}
	var mu sync.Mutex
	graces := map[string]string{}
	c := newCluster(t, "a", interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			o := (&client.DeleteOptions{}).ApplyOptions(opts)
			mu.Lock()
			defer mu.Unlock()
			graces[obj.GetName()] = "its own"
			if o.GracePeriodSeconds != nil {
				graces[obj.GetName()] = fmt.Sprint(*o.GracePeriodSeconds)
			}
			return c.Delete(ctx, obj, opts...)
		},
	}, node("up", true), node("down", false), pod("on-up", "up"), pod("on-down", "down"), pod("on-gone", "gone"))
	if err := c.deletePods(t.Context(), labels); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"on-up": "its own", "on-down": "0", "on-gone": "0"}
	if diff := cmp.Diff(want, graces); diff != "" {
		t.Errorf("grace periods (-want +got):\n%s", diff)
	}
}

// A new key of the overlay restarts the agents, and leaves what others wrote to their pod
// templates.
func TestDefect1_21_RestartKeepsAnnotationsOfOthers(t *testing.T) {
	_, deployment := manifests.Gateway{Peering: "b", Agents: manifests.Agents{Image: "image"}, KeyGeneration: 1, OverlayKey: 1}.Objects()
	deployment.Spec.Template.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
	c := newCluster(t, "a", interceptor.Funcs{}, deployment)
	if err := c.retireOverlayKeys(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	live := &appsv1.Deployment{}
	if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), live); err != nil {
		t.Fatal(err)
	}
	if manifests.RetireOverlayKeys(&live.Spec.Template.Spec, 2) || live.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] == "" {
		t.Errorf("the pods are %+v", live.Spec.Template)
	}
}
