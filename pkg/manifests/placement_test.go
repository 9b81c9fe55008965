package manifests_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
)

// A gateway runs on the chosen nodes, among those with agents. Node agents run there too, regardless of taints.
func TestGatewaysOnNodesOfTheirOwn(t *testing.T) {
	pod := func(p *v1alpha1.GatewayPlacement) corev1.PodSpec {
		_, d := manifests.Gateway{Peering: "b", Placement: p}.Objects()
		return d.Spec.Template.Spec
	}
	required := func(p corev1.PodSpec) []corev1.NodeSelectorRequirement {
		terms := p.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if len(terms) != 1 { // with several, one would be enough
			t.Fatalf("%d terms", len(terms))
		}
		return terms[0].MatchExpressions
	}
	anywhere, chosen := pod(nil), pod(&v1alpha1.GatewayPlacement{
		NodeSelector: map[string]string{"pool": "gateways", "role/gateway": ""},
		Tolerations:  []corev1.Toleration{{Key: "dedicated", Operator: "Equal", Value: "gateways", Effect: "NoSchedule"}, {Key: "spot", Operator: "Exists"}},
	})
	want := append(required(anywhere),
		corev1.NodeSelectorRequirement{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"gateways"}},
		corev1.NodeSelectorRequirement{Key: "role/gateway", Operator: corev1.NodeSelectorOpIn, Values: []string{""}})
	kit.Check(t, "required", required(chosen), want)
	tolerated := append(anywhere.Tolerations,
		corev1.Toleration{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "gateways", Effect: corev1.TaintEffectNoSchedule},
		corev1.Toleration{Key: "spot", Operator: corev1.TolerationOpExists})
	kit.Check(t, "Tolerations", chosen.Tolerations, tolerated)
	kit.Check(t, "nothing chosen", required(pod(&v1alpha1.GatewayPlacement{})), required(anywhere))
	_, agents := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
	if diff := cmp.Diff([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, agents.Spec.Template.Spec.Tolerations); diff != "" {
		t.Errorf("node agents do not run on all nodes of gateways:\n%s", diff)
	}
}

// A new overlay key is in a new Secret: a kubelet keeps an immutable one as long as a pod uses it.
func TestAnotherKeyIsAnotherSecret(t *testing.T) {
	_, agents := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{7})
	_, gateway := manifests.Gateway{Peering: "b", OverlayKey: 7, PresharedKey: 1}.Objects()
	for name, pod := range map[string]*corev1.PodSpec{"node agents": &agents.Spec.Template.Spec, "gateway": &gateway.Spec.Template.Spec} {
		kit.Check(t, name, manifests.OverlayKeys(pod), []int32{7})
		volumes := len(pod.Volumes)
		if manifests.RetireOverlayKeys(pod, 7) || manifests.RetireOverlayKeys(pod, 6) || !manifests.RetireOverlayKeys(pod, 8) || len(pod.Volumes) != volumes {
			t.Errorf("%s: wrong report of a change", name)
		}
		kit.Check(t, fmt.Sprintf("%s after the change", name), manifests.OverlayKeys(pod), []int32{8})
	}
}

// An agent may have several keys, and loses the earlier ones.
func TestRetireOverlayKeys(t *testing.T) {
	_, several := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{3, 5, 6})
	for _, tt := range []struct {
		least int32
		want  []int32
	}{
		{3, []int32{3, 5, 6}},
		{4, []int32{5, 6}},
		{7, []int32{7}},
	} {
		before := len(manifests.OverlayKeys(&several.Spec.Template.Spec))
		changed := manifests.RetireOverlayKeys(&several.Spec.Template.Spec, tt.least)
		got := manifests.OverlayKeys(&several.Spec.Template.Spec)
		diff := cmp.Diff(tt.want, got)
		kit.ErrorIf(t, diff != "" || changed != (tt.least != 3) || before == 0, "at least %d: changed %t\n%s", tt.least, changed, diff)
	}
}
