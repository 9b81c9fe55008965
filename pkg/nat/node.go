package nat

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

func (n Node) validate() error {
	if n.OverlayGroup == 0 || n.OverlayPort == 0 || n.TunnelPort == 0 {
		return errors.New("node table: overlay group or a port is missing")
	}
	if !n.Address.Is4() {
		return fmt.Errorf("node table: %s is not an overlay address", n.Address)
	}
	addrs := slices.Concat(n.Hosts, n.Endpoints)
	for _, g := range n.Gateways {
		addrs = append(addrs, g.Pod, g.Overlay)
	}
	if a, ok := notIPv4(addrs, n.Pods, n.OwnPods, n.Remote); ok {
		return fmt.Errorf("node table: %s is not an IPv4 address", a)
	}
	return nil
}

// table computes the node's table. Why each rule is there is in docs/design-notes.md,
// findings 3, 4, 5 and 10.
func (n Node) table() (table, error) {
	if err := n.validate(); err != nil {
		return table{}, err
	}
	pods, err := prefixSet(setPods, n.Pods)
	if err != nil {
		return table{}, err
	}
	own, err := prefixSet(setOwnPods, n.OwnPods)
	if err != nil {
		return table{}, err
	}
	remote, err := prefixSet(setRemote, n.Remote)
	if err != nil {
		return table{}, err
	}
	var outer, local, overlay []netip.Addr
	for _, g := range n.Gateways {
		outer, overlay = append(outer, g.Pod), append(overlay, g.Overlay)
		if g.Local {
			local = append(local, g.Pod)
		}
	}
	fromOverlay := chain{name: "from-overlay", rules: n.fromOverlay()}
	packets := chain{name: "overlay-packets", rules: n.overlayPackets()}
	gatewayErrors := chain{name: "gateway-errors", rules: n.gatewayErrors()}
	fromPeers := chain{name: "from-peers", rules: n.fromPeers()}
	toPeers := chain{name: "to-peers", rules: n.toPeers()}
	return table{
		family: nftables.TableFamilyIPv4,
		sets: []set{
			pods, own, remote, addrSet(setHosts, n.Hosts), addrSet(setEndpoints, n.Endpoints),
			addrSet(setGateways, outer), addrSet(setLocalGateways, local), addrSet(setOverlay, overlay),
			addrSet(setCallers, n.callers()),
		},
		chains: []chain{
			fromOverlay, packets, gatewayErrors, fromPeers, toPeers,
			{
				name: "guard", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting,
				priority: priorityEarly, policy: nftables.ChainPolicyAccept,
				rules: n.guard(fromOverlay, packets, gatewayErrors),
			},
			{
				// A packet to a service with remote endpoints bears kube-proxy's mark for
				// masquerading. The overlay's packet around it inherits the mark.
				name: "notrack-own", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookOutput,
				priority: priorityRaw, policy: nftables.ChainPolicyAccept,
				rules: []rule{{"to gateways: nobody else translates the overlay", concat(
					udpDport(n.OverlayPort), inSet(destinationAt, setGateways, false), []expr.Any{&expr.Notrack{}})}},
			},
			{
				name: "isolate", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting,
				priority: priorityMangle, policy: nftables.ChainPolicyAccept, rules: n.isolate(),
			},
			{
				// A service may turn a packet into one to this node after the chains above,
				// by an external address among those of pods or by an endpoint on the node.
				name: "input", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookInput,
				priority: priorityFilter, policy: nftables.ChainPolicyAccept, rules: n.input(),
			},
			{
				name: "forward", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookForward,
				priority: priorityFilter, policy: nftables.ChainPolicyAccept,
				rules: []rule{
					{"from peers", concat(iifGroup(n.OverlayGroup), jump(fromPeers))},
					{"to peers", concat(oifGroup(n.OverlayGroup), jump(toPeers))},
				},
			},
			{
				name: "source", typ: nftables.ChainTypeNAT, hook: nftables.ChainHookPostrouting,
				priority: priorityBefore, policy: nftables.ChainPolicyAccept, rules: n.source(),
			},
		},
	}, nil
}

// guard drops forged packets, and keeps the network plugin from masquerading overlay
// packets of gateways on this node.
func (n Node) guard(fromOverlay, packets, gatewayErrors chain) []rule {
	return []rule{
		{"from gateways", concat(iifGroup(n.OverlayGroup), jump(fromOverlay))},
		{"overlay packets", concat(udpDport(n.OverlayPort), jump(packets))},
		{"peers come by the overlay only", concat(
			inSet(sourceAt, setRemote, false), inSet(sourceAt, setEndpoints, true), drop())},
		{"icmp", concat(proto(unix.IPPROTO_ICMP), jump(gatewayErrors))},
	}
}

func (n Node) fromOverlay() []rule {
	return []rule{
		{"frames for this very link only", concat(notForUs(), drop())},
		{"nothing else is meant for them here", accept()},
	}
}

// overlayPackets is about the outer packets of the overlay. The network plugin must not
// change their source, because the other end checks it. Not only packets to an address of
// this node are received here: broadcasts and multicasts are too, and any pod may send
// them.
func (n Node) overlayPackets() []rule {
	notrack := []expr.Any{&expr.Notrack{}}
	return []rule{
		{"to a gateway on this node", concat(inSet(destinationAt, setLocalGateways, false), notrack, accept())},
		{"from a gateway on this node", concat(inSet(sourceAt, setLocalGateways, false), notrack, accept())},
		{"they come from gateways only", concat(
			inSet(sourceAt, setGateways, true), addrType(false, unix.RTN_UNICAST, expr.CmpOpNeq), drop())},
	}
}

// gatewayErrors lets a gateway's own ICMP errors out to pods of other nodes. They leave
// by the pod network, while the packets that caused them came by the overlay. So this node
// knows no connection that they relate to, and kube-proxy drops invalid packets.
func (n Node) gatewayErrors() []rule {
	var rules []rule
	for _, t := range icmpErrors() {
		rules = append(rules, rule{
			fmt.Sprintf("icmp error %d of a gateway on this node", t),
			concat(icmpType(t), inSet(sourceAt, setLocalGateways, false), []expr.Any{&expr.Notrack{}}),
		})
	}
	return rules
}

// isolate lets new connections from the overlay reach pods only. It is in prerouting,
// because NodePorts translate destinations before the hook input.
func (n Node) isolate() []rule {
	return []rule{
		{"only what peers send is meant here", concat(not(iifGroup(n.OverlayGroup)), accept())},
		{"answers", concat(ctBits(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), accept())},
		{"peers reach no gateway by the pod network", concat(inSet(destinationAt, setGateways, false), drop())},
		{"pings of gateways", concat(inSet(sourceAt, setOverlay, false), icmpType(echoRequest), accept())},
		{"peers reach nothing of the node", concat(addrType(false, unix.RTN_UNICAST, expr.CmpOpNeq), drop())},
	}
}

// input repeats guard and isolate for packets whose destination became the node after
// those chains.
func (n Node) input() []rule {
	return []rule{
		{"overlay packets come from gateways only", concat(udpDport(n.OverlayPort), inSet(sourceAt, setGateways, true), drop())},
		{"only what peers send is meant here", concat(not(iifGroup(n.OverlayGroup)), accept())},
		{"answers", concat(ctBits(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), accept())},
		{"pings of gateways", concat(inSet(sourceAt, setOverlay, false), icmpType(echoRequest), accept())},
		{"peers reach nothing of the node", drop()},
	}
}

func (n Node) fromPeers() []rule {
	return []rule{
		{"segment size", clampMSS()},
		{"no transit between peers", concat(oifGroup(n.OverlayGroup), drop())},
	}
}

func (n Node) toPeers() []rule {
	rules := []rule{
		{"segment size", clampMSS()},
		{"answers of pods", concat(ctBits(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), accept())},
		{"services with remote endpoints", concat(ctBits(expr.CtKeySTATUS, ctStatusDNAT), accept())},
		{"only pods reach peers through this node", concat(inSet(sourceAt, setPods, true), drop())},
	}
	// Some plugins, such as OVN-Kubernetes, have one interface for everything: then this
	// node's own pods come by an uplink too, and the way back to them is the same.
	for _, u := range n.Uplinks {
		rules = append(
			rules,
			rule{"only this node's pods, from " + u, concat(iif(u), inSet(sourceAt, setOwnPods, true), drop())},
			rule{"no forged source, from " + u, concat(iif(u), forgedSource(), drop())},
		)
	}
	return rules
}

// ctStatusDNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const ctStatusDNAT = 1 << 5

// source chooses the addresses that peers see. The order of the rules matters where nodes
// have addresses in the pod range.
//
//   - A service may send a packet from elsewhere to a remote endpoint. Its answer has to
//     come back by way of this node, which alone knows of the translation. Pods of other
//     nodes call services with addresses of the pod range, and on EKS all hosts around do.
//   - Towards peers there is no masquerade: it drops a connection when its route moves to
//     another interface.
//   - Towards hosts outside and the ends of tunnels there is one. They see an address of
//     the interface that leads to them. When that address goes, the kernel forgets the
//     connection.
//
// Where pods leave the node with their own address, nobody could answer a gateway that
// calls: the other cluster may have the same addresses, and routers need not know them.
// Where others masquerade, they would do the same a moment later.
func (n Node) source() []rule {
	in, out := iifGroup(n.OverlayGroup), oifGroup(n.OverlayGroup)
	return []rule{
		{"from this node", concat(out, addrType(true, unix.RTN_LOCAL, expr.CmpOpEq), snatTo(n.Address))},
		{"from elsewhere to services with remote endpoints", concat(
			out, ctBits(expr.CtKeySTATUS, ctStatusDNAT), inSet(sourceAt, setOwnPods, true), snatTo(n.Address))},
		{"pods keep their source", concat(out, inSet(sourceAt, setPods, false), snatToSelf())},
		{"from others", concat(out, snatTo(n.Address))},
		{"peers to hosts outside", concat(in, inSet(destinationAt, setHosts, false), []expr.Any{&expr.Masq{}})},
		// Some masquerade also what comes to pods from elsewhere.
		{"peers keep their source", concat(in, snatToSelf())},
		{"tunnels that gateways on this node call", concat(
			inSet(sourceAt, setCallers, false), udpSport(n.TunnelPort), []expr.Any{&expr.Masq{}})},
	}
}

// callers are the gateways on this node that call their peer. A gateway that is called
// needs nothing: its answers belong to connections that were translated on the way in.
func (n Node) callers() (out []netip.Addr) {
	for _, g := range n.Gateways {
		if g.Local && g.Calls {
			out = append(out, g.Pod)
		}
	}
	return out
}
