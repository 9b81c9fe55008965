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

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
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
