// Package manifests builds the Kubernetes objects that liqonet installs: the custom resource definitions (generated from
// pkg/api, embedded), the node agents' DaemonSet, and a gateway's Deployment, Service and permissions.
//
// Every function is pure: same input, same objects. Nothing here talks to a cluster. No object contains a private key
// unless the caller passes it.
package manifests

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/version"
)

// Object is any API object.
type Object interface {
	metav1.Object
	runtime.Object
}

// ToApply converts an object for server-side apply: without status and without fields that only the API server sets.
func ToApply(obj Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("convert %T %s: %w", obj, obj.GetName(), err)
	}
	u := &unstructured.Unstructured{Object: content}
	unstructured.RemoveNestedField(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "resourceVersion")
	unstructured.RemoveNestedField(u.Object, "metadata", "uid")
	return u, nil
}

// Agents describe the containers of a cluster's agents.
type Agents struct {
	Image string
	// Version is the version of the image, empty for this command's.
	Version string
}

// meta returns the metadata of an object that runs these agents.
func (a Agents) meta(name string, labels map[string]string) metav1.ObjectMeta {
	m := objectMeta(v1alpha1.Namespace, name, labels)
	if a.Version != "" {
		m.Annotations[v1alpha1.AnnotationVersion] = a.Version
	}
	return m
}

// AgentsOf returns the agents that a DaemonSet or Deployment runs.
func AgentsOf(obj metav1.Object, pod *corev1.PodSpec) (a Agents) {
	a.Version = obj.GetAnnotations()[v1alpha1.AnnotationVersion]
	for _, c := range pod.Containers {
		a.Image = c.Image // there is one
	}
	return a
}

func typeMeta(v schema.GroupVersion, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v.String(), Kind: kind}
}

// objectMeta returns the metadata of an object that the CLI applies. A cluster-scoped one has no namespace.
func objectMeta(namespace, name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: labels, Annotations: map[string]string{v1alpha1.AnnotationVersion: version.String()},
	}
}

func commonLabels() map[string]string {
	return map[string]string{labelName: "liqonet", v1alpha1.LabelManagedBy: v1alpha1.FieldManager}
}

// withLabel adds a label.
func withLabel(labels map[string]string, key, value string) map[string]string {
	labels[key] = value
	return labels
}

func componentLabels(component string) map[string]string {
	return withLabel(commonLabels(), labelComponent, component)
}

// peeringLabels returns the labels of all objects of a peering.
func peeringLabels(peering string) map[string]string {
	return withLabel(commonLabels(), v1alpha1.LabelPeering, peering)
}

// gatewayLabels returns the labels of all gateways of a peering.
func gatewayLabels(peering string) map[string]string {
	return withLabel(peeringLabels(peering), labelComponent, "gateway")
}

// Owned makes a Peering own an object, so that Kubernetes' garbage collector deletes the object after the Peering,
// whoever deletes that. It does nothing while the UID is not known.
func Owned[T metav1.Object](obj T, peering string, uid types.UID) T {
	if uid != "" {
		obj.SetOwnerReferences(Owner(peering, uid))
	}
	return obj
}

// Owner returns the reference to a Peering that owns an object. It does not block the deletion of the Peering.
func Owner(peering string, uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Peering", Name: peering, UID: uid}}
}
