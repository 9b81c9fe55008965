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
	kit.NoError(t, w.Raw.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, obj))
	engine.PodSpecOf(obj).Containers[0].ImagePullPolicy = corev1.PullAlways
	kit.NoError(t, w.Raw.Update(t.Context(), obj, client.FieldOwner("kubectl-edit")))
}

// peer reports what it overwrites: the object, the field, and its manager.
func TestPeerNamesWhatItOverwrites(t *testing.T) {
	kit.Play(t)
	var notices told
	ctx := kube.WithConflictReports(t.Context(), notices.tell)
	a, b := TwoSites(t)
	peer := func() (writes int) {
		a.Writes = 0
		kit.Must(Peer(ctx, a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}))(t)
		return a.Writes
	}
	peer()
	before := peer()
	kit.ErrorIf(t, len(notices.all) > 0, "where nobody has changed anything it says %q", notices.all)
	a.edit(t, &appsv1.Deployment{}, "gateway-b-0")
	after := peer()
	want := `a: Deployment liqonet-system/gateway-b-0: .spec.template.spec.containers[name="agent"].imagePullPolicy was set by "kubectl-edit", and is overwritten`
	kit.ErrorIf(t, !slices.Equal(notices.all, []string{want}), "it says %q, want %q", notices.all, want)
	d := &appsv1.Deployment{}
	if err := a.Raw.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "gateway-b-0"}, d); err != nil || d.Spec.Template.Spec.Containers[0].ImagePullPolicy != corev1.PullIfNotPresent {
		t.Errorf("%v, %+v", err, d.Spec.Template.Spec.Containers)
	}
	kit.ErrorIf(t, after <= before, "it took %d requests to overwrite, and %d where there was no conflict", after, before)
}

// The strategy of node agents is no rollout that a killed command has left, unless it is the one for rollouts.
func TestPeerNamesAStrategyThatItOverwrites(t *testing.T) {
	kit.Play(t)
	var notices told
	a, b := Peered(t)
	ds := Get(t, a, v1alpha1.Namespace, v1alpha1.NodeAgentName, &appsv1.DaemonSet{})
	before := ds.DeepCopy()
	ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromInt32(1))}
	kit.NoError(t, a.Raw.Patch(t.Context(), ds, client.MergeFrom(before), client.FieldOwner("kubectl-edit")))
	kit.Must(Peer(kube.WithConflictReports(t.Context(), notices.tell), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}))(t)
	kit.ErrorIf(t, !slices.ContainsFunc(notices.all, func(n string) bool { return strings.Contains(n, "maxUnavailable") }),
		"it says %q", notices.all)
	n := DryRun(t, a, b, engine.Options{}).Changes()
	kit.ErrorIf(t, n > 0, "the next one would make %d changes", n)
}

// A rollback keeps fields that others have set since, and reports them.
func TestRollbackNamesWhatStays(t *testing.T) {
	kit.Play(t)
	var notices told
	a, b := Peered(t)
	_, err := Peer(kube.WithConflictReports(t.Context(), notices.tell), a.Cluster, b.Cluster, engine.Options{Image: "image:2"}, Steps{"Waiting until packets pass": func() {
		a.edit(t, &appsv1.Deployment{}, "gateway-b-0")
		a.Mu.Lock()
		defer a.Mu.Unlock()
		a.failing = a.Writes + 1
	}})
	kit.FatalIf(t, !errors.Is(err, ErrInjected), "%v", err)
	d := &appsv1.Deployment{}
	if err := a.Raw.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "gateway-b-0"}, d); err != nil || d.Spec.Template.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways {
		t.Errorf("%v, %+v", err, d.Spec.Template.Spec.Containers)
	}
	want := `imagePullPolicy was set by "kubectl-edit", and the object stays as it is`
	if len(notices.all) != 1 || !strings.HasSuffix(notices.all[0], want) || !strings.HasPrefix(notices.all[0], "a: Deployment liqonet-system/gateway-b-0: ") {
		t.Errorf("it says %q, want %q", notices.all, want)
	}
}
