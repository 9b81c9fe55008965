package nat

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/samber/lo"
	"golang.org/x/sys/unix"
)

// Node describes the table of a node: sources to peers, isolation, and clamping of
// TCP's segment size.
type Node struct {
	// OverlayGroup is the interface group of the overlay's interfaces.
	OverlayGroup uint32
	// Address is the node's overlay address.
	Address netip.Addr
	// Pods are the cluster's pod ranges; their addresses are kept as sources.
	Pods []netip.Prefix
	// OwnPods are the ranges and single addresses of the node's own pods.
	OwnPods []netip.Prefix
	// Remote are the ranges by which the cluster knows its peers.
	Remote []netip.Prefix
	// Hosts are addresses outside of the cluster that peers may reach. Hosts do not know
	// the way back to peers, so they see the node's own address.
	Hosts []netip.Addr
	// Endpoints are addresses in Remote that are also ends of tunnels. What they send to the
	// gateways' TunnelPort comes by the network around, not by the overlay.
	Endpoints []netip.Addr
	// Uplinks are the interfaces to other machines. Of what comes from there, answers go
	// to peers, and packets that a service sends to a remote endpoint, and packets of this
	// node's own pods. Another machine must not use the node as its router.
	Uplinks []string
	// Gateways are those with an overlay link to this node.
	Gateways []NodeGateway
	// OverlayPort is the overlay's UDP port, TunnelPort that of gateways for the tunnel.
	OverlayPort, TunnelPort uint16
}

// NodeGateway is one gateway as seen from a node.
type NodeGateway struct {
	// Pod is the address of the gateway's pod, and the outer source of its packets.
	Pod netip.Addr
	// Overlay is the gateway's overlay address.
	Overlay netip.Addr
	// Local says that the gateway runs on this node.
	Local bool
	// Calls says that the gateway is the tunnel's client: it calls the peer's gateway.
	Calls bool
	// Link is the interface by which its packets come, Remote are its peer's ranges. By
	// that interface come packets from there and from Overlay, and no others.
	Link   string
	Remote []netip.Prefix
	// LimitNew is how many new connections per second that peer may begin, 0 for all.
	LimitNew uint32
}

func (n Node) validate() error {
	addrs := slices.Concat([]netip.Addr{n.Address}, n.Hosts, n.Endpoints)
	prefixes := slices.Concat(n.Pods, n.OwnPods, n.Remote)
	for _, g := range n.Gateways {
		addrs, prefixes = append(addrs, g.Pod, g.Overlay), append(prefixes, g.Remote...)
	}
	return onlyIPv4(addrs, prefixes)
}

// table computes the node's table. Why each rule is there is in docs/design-notes.md,
// findings 3, 4, 5 and 10.
func (n Node) table() table {
	pod := func(g NodeGateway, _ int) netip.Addr { return g.Pod }
	overlay := lo.Map(n.Gateways, func(g NodeGateway, _ int) netip.Addr { return g.Overlay })
	local := lo.Filter(n.Gateways, func(g NodeGateway, _ int) bool { return g.Local })
	limits := n.limits()
	t := table{
		family: nftables.TableFamilyIPv4,
		sets: []set{
			prefixSet(setPods, n.Pods), prefixSet(setOwnPods, n.OwnPods), prefixSet(setRemote, n.Remote),
			addrSet(setHosts, n.Hosts), addrSet(setOverlay, overlay), addrSet(setCallers, n.callers()),
			addrSet(setGateways, lo.Map(n.Gateways, pod)), addrSet(setLocalGateways, lo.Map(local, pod)),
			senderSet(setSenders, n.Gateways),
		},
		chains: []chain{
			// Gateways have these rules too, but one may have been taken over.
			regular("errors-in", foreignErrors(innerReceiverInSet(setSenders))),
			// The kernel leaves a packet the mark of the one around. A network plugin may tell by marks who
			// sends: Cilium's policies would take the peer's pods for the gateway, whose identity its packets bear.
			regular("from-overlay", rules{
				{"no mark of the packet around", clearMark()},
				{"frames for this very link only", concat(not(forUs()), drop(hookPrerouting, "foreign-frame"))},
				{"icmp", concat(proto(unix.IPPROTO_ICMP), jump("errors-in"))},
				{"what the link's peer and gateway may send", concat(senderInSet(setSenders), accept())},
				{"a gateway sends nothing in the name of others", drop(hookPrerouting, reasonForged)},
			}),
			// The network plugin must not change their source, because the other end checks it.
			regular("overlay-packets", rules{
				{"to a gateway on this node", concat(to(setLocalGateways), notrack(), accept())},
				{"from a gateway on this node", concat(from(setLocalGateways), notrack(), accept())},
			}),
			regular("gateway-errors", n.gatewayErrors()),
			regular("local-gateways", rules{
				{"overlay packets", concat(udpDport(n.OverlayPort), jump("overlay-packets"))},
				{"icmp", concat(proto(unix.IPPROTO_ICMP), jump("gateway-errors"))},
			}),
			regular("from-peers", n.fromPeers(len(limits) > 0)),
			regular("to-peers", n.toPeers()),
			regular("as-node", rules{
				{"ports that no service has", concat(proto(unix.IPPROTO_UDP), snatToPorts(n.Address, firstPort, lastPort))},
				{"as it is", snatTo(n.Address)},
			}),
			// It drops forged packets, and keeps the network plugin from masquerading
			// overlay packets of gateways on this node.
			base("guard", nftables.ChainHookPrerouting, priorityEarly, n.guard(len(local) > 0)),
			// The kernel gives the packet around the mark of the one inside, too. Chains of others would go by it:
			// kube-proxy's mark asks for masquerading, Calico's says that a policy has let the packet through, and
			// Cilium's that a pod sends it. Chains that mark what a node sends come later.
			base("own-overlay", nftables.ChainHookOutput, priorityEarly, rules{
				{"to gateways: no mark of the packet inside, and nobody else translates it", concat(
					udpDport(n.OverlayPort), to(setGateways), clearMark(), notrack())},
			}),
			translating(base("isolate", nftables.ChainHookPrerouting, priorityFirst, n.isolate())),
			// A service may turn a packet into one to this node after the chains above,
			// by an external address among those of pods or by an endpoint on the node.
			base("input", nftables.ChainHookInput, *nftables.ChainPriorityFilter, n.input()),
			base("forward", nftables.ChainHookForward, *nftables.ChainPriorityFilter, append(rules{
				{"from peers", concat(iifGroup(n.OverlayGroup), jump("from-peers"))},
				{"to peers", concat(oifGroup(n.OverlayGroup), jump("to-peers"))},
			}, n.tunnels(hookForward)...)),
			translating(base("source", nftables.ChainHookPostrouting, priorityBefore, n.source())),
		},
	}
	if len(n.Endpoints) > 0 {
		t.sets = append(t.sets, addrSet(setEndpoints, n.Endpoints))
		t.chains = append(n.tunnelEnds(), t.chains...)
	}
	if len(limits) > 0 {
		t.chains = append([]chain{regular("new-connections", limits)}, t.chains...)
	}
	return t
}

// guard sees each packet, whoever sends it. So a node without a gateway has no rule for one, and TCP meets one less. Overlay
// packets are let pass last: no node and no gateway sends them with an address of a peer's range.
func (n Node) guard(hasGateway bool) rules {
	out := rules{
		{"from gateways", concat(iifGroup(n.OverlayGroup), jump("from-overlay"))},
		{"peers come by the overlay only", concat(from(setRemote), n.outside())},
	}
	if hasGateway {
		out.add("all but TCP", not(proto(unix.IPPROTO_TCP)), jump("local-gateways"))
	}
	return out
}

// outside is what happens to packets with a peer's source that come by another interface.
func (n Node) outside() exprs {
	if len(n.Endpoints) == 0 {
		return drop(hookPrerouting, outsideOverlay)
	}
	return jump("tunnel-ends")
}

// tunnelEnds lets what ends of tunnels send in although a peer's range has their
// address, as far as it gets to a gateway's tunnel. It is known where it gets to when services
// have translated its destination, or a tunnel's answer was led back to its gateway. So guard
// lets UDP pass, and the hooks after that stop all but the tunnel's.
//
// Then nothing that the node sends with its own address is led into tunnels (see
// overlay.State.Bypass). To peers it must not leave unencrypted.
func (n Node) tunnelEnds() []chain {
	return []chain{
		regular("tunnel-ends", rules{
			{"maybe a tunnel", concat(from(setEndpoints), proto(unix.IPPROTO_UDP), accept())},
			{"peers come by the overlay only", drop(hookPrerouting, outsideOverlay)},
		}),
		base("tunnel-ends-input", nftables.ChainHookInput, priorityLate, rules{
			{"no tunnel ends at the node", concat(not(iifGroup(n.OverlayGroup)), from(setEndpoints), drop(hookInput, tunnelEnd))},
		}),
		// Here are also the packets that IPVS sends on.
		base("tunnel-ends-output", nftables.ChainHookOutput, *nftables.ChainPriorityFilter, append(rules{
			{"nothing leaves unencrypted", concat(to(setRemote), not(oifGroup(n.OverlayGroup)), drop(hookOutput, "in-plain"))},
		}, n.tunnels(hookOutput)...)),
	}
}

// tunnels lets the packets of tunnels pass a hook, and stops all else that their ends send.
func (n Node) tunnels(hook string) rules {
	if len(n.Endpoints) == 0 {
		return nil
	}
	return rules{
		{"tunnels", concat(from(setEndpoints), to(setGateways), udpDport(n.TunnelPort), accept())},
		{"ends of tunnels reach nothing else", concat(from(setEndpoints), drop(hook, tunnelEnd))},
	}
}

// gatewayErrors lets a gateway's own ICMP errors out to pods of other nodes. They leave
// by the pod network, while the packets that caused them came by the overlay. So this node
// knows no connection that they relate to, and kube-proxy drops invalid packets.
func (n Node) gatewayErrors() (out rules) {
	for _, t := range icmpErrors() {
		out.add(fmt.Sprintf("icmp error %d of a gateway on this node", t), icmpType(t), from(setLocalGateways), notrack())
	}
	return out
}

// isolate lets new connections from the overlay reach pods only. It is in prerouting,
// because NodePorts translate destinations before the hook input. Of each connection it sees
// the first packet. What is not tracked is not translated either, and meets input or forward.
func (n Node) isolate() rules {
	return rules{
		{"only what peers send is meant here", concat(not(iifGroup(n.OverlayGroup)), accept())},
		{"answers", concat(answers(), accept())},
		{"pings of gateways", concat(from(setOverlay), icmpType(echoRequest), accept())},
		{"peers reach nothing of the node", concat(not(toUnicast()), drop(hookPrerouting, toNode))},
	}
}

// input repeats guard and isolate for packets whose destination became the node after
// those chains.
func (n Node) input() rules {
	return rules{
		{
			"overlay packets come from gateways only",
			concat(udpDport(n.OverlayPort), not(from(setGateways)), drop(hookInput, "forged-overlay")),
		},
		{"only what peers send is meant here", concat(not(iifGroup(n.OverlayGroup)), accept())},
		{"answers", concat(answers(), accept())},
		{"pings of gateways", concat(from(setOverlay), icmpType(echoRequest), accept())},
		{"peers reach nothing of the node", drop(hookInput, toNode)},
	}
}

// fromPeers lets packets of peers reach this node's own pods and exposed hosts, whatever
// services have made of their destination. Answers also reach those who called from
// elsewhere by this node.
func (n Node) fromPeers(isLimited bool) rules {
	var out rules
	if isLimited {
		out.add("new connections", notInTable(), jump("new-connections"))
	}
	return append(out, rules{
		{"segment size", clampMSS()},
		{"peers reach no gateway by the pod network", concat(to(setGateways), drop(hookForward, "to-gateway"))},
		{"this node's pods", concat(to(setOwnPods), accept())},
		{"no transit between peers", concat(oifGroup(n.OverlayGroup), drop(hookForward, "transit"))},
		{"answers", concat(answers(), accept())},
		{"exposed hosts", concat(to(setHosts), accept())},
		{"peers reach nothing else", drop(hookForward, "not-reachable")},
	}...)
}

// limits drop the first packet of a connection that a peer begins beyond its limit, with a
// counter for each peer. So the connection does not get into this node's table. Only nodes track
// connections, and a gateway that was taken over does not keep them from it.
func (n Node) limits() (out rules) {
	for _, g := range n.Gateways {
		if g.LimitNew > 0 {
			out.add("no more new connections by "+g.Link,
				iif(g.Link), packetsOver(g.LimitNew), drop(hookForward, "over-limit-new", g.Link))
		}
	}
	return out
}

func (n Node) toPeers() rules {
	out := rules{
		{"segment size", clampMSS()},
		{"answers of pods", concat(answers(), accept())},
		{"services with remote endpoints", concat(destinationTranslated(), accept())},
		{"only pods reach peers through this node", concat(not(from(setPods)), drop(hookForward, "not-a-pod"))},
	}
	// Some plugins, such as OVN-Kubernetes, have one interface for everything: then this
	// node's own pods come by an uplink too, and the way back to them is the same.
	for _, u := range n.Uplinks {
		out.add("only this node's pods, from "+u, iif(u), not(from(setOwnPods)), drop(hookForward, reasonForged))
		out.add("no forged source, from "+u, iif(u), forgedSource(), drop(hookForward, reasonForged))
	}
	return out
}

// source chooses the addresses that peers see. The order of the rules matters where nodes
// have addresses in the pod range.
//
//   - A service may send a packet from elsewhere to a remote endpoint. Its answer has to
//     come back by way of this node, which alone knows of the translation. Pods of other
//     nodes call services with addresses of the pod range, and on EKS all hosts around do.
//   - UDP leaves in the node's name from ports that no service has. The peer's gateway tells
//     answers by their ports, since it tracks no connections (see Gateway.toNodes).
//   - Towards peers there is no masquerade: it drops a connection when its route moves to
//     another interface.
//   - Towards hosts outside and the ends of tunnels there is one. They see an address of
//     the interface that leads to them. When that address goes, the kernel forgets the
//     connection.
//
// Where pods leave the node with their own address, nobody could answer a gateway that
// calls: the other cluster may have the same addresses, and routers need not know them.
// Where others masquerade, they would do the same a moment later.
func (n Node) source() rules {
	in, out := iifGroup(n.OverlayGroup), oifGroup(n.OverlayGroup)
	return rules{
		{"from this node", concat(out, fromLocal(), jump("as-node"))},
		{
			"from elsewhere to services with remote endpoints",
			concat(out, destinationTranslated(), not(from(setOwnPods)), jump("as-node")),
		},
		{"pods keep their source", concat(out, from(setPods), snatToSelf())},
		{"from others", concat(out, jump("as-node"))},
		{"peers to hosts outside", concat(in, to(setHosts), masquerade())},
		// Some masquerade also what comes to pods from elsewhere.
		{"peers keep their source", concat(in, snatToSelf())},
		{"tunnels that gateways on this node call", concat(from(setCallers), udpSport(n.TunnelPort), masquerade())},
	}
}

// callers are the gateways on this node that call their peer. A gateway that is called
// needs nothing: its answers belong to connections that were translated on the way in.
func (n Node) callers() []netip.Addr {
	return lo.FilterMap(n.Gateways, func(g NodeGateway, _ int) (netip.Addr, bool) { return g.Pod, g.Local && g.Calls })
}
