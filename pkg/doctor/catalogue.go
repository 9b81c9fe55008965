package doctor

import "slices"

// Catalogue returns all checks, in the order in which they are shown.
func Catalogue() []Check {
	return slices.Concat(
		category(
			"API servers, objects, permissions",
			check("liqonet-api-01", "API servers answer", apiAnswers),
			check("liqonet-api-02", "API servers accept the credentials", apiAccepts),
			check("liqonet-definition-01", "custom resource definitions are there", definitions, Definitions),
			check("liqonet-permission-01", "you may do what `peer` needs", userPermissions, Answers),
			check("liqonet-permission-02", "agents have their permissions", agentPermissions, Drifts),
			check("liqonet-token-01", "API servers accept the agents' tokens", tokens, Accounts, Pods),
			check("liqonet-secret-01", "Secrets with keys are there", secrets, Secrets, Peerings),
			check("liqonet-clock-01", "API servers' clocks agree with this machine's", serverClock, Answers),
			check("liqonet-clock-02", "clocks of agents agree with their API servers'", agentClocks, Leases),
			check("liqonet-version-01", "agents are of this command's version", versions, Leases),
		),
		category(
			"Agents",
			check("liqonet-agent-01", "every node has an agent", nodesHaveAgents, Nodes, Pods),
			check("liqonet-agent-02", "agents of nodes work", ofNodes(nodeAgents), Nodes, Pods, Leases),
			check("liqonet-agent-03", "gateways work", ofGateways(gateways), Peerings, Pods, Leases),
			check("liqonet-agent-04", "every peering has a gateway that works", allGateways, Peerings, Leases),
			check("liqonet-agent-05", "agents can do all that they should", agentsSay, Peerings),
			check("liqonet-pod-01", "nodes have the agents' image", ofPods(podImages), Pods),
			check("liqonet-pod-02", "agents do not crash", ofPods(podCrashes), Pods),
			check("liqonet-pod-03", "agents' pods have a node", ofPods(podsScheduled), Pods),
			check("liqonet-pod-04", "agents have the memory that they need", ofPods(podMemory), Pods),
			check("liqonet-starved-01", "agents get a processor when they need one", starved, Leases),
			check("liqonet-policy-01", "no NetworkPolicy keeps packets from gateways", ofPods(policies), Policies, Pods),
		),
		category(
			"Nodes and their kernels",
			check("liqonet-node-01", "nodes are ready", ofNodes(nodesReady), Nodes),
			check("liqonet-disk-01", "disks of nodes have room", ofNodes(disks), Nodes, Pods),
			check("liqonet-kernel-01", "kernels have what nodes and gateways need", ofKernels(kernels), Kernels),
			check("liqonet-firewall-01", "no firewall drops what agents cannot let pass", ofKernels(firewalls), Kernels),
			check("liqonet-conntrack-01", "the kernel's table of connections has room", ofKernels(connections), Kernels),
			check("liqonet-link-01", "no interface of others has one of our names", ofKernels(foreignLinks), Kernels),
			check("liqonet-forward-01", "nodes forward packets", ofKernels(forwarding), Kernels),
			check("liqonet-port-01", "nobody else has UDP port 6094", ofKernels(portTaken), Kernels),
			check("liqonet-rule-01", "nobody else uses our routing table or priority", ofKernels(foreignRules), Kernels),
			check("liqonet-route-01", "nobody undoes our routes", ofKernels(routesFlap), Kernels),
			check("liqonet-arp-01", "no node answers ARP for others", ofKernels(proxyARP), Kernels),
			check("liqonet-duplicate-01", "each node's address is its own", duplicates, Kernels),
			check("liqonet-mtu-01", "nodes of one network have one MTU", uplinkMTU, Kernels),
		),
		category(
			"Tunnels",
			check("liqonet-endpoint-01", "names of endpoints lead somewhere", ofGateways(names), Peerings),
			check("liqonet-key-01", "gateways have each other's keys", ofGateways(keys), Peerings),
			check("liqonet-udp-01", "UDP gets to the endpoint", ofGateways(udpBlocked), Peerings, Leases),
			check("liqonet-udp-02", "UDP passes in both directions", ofGateways(udpOneWay), Peerings, Leases),
			check("liqonet-udp-03", "UDP passes between clusters not peered yet", ways, Answers),
			check("liqonet-nat-01", "NATs on the way remember the tunnel", ofGateways(natForgets), Peerings, Leases),
			check("liqonet-tunnel-01", "probes through tunnels are answered", ofGateways(tunnels), Peerings, Leases),
			check("liqonet-overlay-01", "nodes reach the peer", overlays, Peerings, Nodes, Leases),
			check("liqonet-mtu-02", "packets of full size get through", fullSize, Peerings, Kernels),
		),
		category(
			"Address ranges",
			check("liqonet-range-01", "no node has a route into a peer's range", ranges, Peerings),
			check("liqonet-range-02", "pods are in the ranges that peers know", podsOutside, Peerings),
			check("liqonet-range-03", "ranges and numbers have room", room, Peerings),
			check("liqonet-plan-01", "a peering of the clusters can be planned", plans, Answers),
		),
		category(
			"Leftovers and drift",
			check("liqonet-drift-01", "objects of ours are as `peer` makes them", drift, Drifts),
			check("liqonet-leftover-01", "nothing of ours is left over", leftovers, Leftovers),
			check("liqonet-leftover-02", "no Liqo, Submariner or Kilo is in the way", others, Leftovers),
			check("liqonet-lock-01", "commands that hold locks renew them", locks, Locks),
		),
		category(
			"Settings of others",
			check("liqonet-setting-01", "no setting of a plugin is known to hurt", settings, Settings),
		),
	)
}

// check is one about a cluster of which these parts could be read. What is about the API server itself needs none.
func check(name, about string, look func(*look), needs ...Part) Check {
	return Check{Name: name, About: about, look: look, needs: needs}
}

// category gives checks the heading under which they are shown.
func category(name string, checks ...Check) []Check {
	for i := range checks {
		checks[i].Category = name
	}
	return checks
}
