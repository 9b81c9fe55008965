package manifests_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/test/kit"
)

// No service mesh puts a proxy into a pod of ours, and the autoscaler may remove a gateway's node.
func TestMeshesLeavePodsAlone(t *testing.T) {
	_, gateway := manifests.Gateway{Peering: "b", Agents: manifests.Agents{Image: "image"}}.Objects()
	_, node := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
	pods := map[string]corev1.PodTemplateSpec{
		"gateway": gateway.Spec.Template, "node agent": node.Spec.Template,
		"probe": manifests.Probe{Run: "verify-1", Name: "p", Task: probe.Task{Serve: &probe.Serve{}}}.Job().Spec.Template,
	}
	all := map[string]metav1.ObjectMeta{"namespace": manifests.Namespace().ObjectMeta}
	for name, pod := range pods {
		all[name] = pod.ObjectMeta
	}
	for name, m := range all {
		for label, want := range map[string]string{
			"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none", "kuma.io/sidecar-injection": "disabled",
		} {
			kit.Check(t, name+": label "+label, m.Labels[label], want)
		}
		for annotation, want := range map[string]string{"linkerd.io/inject": "disabled", "consul.hashicorp.com/connect-inject": "false"} {
			kit.Check(t, name+": annotation "+annotation, m.Annotations[annotation], want)
		}
	}
	kit.Check(t, "namespace", all["namespace"].Labels["istio-injection"], "disabled")
	for _, annotation := range []string{"openshift.io/node-selector", "scheduler.alpha.kubernetes.io/node-selector"} {
		selector, has := all["namespace"].Annotations[annotation]
		kit.ErrorIf(t, !has || selector != "", "namespace: %s is %q, %t: a default node selector applies to node agents", annotation, selector, has)
	}
	kit.Check(t, "autoscaler", all["gateway"].Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"], "true")
	kit.Check(t, "selector of gateways", len(gateway.Spec.Selector.MatchLabels), len(manifests.Gateway{Peering: "b"}.Labels()))
}
