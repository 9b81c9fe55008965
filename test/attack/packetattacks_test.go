package attack_test

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// Attackers, as the table names them.
const (
	remoteGateway = "remote gateway"
	peersPod      = "pod of the peer"
	localGateway  = "local gateway"
	rawPod        = "pod with NET_RAW"
	plainPod      = "pod"
	lanHost       = "host of the LAN"
	aNode         = "node"
	formerNode    = "former node"
)

func (n *scene) attacks(t *testing.T) []attack {
	return append(append(n.fromPeers(), n.fromLocalGateway()...), n.fromNeighbors(t)...)
}

// What the product's rules are called.
const (
	peerReachesNothingElse = "the peer reaches nothing else"
	nothingElse            = "peers reach nothing else"
	nothingOfTheNode       = "peers reach nothing of the node"
	markAround             = "clear the mark of the outer packet"
	noNameOfOthers         = "no other sources"
	aboutOthers            = "icmp error 3: about packets to the peer only"
	byOverlayOnly          = "peers come by the overlay only"
)

// fromPeers are the attacks of the peer's gateway and of its pods.
func (n *scene) fromPeers() []attack {
	a, gateway := n.A, &n.A.Side
	pod, node := a.Nodes[1].Pod, a.Nodes[0]
	source := n.B.Nodes[1].Pod.Mapped
	// What a pod of B sends by its own node and gateway.
	send := func(dst netip.Addr) func(uint16) error {
		return plainly(n.B.Nodes[1].Pod.NS, n.B.Nodes[1].Pod.Addr, dst)
	}
	onlyAnswers := func(what string) *defence { return n.gatewayRule(gateway, "to-nodes", "no "+what) }
	isolate, input := n.nodeRule("isolate", nothingOfTheNode), n.nodeRule("input", nothingOfTheNode)
	fromPeer := n.gatewayRule(gateway, "from-peer", peerReachesNothingElse)
	fromPeers, guard := n.nodeRule("from-peers", nothingElse), n.nodeRule("guard", byOverlayOnly)
	senders := n.nodeRule("from-overlay", noNameOfOthers)
	return []attack{
		{remoteGateway, "to a pod by its own address", fromPeer, n.arrival(pod.NS, source, n.byTunnel(source, pod.Addr))},
		{remoteGateway, "to a pod, in the name of a host elsewhere", all(n.allowedIPs(), senders), n.arrival(pod.NS, addr("192.0.2.66"), n.byTunnel(addr("192.0.2.66"), pod.Mapped))},
		{remoteGateway, "to a pod, in the name of the third cluster's pod", all(n.allowedIPs(), senders, guard), func(t *testing.T) bool {
			third := n.C.Nodes[0].Pod.Mapped
			return n.arrives(t, pod.NS, third, n.byTunnel(third, pod.Mapped))
		}},
		{remoteGateway, "to a service's address", all(fromPeer, n.inboundTable(), fromPeers, guard), n.arrival(pod.NS, netip.Addr{}, n.byTunnel(source, clusterIP))},
		{remoteGateway, "to a host of the LAN that is not exposed", all(fromPeer, n.inboundTable(), fromPeers), n.arrival(n.LAN.NS, netip.Addr{}, n.byTunnel(source, hidden))},
		{remoteGateway, "to the third cluster's pod, through this one", all(fromPeer, n.inboundTable(), n.transit()), n.arrival(n.C.Nodes[0].Pod.NS, netip.Addr{}, n.byTunnel(source, n.C.Nodes[0].Pod.Mapped))},
		{remoteGateway, "to a UDP port of the gateway", n.closedInput(gateway, nftables.TableFamilyIPv4, ""), n.arrival(gateway.Gateway.NS, source, n.byTunnel(source, gateway.Overlay.Mapped))},
		{peersPod, "asks the gateway whether the tunnel works, from the port of answers", n.closedInput(gateway, nftables.TableFamilyIPv4, ""), func(t *testing.T) bool {
			from := n.B.Nodes[1].Pod
			question := dataplane.Packet(netip.AddrPortFrom(from.Addr, liveness.Port), netip.AddrPortFrom(gateway.Overlay.Mapped, liveness.Port), []byte("forged"))
			return n.reaches(t, gateway.Gateway.NS, source, func() error { return dataplane.SendRaw(from.NS, question) })
		}},
		{remoteGateway, "of the third cluster, names a pod of a peer as its endpoint, which this cluster's gateway calls", n.nodeRule("to-peers", "tunnels lead to no pod"), func(t *testing.T) bool {
			caller, called := a.Others[0].Gateway, n.B.Nodes[0].Pod
			return n.arrives(t, called.NS, netip.Addr{}, func(port uint16) error {
				handshake := dataplane.Packet(netip.AddrPortFrom(caller.Addr, tunnel.ListenPort+1), netip.AddrPortFrom(called.Mapped, port), []byte("forged"))
				return dataplane.SendRaw(caller.NS, handshake)
			})
		}},
		{peersPod, "reads the gateway's metrics", n.closedInput(gateway, nftables.TableFamilyIPv4, ""), reaches(n.B.Nodes[1].Pod.NS, gateway.Overlay.Mapped, v1alpha1.MetricsPort)},
		{remoteGateway, "breaks a connection between two pods by an ICMP error", all(n.gatewayRule(gateway, "errors-in", aboutOthers), n.nodeRule("errors-in", aboutOthers)), func(t *testing.T) bool {
			return n.broken(t, func(cause []byte) error {
				return n.led(n.B.Gateway.NS, tableOut, dataplane.Unreachable(source, a.Nodes[0].Pod.Mapped, cause, 0)...)
			})
		}},
		{peersPod, "to a pod that admits the gateway, by the mark of the gateway's packets", n.nodeRule("from-overlay", markAround), func(t *testing.T) bool {
			return dataplane.Receives(t, pod.NS, policedPort, source, func() error { return send(pod.Mapped)(policedPort) })
		}},
		{peersPod, "to a UDP port of a node", all(onlyAnswers("new connection: UDP"), isolate, input), n.arrival(node.NS, source, send(node.Overlay.Mapped))},
		{peersPod, "to a NodePort", all(onlyAnswers("new connection: TCP"), isolate), reaches(n.B.Nodes[1].Pod.NS, node.Overlay.Mapped, dataplane.WebNodePort)},
		{peersPod, "to a NodePort by a node's address among the pods'", isolate, reaches(n.B.Nodes[1].Pod.NS, addr("10.61.1.1"), dataplane.WebNodePort)},
		{peersPod, "pings a node", all(onlyAnswers("ping"), isolate, input), func(*testing.T) bool {
			return dataplane.Ping(n.B.Nodes[1].Pod.NS, node.Overlay.Mapped, 56, 400*time.Millisecond) == nil
		}},
	}
}

// transit are the nodes' rules against packets from one peer to another.
func (n *scene) transit() *defence {
	return all(
		n.nodeRule("from-peers", "no transit"), n.nodeRule("from-peers", nothingElse),
		n.nodeRule("to-peers", "only pods reach peers"),
	)
}

// broken says whether what is sent about a connection between two pods breaks it.
func (n *scene) broken(t *testing.T, send func(cause []byte) error) bool {
	t.Helper()
	return dataplane.Broken(t, n.A.Nodes[0].Pod, n.A.Nodes[1].Pod, echoPort, send)
}

// fromLocalGateway are the attacks of this cluster's gateway to B.
func (n *scene) fromLocalGateway() (out []attack) {
	a, peer := n.A, n.B.Nodes[0].Pod.Mapped
	pod := a.Nodes[1].Pod
	senders := n.nodeRule("from-overlay", noNameOfOthers)
	fromPeers := n.nodeRule("from-peers", nothingElse)
	guard := n.nodeRule("guard", byOverlayOnly)
	isolate, input := n.nodeRule("isolate", nothingOfTheNode), n.nodeRule("input", nothingOfTheNode)
	for what, source := range map[string]netip.Addr{
		"another pod": addr("10.244.1.99"), "a node": a.Nodes[0].Host.Addr, "a host elsewhere": addr("198.51.100.1"),
		"a node's overlay address": a.Nodes[0].Overlay.Addr, "a host of the LAN": n.LAN.Addr,
	} {
		out = append(out, attack{localGateway, "to a pod, in the name of " + what, senders, n.arrival(pod.NS, source, n.byLink(1, source, pod.Addr))})
	}
	second := a.Others[0]
	third := n.C.Nodes[0].Pod.Mapped
	byOthersLink := func(source netip.Addr) func(*testing.T) bool {
		return func(t *testing.T) bool {
			return n.arrives(t, pod.NS, third, func(port uint16) error {
				return n.asGateway(t, a.Gateway.NS, second, 1, source, a.Key, packet(third, pod.Addr, port))
			})
		}
	}
	// With NET_ADMIN it gives itself the address of the other gateway.
	out = append(out, attack{localGateway, "to a pod, by the third cluster's link and with the address of its gateway", n.secret(), byOthersLink(second.Gateway.Addr)})
	if n.kind == overlay.VXLAN { // Geneve takes nothing from a source that it was not told
		sources := n.nodeRule("input", "overlay packets come from gateways only")
		out = append(out, attack{localGateway, "to a pod, by the third cluster's link", all(n.secret(), sources), byOthersLink(a.Gateway.Addr)})
	}
	return append(out, []attack{
		{localGateway, "to a pod, in the name of the third cluster's pod", all(senders, guard), func(t *testing.T) bool {
			third := n.C.Nodes[0].Pod.Mapped
			return n.arrives(t, pod.NS, third, n.byLink(1, third, pod.Addr))
		}},
		{localGateway, "to a UDP port of a node", all(isolate, input), n.arrival(a.Nodes[0].NS, peer, n.byLink(0, peer, a.Nodes[0].Host.Addr))},
		{localGateway, "to another node, by way of one", all(fromPeers, guard), n.arrival(a.Nodes[1].NS, netip.Addr{}, n.byLink(0, peer, a.Nodes[1].Host.Addr))},
		{localGateway, "to a host of the LAN that is not exposed", fromPeers, n.arrival(n.LAN.NS, netip.Addr{}, n.byLink(1, peer, hidden))},
		{localGateway, "to a pod of another node by a service", all(fromPeers, guard), n.arrival(pod.NS, netip.Addr{}, n.byLink(0, peer, clusterIP))},
		{localGateway, "to the third cluster's pod", n.transit(), n.arrival(n.C.Nodes[0].Pod.NS, netip.Addr{}, n.byLink(0, peer, n.C.Nodes[0].Pod.Mapped))},
		{localGateway, "to the third cluster's gateway by the pod network", all(n.nodeRule("from-peers", "peers reach no gateway"), n.closedInput(second, nftables.TableFamilyIPv4, "")), func(t *testing.T) bool {
			return n.reaches(t, second.Gateway.NS, netip.Addr{}, func() error { return n.byLink(0, peer, second.Gateway.Addr)(liveness.Port) })
		}},
		{localGateway, "breaks a connection between two pods by an ICMP error", n.nodeRule("errors-in", aboutOthers), func(t *testing.T) bool {
			return n.broken(t, func(cause []byte) error {
				return n.led(a.Gateway.NS, tableOut, dataplane.Unreachable(peer, a.Nodes[0].Pod.Addr, cause, 0)...)
			})
		}},
	}...)
}

// fromNeighbors are the attacks of pods and hosts on the same network.
func (n *scene) fromNeighbors(t *testing.T) []attack {
	a, gateway := n.A, &n.A.Side
	near, far := a.Nodes[0], a.Nodes[1]
	peer := n.B.Nodes[0].Pod
	end := n.B.Nodes[1].Host
	forgedNode := func(by *netns.NS, node int) func(t *testing.T) bool {
		return func(t *testing.T) bool {
			to := a.Nodes[node].Pod
			return n.arrives(t, to.NS, peer.Mapped, func(port uint16) error {
				return n.send(t, by, n.toNode(node), packet(peer.Mapped, to.Addr, port))
			})
		}
	}
	// A host of the LAN takes nodes for routers to B.
	byNode := func(source, seen netip.Addr) func(t *testing.T) bool {
		return func(t *testing.T) bool {
			way(t, n.LAN.NS, tableOut, &netlink.Route{Gw: far.Host.Addr.AsSlice()}, "eth0")
			return n.arrives(t, peer.NS, seen, func(port uint16) error {
				return n.led(n.LAN.NS, tableOut, packet(source, peer.Mapped, port))
			})
		}
	}
	// A node that was taken over derives the gateway's key. The network lets it send with the gateway's address, or not.
	asGateway := func(at *netns.NS, outer, source, dst netip.Addr) func(*testing.T) bool {
		return func(t *testing.T) bool {
			return n.arrives(t, at, source, func(port uint16) error {
				return n.asGateway(t, far.NS, gateway, 0, outer, gateway.Key, packet(source, dst, port))
			})
		}
	}
	toNode, toGateway := n.toNode, n.toGateway
	onlyEncrypted := n.nodeRule("encrypted-only", "nothing leaves unencrypted")
	// A pod of another node, or a host, uses a service by way of a node. That sends with its own address.
	onlyNodes := n.nodeRule("source", "only this node asks gateways")
	byService := func(service netip.Addr) func() error {
		return func() error {
			way(t, n.LAN.NS, tableOut, &netlink.Route{Gw: far.Host.Addr.AsSlice()}, "eth0")
			return n.led(n.LAN.NS, tableOut, packet(n.LAN.Addr, service, liveness.Port))
		}
	}
	var byVXLAN []attack
	if n.kind == overlay.VXLAN { // Geneve takes nothing from a source that it was not told
		byVXLAN = []attack{{lanHost, "that knows the secret, to the gateway in the overlay, with the address of a peer's pod", all(n.nodeRule("guard", byOverlayOnly), n.closedInput(gateway, nftables.TableFamilyIPv4, "")), func(t *testing.T) bool {
			p := toGateway(t, 1)
			p.source = peer.Mapped
			return n.arrives(t, gateway.Gateway.NS, p.from, func(port uint16) error {
				return n.sendTo(t, n.LAN.NS, p, a.Key.MAC(a.VNI(t, p.node), p.to), unix.ETH_P_IP, packet(p.from, p.to, port))
			})
		}}, {aNode, "to another node's pod, as the gateway, whose key it derives", n.nodeRule("input", "overlay packets come from gateways only"), asGateway(near.Pod.NS, far.Host.Addr, peer.Mapped, near.Pod.Addr)}, {plainPod, "that knows the secret, to a node in the overlay, with its own address", n.nodeRule("input", "overlay packets come from gateways only"), func(t *testing.T) bool {
			p := toNode(0)
			p.source = near.Pod.Addr
			return n.arrives(t, near.Pod.NS, peer.Mapped, func(port uint16) error {
				return n.sendTo(t, near.Pod.NS, p, a.Key.MAC(a.VNI(t, p.node), p.to), unix.ETH_P_IP, packet(peer.Mapped, near.Pod.Addr, port))
			})
		}}}
	}
	return append(byVXLAN, []attack{
		{lanHost, "reads a gateway's metrics", n.closedInput(gateway, nftables.TableFamilyIPv4, ""), reaches(n.LAN.NS, gateway.Gateway.Addr, v1alpha1.MetricsPort)},
		{lanHost, "to a pod in the overlay, as the gateway", n.secret(), forgedNode(n.LAN.NS, 1)},
		{rawPod, "to a pod in the overlay, as the gateway", n.secret(), forgedNode(near.Pod.NS, 0)},
		{formerNode, "to a pod in the overlay, as the gateway, with the cluster's key of that time", n.secret(), func(t *testing.T) bool {
			former := overlay.Keys{1: {0x66}}.ForGateway("gateway-first-0", 1)
			return n.arrives(t, far.Pod.NS, peer.Mapped, func(port uint16) error {
				return n.asGateway(t, n.LAN.NS, gateway, 1, gateway.Gateway.Addr, former, packet(peer.Mapped, far.Pod.Addr, port))
			})
		}},
		{rawPod, "to a peer's pod in the overlay, as a node", n.secret(), func(t *testing.T) bool {
			return n.arrives(t, peer.NS, far.Pod.Mapped, func(port uint16) error {
				return n.send(t, near.Pod.NS, toGateway(t, 1), packet(far.Pod.Addr, peer.Mapped, port))
			})
		}},
		{rawPod, "to the gateway in the overlay, by a broadcast frame", n.gatewayRule(gateway, "prerouting", "frames addressed to this link only"), func(t *testing.T) bool {
			p := toGateway(t, 1)
			inner := dataplane.Packet(netip.AddrPortFrom(p.from, 1234), netip.AddrPortFrom(p.to, liveness.Port), []byte("forged"))
			return n.reaches(t, gateway.Gateway.NS, p.from, func() error {
				return n.sendTo(t, near.Pod.NS, p, overlay.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, unix.ETH_P_IP, inner)
			})
		}},
		{rawPod, "to a node in the overlay, by IPv6 to all hosts", n.noIPv6(), func(t *testing.T) bool {
			source := addr("fe80::66")
			return n.arrives(t, far.NS, source, func(port uint16) error {
				inner := dataplane.Packet6(netip.AddrPortFrom(source, 1234), netip.AddrPortFrom(addr("ff02::1"), port), []byte("forged"))
				return n.sendTo(t, near.Pod.NS, toNode(1), overlay.MAC{0x33, 0x33, 0, 0, 0, 1}, unix.ETH_P_IPV6, inner)
			})
		}},
		{aNode, "tells the gateway how the tunnel is, in the name of the peer's gateway", n.closedInput(gateway, nftables.TableFamilyIPv4, ""), func(t *testing.T) bool {
			p := toGateway(t, 1)
			return n.reaches(t, gateway.Gateway.NS, n.B.Overlay.Mapped, func() error {
				return n.sendTo(t, far.NS, p, a.Key.MAC(a.VNI(t, p.node), p.to), unix.ETH_P_IP, packet(n.B.Overlay.Mapped, gateway.Overlay.Addr, liveness.Port))
			})
		}},
		{aNode, "to another node's pod, with the gateway's key and address, in the name of another pod", n.nodeRule("from-overlay", noNameOfOthers), asGateway(near.Pod.NS, gateway.Gateway.Addr, addr("10.244.1.99"), near.Pod.Addr)},
		{aNode, "to another node's pod, with the gateway's key and address, in the name of the third cluster's pod", all(n.nodeRule("from-overlay", noNameOfOthers), n.nodeRule("guard", byOverlayOnly)), asGateway(near.Pod.NS, gateway.Gateway.Addr, n.C.Nodes[0].Pod.Mapped, near.Pod.Addr)},
		{aNode, "to a UDP port of another node, with the gateway's key and address", all(n.nodeRule("isolate", nothingOfTheNode), n.nodeRule("input", nothingOfTheNode)), asGateway(near.NS, gateway.Gateway.Addr, peer.Mapped, near.Host.Addr)},
		{aNode, "breaks a connection between two pods by an ICMP error, with the gateway's key and address", n.nodeRule("errors-in", aboutOthers), func(t *testing.T) bool {
			return n.broken(t, func(cause []byte) error {
				return n.asGateway(t, far.NS, gateway, 0, gateway.Gateway.Addr, gateway.Key, dataplane.Unreachable(peer.Mapped, near.Pod.Addr, cause, 0)[0])
			})
		}},
		{rawPod, "fills a node's neighbour table by ARP in the overlay", n.noARP(), n.becomesNeighbour},
		{rawPod, "bears the address of a peer's pod, to a pod of another node", n.nodeRule("guard", byOverlayOnly), n.arrival(far.Pod.NS, netip.Addr{}, plainly(near.Pod.NS, peer.Mapped, far.Pod.Addr))},
		{lanHost, "bears the address of a peer's pod, to a node", n.nodeRule("guard", byOverlayOnly), n.arrival(far.NS, peer.Mapped, plainly(n.LAN.NS, peer.Mapped, far.Host.Addr))},
		{lanHost, "bears the address of a tunnel's end, to a pod", n.nodeRule("forward", "ends of tunnels reach nothing else"), n.arrival(far.Pod.NS, netip.Addr{}, plainly(n.LAN.NS, end.Addr, far.Pod.Addr))},
		{lanHost, "bears the address of a tunnel's end, to a node", n.nodeRule("tunnel-ends-input", "no tunnel ends at the node"), n.arrival(far.NS, end.Addr, plainly(n.LAN.NS, end.Addr, far.Host.Addr))},
		{lanHost, "reads what pods send to a peer that a rule of others leads elsewhere", onlyEncrypted, func(t *testing.T) bool {
			return n.arrives(t, end.NS, netip.Addr{}, func(port uint16) error {
				return n.elsewhere(near.NS, end.Addr, func() error { return plainly(near.Pod.NS, near.Pod.Addr, end.Addr)(port) })
			})
		}},
		{lanHost, "reads what pods send to a peer whose link is down", all(n.unreachable(), onlyEncrypted), n.arrival(end.NS, netip.Addr{}, plainly(near.Pod.NS, near.Pod.Addr, end.Addr))},
		{lanHost, "to a peer's pod by a node, in its own name", all(n.nodeRule("to-peers", "only pods reach peers"), n.nodeRule("to-peers", "only this node's pods")), byNode(n.LAN.Addr, netip.Addr{})},
		{lanHost, "to a peer's pod by a node, in the name of the node's pod", n.nodeRule("to-peers", "no forged source"), byNode(far.Pod.Addr, far.Pod.Mapped)},
		{lanHost, "to a peer's pod by a node, in the name of another node's pod", n.nodeRule("to-peers", "only this node's pods"), byNode(near.Pod.Addr, near.Pod.Mapped)},
		{plainPod, "to a UDP port of the gateway, from that of name servers", n.closedInput(gateway, nftables.TableFamilyIPv4, ""), func(t *testing.T) bool {
			return n.arrives(t, gateway.Gateway.NS, near.Pod.Addr, func(port uint16) error {
				return dataplane.SendRaw(near.Pod.NS, dataplane.Packet(netip.AddrPortFrom(near.Pod.Addr, 53), netip.AddrPortFrom(gateway.Gateway.Addr, port), []byte("answer")))
			})
		}},
		{plainPod, "asks the gateway whether the tunnel works, through the overlay", n.closedInput(gateway, nftables.TableFamilyIPv4, ""), func(t *testing.T) bool {
			return n.reaches(t, gateway.Gateway.NS, near.Pod.Addr, func() error {
				return plainly(near.Pod.NS, near.Pod.Addr, gateway.Overlay.Addr)(liveness.Port)
			})
		}},
		{rawPod, "asks the gateway whether the tunnel works, in the name of another node", all(n.nodeRule("to-peers", "only pods reach peers"), onlyNodes), func(t *testing.T) bool {
			return n.reaches(t, gateway.Gateway.NS, netip.Addr{}, func() error {
				return plainly(near.Pod.NS, far.Overlay.Addr, gateway.Overlay.Addr)(liveness.Port)
			})
		}},
		{plainPod, "asks the gateway whether the tunnel works, in the name of a node, by a service that leads there", onlyNodes, func(t *testing.T) bool {
			return n.reaches(t, gateway.Gateway.NS, far.Overlay.Addr, byService(toOwn))
		}},
		{plainPod, "asks the peer's gateway, in the name of a node, by a service that leads there", onlyNodes, func(t *testing.T) bool {
			return n.reaches(t, n.B.Gateway.NS, far.Overlay.Mapped, byService(toPeers))
		}},
		{plainPod, "to a UDP port of the gateway by IPv6", n.closedInput(gateway, nftables.TableFamilyIPv6, ", IPv6"), n.byIPv6},
	}...)
}

// elsewhere sends while a rule before ours leads to an address as if there were no peers.
func (n *scene) elsewhere(ns *netns.NS, to netip.Addr, send func() error) error {
	n.leading.Lock()
	defer n.leading.Unlock()
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Dst = 6, unix.RT_TABLE_MAIN, netlink.NewIPNet(to.AsSlice())
	if err := ns.Run(func() error { return netlink.RuleAdd(rule) }); err != nil {
		return err
	}
	return errors.Join(send(), ns.Run(func() error { return netlink.RuleDel(rule) }))
}

// noIPv6 is that nodes drop IPv6 by the overlay.
func (n *scene) noIPv6() *defence {
	node := n.A.Nodes[1]
	return &defence{
		name:    "nodes' chain guard: no IPv6",
		remove:  func(t *testing.T) { removeRules(t, node.NS, nftables.TableFamilyIPv6, "guard", "no IPv6") },
		restore: func(t *testing.T) { n.applyNode(t, 1) },
	}
}

// becomesNeighbour asks a node's end of the link by ARP, in the name of many.
func (n *scene) becomesNeighbour(t *testing.T) bool {
	t.Helper()
	node, evil := n.A.Nodes[1], overlay.MAC{2, 0x66}
	for i := range 20 {
		question := dataplane.ARP(1, evil, netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), overlay.MAC{}, node.Overlay.Addr)
		kit.NoError(t, n.sendTo(t, n.A.Nodes[0].Pod.NS, n.toNode(1), overlay.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, unix.ETH_P_ARP, question))
	}
	// What comes after them by the same link shows that they were looked at.
	kit.Eventually(t, patience, "a ping by that link", func() error { return dataplane.Ping(node.Pod.NS, n.B.Nodes[0].Pod.Mapped, 56, time.Second) }) // one may get lost among all that is sent here
	learned := 0
	node.WithLink(t, n.A.Link(), func(l netlink.Link) error {
		neighbours, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_V4)
		for _, neighbour := range neighbours {
			if neighbour.State&netlink.NUD_PERMANENT == 0 {
				learned++
				err = errors.Join(err, netlink.NeighDel(&neighbour))
			}
		}
		return err
	})
	return learned > 0
}

// byIPv6 sends to the gateway's link-local address, which it has wherever its node does not
// switch off IPv6.
func (n *scene) byIPv6(t *testing.T) bool {
	t.Helper()
	linkLocal(t, n.A.Nodes[0].Pod.NS)
	to := linkLocal(t, n.A.Gateway.NS)
	return n.arrives(t, n.A.Gateway.NS, netip.Addr{}, func(port uint16) error {
		return n.A.Nodes[0].Pod.Run(func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			// By its number: the library remembers names, and not of which namespace.
			c, err := net.Dial("udp6", netip.AddrPortFrom(to.WithZone(strconv.Itoa(l.Attrs().Index)), port).String())
			if err != nil {
				return err
			}
			_, err = c.Write([]byte("?"))
			return errors.Join(err, c.Close())
		})
	})
}

// linkLocal returns the link-local address of a namespace when it may be used: duplicate address
// detection takes a second or two.
func linkLocal(t *testing.T, ns *netns.NS) (address netip.Addr) {
	t.Helper()
	ns.WithLink(t, "eth0", func(l netlink.Link) error {
		for end := time.Now().Add(10 * time.Second); !address.IsValid() && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V6)
			if err != nil {
				return err
			}
			for _, a := range addrs {
				if a.Flags&unix.IFA_F_TENTATIVE == 0 {
					address, _ = netip.AddrFromSlice(a.IP)
				}
			}
		}
		return nil
	})
	kit.FatalIf(t, !address.IsValid(), "no address of IPv6 that may be used")
	return address
}

// Packets between the clusters' data planes.
func TestAttackPackets(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	kinds := []overlay.Kind{overlay.VXLAN}
	if kit.Full() && supports(t, overlay.Geneve) {
		kinds = append(kinds, overlay.Geneve)
	}
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) { run(t, newScene(t, kind).attacks(t)) })
	}
}

// supports says whether the kernel has an overlay.
func supports(t *testing.T, kind overlay.Kind) (ok bool) {
	t.Helper()
	dataplane.WithKernel(t, netns.New(t, "asked"), func(k *overlay.Kernel) (err error) {
		ok, err = k.Supports(kind)
		return err
	})
	return ok
}

// reaches reports whether a packet from source arrives at the port of a gateway that nodes may reach.
func (n *scene) reaches(t *testing.T, gateway *netns.NS, source netip.Addr, send func() error) bool {
	t.Helper()
	n.listening.Lock()
	defer n.listening.Unlock()
	return dataplane.Receives(t, gateway, liveness.Port, source, send)
}
