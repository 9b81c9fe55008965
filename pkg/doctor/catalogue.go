package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/pkg/wire"
)

// The causes that several checks have in common.
const (
	servers  = "api-01 api-02 "
	machines = "node-01 disk-01 duplicate-01 "
	// Causes for which pods do not start, or terminate.
	starts = machines + "definition-01 permission-02 secret-01 kernel-01 pod-01 "
	// Causes that affect both agents and tunnels.
	alike = servers + machines + "definition-01 permission-02 secret-01 pod-01 pod-02 pod-03 pod-04 starved-01 " +
		"policy-01 policy-02 firewall-01 conntrack-01 forward-01 agent-04 "
	// Causes in the kernel of a node agent's node.
	local  = "kernel-01 link-01 port-01 rule-01 route-01 arp-01 range-01 "
	agents = alike + local + "token-01 agent-01 "
	tunnel = alike + "agent-03 endpoint-01 key-01 nat-01 callers-01 "
	udp    = "udp-01 udp-02 udp-03 "
)

// Catalogue has all checks, in the order in which they are shown.
var Catalogue = slices.Concat(
	category("API servers, objects, permissions",
		entry("api-01", "API servers answer", apiAnswers).withScope(check.Everywhere),
		entry("api-02", "API servers accept the credentials", apiAccepts).withScope(check.Everywhere),
		entry("definition-01", "custom resource definitions exist", definitions, CRDs).withScope(check.Everywhere),
		entry("copy-01", "objects were made for this cluster", copies, Peerings).withScope(check.InCluster),
		entry("permission-01", "you may do what `peer` needs", userPermissions, Answers),
		entry("permission-02", "agents have their permissions", agentPermissions,
			Drifts).dependsOn("definition-01").withScope(check.InCluster),
		entry("token-01", "API servers accept the agents' tokens", tokens, Accounts, Pods).withScope(check.InCluster),
		entry("secret-01", "Secrets with keys exist", secrets, Secrets, Peerings).withScope(check.InCluster),
		entry("identity-01", "identity keys are those that peers know", identities, Identities, Peerings).withScope(check.InCluster),
		entry("clock-01", "API servers' clocks agree with this machine's", serverClock, Answers),
		entry("clock-02", "clocks of agents agree with their API servers'", agentClocks, Leases).dependsOn("definition-01 token-01"),
		entry("version-01", "agents have this command's version", versions, Leases),
	),
	category("Agents",
		entry("agent-01", "every node has an agent", nodesHaveAgents, Nodes, Pods).dependsOn(agents),
		entry("agent-02", "node agents work", forNodes(nodeAgents), Nodes, Pods, Leases).dependsOn(agents),
		entry("agent-03", "gateways work", forGateways(gateways), Peerings, Pods, Leases).dependsOn(agents+"endpoint-01"),
		entry("agent-04", "every peering has a gateway that works", allGateways, Peerings, Leases).dependsOn(agents),
		entry("agent-05", "agents report no problems", agentProblems,
			Peerings).dependsOn(agents+tunnel+udp+"agent-02 tunnel-01 overlay-01"),
		entry("pod-01", "nodes have the agents' image", forPods(podImages), Pods).dependsOn(starts).withScope(check.InCluster),
		entry("pod-02", "agents do not crash", forPods(podCrashes), Pods).dependsOn(starts),
		entry("pod-03", "agents' pods are scheduled", forPods(podsScheduled), Pods).dependsOn(starts),
		entry("pod-04", "agents have enough memory", forPods(podMemory), Pods).dependsOn(starts),
		entry("starved-01", "agents get enough CPU time", starved, Leases),
		entry("policy-01", "no NetworkPolicy blocks packets of gateways", forPods(policies), Policies, Pods).withScope(check.InCluster),
		entry("policy-02", "no cluster-wide policy blocks gateways", clusterPolicies, Policies, Peerings, Leases).withScope(check.InCluster),
	),
	category("Nodes and their kernels",
		entry("node-01", "nodes are ready", forNodes(nodesReady), Nodes).dependsOn(machines),
		entry("disk-01", "nodes have free disk space", forNodes(disks), Nodes, Pods).dependsOn("node-01").withScope(check.InCluster),
		entry("kernel-01", "kernels have the required features", forKernels(kernels), Kernels),
		entry("firewall-01", "no firewall drops packets despite our rules", forKernels(firewalls), Kernels),
		entry("firewall-02", "no firewall drops some packets of peers", forKernels(partialDrops), Kernels),
		entry("conntrack-01", "connection tracking tables have room", forKernels(connections), Kernels),
		entry("link-01", "no foreign interface has one of our names", forKernels(foreignLinks), Kernels).dependsOn("definition-01"),
		entry("forward-01", "nodes forward packets", forKernels(forwarding), Kernels),
		entry("port-01", fmt.Sprintf("UDP port %d is not taken by others", wire.OverlayPort), forKernels(portTaken), Kernels).dependsOn("link-01"),
		entry("rule-01", "no other program uses our table or priority", forKernels(foreignRules), Kernels).
			dependsOn("definition-01 route-01"),
		entry("rule-02", "no rule before ours takes packets to peers", forKernels(earlierRules), Kernels),
		entry("route-01", "no other program deletes our routes", forKernels(routesFlap), Kernels),
		entry("route-02", "all packets to peers leave by the overlay", forKernels(unencrypted), Kernels).
			dependsOn("rule-01 rule-02 route-01"),
		entry("checksum-01", "packets arrive with the right checksums", forKernels(checksums), Kernels),
		entry("arp-01", "no node answers ARP for other addresses", forKernels(proxyARP), Kernels),
		entry("duplicate-01", "addresses of nodes are unique", duplicates, Kernels).withScope(check.InCluster),
		entry("mtu-01", "nodes in one subnet have the same MTU", uplinkMTU, Kernels),
	),
	category("Tunnels",
		entry("endpoint-01", "names of endpoints resolve", forGateways(endpointNames), Peerings).dependsOn("policy-01"),
		entry("key-01", "gateways have each other's keys", forGateways(gatewayKeys), Peerings).dependsOn("definition-01 secret-01"),
		entry("udp-01", "UDP reaches the endpoint", forGateways(udpBlocked), Peerings, Leases).dependsOn(tunnel),
		entry("udp-02", "UDP passes in both directions", forGateways(udpOneWay), Peerings, Leases).dependsOn(tunnel),
		entry("udp-03", "UDP passes between clusters not peered yet", udpPaths, Answers).dependsOn(tunnel),
		entry("nat-01", "NATs on the path keep the tunnel's mapping", forGateways(natDropsMapping), Peerings, Leases),
		entry("callers-01", "one gateway calls with each key", forGateways(callers), Peerings, Leases),
		entry("tunnel-01", "probes through tunnels are answered", forGateways(tunnels), Peerings, Leases).dependsOn(tunnel+udp+"mtu-02"),
		entry("overlay-01", "nodes reach the peer", overlays, Peerings, Nodes, Leases).dependsOn(tunnel+udp+local+"mtu-02 tunnel-01 agent-01 agent-02"),
		entry("loss-01", "fewer than 5 % of probes are lost", losses, Peerings, Leases).dependsOn(tunnel+udp+local+"mtu-02 tunnel-01 overlay-01 agent-01 agent-02"),
		entry("mtu-02", "packets of full size get through", fullSize, Peerings, Kernels).dependsOn(tunnel+udp),
	),
	category("Address ranges",
		entry("range-01", "no node has a route into a peer's range", ranges, Peerings),
		entry("range-02", "pods are in the ranges that peers know", podsOutside, Peerings),
		entry("range-03", "ranges and numbers have room", capacity, Peerings),
		entry("plan-01", "a peering of the clusters can be planned", plans, Answers).dependsOn(servers),
	),
	category("Services",
		entry("services-01", "the controller of services works", servicesController, Peerings, Leases).dependsOn(agents),
		entry("services-02", "no other program exchanges services", servicesOfOthers, Services, Peerings),
		entry("services-03", "exported services can be used", servicesUsable, Services).dependsOn("services-01 services-02"),
		entry("services-04", "endpoints of peers are in use", servicesWithdrawn, Services).dependsOn(tunnel+udp+"services-01 tunnel-01 overlay-01"),
	),
	category("Leftovers and drift",
		entry("drift-01", "our objects are as `peer` creates them", drift, Drifts).dependsOn(servers+"definition-01 permission-02 token-01 secret-01 pod-01 key-01"),
		entry("leftover-01", "nothing of ours is left over", leftovers, Leftovers),
		entry("leftover-02", "no Liqo, Submariner or Kilo is installed", otherProjects, Leftovers),
		entry("lock-01", "commands that hold locks renew them", locks, Locks),
	),
	category("Settings of other components",
		entry("setting-01", "no plugin setting is known to break peerings", settings, Settings),
	),
)

// category puts checks under a heading.
func category(name string, checks ...Check) []Check {
	for i := range checks {
		checks[i].Category = name
	}
	return checks
}

// entry returns a check that needs these parts of a cluster. Checks of the API server itself need none.
func entry(short, about string, examine func(*examination), needs ...Part) Check {
	name := prefix + short
	return Check{check.Check{Name: name, Description: about, Anchor: version.DocURL("troubleshooting.md#" + name)}, needs, examine}
}

// prefix begins the names of all checks.
const prefix = "liqonet-"

// dependsOn sets the checks on which this one depends: their findings explain its own.
func (c Check) dependsOn(causes string) Check {
	c.DependsOn = lo.Map(strings.Fields(causes), func(short string, _ int) string { return prefix + short })
	return c
}

// withScope sets the scope in which its findings explain others.
func (c Check) withScope(r check.Scope) Check {
	c.Scope = r
	return c
}

// Examine runs all checks on the facts.
func Examine(f *Facts) *check.Report {
	r := &check.Report{}
	for _, c := range Catalogue {
		for _, cluster := range f.Clusters {
			x := &examination{facts: f, Cluster: cluster, check: c}
			if why := x.missing(); why != "" {
				x.skip(why)
			} else {
				c.examine(x)
			}
			for _, f := range lo.ToSlicePtr(x.found) {
				f.Pairs = append(f.Pairs, x.pairs(func(p *v1alpha1.Peering) bool { return p.Name == f.Peering })...)
			}
			c.Findings = append(c.Findings, x.found...)
		}
		c.Result = cmp.Or(lo.FromPtr(check.Worst(lo.ToSlicePtr(c.Findings))).Result, check.Passed)
		if c.Result == check.Skipped {
			c.Message = c.Findings[0].Problem
		}
		r.Checks = append(r.Checks, c.Check)
	}
	r.Explain()
	return r
}

// missing returns why the check is skipped, empty if it is not.
func (x *examination) missing() string {
	if len(x.check.needs) > 0 && x.API.Unreachable+x.API.Refused != "" { // checks without needs examine the API server itself
		return "the API server does not answer"
	}
	if len(x.check.needs) > 0 && x.check.Name != prefix+"copy-01" && x.CopiedFrom() != "" {
		return "its objects are a copy of another cluster's"
	}
	why := lo.Map(x.check.needs, func(part Part, _ int) string { return x.SkipReasons[part] })
	return strings.Join(lo.Uniq(lo.Compact(why)), "; ")
}
