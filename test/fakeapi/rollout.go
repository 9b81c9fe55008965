package fakeapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// GatewayIP is the address of all gateway pods.
const GatewayIP = "10.244.0.2"

// RollsOut are the resources on which it depends what RollOut does.
var RollsOut = []string{"daemonsets", "deployments", "controllerrevisions", "pods", "nodes"}

// RollOut does what controllers and kubelets do for our DaemonSet and Deployments:
// all pods are of what was applied last, and have started at the time given; but
// the one of a node, or of a Deployment, that is late stays as it is.
func RollOut(ctx context.Context, c client.Client, started metav1.Time, late string) error {
	ds := &appsv1.DaemonSet{}
	err := c.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}, ds)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if err == nil {
		if err := rollOutNodeAgents(ctx, c, ds, started, late); err != nil {
			return err
		}
	}
	var deployments appsv1.DeploymentList
	if err := c.List(ctx, &deployments, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return err
	}
	if err := endGateways(ctx, c, deployments.Items); err != nil {
		return err
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if d.Name == late {
			d.Status.UpdatedReplicas = 0
			if err := ignored(c.Status().Update(ctx, d)); err != nil {
				return err
			}
			continue
		}
		n := ptr.Deref(d.Spec.Replicas, 1)
		status := appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
		if d.Status.ObservedGeneration != status.ObservedGeneration || d.Status.UpdatedReplicas != n {
			d.Status = status
			if err := ignored(c.Status().Update(ctx, d)); err != nil {
				return err
			}
		}
		if n == 0 {
			continue
		}
		if err := runPod(ctx, c, d.Name+"-pod", "", d, &d.Spec.Template, started); err != nil {
			return err
		}
	}
	return nil
}

// endGateways deletes the pods of gateways whose Deployment is gone, or wants none.
func endGateways(ctx context.Context, c client.Client, deployments []appsv1.Deployment) error {
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(v1alpha1.Namespace), client.HasLabels{v1alpha1.LabelPlane, labelName}); err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if slices.ContainsFunc(deployments, func(d appsv1.Deployment) bool {
			return d.Name+"-pod" == pod.Labels[labelName] && ptr.Deref(d.Spec.Replicas, 1) > 0
		}) {
			continue
		}
		if err := ignored(c.Delete(ctx, pod)); err != nil {
			return err
		}
	}
	return nil
}

func rollOutNodeAgents(ctx context.Context, c client.Client, ds *appsv1.DaemonSet, started metav1.Time, late string) error {
	hash, err := hashOf(&ds.Spec.Template)
	if err != nil {
		return err
	}
	var revisions appsv1.ControllerRevisionList
	if err := c.List(ctx, &revisions, client.InNamespace(ds.Namespace)); err != nil {
		return err
	}
	known, newest := (*appsv1.ControllerRevision)(nil), int64(0)
	for i, r := range revisions.Items {
		newest = max(newest, r.Revision)
		if r.Labels[appsv1.ControllerRevisionHashLabelKey] == hash {
			known = &revisions.Items[i]
		}
	}
	switch {
	case known == nil:
		err = c.Create(ctx, &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: ds.Namespace, Name: ds.Name + "-" + hash, Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: hash},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ds, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))},
			},
			Revision: newest + 1,
		})
	case known.Revision < newest:
		known.Revision = newest + 1 // as a controller does when something is taken back
		err = c.Update(ctx, known)
	}
	if err := ignored(err); err != nil {
		return err
	}
	if ds.Status.ObservedGeneration != ds.Generation {
		ds.Status.ObservedGeneration = ds.Generation
		if err := ignored(c.Status().Update(ctx, ds)); err != nil {
			return err
		}
	}
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes); err != nil {
		return err
	}
	for _, n := range nodes.Items {
		if n.Name == late {
			continue
		}
		if ds.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
			var pods corev1.PodList
			if err := c.List(ctx, &pods, client.InNamespace(ds.Namespace), client.MatchingLabels{labelName: ds.Name + "-" + n.Name}); err != nil {
				return err
			}
			if len(pods.Items) > 0 {
				continue // until somebody deletes it
			}
		}
		if err := runPod(ctx, c, ds.Name+"-"+n.Name, n.Name, ds, &ds.Spec.Template, started); err != nil {
			return err
		}
	}
	return nil
}

func hashOf(template *corev1.PodTemplateSpec) (string, error) {
	raw, err := json.Marshal(template)
	if err != nil {
		return "", err
	}
	h := fnv.New32a()
	_, _ = h.Write(raw) // never fails
	return fmt.Sprintf("%x", h.Sum32()), nil
}

// runPod has a pod run that is of the template. Those of older ones go. Its agent
// takes the Lease, if there is one.
func runPod(ctx context.Context, c client.Client, name, node string, owner client.Object, template *corev1.PodTemplateSpec, started metav1.Time) error {
	hash, err := hashOf(template)
	if err != nil {
		return err
	}
	// A list costs as much as there are pods. When this one was made, others were deleted.
	if err := c.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: name + "-" + hash}, &corev1.Pod{}); !apierrors.IsNotFound(err) {
		return err
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(owner.GetNamespace()), client.MatchingLabels{labelName: name}); err != nil {
		return err
	}
	for i := range pods.Items {
		if err := ignored(c.Delete(ctx, &pods.Items[i])); err != nil {
			return err
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.GetNamespace(), Name: name + "-" + hash, Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: hash, labelName: name},
			UID: uuid.NewUUID(), // the fake client gives none
		},
		Spec: *template.Spec.DeepCopy(),
	}
	for k, v := range template.Labels {
		pod.Labels[k] = v
	}
	if node != "" {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	}
	pod.Spec.NodeName = node
	container := pod.Spec.Containers[0]
	state := corev1.ContainerStatus{Image: container.Image, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}}
	if strings.HasPrefix(container.Image, MissingImage) {
		state.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}}
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: GatewayIP, PodIPs: []corev1.PodIP{{IP: GatewayIP}}, ContainerStatuses: []corev1.ContainerStatus{state}}
	return ignored(c.Create(ctx, pod))
}

// MissingImage is what the names of images begin with that nobody can pull.
const MissingImage = "missing"

// exists says whether there is a pod of our namespace whose agent runs.
func exists(ctx context.Context, c client.Client, name string) (bool, error) {
	if name == "" {
		return false, nil
	}
	pod := &corev1.Pod{}
	err := c.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: name}, pod)
	return err == nil && isRunning(*pod), client.IgnoreNotFound(err)
}

func isRunning(p corev1.Pod) bool {
	return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Running != nil
}

// labelName has the name of a pod without the hash of its template.
const labelName = "test/name"

// renewInterval is how often Leases are renewed here.
const renewInterval = time.Second

// RenewLease renews a Lease, as the agent does that runs in the pod of that name, without
// the hash of its template, or as the holder given.
func RenewLease(ctx context.Context, c client.Client, lease, pod, holder string) error {
	live := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: v1alpha1.Namespace, Name: lease, Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager},
	}}
	err := c.Get(ctx, client.ObjectKeyFromObject(live), live)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	current := live.Annotations[v1alpha1.AnnotationPod]
	isThere, failed := exists(ctx, c, current)
	switch {
	case failed != nil:
		return failed
	case isThere && holder == "":
		holder = current // a list costs as much as there are pods
	default:
		var pods corev1.PodList
		if err := c.List(ctx, &pods, client.InNamespace(v1alpha1.Namespace), client.MatchingLabels{labelName: pod}); err != nil {
			return err
		}
		pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !isRunning(p) })
		if len(pods.Items) == 0 {
			return nil
		}
		holder = cmp.Or(holder, pods.Items[0].Name)
	}
	if holder == current && time.Since(live.Spec.RenewTime.Time) < renewInterval {
		return nil
	}
	live.Annotations = map[string]string{v1alpha1.AnnotationPod: holder}
	live.Spec.HolderIdentity, live.Spec.RenewTime = &holder, new(metav1.NowMicro())
	if node, isNode := strings.CutPrefix(pod, v1alpha1.NodeAgentName+"-"); isNode {
		live.Spec.HolderIdentity = &node
	}
	if err != nil {
		return ignored(c.Create(ctx, live, client.FieldOwner("agent")))
	}
	return ignored(c.Update(ctx, live, client.FieldOwner("agent")))
}
