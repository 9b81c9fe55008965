package peering

import (
	"slices"
	"testing"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
)

// The address of node agents' metrics is the same for all of a cluster's peerings, and stays until a command changes
// it.
func TestNodeMetricsAreKept(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	for _, step := range []struct {
		name, flag string
		want       bool
		choices    []string
		changes    bool
	}{
		{"by default", "", false, nil, true},
		{"given", plan.MetricsNode, true, []string{"at the nodes' own addresses: given by --node-metrics"}, true},
		{"not given", "", true, []string{"at the nodes' own addresses: as before"}, false},
		{"taken back", plan.MetricsLoopback, false, []string{"at 127.0.0.1: given by --node-metrics"}, true},
		{"not given again", "", false, nil, false},
	} {
		t.Run(step.name, func(t *testing.T) {
			o := wishFor("id-of-a", engine.ClusterOptions{NodeMetrics: step.flag})
			var choices []string
			for _, c := range DryRun(t, a, b, o).Clusters[0].Choices {
				if c.Subject == "metrics of node agents" {
					choices = append(choices, c.Value.String()+": "+c.Reason)
				}
			}
			kit.ErrorIf(t, !slices.Equal(choices, step.choices), "the plan says %q, want %q", choices, step.choices)
			r := MustPeer(t, a, b, o)
			kit.ErrorIf(t, len(r.Changed) > 0 != step.changes, "changed: %v", r.Changed)
			for i, s := range []*Site{a, b} {
				ds, err := s.ReadNodeAgents(t.Context())
				kit.FatalIf(t, err != nil || ds == nil, "%v %v", ds, err)
				got := manifests.ExposesNodeMetrics(ds)
				kit.ErrorIf(t, got != (step.want && i == 0), "%s: %v, args %v", s.Name, got, ds.Spec.Template.Spec.Containers[0].Args)
			}
		})
	}
}
