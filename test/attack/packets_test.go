package attack_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// scene are three clusters. A is attacked: it is peered with B, whose gateway was taken
// over, and with C. Nothing but the product keeps anything out: nodes of A forward
// everything, and do not look at sources.
type scene struct {
	*dataplane.Topology
	kind overlay.Kind
	// port is one for each attempt, so that no packet is taken for a late one of another.
	port atomic.Uint32
	// leading is held while a namespace has a rule of an attacker.
	leading sync.Mutex
	// listening is held while an attempt listens on the port of a gateway that nodes may reach.
	listening sync.Mutex
	// knows says that the attackers know the overlay's secret.
	knows bool
}

const (
	// echoPort is answered by pods.
	echoPort = 7777
	// policedPort of pods is for pods of the same cluster only, as a network plugin knows them: by identity, the mark
	// that it gives their packets. The plugin marks the gateway's too, which are around those of peers.
	policedPort = 7778
	identity    = 0x48060f00
	// tableOut is where the namespaces of attackers have their own routes.
	tableOut = 200
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// everything are all addresses.
func everything() *net.IPNet { return &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)} }

func newScene(t *testing.T, kind overlay.Kind) *scene {
	n := &scene{Topology: dataplane.New(t, dataplane.Options{Overlay: kind, Tunnel: tunnel.Userspace, Third: true}), kind: kind}
	n.port.Store(20000)
	n.LAN.NS.Addr(t, "eth0", netip.PrefixFrom(hidden, 16))
	for _, c := range n.Clusters() {
		for i := range c.Nodes {
			// Real nodes have one. Filters of reverse paths, even loose ones, drop what there is no route to.
			c.Nodes[i].Route(t, netip.MustParsePrefix("0.0.0.0/0"), n.LAN.Addr)
			for _, dev := range []string{"all", "eth0", []string{"cni0", "veth-pod"}[i]} {
				c.Nodes[i].Sysctl(t, "ipv4/conf/"+dev+"/rp_filter", "0")
			}
		}
		dataplane.ServeTCP(t, c.Nodes[0].Pod.NS, dataplane.WebPort)
		dataplane.ServeUDP(t, c.Nodes[1].Pod.NS, echoPort)
	}
	dataplane.ServeTCP(t, n.A.Gateway.NS, v1alpha1.MetricsPort)
	for i := range n.A.Nodes {
		n.A.Nodes[i].Do(t, dataplane.AcceptForward)
		// A service that leads to a pod of the second node.
		n.A.Nodes[i].Do(t, func() error { return serve(clusterIP, n.A.Nodes[1].Pod.Addr) })
		// Users may choose the addresses to which services lead.
		n.A.Nodes[i].Do(t, func() error { return errors.Join(serve(toOwn, n.A.Overlay.Addr), serve(toPeers, n.B.Overlay.Mapped)) })
		n.LAN.Route(t, netip.PrefixFrom(n.A.Nodes[i].Pod.Addr, 24).Masked(), n.A.Nodes[i].Host.Addr)
		dataplane.Plugin(
			t, n.A.Nodes[i].NS,
			dataplane.PluginRule{Hook: nftables.ChainHookPrerouting, Priority: -400, Match: dataplane.ToUDP(overlay.Port), Do: dataplane.Mark(identity)},
			dataplane.PluginRule{
				Hook: nftables.ChainHookForward, Match: slices.Concat(dataplane.ToUDP(policedPort), dataplane.NotMarked(identity)),
				Do: []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}},
			},
		)
		n.applyNode(t, i)
	}
	// Nor does the network of A look at sources, or change those of overlay packets that a node sends.
	outgoing := slices.Concat(dataplane.ToUDP(overlay.Port), []expr.Any{&expr.Notrack{}})
	n.A.Nodes[1].Do(t, func() error {
		c, table, raw := &nftables.Conn{}, &nftables.Table{Name: "attacker", Family: nftables.TableFamilyIPv4}, *nftables.ChainPriorityRaw
		chain := c.AddChain(&nftables.Chain{Name: "output", Table: c.AddTable(table), Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: &raw})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: outgoing})
		return c.Flush()
	})
	// The gateway of B sends what it likes, to where it likes, but for one: it takes
	// nobody else's key.
	evil := n.B.Config
	evil.Peer.AllowedIPs = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	n.B.Tunnel.Configure(t, evil)
	removeRules(t, n.B.Gateway.NS, nftables.TableFamilyIPv4, "to-peer", "icmp") // it would change what errors are about
	way(t, n.B.Gateway.NS, tableOut, &netlink.Route{Scope: netlink.SCOPE_LINK}, tunnel.InterfaceName)
	for i := range n.A.Nodes {
		way(t, n.A.Gateway.NS, tableOut+i, &netlink.Route{Gw: n.A.Nodes[i].Overlay.Addr.AsSlice(), Flags: unix.RTNH_F_ONLINK}, wire.GatewayLink(i+1))
	}
	kit.NoError(t, dataplane.Ping(n.B.Nodes[1].Pod.NS, n.A.Nodes[1].Pod.Mapped, 56, patience), "the clusters are not connected")
	return n
}

var (
	// clusterIP is a service of A.
	clusterIP = addr("10.96.0.20")
	// toOwn and toPeers are services that lead to A's gateway, and to B's.
	toOwn, toPeers = addr("10.96.0.21"), addr("10.96.0.22")
	// hidden is a host that is not exposed.
	hidden = addr("172.18.9.10")
)

// serve has a service lead to a pod by UDP.
func serve(service, pod netip.Addr) error {
	c, table := &nftables.Conn{}, &nftables.Table{Name: "service", Family: nftables.TableFamilyIPv4}
	chain := c.AddChain(&nftables.Chain{
		Name: "prerouting", Table: c.AddTable(table), Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: slices.Concat(nft.Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_UDP), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: service.AsSlice()},
		&expr.Immediate{Register: 1, Data: pod.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
	})})
	return c.Flush()
}

// way gives a namespace a table that leads everywhere by one interface.
func way(t *testing.T, ns *netns.NS, table int, r *netlink.Route, dev string) {
	t.Helper()
	ns.WithLink(t, dev, func(l netlink.Link) error {
		r.Dst, r.LinkIndex, r.Table = everything(), l.Attrs().Index, table
		return netlink.RouteReplace(r)
	})
}

// applyNode gives a node of A what the product wants there. The addresses of B's nodes are
// in a range that C was given.
func (n *scene) applyNode(t *testing.T, i int) {
	t.Helper()
	table, state := n.A.NodeTable(i), n.A.NodeState(t, n.kind, i)
	inC := netip.PrefixFrom(n.B.Nodes[0].Host.Addr, 24).Masked()
	table.Remote = append(table.Remote, inC)
	for j := range n.B.Nodes {
		table.Endpoints = append(table.Endpoints, n.B.Nodes[j].Host.Addr)
	}
	state.Routes = append(state.Routes, overlay.Route{Table: overlay.Table, Dst: inC, Unreachable: true, Metric: 4096})
	state.Bypass = []netip.AddrPort{
		netip.AddrPortFrom(n.A.Gateway.Addr, tunnel.ListenPort), netip.AddrPortFrom(n.A.Nodes[i].Host.Addr, 0),
	}
	dataplane.ApplyNode(t, n.A.Nodes[i].NS, table, state)
}

func (n *scene) applyGateway(t *testing.T, s *dataplane.Side) {
	t.Helper()
	netns.In(t, s.Gateway, func() (bool, error) { return nat.ApplyGateway(context.Background(), n.A.TableOf(t, s)) })
}

// nodeRule is a rule of all nodes of A, by its comment.
func (n *scene) nodeRule(chain, comment string) *defence {
	return &defence{
		name: fmt.Sprintf("nodes' chain %s: %s", chain, comment),
		remove: func(t *testing.T) {
			for i := range n.A.Nodes {
				removeRules(t, n.A.Nodes[i].NS, nftables.TableFamilyIPv4, chain, comment)
			}
		},
		restore: func(t *testing.T) {
			for i := range n.A.Nodes {
				n.applyNode(t, i)
			}
		},
	}
}

// gatewayRule is a rule of a gateway of A, by its comment.
func (n *scene) gatewayRule(s *dataplane.Side, chain, comment string) *defence {
	return &defence{
		name:    fmt.Sprintf("gateway's chain %s: %s", chain, comment),
		remove:  func(t *testing.T) { removeRules(t, s.Gateway.NS, nftables.TableFamilyIPv4, chain, comment) },
		restore: func(t *testing.T) { n.applyGateway(t, s) },
	}
}

// closedInput is that the gateway drops what no rule lets in.
func (n *scene) closedInput(s *dataplane.Side, family nftables.TableFamily, name string) *defence {
	return &defence{
		name: "gateway's chain input: closed" + name,
		remove: func(t *testing.T) {
			s.Gateway.Do(t, func() error {
				c, policy := &nftables.Conn{}, nftables.ChainPolicyAccept
				c.AddChain(&nftables.Chain{
					Name: "input", Table: &nftables.Table{Name: nft.TableName, Family: family}, Type: nftables.ChainTypeFilter,
					Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &policy,
				})
				return c.Flush()
			})
			removeRules(t, s.Gateway.NS, family, "input", "nothing else")
		},
		restore: func(t *testing.T) { n.applyGateway(t, s) },
	}
}

// removeRules removes the rules of a chain whose comment begins so. There has to be one.
func removeRules(t *testing.T, ns *netns.NS, family nftables.TableFamily, chain, comment string) {
	t.Helper()
	ns.Do(t, func() error {
		c := &nftables.Conn{}
		in := &nftables.Table{Name: nft.TableName, Family: family}
		rules, err := c.GetRules(in, &nftables.Chain{Name: chain, Table: in})
		if err != nil {
			return fmt.Errorf("chain %s: %w", chain, err)
		}
		rules = slices.DeleteFunc(rules, func(r *nftables.Rule) bool { return !strings.HasPrefix(nft.DecodeComment(r.UserData), comment) })
		if len(rules) == 0 {
			return fmt.Errorf("chain %s has no rule %q", chain, comment)
		}
		for _, r := range rules {
			if err := c.DelRule(r); err != nil {
				return err
			}
		}
		return c.Flush()
	})
}

// allowedIPs are the addresses that WireGuard takes packets from.
func (n *scene) allowedIPs() *defence {
	return &defence{
		name: "gateway's WireGuard: AllowedIPs",
		remove: func(t *testing.T) {
			open := n.A.Config
			open.Peer.AllowedIPs = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
			n.A.Tunnel.Configure(t, open)
		},
		restore: func(t *testing.T) { n.A.Tunnel.Configure(t, n.A.Config) },
	}
}

// inboundTable leads what comes out of the tunnel to nodes and pods, and nothing else.
func (n *scene) inboundTable() *defence {
	route := func(gw netip.Addr) *netlink.Route {
		return &netlink.Route{Dst: everything(), Gw: gw.AsSlice(), Flags: unix.RTNH_F_ONLINK, Table: overlay.InboundTable}
	}
	return &defence{
		name: fmt.Sprintf("gateway's table %d: unreachable", overlay.InboundTable),
		remove: func(t *testing.T) {
			way(t, n.A.Gateway.NS, overlay.InboundTable, route(n.A.Nodes[0].Overlay.Addr), wire.GatewayLink(1))
		},
		restore: func(t *testing.T) {
			n.A.Gateway.Do(t, func() error { return netlink.RouteDel(route(n.A.Nodes[0].Overlay.Addr)) })
		},
	}
}

// unreachable are the routes behind those to peers.
func (n *scene) unreachable() *defence {
	return &defence{
		name: "nodes' unreachable routes behind those to peers",
		remove: func(t *testing.T) {
			for i := range n.A.Nodes {
				n.A.Nodes[i].Do(t, func() error {
					routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: overlay.Table, Type: unix.RTN_UNREACHABLE}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
					for _, r := range routes {
						err = errors.Join(err, netlink.RouteDel(&r))
					}
					return err
				})
			}
		},
		restore: func(t *testing.T) {
			for i := range n.A.Nodes {
				n.applyNode(t, i)
			}
		},
	}
}

// noARP is that overlay links answer no ARP.
func (n *scene) noARP() *defence {
	const setting = "ipv4/conf/loq0-0/arp_ignore"
	return &defence{
		name:    "nodes' links: arp_ignore",
		remove:  func(t *testing.T) { n.A.Nodes[1].Sysctl(t, setting, "0") },
		restore: func(t *testing.T) { n.A.Nodes[1].Sysctl(t, setting, "8") },
	}
}

// secret is that attackers do not know the MAC addresses inside the overlay.
func (n *scene) secret() *defence {
	return &defence{
		name: "the overlay's secret MAC addresses", remove: func(*testing.T) { n.knows = true }, restore: func(*testing.T) { n.knows = false },
	}
}

// arrives says whether a UDP packet arrives, from a source or from any.
func (n *scene) arrives(t *testing.T, at *netns.NS, seen netip.Addr, send func(port uint16) error) bool {
	t.Helper()
	port := uint16(n.port.Add(1))
	return dataplane.Receives(t, at, port, seen, func() error { return send(port) })
}

// arrival is an attempt to have a UDP packet arrive.
func (n *scene) arrival(at *netns.NS, seen netip.Addr, send func(port uint16) error) func(*testing.T) bool {
	return func(t *testing.T) bool { return n.arrives(t, at, seen, send) }
}

// reaches is an attempt to connect by TCP.
func reaches(from *netns.NS, to netip.Addr, port uint16) func(*testing.T) bool {
	return func(*testing.T) bool { return dataplane.Reaches(from, to, port) }
}

// packet is one that nobody asked for.
func packet(source, dst netip.Addr, port uint16) []byte {
	return dataplane.Packet(netip.AddrPortFrom(source, 1234), netip.AddrPortFrom(dst, port), []byte("forged"))
}

// led sends a packet from a namespace by one of its own tables.
func (n *scene) led(ns *netns.NS, table int, packets ...[]byte) error {
	n.leading.Lock()
	defer n.leading.Unlock()
	dst := netip.AddrFrom4([4]byte(packets[0][16:20]))
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Dst = 5, table, netlink.NewIPNet(dst.AsSlice())
	if err := ns.Run(func() error { return netlink.RuleAdd(rule) }); err != nil {
		return err
	}
	var err error
	for _, p := range packets {
		err = errors.Join(err, dataplane.SendRaw(ns, p))
	}
	return errors.Join(err, ns.Run(func() error { return netlink.RuleDel(rule) }))
}

// byTunnel sends from the peer's gateway into the tunnel.
func (n *scene) byTunnel(source, dst netip.Addr) func(port uint16) error {
	return func(port uint16) error { return n.led(n.B.Gateway.NS, tableOut, packet(source, dst, port)) }
}

// byLink sends from a gateway of A to a node.
func (n *scene) byLink(node int, source, dst netip.Addr) func(port uint16) error {
	return func(port uint16) error { return n.led(n.A.Gateway.NS, tableOut+node, packet(source, dst, port)) }
}

// plainly sends by the network around.
func plainly(from *netns.NS, source, dst netip.Addr) func(port uint16) error {
	return func(port uint16) error { return dataplane.SendRaw(from, packet(source, dst, port)) }
}

// overlayPacket is what is between a node and the gateway: from one end of a link to the other,
// with a packet inside.
type overlayPacket struct {
	// outer are the addresses around.
	source, target netip.Addr
	// node is that of the link, from and to are its ends.
	node     int
	from, to netip.Addr
}

// toNode is what the gateway sends to a node, toGateway what a node sends.
func (n *scene) toNode(node int) overlayPacket {
	return overlayPacket{n.A.Gateway.Addr, n.A.Nodes[node].Host.Addr, node, n.A.Overlay.Addr, n.A.Nodes[node].Overlay.Addr}
}

func (n *scene) toGateway(t *testing.T, node int) overlayPacket {
	return overlayPacket{n.A.Outer(t, node), n.A.Gateway.Addr, node, n.A.Nodes[node].Overlay.Addr, n.A.Overlay.Addr}
}

// send sends it with a packet inside. Who does not know the secret guesses.
func (n *scene) send(t *testing.T, by *netns.NS, p overlayPacket, inner []byte) error {
	to := n.A.Key.MAC(n.A.VNI(t, p.node), p.to)
	if !n.knows {
		to[5] ^= 1
	}
	return n.sendTo(t, by, p, to, unix.ETH_P_IP, inner)
}

// asGateway sends a node an overlay packet of a gateway of A, with any outer source. Who does not know the gateway's key
// uses another.
func (n *scene) asGateway(t *testing.T, by *netns.NS, s *dataplane.Side, i int, source netip.Addr, other overlay.Key, inner []byte) error {
	key, node, vni := other, n.A.Nodes[i], s.VNI(t, i)
	if n.knows {
		key = s.Key
	}
	return dataplane.SendRaw(by, dataplane.Packet(netip.AddrPortFrom(source, 40000), netip.AddrPortFrom(node.Host.Addr, overlay.Port),
		dataplane.Encapsulate(n.kind, vni, key.MAC(vni, s.Overlay.Addr), key.MAC(vni, node.Overlay.Addr), inner)))
}

// sendTo sends it to a MAC address, with any kind of frame.
func (n *scene) sendTo(t *testing.T, by *netns.NS, p overlayPacket, to overlay.MAC, etherType uint16, inner []byte) error {
	vni := n.A.VNI(t, p.node)
	return dataplane.SendRaw(by, dataplane.Packet(netip.AddrPortFrom(p.source, 40000), netip.AddrPortFrom(p.target, overlay.Port),
		dataplane.EncapsulateFrame(n.kind, vni, n.A.Key.MAC(vni, p.from), to, etherType, inner)))
}
