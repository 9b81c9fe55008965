package nat

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
)

func (g Gateway) validate() error {
	addrs := slices.Concat(g.Nodes, []netip.Addr{g.PeerGateway})
	for _, m := range g.Local {
		if m.Real.Bits() != m.Mapped.Bits() {
			return fmt.Errorf("gateway table: %s cannot be mapped to %s", m.Real, m.Mapped)
		}
		addrs = append(addrs, m.Real.Addr(), m.Mapped.Addr())
	}
	return onlyIPv4(addrs, g.Remote)
}

// table computes the gateway's table; see the findings 1, 2, 4 and 5 in
// docs/design-notes.md for why each rule is there.
func (g Gateway) table() table {
	translateIn, translateOut, innerIn, innerOut := g.translation()
	return table{
		family: nftables.TableFamilyIPv4,
		sets:   []set{prefixSet(setRemote, g.Remote), addrSet(setNodes, g.Nodes)},
		chains: []chain{
			regular("errors-in", append(g.foreignErrors(), innerIn...)),
			regular("errors-out", innerOut),
			regular("from-peer", append([]rule{
				{"icmp", concat(proto(unix.IPPROTO_ICMP), jump("errors-in"))},
			}, translateIn...)),
			base("prerouting", nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw, []rule{
				{"frames for this very link only", concat(iifGroup(g.OverlayGroup), not(forUs()), drop())},
				{"from the peer", concat(iifGroup(g.TunnelGroup), jump("from-peer"))},
			}),
			closed(base("input", nftables.ChainHookInput, *nftables.ChainPriorityFilter, g.input())),
			closed(base("forward", nftables.ChainHookForward, *nftables.ChainPriorityFilter, []rule{
				{"tunnel to overlay", concat(iifGroup(g.TunnelGroup), oifGroup(g.OverlayGroup), accept())},
				{"overlay to tunnel", concat(iifGroup(g.OverlayGroup), oifGroup(g.TunnelGroup), accept())},
			})),
			base("to-peer", nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource, append([]rule{
				{"only what goes to the peer is meant here", concat(not(oifGroup(g.TunnelGroup)), accept())},
				{"icmp", concat(proto(unix.IPPROTO_ICMP), jump("errors-out"))},
			}, translateOut...)),
		},
	}
}

// foreignErrors drops ICMP errors about packets that did not go to the peer. With them a
// peer could break connections that it has no part in, because connection tracking on
// nodes takes any error about a known connection for related. Errors in fragments are
// dropped too: nodes reassemble fragments and gateways do not, so a gateway cannot see what
// they are about. Nobody sends such: errors have at most 576 bytes (RFC 1812, section
// 4.3.2.3).
func (g Gateway) foreignErrors() []rule {
	var rules []rule
	for _, t := range icmpLocal() {
		rules = append(rules, rule{fmt.Sprintf("icmp %d: nobody passes it on", t), concat(icmpType(t), drop())})
	}
	for _, t := range icmpErrors() {
		rules = append(rules, rule{
			fmt.Sprintf("icmp error %d: in one piece only", t), concat(icmpType(t), firstFragment(), drop()),
		}, rule{
			fmt.Sprintf("icmp error %d: about packets to the peer only", t),
			concat(icmpType(t), notFragment(), not(innerInSet(destinationAt, setRemote)), drop()),
		})
	}
	return rules
}

// translation returns the rules for packets from the tunnel and to it, and for the packets
// inside ICMP errors. Every rule ends its chain, or another mapping could translate an
// address once more. The last rule for packets from the tunnel drops what WireGuard's
// AllowedIPs leave open.
func (g Gateway) translation() (in, out, innerIn, innerOut []rule) {
	for _, m := range g.Local {
		if m.Real == m.Mapped {
			in = append(in, rule{
				fmt.Sprintf("to %s, as it is", m.Real), concat(match(nft.IPHeader(destinationAt, addressLength), m.Real), accept()),
			})
			continue
		}
		for _, t := range icmpErrors() {
			innerIn = append(innerIn, rule{
				fmt.Sprintf("icmp error %d: cause was sent by %s", t, m.Real),
				concat(icmpType(t), notFragment(), translateInner(sourceAt, m.Mapped, m.Real), returnVerdict()),
			})
			innerOut = append(innerOut, rule{
				fmt.Sprintf("icmp error %d: cause was sent to %s", t, m.Mapped),
				concat(icmpType(t), notFragment(), translateInner(destinationAt, m.Real, m.Mapped), returnVerdict()),
			})
		}
		in = append(in, rule{
			fmt.Sprintf("to %s, real %s", m.Mapped, m.Real),
			concat(translateOuter(destinationAt, m.Mapped, m.Real), accept()),
		})
		out = append(out, rule{
			fmt.Sprintf("from %s, mapped %s", m.Real, m.Mapped),
			concat(translateOuter(sourceAt, m.Real, m.Mapped), accept()),
		})
	}
	return append(in, rule{"the peer reaches nothing else", drop()}), out, innerIn, innerOut
}

// input cannot rely on connection tracking, so it recognises answers by what they look
// like. Overlay packets to a broadcast address are not ours: they may come from a pod, with
// a node's source that the network plugin gave them.
func (g Gateway) input() []rule {
	rules := []rule{ // first what is nearly everything
		{"tunnel, aggregated", concat(iifGroup(g.ReceiveGroup), udpDport(g.TunnelPort), accept())},
		{"overlay, aggregated", concat(iifGroup(g.ReceiveGroup), udpDport(g.OverlayPort), forUs(), inSet(sourceAt, setNodes), accept())},
		{"tunnel", concat(iif(g.Underlay), udpDport(g.TunnelPort), accept())},
		{"overlay", concat(iif(g.Underlay), udpDport(g.OverlayPort), forUs(), inSet(sourceAt, setNodes), accept())},
		{"overlay packets come from nodes only", concat(iif(g.Underlay), udpDport(g.OverlayPort), drop())},
		{"loopback", concat(iif("lo"), accept())},
		{"answers to the agent's TCP connections", concat(
			iif(g.Underlay), not(tcpFlags(tcpSYN|tcpACK, tcpSYN)), accept())},
		{"probes come by overlay and tunnel only", concat(iif(g.Underlay), udpDport(g.ProbePort), drop())},
		{"answers of DNS", concat(iif(g.Underlay), udpSport(portDNS), accept())},
		{"health checks of the kubelet", concat(iif(g.Underlay), tcpDport(g.HealthPort), accept())},
	}
	fromGateway := concat(iifGroup(g.TunnelGroup), match(nft.IPHeader(sourceAt, addressLength), netip.PrefixFrom(g.PeerGateway, g.PeerGateway.BitLen())))
	rules = append(
		rules,
		rule{"the peer's gateway calls", concat(fromGateway, tcpDport(g.ExchangePort), accept())},
		rule{"the peer's gateway answers", concat(fromGateway, tcpSport(g.ExchangePort), not(tcpFlags(tcpSYN|tcpACK, tcpSYN)), accept())},
	)
	type origin struct {
		name    string
		matches []expr.Any
	}
	inside := []origin{{"nodes", iifGroup(g.OverlayGroup)}, {"peer", iifGroup(g.TunnelGroup)}}
	for _, from := range inside {
		rules = append(
			rules,
			rule{"no overlay in the overlay: " + from.name, concat(from.matches, udpDport(g.OverlayPort), drop())},
			rule{"no tunnel in the tunnel: " + from.name, concat(from.matches, udpDport(g.TunnelPort), drop())},
			rule{"probes: " + from.name, concat(from.matches, udpDport(g.ProbePort), accept())},
			rule{"answers to probes: " + from.name, concat(from.matches, udpSport(g.ProbePort), accept())},
		)
	}
	for _, from := range append(inside, origin{"underlay", iif(g.Underlay)}) {
		for _, t := range append([]byte{echoRequest, echoReply}, icmpErrors()...) {
			rules = append(rules, rule{
				fmt.Sprintf("icmp %d: %s", t, from.name), concat(from.matches, icmpType(t), accept()),
			})
		}
	}
	return rules
}
