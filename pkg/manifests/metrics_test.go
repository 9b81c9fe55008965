package manifests

import (
	"fmt"
	"os"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// The PodMonitor selects gateways, and node agents where they can be reached.
func TestPodMonitor(t *testing.T) {
	var monitor struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector            metav1.LabelSelector
			PodMetricsEndpoints []struct{ Port, Path, Interval string }
		}
	}
	raw := kit.Must(os.ReadFile("../../docs/monitoring/podmonitor.yaml"))(t)
	kit.NoError(t, yaml.UnmarshalStrict(raw, &monitor))
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	kit.FatalIf(t, err != nil || len(monitor.Spec.PodMetricsEndpoints) != 1 || monitor.Namespace != v1alpha1.Namespace,
		"%+v: %v", monitor, err)
	port := func(pod corev1.PodTemplateSpec) (at int32) {
		for _, p := range pod.Spec.Containers[0].Ports {
			if p.Name == monitor.Spec.PodMetricsEndpoints[0].Port && selector.Matches(labels.Set(pod.Labels)) {
				at = p.ContainerPort
			}
		}
		return at
	}
	_, gateway := Gateway{Peering: "b"}.Objects()
	_, hidden := NodeAgent(Agents{Image: "image"}, []int32{1})
	_, shown := NodeAgent(Agents{Image: "image"}, []int32{1})
	ExposeNodeMetrics(shown)
	got := map[string]int32{"gateway": port(gateway.Spec.Template), "node agent": port(hidden.Spec.Template), "shown": port(shown.Spec.Template)}
	kit.Check(t, "result", got, map[string]int32{"gateway": v1alpha1.MetricsPort, "node agent": 0, "shown": v1alpha1.MetricsPort})
	for ds, want := range map[*appsv1.DaemonSet]bool{hidden: false, shown: true} {
		kit.Check(t, fmt.Sprintf("metrics are shown: %v", !want), ExposesNodeMetrics(ds), want)
	}
}
