package nat

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// family is that of all addresses in the gateway's table.
func (g Gateway) family() family {
	if len(g.Local) == 0 {
		return ipv4()
	}
	return familyOf(g.Local[0].Real.Addr())
}

func (g Gateway) validate(f family) error {
	if g.Tunnel == "" || g.Underlay == "" || g.OverlayPrefix == "" {
		return errors.New("gateway table: an interface name is missing")
	}
	if g.OverlayPort == 0 || g.TunnelPort == 0 || g.ProbePort == 0 {
		return errors.New("gateway table: a port is missing")
	}
	for _, m := range g.Local {
		if !f.is(m.Real.Addr()) || !f.is(m.Mapped.Addr()) || m.Real.Bits() != m.Mapped.Bits() {
			return fmt.Errorf("gateway table: %s cannot be mapped to %s", m.Real, m.Mapped)
		}
	}
	if a, ok := f.other(g.Nodes, g.Remote); ok {
		return fmt.Errorf("gateway table: %s is not of the address family of %s", a, g.Local[0].Real)
	}
	return nil
}

// table computes the gateway's table; see the findings 1, 2, 4 and 5 in
// docs/architecture.md for why each rule is there.
func (g Gateway) table(f family) (table, error) {
	if err := g.validate(f); err != nil {
		return table{}, err
	}
	remote, err := prefixSet(setRemote, g.Remote)
	if err != nil {
		return table{}, err
	}
	inner, translateIn, innerOut, translateOut := g.translation(f)
	return table{
		family: f,
		sets:   []set{remote, addrSet(setNodes, g.Nodes)},
		chains: []chain{
			{
				name: "guard", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting,
				priority: priorityEarly, policy: nftables.ChainPolicyAccept, rules: append(g.guard(f), inner...),
			},
			{
				name: "translate-in", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting,
				priority: priorityRaw, policy: nftables.ChainPolicyAccept, rules: translateIn,
			},
			{
				name: "input", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookInput,
				priority: priorityFilter, policy: nftables.ChainPolicyDrop, rules: g.input(f),
			},
			{
				name: "forward", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookForward,
				priority: priorityFilter, policy: nftables.ChainPolicyDrop, rules: g.forward(),
			},
			{
				name: "translate-out-errors", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPostrouting,
				priority: priorityBefore, policy: nftables.ChainPolicyAccept, rules: innerOut,
			},
			{
				name: "translate-out", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPostrouting,
				priority: priorityNATSrc, policy: nftables.ChainPolicyAccept, rules: translateOut,
			},
		},
	}, nil
}

// guard drops what is forged. What AllowedIPs leave open besides is closed by the
// last rule of the translation.
func (g Gateway) guard(f family) []rule {
	rules := []rule{
		{"frames for this very link only", join(iifPrefix(g.OverlayPrefix), notForUs(), drop())},
		{"overlay packets come from nodes only", join(
			iif(g.Underlay), udpDport(g.OverlayPort), f.inSet(f.saddr, setNodes, true), drop())},
		onlyICMP(f),
	}
	// Otherwise a peer could break connections that it has no part in: connection
	// tracking on nodes takes any error about a known connection for related.
	for _, t := range f.icmpErrors {
		rules = append(rules, rule{
			fmt.Sprintf("icmp error %d: about packets to the peer only", t),
			join(iif(g.Tunnel), f.icmpType(t), f.notFragment(), f.innerInSet(f.daddr, setRemote, true), drop()),
		})
	}
	return rules
}

func onlyICMP(f family) rule {
	return rule{"only ICMP is meant by what follows", join(not(proto(f.icmp)), accept())}
}

// translation returns the rules for packets from the tunnel and to it, and for
// what ICMP errors carry. Every rule ends its chain, or a translated address
// could be translated again by another mapping.
func (g Gateway) translation(f family) (innerIn, in, innerOut, out []rule) {
	innerOut = []rule{onlyICMP(f)}
	in = []rule{{"only what comes from the peer is meant here", join(not(iif(g.Tunnel)), accept())}}
	out = []rule{{"only what goes to the peer is meant here", join(not(oif(g.Tunnel)), accept())}}
	for _, m := range g.Local {
		if m.Real == m.Mapped {
			in = append(in, rule{
				fmt.Sprintf("to %s, as it is", m.Real), join(f.match(expr.PayloadBaseNetworkHeader, f.daddr, m.Real), accept()),
			})
			continue
		}
		for _, t := range f.icmpErrors {
			innerIn = append(innerIn, rule{
				fmt.Sprintf("icmp error %d: cause was sent by %s", t, m.Real),
				join(iif(g.Tunnel), f.icmpType(t), f.notFragment(), f.translateInner(f.saddr, m.Mapped, m.Real), accept()),
			})
			innerOut = append(innerOut, rule{
				fmt.Sprintf("icmp error %d: cause was sent to %s", t, m.Mapped),
				join(oif(g.Tunnel), f.icmpType(t), f.notFragment(), f.translateInner(f.daddr, m.Real, m.Mapped), accept()),
			})
		}
		in = append(in, rule{
			fmt.Sprintf("to %s, real %s", m.Mapped, m.Real),
			join(f.translate(f.daddr, m.Mapped, m.Real), accept()),
		})
		out = append(out, rule{
			fmt.Sprintf("from %s, mapped %s", m.Real, m.Mapped),
			join(f.translate(f.saddr, m.Real, m.Mapped), accept()),
		})
	}
	in = append(in, rule{"the peer reaches nothing else", drop()})
	return innerIn, in, innerOut, out
}

// input has no connection tracking to rely on: what the agent asks for is
// recognised by what answers look like.
func (g Gateway) input(f family) []rule {
	var rules []rule
	if g.Receive != "" { // first, as this is nearly everything
		rules = []rule{
			{"tunnel, aggregated", join(iif(g.Receive), udpDport(g.TunnelPort), accept())},
			{"overlay, aggregated", join(iif(g.Receive), udpDport(g.OverlayPort), f.inSet(f.saddr, setNodes, false), accept())},
		}
	}
	rules = append(
		rules,
		rule{"tunnel", join(iif(g.Underlay), udpDport(g.TunnelPort), accept())},
		rule{"overlay", join(iif(g.Underlay), udpDport(g.OverlayPort), f.inSet(f.saddr, setNodes, false), accept())},
		rule{"loopback", join(iif("lo"), accept())},
		rule{"answers to the agent's TCP connections", join(
			iif(g.Underlay), tcpFlags(tcpSYN|tcpACK, tcpSYN, expr.CmpOpNeq), accept())},
		rule{"probes come by overlay and tunnel only", join(iif(g.Underlay), udpDport(g.ProbePort), drop())},
		rule{"answers of DNS", join(iif(g.Underlay), udpSport(portDNS), accept())},
	)
	inside := []struct {
		name    string
		matches []expr.Any
	}{
		{"nodes", iifPrefix(g.OverlayPrefix)},
		{"peer", iif(g.Tunnel)},
	}
	for _, from := range inside {
		rules = append(
			rules,
			rule{"no overlay in the overlay: " + from.name, join(from.matches, udpDport(g.OverlayPort), drop())},
			rule{"no tunnel in the tunnel: " + from.name, join(from.matches, udpDport(g.TunnelPort), drop())},
			rule{"probes: " + from.name, join(from.matches, udpDport(g.ProbePort), accept())},
			rule{"answers to probes: " + from.name, join(from.matches, udpSport(g.ProbePort), accept())},
		)
	}
	inside = append(inside, struct {
		name    string
		matches []expr.Any
	}{"underlay", iif(g.Underlay)})
	for _, from := range inside {
		for _, t := range append([]byte{f.echoRequest, f.echoReply}, f.icmpErrors...) {
			rules = append(rules, rule{
				fmt.Sprintf("icmp %d: %s", t, from.name), join(from.matches, f.icmpType(t), accept()),
			})
		}
	}
	for _, t := range f.neighbors { // elsewhere neighbours are permanent ones
		rules = append(rules, rule{
			fmt.Sprintf("icmp %d: neighbours on the underlay", t), join(iif(g.Underlay), f.icmpType(t), accept()),
		})
	}
	return rules
}

func (g Gateway) forward() []rule {
	return []rule{
		{"tunnel to overlay", join(iif(g.Tunnel), oifPrefix(g.OverlayPrefix), accept())},
		{"overlay to tunnel", join(iifPrefix(g.OverlayPrefix), oif(g.Tunnel), accept())},
	}
}
