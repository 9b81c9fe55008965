package nat

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/ipam"
)

// Mapping translates a prefix inside this cluster to the one by which the peer knows it. If they are equal, nothing is
// translated.
type Mapping = ipam.Mapping

// Gateway describes the table of a gateway. It translates this cluster's addresses without state, and isolates the
// cluster from the peer.
type Gateway struct {
	// Underlay is the name of the pod's own interface.
	Underlay string
	// TunnelGroup is the interface group of the WireGuard interface, OverlayGroup that of the overlay's interfaces.
	// ReceiveGroup is that of the interface from which packets of both come after they were aggregated (see Receive).
	TunnelGroup, OverlayGroup, ReceiveGroup uint32
	// Local are this cluster's ranges that the peer may reach: pods and exposed hosts.
	Local []Mapping
	// Internal is the range of overlay addresses. Only packets that look like replies reach the nodes. Address is the
	// gateway's own overlay address.
	Internal Mapping
	Address  netip.Addr
	// Remote are the ranges by which this cluster knows the peer. The peer may send ICMP errors only about packets that
	// went there.
	Remote []netip.Prefix
	// Nodes are the outer source addresses of overlay packets.
	Nodes []netip.Addr
	// OverlayPort and TunnelPort are UDP ports on Underlay. Nodes reach LivenessPort through the overlay, and the peer's
	// gateway and nodes reach it through the tunnel. Only the peer's gateway answers from it.
	OverlayPort, TunnelPort, LivenessPort uint16
	// HealthPort is a TCP port on Underlay for the kubelet, whose source address depends on the network plugin. So
	// everyone who reaches the pod by Underlay reaches that port.
	HealthPort uint16
	// MetricsPort is a TCP port on Underlay for this cluster's own pods (Pods except Nodes), by their real addresses.
	// Nobody else reaches it.
	MetricsPort uint16
	Pods        []netip.Prefix
	// PeerGateway is the address by which this cluster knows the peer's gateway. Through the tunnel, only that address
	// connects to the TCP ports in ExchangePorts, and replies from them.
	PeerGateway   netip.Addr
	ExchangePorts []uint16
	// PeerNodes is the range by which this cluster knows the peer's nodes.
	PeerNodes netip.Prefix
	// LimitRate is how many bytes of IP packets per second are forwarded from the peer, 0 for no limit. Probes and the
	// channel between the gateways do not count.
	LimitRate uint64
}

// peerProbes is how many probes per second the peer's nodes may send to the gateway, and how many at once. All nodes
// together send this many only if there are more than 2,000, and only in the second after the path begins to work.
const peerProbes = 20000

func (g Gateway) validate() error {
	addrs := slices.Concat(g.Nodes, []netip.Addr{g.PeerGateway, g.Address, g.PeerNodes.Addr()})
	for _, m := range g.mappings() {
		if m.Real.Bits() != m.Mapped.Bits() {
			return fmt.Errorf("gateway table: %s cannot be mapped to %s", m.Real, m.Mapped)
		}
		addrs = append(addrs, m.Real.Addr(), m.Mapped.Addr())
	}
	return onlyIPv4(addrs, g.Remote)
}

func (g Gateway) mappings() []Mapping { return append(slices.Clone(g.Local), g.Internal) }

// table returns the gateway's table. Findings 1, 2, 4 and 5 in docs/design-notes.md explain each rule.
func (g Gateway) table() table {
	translateIn, translateOut, innerIn, innerOut := g.translation()
	return table{
		family: nftables.TableFamilyIPv4,
		sets:   []set{addrSet(setNodes, g.Nodes), prefixSet(setPods, g.Pods)},
		chains: []chain{
			errorCauses(rules{{"to the peer", concat(innerTo(g.Remote...), returnVerdict())}}),
			regular("errors-in", append(foreignErrors(), innerIn...)),
			regular("errors-out", innerOut),
			regular("to-nodes", g.toNodes()),
			regular("from-peer", append(rules{
				{"icmp", concat(proto(unix.IPPROTO_ICMP), jump("errors-in"))},
			}, translateIn...)),
			base("prerouting", nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw, rules{
				{"frames addressed to this link only", concat(iifGroup(g.OverlayGroup), not(forUs()), drop(hookPrerouting, "foreign-frame"))},
				{"from the peer", concat(iifGroup(g.TunnelGroup), jump("from-peer"))},
			}),
			denyByDefault(hookInput, base("input", nftables.ChainHookInput, *nftables.ChainPriorityFilter, g.input())),
			denyByDefault(hookForward, base("forward", nftables.ChainHookForward, *nftables.ChainPriorityFilter, append(
				g.limit(),
				rule{"tunnel to overlay", concat(iifGroup(g.TunnelGroup), oifGroup(g.OverlayGroup), accept())},
				rule{"overlay to tunnel", concat(iifGroup(g.OverlayGroup), oifGroup(g.TunnelGroup), accept())},
			))),
			base("to-peer", nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource, append(rules{
				{"not to the peer", concat(not(oifGroup(g.TunnelGroup)), accept())},
				{"icmp", concat(proto(unix.IPPROTO_ICMP), jump("errors-out"))},
			}, translateOut...)),
		},
	}
}

// limit drops the peer's packets beyond its rate. The hook is forward: packets to the gateway itself, such as probes,
// show whether the tunnel works.
func (g Gateway) limit() rules {
	if g.LimitRate == 0 {
		return nil
	}
	over := concat(iifGroup(g.TunnelGroup), bytesOver(g.LimitRate), drop(hookForward, "over-limit-rate"))
	return rules{{"no more than the peer's rate", over}}
}

// errorCauses drops ICMP errors, except those about packets that went to the peer, from which the rules return.
func errorCauses(toPeer rules) chain {
	toPeer.add("not to the peer", drop(hookPrerouting, "icmp-error"))
	return regular("error-causes", toPeer)
}

// foreignErrors drops ICMP errors about packets that did not go to the peer (see errorCauses). With such errors a peer
// could break connections that it has no part in, because connection tracking on nodes considers any error about a
// known connection as related. Fragments of errors are dropped too: nodes reassemble fragments and gateways do not, so
// a gateway cannot see which packet caused the error. Senders do not fragment errors, which have at most 576 bytes
// (RFC 1812, section 4.3.2.3).
func foreignErrors() rules {
	// Some kernels interpret the payload of a later fragment as a header.
	out := rules{{"later fragments are not errors", concat(not(notFragment()), returnVerdict())}}
	dropped := drop(hookPrerouting, "icmp-error")
	for _, t := range icmpLocal() {
		out.add(fmt.Sprintf("icmp %d: never forwarded", t), icmpType(t), dropped)
	}
	for _, t := range icmpErrors() {
		out.add(fmt.Sprintf("icmp error %d: not fragmented", t), icmpType(t), firstFragment(), dropped)
		out.add(fmt.Sprintf("icmp error %d: about packets to the peer only", t),
			icmpType(t), notFragment(), jump("error-causes"))
	}
	return out
}

// translation returns the rules for packets from the tunnel and to it, and for the packets inside ICMP errors. Every
// rule ends its chain, so that no other mapping translates an address again. The last rule for packets from the tunnel
// drops those that WireGuard's AllowedIPs let pass.
func (g Gateway) translation() (in, out, innerIn, innerOut rules) {
	for _, m := range g.mappings() {
		arrived := lo.Ternary(m == g.Internal, jump("to-nodes"), accept())
		if m.Real == m.Mapped {
			in.add(fmt.Sprintf("to %s, not translated", m.Real), match(address(destinationAt), m.Real), arrived)
			continue
		}
		for _, t := range icmpErrors() {
			innerIn.add(fmt.Sprintf("icmp error %d: cause was sent by %s", t, m.Real),
				icmpType(t), notFragment(), translateInner(sourceAt, m.Mapped, m.Real), returnVerdict())
			innerOut.add(fmt.Sprintf("icmp error %d: cause was sent to %s", t, m.Mapped),
				icmpType(t), notFragment(), translateInner(destinationAt, m.Real, m.Mapped), returnVerdict())
		}
		in.add(fmt.Sprintf("to %s, real %s", m.Mapped, m.Real), translateOuter(destinationAt, m.Mapped, m.Real), arrived)
		out.add(fmt.Sprintf("from %s, mapped %s", m.Real, m.Mapped), translateOuter(sourceAt, m.Real, m.Mapped), accept())
	}
	in.add("the peer reaches nothing else", drop(hookPrerouting, "not-reachable"))
	return in, out, innerIn, innerOut
}

// toNodes protects this cluster's nodes from the peer, in addition to their own tables. Those come too late where a
// network plugin takes packets from an interface before netfilter does, as for NodePorts. A gateway tracks no
// connections, so it recognizes replies by what they look like. A first fragment that is too short for the TCP flags
// does not get here: it also lacks the checksum, without which its address is not translated.
func (g Gateway) toNodes() rules {
	const sctpInit = 1
	return rules{
		{"the gateway's own, see input", concat(isAddress(destinationAt, g.Address), accept())},
		// Kernels differ in whether they interpret the payload as a header.
		{"later fragments, useless without the first", concat(not(notFragment()), accept())},
		{"no new connection: TCP", concat(tcpConnect(), drop(hookPrerouting, "new-connection"))},
		{"no new connection: UDP", concat(not(dportWithin(unix.IPPROTO_UDP, firstPort, lastPort)), drop(hookPrerouting, "new-connection"))},
		{"replies by SCTP", concat(not(sctpChunk(sctpInit)), accept())},
		{"no new connection: SCTP", concat(proto(unix.IPPROTO_SCTP), drop(hookPrerouting, "new-connection"))},
		{"no ping", concat(icmpType(echoRequest), drop(hookPrerouting, "new-connection"))},
		{"no timestamp request", concat(icmpType(timestampRequest), drop(hookPrerouting, "new-connection"))},
		{"replies", accept()},
	}
}

// input accepts packets to the gateway. It cannot rely on connection tracking, so it recognizes replies by what they
// look like. Overlay packets to a broadcast address are not accepted: they may come from a pod, with a node's source
// that the network plugin gave them.
func (g Gateway) input() rules {
	cookies, tunnel := g.tunnelInput()[0], g.tunnelInput()[1:]
	fromGateway := concat(iifGroup(g.TunnelGroup), isAddress(sourceAt, g.PeerGateway))
	out := slices.Concat(rules{
		cookies, // first the most frequent packets, but those that are counted before they are accepted
		tunnel[0],
		{"overlay, aggregated", concat(iifGroup(g.ReceiveGroup), udpDport(g.OverlayPort), forUs(), from(setNodes), accept())},
		tunnel[1],
		{"overlay", concat(iif(g.Underlay), udpDport(g.OverlayPort), forUs(), from(setNodes), accept())},
	}, g.agentInput(), rules{
		{"the peer's gateway answers", concat(fromGateway, udpSport(g.LivenessPort), accept())},
		{"liveness: the peer's gateway", concat(fromGateway, udpDport(g.LivenessPort), accept())},
		{"liveness: nodes", concat(iifGroup(g.OverlayGroup), match(address(sourceAt), g.Internal.Real), udpDport(g.LivenessPort), accept())},
		{"nodes try whether TCP passes", concat(iifGroup(g.OverlayGroup), match(address(sourceAt), g.Internal.Real), tcpDport(g.LivenessPort), tcpConnect(), accept())},
	})
	for _, port := range g.ExchangePorts {
		out.add(fmt.Sprintf("the peer's gateway connects: %d", port), fromGateway, tcpDport(port), accept())
		out.add(fmt.Sprintf("the peer's gateway replies: %d", port), fromGateway, tcpSport(port), not(tcpConnect()), accept())
	}
	// Beyond this rate, probes could fill the socket through which the requests above are answered.
	peerNodes := concat(iifGroup(g.TunnelGroup), match(address(sourceAt), g.PeerNodes), udpDport(g.LivenessPort))
	out.add("liveness: too many of the peer's nodes", peerNodes, packetsOver(peerProbes), drop(hookInput, "over-limit-rate"))
	out.add("liveness: the peer's nodes", peerNodes, accept())
	inside := rules{{"nodes", iifGroup(g.OverlayGroup)}, {"peer", iifGroup(g.TunnelGroup)}} // what rules have in common
	for _, o := range inside {
		out.add("no overlay in the overlay: "+o.comment, o.exprs, udpDport(g.OverlayPort), drop(hookInput, "nested"))
		out.add("no tunnel in the tunnel: "+o.comment, o.exprs, udpDport(g.TunnelPort), drop(hookInput, "nested"))
	}
	for _, o := range append(inside, rule{"underlay", iif(g.Underlay)}) {
		for _, t := range append([]byte{echoRequest, echoReply}, icmpErrors()...) {
			out.add(fmt.Sprintf("icmp %d: %s", t, o.comment), o.exprs, icmpType(t), accept())
		}
	}
	// Nodes have addresses in the pod ranges, and some network plugins masquerade packets from elsewhere with them.
	// Packets of peers do not arrive on this interface (see Node.isolate).
	out.add("metrics, for this cluster's pods",
		iif(g.Underlay), tcpDport(g.MetricsPort), from(setPods), not(from(setNodes)), accept())
	return out
}

// tunnelInput accepts the tunnel's packets, over IPv4 and IPv6.
func (g Gateway) tunnelInput() rules {
	return rules{
		{"replies with a cookie, which ask for another handshake", concat(cookieReply(g.TunnelPort), counter(countCookies))},
		{"tunnel, aggregated", concat(iifGroup(g.ReceiveGroup), udpDport(g.TunnelPort), accept())},
		{"tunnel", concat(iif(g.Underlay), udpDport(g.TunnelPort), accept())},
	}
}

// agentInput accepts what an agent needs from its pod's network. The agent queries name servers by TCP, because
// accepting UDP from their port would let anyone in who sends from it.
func (g Gateway) agentInput() rules {
	return rules{
		{"loopback", concat(iif("lo"), accept())},
		{"replies to the agent's TCP connections", concat(iif(g.Underlay), not(tcpConnect()), accept())},
		{"health checks of the kubelet", concat(iif(g.Underlay), tcpDport(g.HealthPort), accept())},
	}
}

// tableIPv6 blocks IPv6 in overlay and tunnel. On the pod's own interface, it accepts the tunnel, and the packets that
// the agent and IPv6 itself need.
func (g Gateway) tableIPv6() table {
	t := blockIPv6(g.OverlayGroup, g.TunnelGroup)
	input := slices.Concat(g.tunnelInput(), g.agentInput())
	for _, typ := range icmp6Input() {
		input.add(fmt.Sprintf("icmpv6 %d", typ), iif(g.Underlay), icmp6Type(typ), accept())
	}
	t.chains = append(t.chains, denyByDefault(hookInput, base("input", nftables.ChainHookInput, *nftables.ChainPriorityFilter, input)))
	return t
}

// Receive forwards incoming packets of tunnel and overlay into an interface whose other end aggregates them (see
// pkg/tunnel).
type Receive struct {
	// Underlay is the interface on which they arrive, and Entry the one that they are forwarded into. If one of them is
	// missing, packets stay where they are.
	Underlay, Entry string
	// Ports are UDP ports.
	Ports []uint16
}

// table has no chain if an interface is missing. Its comments contain the indexes of interfaces. The kernel identifies
// an interface by its index, so a rule for an interface that was re-created is not the wanted rule.
func (r Receive) table() table {
	underlay, entry := index(r.Underlay), index(r.Entry)
	t := table{family: nftables.TableFamilyNetdev, forward: entry}
	if underlay == 0 || entry == 0 {
		return t
	}
	var forwarding rules
	for _, port := range r.Ports {
		comment := fmt.Sprintf("port %d: from %s (%d) to %s (%d)", port, r.Underlay, underlay, r.Entry, entry)
		forwarding.add(comment, udpDport(port))
	}
	receive := base("receive", nftables.ChainHookIngress, *nftables.ChainPriorityFilter, forwarding)
	receive.Device = r.Underlay
	t.chains = []chain{receive}
	return t
}

// index returns the index of an interface, 0 if there is no such interface.
func index(name string) uint32 {
	i, _ := net.InterfaceByName(name)
	return uint32(lo.FromPtr(i).Index)
}
