package bench

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/load"
	"github.com/liqonet/liqonet/test/netns"
)

// The path by hand: the same hops as through the product, over the same nodes,
// with disjoint ranges, plain routes, and no rule of nftables but the one that
// leads to aggregation.
const (
	handVXLAN  = "hand" // and the number of a place
	handVNI    = 77     // and one more for each place
	handPort   = 6093
	handTunnel = 51999 // on the server's node
	// handGateway is the last part of a gateway's address, in the pod range of its
	// node: those that the network plugin gives out begin at the other end.
	handGateway = 250
)

// hand is one side of it.
type hand struct {
	number      int
	gatewayNode *lab.Node
	gateway     *netns.NS
	// underlay is the gateway's address.
	underlay netip.Addr
	ends     [places]handEnd
	tunnel   *dataplane.Tunnel
	config   tunnel.Config
}

// handEnd is a pod of it. overlay and far are the addresses of the VXLAN's ends at the gateway and at the pod's node.
type handEnd struct {
	node         *lab.Node
	pod          *netns.NS
	addr         netip.Addr
	overlay, far netip.Addr
}

func (e handEnd) pods() netip.Prefix { return netip.PrefixFrom(e.addr, 24).Masked() }

func (h *hand) pods() netip.Prefix { return netip.PrefixFrom(v4(10, 40+h.number, 0, 0), 16) }

// v4 is an IPv4 address. Those in labs are in 10.32.0.0/12, from which no peer gets a range.
func v4(a, b, c, d int) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(a), byte(b), byte(c), byte(d)})
}

// byHand builds both sides and returns them with the tunnel up.
func byHand(b *testing.B, ctx context.Context, mtu int, sides [2]*side) [2]*hand {
	b.Helper()
	var out [2]*hand
	for i, s := range sides {
		h := &hand{number: i + 1, gatewayNode: s.pods[onGateways].node}
		out[i] = h
		h.build(b, s, mtu)
	}
	for i, h := range out {
		h.route(b, out[1-i])
	}
	connect(b, ctx, out, mtu)
	return out
}

func (h *hand) build(b *testing.B, s *side, mtu int) {
	b.Helper()
	gatewayNode := node(b, h.gatewayNode)
	bridge := bridgeAddress(b, gatewayNode)
	host := bridge.Addr().As4()
	host[3] = handGateway
	h.underlay = netip.AddrFrom4(host)
	h.gateway = netns.New(b, "gateway by hand")
	plug(b, h.gateway, gatewayNode, netip.PrefixFrom(h.underlay, bridge.Bits()), bridge.Addr(), 0)
	h.gateway.Sysctl(b, "ipv4/ip_forward", "1")
	for i := range h.ends {
		e := handEnd{
			node: s.pods[i].node, pod: netns.New(b, "pod by hand"), addr: v4(10, 40+h.number, i, 2),
			overlay: v4(10, 36+h.number, i, 1), far: v4(10, 36+h.number, i, 2),
		}
		h.ends[i] = e
		podNode := node(b, e.node)
		gate := netip.PrefixFrom(e.addr.Prev(), e.pods().Bits())
		podNode.Addr(b, "cni0", gate)
		b.Cleanup(func() { onNode(b, e.node, "ip", "addr", "del", gate.String(), "dev", "cni0") })
		plug(b, e.pod, podNode, netip.PrefixFrom(e.addr, gate.Bits()), gate.Addr(), mtu)
		vxlan(b, h.gateway, i, e.node.Address, netip.PrefixFrom(e.overlay, 24), mtu)
		vxlan(b, podNode, i, h.underlay, netip.PrefixFrom(e.far, 24), mtu)
		b.Cleanup(func() { onNode(b, e.node, "ip", "link", "del", fmt.Sprint(handVXLAN, i)) })
	}
}

// plug makes a namespace a pod of a node.
func plug(b *testing.B, pod, node *netns.NS, address netip.Prefix, via netip.Addr, mtu int) {
	b.Helper()
	node.Output(b, "ip", "neigh", "flush", "to", address.Addr().String()) // of an earlier run
	outer := fmt.Sprintf("hand-%x", address.Addr().As4())
	netns.Veth(b, pod, "eth0", node, outer)
	node.Enslave(b, outer, "cni0")
	pod.Addr(b, "eth0", address)
	if mtu > 0 {
		pod.MTU(b, "eth0", mtu)
	}
	pod.Route(b, netip.PrefixFrom(v4(0, 0, 0, 0), 0), via)
}

func vxlan(b *testing.B, ns *netns.NS, place int, remote netip.Addr, address netip.Prefix, mtu int) {
	b.Helper()
	name := fmt.Sprint(handVXLAN, place)
	ns.Do(b, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = name, mtu
		return netlink.LinkAdd(&netlink.Vxlan{
			LinkAttrs: attrs, VxlanId: handVNI + place, Port: handPort, Group: net.IP(remote.AsSlice()), Learning: false,
		})
	})
	ns.Addr(b, name, address)
	ns.Up(b, name)
}

// route leads to the pods of both sides.
func (h *hand) route(b *testing.B, peer *hand) {
	b.Helper()
	for _, e := range h.ends {
		h.gateway.Route(b, e.pods(), e.far)
		node(b, e.node).Route(b, peer.pods(), e.overlay)
		b.Cleanup(func() { onNode(b, e.node, "ip", "route", "flush", peer.pods().String()) })
	}
}

// connect starts the tunnels, the server's first, and waits for the handshake.
func connect(b *testing.B, ctx context.Context, sides [2]*hand, mtu int) {
	b.Helper()
	client, server := sides[0], sides[1]
	redirect := []string{
		"PREROUTING", "-p", "udp", "-d", server.gatewayNode.Address.String(), "--dport", fmt.Sprint(handTunnel),
		"-j", "DNAT", "--to-destination", netip.AddrPortFrom(server.underlay, tunnel.ListenPort).String(),
	}
	onNode(b, server.gatewayNode, "iptables", append([]string{"-w", "-t", "nat", "-I"}, redirect...)...)
	b.Cleanup(func() {
		onNode(b, server.gatewayNode, "iptables", append([]string{"-w", "-t", "nat", "-D"}, redirect...)...)
	})
	var keys [2]wgtypes.Key
	for i := range keys {
		keys[i] = kit.Must(wgtypes.GeneratePrivateKey())(b)
	}
	for i, h := range sides {
		peer := sides[1-i]
		h.config = tunnel.Config{
			PrivateKey: keys[i], ListenPort: tunnel.ListenPort, MTU: mtu, Address: h.ends[0].overlay, Underlay: "eth0",
			Peer: tunnel.Peer{PublicKey: keys[1-i].PublicKey(), AllowedIPs: []netip.Prefix{peer.pods()}},
		}
	}
	client.config.Peer.Endpoint = netip.AddrPortFrom(server.gatewayNode.Address, handTunnel)
	client.config.Peer.Keepalive = 5 * time.Second
	for _, h := range []*hand{server, client} {
		h.tunnel = dataplane.StartTunnel(b, h.gateway, tunnel.Userspace, tunnel.InterfaceName, asGateways(b)...)
		share(b, h.gatewayNode, h.tunnel.PID())
		h.tunnel.Configure(b, h.config)
		h.aggregate(b)
	}
	for i, h := range sides {
		peer := sides[1-i]
		h.gateway.WithLink(b, tunnel.InterfaceName, func(l netlink.Link) error {
			if err := netlink.RouteAdd(&netlink.Route{
				LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: peer.pods().Addr().AsSlice(), Mask: net.CIDRMask(peer.pods().Bits(), 32)},
			}); err != nil {
				return fmt.Errorf("route to %s: %w", peer.pods(), err)
			}
			return nil
		})
	}
	for client.tunnel.Stats(b).LastHandshake.IsZero() {
		select {
		case <-ctx.Done():
			b.Fatal("no handshake of the tunnel by hand")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// aggregate has what the gateway receives aggregated.
func (h *hand) aggregate(b *testing.B) {
	b.Helper()
	h.gateway.Do(b, func() error {
		_, err := nat.ApplyReceive(context.Background(), nat.Receive{
			Underlay: "eth0", Ports: []uint16{handPort, tunnel.ListenPort}, Entry: tunnel.EntryInterface,
		})
		return err
	})
}

// handPath leads from pod to pod.
func handPath(sides [2]*hand, place int) load.Path {
	from, to := sides[0].ends[place], sides[1].ends[place]
	return load.Path{From: from.pod.Run, To: to.pod.Run, Listen: to.addr, Address: to.addr}
}

func node(b *testing.B, n *lab.Node) *netns.NS {
	b.Helper()
	return netns.Open(b, n.Name, filepath.Join("/run/netns", n.Netns()))
}

// onNode runs a program in a node's network.
func onNode(b *testing.B, n *lab.Node, name string, args ...string) {
	b.Helper()
	// Not the test's context: cleaning up comes after it.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := n.NetCommand(ctx, name, args...).CombinedOutput(); err != nil {
		b.Errorf("on node %s: %s %v: %v: %s", n.Name, name, args, err, out)
	}
}

// bridgeAddress is the address of a node in its pod range.
func bridgeAddress(b *testing.B, ns *netns.NS) (p netip.Prefix) {
	b.Helper()
	ns.WithLink(b, "cni0", func(l netlink.Link) error {
		addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
		if err != nil || len(addrs) == 0 {
			return fmt.Errorf("cni0 has %d addresses: %w", len(addrs), err)
		}
		bits, _ := addrs[0].Mask.Size()
		a, _ := netip.AddrFromSlice(addrs[0].IP.To4())
		p = netip.PrefixFrom(a, bits)
		return nil
	})
	return p
}
