package manifests_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/test/fakeapi"
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

// An agent may have several overlay keys, and loses the earlier ones. A new key is in a new Secret: a kubelet keeps an immutable one
// as long as a pod uses it.
func TestRetireOverlayKeys(t *testing.T) {
	_, one := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{7})
	_, several := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{3, 5, 6})
	_, gateway := manifests.Gateway{Peering: "b", OverlayKey: 7, PresharedKey: 1}.Objects()
	for _, tt := range []struct {
		pod       *corev1.PodSpec
		have      []int32
		least     int32
		want      []int32
		isChanged bool
	}{
		{&one.Spec.Template.Spec, []int32{7}, 6, []int32{7}, false},
		{&one.Spec.Template.Spec, []int32{7}, 7, []int32{7}, false},
		{&one.Spec.Template.Spec, []int32{7}, 8, []int32{8}, true},
		{&gateway.Spec.Template.Spec, []int32{7}, 7, []int32{7}, false},
		{&gateway.Spec.Template.Spec, []int32{7}, 8, []int32{8}, true},
		{&several.Spec.Template.Spec, []int32{3, 5, 6}, 3, []int32{3, 5, 6}, false},
		{&several.Spec.Template.Spec, []int32{3, 5, 6}, 4, []int32{5, 6}, true},
		{&several.Spec.Template.Spec, []int32{5, 6}, 7, []int32{7}, true},
	} {
		what, volumes := fmt.Sprintf("of %v at least %d", tt.have, tt.least), len(tt.pod.Volumes)
		kit.Check(t, what+": before", manifests.OverlayKeys(tt.pod), tt.have)
		kit.Check(t, what+": changed", manifests.RetireOverlayKeys(tt.pod, tt.least), tt.isChanged)
		kit.Check(t, what, manifests.OverlayKeys(tt.pod), tt.want)
		kit.Check(t, what+": volumes", len(tt.pod.Volumes), volumes)
	}
}

// The scheduler places agents on exactly the nodes for which RunsAgents is true.
func TestAffinityIsTheDefinition(t *testing.T) {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	_, daemonSet := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
	_, gateway := manifests.Gateway{Peering: "b"}.Objects()
	for name, affinity := range map[string]*corev1.Affinity{"node agents": daemonSet.Spec.Template.Spec.Affinity, "gateways": gateway.Spec.Template.Spec.Affinity} {
		terms := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		kit.FatalIf(t, len(terms) != 1 || len(terms[0].MatchFields) > 0, "%s: terms %v", name, terms)
		selector := labels.NewSelector()
		for _, e := range terms[0].MatchExpressions {
			r := kit.Must(labels.NewRequirement(e.Key, operators[e.Operator], e.Values))(t)
			selector = selector.Add(*r)
		}
		for kind, n := range fakeapi.Nodes() {
			want := kind == "linux"
			kit.Check(t, fmt.Sprintf("%s on %s: the scheduler", name, kind), selector.Matches(labels.Set(n.Labels)), want)
			kit.Check(t, fmt.Sprintf("%s: RunsAgents", kind), nodes.RunsAgents(n), want)
			kit.Check(t, fmt.Sprintf("%s: Virtual", kind), nodes.IsVirtual(n), (kind != "linux" && kind != "windows"))
		}
	}
}
