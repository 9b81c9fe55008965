package manifests_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/test/fakeapi"
)

// The scheduler places agents on exactly the nodes for which RunsAgents is true.
func TestDefect1_04_AffinityIsTheDefinition(t *testing.T) {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	_, daemonSet := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
	_, gateway := manifests.Gateway{Peering: "b"}.Objects()
	for name, affinity := range map[string]*corev1.Affinity{"node agents": daemonSet.Spec.Template.Spec.Affinity, "gateways": gateway.Spec.Template.Spec.Affinity} {
		terms := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if len(terms) != 1 || len(terms[0].MatchFields) > 0 {
			t.Fatalf("%s: terms %v", name, terms)
		}
		selector := labels.NewSelector()
		for _, e := range terms[0].MatchExpressions {
			r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
			if err != nil {
				t.Fatal(err)
			}
			selector = selector.Add(*r)
		}
		for kind, n := range fakeapi.Nodes() {
			want := kind == "linux"
			if got := selector.Matches(labels.Set(n.Labels)); got != want {
				t.Errorf("%s on %s: the scheduler says %t", name, kind, got)
			}
			if got := nodes.RunsAgents(n); got != want {
				t.Errorf("%s: RunsAgents says %t", kind, got)
			}
			if got := nodes.Virtual(n); got != (kind != "linux" && kind != "windows") {
				t.Errorf("%s: Virtual says %t", kind, got)
			}
		}
	}
}
