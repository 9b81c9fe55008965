package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// contents returns all objects of a cluster, without what API servers count and agents write.
func (w *Site) contents(t *testing.T) map[string]any {
	t.Helper()
	out := map[string]any{}
	for _, list := range []client.ObjectList{
		&appsv1.DaemonSetList{}, &appsv1.DeploymentList{}, &corev1.ServiceList{}, &corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceAccountList{},
		&rbacv1.ClusterRoleBindingList{}, &rbacv1.ClusterRoleList{}, &admissionv1.ValidatingAdmissionPolicyList{}, &corev1.NamespaceList{}, kubetest.CrdList(),
		&v1alpha1.ClusterNetworkList{}, &v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{},
	} {
		if err := w.Raw.List(context.Background(), list); err != nil {
			t.Fatal(err)
		}
		objs := kube.Items(list)
		for _, o := range objs {
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
			if err != nil {
				t.Fatal(err)
			}
			unstructured.RemoveNestedField(content, "status")
			for _, f := range []string{"resourceVersion", "generation", "managedFields", "creationTimestamp", "uid"} {
				unstructured.RemoveNestedField(content, "metadata", f)
			}
			out[kube.Describe(o)] = content
		}
	}
	return out
}

// failEach makes writes fail, one in each run, in a or in b. setup creates the initial clusters.
func failEach(t *testing.T, o engine.Options, setup func(t *testing.T) (a, b *Site)) {
	t.Parallel()
	a, b := setup(t)
	a.Writes, b.Writes = 0, 0
	MustPeer(t, a, b, o)
	for side, writes := range []int{a.Writes, b.Writes} {
		for _, n := range kubetest.Moments(t, writes, 3) {
			t.Run(fmt.Sprintf("write %d in %c", n, "ab"[side]), func(t *testing.T) {
				t.Parallel()
				a, b := setup(t)
				before := []map[string]any{a.contents(t), b.contents(t)}
				w := []*Site{a, b}[side]
				w.Mu.Lock()
				w.Writes, w.failing = 0, n
				w.Mu.Unlock()
				_, err := Peer(t.Context(), a.Cluster, b.Cluster, o, kube.Quiet{})
				if err == nil { // fewer writes, or an optional one: the next command does the rest
					MustPeer(t, a, b, o)
					if plan := DryRun(t, a, b, o); plan.Changes() > 0 {
						t.Errorf("without an error, the next command has left changes: %v", changesOf(plan))
					}
					return
				}
				if !strings.Contains(err.Error(), "injected") || strings.Contains(err.Error(), "could not be rolled back") {
					t.Fatal(err)
				}
				for i, w := range []*Site{a, b} {
					if diff := gocmp.Diff(before[i], w.contents(t)); diff != "" {
						t.Errorf("after %v cluster %s is not as before:\n%s", err, w.Name, diff)
					}
				}
			})
		}
	}
}

// A failure of any write leaves both clusters as they were.
func TestRollback(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	t.Run("new", func(t *testing.T) {
		failEach(t, engine.Options{}, func(t *testing.T) (a, b *Site) { return TwoSites(t) })
	})
	if testing.Short() {
		return
	}
	t.Run("beside another peering", func(t *testing.T) {
		failEach(t, engine.Options{}, func(t *testing.T) (a, b *Site) {
			a, b = TwoSites(t)
			c := NewSite(t, "c", "10.30.0.0/16", "172.18.3.11")
			a.Peer, c.Peer = c, a
			MustPeer(t, a, c, engine.Options{})
			a.Peer, b.Peer = b, a
			return a, b
		})
	})
	t.Run("of a peering that works", func(t *testing.T) {
		o := engine.Options{
			Image: "image:2", Server: "id-of-b",
			Clusters: map[string]engine.ClusterOptions{"id-of-a": {
				Map:      ipam.Mappings{{Mapped: kubetest.Prefix("10.60.0.0/16")}},
				Gateways: v1alpha1.GatewayPlacement{NodeSelector: map[string]string{}, Tolerations: []corev1.Toleration{{Key: "spot", Operator: "Exists"}}},
			}},
		}
		failEach(t, o, func(t *testing.T) (a, b *Site) {
			a, b = TwoSites(t)
			MustPeer(t, a, b, wishFor("id-of-a", engine.ClusterOptions{Endpoints: []string{"203.0.113.5:31820"}, Gateways: v1alpha1.GatewayPlacement{
				NodeSelector: map[string]string{corev1.LabelOSStable: "linux"}, Tolerations: []corev1.Toleration{{Key: "spot", Operator: "Exists", Effect: "NoSchedule"}},
			}}))
			return a, b
		})
	})
	t.Run("of a peering that works, by time", func(t *testing.T) {
		t.Parallel()
		a, b := TwoSites(t)
		MustPeer(t, a, b, engine.Options{})
		before := []map[string]any{a.contents(t), b.contents(t)}
		b.unreachable = true
		if _, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Server: "id-of-b", Image: "image:2"}, &impatient{1, time.Second}); kubetest.KindOf(t, err) != kube.NotReady {
			t.Error(err)
		}
		for i, w := range []*Site{a, b} {
			if diff := gocmp.Diff(before[i], w.contents(t)); diff != "" {
				t.Errorf("cluster %s is not as before:\n%s", w.Name, diff)
			}
		}
	})
}

// turn is a Reporter that calls a function when the command waits for packets, and soon makes the wait fail.
type turn func()

func (f turn) Step(ctx context.Context, name string, do func(context.Context) error) error {
	if name == "Waiting until packets pass" {
		f()
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
	}
	return do(ctx)
}

// A peer cluster that claims that the peering works does not prevent a rollback.
func TestFailedPeerIsTakenBackWhateverThePeerSays(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := TwoSites(t)
	a.unreachable, b.unreachable = true, true
	var lies atomic.Bool
	hostile := *b.Cluster
	hostile.Client = interceptor.NewClient(b.Client, interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			err := api.Get(ctx, key, obj, opts...)
			if cn, ok := obj.(*v1alpha1.ClusterNetwork); ok && err == nil && lies.Load() {
				for i := range cn.Spec.Peers {
					cn.Spec.Peers[i].Phase = v1alpha1.PeerActive
				}
			}
			return err
		},
	})
	if _, err := Peer(t.Context(), a.Cluster, &hostile, engine.Options{}, turn(func() { lies.Store(true) })); kubetest.KindOf(t, err) != kube.NotReady {
		t.Error(err)
	}
	if left := a.Ours(t); len(left) > 0 {
		t.Errorf("it leaves %v", left)
	}
}

// Another command unpeers the clusters between the first reading of a peer and its lock. If that peer then fails, it
// removes what it has made: the peering that worked when it began is no longer there to be restored.
func TestUnpeeredBeforeTheLock(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := pairOf(t, 1)
	c, once := *a.Cluster, sync.Once{}
	unpeerOnce := func() {
		once.Do(func() {
			if _, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); err != nil {
				t.Errorf("unpeer: %v", err)
			}
		})
	}
	refused := apierrors.NewForbidden(corev1.Resource("deployments"), "", errors.New("a quota"))
	c.Client = interceptor.NewClient(a.Client, interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if isLock(obj) {
				unpeerOnce()
			}
			return api.Create(ctx, obj, opts...)
		},
		Apply: func(ctx context.Context, api client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if u, err := applied(obj); err != nil || u.GetKind() == "Deployment" {
				return cmp.Or(err, error(refused))
			}
			return api.Apply(ctx, obj, opts...)
		},
	})
	if _, err := Peer(t.Context(), &c, b.Cluster, engine.Options{}, kube.Quiet{}); err == nil || !strings.Contains(err.Error(), "quota") {
		t.Fatalf("it must fail for the quota: %v", err)
	}
	for _, w := range []*Site{a, b} {
		if entries := List[v1alpha1.ClusterNetworkList](t, w).Items; len(entries) > 0 && len(entries[0].Spec.Peers) > 0 {
			t.Errorf("%s keeps its entry of the ledger: %+v", w.Name, entries[0].Spec.Peers)
		}
		if left := List[v1alpha1.PeeringList](t, w).Items; len(left) > 0 {
			t.Errorf("%s keeps %d Peerings", w.Name, len(left))
		}
	}
}
