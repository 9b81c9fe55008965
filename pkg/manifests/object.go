// Package manifests builds the Kubernetes objects that liqonet installs: the custom resource definitions (generated from
// pkg/api, embedded), the node agents' DaemonSet, and a gateway's Deployment, Service and permissions.
//
// Every function is pure: same input, same objects. Nothing here talks to a cluster. No object contains a private key
// unless the caller passes it.
package manifests

import (
	"reflect"

	"github.com/samber/lo"
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
// All types of objects can be converted.
func ToApply(obj Object) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: lo.Must(runtime.DefaultUnstructuredConverter.ToUnstructured(obj))}
	unstructured.RemoveNestedField(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "resourceVersion")
	unstructured.RemoveNestedField(u.Object, "metadata", "uid")
	return u
}

// Agents describe the containers of a cluster's agents.
type Agents struct {
	Image string
	// Version is the version of the image, empty for this command's.
	Version string
}

// withVersion returns an object that runs these agents, with their version.
func withVersion[T Object](a Agents, obj T) T {
	if a.Version != "" {
		obj.GetAnnotations()[v1alpha1.AnnotationVersion] = a.Version
	}
	return obj
}

// AgentsOf returns the agents that a DaemonSet or Deployment runs.
func AgentsOf(obj metav1.Object, pod *corev1.PodSpec) Agents {
	return Agents{Image: lo.LastOrEmpty(pod.Containers).Image, Version: obj.GetAnnotations()[v1alpha1.AnnotationVersion]} // there is one
}

// object returns an object that the CLI applies, with its kind, which is the name of its type, and its metadata. A
// cluster-scoped one has no namespace.
func object[T Object](v schema.GroupVersion, obj T, namespace, name string, labels map[string]string) T {
	obj.GetObjectKind().SetGroupVersionKind(v.WithKind(reflect.TypeOf(obj).Elem().Name()))
	obj.SetNamespace(namespace)
	obj.SetName(name)
	obj.SetLabels(labels)
	obj.SetAnnotations(map[string]string{v1alpha1.AnnotationVersion: version.String()})
	return obj
}

func commonLabels() map[string]string {
	return map[string]string{labelName: "liqonet", v1alpha1.LabelManagedBy: v1alpha1.FieldManager}
}

// withoutMesh adds the labels and annotations by which service meshes leave a pod or a namespace alone. A proxy in a
// gateway would intercept the peer's TCP connections. Sources, of November 2026:
//   - Istio: https://istio.io/latest/docs/reference/config/labels/
//   - Kuma: https://kuma.io/docs/latest/reference/kubernetes-annotations/
//   - Linkerd: https://linkerd.io/2/features/proxy-injection/
//   - Consul: https://developer.hashicorp.com/consul/docs/k8s/annotations-and-labels
func withoutMesh(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.Labels = lo.Assign(m.Labels, map[string]string{
		"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none", "kuma.io/sidecar-injection": "disabled",
	})
	m.Annotations = lo.Assign(m.Annotations, map[string]string{
		"linkerd.io/inject": "disabled", "consul.hashicorp.com/connect-inject": "false",
	})
	return m
}

func componentLabels(component string) map[string]string {
	return lo.Assign(commonLabels(), map[string]string{labelComponent: component})
}

// peeringLabels returns the labels of all objects of a peering.
func peeringLabels(peering string) map[string]string {
	return lo.Assign(commonLabels(), map[string]string{v1alpha1.LabelPeering: peering})
}

// gatewayLabels returns the labels of all gateways of a peering.
func gatewayLabels(peering string) map[string]string {
	return lo.Assign(peeringLabels(peering), map[string]string{labelComponent: "gateway"})
}

// SetOwner makes a Peering own an object, so that Kubernetes' garbage collector deletes the object after the Peering,
// whoever deletes that. It does nothing while the UID is not known.
func SetOwner[T metav1.Object](obj T, peering string, uid types.UID) T {
	if uid != "" {
		obj.SetOwnerReferences(OwnerReferences(peering, uid))
	}
	return obj
}

// OwnerReferences returns the reference to a Peering that owns an object. It does not block the deletion of the
// Peering.
func OwnerReferences(peering string, uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Peering", Name: peering, UID: uid}}
}
