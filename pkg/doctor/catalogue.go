package doctor

// The categories, in the order in which they are shown.
const (
	categoryAPI     = "API servers, objects, permissions"
	categoryAgents  = "Agents"
	categoryNodes   = "Nodes and their kernels"
	categoryTunnel  = "Tunnels"
	categoryRanges  = "Address ranges"
	categoryLeft    = "Leftovers and drift"
	categorySetting = "Settings of others"
)

// Catalogue returns all checks, in the order in which they are shown.
func Catalogue() []Check {
	return []Check{
		{
			Name: "liqonet-api-01", Category: categoryAPI, About: "API servers answer", look: apiAnswers,
			Cause: "The API server does not run, or the way to it is cut.", Remedy: "Start it, or mend the way. Packets of peerings pass meanwhile.",
		},
		{
			Name: "liqonet-api-02", Category: categoryAPI, About: "API servers accept the credentials", look: apiAccepts,
			Cause: "The credentials of the kubeconfig entry have ended, or were taken back.", Remedy: "Get new ones, as for kubectl.",
		},
		{
			Name: "liqonet-definition-01", Category: categoryAPI, About: "custom resource definitions are there", needs: []Part{Definitions}, look: definitions,
			Cause: "Somebody has deleted a definition. Kubernetes has deleted all objects of its kind with it.", Remedy: "Peer again: keys and ranges that are still there are kept.",
		},
		{
			Name: "liqonet-permission-01", Category: categoryAPI, About: "you may do what `peer` needs", needs: []Part{}, look: userPermissions,
			Cause: "The user of the kubeconfig is no administrator of the cluster.", Remedy: "Use another user for `peer`. What you may not see is named in the checks.",
		},
		{
			Name: "liqonet-permission-02", Category: categoryAPI, About: "agents have their permissions", needs: []Part{Drifts}, look: agentPermissions,
			Cause: "A role, a binding or an account of the agents was deleted or changed. The agents cannot read or report.", Remedy: "`doctor --fix` or `peer` puts it back.",
		},
		{
			Name: "liqonet-token-01", Category: categoryAPI, About: "API servers accept the agents' tokens", needs: []Part{Accounts, Pods}, look: tokens,
			Cause: "The account was deleted and made anew. Tokens of pods that were started before are those of the account that is gone.", Remedy: "Delete the pods: new ones get tokens of the account that is there.",
		},
		{
			Name: "liqonet-secret-01", Category: categoryAPI, About: "Secrets with keys are there", needs: []Part{Secrets, Peerings}, look: secrets,
			Cause: "Somebody has deleted a Secret with a key. A pod that starts cannot mount it.", Remedy: "Peer again: it makes another key.",
		},
		{
			Name: "liqonet-clock-01", Category: categoryAPI, About: "API servers' clocks agree with this machine's", needs: []Part{}, look: serverClock,
			Cause: "A clock is wrong: that of the API server, or of this machine.", Remedy: "Set it, best by NTP. Tokens and certificates depend on it.",
		},
		{
			Name: "liqonet-clock-02", Category: categoryAPI, About: "clocks of agents agree with their API servers'", needs: []Part{Leases}, look: agentClocks,
			Cause: "The clock of a node is wrong.", Remedy: "Set it, best by NTP. WireGuard refuses handshakes of a gateway whose clock was put back.",
		},
		{
			Name: "liqonet-version-01", Category: categoryAPI, About: "agents are of this command's version", needs: []Part{Leases}, look: versions,
			Cause: "The agents are of another version than this command, or of several ones.", Remedy: "Upgrade them, or use the command of their version.",
		},

		{
			Name: "liqonet-agent-01", Category: categoryAgents, About: "every node has an agent", needs: []Part{Nodes, Pods}, look: nodesHaveAgents,
			Cause: "The DaemonSet is gone, or its pod does not get on the node.", Remedy: "Peer again, or see why Kubernetes does not start the pod.",
		},
		{
			Name: "liqonet-agent-02", Category: categoryAgents, About: "agents of nodes work", needs: []Part{Nodes, Pods, Leases}, look: nodeAgents,
			Cause: "The process stands still, or does not get to its API server. The node's kernel goes on as it was.", Remedy: "Delete the pod: the next one goes on.",
		},
		{
			Name: "liqonet-agent-03", Category: categoryAgents, About: "gateways work", needs: []Part{Peerings, Pods, Leases}, look: gateways,
			Cause: "The process of a gateway stands still, or does not get to its API server.", Remedy: "Delete the pod: the next one goes on.",
		},
		{
			Name: "liqonet-agent-04", Category: categoryAgents, About: "every peering has a gateway that works", needs: []Part{Peerings, Leases}, look: allGateways,
			Cause: "The gateways of all planes of a peering are dead, so no packet passes.", Remedy: "Look at the gateways' pods, and delete them.",
		},
		{
			Name: "liqonet-agent-05", Category: categoryAgents, About: "agents can do all that they should", needs: []Part{Peerings}, look: agentsSay,
			Cause: "An agent says what it cannot do.", Remedy: "See its message.",
		},
		{
			Name: "liqonet-pod-01", Category: categoryAgents, About: "nodes have the agents' image", needs: []Part{Pods}, look: podImages,
			Cause: "The image is gone from the node, and cannot be pulled.", Remedy: "Push the image to where the cluster pulls it from, or load it into the nodes.",
		},
		{
			Name: "liqonet-pod-02", Category: categoryAgents, About: "agents do not crash", needs: []Part{Pods}, look: podCrashes,
			Cause: "The process ends again and again.", Remedy: "See what it said last. Where it says nothing, somebody kills it.",
		},
		{
			Name: "liqonet-pod-03", Category: categoryAgents, About: "agents' pods have a node", needs: []Part{Pods}, look: podsScheduled,
			Cause: "No node may run the pod: each is full, cordoned or tainted, or has another gateway of the peering.", Remedy: "Add a node, uncordon one, or peer with other labels or fewer planes.",
		},
		{
			Name: "liqonet-pod-04", Category: categoryAgents, About: "agents have the memory that they need", needs: []Part{Pods}, look: podMemory,
			Cause: "The kernel has ended the agent, since it needed more memory than its limit.", Remedy: "Take back the lower limit that somebody has set.",
		},
		{
			Name: "liqonet-starved-01", Category: categoryAgents, About: "agents get a processor when they need one", needs: []Part{Leases}, look: starved,
			Cause: "A limit of the agent's processor time, or of the whole node, lets it wait.", Remedy: "Take the limit away. Peering again leaves resources as somebody has set them.",
		},
		{
			Name: "liqonet-policy-01", Category: categoryAgents, About: "no NetworkPolicy keeps packets from gateways", needs: []Part{Policies, Pods}, look: policies,
			Cause: "A NetworkPolicy in `liqonet-system` selects the gateways, and does not let in what nodes and peers send them.", Remedy: "Delete it, or let UDP 6094 and 51840 pass.",
		},

		{
			Name: "liqonet-node-01", Category: categoryNodes, About: "nodes are ready", needs: []Part{Nodes}, look: nodesReady,
			Cause: "The node is down or cut off, or its kubelet is.", Remedy: "Mend the node. Its pods and gateways move after some minutes.",
		},
		{
			Name: "liqonet-disk-01", Category: categoryNodes, About: "disks of nodes have room", needs: []Part{Nodes, Pods}, look: disks,
			Cause: "The disk of a node is full. Kubernetes evicts pods there and starts no others.", Remedy: "Make room on the node.",
		},
		{
			Name: "liqonet-kernel-01", Category: categoryNodes, About: "kernels have what nodes and gateways need", needs: []Part{Kernels}, look: kernels,
			Cause: "The kernel lacks something, or a module is not loaded.", Remedy: "Load the module, or use another kernel.",
		},
		{
			Name: "liqonet-firewall-01", Category: categoryNodes, About: "no firewall drops what agents cannot let pass", needs: []Part{Kernels}, look: firewalls,
			Cause: "A firewall drops what is forwarded, in a table that only its owner or iptables-legacy may change.", Remedy: "Have the firewall accept it, or tell it not to own its table.",
		},
		{
			Name: "liqonet-conntrack-01", Category: categoryNodes, About: "the kernel's table of connections has room", needs: []Part{Kernels}, look: connections,
			Cause: "There are more connections than the kernel may remember. It drops the first packet of new ones.", Remedy: "Find who opens them, or allow more: net.netfilter.nf_conntrack_max.",
		},
		{
			Name: "liqonet-link-01", Category: categoryNodes, About: "no interface of others has one of our names", needs: []Part{Kernels}, look: foreignLinks,
			Cause: "An interface that somebody else has made has the name of an overlay link.", Remedy: "Delete or rename it: the agent makes its own then.",
		},
		{
			Name: "liqonet-forward-01", Category: categoryNodes, About: "nodes forward packets", needs: []Part{Kernels}, look: forwarding,
			Cause: "Somebody has set sysctls of interfaces. Then the kernel drops packets of others, or what comes by another way than it would go back.", Remedy: "Take the setting away. The agent sets its own interfaces right within 30 s.",
		},
		{
			Name: "liqonet-port-01", Category: categoryNodes, About: "nobody else has UDP port 6094", needs: []Part{Kernels}, look: portTaken,
			Cause: "Another tunnel or program has the port, so overlay packets do not get to our link.", Remedy: "Have it use another port.",
		},
		{
			Name: "liqonet-rule-01", Category: categoryNodes, About: "nobody else uses our routing table or priority", needs: []Part{Kernels}, look: foreignRules,
			Cause: "Rules or routes of somebody else are in the way of ours.", Remedy: "Move them to another table or priority.",
		},
		{
			Name: "liqonet-route-01", Category: categoryNodes, About: "nobody undoes our routes", needs: []Part{Kernels}, look: routesFlap,
			Cause: "A program on the node deletes our routes again and again. The agent puts them back each time.", Remedy: "Find the program, and have it leave table 27761 alone.",
		},
		{
			Name: "liqonet-arp-01", Category: categoryNodes, About: "no node answers ARP for others", needs: []Part{Kernels}, look: proxyARP,
			Cause: "Proxy ARP is on at a node's uplink. The node answers for all addresses that it has a route to, those of peers included, and so draws packets of others.", Remedy: "Turn it off.",
		},
		{
			Name: "liqonet-duplicate-01", Category: categoryNodes, About: "each node's address is its own", needs: []Part{Kernels}, look: duplicates,
			Cause: "Another machine of the network has the address of a node. Packets get to one or the other.", Remedy: "Give the other machine another address.",
		},
		{
			Name: "liqonet-mtu-01", Category: categoryNodes, About: "nodes of one network have one MTU", needs: []Part{Kernels}, look: uplinkMTU,
			Cause: "The uplink of a node has another MTU than those of the other nodes. Large packets between them are lost without a word.", Remedy: "Give all nodes of a network the same MTU.",
		},

		{
			Name: "liqonet-endpoint-01", Category: categoryTunnel, About: "names of endpoints lead somewhere", needs: []Part{Peerings}, look: names,
			Cause: "The name by which the peer is called is gone from the DNS, or no name server answers.", Remedy: "Put the name back, or peer with another endpoint.",
		},
		{
			Name: "liqonet-key-01", Category: categoryTunnel, About: "gateways have each other's keys", needs: []Part{Peerings}, look: keys,
			Cause: "A gateway knows another public key than the peer's gateway has, so WireGuard answers nothing.", Remedy: "Peer again.",
		},
		{
			Name: "liqonet-udp-01", Category: categoryTunnel, About: "UDP gets to the endpoint", needs: []Part{Peerings, Leases}, look: udpBlocked,
			Cause: "A firewall between the clusters drops UDP to the server's endpoint, or the address is not the server's any more.", Remedy: "Let the port pass. Where the address has changed, peer again.",
		},
		{
			Name: "liqonet-udp-02", Category: categoryTunnel, About: "UDP passes in both directions", needs: []Part{Peerings, Leases}, look: udpOneWay,
			Cause: "Packets between the clusters get through in one direction only.", Remedy: "Look at firewalls and routes of the direction that fails.",
		},
		{
			Name: "liqonet-udp-03", Category: categoryTunnel, About: "UDP passes between clusters not peered yet", needs: []Part{}, look: ways,
			Cause: "A firewall drops UDP between the nodes of the two clusters.", Remedy: "Let it pass, or expose the gateway by a load balancer.",
		},
		{
			Name: "liqonet-nat-01", Category: categoryTunnel, About: "NATs on the way remember the tunnel", needs: []Part{Peerings, Leases}, look: natForgets,
			Cause: "A NAT on the way forgets the tunnel after a second or two, so the client seems to call from another port each time.", Remedy: "Have the NAT remember UDP for 30 s at least.",
		},
		{
			Name: "liqonet-tunnel-01", Category: categoryTunnel, About: "probes through tunnels are answered", needs: []Part{Peerings, Leases}, look: tunnels,
			Cause: "No packet passes between the gateways.", Remedy: "Go on hop by hop.",
		},
		{
			Name: "liqonet-overlay-01", Category: categoryTunnel, About: "nodes reach the peer", needs: []Part{Peerings, Nodes, Leases}, look: overlays,
			Cause: "Something between the node and the gateway drops UDP port 6094.", Remedy: "Let it pass between all nodes of the cluster: security groups, firewalls, the pod network.",
		},
		{
			Name: "liqonet-mtu-02", Category: categoryTunnel, About: "packets of full size get through", needs: []Part{Peerings, Kernels}, look: fullSize,
			Cause: "A hop drops large packets and does not say so (a black hole).", Remedy: "Have it send ICMP errors, or lower the MTU of the pod network to what passes.",
		},

		{
			Name: "liqonet-range-01", Category: categoryRanges, About: "no node has a route into a peer's range", needs: []Part{Peerings}, look: ranges,
			Cause: "A node has had a route to addresses of a range since after that range was chosen for a peer.", Remedy: "Peer again: it chooses another range. Or take the route away.",
		},
		{
			Name: "liqonet-range-02", Category: categoryRanges, About: "pods are in the ranges that peers know", needs: []Part{Peerings}, look: podsOutside,
			Cause: "Pods have got addresses of a range that was added after the peering was made.", Remedy: "Peer again: it gives the new range to the peer.",
		},
		{
			Name: "liqonet-range-03", Category: categoryRanges, About: "ranges and numbers have room", needs: []Part{Peerings}, look: room,
			Cause: "A cluster has nearly as many peerings, nodes or single pod addresses as there can be.", Remedy: "Remove what is not needed. Give nodes ranges of pods, or larger ones, if there are too many single addresses.",
		},
		{
			Name: "liqonet-plan-01", Category: categoryRanges, About: "a peering of the clusters can be planned", needs: []Part{}, look: plans,
			Cause: "`peer` would refuse, and says why.", Remedy: "See the reason.",
		},

		{
			Name: "liqonet-drift-01", Category: categoryLeft, About: "objects of ours are as `peer` makes them", needs: []Part{Drifts}, look: drift,
			Cause: "Somebody has changed or deleted an object of ours.", Remedy: "`doctor --fix` or `peer` puts it back.",
		},
		{
			Name: "liqonet-leftover-01", Category: categoryLeft, About: "nothing of ours is left over", needs: []Part{Leftovers}, look: leftovers,
			Cause: "A command was killed, or a peering was removed by hand.", Remedy: "`doctor --fix` or `unpeer` removes it.",
		},
		{
			Name: "liqonet-leftover-02", Category: categoryLeft, About: "no Liqo, Submariner or Kilo is in the way", needs: []Part{Leftovers}, look: others,
			Cause: "Another project that connects clusters is there, or was not removed. It may route the same ranges, or masquerade.", Remedy: "Remove it by its own command.",
		},
		{
			Name: "liqonet-setting-01", Category: categorySetting, About: "no setting of a plugin is known to hurt", needs: []Part{Settings}, look: settings,
			Cause: "The network plugin or the cloud is set in a way that is known to disturb packets of peers.", Remedy: "See the evidence.",
		},
	}
}
