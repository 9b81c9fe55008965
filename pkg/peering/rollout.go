package peering

import (
	"cmp"
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// rolloutKinds are the kinds that rolledOut and podProblem look at.
func rolloutKinds() []client.ObjectList {
	return []client.ObjectList{&appsv1.DaemonSetList{}, &appsv1.DeploymentList{}, &appsv1.ControllerRevisionList{}, &corev1.PodList{}}
}

// rolledOut says what is missing until the agents that were applied have taken over from
// those before them, on each of the nodes and in the gateway. They have when they run and
// hold the Leases, which they take when they have reported; then it is empty.
//
// Nodes are looked at one by one, as the DaemonSet's own count includes those
// that are not ready, for which nobody waits.
func rolledOut(o objects, g manifests.Gateway, nodes []string, beats heartbeats) string {
	newest, missing := newestRevision(o)
	return cmp.Or(missing, gatewayRolledOut(o, g, beats), nodesRolledOut(o, newest, nodes, beats))
}

// newestRevision is that of the node agents' DaemonSet, which its controller has to have seen.
func newestRevision(o objects) (revision, missing string) {
	ds := byName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName)
	if ds == nil || ds.Status.ObservedGeneration < ds.Generation {
		return "", "the node agents are being replaced"
	}
	newest := &appsv1.ControllerRevision{}
	for _, r := range of[*appsv1.ControllerRevision](o) {
		if metav1.IsControlledBy(r, ds) && r.Revision > newest.Revision {
			newest = r
		}
	}
	return newest.Labels[appsv1.ControllerRevisionHashLabelKey], ""
}

// gatewayRolledOut is for a gateway.
func gatewayRolledOut(o objects, g manifests.Gateway, beats heartbeats) string {
	deployment := byName[*appsv1.Deployment](o, g.Name())
	if deployment == nil || !isRolledOut(deployment) {
		return "the gateway is being replaced"
	}
	if runningPods(o)[beats.pod(g.Name())] == nil {
		return "the gateway has not reported since it was replaced"
	}
	return ""
}

// nodesRolledOut is for node agents.
func nodesRolledOut(o objects, revision string, nodes []string, beats heartbeats) string {
	ds, running, reports := byName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName), runningPods(o), plan.ReportsByNode(o.reports())
	for _, n := range nodes {
		pod := running[beats.pod(reports[n].Lease())]
		if reports[n] == nil || pod == nil || !metav1.IsControlledBy(pod, ds) || pod.Labels[appsv1.ControllerRevisionHashLabelKey] != revision {
			return fmt.Sprintf("the node agent of %s is being replaced", n)
		}
	}
	return ""
}

// runningPods are those whose agents run, by name.
func runningPods(o objects) map[string]*corev1.Pod {
	running := map[string]*corev1.Pod{}
	for _, pod := range of[*corev1.Pod](o) {
		if isRunning(pod) {
			running[pod.Name] = pod
		}
	}
	return running
}

func isRolledOut(d *appsv1.Deployment) bool {
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.Replicas == 1 && s.UpdatedReplicas == 1 && s.AvailableReplicas == 1
}

// isRunning says that the agent of a pod runs, and goes on to.
func isRunning(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Running != nil
}

// awaitEnd waits until the gateway that ran before what was applied has ended: it goes on until nobody sends
// packets by it. Where nothing is applied, that is the last one. One on a node that is not ready is not waited for.
func (c *Cluster) awaitEnd(ctx context.Context, g manifests.Gateway) error {
	kinds := []client.ObjectList{&appsv1.DeploymentList{}, &corev1.PodList{}, &corev1.NodeList{}}
	labels := g.Labels()
	return c.await(ctx, "wait until the former gateway has ended", c.podsHint(), kinds, func(_ context.Context, o objects) (string, error) {
		d := byName[*appsv1.Deployment](o, g.Name())
		if d != nil && d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
			d = nil // none is to run
		}
		if d != nil && (d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas < 1 || d.Status.Replicas > d.Status.UpdatedReplicas) {
			return "the gateway is being replaced", nil
		}
		_, notReady := nodesByReadiness(of[*corev1.Node](o))
		for _, pod := range of[*corev1.Pod](o) {
			if pod.Labels[v1alpha1.LabelPeering] != g.Peering || pod.Labels[v1alpha1.LabelPlane] != labels[v1alpha1.LabelPlane] || isAmong(notReady, pod.Spec.NodeName) {
				continue
			}
			if d == nil || !pod.DeletionTimestamp.IsZero() {
				return fmt.Sprintf("pod %s goes on until nobody sends packets by it", pod.Name), nil
			}
		}
		return "", nil
	})
}
