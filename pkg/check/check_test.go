package check

import (
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// A finding follows from findings of the checks on which its own depends, within their reach, also over several steps, but never from
// itself.
func TestExplain(t *testing.T) {
	bad := func(check, cluster, node, peering string, pairs ...string) Finding {
		return Finding{Check: check, Result: Failed, Cluster: cluster, Node: node, Peering: peering, Pairs: pairs}
	}
	for _, tt := range []struct {
		name     string
		findings []Finding
		// follows has the check from which each finding follows, and cause the check that is the cause.
		follows []string
		cause   string
	}{
		{"nothing", nil, nil, ""},
		{"the same node", []Finding{bad("kernel", "a", "n1", ""), bad("agent", "a", "n1", "")}, []string{"", "kernel"}, "kernel"},
		{"another node", []Finding{bad("kernel", "a", "n1", ""), bad("agent", "a", "n2", "")}, []string{"", ""}, "kernel"},
		{"a node of that name elsewhere", []Finding{bad("kernel", "a", "n1", ""), bad("agent", "b", "n1", "")}, []string{"", ""}, "kernel"},
		{"the same peering", []Finding{bad("kernel", "a", "n1", "", "ab"), bad("agent", "b", "n1", "a", "ab")}, []string{"", "kernel"}, "kernel"},
		{"another peering", []Finding{bad("kernel", "a", "n1", "", "ab"), bad("agent", "b", "n1", "c", "bc")}, []string{"", ""}, "kernel"},
		{"of no single peering", []Finding{bad("kernel", "a", "n1", "", "ab"), bad("agent", "b", "n1", "", "ab")}, []string{"", ""}, "kernel"},
		{"all of the cluster", []Finding{bad("role", "a", "", ""), bad("agent", "a", "n2", ""), bad("agent", "b", "n2", "")}, []string{"", "role", ""}, "role"},
		{"all clusters", []Finding{bad("agent", "a", "n2", ""), bad("api", "b", "", "")}, []string{"api", ""}, "api"},
		{"two steps", []Finding{bad("tunnel", "a", "n1", ""), bad("agent", "a", "n1", ""), bad("kernel", "a", "n1", "")}, []string{"agent", "kernel", ""}, "kernel"},
		{"each depends on the other", []Finding{bad("node", "a", "n1", ""), bad("disk", "a", "n1", "")}, []string{"", "node"}, "node"},
		{"the farthest first", []Finding{bad("kernel", "a", "n1", ""), bad("role", "b", "", "")}, []string{"", ""}, "role"},
		{"the worst first", []Finding{{Check: "role", Result: Warning, Cluster: "b"}, bad("tunnel", "a", "n1", "")}, []string{"", ""}, "tunnel"},
		{"what was skipped", []Finding{{Check: "role", Result: Skipped, Cluster: "a"}, bad("agent", "a", "n1", "")}, []string{"", ""}, "agent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := Report{Checks: []Check{
				{Name: "api", Scope: Everywhere},
				{Name: "role", Scope: InCluster},
				{Name: "node", DependsOn: []string{"disk"}},
				{Name: "disk", DependsOn: []string{"node"}},
				{Name: "kernel"},
				{Name: "agent", DependsOn: []string{"api", "role", "kernel"}},
				{Name: "tunnel", DependsOn: []string{"agent"}},
			}}
			place := map[string]int{}
			for i, c := range r.Checks {
				place[c.Name] = i
			}
			for _, f := range tt.findings {
				c := &r.Checks[place[f.Check]]
				c.Findings = append(c.Findings, f)
			}
			r.Explain()
			var got []string
			next := map[string]int{}
			for _, f := range tt.findings {
				got = append(got, r.Checks[place[f.Check]].Findings[next[f.Check]].CausedBy)
				next[f.Check]++
			}
			kit.Check(t, "got", got, tt.follows)
			cause := ""
			if r.Cause != nil {
				cause = r.Cause.Check
			}
			kit.ErrorIf(t, cause != tt.cause || (r.Result == Failed) != (tt.cause != ""),
				"the cause is %q, and the result %s", cause, r.Result)
		})
	}
}
