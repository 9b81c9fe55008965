package nat

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

func (g Gateway) validate() error {
	if g.Underlay == "" || g.TunnelGroup == 0 || g.OverlayGroup == 0 || g.ReceiveGroup == 0 {
		return errors.New("gateway table: an interface is missing")
	}
	if g.OverlayPort == 0 || g.TunnelPort == 0 || g.ProbePort == 0 || g.HealthPort == 0 || g.ExchangePort == 0 {
		return errors.New("gateway table: a port is missing")
	}
	for _, m := range g.Local {
		if !m.Real.Addr().Is4() || !m.Mapped.Addr().Is4() || m.Real.Bits() != m.Mapped.Bits() {
			return fmt.Errorf("gateway table: %s cannot be mapped to %s", m.Real, m.Mapped)
		}
	}
	if !g.PeerGateway.Is4() {
		return fmt.Errorf("gateway table: the peer's gateway has the address %s", g.PeerGateway)
	}
	if a, ok := notIPv4(g.Nodes, g.Remote); ok {
		return fmt.Errorf("gateway table: %s is not an IPv4 address", a)
	}
	return nil
}

// table computes the gateway's table; see the findings 1, 2, 4 and 5 in
// docs/design-notes.md for why each rule is there.
func (g Gateway) table() (table, error) {
	if err := g.validate(); err != nil {
		return table{}, err
	}
	remote, err := prefixSet(setRemote, g.Remote)
	if err != nil {
		return table{}, err
	}
	translateIn, translateOut, innerIn, innerOut := g.translation()
	errorsIn := chain{name: "errors-in", rules: append(g.foreignErrors(), innerIn...)}
	errorsOut := chain{name: "errors-out", rules: innerOut}
	fromPeer := chain{name: "from-peer", rules: append([]rule{
		{"icmp", concat(proto(unix.IPPROTO_ICMP), jump(errorsIn))},
	}, translateIn...)}
	return table{
		family: nftables.TableFamilyIPv4,
		sets:   []set{remote, addrSet(setNodes, g.Nodes)},
		chains: []chain{
			errorsIn, errorsOut, fromPeer,
			{
				name: "prerouting", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting,
				priority: priorityRaw, policy: nftables.ChainPolicyAccept, rules: []rule{
					{"frames for this very link only", concat(iifGroup(g.OverlayGroup), notForUs(), drop())},
					{"from the peer", concat(iifGroup(g.TunnelGroup), jump(fromPeer))},
				},
			},
			{
				name: "input", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookInput,
				priority: priorityFilter, policy: nftables.ChainPolicyDrop, rules: g.input(),
			},
			{
				name: "forward", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookForward,
				priority: priorityFilter, policy: nftables.ChainPolicyDrop, rules: g.forward(),
			},
			{
				name: "to-peer", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPostrouting,
				priority: priorityNATSrc, policy: nftables.ChainPolicyAccept, rules: append([]rule{
					{"only what goes to the peer is meant here", concat(not(oifGroup(g.TunnelGroup)), accept())},
					{"icmp", concat(proto(unix.IPPROTO_ICMP), jump(errorsOut))},
				}, translateOut...),
			},
		},
	}, nil
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
			concat(icmpType(t), notFragment(), innerInSet(destinationAt, setRemote, true), drop()),
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
				fmt.Sprintf("to %s, as it is", m.Real), concat(match(expr.PayloadBaseNetworkHeader, destinationAt, m.Real), accept()),
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
			concat(translate(destinationAt, m.Mapped, m.Real), accept()),
		})
		out = append(out, rule{
			fmt.Sprintf("from %s, mapped %s", m.Real, m.Mapped),
			concat(translate(sourceAt, m.Real, m.Mapped), accept()),
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
		{"overlay, aggregated", concat(iifGroup(g.ReceiveGroup), udpDport(g.OverlayPort), forUs(), inSet(sourceAt, setNodes, false), accept())},
		{"tunnel", concat(iif(g.Underlay), udpDport(g.TunnelPort), accept())},
		{"overlay", concat(iif(g.Underlay), udpDport(g.OverlayPort), forUs(), inSet(sourceAt, setNodes, false), accept())},
		{"overlay packets come from nodes only", concat(iif(g.Underlay), udpDport(g.OverlayPort), drop())},
		{"loopback", concat(iif("lo"), accept())},
		{"answers to the agent's TCP connections", concat(
			iif(g.Underlay), tcpFlags(tcpSYN|tcpACK, tcpSYN, expr.CmpOpNeq), accept())},
		{"probes come by overlay and tunnel only", concat(iif(g.Underlay), udpDport(g.ProbePort), drop())},
		{"answers of DNS", concat(iif(g.Underlay), udpSport(portDNS), accept())},
		{"health checks of the kubelet", concat(iif(g.Underlay), tcpDport(g.HealthPort), accept())},
	}
	fromGateway := concat(iifGroup(g.TunnelGroup), match(expr.PayloadBaseNetworkHeader, sourceAt, netip.PrefixFrom(g.PeerGateway, g.PeerGateway.BitLen())))
	rules = append(
		rules,
		rule{"the peer's gateway calls", concat(fromGateway, tcpDport(g.ExchangePort), accept())},
		rule{"the peer's gateway answers", concat(fromGateway, tcpSport(g.ExchangePort), tcpFlags(tcpSYN|tcpACK, tcpSYN, expr.CmpOpNeq), accept())},
	)
	inside := []struct {
		name    string
		matches []expr.Any
	}{
		{"nodes", iifGroup(g.OverlayGroup)},
		{"peer", iifGroup(g.TunnelGroup)},
	}
	for _, from := range inside {
		rules = append(
			rules,
			rule{"no overlay in the overlay: " + from.name, concat(from.matches, udpDport(g.OverlayPort), drop())},
			rule{"no tunnel in the tunnel: " + from.name, concat(from.matches, udpDport(g.TunnelPort), drop())},
			rule{"probes: " + from.name, concat(from.matches, udpDport(g.ProbePort), accept())},
			rule{"answers to probes: " + from.name, concat(from.matches, udpSport(g.ProbePort), accept())},
		)
	}
	inside = append(inside, struct {
		name    string
		matches []expr.Any
	}{"underlay", iif(g.Underlay)})
	for _, from := range inside {
		for _, t := range append([]byte{echoRequest, echoReply}, icmpErrors()...) {
			rules = append(rules, rule{
				fmt.Sprintf("icmp %d: %s", t, from.name), concat(from.matches, icmpType(t), accept()),
			})
		}
	}
	return rules
}

func (g Gateway) forward() []rule {
	return []rule{
		{"tunnel to overlay", concat(iifGroup(g.TunnelGroup), oifGroup(g.OverlayGroup), accept())},
		{"overlay to tunnel", concat(iifGroup(g.OverlayGroup), oifGroup(g.TunnelGroup), accept())},
	}
}
