package engine

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// gatewayIn returns the gateway of a Deployment or pod.
func gatewayIn(d client.Object) manifests.Gateway {
	plane, _ := strconv.Atoi(d.GetLabels()[v1alpha1.LabelPlane]) // the label is ours
	return manifests.Gateway{Peering: d.GetLabels()[v1alpha1.LabelPeering], Plane: int32(plane)}
}

// MaxRestarts is how often an agent may exit before that is an error: it also exits when an API server is unavailable
// for long.
const MaxRestarts = 4

// PodProblem checks the pods of these gateways, and of the node agents on these nodes, which are sorted. It returns
// an error if a pod cannot start and waiting does not help, and a reason if one crashes repeatedly.
func PodProblem(c *kube.Cluster, o kube.Objects, nodes []string, gateways ...string) (reason string, err error) {
	for _, p := range kube.OfKind[*corev1.Pod](o) {
		isGateway := slices.Contains(gateways, gatewayIn(p).Name())
		isAgent := p.Labels[v1alpha1.LabelPeering] == "" && p.Labels[v1alpha1.LabelProbe] == "" && kube.IsAmong(nodes, p.Spec.NodeName)
		if !isGateway && !isAgent || !p.DeletionTimestamp.IsZero() {
			continue
		}
		if cond := Unschedulable(p); cond != nil {
			reason = fmt.Sprintf("pod %s has no node (each gateway of a peering needs one of its own, see --planes): %s", p.Name, cond.Message)
		}
		for _, s := range p.Status.ContainerStatuses {
			if err := CannotStart(c, p, s); err != nil {
				return "", err
			}
			w := s.State.Waiting
			if w == nil {
				continue
			}
			switch w.Reason {
			case "CrashLoopBackOff":
				why := "the agent ends again and again"
				if t := s.LastTerminationState.Terminated; t != nil && t.Message != "" {
					why = strings.TrimSpace(t.Message)
				}
				if s.RestartCount >= MaxRestarts {
					e := StartError(c, p, errors.New(why))
					e.Hint = fmt.Sprintf("%s -n %s logs %s --previous", c.Kubectl, p.Namespace, p.Name)
					return "", e
				}
				reason = fmt.Sprintf("pod %s on node %s: %s", p.Name, p.Spec.NodeName, why)
			}
		}
	}
	return reason, nil
}

// Unschedulable returns the condition that says why a pod cannot be scheduled, or nil.
func Unschedulable(p *corev1.Pod) *corev1.PodCondition {
	for i, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodScheduled && cond.Reason == corev1.PodReasonUnschedulable {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// StartError returns the error for one of our pods that does not start.
func StartError(c *kube.Cluster, p *corev1.Pod, why error) *kube.Error {
	return &kube.Error{Kind: kube.NotReady, Cluster: c.Name, Doing: fmt.Sprintf("start pod %s/%s on node %s", p.Namespace, p.Name, p.Spec.NodeName), Err: why, Hint: c.PodsHint()}
}

// CannotStart returns why a container of ours cannot start if waiting does not help.
func CannotStart(c *kube.Cluster, p *corev1.Pod, s corev1.ContainerStatus) error {
	w := s.State.Waiting
	if w == nil {
		return nil
	}
	switch w.Reason {
	case "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
		e := StartError(c, p, fmt.Errorf("image %q cannot be pulled: %s", s.Image, strings.TrimSpace(w.Message)))
		e.Hint = "name an image that the nodes can pull with --agent-image, or load it into them (make image; kind load image-archive bin/liqonet-agent.tar)"
		return e
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
		return StartError(c, p, fmt.Errorf("%s: %s", w.Reason, w.Message))
	}
	return nil
}
