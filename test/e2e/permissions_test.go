package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/workload"
)

// rarelyAsked are permissions that agents need in situations which this run need not have had.
var rarelyAsked = []string{
	// An agent whose watches have ended asks whether it was removed.
	"node: get daemonsets.apps", "node: get namespaces", "node: get pods",
	// The node was made again with the same name.
	"node: delete nodenetworks.liqonet.io",
	// All gateways of a peering are dead.
	"node: get leases.coordination.k8s.io", "node: patch peerings/status.liqonet.io",
	// Two nodes report one address of the overlay.
	"gateway: get leases.coordination.k8s.io",
	// OpenShift's API server asks for it.
	"services: create endpointslices/restricted.discovery.k8s.io",
}

// Agents are granted what they ask for, and nothing else. What they have asked for since the
// lab was started is in the audit logs of the API servers.
func TestPermissionsAreUsed(t *testing.T) {
	ctx := begin(t)
	a, b := newSite(t, fx.alpha, shop), newSite(t, fx.beta, shop)
	remove := makeNamespaces(t, ctx, a, b)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--services")
	svc, slice := withoutSelector("web", workload.TCPPort, a.pods[0].IP)
	a.create(t, ctx, svc, slice, newExport("web"))
	b.awaitImport(t, ctx, "web", a.cluster)
	a.delete(t, ctx, newExport("web"))
	for _, s := range []*site{a, b} {
		s.awaitGone(t, ctx, arrivalTimeout, "web")
	}
	remove()
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	asked := map[string]bool{}
	for _, c := range fx.clusters {
		for _, e := range auditEvents(t, c) {
			account := strings.TrimPrefix(e.User.Username, "system:serviceaccount:"+v1alpha1.Namespace+":")
			// Tests use tokens of agents too. Discovery has no object.
			if e.ObjectRef == nil || !strings.HasPrefix(e.UserAgent, "liqonet-agent") {
				continue
			}
			resource := e.ObjectRef.Resource
			if e.ObjectRef.Subresource != "" {
				resource += "/" + e.ObjectRef.Subresource
			}
			asked[permission(account, e.Verb, resource, e.ObjectRef.APIGroup)] = true
		}
	}
	granted := map[string]bool{}
	grant := func(account string, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			for _, verb := range r.Verbs {
				for _, resource := range r.Resources {
					granted[permission(account, verb, resource, r.APIGroups[0])] = true
				}
			}
		}
	}
	node, _ := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
	gateway, _ := manifests.Gateway{Peering: "beta", Services: true}.Objects()
	services, _ := manifests.Services(manifests.Agents{Image: "image"})
	for _, o := range slices.Concat(node, gateway, services) {
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			if !strings.HasPrefix(o.Name, v1alpha1.ServicesName+"-") { // those are for users
				grant(o.Name, o.Rules)
			}
		case *rbacv1.Role:
			grant(o.Name, o.Rules)
		}
	}
	// To apply what is not there takes the permission to create it. API servers that do not
	// stream what there is (KEP-3157) are asked for lists.
	for permission := range granted {
		as := strings.NewReplacer(": create ", ": patch ", ": list ", ": watch ").Replace(permission)
		if asked[as] || slices.Contains(rarelyAsked, permission) {
			asked[permission] = true
		}
	}
	none(t, cmp.Diff(slices.Sorted(maps.Keys(granted)), slices.Sorted(maps.Keys(asked))), "granted (-) and asked for (+)")
}

// permission names a verb on a resource. All gateways have the same ones.
func permission(account, verb, resource, group string) string {
	agent := "gateway"
	switch account {
	case v1alpha1.NodeAgentName:
		agent = "node"
	case v1alpha1.ServicesName:
		agent = "services"
	}
	return fmt.Sprintf("%s: %s %s", agent, verb, strings.TrimSuffix(resource+"."+group, "."))
}

// auditEvents reads what pods of our namespace have asked of the cluster's API server.
func auditEvents(t *testing.T, c *cluster) (events []auditv1.Event) {
	controlPlane := must(fx.lab.Node(c.Name + "-cp"))(t)
	text := must(os.ReadFile(controlPlane.LogFile("audit")))(t)
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v in %q", c.Name, err, lines.Text())
		}
		events = append(events, e)
	}
	return events
}
