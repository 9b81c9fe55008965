package peering

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// If no object names the pod range, a dry run says that it becomes known during the run, and peer infers it from the
// agents' reports.
func TestRangeWithoutASource(t *testing.T) {
	a, b := TwoSites(t)
	withoutSource(t, a)
	a.routes = []netip.Prefix{kubetest.Prefix("10.244.0.0/20")}
	made := DryRun(t, a, b, engine.Options{})
	s := made.Clusters[0].Facts[0]
	kit.ErrorIf(t, s.Subject != "pod range" || !s.DuringRun, "before there are agents, the first fact is %+v", s)
	left := a.Ours(t)
	kit.FatalIf(t, len(left) > 0, "the dry run made %v", left)
	r := MustPeer(t, a, b, engine.Options{})
	got := r.Views[0].LocalPods
	kit.ErrorIf(t, len(got) != 1 || got[0].Real != kubetest.Prefix("10.244.0.0/16"), "the peer knows %v", got)
	kit.ErrorIf(t, len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "10.244.0.0/16") || !strings.Contains(r.Notes[0], "--pod-cidr a="),
		"the result says %q", r.Notes)
	made = DryRun(t, a, b, engine.Options{})
	if s := made.Clusters[0].Facts[0]; s.Value.String() != "10.244.0.0/16" || !s.Assumed || !strings.Contains(s.Reason, "--pod-cidr a=") {
		t.Errorf("with agents, the first fact is %+v", s)
	}
	for _, c := range made.Clusters {
		for _, o := range c.Objects {
			kit.ErrorIf(t, o.Action != plan.Keep, "%s: %s %s %s", c.Cluster, o.Action, o.Kind, o.Name)
		}
	}
}

// The user must give the range if the agents do not report every pod, and nothing remains.
func TestRangeThatAgentsDoNotTell(t *testing.T) {
	a, b := TwoSites(t)
	withoutSource(t, a)
	kubetest.Fails(t, kit.Err(Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})), kube.Ranges, "--pod-cidr a=")
	for _, w := range []*Site{a, b} {
		left := w.Ours(t)
		kit.ErrorIf(t, len(left) > 0, "left in %s: %v", w.Name, left)
	}
}

// withoutSource removes the objects that name a cluster's pod range, and adds a pod.
func withoutSource(t *testing.T, w *Site) {
	t.Helper()
	n := &corev1.Node{}
	kit.NoError(t, w.Client.Get(t.Context(), types.NamespacedName{Name: w.Name + "-1"}, n))
	n.Spec.PodCIDR, n.Spec.PodCIDRs = "", nil
	kit.NoError(t, errors.Join(
		w.Client.Update(t.Context(), n),
		w.Client.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubeadm-config"}}),
		w.Client.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.PodSpec{NodeName: n.Name},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.9.7", PodIPs: []corev1.PodIP{{IP: "10.244.9.7"}}},
		}),
	))
}
