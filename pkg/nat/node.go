package nat

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/wire"
)

// Node describes the table of a node: the source addresses for peers, isolation, and clamping of TCP's segment size.
type Node struct {
	// OverlayGroup is the interface group of the overlay's interfaces.
	OverlayGroup uint32
	// Address is the node's overlay address.
	Address netip.Addr
	// Pods are the cluster's pod ranges. Their addresses are kept as sources.
	Pods []netip.Prefix
	// OwnPods are the ranges and single addresses of the node's own pods.
	OwnPods []netip.Prefix
	// Remote are the ranges by which the cluster knows its peers.
	Remote []netip.Prefix
	// Hosts are addresses outside the cluster that peers may reach. Hosts have no route back to peers, so they see the
	// node's own address.
	Hosts []netip.Addr
	// Endpoints are addresses in Remote that are also ends of tunnels. Their packets to the gateways' TunnelPort come
	// from the underlay, not from the overlay.
	Endpoints []netip.Addr
	// Uplinks are the interfaces to other machines. Only these of their packets go to peers: replies, packets that a
	// service sends to a remote endpoint, and packets of this node's own pods. Another machine must not use the node as
	// its router.
	Uplinks []string
	// Gateways are the gateways with an overlay link to this node.
	Gateways []NodeGateway
	// OverlayPort is the overlay's UDP port, TunnelPort that of gateways for the tunnel.
	OverlayPort, TunnelPort uint16
}

// NodeGateway is one gateway as seen from a node.
type NodeGateway struct {
	// Pod is the address of the gateway's pod, and the outer source of its packets. VNI is that of its link to this node.
	Pod netip.Addr
	VNI uint32
	// Overlay is the gateway's overlay address, and PeerGateway that of the peer's gateway, invalid if it is not known.
	Overlay, PeerGateway netip.Addr
	// Local is true if the gateway runs on this node.
	Local bool
	// IsInitiator is true if the gateway is the tunnel's client: it connects to the peer's gateway.
	IsInitiator bool
	// Link is the interface on which its packets arrive, Remote are its peer's ranges. Only packets from those ranges
	// and from Overlay may arrive on it.
	Link   string
	Remote []netip.Prefix
	// LimitNew is how many new connections per second that peer may open, 0 for no limit.
	LimitNew uint32
}

func (n Node) validate() error {
	addrs := slices.Concat([]netip.Addr{n.Address}, n.Hosts, n.Endpoints)
	prefixes := slices.Concat(n.Pods, n.OwnPods, n.Remote)
	for _, g := range n.Gateways {
		addrs, prefixes = append(addrs, g.Pod, g.Overlay), append(prefixes, g.Remote...)
	}
	addrs = append(addrs, n.asked()...)
	return onlyIPv4(addrs, prefixes)
}

// table returns the node's table. Findings 3, 4, 5 and 10 in docs/design-notes.md explain each rule.
func (n Node) table() table {
	pod := func(g NodeGateway, _ int) netip.Addr { return g.Pod }
	overlay := lo.Map(n.Gateways, func(g NodeGateway, _ int) netip.Addr { return g.Overlay })
	local, limits := lo.Filter(n.Gateways, func(g NodeGateway, _ int) bool { return g.Local }), n.limits()
	t := table{
		family: nftables.TableFamilyIPv4,
		sets: []set{
			prefixSet(setPods, n.Pods), prefixSet(setOwnPods, n.OwnPods), prefixSet(setRemote, n.Remote),
			addrSet(setHosts, n.Hosts), addrSet(setOverlay, overlay), addrSet(setAsked, n.asked()), addrSet(setCallers, n.initiators()),
			addrSet(setGateways, lo.Map(n.Gateways, pod)), addrSet(setLocalGateways, lo.Map(local, pod)),
			n.senders(),
		},
		chains: []chain{
			// Gateways have these rules too, but a gateway may be compromised.
			errorCauses(n.errorCauses()),
			regular("errors-in", foreignErrors()),
			regular("from-overlay", fromOverlay()),
			// The network plugin must not change the source of these packets, because the other end checks it.
			regular("overlay-packets", rules{
				{"to a gateway on this node", concat(to(setLocalGateways), notrack(), accept())},
				{"from a gateway on this node", concat(from(setLocalGateways), notrack(), accept())},
			}),
			regular("overlay-sources", n.overlaySources()),
			regular("gateway-errors", n.gatewayErrors()),
			regular("local-gateways", rules{
				{"overlay packets", concat(udpDport(n.OverlayPort), jump("overlay-packets"))},
				{"icmp", concat(proto(unix.IPPROTO_ICMP), jump("gateway-errors"))},
			}),
			regular("to-gateways", n.toGateways()),
			regular("from-peers", n.fromPeers(len(limits) > 0)),
			regular("to-peers", n.toPeers()),
			regular("as-node", rules{
				{"ports that no service uses", concat(proto(unix.IPPROTO_UDP), snatToPorts(n.Address, firstPort, lastPort))},
				{"any port", snatTo(n.Address)},
			}),
			// guard drops forged packets, and keeps the network plugin from masquerading overlay packets of gateways on
			// this node.
			base("guard", nftables.ChainHookPrerouting, priorityEarly, n.guard(len(local) > 0)),
			// The kernel also copies the mark of the inner packet to the outer one. Chains of others would act on it:
			// kube-proxy's mark requests masquerading, Calico's means that a policy has accepted the packet, and
			// Cilium's that a pod sends it. Chains that mark a node's own packets come later.
			base("own-overlay", nftables.ChainHookOutput, priorityEarly, rules{
				{"to gateways: clear the mark of the inner packet, and do not translate", concat(
					udpDport(n.OverlayPort), to(setGateways), clearMark(), notrack())},
			}),
			translating(base("isolate", nftables.ChainHookPrerouting, priorityFirst, n.isolate())),
			// A service may redirect a packet to this node after the chains above, by an external address in the pod
			// ranges or by an endpoint on the node.
			base("input", nftables.ChainHookInput, *nftables.ChainPriorityFilter, n.input()),
			base("forward", nftables.ChainHookForward, *nftables.ChainPriorityFilter, append(rules{
				{"from peers", concat(iifGroup(n.OverlayGroup), jump("from-peers"))},
				{"to peers", concat(oifGroup(n.OverlayGroup), jump("to-peers"))},
			}, n.tunnels(hookForward)...)),
			base("encrypted-only", nftables.ChainHookPostrouting, *nftables.ChainPriorityFilter, n.encryptedOnly()),
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

// fromOverlay lets in what the link's peer and gateway may send. The kernel leaves the mark of the outer packet on the
// inner one. A network plugin may identify senders by marks: Cilium's policies would mistake the peer's pods for the
// gateway, whose identity its packets carry.
func fromOverlay() rules {
	return rules{
		{"clear the mark of the outer packet", clearMark()},
		{"frames addressed to this link only", concat(not(forUs()), drop(hookPrerouting, "foreign-frame"))},
		{"icmp", concat(proto(unix.IPPROTO_ICMP), jump("errors-in"))},
		{"sources of the link's peer and gateway", concat(senderInSet(setSenders), accept())},
		{"no other sources", drop(hookPrerouting, reasonForged)},
	}
}

// guard sees every packet, so it has few rules: a node without a gateway has none for gateways, and TCP passes one
// instead of two. Overlay packets are accepted last: no node or gateway sends them with an address in a peer's range.
func (n Node) guard(hasGateway bool) rules {
	out := rules{
		{"from gateways", concat(iifGroup(n.OverlayGroup), jump("from-overlay"))},
		{"peers come by the overlay only", concat(from(setRemote), n.outside())},
	}
	if hasGateway {
		out.add("all except TCP", not(proto(unix.IPPROTO_TCP)), jump("local-gateways"))
	}
	return out
}

// outside returns what happens to packets with a peer's source that arrive on another interface.
func (n Node) outside() exprs {
	return lo.Ternary(len(n.Endpoints) == 0, drop(hookPrerouting, outsideOverlay), jump("tunnel-ends"))
}

// tunnelEnds lets tunnel ends whose address is in a peer's range send to a gateway's tunnel, and to nothing else. The
// destination is known only after services have translated it, or after a reply of the tunnel was translated back to
// its gateway. So guard accepts UDP, and the later hooks drop everything except tunnel packets.
//
// In this case, packets that the node sends with its own address are not routed into tunnels (see
// overlay.State.Bypass). encryptedOnly drops them.
func (n Node) tunnelEnds() []chain {
	return []chain{
		regular("tunnel-ends", rules{
			{"maybe a tunnel", concat(from(setEndpoints), proto(unix.IPPROTO_UDP), accept())},
			{"peers come by the overlay only", drop(hookPrerouting, outsideOverlay)},
		}),
		base("tunnel-ends-input", nftables.ChainHookInput, priorityLate, rules{
			{"no tunnel ends at the node", concat(not(iifGroup(n.OverlayGroup)), from(setEndpoints), drop(hookInput, tunnelEnd))},
		}),
		// Packets that IPVS forwards pass here, too.
		base("tunnel-ends-output", nftables.ChainHookOutput, *nftables.ChainPriorityFilter, n.tunnels(hookOutput)),
	}
}

// tunnels accepts tunnel packets at a hook, and drops everything else that the ends of tunnels send.
func (n Node) tunnels(hook string) rules {
	if len(n.Endpoints) == 0 {
		return nil
	}
	return rules{
		{"tunnels", concat(from(setEndpoints), to(setGateways), udpDport(n.TunnelPort), accept())},
		{"ends of tunnels reach nothing else", concat(from(setEndpoints), drop(hook, tunnelEnd))},
	}
}

// senders returns pairs of a link and a source range that is allowed on it.
func (n Node) senders() set {
	s := set{Set: nftables.Set{
		Name: setSenders, KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr), Interval: true, Concatenation: true,
	}}
	for _, g := range n.Gateways {
		for _, r := range ipam.Set(g.sources()).Ranges() {
			s.elements = append(s.elements, nftables.SetElement{
				Key: append(ifname(g.Link), r.From().AsSlice()...), KeyEnd: append(ifname(g.Link), r.To().AsSlice()...),
			})
		}
	}
	return s
}

// sources returns the ranges from which packets may arrive on the gateway's link.
func (g NodeGateway) sources() []netip.Prefix {
	return append(slices.Clone(g.Remote), netip.PrefixFrom(g.Overlay, g.Overlay.BitLen()))
}

// overlaySources accepts overlay packets by each link only from its own gateway, so that no other gateway can use the
// link. Geneve checks this itself, but VXLAN does not. The gateway's node keeps the network plugin from masquerading these
// packets (see guard).
func (n Node) overlaySources() (out rules) {
	for _, g := range n.Gateways {
		out.add("source of "+g.Link, vni(g.VNI), isAddress(sourceAt, g.Pod), returnVerdict())
	}
	out.add("other sources", drop(hookInput, "forged-overlay"))
	return out
}

// errorCauses accepts by each link only errors about packets to its gateway and peer.
func (n Node) errorCauses() (out rules) {
	for _, g := range n.Gateways {
		out.add("to the peer by "+g.Link, iif(g.Link), innerTo(g.sources()...), returnVerdict())
	}
	return out
}

// encryptedOnly drops what would leave for a peer by another interface than the overlay's. Routes to peers do not
// suffice: somebody may delete our routing rule, or insert another one before it. The hook is postrouting, because only
// there do forwarded packets and a node's own have their final destination and interface. At output, a packet to a
// service still has the interface from before its translation.
//
// Tunnels whose other end is in a peer's range are excepted, with the address that gateways send from. IPVS has already
// translated the source of replies, to an address of this node.
func (n Node) encryptedOnly() rules {
	out := rules{
		{"by the overlay", concat(oifGroup(n.OverlayGroup), accept())},
		{"not to peers", concat(not(to(setRemote)), accept())},
	}
	if len(n.Endpoints) > 0 {
		out.add("tunnels", from(setGateways), to(setEndpoints), udpSport(n.TunnelPort), accept())
		out.add("replies of tunnels, by IPVS", forwarded(), fromLocal(), to(setEndpoints), proto(unix.IPPROTO_UDP), accept())
	}
	out.add("nothing leaves unencrypted", drop(hookPostrouting, Unencrypted))
	return out
}

// gatewayErrors lets a gateway's own ICMP errors out to pods of other nodes. They leave by the pod network, while the
// packets that caused them came by the overlay. So this node has no connection that they relate to, and kube-proxy
// drops invalid packets.
func (n Node) gatewayErrors() (out rules) {
	for _, t := range icmpErrors() {
		out.add(fmt.Sprintf("icmp error %d of a gateway on this node", t), icmpType(t), from(setLocalGateways), notrack())
	}
	return out
}

// isolate lets new connections from the overlay reach pods only. It is in prerouting, because NodePorts translate
// destinations before the hook input. It sees only the first packet of each connection. Untracked packets are not
// translated either, and pass input or forward.
func (n Node) isolate() rules {
	return rules{
		{"not from peers", concat(not(iifGroup(n.OverlayGroup)), accept())},
		{"replies", concat(replies(), accept())},
		{"pings of gateways", concat(from(setOverlay), icmpType(echoRequest), accept())},
		{"peers reach nothing of the node", concat(not(toUnicast()), drop(hookPrerouting, toNode))},
	}
}

// input repeats guard and isolate for packets that were redirected to the node after those chains.
func (n Node) input() rules {
	return rules{
		{
			"overlay packets come from gateways only",
			concat(udpDport(n.OverlayPort), jump("overlay-sources")),
		},
		{"not from peers", concat(not(iifGroup(n.OverlayGroup)), accept())},
		{"replies", concat(replies(), accept())},
		{"pings of gateways", concat(from(setOverlay), icmpType(echoRequest), accept())},
		{"peers reach nothing of the node", drop(hookInput, toNode)},
	}
}

// fromPeers lets packets of peers reach this node's own pods and exposed hosts, after services have translated their
// destination. Replies also reach clients elsewhere that connected through this node.
func (n Node) fromPeers(isLimited bool) rules {
	var out rules
	if isLimited {
		out.add("new connections", notInTable(), jump("new-connections"))
	}
	return append(out, rules{
		{"segment size", clampMSS()},
		{"peers reach no gateway by the pod network", concat(to(setGateways), jump("to-gateways"))},
		{"this node's pods", concat(to(setOwnPods), accept())},
		{"no transit between peers", concat(oifGroup(n.OverlayGroup), drop(hookForward, "transit"))},
		{"replies", concat(replies(), accept())},
		{"exposed hosts", concat(to(setHosts), accept())},
		{"peers reach nothing else", drop(hookForward, "not-reachable")},
	}...)
}

// toGateways drops what gateways listen for. It drops nothing else, because a gateway that was taken over may report the
// address of any pod as its own.
func (n Node) toGateways() rules {
	dropped := drop(hookForward, "to-gateway")
	return rules{
		{"tunnel", concat(udpDport(n.TunnelPort), dropped)},
		{"agents: UDP", concat(dportWithin(unix.IPPROTO_UDP, wire.FirstPort, wire.LastPort), dropped)},
		{"agents: TCP", concat(dportWithin(unix.IPPROTO_TCP, wire.FirstPort, wire.LastPort), dropped)},
	}
}

// limits drop the first packet of a connection that a peer opens beyond its limit, with a counter for each peer. So the
// connection does not enter this node's conntrack table. Nodes apply the limit, because only they track connections,
// and a compromised gateway cannot prevent it.
func (n Node) limits() (out rules) {
	for _, g := range n.Gateways {
		if g.LimitNew > 0 {
			out.add("too many new connections by "+g.Link,
				iif(g.Link), packetsOver(g.LimitNew), drop(hookForward, "over-limit-new", g.Link))
		}
	}
	return out
}

func (n Node) toPeers() rules {
	out := rules{
		{"segment size", clampMSS()},
		{"replies of pods", concat(replies(), accept())},
		// The endpoints of one peer may be in the range of another.
		{"tunnels lead to no pod of a peer", concat(from(setGateways), udpSport(n.TunnelPort), drop(hookForward, "tunnel-to-peer"))},
		{"services with remote endpoints", concat(destinationTranslated(), accept())},
		{"only pods reach peers through this node", concat(not(from(setPods)), drop(hookForward, "not-a-pod"))},
	}
	// Some plugins, such as OVN-Kubernetes, have one interface for everything. Then this node's own pods also arrive on
	// an uplink, and the route back to them uses it, too.
	for _, u := range n.Uplinks {
		out.add("only this node's pods, from "+u, iif(u), not(from(setOwnPods)), drop(hookForward, reasonForged))
		out.add("no forged source, from "+u, iif(u), forgedSource(), drop(hookForward, reasonForged))
	}
	return out
}

// source chooses the source addresses that peers see. The order of the rules matters where nodes have addresses in the
// pod ranges.
//
//   - A service may send a packet from elsewhere to a remote endpoint. The reply has to return through this node,
//     because only this node knows the translation. Pods of other nodes call services with addresses in the pod ranges,
//     and on EKS all hosts nearby do.
//   - Gateways trust what a node reports in its requests (package liveness), so nobody else may ask them with its address:
//     users choose the addresses to which services lead.
//   - UDP packets leave with the node's address, from ports that no service uses. The peer's gateway recognizes replies
//     by their ports, since it tracks no connections (see Gateway.toNodes).
//   - Packets to peers are not masqueraded: masquerading drops a connection when its route moves to another interface.
//   - Packets to hosts outside and to the ends of tunnels are masqueraded. They see an address of the interface that
//     leads to them. When that address is removed, the kernel drops the connection.
//
// Where pods leave the node with their own address, a gateway that calls its peer would get no reply. The other cluster
// may have the same addresses, and routers need not know them. Where others masquerade, they would do the same a moment
// later.
func (n Node) source() rules {
	in, out := iifGroup(n.OverlayGroup), oifGroup(n.OverlayGroup)
	return rules{
		{"from this node", concat(out, fromLocal(), jump("as-node"))},
		{
			"only this node asks gateways", concat(out, not(from(setOwnPods)), to(setAsked),
				dportWithin(unix.IPPROTO_UDP, wire.FirstPort, wire.LastPort), drop(hookPostrouting, "to-gateway")),
		},
		{
			"from elsewhere to services with remote endpoints",
			concat(out, destinationTranslated(), not(from(setOwnPods)), jump("as-node")),
		},
		{"pods keep their source", concat(out, from(setPods), snatToSelf())},
		{"from others", concat(out, jump("as-node"))},
		{"peers to hosts outside", concat(in, to(setHosts), masquerade())},
		// Some network plugins also masquerade packets that reach pods from elsewhere.
		{"peers keep their source", concat(in, snatToSelf())},
		{"tunnels that gateways on this node open", concat(from(setCallers), udpSport(n.TunnelPort), masquerade())},
	}
}

// asked returns the gateways to which nodes send requests: this cluster's, and those of peers.
func (n Node) asked() []netip.Addr {
	all := lo.FlatMap(n.Gateways, func(g NodeGateway, _ int) []netip.Addr { return []netip.Addr{g.Overlay, g.PeerGateway} })
	return lo.Uniq(lo.Filter(all, func(a netip.Addr, _ int) bool { return a.IsValid() }))
}

// initiators returns the gateways on this node that initiate their tunnel. A server needs no rule: its replies
// belong to connections that were translated on the way in.
func (n Node) initiators() []netip.Addr {
	return lo.FilterMap(n.Gateways, func(g NodeGateway, _ int) (netip.Addr, bool) { return g.Pod, g.Local && g.IsInitiator })
}
