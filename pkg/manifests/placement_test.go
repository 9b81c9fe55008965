package manifests_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// A gateway runs on the nodes that were chosen for it, of those with agents. Node agents run
// there too, whatever the taints.
func TestSecurity_08_GatewaysOnNodesOfTheirOwn(t *testing.T) {
	pod := func(p *v1alpha1.GatewayPlacement) corev1.PodSpec {
		_, d := manifests.Gateway{Peering: "b", Placement: p}.Objects()
		return d.Spec.Template.Spec
	}
	required := func(p corev1.PodSpec) []corev1.NodeSelectorRequirement {
		terms := p.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if len(terms) != 1 { // one of several would do
			t.Fatalf("%d terms", len(terms))
		}
		return terms[0].MatchExpressions
	}
	anywhere, chosen := pod(nil), pod(&v1alpha1.GatewayPlacement{
		NodeSelector: []v1alpha1.NodeLabel{{Key: "pool", Value: "gateways"}, {Key: "role/gateway"}},
		Tolerations:  []v1alpha1.Toleration{{Key: "dedicated", Value: "gateways", Effect: "NoSchedule"}, {Key: "spot"}},
	})
	want := append(required(anywhere),
		corev1.NodeSelectorRequirement{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"gateways"}},
		corev1.NodeSelectorRequirement{Key: "role/gateway", Operator: corev1.NodeSelectorOpIn, Values: []string{""}})
	if diff := cmp.Diff(want, required(chosen)); diff != "" {
		t.Error(diff)
	}
	tolerated := append(anywhere.Tolerations, corev1.Toleration{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "gateways", Effect: corev1.TaintEffectNoSchedule})
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute} {
		tolerated = append(tolerated, corev1.Toleration{Key: "spot", Operator: corev1.TolerationOpExists, Effect: effect})
	}
	if diff := cmp.Diff(tolerated, chosen.Tolerations); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(required(anywhere), required(pod(&v1alpha1.GatewayPlacement{}))); diff != "" {
		t.Errorf("nothing chosen:\n%s", diff)
	}
	_, agents := manifests.NodeAgent("image", 1)
	if diff := cmp.Diff([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, agents.Spec.Template.Spec.Tolerations); diff != "" {
		t.Errorf("node agents do not run on all nodes of gateways:\n%s", diff)
	}
}

// Another key of the overlay is in another Secret: a kubelet goes on with an immutable one
// while a pod has it.
func TestSecurity_08_AnotherKeyIsAnotherSecret(t *testing.T) {
	_, agents := manifests.NodeAgent("image", 7)
	_, gateway := manifests.Gateway{Peering: "b", OverlayKey: 7, PresharedKey: 1}.Objects()
	for name, pod := range map[string]*corev1.PodSpec{"node agents": &agents.Spec.Template.Spec, "gateway": &gateway.Spec.Template.Spec} {
		secrets := func() (out []string) {
			for _, v := range pod.Volumes {
				if v.Secret != nil && manifests.OverlayGeneration(v.Secret.SecretName) > 0 {
					out = append(out, v.Secret.SecretName)
				}
			}
			return out
		}
		if got := secrets(); len(got) != 1 || got[0] != manifests.OverlaySecret(7, nil).Name {
			t.Errorf("%s have %v", name, got)
		}
		volumes := len(pod.Volumes)
		if manifests.ChangeOverlayKey(pod, 7) || manifests.ChangeOverlayKey(pod, 6) || !manifests.ChangeOverlayKey(pod, 8) || len(pod.Volumes) != volumes {
			t.Errorf("%s are not changed, or in vain", name)
		}
		if got := secrets(); len(got) != 1 || got[0] != manifests.OverlaySecret(8, nil).Name {
			t.Errorf("%s have %v after the change", name, got)
		}
	}
}
