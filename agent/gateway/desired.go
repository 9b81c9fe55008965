package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
)

// keepalive keeps the path to a server behind NAT open, below the shortest
// common timeout of UDP in middleboxes, 30 s.
const keepalive = 25 * time.Second

// lastMetric is that of the unreachable routes behind those to the peer.
const lastMetric = 4096

// local is what the gateway's pod itself contributes to what is wanted.
type local struct {
	plane int32
	key   wgtypes.Key
	// preshared is the tunnel's pre-shared key, the zero value if it has none.
	preshared wgtypes.Key
	// overlayKeys are the cluster's.
	overlayKeys overlay.Keys
	// node is the name of the one that it runs on.
	node string
	// underlay is the pod's own interface, underlayMTU how large packets may be
	// that leave by it.
	underlay    string
	underlayMTU int
	// path is how packets get to the peer's gateway.
	path path
	// endpoint is the one of the server's endpoints to be tried now.
	endpoint netip.AddrPort
}

// desired is all that the gateway's kernel should hold.
type desired struct {
	overlay overlay.State
	nat     nat.Gateway
	tunnel  tunnel.Config
	// capacity is the MTU that this side can do, mtu the one both can.
	capacity, mtu int
	// address is the gateway's overlay address, remote that of the peer's
	// gateway as this cluster knows it.
	address, remote netip.Addr
	// calls says that this gateway is a client.
	calls bool
	// alone says that the peering has no other plane.
	alone bool
	// leftOut says which nodes cannot be linked to, nil if there are none.
	leftOut error
}

// desire computes what the gateway's kernel should hold.
func desire(l local, p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) (d desired, err error) {
	plane := p.Plane(l.plane)
	if plane == nil {
		return d, fmt.Errorf("peering %s has no plane %d", p.Name, l.plane)
	}
	if plane.Role == v1alpha1.Server {
		l.endpoint = netip.AddrPort{} // of when it was a client, maybe
	}
	internal := p.Spec.Local.InternalCIDR.Prefix
	number, numberErr := ipam.GatewayNumber(int(p.Spec.Index), int(l.plane))
	address, addressErr := ipam.GatewayAddr(internal, number)
	internalMapping, mappingErr := ipam.ExternalMapping(internal, p.Spec.Local.ExternalCIDR.Prefix)
	if err := cmp.Or(numberErr, addressErr, mappingErr); err != nil {
		return d, err
	}
	d.address = address
	d.remote, d.calls, d.alone = plane.RemoteAddress.Addr, plane.Role == v1alpha1.Client, len(p.Spec.Planes) == 1
	remoteKey, err := wgtypes.ParseKey(plane.RemotePublicKey)
	if err != nil {
		return d, fmt.Errorf("peering %s: public key of the peer: %w", p.Name, err)
	}
	links, omitted := linkedNodes(p, l.plane, nodes)
	d.capacity = capacity(l, plane.Role, nodes, links)
	d.mtu = d.capacity
	if l.path.agreed > 0 {
		d.mtu = min(d.mtu, l.path.agreed)
	}
	remote := p.RemoteRanges()
	pods := lo.FilterMap(p.Spec.Local.Pods, func(m v1alpha1.CIDRMapping, _ int) (nat.Mapping, bool) {
		return nat.Mapping{Real: m.Real.Prefix, Mapped: m.Mapped.Prefix}, p.Carries(m.Real.Addr())
	})
	d.nat = nat.Gateway{
		Underlay: l.underlay, TunnelGroup: tunnel.Group, OverlayGroup: overlay.Group, ReceiveGroup: tunnel.ReceiveGroup,
		Local: pods, Internal: nat.Mapping(internalMapping), Address: d.address, Remote: remote,
		OverlayPort: overlay.Port, TunnelPort: tunnel.ListenPort, ProbePort: tunnel.ProbePort, LivenessPort: liveness.Port,
		HealthPort: v1alpha1.HealthPort, MetricsPort: v1alpha1.MetricsPort, PeerGateway: d.remote, ExchangePort: exchange.Port,
		LimitRate: uint64(p.Spec.Limits.BitsPerSecond) / 8 / uint64(len(p.Spec.Planes)),
		Pods:      lo.Map(pods, func(m nat.Mapping, _ int) netip.Prefix { return m.Real }),
	}
	d.tunnel = tunnel.Config{
		PrivateKey: l.key, PresharedKey: l.preshared, ListenPort: tunnel.ListenPort, MTU: d.mtu, Address: d.address,
		Underlay: l.underlay,
		Peer: tunnel.Peer{
			PublicKey: remoteKey, Endpoint: l.endpoint, AllowedIPs: remote, Keepalive: lo.Ternary(d.calls, keepalive, 0),
		},
	}

	// What came out of the tunnel goes to nodes and nowhere else. What goes into
	// it, from nodes and from the gateway itself, is told by its destination.
	d.overlay.Rules = []overlay.Rule{
		{IIF: tunnel.InterfaceName, Table: overlay.InboundTable},
		{Table: overlay.Table},
	}
	d.overlay.Routes = append(d.overlay.Routes, overlay.Route{
		Table: overlay.InboundTable, Dst: netip.PrefixFrom(d.address, 0).Masked(), Unreachable: true, Metric: lastMetric,
	})
	for _, r := range remote {
		d.overlay.Routes = append(d.overlay.Routes,
			overlay.Route{Table: overlay.Table, Dst: r, Dev: tunnel.InterfaceName, Src: d.address},
			overlay.Route{Table: overlay.Table, Dst: r, Unreachable: true, Metric: lastMetric},
		)
	}
	var linked []linkedNode
	var errs []error
	if omitted > 0 {
		errs = append(errs, fmt.Errorf("%d addresses and ranges of pods are left out, as the nodes report more than %d: the peer does not reach them", omitted, maxPods))
	}
	for _, n := range links {
		if err := d.addNode(l.overlayKeys.Of(plane.OverlayKeyGeneration), p, number, n); err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.name, err))
			continue
		}
		linked = append(linked, n)
	}
	d.addHosts(l.node, p, linked)
	d.leftOut = errors.Join(errs...)
	return d, nil
}

// podIP is the one of the pod's addresses that is of the overlay's family: the
// first one may be the other's.
func podIP(addrs []netip.Addr, p *v1alpha1.Peering) (netip.Addr, error) {
	if i := slices.IndexFunc(addrs, p.Carries); i >= 0 {
		return addrs[i], nil
	}
	return netip.Addr{}, fmt.Errorf("this pod has no address of the overlay's address family, but only %v", addrs)
}

// linkedNode is a node that has reported from where its overlay packets come.
type linkedNode struct {
	name            string
	number          int
	address, source netip.Addr
	pods            []netip.Prefix
	mtu             int
	// version is a number that the API server raises with each write of any object.
	version uint64
}

// maxPods bounds how many addresses and ranges of pods a gateway has routes to. Kubernetes is made
// for 150,000 pods in a cluster.
const maxPods = 150000

// linkedNodes are the nodes whose agents know this gateway, by address, and how many of the
// addresses and ranges that they report are left out. Pods that two
// of them have belong to the one whose object was written last, by its version: the
// other node is gone and its NodeNetwork is not yet. So it is when a Node was deleted
// and another one has got its range, or when a pod's address is used again.
func linkedNodes(p *v1alpha1.Peering, plane int32, nodes []v1alpha1.NodeNetwork) (out []linkedNode, omitted int) {
	left := maxPods
	for address, n := range members(p, nodes) {
		// 0, which has no link, if no agent of ours has taken that address.
		number, _ := ipam.NodeNumber(p.Spec.Local.InternalCIDR.Prefix, address)
		version, _ := strconv.ParseUint(n.ResourceVersion, 10, 64)
		if g := n.Gateway(p.Name, plane); g != nil && g.Source.IsValid() {
			said := podsOf(n.Status)
			use := min(left, len(said))
			left, omitted = left-use, omitted+len(said)-use
			out = append(out, linkedNode{
				name: n.Name, number: number, address: address, source: g.Source.Addr,
				pods: podRanges(p, said[:use]), mtu: int(g.MTU), version: version,
			})
		}
	}
	slices.SortFunc(out, func(a, b linkedNode) int {
		return cmp.Or(cmp.Compare(b.version, a.version), a.address.Compare(b.address))
	})
	taken := lo.SliceToMap(p.Spec.Local.Hosts, func(h v1alpha1.AddressMapping) (netip.Prefix, bool) {
		return netip.PrefixFrom(h.Real.Addr, h.Real.BitLen()), true // a route of its own leads there
	})
	for i := range out {
		out[i].pods = slices.DeleteFunc(out[i].pods, func(p netip.Prefix) bool {
			before := taken[p]
			taken[p] = true
			return before
		})
	}
	slices.SortFunc(out, func(a, b linkedNode) int { return a.address.Compare(b.address) })
	return out, omitted
}

// podsOf are a node's ranges of pods, and the single addresses outside of them.
func podsOf(s v1alpha1.NodeNetworkStatus) []netip.Prefix {
	single := lo.Map(s.PodIPs, func(ip v1alpha1.IP, _ int) netip.Prefix { return netip.PrefixFrom(ip.Addr, ip.BitLen()) })
	return slices.Concat(v1alpha1.Prefixes(s.PodCIDRs), single)
}

// podRanges are what of a node's ranges and addresses is of the cluster's pods. What a node says
// may cost its own pods the peering, and nobody else.
func podRanges(p *v1alpha1.Peering, said []netip.Prefix) (out []netip.Prefix) {
	for _, r := range said {
		if r.Bits() <= 0 || r.Overlaps(p.Spec.Local.InternalCIDR.Prefix) {
			continue
		}
		for _, m := range p.Spec.Local.Pods {
			// The peering may carry a part of a node's range only.
			if m.Real.Overlaps(r) && m.Real.Bits() > r.Bits() {
				out = append(out, m.Real.Prefix)
			} else if m.Real.Overlaps(r) {
				out = append(out, r)
			}
		}
	}
	return out
}

// addNode adds the overlay link to a node, and the routes to its pods.
func (d *desired) addNode(key overlay.Key, p *v1alpha1.Peering, gateway int, n linkedNode) error {
	if !p.Carries(n.source) {
		return fmt.Errorf("it sends from %s, which is of another address family than the overlay", n.source)
	}
	vni, err := ipam.VNI(gateway, n.number)
	if err != nil {
		return err
	}
	name := wire.GatewayLink(n.number)
	d.overlay.Links = append(d.overlay.Links, overlay.Link{
		Name: name, Kind: overlay.Kind(p.Spec.Overlay.LinkKind()), VNI: vni,
		Local: d.address, LocalMAC: key.MAC(vni, d.address), Peer: n.address, PeerMAC: key.MAC(vni, n.address),
		Remote: n.source, Port: overlay.Port, MTU: d.mtu,
	})
	self := netip.PrefixFrom(n.address, n.address.BitLen())
	for _, table := range []int{overlay.Table, overlay.InboundTable} {
		d.overlay.Routes = append(d.overlay.Routes, overlay.Route{Table: table, Dst: self, Dev: name, Src: d.address})
	}
	for _, pods := range n.pods {
		if p.Carries(pods.Addr()) {
			by := overlay.Route{Table: overlay.InboundTable, Dst: pods, Via: n.address, Dev: name, Src: d.address}
			d.overlay.Routes = append(d.overlay.Routes, by)
		}
	}
	d.nat.Nodes = append(d.nat.Nodes, n.source)
	return nil
}

// addHosts adds the routes to hosts outside of the cluster. They lead by one node, because a
// node remembers the connections. That is the gateway's own node where possible, so that
// connections last as long as the gateway.
func (d *desired) addHosts(node string, p *v1alpha1.Peering, links []linkedNode) {
	if len(links) == 0 {
		return
	}
	by := links[0]
	if i := slices.IndexFunc(links, func(n linkedNode) bool { return n.name == node }); i > 0 {
		by = links[i]
	}
	for _, h := range p.Spec.Local.Hosts {
		if !p.Carries(h.Real.Addr) {
			continue
		}
		real := netip.PrefixFrom(h.Real.Addr, h.Real.BitLen())
		d.nat.Local = append(d.nat.Local, nat.Mapping{Real: real, Mapped: netip.PrefixFrom(h.Mapped.Addr, h.Mapped.BitLen())})
		d.overlay.Routes = append(d.overlay.Routes, overlay.Route{
			Table: overlay.InboundTable, Dst: real, Via: by.address, Dev: wire.GatewayLink(by.number), Src: d.address,
		})
	}
}

// minMTU is the least that is worked with, and that a peer is believed: every host takes
// packets of that size (RFC 791).
const minMTU = 576

const (
	// growAfter is how long a peer has to say the same MTU before it is believed that it can
	// do more.
	growAfter = 10 * time.Second
	// agreeGap is the least time between two changes of what a peer is believed. Each is
	// one of all nodes' links and routes.
	agreeGap = 5 * time.Second
)

// told is what the peer's gateway says of its MTU, and what of it is believed.
type told struct {
	// said is the last one, in bytes, since when; agreed is believed, since when.
	said, agreed          int
	saidSince, agreedFrom time.Time
}

// hear takes what the peer says at a time, 0 for nothing, and returns the MTU that it is
// believed to do, 0 for unknown.
func (t *told) hear(mtu int, now time.Time) int {
	if mtu == 0 {
		return t.agreed
	}
	if mtu = max(mtu, minMTU); mtu != t.said {
		t.said, t.saidSince = mtu, now
	}
	grows := t.said > t.agreed && now.Sub(t.saidSince) >= growAfter
	first := t.agreed == 0
	if first || now.Sub(t.agreedFrom) >= agreeGap && (grows || t.said < t.agreed) {
		t.agreed, t.agreedFrom = t.said, now
	}
	return t.agreed
}

// path is how packets get to the peer's gateway.
type path struct {
	// overhead is what the tunnel adds to a packet by the endpoint that WireGuard
	// uses now, in bytes; 0 while it has none.
	overhead int
	// mtu is what the kernel knows of the path there, by routes and by ICMP errors,
	// in bytes; 0 where it knows nothing.
	mtu int
	// agreed is the MTU that the peer's gateway can do, 0 if it has not said.
	agreed int
}

// capacity is the largest packet that this side can carry: through the tunnel,
// over the pod's network and that of its node, and through the overlay to each
// node.
func capacity(l local, role v1alpha1.Role, nodes []v1alpha1.NodeNetwork, links []linkedNode) int {
	outer := l.underlayMTU
	if l.path.mtu > 0 {
		outer = min(outer, l.path.mtu)
	}
	for _, n := range nodes {
		// What a client sends leaves by its own node; a server is called by any.
		passes := n.Name == l.node || role == v1alpha1.Server
		if passes && n.DeletionTimestamp.IsZero() && n.Status.UnderlayMTU > 0 {
			outer = min(outer, int(n.Status.UnderlayMTU))
		}
	}
	overhead := l.path.overhead
	if overhead == 0 {
		overhead = tunnel.Overhead(l.endpoint.Addr())
	}
	mtu := outer - overhead
	for _, n := range links {
		mtu = min(mtu, l.underlayMTU-overlay.Overhead(n.source))
		if n.mtu > 0 {
			mtu = min(mtu, n.mtu)
		}
	}
	return max(mtu, minMTU)
}

// measurePath looks at how large packets to the peer may be, and says whether that
// has changed.
func (a *agent) measurePath() bool {
	now := a.local.path
	now.agreed = a.told.hear(int(a.probes.RemoteMTU), time.Now())
	if a.tunnel.Endpoint.IsValid() && time.Since(a.pathRead) >= loop.LookInterval {
		a.pathRead = time.Now()
		endpoint := a.tunnel.Endpoint.Addr().Unmap()
		now.overhead, now.mtu = tunnel.Overhead(endpoint), 0
		if _, mtu, err := a.kernel.SourceTo(endpoint); err == nil {
			now.mtu = mtu
		}
	}
	changed := now != a.local.path
	a.local.path = now
	return changed
}
