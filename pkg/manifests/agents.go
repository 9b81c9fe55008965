package manifests

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// Agents are what runs in the pods of a cluster.
type Agents struct {
	Image string
	// Version is that of the image, empty for this command's.
	Version string
}

// meta is the metadata of what runs these agents.
func (a Agents) meta(name string, labels map[string]string) metav1.ObjectMeta {
	m := objectMeta(v1alpha1.Namespace, name, labels)
	if a.Version != "" {
		m.Annotations[v1alpha1.AnnotationVersion] = a.Version
	}
	return m
}

// AgentsOf are those that an object, a DaemonSet or a Deployment, runs.
func AgentsOf(obj metav1.Object, pod *corev1.PodSpec) (a Agents) {
	a.Version = obj.GetAnnotations()[v1alpha1.AnnotationVersion]
	for _, c := range pod.Containers {
		a.Image = c.Image // there is one
	}
	return a
}
