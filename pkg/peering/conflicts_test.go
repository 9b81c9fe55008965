package peering

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
)

// told collects the notices of a command.
type told struct {
	mu  sync.Mutex
	all []string
}

func (l *told) tell(notice string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, notice)
}

// edit changes a field of a workload as kubectl edit does.
func (w *Site) edit(t *testing.T, obj client.Object, name string) {
	t.Helper()
	if err := w.Raw.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, obj); err != nil {
		t.Fatal(err)
	}
	engine.PodOf(obj).Containers[0].ImagePullPolicy = corev1.PullAlways
	if err := w.Raw.Update(t.Context(), obj, client.FieldOwner("kubectl-edit")); err != nil {
		t.Fatal(err)
	}
}

// peer reports what it overwrites: the object, the field, and its manager.
func TestPeerNamesWhatItOverwrites(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	var notices told
	ctx := kube.WithNotices(t.Context(), notices.tell)
	a, b := TwoSites(t)
	peer := func() (writes int) {
		a.Writes = 0
		if _, err := Peer(ctx, a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}); err != nil {
			t.Fatal(err)
		}
		return a.Writes
	}
	peer()
	before := peer()
	if len(notices.all) > 0 {
		t.Errorf("where nobody has changed anything it says %q", notices.all)
	}
	a.edit(t, &appsv1.Deployment{}, "gateway-b-0")
	after := peer()
	want := `a: Deployment liqonet-system/gateway-b-0: .spec.template.spec.containers[name="agent"].imagePullPolicy was set by "kubectl-edit", and is overwritten`
	if !slices.Equal(notices.all, []string{want}) {
		t.Errorf("it says %q, want %q", notices.all, want)
	}
	d := &appsv1.Deployment{}
	if err := a.Raw.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "gateway-b-0"}, d); err != nil || d.Spec.Template.Spec.Containers[0].ImagePullPolicy != corev1.PullIfNotPresent {
		t.Errorf("%v, %+v", err, d.Spec.Template.Spec.Containers)
	}
	if after <= before {
		t.Errorf("it took %d requests to overwrite, and %d where there was no conflict", after, before)
	}
}

// The strategy of node agents is no rollout that a killed command has left, unless it is the one for rollouts.
func TestPeerNamesAStrategyThatItOverwrites(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	var notices told
	a, b := TwoSites(t)
	MustPeer(t, a, b, engine.Options{})
	ds := &appsv1.DaemonSet{}
	if err := a.Raw.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}, ds); err != nil {
		t.Fatal(err)
	}
	before := ds.DeepCopy()
	ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromInt32(1))}
	if err := a.Raw.Patch(t.Context(), ds, client.MergeFrom(before), client.FieldOwner("kubectl-edit")); err != nil {
		t.Fatal(err)
	}
	if _, err := Peer(kube.WithNotices(t.Context(), notices.tell), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(notices.all, func(n string) bool { return strings.Contains(n, "maxUnavailable") }) {
		t.Errorf("it says %q", notices.all)
	}
	if n := DryRun(t, a, b, engine.Options{}).Changes(); n > 0 {
		t.Errorf("the next one would make %d changes", n)
	}
}

// A rollback keeps fields that others have set since, and reports them.
func TestRollbackNamesWhatStays(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	var notices told
	a, b := TwoSites(t)
	MustPeer(t, a, b, engine.Options{})
	_, err := Peer(kube.WithNotices(t.Context(), notices.tell), a.Cluster, b.Cluster, engine.Options{Image: "image:2"}, Steps{"Waiting until packets pass": func() {
		a.edit(t, &appsv1.Deployment{}, "gateway-b-0")
		a.Mu.Lock()
		defer a.Mu.Unlock()
		a.failing = a.Writes + 1
	}})
	if !errors.Is(err, ErrInjected) {
		t.Fatal(err)
	}
	d := &appsv1.Deployment{}
	if err := a.Raw.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "gateway-b-0"}, d); err != nil || d.Spec.Template.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways {
		t.Errorf("%v, %+v", err, d.Spec.Template.Spec.Containers)
	}
	want := `imagePullPolicy was set by "kubectl-edit", and the object stays as it is`
	if len(notices.all) != 1 || !strings.HasSuffix(notices.all[0], want) || !strings.HasPrefix(notices.all[0], "a: Deployment liqonet-system/gateway-b-0: ") {
		t.Errorf("it says %q, want %q", notices.all, want)
	}
}
