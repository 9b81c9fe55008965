package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
)

// keepalive keeps the path to a server behind NAT open. It is shorter than the shortest common UDP timeout of
// middleboxes, 30 s.
const keepalive = 25 * time.Second

// unreachableMetric is the metric of the unreachable routes behind those to the peer.
const unreachableMetric = 4096

// local is the gateway pod's own part of the desired state.
type local struct {
	plane int32
	key   wgtypes.Key
	// preshared is the tunnel's pre-shared key, the zero value if it has none.
	preshared wgtypes.Key
	// overlayKeys are the gateway's own keys for its links to nodes.
	overlayKeys overlay.Keys
	// node is the name of the node on which the gateway runs.
	node string
	// underlay is the pod's own interface, and underlayMTU the size limit of packets that leave through it.
	underlay    string
	underlayMTU int
	// path is the path to the peer's gateway.
	path path
	// endpoint is the server's endpoint to try now. port is the source port from which it is called: see wire.EndOfRange.
	endpoint netip.AddrPort
	port     uint16
	// held are the overlay addresses of the nodes that have pods already, by range.
	held map[netip.Prefix]netip.Addr
	// gone are the overlay addresses of nodes that are gone, although their reports remain.
	gone map[netip.Addr]bool
}

// desired is the desired state of the gateway's kernel.
type desired struct {
	overlay overlay.State
	nat     nat.Gateway
	tunnel  tunnel.Config
	// capacity is the MTU that this side can carry, and mtu the one that both sides can.
	capacity, mtu int
	// nodesMTU is what the nodes report now, 0 for none: it counts only after damping.
	nodesMTU int
	// address is the gateway's overlay address, and remote that of the peer's gateway as seen from this cluster.
	address, remote netip.Addr
	// isInitiator is set if this gateway is a client.
	isInitiator bool
	// isOnlyPlane is set if the peering has no other plane.
	isOnlyPlane bool
	// omittedNodes names nodes that cannot have a link, nil if there are none.
	omittedNodes error
	// disputed names pods that several nodes report, nil if there are none. The nodes with the overlay addresses holders
	// have them.
	disputed error
	holders  []netip.Addr
}

// desire computes the desired state of the gateway's kernel.
func desire(l local, p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) (d desired, err error) {
	plane := p.Plane(l.plane)
	if plane == nil {
		return d, fmt.Errorf("peering %s has no plane %d", p.Name, l.plane)
	}
	if plane.Role == v1alpha1.Server {
		l.endpoint, l.port = netip.AddrPort{}, 0 // they may remain from when this gateway was a client
	}
	internal := p.Spec.Local.InternalCIDR.Prefix
	number, numberErr := ipam.GatewayNumber(int(p.Spec.Index), int(l.plane))
	address, addressErr := ipam.GatewayAddr(internal, number)
	internalMapping, mappingErr := ipam.ExternalMapping(internal, p.Spec.Local.ExternalCIDR.Prefix)
	if err := cmp.Or(numberErr, addressErr, mappingErr); err != nil {
		return d, err
	}
	d.address = address
	d.remote, d.isInitiator, d.isOnlyPlane = plane.RemoteAddress.Addr, plane.Role == v1alpha1.Client, len(p.Spec.Planes) == 1
	remoteKey, err := wgtypes.ParseKey(plane.RemotePublicKey)
	if err != nil {
		return d, fmt.Errorf("peering %s: public key of the peer: %w", p.Name, err)
	}
	links, omitted := linkedNodes(p, l.plane, nodes)
	d.holders, d.disputed = l.assignPods(p, links)
	d.nodesMTU = nodesMTU(l, plane.Role, nodes, links)
	d.capacity = capacity(l, cmp.Or(l.path.nodes, d.nodesMTU), len(links) > 0)
	d.mtu = min(d.capacity, cmp.Or(l.path.agreed, d.capacity))
	remote := p.RemoteRanges()
	peerNodes, _, err := ipam.SplitExternal(p.Spec.Remote.ExternalCIDR.Prefix)
	if err != nil {
		return d, fmt.Errorf("peering %s: external CIDR of the peer: %w", p.Name, err)
	}
	d.setRules(l.underlay, p, internalMapping, peerNodes)
	d.tunnel = tunnel.Config{
		PrivateKey: l.key, PresharedKey: l.preshared, ListenPort: cmp.Or(l.port, tunnel.ListenPort), MTU: d.mtu, Address: d.address,
		Underlay: l.underlay,
		Peer: tunnel.Peer{
			PublicKey: remoteKey, Endpoint: l.endpoint, AllowedIPs: remote, Keepalive: lo.Ternary(d.isInitiator, keepalive, 0),
		},
	}
	d.addTunnel(remote)
	var linked []linkedNode
	var errs []error
	if omitted > 0 {
		errs = append(errs, fmt.Errorf("%d addresses and ranges of pods are left out, as the nodes report more than %d: the peer does not reach them", omitted, maxPods))
	}
	for _, n := range links {
		if err := d.addNode(l.overlayKeys.ForGeneration(plane.OverlayKeyGeneration), p, number, n); err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.name, err))
			continue
		}
		linked = append(linked, n)
	}
	d.addHosts(l.node, p, linked)
	d.omittedNodes = errors.Join(errs...)
	return d, nil
}

// setRules sets the rules for packets.
func (d *desired) setRules(underlay string, p *v1alpha1.Peering, internal nat.Mapping, peerNodes netip.Prefix) {
	pods := lo.FilterMap(p.Spec.Local.Pods, func(m v1alpha1.CIDRMapping, _ int) (nat.Mapping, bool) {
		return nat.Mapping{Real: m.Real.Prefix, Mapped: m.Mapped.Prefix}, p.CarriesFamily(m.Real.Addr())
	})
	d.nat = nat.Gateway{
		Underlay: underlay, TunnelGroup: tunnel.Group, OverlayGroup: overlay.Group, ReceiveGroup: tunnel.ReceiveGroup,
		Local: pods, Internal: internal, Address: d.address, Remote: p.RemoteRanges(),
		OverlayPort: overlay.Port, TunnelPort: tunnel.ListenPort, LivenessPort: liveness.Port,
		HealthPort: v1alpha1.HealthPort, MetricsPort: v1alpha1.MetricsPort, PeerGateway: d.remote, ExchangePorts: []uint16{exchange.Port},
		PeerNodes: peerNodes,
		LimitRate: uint64(p.Spec.Limits.BitsPerSecond) / 8 / uint64(len(p.Spec.Planes)),
		Pods:      lo.Map(pods, func(m nat.Mapping, _ int) netip.Prefix { return m.Real }),
	}
	if p.Spec.Services != nil {
		d.nat.ExchangePorts = append(d.nat.ExchangePorts, wire.ServicesPort)
	}
}

// addTunnel adds the routes of the tunnel. Packets from it go to nodes and nowhere else. Packets into it, from nodes and
// from the gateway itself, are routed by destination.
func (d *desired) addTunnel(remote []netip.Prefix) {
	d.overlay.Rules = []overlay.Rule{{IIF: tunnel.InterfaceName, Table: overlay.InboundTable}, {Table: overlay.Table}}
	d.overlay.Routes = append(d.overlay.Routes, overlay.Route{
		Table: overlay.InboundTable, Dst: netip.PrefixFrom(d.address, 0).Masked(), Unreachable: true, Metric: unreachableMetric,
	})
	for _, r := range remote {
		d.overlay.Routes = append(d.overlay.Routes,
			overlay.Route{Table: overlay.Table, Dst: r, Dev: tunnel.InterfaceName, Src: d.address},
			overlay.Route{Table: overlay.Table, Dst: r, Unreachable: true, Metric: unreachableMetric},
		)
	}
}

// podIP returns the pod's address of the overlay's family, which need not be its first one.
func podIP(addrs []netip.Addr, p *v1alpha1.Peering) (netip.Addr, error) {
	if i := slices.IndexFunc(addrs, p.CarriesFamily); i >= 0 {
		return addrs[i], nil
	}
	return netip.Addr{}, fmt.Errorf("this pod has no address of the overlay's address family, but only %v", addrs)
}

// linkedNode is a node that has reported the source address of its overlay packets.
type linkedNode struct {
	name            string
	number          int
	address, source netip.Addr
	pods            []netip.Prefix
	mtu             int
	created         time.Time
}

// maxPods limits the addresses and ranges of pods to which a gateway has routes. Kubernetes supports 150,000 pods in
// a cluster.
const maxPods = 150000

// linkedNodes returns the nodes whose agents know this gateway, by address, and how many of their reported addresses
// and ranges are left out.
func linkedNodes(p *v1alpha1.Peering, plane int32, nodes []v1alpha1.NodeNetwork) (out []linkedNode, omitted int) {
	left := maxPods
	for address, n := range overlayNodes(p, nodes) {
		// If the address is not one that an agent of ours took, the number is 0, which gets no link.
		number, _ := ipam.NodeNumber(p.Spec.Local.InternalCIDR.Prefix, address)
		if g := n.Gateway(p.Name, plane); g != nil && g.Source.IsValid() && !mtuTooSmall(n, g) {
			single := lo.Map(n.Status.PodIPs, func(ip v1alpha1.IP, _ int) netip.Prefix { return netip.PrefixFrom(ip.Addr, ip.BitLen()) })
			reported := slices.Concat(v1alpha1.Prefixes(n.Status.PodCIDRs), single)
			use := min(left, len(reported))
			left, omitted = left-use, omitted+len(reported)-use
			out = append(out, linkedNode{
				name: n.Name, number: number, address: address, source: g.Source.Addr,
				pods: podRanges(p, reported[:use]), mtu: int(g.MTU), created: n.CreationTimestamp.Time,
			})
		}
	}
	slices.SortFunc(out, func(a, b linkedNode) int { return a.address.Compare(b.address) })
	return out, omitted
}

// assignPods leaves each reported address and range of pods to one node: to the node that has it already, else to the
// node that was known first. Ranges of two nodes never overlap. So no node takes pods of others by its report. A node
// that is gone may still have a report, and keeps nothing against others. The error names what several nodes report, and
// holders are the nodes that have it.
func (l local) assignPods(p *v1alpha1.Peering, links []linkedNode) (holders []netip.Addr, disputed error) {
	named := map[string]netip.Addr{}
	var t takenPods = map[netip.Prefix]takenBy{}
	for _, h := range p.Spec.Local.Hosts {
		t[netip.PrefixFrom(h.Real.Addr, h.Real.BitLen())] = takenBy{isRange: true} // it has a route of its own
	}
	gone := make([]bool, len(links))
	order := make([]int, len(links))
	assigned := make([][]netip.Prefix, len(links))
	for i := range links {
		named[links[i].name] = links[i].address
		order[i], gone[i] = i, l.gone[links[i].address]
	}
	slices.SortFunc(order, func(a, b int) int {
		late := cmp.Compare(lo.Ternary(gone[a], 1, 0), lo.Ternary(gone[b], 1, 0))
		return cmp.Or(late, links[a].created.Compare(links[b].created), cmp.Compare(links[a].name, links[b].name))
	})
	var disputes []string
	for _, again := range []bool{true, false} {
		for _, i := range order {
			n := &links[i]
			for _, r := range n.pods {
				if again != (l.held[r] == n.address && !gone[i]) {
					continue
				}
				other, isTaken := t.take(r, n.name, p)
				if !isTaken {
					assigned[i] = append(assigned[i], r)
				} else if other != "" && other != n.name {
					disputes = append(disputes, fmt.Sprintf("node %s also reports %s, which is of %s", n.name, r, lo.Ternary(other == severalNodes, "others", "node "+other)))
					holders = append(holders, named[other])
				}
			}
		}
	}
	for i := range links {
		links[i].pods = assigned[i]
		slices.SortFunc(links[i].pods, netip.Prefix.Compare)
	}
	if len(disputes) == 0 {
		return nil, nil
	}
	slices.Sort(disputes)
	slices.SortFunc(holders, netip.Addr.Compare)
	more := lo.Ternary(len(disputes) > maxNamed, "; and more", "")
	return slices.Compact(holders), errors.New(strings.Join(disputes[:min(len(disputes), maxNamed)], "; ") + more)
}

// heldPods returns the nodes that have pods, by range.
func (d desired) heldPods() map[netip.Prefix]netip.Addr {
	held := map[netip.Prefix]netip.Addr{}
	for _, r := range d.overlay.Routes {
		if r.Table == overlay.InboundTable && r.Via.IsValid() {
			held[r.Dst] = r.Via
		}
	}
	return held
}

// takenPods are the addresses and ranges of pods that nodes have. It also has each prefix that contains such a range, so
// that an overlap is found without a search.
type takenPods map[netip.Prefix]takenBy

// takenBy is the node that has a range, or a part of it; "" for no node. isRange is set if it has all of it.
type takenBy struct {
	node    string
	isRange bool
}

// take takes a range for a node, unless one that overlaps is another node's, or the node has it already. It returns
// that node. A single address may be in another node's range: network plugins borrow addresses.
func (t takenPods) take(r netip.Prefix, node string, p *v1alpha1.Peering) (other string, isTaken bool) {
	if by, ok := t[r]; ok && (by.isRange || by.node != node) {
		return by.node, true
	}
	if !r.IsSingleIP() {
		widest := lo.Min(lo.Map(p.Spec.Local.Pods, func(m v1alpha1.CIDRMapping, _ int) int { return m.Real.Bits() }))
		for bits := r.Bits() - 1; bits >= widest; bits-- {
			around := netip.PrefixFrom(r.Addr(), bits).Masked()
			by, ok := t[around]
			if ok && by.isRange && by.node != node {
				return by.node, true
			}
			if !ok {
				t[around] = takenBy{node: node}
			} else if by.node != node && !by.isRange {
				t[around] = takenBy{node: severalNodes}
			}
		}
	}
	t[r] = takenBy{node, true}
	return "", false
}

// severalNodes takes the place of a node's name where several have parts of a range.
const severalNodes = "*"

// podRanges returns the part of a node's ranges and addresses that belongs to the cluster's pods. A node's report may
// cut off its own pods from the peering, and nothing else.
func podRanges(p *v1alpha1.Peering, reported []netip.Prefix) (out []netip.Prefix) {
	for _, r := range reported {
		if r.Bits() <= 0 || r.Overlaps(p.Spec.Local.InternalCIDR.Prefix) {
			continue
		}
		for _, m := range p.Spec.Local.Pods {
			// The peering may carry only a part of a node's range.
			if m.Real.Overlaps(r) {
				out = append(out, lo.Ternary(m.Real.Bits() > r.Bits(), m.Real.Prefix, r))
			}
		}
	}
	return out
}

// addNode adds the overlay link to a node, and the routes to its pods.
func (d *desired) addNode(key overlay.Key, p *v1alpha1.Peering, gateway int, n linkedNode) error {
	if !p.CarriesFamily(n.source) {
		return fmt.Errorf("it sends from %s, which has another address family than the overlay", n.source)
	}
	vni, err := ipam.VNI(gateway, n.number)
	if err != nil {
		return err
	}
	name := wire.GatewayLink(n.number)
	d.overlay.Links = append(d.overlay.Links, overlay.Link{
		Name: name, Kind: overlay.Kind(p.Spec.Overlay.LinkKind()), VNI: vni,
		Local: d.address, LocalMAC: key.MAC(vni, d.address), Peer: n.address, PeerMAC: key.MAC(vni, n.address),
		Remote: n.source, MTU: d.mtu,
	})
	self := netip.PrefixFrom(n.address, n.address.BitLen())
	for _, table := range []int{overlay.Table, overlay.InboundTable} {
		d.overlay.Routes = append(d.overlay.Routes, overlay.Route{Table: table, Dst: self, Dev: name, Src: d.address})
	}
	for _, pods := range n.pods {
		if p.CarriesFamily(pods.Addr()) {
			by := overlay.Route{Table: overlay.InboundTable, Dst: pods, Via: n.address, Dev: name, Src: d.address}
			d.overlay.Routes = append(d.overlay.Routes, by)
		}
	}
	d.nat.Nodes = append(d.nat.Nodes, n.source)
	return nil
}

// addHosts adds the routes to hosts outside of the cluster. They lead through one node, because a node tracks the
// connections. It is the gateway's own node if possible, so that connections last as long as the gateway.
func (d *desired) addHosts(node string, p *v1alpha1.Peering, links []linkedNode) {
	if len(links) == 0 {
		return
	}
	by := links[max(0, slices.IndexFunc(links, func(n linkedNode) bool { return n.name == node }))]
	for _, h := range p.Spec.Local.Hosts {
		if !p.CarriesFamily(h.Real.Addr) {
			continue
		}
		real := netip.PrefixFrom(h.Real.Addr, h.Real.BitLen())
		d.nat.Local = append(d.nat.Local, nat.Mapping{Real: real, Mapped: netip.PrefixFrom(h.Mapped.Addr, h.Mapped.BitLen())})
		d.overlay.Routes = append(d.overlay.Routes, overlay.Route{
			Table: overlay.InboundTable, Dst: real, Via: by.address, Dev: wire.GatewayLink(by.number), Src: d.address,
		})
	}
}

const (
	// growAfter is how long the same larger MTU has to be reported before it is accepted.
	growAfter = 10 * time.Second
	// agreeGap is the minimum time between two changes of the accepted MTU. Each one changes all nodes' links and
	// routes.
	agreeGap = 5 * time.Second
)

// dampedMTU holds an MTU that others report, the peer's gateway or the nodes, and the one that is accepted.
type dampedMTU struct {
	// reported is the last reported MTU, in bytes, and agreed the accepted one, each with its time.
	reported, agreed           int
	reportedSince, agreedSince time.Time
}

// update takes the MTU that others report, 0 for none, and the current time. It returns the accepted MTU, 0 if
// unknown.
func (m *dampedMTU) update(mtu int, now time.Time) int {
	if mtu == 0 {
		return m.agreed
	}
	if mtu = max(mtu, wire.MinMTU); mtu != m.reported {
		m.reported, m.reportedSince = mtu, now
	}
	grows := m.reported > m.agreed && now.Sub(m.reportedSince) >= growAfter
	first := m.agreed == 0
	if first || now.Sub(m.agreedSince) >= agreeGap && (grows || m.reported < m.agreed) {
		m.agreed, m.agreedSince = m.reported, now
	}
	return m.agreed
}

// path is the path to the peer's gateway.
type path struct {
	// overhead is what the tunnel adds to a packet to WireGuard's current endpoint, in bytes; 0 without an endpoint.
	overhead int
	// mtu is what the kernel knows about the path to it, from routes and ICMP errors, in bytes; 0 if it knows nothing.
	mtu int
	// agreed is the MTU that the peer's gateway can carry, and nodes the one that this cluster's nodes can; 0 if they have
	// not reported one.
	agreed, nodes int
}

// capacity returns the size of the largest packet that this side can carry: through the tunnel, over the pod's
// network, and by the nodes, which report nodes, 0 for nothing.
func capacity(l local, nodes int, hasLinks bool) int {
	mtu := min(l.underlayMTU, cmp.Or(l.path.mtu, l.underlayMTU)) - l.tunnelOverhead()
	if hasLinks {
		mtu = min(mtu, l.underlayMTU-overlay.Overhead)
	}
	return max(min(mtu, cmp.Or(nodes, mtu)), wire.MinMTU)
}

// nodesMTU returns the size of the largest packet that all nodes can carry, by their reports: over their networks, and
// through the overlay to each of them. It is 0 if none reports that.
func nodesMTU(l local, role v1alpha1.Role, nodes []v1alpha1.NodeNetwork, links []linkedNode) (mtu int) {
	least := func(reported int) {
		if reported > 0 {
			mtu = min(reported, cmp.Or(mtu, reported))
		}
	}
	for _, n := range nodes {
		// A client's packets leave through its own node, but a server may be reached through any node.
		passes := n.Name == l.node || role == v1alpha1.Server
		if passes && n.DeletionTimestamp.IsZero() && n.Status.UnderlayMTU >= minUnderlayMTU {
			least(int(n.Status.UnderlayMTU) - l.tunnelOverhead())
		}
	}
	for _, n := range links {
		least(n.mtu)
	}
	return mtu
}

func (l local) tunnelOverhead() int {
	return cmp.Or(l.path.overhead, tunnel.Overhead(l.endpoint.Addr()))
}

// Nodes that report less are left out, because one MTU applies to all packets of the peering. Links to other machines
// carry at least 1280 bytes (RFC 8200). A network plugin's overlay, ours, and the tunnel add at most 180 bytes.
const minUnderlayMTU, minNodeMTU = 1280, 1280 - 2*overlay.Overhead - tunnel.OverheadIPv6

// mtuTooSmall reports whether a node is left out for the MTU that it reports. g is its link to the gateway, nil for none.
func mtuTooSmall(n *v1alpha1.NodeNetwork, g *v1alpha1.NodeGateway) bool {
	return n.Status.UnderlayMTU > 0 && n.Status.UnderlayMTU < minUnderlayMTU || g != nil && g.MTU > 0 && g.MTU < minNodeMTU
}

// overlayNodes returns the nodes that have an address in the overlay, by that address. It skips reports that are being
// deleted, or that remain from another internal range.
func overlayNodes(p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) iter.Seq2[netip.Addr, *v1alpha1.NodeNetwork] {
	return func(yield func(netip.Addr, *v1alpha1.NodeNetwork) bool) {
		for i := range nodes {
			addr := nodes[i].Status.Address.Addr
			isMember := nodes[i].DeletionTimestamp.IsZero() && p.Spec.Local.InternalCIDR.Contains(addr)
			if isMember && !yield(addr, &nodes[i]) {
				return
			}
		}
	}
}
