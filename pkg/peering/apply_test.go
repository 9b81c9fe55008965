package peering

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// house is all of our objects in a cluster with one peering.
func house(t *testing.T, peers ...string) []client.Object {
	t.Helper()
	crds := manifests.CRDs()
	var objs []client.Object
	for _, crd := range crds {
		objs = append(objs, crd)
	}
	account, daemonSet := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
	objs = append(objs, kubetest.LedgerOf(peers...), manifests.Namespace(), daemonSet, kubetest.Node("n1", true))
	for _, o := range account {
		objs = append(objs, o)
	}
	n := kubetest.Report("n1", "10.80.0.1", &v1alpha1.KernelFacts{})
	n.Labels = map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}
	objs = append(objs, &n)
	for _, p := range peers {
		g := manifests.Gateway{Peering: p, Agents: manifests.Agents{Image: "image"}, Role: v1alpha1.Server}
		account, deployment := g.Objects()
		for _, o := range account {
			objs = append(objs, o)
		}
		meta := metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: g.Name(), Labels: g.Labels()}
		objs = append(
			objs, deployment, manifests.GatewayService(p, corev1.ServiceTypeNodePort, []int32{0}), &corev1.Secret{ObjectMeta: meta}, &corev1.Pod{ObjectMeta: meta}, &appsv1.ReplicaSet{ObjectMeta: meta},
			&v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: p, Labels: g.Labels()}, Spec: kubetest.SomePeering().Spec},
		)
	}
	return objs
}

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

// inventory lists everything in a cluster, as kind namespace/name.
func inventory(t *testing.T, c *kube.Cluster) []string {
	t.Helper()
	var out []string
	for _, list := range append(
		append(engine.Workloads(), engine.Accounts()...), &coordinationv1.LeaseList{}, &corev1.PodList{}, &appsv1.ReplicaSetList{}, &corev1.NamespaceList{}, &apiextensionsv1.CustomResourceDefinitionList{},
		&v1alpha1.ClusterNetworkList{}, &v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{},
	) {
		kit.NoError(t, c.Client.List(t.Context(), list))
		objs := kube.Items(list)
		for _, o := range objs {
			out = append(out, kube.Describe(o))
		}
	}
	slices.Sort(out)
	return out
}

func TestUnpeerLeavesNothing(t *testing.T) {
	want := inventory(t, kubetest.NewCluster(t, "a", interceptor.Funcs{}, foreign()...))
	a := kubetest.NewCluster(t, "a", interceptor.Funcs{}, append(house(t, "b"), foreign()...)...)
	b := kubetest.NewCluster(t, "b", interceptor.Funcs{}, foreign()...)
	inA, inB, err := Unpeer(t.Context(), a, b, kube.Quiet{})
	kit.NoError(t, err)
	kit.Check(t, "result", [2]engine.Removed{inA, inB}, [2]engine.Removed{{Peering: true, Agents: true}, {}})
	for _, c := range []*kube.Cluster{a, b} {
		kit.Check(t, fmt.Sprintf("cluster %s", c.Name), inventory(t, c), want)
	}
	inA, inB, err = Unpeer(t.Context(), b, a, kube.Quiet{})
	diff := cmp.Diff([2]engine.Removed{}, [2]engine.Removed{inA, inB})
	kit.ErrorIf(t, err != nil || diff != "", "again: %v\n%s", err, diff)
}

func TestUnpeerKeepsOtherPeerings(t *testing.T) {
	c := kubetest.NewCluster(t, "c", interceptor.Funcs{})
	a := kubetest.NewCluster(t, "a", interceptor.Funcs{}, append(house(t, "b", "c"), foreign()...)...)
	inA, _, err := Unpeer(t.Context(), a, c, kube.Quiet{})
	kit.FatalIf(t, err != nil || !inA.Peering || inA.Agents, "%+v, %v", inA, err)
	want := inventory(t, kubetest.NewCluster(t, "a", interceptor.Funcs{}, append(house(t, "b"), foreign()...)...))
	kit.Check(t, "inventory", inventory(t, a), want)
	cn := kubetest.ReadLedger(t, a)
	kit.ErrorIf(t, len(cn.Spec.Peers) != 1 || cn.Spec.Peers[0].Name != "b", "the ledger has %+v", cn.Spec.Peers)
}

func TestUninstallWhileInUse(t *testing.T) {
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, append(house(t, "b"), foreign()...)...)
	before, ledger := inventory(t, c), kubetest.ReadLedger(t, c)
	was, err := engine.RemoveUnused(t.Context(), c, 0, kube.Quiet{})
	kit.FatalIf(t, was || err != nil, "%v %v", was, err)
	kit.Check(t, "inventory", inventory(t, c), before)
	kit.Check(t, "ReadLedger", kubetest.ReadLedger(t, c), ledger, kit.Compare)
}

func TestSameCluster(t *testing.T) {
	a := kubetest.NewCluster(t, "a", interceptor.Funcs{})
	b := *a
	b.Name = "b"
	_, err := Peer(t.Context(), a, &b, engine.Options{}, kube.Quiet{})
	_, _, unpeerErr := Unpeer(t.Context(), a, &b, kube.Quiet{})
	kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.Usage || kubetest.KindOf(t, unpeerErr) != kube.Usage, "got %v, %v", err, unpeerErr)
}

// TestPermissionsToRemove compares the permissions that are checked with those that removing a peering uses.
func TestPermissionsToRemove(t *testing.T) {
	var mu sync.Mutex
	used := map[string]bool{}
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, house(t, "b")...)
	c.Client = fakeapi.Intercept(c.Client, func(ctx context.Context, r *fakeapi.Request) error {
		if slices.Contains([]string{"get", "list", "update", "delete", "deletecollection"}, r.Verb) && r.Sub == "" {
			mu.Lock()
			defer mu.Unlock()
			plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: r.Kind})
			used[r.Verb+" "+plural.Resource] = true
		}
		return r.Send(ctx)
	})
	kit.Must(remove(t.Context(), c, "id-of-b", 0, kube.Quiet{}, func() {}))(t)
	for _, p := range engine.RemovePermissions() {
		delete(used, p.Verb+" "+p.Resource)
	}
	kit.ErrorIf(t, len(used) > 0, "not asked for: %v", slices.Sorted(maps.Keys(used)))
}
