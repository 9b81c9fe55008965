package peering

import (
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

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/fakeapi"
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
		kit.NoError(t, w.Raw.List(context.Background(), list))
		objs := kube.Items(list)
		for _, o := range objs {
			content := kit.Must(runtime.DefaultUnstructuredConverter.ToUnstructured(o))(t)
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
				before := contentsOf(t, a, b)
				w := []*Site{a, b}[side]
				w.Mu.Lock()
				w.Writes, w.failing = 0, n
				w.Mu.Unlock()
				_, err := Peer(t.Context(), a.Cluster, b.Cluster, o, kube.Quiet{})
				if err == nil { // fewer writes, or an optional one: the next command does the rest
					MustPeer(t, a, b, o)
					Settled(t, a, b, o)
					return
				}
				kit.FatalIf(t, !strings.Contains(err.Error(), "injected") || strings.Contains(err.Error(), "could not be rolled back"), "%v", err)
				for i, w := range []*Site{a, b} {
					kit.Check(t, fmt.Sprintf("after %v cluster %s is not as before", err, w.Name), gocmp.Diff(before[i], w.contents(t)), "")
				}
			})
		}
	}
}

// A failure of any write leaves both clusters as they were.
func TestRollback(t *testing.T) {
	kit.Play(t)
	t.Run("new", func(t *testing.T) {
		failEach(t, engine.Options{}, func(t *testing.T) (a, b *Site) { return TwoSites(t) })
	})
	if testing.Short() {
		return
	}
	t.Run("next to another peering", func(t *testing.T) {
		failEach(t, engine.Options{}, func(t *testing.T) (a, b *Site) {
			a, b = TwoSites(t)
			a.PeeredWith(t, "c", "10.30.0.0/16", "172.18.3.11")
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
		a, b := Peered(t)
		before := contentsOf(t, a, b)
		b.unreachable = true
		_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Server: "id-of-b", Image: "image:2"}, &impatient{1, time.Second})
		kubetest.Fails(t, err, kube.NotReady)
		unchanged(t, before, a, b)
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
	kit.Play(t)
	a, b := TwoSites(t)
	a.unreachable, b.unreachable = true, true
	var lies atomic.Bool
	hostile := b.Through(func(ctx context.Context, r *fakeapi.Request) error {
		err := r.Send(ctx)
		if cn, ok := r.Object.(*v1alpha1.ClusterNetwork); ok && r.Verb == "get" && err == nil && lies.Load() {
			for i := range cn.Spec.Peers {
				cn.Spec.Peers[i].Phase = v1alpha1.PeerActive
			}
		}
		return err
	})
	kubetest.Fails(t, kit.Err(Peer(t.Context(), a.Cluster, hostile, engine.Options{}, turn(func() { lies.Store(true) }))), kube.NotReady)
	left := a.Ours(t)
	kit.ErrorIf(t, len(left) > 0, "it leaves %v", left)
}

// Another command unpeers the clusters between the first reading of a peer and its lock. If that peer then fails, it
// removes what it has made: the peering that worked when it began is no longer there to be restored.
func TestUnpeeredBeforeTheLock(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	once := sync.Once{}
	c := a.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if r.Verb == "create" && r.IsLock() {
			once.Do(func() { MustUnpeer(t, a, b) })
		}
		if r.Of("apply", "Deployment") {
			return apierrors.NewForbidden(corev1.Resource("deployments"), "", errors.New("a quota"))
		}
		return r.Send(ctx)
	})
	_, err := Peer(t.Context(), c, b.Cluster, engine.Options{}, kube.Quiet{})
	kit.FatalIf(t, err == nil || !strings.Contains(err.Error(), "quota"), "it must fail for the quota: %v", err)
	for _, w := range []*Site{a, b} {
		for _, cn := range List[v1alpha1.ClusterNetworkList](t, w).Items {
			kit.ErrorIf(t, len(cn.Spec.Peers) > 0, "%s keeps its entry of the ledger: %+v", w.Name, cn.Spec.Peers)
		}
		left := List[v1alpha1.PeeringList](t, w).Items
		kit.ErrorIf(t, len(left) > 0, "%s keeps %d Peerings", w.Name, len(left))
	}
}
