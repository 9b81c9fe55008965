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
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/load"
	"github.com/liqonet/liqonet/test/netns"
)

// The path by hand: the same hops as through the product, over the same nodes,
// with disjoint ranges, plain routes, and no rule of nftables but the one that
// leads to aggregation.
const (
	handVXLAN  = "hand0"
	handVNI    = 77
	handPort   = 6093
	handTunnel = 51999 // on the server's node
	// handGateway is the last part of a gateway's address, in the pod range of its
	// node: those that the network plugin gives out begin at the other end.
	handGateway = 250
)

// hand is one side of it.
type hand struct {
	number       int
	gatewayNode  *lab.Node
	podNode      *lab.Node
	gateway, pod *netns.NS
	// underlay is the gateway's address, overlay and far those of the VXLAN's ends
	// at the gateway and at the pod's node.
	underlay, overlay, far netip.Addr
	tunnel                 *dataplane.Tunnel
	config                 tunnel.Config
}

func (h *hand) pods() netip.Prefix  { return netip.PrefixFrom(v4(10, 200+h.number, 0, 0), 16) }
func (h *hand) podAddr() netip.Addr { return v4(10, 200+h.number, 1, 2) }

func v4(a, b, c, d int) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(a), byte(b), byte(c), byte(d)})
}

// byHand builds both sides and returns them with the tunnel up.
func byHand(b *testing.B, ctx context.Context, mtu int, sides [2]*side) [2]*hand {
	b.Helper()
	var out [2]*hand
	for i, s := range sides {
		h := &hand{number: i + 1, gatewayNode: s.gatewayNode, podNode: s.podNode}
		out[i] = h
		h.build(b, ctx, s, mtu)
	}
	for i, h := range out {
		h.route(b, out[1-i], mtu)
	}
	connect(b, ctx, out, mtu)
	return out
}

func (h *hand) build(b *testing.B, ctx context.Context, s *side, mtu int) {
	b.Helper()
	gatewayNode, podNode := node(b, h.gatewayNode), node(b, h.podNode)
	bridge := bridgeAddress(b, gatewayNode)
	host := bridge.Addr().As4()
	host[3] = handGateway
	h.underlay = netip.AddrFrom4(host)
	h.overlay, h.far = v4(10, 190+h.number, 0, 1), v4(10, 190+h.number, 0, 2)

	h.gateway = netns.New(b, "gateway by hand")
	plug(b, h.gateway, gatewayNode, netip.PrefixFrom(h.underlay, bridge.Bits()), bridge.Addr(), 0)
	h.gateway.Sysctl(b, "ipv4/ip_forward", "1")

	h.pod = netns.New(b, "pod by hand")
	gate := netip.PrefixFrom(h.podAddr().Prev(), 24)
	podNode.Addr(b, "cni0", gate)
	b.Cleanup(func() { onNode(b, h.podNode, "ip", "addr", "del", gate.String(), "dev", "cni0") })
	plug(b, h.pod, podNode, netip.PrefixFrom(h.podAddr(), 24), gate.Addr(), mtu)

	vxlan(b, h.gateway, h.podNode.Address, netip.PrefixFrom(h.overlay, 24), mtu)
	vxlan(b, podNode, h.underlay, netip.PrefixFrom(h.far, 24), mtu)
	b.Cleanup(func() { onNode(b, h.podNode, "ip", "link", "del", handVXLAN) })
}

// plug makes a namespace a pod of a node.
func plug(b *testing.B, pod, node *netns.NS, address netip.Prefix, via netip.Addr, mtu int) {
	b.Helper()
	node.Output(b, "ip", "neigh", "flush", "to", address.Addr().String()) // of an earlier run
	outer := fmt.Sprintf("hand-%d", address.Addr().As4()[3])
	netns.Veth(b, pod, "eth0", node, outer)
	node.Enslave(b, outer, "cni0")
	pod.Addr(b, "eth0", address)
	if mtu > 0 {
		pod.MTU(b, "eth0", mtu)
	}
	pod.Route(b, netip.PrefixFrom(v4(0, 0, 0, 0), 0), via)
}

func vxlan(b *testing.B, ns *netns.NS, remote netip.Addr, address netip.Prefix, mtu int) {
	b.Helper()
	ns.Do(b, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = handVXLAN, mtu
		return netlink.LinkAdd(&netlink.Vxlan{
			LinkAttrs: attrs, VxlanId: handVNI, Port: handPort, Group: net.IP(remote.AsSlice()), Learning: false,
		})
	})
	ns.Addr(b, handVXLAN, address)
	ns.Up(b, handVXLAN)
}

// route leads to the pods of both sides.
func (h *hand) route(b *testing.B, peer *hand, mtu int) {
	b.Helper()
	h.gateway.Route(b, h.pods(), h.far)
	node(b, h.podNode).Route(b, peer.pods(), h.overlay)
	b.Cleanup(func() { onNode(b, h.podNode, "ip", "route", "flush", peer.pods().String()) })
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
		var err error
		if keys[i], err = wgtypes.GeneratePrivateKey(); err != nil {
			b.Fatal(err)
		}
	}
	for i, h := range sides {
		peer := sides[1-i]
		h.config = tunnel.Config{
			PrivateKey: keys[i], ListenPort: tunnel.ListenPort, MTU: mtu, Address: h.overlay,
			Underlay: "eth0",
			Peer: tunnel.Peer{
				PublicKey: keys[1-i].PublicKey(), AllowedIPs: []netip.Prefix{peer.pods(), netip.PrefixFrom(peer.overlay, 32)},
			},
		}
	}
	client.config.Peer.Endpoint = netip.AddrPortFrom(server.gatewayNode.Address, handTunnel)
	client.config.Peer.Keepalive = 5 * time.Second
	for _, h := range []*hand{server, client} {
		h.tunnel = dataplane.StartTunnel(b, h.gateway, tunnel.Userspace, tunnel.InterfaceName)
		share(b, h.gatewayNode, h.tunnel.PID())
		h.tunnel.Configure(b, h.config)
		h.aggregate(b, true)
	}
	for i, h := range sides {
		peer := sides[1-i]
		h.gateway.Do(b, func() error {
			l, err := netlink.LinkByName(tunnel.InterfaceName)
			if err != nil {
				return err
			}
			for _, dst := range []netip.Prefix{peer.pods(), netip.PrefixFrom(peer.overlay, 32)} {
				route := &netlink.Route{
					LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Src: h.overlay.AsSlice(),
					Dst: &net.IPNet{IP: dst.Addr().AsSlice(), Mask: net.CIDRMask(dst.Bits(), 32)},
				}
				if err := netlink.RouteAdd(route); err != nil {
					return fmt.Errorf("route to %s: %w", dst, err)
				}
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

// aggregate switches the aggregation of what the tunnel receives.
func (h *hand) aggregate(b *testing.B, on bool) {
	b.Helper()
	r := nat.Receive{Underlay: "eth0", Ports: []uint16{handPort, tunnel.ListenPort}}
	if on {
		r.Entry = tunnel.EntryInterface
	}
	h.gateway.Do(b, func() error {
		_, err := nat.ApplyReceive(context.Background(), r)
		return err
	})
}

// handPath leads from pod to pod, barePath from gateway to gateway.
func handPath(sides [2]*hand) load.Path {
	from, to := sides[0], sides[1]
	return load.Path{From: from.pod.Run, To: to.pod.Run, Listen: to.podAddr(), Address: to.podAddr()}
}

func barePath(sides [2]*hand) load.Path {
	from, to := sides[0], sides[1]
	return load.Path{From: from.gateway.Run, To: to.gateway.Run, Listen: to.overlay, Address: to.overlay}
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
	ns.Do(b, func() error {
		l, err := netlink.LinkByName("cni0")
		if err != nil {
			return err
		}
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
