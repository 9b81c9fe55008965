package peering

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// rolloutKinds are the kinds that rolledOut and podProblem look at.
func rolloutKinds() []kind {
	return []kind{
		inNamespace(&appsv1.DaemonSetList{}), inNamespace(&appsv1.DeploymentList{}), inNamespace(&appsv1.ControllerRevisionList{}), inNamespace(&corev1.PodList{}),
	}
}

// rolledOut says what is missing until the agents that were applied have taken over from
// those before them, on each of the nodes and in the gateway. They have when they run and
// hold the Leases, which they take when they have reported; then it is empty.
//
// Nodes are looked at one by one, as the DaemonSet's own count includes those
// that are not ready, for which nobody waits.
func rolledOut(o objects, g manifests.Gateway, reports []v1alpha1.NodeNetwork, nodes []string, beats heartbeats) string {
	ds, deployment := byName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName), byName[*appsv1.Deployment](o, g.Name())
	if ds == nil || ds.Status.ObservedGeneration < ds.Generation {
		return "the node agents are being replaced"
	}
	if deployment == nil || !isRolledOut(deployment) {
		return "the gateway is being replaced"
	}
	// The controller has seen what was applied, so it is the newest revision.
	newest := &appsv1.ControllerRevision{}
	for _, r := range of[*appsv1.ControllerRevision](o) {
		if metav1.IsControlledBy(r, ds) && r.Revision > newest.Revision {
			newest = r
		}
	}
	behind := map[string]bool{}
	for _, n := range nodes {
		behind[n] = true
	}
	gateway := false
	for _, pod := range of[*corev1.Pod](o) {
		switch {
		case !isRunning(pod):
		case metav1.IsControlledBy(pod, ds):
			if pod.Labels[appsv1.ControllerRevisionHashLabelKey] != newest.Labels[appsv1.ControllerRevisionHashLabelKey] {
				continue
			}
			// A node may have an outdated report as well.
			for _, r := range reports {
				if r.Spec.NodeName == pod.Spec.NodeName && beats.heldBy(nodeLease(r.Name), pod) {
					delete(behind, pod.Spec.NodeName)
				}
			}
		case pod.Labels[v1alpha1.LabelPeering] == g.Peering:
			gateway = gateway || beats.heldBy(g.Name(), pod)
		}
	}
	if !gateway {
		return "the gateway has not reported since it was replaced"
	}
	for _, n := range nodes {
		if behind[n] {
			return fmt.Sprintf("the node agent of %s is being replaced", n)
		}
	}
	return ""
}

func isRolledOut(d *appsv1.Deployment) bool {
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.Replicas == 1 && s.UpdatedReplicas == 1 && s.AvailableReplicas == 1
}

// isRunning says that the agent of a pod runs, and goes on to.
func isRunning(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Running != nil
}
