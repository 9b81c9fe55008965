package docs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
)

// The table of the agents' permissions has what the roles have.
func TestPermissionsTable(t *testing.T) {
	var want, got []string
	node, _ := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
	gateway, _ := manifests.Gateway{Peering: "b"}.Objects()
	for agent, objs := range map[string][]manifests.Object{"node": node, "gateway": gateway} {
		for _, o := range objs {
			var rules []rbacv1.PolicyRule
			switch o := o.(type) {
			case *rbacv1.ClusterRole:
				rules = o.Rules
			case *rbacv1.Role:
				rules = o.Rules
			}
			for _, r := range rules {
				for _, resource := range r.Resources {
					name, sub, _ := strings.Cut(resource, "/")
					of := strings.Trim(name+"."+r.APIGroups[0]+"/"+sub, "./")
					want = append(want, fmt.Sprintf("%s may %s %s, of some names: %t", agent, strings.Join(r.Verbs, ", "), of, len(r.ResourceNames) > 0))
				}
			}
		}
	}
	for line := range strings.Lines(documents(t)["docs/ports-and-permissions.md"]) {
		cells := strings.Split(line, "|")
		if len(cells) != 7 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if agent := cells[1]; agent == "node" || agent == "gateway" {
			named := !strings.HasPrefix(cells[4], "all") && !strings.HasPrefix(cells[4], "in ")
			got = append(got, fmt.Sprintf("%s may %s %s, of some names: %t", agent, cells[2], cells[3], named))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	kit.Check(t, "roles (-) and docs/ports-and-permissions.md (+)", got, want)
}
