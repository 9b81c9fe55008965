package manifests_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

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
