package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/samber/lo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	gatewaychannel "github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

const (
	// UnderlayMTU is the MTU in bytes of all links below overlay and tunnel, unless Options set another one.
	UnderlayMTU = 1500
	// MTU is that of the path between pods of different clusters with UnderlayMTU.
	MTU = UnderlayMTU - tunnel.OverheadIPv4

	// TunnelNodePort is the NodePort for the tunnel, at the server's first node.
	TunnelNodePort = 30840
	// WebNodePort leads to port WebPort of the first pod. Peers must not reach it through that.
	WebNodePort = 30080
	WebPort     = 8080
	// RemoteNodePort leads to UDP port RemotePort of the peer's first pod.
	RemoteNodePort = 30081
	RemotePort     = 7777

	unreachable = 4000

	// startTimeout is how long a tunnel may take to start.
	startTimeout = 20 * time.Second
)

// Options choose the backends, and the properties of the links below them.
type Options struct {
	Overlay overlay.Kind
	Tunnel  tunnel.Backend
	// UnderlayMTU is 0 for the default.
	UnderlayMTU int
	// IPv6 makes the tunnel use IPv6.
	IPv6 bool
	// NoMasquerade makes pods leave the nodes with their own addresses.
	NoMasquerade bool
	// Third peers A with a third cluster, too.
	Third bool
}

func (o Options) underlayMTU() int {
	if o.UnderlayMTU == 0 {
		return UnderlayMTU
	}
	return o.UnderlayMTU
}

// MTU returns that of the path between pods of different clusters.
func (o Options) MTU() int {
	if o.IPv6 {
		return o.underlayMTU() - tunnel.OverheadIPv6
	}
	return o.underlayMTU() - tunnel.OverheadIPv4
}

// ranges are the same in both clusters of a peering.
type ranges struct {
	Pods, MappedPods, Internal, MappedInternal, MappedHosts netip.Prefix
}

// Ranges returns the ranges of A and B.
func Ranges() ranges {
	return ranges{
		Pods: netip.MustParsePrefix("10.244.0.0/16"), MappedPods: netip.MustParsePrefix("10.61.0.0/16"),
		Internal: netip.MustParsePrefix("10.80.0.0/19"), MappedInternal: netip.MustParsePrefix("10.62.0.0/19"), MappedHosts: netip.MustParsePrefix("10.62.32.0/19"),
	}
}

// thirdRanges returns the ranges of A and C, with different mapped ranges.
func thirdRanges() ranges {
	r := Ranges()
	r.MappedPods = netip.MustParsePrefix("10.63.0.0/16")
	r.MappedInternal, r.MappedHosts = netip.MustParsePrefix("10.64.0.0/19"), netip.MustParsePrefix("10.64.32.0/19")
	return r
}

// Remote returns the ranges of the other cluster. The last one is that of hosts.
func (r ranges) Remote() []netip.Prefix {
	return []netip.Prefix{r.MappedPods, r.MappedInternal, r.MappedHosts}
}

// Host is a namespace with its own address.
type Host struct {
	*netns.NS
	Addr netip.Addr
	// Mapped is the address by which the peer knows it, if it does.
	Mapped netip.Addr
}

// Cluster is one of the clusters of a Topology.
type Cluster struct {
	Name  string
	Nodes [2]Node
	// Side is the side of the only peering, or of A's peering with B.
	Side
	// Others are the sides of further peerings.
	Others []*Side
	// Exposed are hosts outside the cluster that the peer may reach: hosts of A that B reaches.
	Exposed []Host
	// Plain are additional pod ranges of this cluster and of the peer, which are not translated.
	Plain struct{ Own, Peer netip.Prefix }

	// keys are those of the cluster's overlay.
	keys    overlay.Keys
	options Options
}

// Side is one end of a peering in a cluster.
type Side struct {
	// Gateway is a pod on the first node.
	Gateway Host
	// Tunnel is the process in the gateway, Config the configuration of the tunnel.
	Tunnel *Tunnel
	Config tunnel.Config
	// Overlay is the gateway's overlay address, and Key that of its links.
	Overlay Host
	Key     overlay.Key

	// number is that of the gateway, peerGateway the address by which it knows the peer's gateway.
	number      int
	ranges      ranges
	peerGateway netip.Addr
}

// Link returns the name of a node's link to the gateway.
func (s *Side) Link() string { return wire.NodeLink(int32(s.number), 0) }

// VNI returns the VNI of the link between the gateway and a node.
func (s *Side) VNI(t testing.TB, node int) uint32 {
	t.Helper()
	return kit.Must(ipam.VNI(s.number, node+1))(t)
}

// Remote returns the ranges of the peer.
func (s *Side) Remote() []netip.Prefix { return s.ranges.Remote() }

// Sides returns the sides of all peerings.
func (c *Cluster) Sides() []*Side { return append([]*Side{&c.Side}, c.Others...) }

// Node is a node with one pod.
type Node struct {
	Host
	Pod Host
	// Overlay is the node's overlay address.
	Overlay Host
}

// Topology is two peered clusters, or three.
type Topology struct {
	A, B *Cluster
	// C is a peer of A only, nil without Options.Third.
	C *Cluster
	// LAN is a host in the nodes' network.
	LAN Host
	net *netns.NS
}

// New builds two clusters and peers them.
func New(t testing.TB, o Options) *Topology {
	t.Helper()
	topology := &Topology{net: netns.New(t, "underlay")}
	topology.net.Bridge(t, "br0")
	topology.LAN = Host{NS: topology.attach(t, "lan", "172.18.9.9/16"), Addr: netip.MustParseAddr("172.18.9.9")}
	topology.LAN.Mapped = netip.MustParseAddr("10.62.32.9")
	topology.A, topology.B = topology.cluster(t, "a", 1, Ranges(), o), topology.cluster(t, "b", 2, Ranges(), o)
	if o.Third {
		topology.C = topology.cluster(t, "c", 3, thirdRanges(), o)
		topology.A.addSide(t, thirdRanges())
	}
	topology.setLinks(t, o)
	for _, c := range topology.Clusters() {
		c.overlay(t)
		for i := range c.Nodes {
			// Otherwise the tunnel's packets are dropped.
			netns.In(t, c.Nodes[i], func() (bool, error) { return firewall.EnsureAcceptRules(c.NodeTable(i)) })
		}
	}
	topology.A.Exposed = []Host{topology.LAN}
	topology.tunnel(t, o)
	if o.NoMasquerade {
		// The tunnel is tracked before the nodes have their tables, and gets no reply.
		kit.Within(t, startTimeout, "a handshake is attempted", func() string {
			if topology.A.Tunnel.Stats(t).TxBytes == 0 {
				return "nothing was sent"
			}
			return ""
		})
	} else {
		topology.AwaitHandshake(t)
	}
	for _, c := range topology.Clusters() {
		c.Apply(t, o.Overlay)
	}
	topology.AwaitHandshake(t)
	return topology
}

// Clusters returns all clusters.
func (n *Topology) Clusters() []*Cluster {
	if n.C == nil {
		return []*Cluster{n.A, n.B}
	}
	return []*Cluster{n.A, n.B, n.C}
}

// attach creates a namespace with an interface eth0 in the underlay.
func (n *Topology) attach(t testing.TB, name, address string) *netns.NS {
	t.Helper()
	ns := netns.New(t, name)
	netns.Veth(t, ns, "eth0", n.net, name)
	n.net.Enslave(t, name, "br0")
	ns.Addr(t, "eth0", netip.MustParsePrefix(address))
	return ns
}

func (n *Topology) cluster(t testing.TB, name string, number int, r ranges, o Options) *Cluster {
	t.Helper()
	c := &Cluster{Name: name, keys: overlay.Keys{1: {byte(number)}}, Side: Side{ranges: r}, options: o}
	c.Key = c.keys.ForGateway("gateway-first-0", 1)
	for i := range c.Nodes {
		host := name + fmt.Sprint(i+1)
		addr := fmt.Sprintf("172.18.%d.%d", number, i+1)
		node := &c.Nodes[i]
		node.Host = Host{NS: n.attach(t, host, addr+"/16"), Addr: netip.MustParseAddr(addr)}
		node.Sysctl(t, "ipv4/ip_forward", "1")
		node.Sysctl(t, "ipv4/conf/all/rp_filter", "1")
		node.Sysctl(t, "ipv4/conf/default/rp_filter", "1")
		node.Pod = pod(t, host+"-pod", fmt.Sprintf("10.244.%d.20", i+1), r)
	}
	first, second := &c.Nodes[0], &c.Nodes[1]
	first.Bridge(t, "cni0")
	first.Addr_(t, "cni0", "10.244.1.1/24")
	c.attachPod(t, first.Pod)
	c.Gateway = c.addGateway(t, name+"-gw", "10.244.1.10")

	netns.Veth(t, second.Pod.NS, "eth0", second.NS, "veth-pod")
	second.Addr_(t, "veth-pod", "10.244.2.1/32")
	second.Do(t, func() error { return linkRoute("veth-pod", second.Pod.Addr) })
	second.Pod.NS.Addr(t, "eth0", netip.PrefixFrom(second.Pod.Addr, 32))
	second.Pod.Do(t, func() error { return linkRoute("eth0", netip.MustParseAddr("10.244.2.1")) })
	second.Pod.Route(t, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.244.2.1"))

	first.Route(t, netip.MustParsePrefix("10.244.2.0/24"), second.Addr)
	second.Route(t, netip.MustParsePrefix("10.244.1.0/24"), first.Addr)
	for i := range c.Nodes {
		CNI(t, c.Nodes[i].NS, Ranges().Pods, []Service{
			{Proto: unix.IPPROTO_UDP, Port: TunnelNodePort, To: c.Gateway.Addr, ToPort: tunnel.ListenPort},
			{Proto: unix.IPPROTO_TCP, Port: WebNodePort, To: first.Pod.Addr, ToPort: WebPort},
			{Proto: unix.IPPROTO_UDP, Port: RemoteNodePort, To: first.Pod.Mapped, ToPort: RemotePort},
		}, !o.NoMasquerade)
	}
	return c
}

func pod(t testing.TB, name, address string, r ranges) Host {
	t.Helper()
	addr := netip.MustParseAddr(address)
	return Host{NS: netns.New(t, name), Addr: addr, Mapped: translate(addr, r.MappedPods)}
}

// addGateway creates a gateway's pod.
func (c *Cluster) addGateway(t testing.TB, name, address string) Host {
	t.Helper()
	p := pod(t, name, address, c.ranges)
	p.Sysctl(t, "ipv4/conf/all/forwarding", "0")
	// A pod inherits its host's settings.
	p.Sysctl(t, "ipv4/conf/all/rp_filter", "1")
	p.Sysctl(t, "ipv4/conf/default/rp_filter", "1")
	c.attachPod(t, p)
	return p
}

// addSide adds a second gateway.
func (c *Cluster) addSide(t testing.TB, r ranges) {
	t.Helper()
	c.Others = []*Side{{Gateway: c.addGateway(t, c.Name+"-g2", c.Gateway.Addr.Next().String()), Key: c.keys.ForGateway("gateway-second-0", 1), number: 1, ranges: r}}
}

// attachPod connects a pod to the first node's bridge.
func (c *Cluster) attachPod(t testing.TB, p Host) {
	t.Helper()
	first := &c.Nodes[0]
	netns.Veth(t, p.NS, "eth0", first.NS, "veth-"+p.Name[3:])
	first.Enslave(t, "veth-"+p.Name[3:], "cni0")
	p.NS.Addr(t, "eth0", netip.PrefixFrom(p.Addr, 24))
	p.NS.Route(t, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.244.1.1"))
}

// Addr_ adds an address; Host.Addr hides the namespace's method.
func (h Host) Addr_(t testing.TB, dev, address string) {
	t.Helper()
	h.NS.Addr(t, dev, netip.MustParsePrefix(address))
}

func linkRoute(dev string, dst netip.Addr) error {
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{
		LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK,
		Dst: netlink.NewIPNet(dst.AsSlice()),
	})
}

func translate(a netip.Addr, to netip.Prefix) netip.Addr {
	out, _ := ipam.Mapping{Real: netip.PrefixFrom(a, to.Bits()).Masked(), Mapped: to}.Translate(a) // a is in the range
	return out
}

// overlay sets the overlay addresses.
func (c *Cluster) overlay(t testing.TB) {
	t.Helper()
	host := func(ns *netns.NS, a netip.Addr, r ranges) Host {
		return Host{NS: ns, Addr: a, Mapped: translate(a, r.MappedInternal)}
	}
	for _, s := range c.Sides() {
		s.Overlay = host(s.Gateway.NS, kit.Must(ipam.GatewayAddr(s.ranges.Internal, s.number))(t), s.ranges)
	}
	for i := range c.Nodes {
		c.Nodes[i].Overlay = host(c.Nodes[i].NS, kit.Must(ipam.NodeAddr(c.ranges.Internal, i+1))(t), c.ranges)
	}
}

// Apply applies the wanted state to nodes and gateways, and checks that a second time changes nothing.
func (c *Cluster) Apply(t testing.TB, kind overlay.Kind) {
	t.Helper()
	for _, s := range c.Sides() {
		gateway := c.gatewayState(t, kind, s)
		apply(t, s.Gateway.NS, gateway, func() (bool, error) { return nat.ApplyGateway(context.Background(), c.TableOf(t, s)) })
		apply(t, s.Gateway.NS, gateway, func() (bool, error) {
			return nat.ApplyReceive(context.Background(), nat.Receive{
				Underlay: "eth0", Entry: tunnel.EntryInterface, Ports: []uint16{overlay.Port, tunnel.ListenPort},
			})
		})
	}
	for i := range c.Nodes {
		apply(t, c.Nodes[i].NS, c.NodeState(t, kind, i), func() (bool, error) {
			table, err := nat.ApplyNode(context.Background(), c.NodeTable(i))
			forward, forwardErr := firewall.EnsureAcceptRules(c.NodeTable(i))
			return table || forward, errors.Join(err, forwardErr)
		})
	}
}

// ApplyNode applies a different table and state to a node.
func ApplyNode(t testing.TB, ns *netns.NS, table nat.Node, state overlay.State) {
	t.Helper()
	apply(t, ns, state, func() (bool, error) { return nat.ApplyNode(context.Background(), table) })
}

// NodeTable returns the nftables table of a node. The gateway is on the first one.
func (c *Cluster) NodeTable(i int) nat.Node {
	n := nat.Node{
		OverlayGroup: overlay.Group, Address: c.Nodes[i].Overlay.Addr,
		Pods:    []netip.Prefix{Ranges().Pods},
		OwnPods: []netip.Prefix{c.podRange(i)}, Uplinks: []string{"eth0"},
		OverlayPort: overlay.Port, TunnelPort: tunnel.ListenPort,
	}
	for _, h := range c.Exposed {
		n.Hosts = append(n.Hosts, h.Addr)
	}
	for _, s := range c.Sides() {
		remote := s.Remote()
		if p := c.Plain; p.Own.IsValid() {
			n.Pods, remote = append(n.Pods, p.Own), append(remote, p.Peer)
			n.OwnPods = append(n.OwnPods, netip.PrefixFrom(translate(c.Nodes[i].Pod.Addr, p.Own), 32))
		}
		n.Remote = append(n.Remote, remote...)
		n.Gateways = append(n.Gateways, nat.NodeGateway{
			Pod: s.Gateway.Addr, VNI: lo.Must(ipam.VNI(s.number, i+1)), Overlay: s.Overlay.Addr, PeerGateway: s.peerGateway, Local: i == 0, IsInitiator: c.Name == "a",
			Link: s.Link(), Remote: remote,
		})
	}
	return n
}

// podRange returns the range of a node's pods. The second node has no range: the gateway knows single addresses.
func (c *Cluster) podRange(i int) netip.Prefix {
	if i == 0 {
		return netip.PrefixFrom(c.Nodes[i].Pod.Addr, 24).Masked()
	}
	return netip.PrefixFrom(c.Nodes[i].Pod.Addr, 32)
}

func apply(t testing.TB, ns *netns.NS, state overlay.State, table func() (bool, error)) {
	t.Helper()
	WithKernel(t, ns, func(k *overlay.Kernel) error {
		if _, err := k.Apply(context.Background(), state); err != nil {
			return err
		}
		if changes, err := k.Apply(context.Background(), state); err != nil || len(changes) > 0 {
			return fmt.Errorf("second apply: %v, %w", changes, err)
		}
		if _, err := table(); err != nil {
			return err
		}
		if changed, err := table(); err != nil || changed {
			return fmt.Errorf("second apply of the table: changed %v, %w", changed, err)
		}
		return nil
	})
}

// WithKernel runs a function about links and routes in a namespace.
func WithKernel(t testing.TB, ns *netns.NS, f func(k *overlay.Kernel) error) {
	t.Helper()
	ns.Do(t, func() error {
		k, err := overlay.New()
		if err != nil {
			return err
		}
		defer k.Close()
		return f(k)
	})
}

// Outer returns the source address with which a node sends to the gateway.
func (c *Cluster) Outer(t testing.TB, i int) (src netip.Addr) {
	t.Helper()
	WithKernel(t, c.Nodes[i].NS, func(k *overlay.Kernel) (err error) {
		src, _, err = k.SourceTo(c.Gateway.Addr)
		return err
	})
	return src
}

// GatewayTable returns the gateway's nftables table.
func (c *Cluster) GatewayTable(t testing.TB) nat.Gateway {
	t.Helper()
	return c.TableOf(t, &c.Side)
}

// TableOf returns the nftables table of any gateway.
func (c *Cluster) TableOf(t testing.TB, s *Side) nat.Gateway {
	t.Helper()
	r := s.ranges
	g := nat.Gateway{
		Underlay: "eth0", TunnelGroup: tunnel.Group, OverlayGroup: overlay.Group, ReceiveGroup: tunnel.ReceiveGroup,
		Local:    []nat.Mapping{{Real: r.Pods, Mapped: r.MappedPods}},
		Internal: nat.Mapping{Real: r.Internal, Mapped: r.MappedInternal}, Address: s.Overlay.Addr,
		Remote:      r.Remote(),
		Nodes:       []netip.Addr{c.Outer(t, 0), c.Outer(t, 1)},
		OverlayPort: overlay.Port, TunnelPort: tunnel.ListenPort, LivenessPort: liveness.Port,
		HealthPort: v1alpha1.HealthPort, MetricsPort: v1alpha1.MetricsPort, Pods: []netip.Prefix{r.Pods}, PeerGateway: s.peerGateway, ExchangePorts: []uint16{gatewaychannel.Port},
		PeerNodes: r.MappedInternal,
	}
	for _, h := range c.exposedTo(s) {
		g.Local = append(g.Local, nat.Mapping{Real: netip.PrefixFrom(h.Addr, 32), Mapped: netip.PrefixFrom(h.Mapped, 32)})
	}
	if p := c.Plain; p.Own.IsValid() {
		g.Local = slices.Insert(g.Local, 0, nat.Mapping{Real: p.Own, Mapped: p.Own})
		g.Remote = append(g.Remote, p.Peer)
	}
	return g
}

// exposedTo returns the hosts that the peer of a side may reach.
func (c *Cluster) exposedTo(s *Side) []Host {
	if s != &c.Side {
		return nil
	}
	return c.Exposed
}

func (c *Cluster) gatewayState(t testing.TB, kind overlay.Kind, side *Side) overlay.State {
	t.Helper()
	gateway := side.Overlay.Addr
	s := overlay.State{Rules: []overlay.Rule{
		{IIF: tunnel.InterfaceName, Table: overlay.InboundTable}, {Table: overlay.Table},
	}}
	for _, p := range side.Remote() {
		s.Routes = append(
			s.Routes,
			overlay.Route{Table: overlay.Table, Dst: p, Dev: tunnel.InterfaceName, Src: gateway},
			overlay.Route{Table: overlay.Table, Dst: p, Unreachable: true, Metric: unreachable},
		)
	}
	for i := range c.Nodes {
		node := c.Nodes[i].Overlay.Addr
		name := wire.GatewayLink(i + 1)
		vni := side.VNI(t, i)
		s.Links = append(s.Links, overlay.Link{
			Name: name, Kind: kind, VNI: vni, Local: gateway, LocalMAC: side.Key.MAC(vni, gateway),
			Peer: node, PeerMAC: side.Key.MAC(vni, node), Remote: c.Outer(t, i), MTU: c.options.underlayMTU() - overlay.Overhead,
		})
		host := netip.PrefixFrom(node, 32)
		pods := c.podRange(i)
		s.Routes = append(
			s.Routes,
			overlay.Route{Table: overlay.Table, Dst: host, Dev: name, Src: gateway},
			overlay.Route{Table: overlay.InboundTable, Dst: host, Dev: name, Src: gateway},
			overlay.Route{
				Table: overlay.InboundTable, Dst: pods, Dev: name, Via: node, Src: gateway,
			},
		)
	}
	for _, h := range c.exposedTo(side) {
		s.Routes = append(s.Routes, overlay.Route{
			Table: overlay.InboundTable, Dst: netip.PrefixFrom(h.Addr, 32), Dev: wire.GatewayLink(1), Via: c.Nodes[0].Overlay.Addr,
			Src: gateway,
		})
	}
	s.Routes = append(s.Routes, overlay.Route{
		Table: overlay.InboundTable, Dst: netip.MustParsePrefix("0.0.0.0/0"), Unreachable: true,
	})
	return s
}

// NodeState returns a node's links, routes and rule.
func (c *Cluster) NodeState(t testing.TB, kind overlay.Kind, i int) overlay.State {
	t.Helper()
	local := c.Nodes[i].Overlay.Addr
	s := overlay.State{Rules: []overlay.Rule{{Table: overlay.Table}}}
	for _, side := range c.Sides() {
		vni, gateway, name := side.VNI(t, i), side.Overlay.Addr, side.Link()
		s.Links = append(s.Links, overlay.Link{
			Name: name, Kind: kind, VNI: vni, Local: local, LocalMAC: side.Key.MAC(vni, local), Peer: gateway,
			PeerMAC: side.Key.MAC(vni, gateway), Remote: side.Gateway.Addr, MTU: c.options.underlayMTU() - overlay.Overhead,
		})
		s.Routes = append(s.Routes, overlay.Route{Table: overlay.Table, Dst: netip.PrefixFrom(gateway, 32), Dev: name, Src: local})
		for _, p := range side.Remote() {
			s.Routes = append(
				s.Routes,
				overlay.Route{Table: overlay.Table, Dst: p, Dev: name, Via: gateway, Src: local, MTU: c.options.MTU()},
				overlay.Route{Table: overlay.Table, Dst: p, Unreachable: true, Metric: unreachable},
			)
		}
	}
	return s
}

// tunnel starts the tunnels. A is the client.
func (n *Topology) tunnel(t testing.TB, o Options) {
	t.Helper()
	n.connect(t, o, &n.A.Side, &n.B.Side, netip.AddrPortFrom(n.B.Nodes[0].Addr, TunnelNodePort))
	if o.Third {
		n.connect(t, o, n.A.Others[0], &n.C.Side, netip.AddrPortFrom(n.C.Nodes[0].Addr, TunnelNodePort))
	}
}

// connect starts the tunnel from a gateway of A to the gateway of another cluster, which has an endpoint.
func (n *Topology) connect(t testing.TB, o Options, client, server *Side, endpoint netip.AddrPort) {
	t.Helper()
	keyA, keyB := kit.Must(wgtypes.GeneratePrivateKey())(t), kit.Must(wgtypes.GeneratePrivateKey())(t)
	config := func(s *Side, own, peer wgtypes.Key) tunnel.Config {
		return tunnel.Config{
			PrivateKey: own, ListenPort: tunnel.ListenPort, MTU: o.MTU(), Address: s.Overlay.Addr,
			Underlay: "eth0",
			Peer:     tunnel.Peer{PublicKey: peer.PublicKey(), AllowedIPs: s.Remote()},
		}
	}
	client.peerGateway, server.peerGateway = server.Overlay.Mapped, client.Overlay.Mapped
	client.Config, server.Config = config(client, keyA, keyB), config(server, keyB, keyA)
	client.Config.Peer.Endpoint = endpoint
	if o.IPv6 {
		client.Config.Peer.Endpoint = netip.AddrPortFrom(ipv6Gateway(2), tunnel.ListenPort)
	}
	client.Config.Peer.Keepalive = 5 * time.Second
	// The server first, because a handshake initiation that comes too early costs 5 s.
	for _, s := range []*Side{server, client} {
		s.Tunnel = StartTunnel(t, s.Gateway.NS, o.Tunnel, tunnel.InterfaceName)
		kit.ErrorIf(t, !s.Tunnel.Configure(t, s.Config), "configuring a new tunnel changed nothing")
		kit.ErrorIf(t, s.Tunnel.Configure(t, s.Config), "a second Configure of the tunnel changed something")
	}
}

// AwaitHandshake waits until A's tunnels have had a handshake.
func (n *Topology) AwaitHandshake(t testing.TB) {
	t.Helper()
	for _, s := range n.A.Sides() {
		kit.Within(t, startTimeout, "a handshake", func() string {
			if s.Tunnel.Stats(t).LastHandshake.IsZero() {
				return "there was none"
			}
			return ""
		})
	}
}
