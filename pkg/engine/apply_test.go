package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

func TestNodesClean(t *testing.T) {
	dirty := func(name, address, peering string) *v1alpha1.NodeNetwork {
		n := kubetest.Report(name, address, nil)
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
		{name: "of another peering", peering: "b", objs: []client.Object{kubetest.Node("n1", true), dirty("n1", "10.80.0.1", "c")}},
		{name: "still there", peering: "b", objs: []client.Object{kubetest.Node("n1", true), dirty("n1", "10.80.0.1", "b")}, wait: true},
		{name: "any peering", objs: []client.Object{kubetest.Node("n1", true), dirty("n1", "10.80.0.1", "b")}, wait: true},
		{name: "a node that is not ready", peering: "b", objs: []client.Object{kubetest.Node("n1", true), kubetest.Node("n2", false), dirty("n2", "10.80.0.2", "b")}, skipped: []string{"n2"}},
		{name: "no node is ready", peering: "b", objs: []client.Object{kubetest.Node("n2", false), dirty("n2", "10.80.0.2", "b")}, skipped: []string{"n2"}},
		{name: "a node that is gone", peering: "b", objs: []client.Object{kubetest.Node("n1", true), dirty("n9", "10.80.0.9", "b")}, skipped: []string{"n9"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			patience := time.Minute
			if tt.wait {
				patience = 3 * time.Second // time for one check on a busy machine
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("it waits"))
			defer cancel()
			c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, tt.objs...)
			skipped, err := AwaitNodesClean(ctx, c, tt.peering)
			kit.FatalIf(t, (err != nil) != tt.wait, "%v", err)
			kit.ErrorIf(t, err != nil && (kubetest.KindOf(t, err) != kube.NotReady || !strings.Contains(err.Error(), "still there on n1")),
				"%v", err)
			diff := cmp.Diff(tt.skipped, skipped, kit.Compare)
			kit.ErrorIf(t, !tt.wait && diff != "", "%v", diff)
		})
	}
}

func TestEnsureKey(t *testing.T) {
	cluster := kubetest.NewCluster(t, "a", interceptor.Funcs{}, manifests.Namespace())
	ensure := func(c *kube.Cluster, g manifests.Gateway) (key plan.PlaneFacts, isNew bool, err error) {
		s := NewSide(c, 0)
		key, err = s.EnsureKey(t.Context(), g)
		return key, len(s.Changes.List) > 0, err
	}
	g := manifests.Gateway{Peering: "b", Agents: manifests.Agents{Image: "image"}, KeyGeneration: 1}
	made, isNew, err := ensure(cluster, g)
	kit.FatalIf(t, err != nil || !isNew || made.KeyGeneration != 1, "%v %v %v", made, isNew, err)
	public := made.PublicKey
	if again, isNew, err := ensure(cluster, g); err != nil || isNew || again != made {
		t.Errorf("again: new %t, %v, keys %+v, %+v", isNew, err, made, again)
	}
	secret := &corev1.Secret{}
	kit.NoError(t, cluster.Client.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.Namespace, Name: "gateway-b-0-1"}, secret))
	private, err := wgtypes.NewKey(secret.Data[v1alpha1.PrivateKeyFile])
	if err != nil || private.PublicKey().String() != public || !bytes.Equal(secret.Data[v1alpha1.PublicKeyFile], func() []byte { k := private.PublicKey(); return k[:] }()) {
		t.Errorf("the public key is not that of the private one: %v", err)
	}
	if secret.Immutable == nil || !*secret.Immutable || secret.Labels[v1alpha1.LabelPeering] != "b" || secret.Labels[v1alpha1.LabelManagedBy] != v1alpha1.FieldManager {
		t.Errorf("secret %+v", secret.ObjectMeta)
	}
	kit.ErrorIf(t, len(public) != 44, "a Peering takes 44 characters, not %q", public)

	t.Run("two at once", func(t *testing.T) {
		keys := make([]string, 8)
		news := make([]bool, len(keys))
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() {
				key, isNew, err := ensure(cluster, manifests.Gateway{Peering: "c", KeyGeneration: 1})
				keys[i], news[i] = key.PublicKey, isNew
				kit.ErrorIf(t, err != nil, "%v", err)
			})
		}
		wg.Wait()
		made := 0
		for i := range keys {
			if news[i] {
				made++
			}
			kit.ErrorIf(t, keys[i] != keys[0], "keys differ: %v", keys)
		}
		kit.Check(t, "made", made, 1)
	})
	t.Run("it is not a key", func(t *testing.T) {
		private := []byte("top secret")
		c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "gateway-b-0-1"}, Data: map[string][]byte{v1alpha1.PrivateKeyFile: private},
		})
		_, _, err := ensure(c, g)
		kit.ErrorIf(t, err == nil || strings.Contains(err.Error(), string(private)), "got %v", err)
	})
	t.Run("a pod has the one before", func(t *testing.T) {
		// While a pod mounts a Secret, a kubelet also gives its old contents to the next pod.
		_, deployment := g.Objects()
		c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, manifests.Namespace(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "gateway"}, Spec: deployment.Spec.Template.Spec,
		})
		for _, isNew := range []bool{true, false} {
			key, made, err := ensure(c, g)
			kit.ErrorIf(t, err != nil || key.KeyGeneration != 2 || made != isNew, "key %+v, new %t, %v", key, made, err)
		}
	})
}

// Fields that agents write are not changes of the command.
func TestApply(t *testing.T) {
	s := NewSide(kubetest.NewCluster(t, "a", interceptor.Funcs{}, manifests.Namespace()), 0)
	err := s.Apply(t.Context(), manifests.Namespace(), kubetest.Node("n1", true))
	kit.ErrorIf(t, err == nil || len(s.Changes.List) > 0, "an object without a kind: %v, changed %v", err, s.Changes.List)
	peering, lease := manifests.Peering("b", kubetest.SomePeering().Spec), &coordinationv1.Lease{}
	account, _ := manifests.Gateway{Peering: "b"}.Objects()
	for _, obj := range account {
		if l, ok := obj.(*coordinationv1.Lease); ok {
			lease = l
		}
	}
	apply := func(want ...string) {
		t.Helper()
		s.Changes.List = nil
		kit.NoError(t, s.Apply(t.Context(), peering, lease))
		kit.Check(t, "List", s.Changes.List, want, kit.Compare)
	}
	apply("a: Peering b", "a: Lease liqonet-system/gateway-b-0")
	apply()
	renewed, reported := &coordinationv1.Lease{}, &v1alpha1.Peering{}
	if err := errors.Join(s.Client.Get(t.Context(), client.ObjectKeyFromObject(lease), renewed), s.Client.Get(t.Context(), client.ObjectKeyFromObject(peering), reported)); err != nil {
		t.Fatal(err)
	}
	renewed.Spec.HolderIdentity = new("pod")
	reported.Status.Planes = []v1alpha1.PlaneStatus{{Connected: true}}
	kit.NoError(t, errors.Join(s.Client.Update(t.Context(), renewed), s.Client.Status().Update(t.Context(), reported)))
	apply()
	lease.Labels["a"] = "b"
	apply("a: Lease liqonet-system/gateway-b-0")
}

func TestWanted(t *testing.T) {
	_, deployment := manifests.Gateway{Peering: "b", Agents: manifests.Agents{Image: "image"}}.Objects()
	deployment.ResourceVersion, deployment.Status.Replicas = "7", 3
	u := manifests.ToApply(deployment)
	_, ok := u.Object["status"]
	kit.ErrorIf(t, ok || u.GetResourceVersion() != "" || u.GetKind() != "Deployment", "got %v", u.Object)
	raw, err := json.Marshal(u)
	kit.ErrorIf(t, err != nil || strings.Contains(string(raw), "creationTimestamp"), "it sends creationTimestamp: %s", raw)
}

func TestCheckPermissions(t *testing.T) {
	tests := []struct {
		name    string
		allowed func(authorizationv1.ResourceAttributes) bool
		// reviews is the number of reviews, missing the part of the error that lists permissions.
		reviews int
		missing string
	}{
		{name: "an administrator", allowed: func(authorizationv1.ResourceAttributes) bool { return true }, reviews: 1},
		{name: "just enough", allowed: func(a authorizationv1.ResourceAttributes) bool { return a.Verb != "*" }, reviews: 1 + len(InstallPermissions())},
		{
			name: "not quite", reviews: 1 + len(InstallPermissions()), missing: "the user may not create deployments.apps, create secrets, get deployments.apps, get secrets, patch deployments.apps, patch secrets, watch deployments.apps",
			allowed: func(a authorizationv1.ResourceAttributes) bool {
				return a.Verb != "*" && (a.Resource != "secrets" || a.Verb == "delete" || a.Verb == "list") && (a.Resource != "deployments" || a.Verb == "delete" || a.Verb == "list")
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			count, mu := 0, sync.Mutex{}
			err := kubetest.NewCluster(t, "a", kubetest.Allowing(&count, &mu, tt.allowed)).CheckPermissions(t.Context(), InstallPermissions())
			kit.FatalIf(t, tt.missing == "" && err != nil, "%v", err)
			kit.ErrorIf(t, tt.missing != "" && (kubetest.KindOf(t, err) != kube.Forbidden || !strings.HasSuffix(err.Error(), tt.missing)),
				"want %q, got %v", tt.missing, err)
			kit.ErrorIf(t, tt.missing == "" && count != tt.reviews, "want %d reviews, got %d", tt.reviews, count)
		})
	}
	t.Run("the question is refused", func(t *testing.T) {
		err := kubetest.NewCluster(t, "a", interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return apierrors.NewUnauthorized("no")
		}}).CheckPermissions(t.Context(), InstallPermissions())
		kubetest.Fails(t, err, kube.Forbidden)
	})
}

// TestPermissionsToGive: no user may create a role with more permissions than their own.
func TestPermissionsToGive(t *testing.T) {
	have := map[kube.Permission]bool{}
	for _, p := range InstallPermissions() {
		p.Namespace = ""
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
						kit.ErrorIf(t, !have[kube.Permission{Group: group, Resource: resource, Verb: verb}],
							"%s: %s %s.%s is given and not asked for", role.Name, verb, resource, group)
					}
				}
			}
		}
	}
}

// Pods on missing or unready nodes are force-deleted. Others get their grace period.
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
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{
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
	}, kubetest.Node("up", true), kubetest.Node("down", false), pod("on-up", "up"), pod("on-down", "down"), pod("on-gone", "gone"))
	kit.NoError(t, deletePods(t.Context(), c, labels))
	want := map[string]string{"on-up": "its own", "on-down": "0", "on-gone": "0"}
	kit.Check(t, "grace periods", graces, want)
}

// A new overlay key restarts the agents, and keeps what others wrote to their pod templates.
func TestRestartKeepsAnnotationsOfOthers(t *testing.T) {
	_, deployment := manifests.Gateway{Peering: "b", Agents: manifests.Agents{Image: "image"}, KeyGeneration: 1, OverlayKey: 1}.Objects()
	deployment.Spec.Template.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, manifests.Namespace(), deployment)
	kit.NoError(t, retireOverlayKeys(t.Context(), NewSide(c, 0), 2))
	live := &appsv1.Deployment{}
	kit.NoError(t, c.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), live))
	if manifests.RetireOverlayKeys(&live.Spec.Template.Spec, 2) || live.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] == "" {
		t.Errorf("the pods are %+v", live.Spec.Template)
	}
}

// Thousands of nodes have a Lease each. They are deleted in parallel, up to a limit.
func TestDeletesAtOnce(t *testing.T) {
	ours := map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}
	var leases []client.Object
	for i := range 3 * failure.MaxParallel {
		leases = append(leases, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: fmt.Sprint(v1alpha1.NodeLeasePrefix, i), Labels: ours}})
	}
	var now, most atomic.Int32
	all := make(chan struct{}) // closed when the limit is reached
	enough := sync.OnceFunc(func() { close(all) })
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == failure.MaxParallel {
			enough()
		}
		select {
		case <-all:
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Second):
			return errors.New("nobody deletes another one")
		}
		return c.Delete(ctx, obj, opts...)
	}}, leases...)
	kit.NoError(t, deleteLists(t.Context(), c, client.MatchingLabels{}, &coordinationv1.LeaseList{}))
	var left coordinationv1.LeaseList
	if err := c.Client.List(t.Context(), &left); err != nil || len(left.Items) > 0 || most.Load() != failure.MaxParallel {
		t.Errorf("%d at most at once, %d are left, %v", most.Load(), len(left.Items), err)
	}
}

// Commands find what an interrupted one has left of a gateway by its ServiceAccount, so that is deleted last.
func TestServiceAccountsAreDeletedLast(t *testing.T) { synctest.Test(t, serviceAccountsAreDeletedLast) }

func serviceAccountsAreDeletedLast(t *testing.T) {
	labels := map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager, v1alpha1.LabelPeering: "b", v1alpha1.LabelPlane: "1"}
	meta := metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "gateway-b-1", Labels: labels}
	global := metav1.ObjectMeta{Name: "liqonet-gateway-b-1", Labels: labels}
	var accounts atomic.Int32
	answers := make(chan struct{}) // of a slower API server, which is asked for all that is deleted in parallel
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
		if _, is := obj.(*corev1.ServiceAccount); is {
			accounts.Add(1)
			others := []client.ObjectList{&rbacv1.RoleList{}, &rbacv1.ClusterRoleList{}, &rbacv1.RoleBindingList{}, &rbacv1.ClusterRoleBindingList{}, &corev1.SecretList{}, &appsv1.DeploymentList{}}
			for _, list := range others {
				kit.NoError(t, c.List(ctx, list))
				kit.ErrorIf(t, apimeta.LenList(list) > 0, "the ServiceAccount is deleted before a %T", list)
			}
		} else if _, is := obj.(*appsv1.Deployment); !is {
			<-answers
		}
		return c.Delete(ctx, obj, opts...)
	}},
		&corev1.ServiceAccount{ObjectMeta: meta}, &corev1.Secret{ObjectMeta: meta}, &appsv1.Deployment{ObjectMeta: meta}, &rbacv1.Role{ObjectMeta: meta},
		&rbacv1.RoleBinding{ObjectMeta: meta}, &rbacv1.ClusterRole{ObjectMeta: global}, &rbacv1.ClusterRoleBinding{ObjectMeta: global})
	done := make(chan error, 1)
	go func() { done <- DeleteAll(t.Context(), c, labels) }()
	synctest.Wait()
	kit.Check(t, "ServiceAccounts deleted with the others", accounts.Load(), 0)
	close(answers)
	kit.NoError(t, <-done)
	kit.Check(t, "deleted ServiceAccounts", accounts.Load(), 1)
}

// partialDiscovery lists Secrets, and no kind of the broken APIs.
type partialDiscovery struct {
	discovery.ServerResourcesInterface
	broken []schema.GroupVersion
	// listed is an API with one kind, whose server ends before that is listed.
	listed schema.GroupVersion
}

func (d partialDiscovery) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	secrets := metav1.APIResource{Name: "secrets", Kind: "Secret", Namespaced: true, Verbs: metav1.Verbs{"list", "delete"}}
	err := &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{}}
	for _, api := range d.broken {
		err.Groups[api] = errors.New("stale GroupVersion discovery")
	}
	out := []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{secrets}}}
	if !d.listed.Empty() {
		widgets := metav1.APIResource{Name: "widgets", Kind: "Widget", Namespaced: true, Verbs: metav1.Verbs{"list", "delete"}}
		out = append(out, &metav1.APIResourceList{GroupVersion: d.listed.String(), APIResources: []metav1.APIResource{widgets}})
	}
	return out, err
}

// A namespace that liqonet has not created stays.
func TestNamespaceOfOthersStays(t *testing.T) {
	ns := manifests.Namespace()
	ns.Labels = nil
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, ns)
	kit.NoError(t, RemoveNamespace(t.Context(), c))
	kit.NoError(t, c.Client.Get(t.Context(), client.ObjectKeyFromObject(ns), ns))
	kit.ErrorIf(t, ns.DeletionTimestamp != nil, "it is deleted")
}

// A namespace ends although an aggregated API is broken, in which nothing of ours can be. It does not end if anything else cannot be listed.
// Then the error names the API, and how to remove it.
func TestNamespaceWithABrokenAPI(t *testing.T) { synctest.Test(t, namespaceWithABrokenAPI) }

func namespaceWithABrokenAPI(t *testing.T) {
	aggregated := schema.GroupVersion{Group: "broken.example.com", Version: "v1beta1"}
	custom := schema.GroupVersion{Group: "custom.example.com", Version: "v1"}
	for _, tt := range []struct {
		name      string
		broken    []schema.GroupVersion
		listed    schema.GroupVersion
		available string
		ends      bool
	}{
		{"its server is gone", []schema.GroupVersion{aggregated}, schema.GroupVersion{}, "False", true},
		{"its server has just ended", []schema.GroupVersion{aggregated}, schema.GroupVersion{}, "True, then False", true},
		{"its server answers again", []schema.GroupVersion{aggregated}, schema.GroupVersion{}, "True", false},
		{"custom resources, too", []schema.GroupVersion{aggregated, custom}, schema.GroupVersion{}, "False", false},
		{"its server ends before its kind is listed", nil, aggregated, "False", true},
		{"its kind cannot be listed", nil, aggregated, "True", false},
		{"custom resources cannot be listed", nil, custom, "False", false},
	} {
		finalized, begun := false, time.Now()
		ns := manifests.Namespace()
		ns.UID, ns.Finalizers = "1", []string{"example.com/namespace-controller"}
		ns.Status.Conditions = []corev1.NamespaceCondition{{
			Type: corev1.NamespaceDeletionDiscoveryFailure, Status: corev1.ConditionTrue, Reason: "DiscoveryFailed",
			Message: "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: broken.example.com/v1beta1: stale",
		}}
		c := kubetest.NewCluster(t, "a", interceptor.Funcs{
			Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
				service, is := obj.(*unstructured.Unstructured)
				if !is {
					return w.Get(ctx, key, obj, opts...)
				}
				available, later, changes := strings.Cut(tt.available, ", then ")
				if changes && time.Since(begun) > 20*time.Second {
					available = later
				}
				service.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Other", "status": "False"}, map[string]any{"type": "Available", "status": available}}}
				if key.Name == "v1beta1.broken.example.com" {
					service.Object["spec"] = map[string]any{"service": map[string]any{"name": "gone"}}
				}
				return nil
			},
			List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if list.GetObjectKind().GroupVersionKind().Kind == "Widget" {
					return apierrors.NewServiceUnavailable("its server has ended")
				}
				return w.List(ctx, list, opts...)
			},
			SubResourceUpdate: func(ctx context.Context, w client.Client, sub string, obj client.Object, _ ...client.SubResourceUpdateOption) error {
				finalized = sub == "finalize"
				live := &corev1.Namespace{}
				if err := w.Get(ctx, client.ObjectKeyFromObject(obj), live); err != nil {
					return err
				}
				live.Finalizers = nil
				return w.Update(ctx, live)
			},
		}, ns, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "left"}})
		c.Kubectl = "kubectl --context a"
		c.Discovery = partialDiscovery{broken: tt.broken, listed: tt.listed}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := RemoveNamespace(ctx, c)
		cancel()
		kit.ErrorIf(t, finalized != tt.ends, "%s: finalized %t, %v", tt.name, finalized, err)
		if tt.ends {
			kit.NoError(t, err)
			continue
		}
		kubetest.Fails(t, err, kube.NotReady, "DiscoveryFailed: Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: broken.example.com/v1beta1")
		e := (*kube.Error)(nil)
		kit.ErrorIf(t, !errors.As(err, &e) || !strings.HasSuffix(e.Hint, ": kubectl --context a delete apiservice v1beta1.broken.example.com"), "the hint is %q", e.Hint)
	}
}
