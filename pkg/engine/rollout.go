package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
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
	// Their keys decide whether this peering needs that now, or whether [TryCompleteOthers] does it later.
	strategy, _, _ := unstructured.NestedString(live.Object, "spec", "updateStrategy", "type")
	unstructured.RemoveNestedField(want.Object, "spec", "updateStrategy")
	if strategy == string(appsv1.OnDeleteDaemonSetStrategyType) && kube.Contains(live.Object, want.Object) {
		if haveKeys, err := agentsHaveKeys(ctx, s.Cluster, live, planned.Peering); haveKeys || err != nil {
			return err
		}
	}
	a := AgentSet{Nodes: NoNodes(), Gateways: planned.Gateways, PriorFailures: s.Health.PriorFailures}
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
	all := s.Facts.NodeGroups()
	for i, group := range all {
		name := fmt.Sprintf("node agents, %d of %d (%s)", len(lo.Flatten(all[:i+1])), len(lo.Flatten(all)), kube.JoinFirst(3, group))
		err := step(ctx, name, func(ctx context.Context) error {
			newest, pods, err := outdatedPods(ctx, s.Cluster, group)
			if err := cmp.Or(err, s.DeleteEach(ctx, pods)); err != nil {
				return err
			}
			return s.AwaitHealthy(ctx, AgentSet{Nodes: group, Since: newest}, 0)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// outdatedPods returns the newest revision of node agents, and the pods of earlier ones on these nodes, which are sorted.
func outdatedPods(ctx context.Context, c *kube.Cluster, nodes []string) (newest int64, pods []client.Object, err error) {
	err = c.Await(ctx, "find outdated node agents", c.PodsHint(), RolloutKinds(), func(o kube.Objects) (string, error) {
		ds := kube.ByName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName)
		revisions, last, missing := revisionsOf(o)
		newest, pods = last, nil
		for _, pod := range kube.OfKind[*corev1.Pod](o) {
			revision := revisions[pod.Labels[appsv1.ControllerRevisionHashLabelKey]]
			if ds != nil && metav1.IsControlledBy(pod, ds) && kube.ContainsSorted(nodes, pod.Spec.NodeName) && revision < newest {
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
	deployment := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(next.Object, deployment); err != nil {
		return err
	}
	if err := ensureGatewayKeys(ctx, s, deployment); err != nil {
		return err
	}
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
	if err := deleteNamed[appsv1.Deployment](ctx, c, g.Name()); err != nil {
		return err
	}
	return AwaitTerminated(ctx, c, g)
}

// Revert rolls back the changes of a command for one peering, without a journal. With sharedOnly it leaves out the
// peering's own objects, which are removed. It does not wait for packets, which need both clusters to be rolled back.
func Revert(ctx context.Context, c *kube.Cluster, peerID string, changes []Change, sharedOnly bool) error {
	if sharedOnly {
		changes = lo.Filter(changes, func(ch Change, _ int) bool {
			return ch.object().GetLabels()[v1alpha1.LabelPeering] == "" && ch.object().GetKind() != "Peering"
		})
	}
	err := NewSide(c, 0).RollBack(ctx, changes, func(context.Context, AgentSet) error { return nil })
	if err != nil || sharedOnly {
		return err
	}
	return deleteKeysWithoutPlane(ctx, c, peerID)
}

// revertChange reverts a change, unless others have changed the object since.
func revertChange(ctx context.Context, c *kube.Cluster, ch Change) error {
	live, err := readRevertible(ctx, c, ch)
	if live == nil || err != nil {
		return err
	}
	if ch.Before == nil {
		return c.Delete(ctx, live)
	}
	back := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(ch.Before)}
	back.SetResourceVersion(live.GetResourceVersion())
	back.SetUID(live.GetUID()) // without it, a deleted object would be created
	if back.GetKind() == "DaemonSet" {
		manifests.CopyOverlayKeys(back, live) // other commands may use one that was added since
	}
	return c.Write(ctx, back)
}

// readRevertible reads the object of a change. It returns nil if that is gone, or if others have changed it since: then the change is not
// reverted, and the fields that they have set are reported.
func readRevertible(ctx context.Context, c *kube.Cluster, ch Change) (*unstructured.Unstructured, error) {
	_, live, err := c.Read(ctx, ch.object())
	if err != nil || live.GetResourceVersion() == "" {
		return nil, err
	}
	if kube.Contains(live.Object, ch.After) {
		return live, nil
	}
	again := client.ApplyConfigurationFromUnstructured(ch.object().DeepCopy())
	fields, _ := kube.Conflicts(live, c.Client.Apply(ctx, again, kube.FieldOwner, client.DryRunAll))
	kube.ReportConflicts(ctx, c.Name, fields, "the object stays as it is")
	return nil, nil
}

// RevertInterrupted rolls back the changes of a killed command for this peering, whose lock is held. With sharedOnly it
// leaves out the peering's own objects.
func RevertInterrupted(ctx context.Context, c *kube.Cluster, peerID, peering string, sharedOnly bool) error {
	obj, err := kube.Get[corev1.Secret](ctx, c, v1alpha1.Namespace, manifests.JournalSecret(peering).Name)
	if obj == nil || err != nil {
		return err
	}
	var changes []Change
	if raw := obj.Data[JournalKey]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &changes); err != nil {
			return c.Wrap("read "+kube.Describe(obj), err)
		}
	}
	if !sharedOnly {
		if err := RestoreRanges(ctx, c, peerID); err != nil {
			return err
		}
	}
	if err := Revert(ctx, c, peerID, changes, sharedOnly); err != nil {
		return err
	}
	return c.Delete(ctx, obj)
}

// deleteKeysWithoutPlane deletes the keys of planes that a peering which has worked does not have, after its changes are rolled
// back: a journal has no Secrets. Those of a gateway that others have changed since are left alone.
func deleteKeysWithoutPlane(ctx context.Context, c *kube.Cluster, peerID string) error {
	entry, err := c.ReadLedgerEntry(ctx, peerID)
	if entry == nil || !entry.Active() || err != nil {
		return err
	}
	p, err := kube.Get[v1alpha1.Peering](ctx, c, "", entry.Name)
	if p == nil || err != nil {
		return err
	}
	deployments, err := c.ListManaged(ctx, kube.PeeringLabels(entry.Name), &appsv1.DeploymentList{})
	if err != nil {
		return err
	}
	planeOf := func(obj client.Object, _ int) string { return obj.GetLabels()[v1alpha1.LabelPlane] }
	used := append(lo.Map(deployments, planeOf), "") // what belongs to no plane
	used = append(used, lo.Map(p.Spec.Planes, func(plane v1alpha1.Plane, _ int) string { return strconv.Itoa(int(plane.Index)) })...)
	secrets, err := c.ListManaged(ctx, kube.PeeringLabels(entry.Name), kube.SecretMetadataList())
	unused := lo.Reject(secrets, func(s client.Object, i int) bool { return slices.Contains(used, planeOf(s, i)) })
	return cmp.Or(err, c.DeleteEach(ctx, unused))
}

// RollBack rolls back changes: gateways in the reverse order of planes, and then everything else. Objects that others
// have changed since are left alone. It continues after errors.
func (s *Side) RollBack(ctx context.Context, changes []Change, await func(context.Context, AgentSet) error) error {
	isGateway := func(c Change, _ int) bool { return c.object().GetKind() == "Deployment" && c.Before != nil }
	gateways, rest := lo.FilterReject(changes, isGateway)
	planes := lo.PartitionBy(gateways, func(c Change) string { return c.object().GetLabels()[v1alpha1.LabelPlane] })
	var errs []error
	for _, plane := range slices.Backward(planes) { // they are in the order of their first change
		byName := lo.PartitionBy(plane, func(c Change) string { return c.object().GetName() })
		whole := lo.Map(byName, func(all []Change, _ int) Change { return Change{Before: all[0].Before, After: all[len(all)-1].After} })
		_, failed := failure.Map(whole, func(c Change) (any, error) { return nil, s.rollBackGateway(ctx, c) })
		err := cmp.Or(failed...)
		if err == nil {
			restored := lo.Map(whole, func(c Change, _ int) manifests.Gateway { return gatewayIn(c.object()) })
			err = await(ctx, AgentSet{Nodes: NoNodes(), Gateways: restored})
		}
		errs = append(errs, err)
	}
	for _, ch := range slices.Backward(rest) {
		errs = append(errs, kube.RetryOnConflict(func() error { return revertChange(ctx, s.Cluster, ch) }))
	}
	return errors.Join(errs...)
}

// rollBackGateway rolls back one gateway, unless others have changed it since.
func (s *Side) rollBackGateway(ctx context.Context, c Change) error {
	live, err := readRevertible(ctx, s.Cluster, c)
	if live == nil || err != nil {
		return err
	}
	g := gatewayIn(live)
	p, err := kube.Get[v1alpha1.Peering](ctx, s.Cluster, "", g.Peering)
	if p == nil || err != nil {
		return err
	}
	return s.ReplaceGateway(ctx, g, &unstructured.Unstructured{Object: runtime.DeepCopyJSON(c.Before)}, len(p.Spec.Planes) == 1)
}

const (
	// rollOutTimeout limits the completion of a rollout by an unrelated command. The next command continues it.
	rollOutTimeout = time.Minute
	// stallTimeout limits how long that waits while no node gets its agent, such as one that starts no pods. A node may
	// have to pull the image.
	stallTimeout = 20 * time.Second
)

// TryCompleteOthers completes the rollout of a killed command, and then retires unused overlay keys. The DaemonSet would replace
// all agents at once, without checking probes. So each command does it in groups after its own work, under the cluster's lock.
// Of concurrent commands, the last one does it. It reports whether it has completed one.
func TryCompleteOthers(ctx context.Context, c *kube.Cluster, r kube.Reporter) (completed bool) {
	defer TryRetireUnusedKeys(ctx, c)
	ctx, cancel := context.WithTimeoutCause(ctx, rollOutTimeout, fmt.Errorf("not done after %s; the next command continues", rollOutTimeout))
	defer cancel()
	isNeeded := func(ctx context.Context) (bool, error) {
		ds, err := c.ReadNodeAgents(ctx)
		return ds != nil && isOnDelete(ds), err
	}
	ifIdle(ctx, c, "complete a rollout", isNeeded, func(ctx context.Context) error {
		err := r.Step(ctx, c.Name+": completing the rollout of another command", func(ctx context.Context) error { return completeRollout(ctx, c) })
		completed = err == nil
		return err
	})
	return completed
}

// completeRollout is the part under the lock.
func completeRollout(ctx context.Context, c *kube.Cluster) (err error) {
	s := NewSide(c, 0)
	s.Health.StallTimeout = stallTimeout
	if s.Facts.Network.Nodes, err = AgentNodes(ctx, c); err != nil {
		return err
	}
	if s.Health.Baseline, _, err = BaselinePaths(ctx, c, 0); err != nil {
		return err
	}
	ready := sets.New(slices.Concat(s.Facts.NodeGroups()...)...)
	_, outdated, err := outdatedPods(ctx, c, sets.List(ready))
	if err != nil {
		return err
	}
	for _, pod := range outdated {
		ready.Delete(pod.(*corev1.Pod).Spec.NodeName)
	}
	s.Health.Baseline.expectNodes(sets.List(ready))
	if err := s.replaceNodeAgents(ctx, kube.Quiet{}.Step); err != nil {
		return err
	}
	return kube.RetryOnConflict(func() error {
		ds, err := c.ReadNodeAgents(ctx)
		if ds == nil || err != nil {
			return err
		}
		before := ds.DeepCopy()
		ds.Spec.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
		return patchAgents(ctx, c, before, ds)
	})
}
