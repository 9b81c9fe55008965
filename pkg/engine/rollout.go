package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

// UpdateNodeAgents replaces running node agents once the gateways of this peering run: an image that cannot start
// fails there, where it harms no other peering.
func (s *Side) UpdateNodeAgents(ctx context.Context, planned *plan.ClusterPlan) error {
	daemonSet, err := s.currentNodeAgents(ctx, &planned.NodeAgents)
	if err != nil {
		return err
	}
	want, live, err := s.Read(ctx, daemonSet)
	if err != nil || kube.Contains(live.Object, want.Object) {
		return err
	}
	// Where only that differs that the DaemonSet replaces no agents itself, a killed command has not replaced all of them.
	// Their keys decide whether this peering needs that now, or whether [CompleteIfPossible] does it later.
	strategy, _, _ := unstructured.NestedString(live.Object, "spec", "updateStrategy", "type")
	unstructured.RemoveNestedField(want.Object, "spec", "updateStrategy")
	if strategy == string(appsv1.OnDeleteDaemonSetStrategyType) && kube.Contains(live.Object, want.Object) {
		if haveKeys, err := agentsHaveKeys(ctx, s.Cluster, live, planned.Peering); haveKeys || err != nil {
			return err
		}
	}
	a := Agents{Nodes: NoNodes(), Gateways: planned.Gateways, PriorFailures: s.Health.PriorFailures}
	err = AwaitAgents(ctx, s.Cluster, "wait for the gateway, before the node agents are replaced", s.PodsHint(), a, func(o kube.Objects, _ status.Heartbeats, missing string) (string, error) {
		if kube.ByName[*v1alpha1.Peering](o, planned.Peering.Name) == nil {
			return "", kube.ErrUnpeered
		}
		return missing, nil
	})
	if err != nil {
		return err
	}
	if s.Health.Baseline, _, err = BaselinePaths(ctx, s.Cluster, 0); err != nil {
		return err
	}
	return s.RollOut(ctx, &planned.NodeAgents, kube.Quiet{}.Step)
}

// agentsHaveKeys reports whether all node agents that run have the overlay keys of a planned Peering.
func agentsHaveKeys(ctx context.Context, c *kube.Cluster, daemonSet metav1.Object, planned *v1alpha1.Peering) (bool, error) {
	var pods corev1.PodList
	err := c.List(ctx, &pods, client.InNamespace(v1alpha1.Namespace))
	return !slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
		given := manifests.OverlayKeys(&pod.Spec)
		return metav1.IsControlledBy(&pod, daemonSet) && slices.ContainsFunc(planned.Spec.Planes, func(plane v1alpha1.Plane) bool {
			return plane.OverlayKeyGeneration > 0 && !slices.Contains(given, plane.OverlayKeyGeneration)
		})
	}), err
}

// RollOut replaces the agents of nodes as planned, first on one node and then on a quarter at a time, and checks the
// probes after each group. In the meantime the DaemonSet replaces no agents itself, even if this command is killed.
func (s *Side) RollOut(ctx context.Context, planned *plan.NodeAgents, step lock.Wait) error {
	isDone, err := s.applyNodeAgents(ctx, planned, true)
	if isDone || err != nil {
		return err
	}
	if err := s.replaceNodeAgents(ctx, step); err != nil {
		return err
	}
	_, err = s.applyNodeAgents(ctx, planned, false)
	return err
}

// replaceNodeAgents replaces outdated node agents, a group of nodes at a time.
func (s *Side) replaceNodeAgents(ctx context.Context, step lock.Wait) error {
	groups := s.Facts.NodeGroups()
	for i, group := range groups {
		name := fmt.Sprintf("node agents, %d of %d (%s)", len(slices.Concat(groups[:i+1]...)), len(slices.Concat(groups...)), kube.FirstOf(3, group))
		err := step(ctx, name, func(ctx context.Context) error {
			newest, pods, err := outdated(ctx, s.Cluster, group)
			if err := cmp.Or(err, s.DeleteEach(ctx, pods)); err != nil {
				return err
			}
			return s.AwaitHealthy(ctx, Agents{Nodes: group, Since: newest}, 0)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// outdated returns the newest revision of node agents, and the pods of earlier ones on these nodes, which are sorted.
func outdated(ctx context.Context, c *kube.Cluster, nodes []string) (newest int64, pods []client.Object, err error) {
	err = c.Await(ctx, "find outdated node agents", c.PodsHint(), RolloutKinds(), func(_ context.Context, o kube.Objects) (string, error) {
		ds := kube.ByName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName)
		revisions, last, missing := revisionsOf(o)
		newest, pods = last, nil
		for _, pod := range kube.OfKind[*corev1.Pod](o) {
			revision := revisions[pod.Labels[appsv1.ControllerRevisionHashLabelKey]]
			if ds != nil && metav1.IsControlledBy(pod, ds) && kube.IsAmong(nodes, pod.Spec.NodeName) && revision < newest {
				pods = append(pods, pod)
			}
		}
		return missing, nil
	})
	return newest, pods, err
}

// ReplaceGateway applies a gateway's Deployment. Two gateways with the same key would steal each other's packets, and
// a new one waits only seconds for its predecessor. So the new one starts only after its predecessor has exited,
// which it does once nodes use another plane. If there is no other plane, it starts at once.
func (s *Side) ReplaceGateway(ctx context.Context, g manifests.Gateway, next *unstructured.Unstructured, noRedundancy bool) error {
	if !noRedundancy {
		_, live, err := s.Read(ctx, next)
		if err != nil {
			return err
		}
		noRedundancy = live.GetResourceVersion() == "" || SameTemplate(live, next) && !IsStopped(live)
	}
	if noRedundancy {
		return s.Apply(ctx, next)
	}
	none := next.DeepCopy()
	_ = unstructured.SetNestedField(none.Object, int64(0), "spec", "replicas") // every Deployment has a spec
	if err := s.Apply(ctx, none); err != nil {
		return err
	}
	ended := AwaitTerminated(ctx, s.Cluster, g)
	if ended != nil { // in any case a gateway must run again
		var cancel context.CancelFunc
		ctx, cancel = s.Isolated(ctx, kube.RollbackTimeout)
		defer cancel()
	}
	return cmp.Or(ended, s.Apply(ctx, next))
}

// IsStopped reports whether a Deployment is scaled to zero, as an interrupted command may have left it.
func IsStopped(d *unstructured.Unstructured) bool {
	n, found, _ := unstructured.NestedInt64(d.Object, "spec", "replicas")
	return found && n == 0
}

// SameTemplate reports whether applying want would not replace the pods of live.
func SameTemplate(live, want *unstructured.Unstructured) bool {
	before, _, _ := unstructured.NestedFieldNoCopy(live.Object, "spec", "template")
	after, _, _ := unstructured.NestedFieldNoCopy(want.Object, "spec", "template")
	return kube.Contains(before, after)
}

// StopGateway deletes a gateway's Deployment, and waits until its pod has exited, which it does once no node sends
// packets through it.
func StopGateway(ctx context.Context, c *kube.Cluster, g manifests.Gateway) error {
	_, deployment := g.Objects()
	_, live, err := c.Read(ctx, deployment)
	if err != nil {
		return err
	}
	if live.GetResourceVersion() != "" {
		if err := c.Delete(ctx, live); err != nil {
			return err
		}
	}
	return AwaitTerminated(ctx, c, g)
}
