package nat

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Mapping translates a prefix 1:1 into another one of the same length.
type Mapping struct {
	// Real is the prefix inside this cluster, Mapped the one by which the peer knows
	// it. If both are equal nothing is translated.
	Real, Mapped netip.Prefix
}

// Gateway describes the table of a gateway: it translates this cluster's addresses
// without state, and isolates the cluster from the peer.
type Gateway struct {
	// Underlay is the name of the pod's own interface.
	Underlay string
	// TunnelGroup is the interface group of WireGuard's interface, and OverlayGroup that
	// of the overlay's. ReceiveGroup is that of the interface from which packets of both
	// come after they were aggregated (see Receive).
	TunnelGroup, OverlayGroup, ReceiveGroup uint32
	// Local are this cluster's ranges that the peer may reach: pods and exposed hosts.
	Local []Mapping
	// Internal is the range of overlay addresses. Nodes get what looks like answers, and
	// nothing else. Address is the gateway's own.
	Internal Mapping
	Address  netip.Addr
	// Remote are the ranges by which this cluster knows the peer. The peer may send ICMP
	// errors about packets that went there, and about no others.
	Remote []netip.Prefix
	// Nodes are the outer source addresses from which overlay packets come.
	Nodes []netip.Addr
	// OverlayPort and TunnelPort are UDP ports on Underlay. ProbePort is one that nodes
	// may reach through the overlay, and the peer through the tunnel. LivenessPort is the same for
	// nodes and the peer's gateway.
	OverlayPort, TunnelPort, ProbePort, LivenessPort uint16
	// HealthPort is a TCP port on Underlay for the kubelet. From where it calls is the
	// network plugin's choice, so whoever reaches the pod by Underlay reaches that port.
	HealthPort uint16
	// MetricsPort is a TCP port on Underlay for Pods but Nodes: this cluster's own pods, by their real
	// addresses. Nobody else gets there.
	MetricsPort uint16
	Pods        []netip.Prefix
	// PeerGateway is the address by which this cluster knows the peer's gateway. Through
	// the tunnel only that one reaches the TCP port ExchangePort, and answers from it.
	PeerGateway  netip.Addr
	ExchangePort uint16
	// LimitRate is how many bytes of IP packets per second are forwarded from the peer, 0 for
	// all. Probes and the channel between the gateways are not among them.
	LimitRate uint64
}

func (g Gateway) validate() error {
	addrs := slices.Concat(g.Nodes, []netip.Addr{g.PeerGateway, g.Address})
	for _, m := range g.mappings() {
		if m.Real.Bits() != m.Mapped.Bits() {
			return fmt.Errorf("gateway table: %s cannot be mapped to %s", m.Real, m.Mapped)
		}
		addrs = append(addrs, m.Real.Addr(), m.Mapped.Addr())
	}
	return onlyIPv4(addrs, g.Remote)
}

func (g Gateway) mappings() []Mapping { return append(slices.Clone(g.Local), g.Internal) }

// table computes the gateway's table; see the findings 1, 2, 4 and 5 in
// docs/design-notes.md for why each rule is there.
func (g Gateway) table() table {
	translateIn, translateOut, innerIn, innerOut := g.translation()
	return table{
		family: nftables.TableFamilyIPv4,
		sets:   []set{prefixSet(setRemote, g.Remote), addrSet(setNodes, g.Nodes), prefixSet(setPods, g.Pods)},
		chains: []chain{
			regular("errors-in", append(foreignErrors(innerTo(setRemote)), innerIn...)),
			regular("errors-out", innerOut),
			regular("to-nodes", g.toNodes()),
			regular("from-peer", append(rules{
				{"icmp", concat(proto(unix.IPPROTO_ICMP), jump("errors-in"))},
			}, translateIn...)),
			base("prerouting", nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw, rules{
				{"frames for this very link only", concat(iifGroup(g.OverlayGroup), not(forUs()), drop(hookPrerouting, "foreign-frame"))},
				{"from the peer", concat(iifGroup(g.TunnelGroup), jump("from-peer"))},
			}),
			closed(hookInput, base("input", nftables.ChainHookInput, *nftables.ChainPriorityFilter, g.input())),
			closed(hookForward, base("forward", nftables.ChainHookForward, *nftables.ChainPriorityFilter, append(
				g.limit(),
				rule{"tunnel to overlay", concat(iifGroup(g.TunnelGroup), oifGroup(g.OverlayGroup), accept())},
				rule{"overlay to tunnel", concat(iifGroup(g.OverlayGroup), oifGroup(g.TunnelGroup), accept())},
			))),
			base("to-peer", nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource, append(rules{
				{"only what goes to the peer is meant here", concat(not(oifGroup(g.TunnelGroup)), accept())},
				{"icmp", concat(proto(unix.IPPROTO_ICMP), jump("errors-out"))},
			}, translateOut...)),
		},
	}
}

// limit drops what the peer sends beyond its rate. The hook is forward: what the gateway itself
// gets, such as probes, says whether the tunnel works.
func (g Gateway) limit() rules {
	if g.LimitRate == 0 {
		return nil
	}
	over := concat(iifGroup(g.TunnelGroup), bytesOver(g.LimitRate), drop(hookForward, "over-limit-rate"))
	return rules{{"no more than the peer's rate", over}}
}

// foreignErrors drops ICMP errors about packets that did not go to the peer: toPeer is what
// matches those. With them a peer could break connections that it has no part in, because
// connection tracking on nodes takes any error about a known connection for related. Errors
// in fragments are dropped too: nodes reassemble fragments and gateways do not, so a gateway
// cannot see what they are about. Nobody sends such: errors have at most 576 bytes (RFC 1812,
// section 4.3.2.3).
func foreignErrors(toPeer exprs) rules {
	// Some kernels take what is in a later fragment for a header.
	out := rules{{"later fragments are no errors", concat(not(notFragment()), returnVerdict())}}
	dropped := drop(hookPrerouting, "icmp-error")
	for _, t := range icmpLocal() {
		out.add(fmt.Sprintf("icmp %d: nobody passes it on", t), icmpType(t), dropped)
	}
	for _, t := range icmpErrors() {
		out.add(fmt.Sprintf("icmp error %d: in one piece only", t), icmpType(t), firstFragment(), dropped)
		out.add(fmt.Sprintf("icmp error %d: about packets to the peer only", t),
			icmpType(t), notFragment(), not(toPeer), dropped)
	}
	return out
}

// translation returns the rules for packets from the tunnel and to it, and for the packets
// inside ICMP errors. Every rule ends its chain, or another mapping could translate an
// address once more. The last rule for packets from the tunnel drops what WireGuard's
// AllowedIPs leave open.
func (g Gateway) translation() (in, out, innerIn, innerOut rules) {
	for _, m := range g.mappings() {
		arrived := accept()
		if m == g.Internal {
			arrived = jump("to-nodes")
		}
		if m.Real == m.Mapped {
			in.add(fmt.Sprintf("to %s, as it is", m.Real), match(address(destinationAt), m.Real), arrived)
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

// toNodes is a second barrier between the peer and this cluster's nodes, behind which their
// own tables are the first. Those come too late where a network plugin takes packets from an
// interface before netfilter does, as for NodePorts. A gateway tracks no connections, so it goes
// by what answers look like. A first fragment that is too short for TCP's flags does not get
// here: it lacks the checksum too, without which its address is not translated.
func (g Gateway) toNodes() rules {
	const sctpInit = 1
	return rules{
		{"the gateway's own, see input", concat(isAddress(destinationAt, g.Address), accept())},
		// Kernels differ in whether they take what is in them for a header.
		{"later fragments, of no use without the first", concat(not(notFragment()), accept())},
		{"no new connection: TCP", concat(tcpCall(), drop(hookPrerouting, "new-connection"))},
		{"no new connection: UDP", concat(udpDportBeyond(firstPort, lastPort), drop(hookPrerouting, "new-connection"))},
		{"answers by SCTP", concat(not(sctpChunk(sctpInit)), accept())},
		{"no new connection: SCTP", concat(proto(unix.IPPROTO_SCTP), drop(hookPrerouting, "new-connection"))},
		{"no ping", concat(icmpType(echoRequest), drop(hookPrerouting, "new-connection"))},
		{"no request for the time", concat(icmpType(timestampRequest), drop(hookPrerouting, "new-connection"))},
		{"answers", accept()},
	}
}

// input cannot rely on connection tracking, so it recognises answers by what they look
// like. Overlay packets to a broadcast address are not ours: they may come from a pod, with
// a node's source that the network plugin gave them.
func (g Gateway) input() rules {
	tunnel := g.tunnelInput()
	isGateway := isAddress(sourceAt, g.PeerGateway)
	fromGateway := concat(iifGroup(g.TunnelGroup), isGateway)
	out := slices.Concat(rules{ // first what is nearly everything
		tunnel[0],
		{"overlay, aggregated", concat(iifGroup(g.ReceiveGroup), udpDport(g.OverlayPort), forUs(), from(setNodes), accept())},
		tunnel[1],
		{"overlay", concat(iif(g.Underlay), udpDport(g.OverlayPort), forUs(), from(setNodes), accept())},
	}, g.agentInput(), rules{
		{"no node is the peer's gateway", concat(iifGroup(g.OverlayGroup), isGateway, drop(hookInput, reasonForged))},
		{"the peer's gateway calls", concat(fromGateway, tcpDport(g.ExchangePort), accept())},
		{"the peer's gateway answers", concat(fromGateway, tcpSport(g.ExchangePort), not(tcpCall()), accept())},
	})
	type origin struct {
		name    string
		matches exprs
	}
	inside := []origin{{"nodes", iifGroup(g.OverlayGroup)}, {"peer", iifGroup(g.TunnelGroup)}}
	for _, o := range []origin{inside[0], {"the peer's gateway", fromGateway}} {
		out.add("whether the way works: "+o.name, o.matches, udpDport(g.LivenessPort), accept())
		out.add("that the way works: "+o.name, o.matches, udpSport(g.LivenessPort), accept())
	}
	for _, o := range inside {
		out.add("no overlay in the overlay: "+o.name, o.matches, udpDport(g.OverlayPort), drop(hookInput, "nested"))
		out.add("no tunnel in the tunnel: "+o.name, o.matches, udpDport(g.TunnelPort), drop(hookInput, "nested"))
		out.add("probes: "+o.name, o.matches, udpDport(g.ProbePort), accept())
		out.add("answers to probes: "+o.name, o.matches, udpSport(g.ProbePort), accept())
	}
	for _, o := range append(inside, origin{"underlay", iif(g.Underlay)}) {
		for _, t := range append([]byte{echoRequest, echoReply}, icmpErrors()...) {
			out.add(fmt.Sprintf("icmp %d: %s", t, o.name), o.matches, icmpType(t), accept())
		}
	}
	// Nodes have addresses among those of pods, and some network plugins give them to whatever comes from
	// elsewhere. Peers do not come by this interface (see Node.isolate).
	out.add("metrics, for this cluster's pods",
		iif(g.Underlay), tcpDport(g.MetricsPort), from(setPods), not(from(setNodes)), accept())
	return out
}

// tunnelInput is about the tunnel's packets, over IPv4 and IPv6.
func (g Gateway) tunnelInput() rules {
	return rules{
		{"tunnel, aggregated", concat(iifGroup(g.ReceiveGroup), udpDport(g.TunnelPort), accept())},
		{"tunnel", concat(iif(g.Underlay), udpDport(g.TunnelPort), accept())},
	}
}

// agentInput is what an agent needs of its pod's network. It asks name servers by TCP, so
// that nobody who sends from their port gets in.
func (g Gateway) agentInput() rules {
	return rules{
		{"loopback", concat(iif("lo"), accept())},
		{"answers to the agent's TCP connections", concat(iif(g.Underlay), not(tcpCall()), accept())},
		{"health checks of the kubelet", concat(iif(g.Underlay), tcpDport(g.HealthPort), accept())},
	}
}

// tableIPv6 blocks IPv6 in overlay and tunnel. By the pod's own interface the tunnel may
// come, and what the agent and IPv6 itself need.
func (g Gateway) tableIPv6() table {
	t := blockIPv6(g.OverlayGroup, g.TunnelGroup)
	input := slices.Concat(g.tunnelInput(), g.agentInput())
	for _, typ := range icmp6Input() {
		input.add(fmt.Sprintf("icmpv6 %d", typ), iif(g.Underlay), icmp6Type(typ), accept())
	}
	t.chains = append(t.chains, closed(hookInput, base("input", nftables.ChainHookInput, *nftables.ChainPriorityFilter, input)))
	return t
}

// Receive sends incoming packets of tunnel and overlay into an interface whose other end
// aggregates them (see pkg/tunnel).
type Receive struct {
	// Underlay is the interface by which they come, and Entry the one that they are sent
	// into. If one of them is missing, packets stay where they are.
	Underlay, Entry string
	// Ports are UDP ports.
	Ports []uint16
}

// ApplyReceive gives the calling thread's network namespace the wanted table of the family
// netdev, and says whether it changed anything.
func ApplyReceive(ctx context.Context, r Receive) (changed bool, err error) {
	return apply(ctx, r.table())
}

// table has no chain if an interface is missing. It names interfaces with their numbers in
// the comments. The kernel knows an interface by its number, so a rule for one that was
// made again is not the wanted rule.
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

// index is 0 where there is no such interface.
func index(name string) uint32 {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0
	}
	return uint32(i.Index)
}
