package node

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failover"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
)

// Metrics of routes to peers:
//   - routeMetric for routes through the plane in use, or through all planes in use
//   - spareMetric plus the plane's index for routes through each of several planes, in case a link is gone
//   - unreachableMetric for the unreachable routes behind them, so that nothing leaves unencrypted
const (
	routeMetric       = 100
	spareMetric       = 200
	unreachableMetric = 4096
)

// local is the node's own part of the desired state.
type local struct {
	// clusterID is the ID of the node's cluster.
	clusterID string
	// name is the Node's name, and address its overlay address.
	name    string
	address netip.Addr
	// keys are the keys of the overlay.
	keys overlay.Keys
	// pods are the ranges and single addresses of the node's own pods.
	pods []netip.Prefix
	// uplinks are the interfaces to other machines, and nodeIPs the node's own addresses on them.
	uplinks []string
	nodeIPs []netip.Addr
	// planesInUse are the planes in use, by the name of the peering.
	planesInUse map[string]planesInUse
	// lost are the planes whose gateway nobody hears.
	lost map[planeKey]bool
}

// planesInUse are all planes through which packets to a peer are sent, sorted, and primary is the one for packets that
// cannot be spread.
type planesInUse struct {
	primary int32
	all     []int32
	// choice is nil if the peering has one plane, or no choice was made yet.
	choice *failover.Choice
}

// noPlane means that the plane is not known.
const noPlane = -1

// restorePlanes continues with the planes that the previous agent reported as in use. The preferred ones may be down.
func (l *local) restorePlanes(reported []v1alpha1.NodeGateway) {
	l.planesInUse = map[string]planesInUse{}
	for _, g := range lo.Filter(reported, func(g v1alpha1.NodeGateway, _ int) bool { return g.Active }) {
		used := planesInUse{primary: g.Plane, all: append(l.planesInUse[g.PeeringName].all, g.Plane)}
		if slices.Sort(used.all); len(used.all) > 1 {
			used.primary = noPlane
		}
		l.planesInUse[g.PeeringName] = used
	}
}

// currentPlanes returns the planes in use of a peering. planes are those that have a link, at least one, in this node's
// order of preference.
func (l local) currentPlanes(peering string, planes []gateway) planesInUse {
	before, known := l.planesInUse[peering]
	linked := lo.Map(planes, func(g gateway, _ int) int32 { return g.plane })
	all := lo.Filter(linked, func(plane int32, _ int) bool { return slices.Contains(before.all, plane) })
	one := lo.Ternary(known && slices.Contains(linked, before.primary), before.primary, slices.Concat(all, linked)[0])
	if len(all) == 0 {
		all = []int32{one}
	}
	return planesInUse{primary: one, all: slices.Sorted(slices.Values(all))}
}

// usesPlane reports whether packets to a peer are sent through a plane.
func (l local) usesPlane(peering string, plane int32) bool {
	return slices.Contains(l.planesInUse[peering].all, plane)
}

// gateway is one gateway to which the node has a link.
type gateway struct {
	peering string
	plane   int32
	// generation is that of the Peering.
	generation int64
	// pod is the gateway pod's address, and mtu the size limit of packets to the peer.
	pod netip.Addr
	mtu int
	// tunnelTarget is where a gateway on this node sends the tunnel's packets. It is invalid for other gateways, and
	// while the gateway does not know it. connected is what the gateway reports.
	tunnelTarget netip.Addr
	connected    bool
	// remote is the address of the peer's gateway, which answers probes, and address that of the cluster's own gateway.
	remote, address netip.Addr
	link            string
	// rank is the plane's position in this node's order of preference. isOnlyPlane is set if the peering has no other
	// plane.
	rank        int
	isOnlyPlane bool
}

// desired is the desired state of a node's kernel.
type desired struct {
	overlay overlay.State
	// nat is nil if nothing of ours should exist.
	nat      *nat.Node
	gateways []gateway
	// planeRoutes are the routes to a peer through each plane that has a link.
	planeRoutes map[planeKey][]overlay.Route
	// spread maps the peerings whose packets are spread over all working planes to the ranges of the peer's exposed
	// hosts. Packets to those use one plane: each of the peer's nodes tracks only its own connections.
	spread map[string]netip.Prefix
	// leftOut names what is not served because of what a gateway or a peer reports. It harms only their peering, so the
	// node stays Ready: otherwise a peer could decide what every node reports.
	leftOut []string
}

// planeKey identifies a plane of a peering.
type planeKey struct {
	peering string
	plane   int32
}

func (g gateway) key() planeKey { return planeKey{g.peering, g.plane} }

// desire computes the desired state of the node's kernel for these peerings. It is empty if there are none. The error
// names the peerings or planes that cannot be served. The returned state covers all others, and names what it leaves out.
func desire(l local, peerings []v1alpha1.Peering) (desired, error) {
	// A peering that could not be read is incomplete, too, but has to be reported.
	peerings = slices.DeleteFunc(slices.Clone(peerings), func(p v1alpha1.Peering) bool { return p.Incomplete() && p.Validate() == nil })
	peerings, foreign := withoutCopies(l.clusterID, peerings)
	if len(peerings) == 0 {
		return desired{}, foreign
	}
	d := desired{planeRoutes: map[planeKey][]overlay.Route{}, spread: map[string]netip.Prefix{}}
	slices.SortFunc(peerings, byIndex)
	admitted, errs := selectPeerings(peerings, l.address)
	errs = append(errs, foreign)
	d.nat = &nat.Node{
		OverlayGroup: overlay.Group, Address: l.address, OverlayPort: overlay.Port, TunnelPort: tunnel.ListenPort, Uplinks: l.uplinks,
	}
	// In a dual-stack cluster, nodes have ranges of both families.
	d.nat.OwnPods = lo.Filter(l.pods, func(own netip.Prefix, _ int) bool { return sameFamily(own.Addr(), l.address) })
	d.overlay.Rules = []overlay.Rule{{Table: overlay.Table}}
	for _, p := range admitted {
		for _, pods := range p.Spec.Local.Pods {
			if p.CarriesFamily(pods.Real.Addr()) && !slices.Contains(d.nat.Pods, pods.Real.Prefix) {
				d.nat.Pods = append(d.nat.Pods, pods.Real.Prefix)
			}
		}
		d.nat.Hosts = append(d.nat.Hosts, lo.FilterMap(p.Spec.Local.Hosts, func(h v1alpha1.AddressMapping, _ int) (netip.Addr, bool) {
			return h.Real.Addr, p.CarriesFamily(h.Real.Addr)
		})...)
		ranges := p.RemoteRanges()
		d.nat.Remote = append(d.nat.Remote, ranges...)
		for _, r := range ranges {
			d.overlay.Routes = append(d.overlay.Routes, unreachable(r))
		}
		ranges = d.routableRanges(p, ranges)
		for _, plane := range p.Spec.Planes {
			if err := d.addPlane(l, p, plane, ranges); err != nil {
				errs = append(errs, fmt.Errorf("peering %s, plane %d: %w", p.Name, plane.Index, err))
			}
		}
		d.addRoutes(l, p)
	}
	d.blockRejected(l, peerings, admitted)
	d.bypassTunnels(l, admitted)
	return d, errors.Join(errs...)
}

// withoutCopies removes the peerings that were made for another cluster. Its keys are copied too: gateways here would take
// its packets, and packets to its peer would come from the wrong cluster.
func withoutCopies(clusterID string, peerings []v1alpha1.Peering) (own []v1alpha1.Peering, err error) {
	own, copies := lo.FilterReject(peerings, func(p v1alpha1.Peering, _ int) bool {
		return v1alpha1.CopiedFrom(p.Spec.Local.ClusterID, clusterID) == ""
	})
	for _, p := range copies {
		err = errors.Join(err, fmt.Errorf("peering %s: %s", p.Name, v1alpha1.CopyMessage(p.Spec.Local.ClusterID)))
	}
	return own, err
}

func sameFamily(a, b netip.Addr) bool { return a.BitLen() == b.BitLen() }

// maxEndpoints limits the addresses of peers' nodes that are in ranges of peers. Each peering has an equal share, so
// that no peer can use up the shares of the others.
const maxEndpoints = 1 << 16

// bypassTunnels keeps tunnels' own packets out of other tunnels. A range that one peer was given may contain
// addresses of another peer's nodes. Then packets that this peer's gateways send from the tunnel's port are routed as
// if there were no peers. UDP from these addresses may arrive outside of the tunnel (see nat.Node). This applies to
// every node: each may be reached through its NodePort.
//
// Packets from the node's own address are routed like this, too. Otherwise a kernel with strict reverse path
// filtering drops everything from these addresses, and does not answer their ARP requests.
func (d *desired) bypassTunnels(l local, peerings []v1alpha1.Peering) {
	remote := ipam.Set(d.nat.Remote)
	for _, p := range peerings {
		covered := slices.DeleteFunc(tunnelEndpoints(p), func(a netip.Addr) bool { return !remote.Contains(a) })
		if len(covered) == 0 {
			continue
		}
		if share := maxEndpoints / len(peerings); len(covered) > share {
			d.leftOut = append(d.leftOut, fmt.Sprintf("peering %s: %d addresses of its nodes, which are in ranges of peers, are left out, as there are more than %d: packets of tunnels from there may be dropped", p.Name, len(covered)-share, share))
			covered = covered[:share]
		}
		d.nat.Endpoints = append(d.nat.Endpoints, covered...)
		for _, g := range d.gateways {
			if g.peering == p.Name && g.pod.IsValid() {
				d.overlay.Bypass = append(d.overlay.Bypass, netip.AddrPortFrom(g.pod, tunnel.ListenPort))
			}
		}
	}
	d.nat.Endpoints = slices.Compact(slices.SortedFunc(slices.Values(d.nat.Endpoints), netip.Addr.Compare))
	for _, a := range l.nodeIPs {
		if len(d.nat.Endpoints) > 0 && sameFamily(a, l.address) {
			d.overlay.Bypass = append(d.overlay.Bypass, netip.AddrPortFrom(a, 0))
		}
	}
}

// tunnelEndpoints returns the addresses at which a peering's tunnel is reached, followed by those from which it may be
// reached, each once. A server does not know the latter: kube-proxy replaces them with a node's
// address.
func tunnelEndpoints(p v1alpha1.Peering) (out []netip.Addr) {
	called := lo.FlatMap(p.Spec.Planes, func(plane v1alpha1.Plane, _ int) []string { return plane.Endpoints })
	var reported []v1alpha1.IP
	for _, s := range p.Status.Planes {
		// A gateway may write the status of planes that do not exist.
		if p.Plane(s.Index) == nil {
			continue
		}
		called = append(called, s.Endpoint)
		if s.Remote != nil {
			reported = append(reported, s.Remote.NodeIPs...)
		}
	}
	for _, c := range called {
		if endpoint, err := netip.ParseAddrPort(c); err == nil { // otherwise it is a name, or not known yet
			out = append(out, endpoint.Addr().Unmap())
		}
	}
	// The peer's report of its nodes may cut off only its own addresses.
	own := ipam.Set(p.RemoteRanges())
	reported = lo.Filter(reported, func(ip v1alpha1.IP, _ int) bool { return own.Contains(ip.Addr) })
	for _, ip := range slices.Concat(p.Spec.Remote.NodeIPs, reported) {
		out = append(out, ip.Addr)
	}
	return lo.Uniq(out)
}

// selectPeerings returns the peerings that can be served, and errors for the others. The kernel cannot hold an index or
// a range twice, and one peering's range must not lead into the tunnel of another. Of two conflicting peerings, the
// older one stays.
func selectPeerings(peerings []v1alpha1.Peering, self netip.Addr) (admitted []v1alpha1.Peering, errs []error) {
	byAge := slices.Clone(peerings)
	slices.SortStableFunc(byAge, func(a, b v1alpha1.Peering) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	taken := claimedRanges{indexes: map[int32]string{}, byPrefix: map[netip.Prefix]ownedRange{}}
	for _, p := range byAge {
		if err := p.Validate(); err != nil {
			errs = append(errs, err)
		} else if err := taken.add(p, self); err != nil {
			errs = append(errs, fmt.Errorf("peering %s: %w", p.Name, err))
		} else {
			admitted = append(admitted, p)
		}
	}
	slices.SortFunc(admitted, byIndex)
	return admitted, errs
}

// largestBlocked is the size of the largest range that a rejected peering may block: no peer has more than a /8.
const largestBlocked = 8

// blockRejected makes the ranges of rejected peerings unreachable: packets to them must not leave unencrypted by the
// default route. It leaves out ranges that other peerings or this cluster use.
func (d *desired) blockRejected(l local, peerings, admitted []v1alpha1.Peering) {
	var own []netip.Prefix
	for _, p := range peerings {
		own = append(own, p.Spec.Local.InternalCIDR.Prefix)
		own = append(own, lo.Map(p.Spec.Local.Pods, func(m v1alpha1.CIDRMapping, _ int) netip.Prefix { return m.Real.Prefix })...)
	}
	used := slices.Clone(d.nat.Remote)
	for _, p := range peerings {
		if slices.ContainsFunc(admitted, func(a v1alpha1.Peering) bool { return a.Name == p.Name }) {
			continue
		}
		for _, r := range p.RemoteRanges() {
			isUsed := slices.ContainsFunc(used, func(u netip.Prefix) bool { return u.Overlaps(r) && u.Bits() <= r.Bits() })
			hasNode := slices.ContainsFunc(append(slices.Clone(l.nodeIPs), l.address), r.Contains)
			if !r.IsValid() || !sameFamily(r.Addr(), l.address) || r.Bits() < largestBlocked || isUsed || hasNode || slices.ContainsFunc(own, r.Overlaps) {
				continue
			}
			used = append(used, r)
			d.nat.Remote = append(d.nat.Remote, r)
			d.overlay.Routes = append(d.overlay.Routes, unreachable(r))
		}
	}
}

// unreachable returns the route behind those to a peer.
func unreachable(r netip.Prefix) overlay.Route {
	return overlay.Route{Table: overlay.Table, Dst: r, Unreachable: true, Metric: unreachableMetric}
}

func byIndex(a, b v1alpha1.Peering) int {
	return cmp.Or(cmp.Compare(a.Spec.Index, b.Spec.Index), cmp.Compare(a.Name, b.Name))
}

// checkPeering returns an error if a peering cannot be served, regardless of others.
func checkPeering(p v1alpha1.Peering, self netip.Addr) error {
	internal := p.Spec.Local.InternalCIDR.Prefix
	if !p.CarriesFamily(self) {
		return fmt.Errorf("its overlay %s has another address family than this node's address %s", internal, self)
	}
	if _, err := ipam.ExternalMapping(internal, p.Spec.Remote.ExternalCIDR.Prefix); err != nil {
		return err
	}
	ranges := p.RemoteRanges()
	for i, r := range ranges {
		isOwn := r.Overlaps(internal) || slices.ContainsFunc(p.Spec.Local.Pods, func(m v1alpha1.CIDRMapping) bool { return m.Real.Overlaps(r) })
		switch {
		case r.Bits() == 0:
			return fmt.Errorf("its range %s contains all addresses", r)
		case isOwn:
			return fmt.Errorf("its range %s overlaps with the pods or the overlay of this cluster: peer again", r)
		case slices.ContainsFunc(ranges[:i], r.Overlaps):
			return fmt.Errorf("its range %s appears twice: peer again", r)
		}
	}
	return nil
}

// ownedRange is a range and its peering.
type ownedRange struct {
	prefix  netip.Prefix
	peering string
}

// claimedRanges are the indexes and ranges of peerings.
type claimedRanges struct {
	indexes map[int32]string
	// byPrefix maps each prefix that contains a range, including the range itself, to that range. So looking up an
	// overlap does not depend on the number of ranges.
	byPrefix map[netip.Prefix]ownedRange
}

// add records the claims of a peering. It returns an error if the peering cannot be served or conflicts with another
// one. self is the node's overlay address.
func (c claimedRanges) add(p v1alpha1.Peering, self netip.Addr) error {
	if err := checkPeering(p, self); err != nil {
		return err
	}
	if other, ok := c.indexes[p.Spec.Index]; ok {
		return fmt.Errorf("its index %d is that of peering %s: unpeer one of them", p.Spec.Index, other)
	}
	own := map[netip.Prefix]ownedRange{}
	for _, r := range p.RemoteRanges() {
		for bits := r.Bits(); bits > 0; bits-- {
			around := netip.PrefixFrom(r.Addr(), bits).Masked()
			if other, known := c.byPrefix[around]; known && other.prefix.Overlaps(r) {
				return fmt.Errorf("its range %s overlaps with %s of peering %s: unpeer one of them", r, other.prefix, other.peering)
			}
			own[around] = ownedRange{r, p.Name}
		}
	}
	c.indexes[p.Spec.Index] = p.Name
	maps.Copy(c.byPrefix, own)
	return nil
}

// addPlane adds the link to one gateway, and the routes through it.
func (d *desired) addPlane(l local, p v1alpha1.Peering, plane v1alpha1.Plane, ranges []netip.Prefix) error {
	internal := p.Spec.Local.InternalCIDR.Prefix
	number, numberErr := ipam.GatewayNumber(int(p.Spec.Index), int(plane.Index))
	gatewayAddr, addrErr := ipam.GatewayAddr(internal, number)
	node, nodeErr := ipam.NodeNumber(internal, l.address)
	vni, err := ipam.VNI(number, node)
	if err := cmp.Or(numberErr, addrErr, nodeErr, err); err != nil {
		return err
	}
	g := gateway{
		peering: p.Name, plane: plane.Index, generation: p.Generation,
		remote: plane.RemoteAddress.Addr, address: gatewayAddr, link: wire.NodeLink(p.Spec.Index, plane.Index),
		isOnlyPlane: len(p.Spec.Planes) == 1,
	}
	status := p.PlaneStatus(plane.Index)
	if status != nil && status.PodIP.IsValid() && status.MTU > 0 {
		if !isPod(p, status.PodIP.Addr) {
			d.leftOut = append(d.leftOut, fmt.Sprintf("peering %s, plane %d: its gateway has the address %s, which is in none of the peering's pod ranges: if it is a pod's address, add its range with --pod-cidr", p.Name, plane.Index, status.PodIP))
			return nil
		}
		if status.MTU < wire.MinMTU { // the kernel would refuse the link, or its routes
			d.leftOut = append(d.leftOut, fmt.Sprintf("peering %s, plane %d: its gateway reports an MTU of %d bytes, which is less than %d", p.Name, plane.Index, status.MTU, wire.MinMTU))
			return nil
		}
		g.pod, g.mtu, g.tunnelTarget, g.connected = status.PodIP.Addr, int(status.MTU), tunnelTarget(l, status), status.Connected
		secret := l.keys.ForGateway(v1alpha1.GatewayName(p.Name, plane.Index), plane.OverlayKeyGeneration)
		d.overlay.Links = append(d.overlay.Links, overlay.Link{
			Name: g.link, Kind: overlay.Kind(p.Spec.Overlay.LinkKind()), VNI: vni,
			Local: l.address, LocalMAC: secret.MAC(vni, l.address), Peer: gatewayAddr, PeerMAC: secret.MAC(vni, gatewayAddr),
			Remote: g.pod, MTU: g.mtu,
		})
		d.overlay.Routes = append(d.overlay.Routes, overlay.Route{
			Table: overlay.Table, Dst: netip.PrefixFrom(gatewayAddr, gatewayAddr.BitLen()), Dev: g.link, Src: l.address,
		})
		by := overlay.Route{Table: overlay.Table, Via: gatewayAddr, Dev: g.link, Src: l.address, MTU: g.mtu, Metric: routeMetric}
		isLost := l.lost[g.key()]
		for _, r := range lo.Ternary(isLost, nil, ranges) {
			by.Dst = r
			d.planeRoutes[g.key()] = append(d.planeRoutes[g.key()], by)
		}
		if !g.isOnlyPlane || isLost {
			// Probes of a plane use that plane, whether it is in use or not.
			by.Dst, by.Metric = netip.PrefixFrom(g.remote, g.remote.BitLen()), 0
			d.overlay.Routes = append(d.overlay.Routes, by)
		}
		if !g.isOnlyPlane {
			// The plane on this node saves a hop. The other nodes are spread over the planes.
			place := slices.IndexFunc(p.Spec.Planes, func(s v1alpha1.Plane) bool { return s.Index == plane.Index })
			g.rank = lo.Ternary(status.NodeName == l.name, -1, (place+node)%len(p.Spec.Planes))
		}
		d.nat.Gateways = append(d.nat.Gateways, nat.NodeGateway{
			Pod: g.pod, VNI: vni, Overlay: gatewayAddr, PeerGateway: g.remote, Local: status.NodeName == l.name, IsInitiator: plane.Role == v1alpha1.Client,
			Link: g.link, Remote: ranges, LimitNew: uint32(p.Spec.Limits.NewConnections),
		})
	}
	d.gateways = append(d.gateways, g)
	return nil
}

// routableRanges returns the ranges that get routes through planes. If packets are spread, the external range, which is
// the last one, is split in two: its upper half is that of exposed hosts.
func (d *desired) routableRanges(p v1alpha1.Peering, ranges []netip.Prefix) []netip.Prefix {
	if p.Spec.PlanesMode != v1alpha1.PlanesSpread || len(p.Spec.Planes) < 2 {
		return ranges
	}
	nodes, hosts, err := ipam.SplitExternal(p.Spec.Remote.ExternalCIDR.Prefix)
	if err != nil {
		return ranges // admissible rejects it
	}
	d.spread[p.Name] = hosts
	return append(slices.Clone(ranges[:len(ranges)-1]), nodes, hosts)
}

// activeRoutes returns the routes to a peer through the planes in use. Packets are limited to the smallest MTU of these
// planes.
func (d *desired) activeRoutes(peering string, used planesInUse) (out []overlay.Route) {
	hosts, spread := d.spread[peering]
	planes := lo.Filter(used.all, func(plane int32, _ int) bool { return d.planeRoutes[planeKey{peering, plane}] != nil })
	for i, r := range d.planeRoutes[planeKey{peering, used.primary}] {
		by := lo.Map(planes, func(plane int32, _ int) overlay.Route { return d.planeRoutes[planeKey{peering, plane}][i] })
		switch {
		case !spread || r.Dst == hosts || len(by) == 0:
		case len(by) == 1:
			r = by[0]
		default:
			r.Dev, r.Via = "", netip.Addr{}
			r.MTU = lo.MinBy(by, func(a, b overlay.Route) bool { return a.MTU < b.MTU }).MTU
			r.Hops = lo.Map(by, func(b overlay.Route, _ int) overlay.Hop { return overlay.Hop{Dev: b.Dev, Via: b.Via} })
		}
		out = append(out, r)
	}
	return out
}

// addRoutes adds the routes to a peer: through the planes in use, and as spares through all planes.
func (d *desired) addRoutes(l local, p v1alpha1.Peering) {
	planes := d.planesOf(p.Name)
	if len(planes) == 0 {
		return
	}
	d.overlay.Routes = append(d.overlay.Routes, d.activeRoutes(p.Name, l.currentPlanes(p.Name, planes))...)
	for _, g := range planes {
		for _, r := range d.planeRoutes[g.key()] {
			if r.Metric = spareMetric + int(g.plane); !g.isOnlyPlane {
				d.overlay.Routes = append(d.overlay.Routes, r)
			}
		}
	}
}

// planesOf returns the gateways of a peering that have a link, in this node's order of preference.
func (d *desired) planesOf(peering string) []gateway {
	out := lo.Filter(d.gateways, func(g gateway, _ int) bool { return g.peering == peering && g.pod.IsValid() })
	slices.SortFunc(out, func(a, b gateway) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.plane, b.plane)) })
	return out
}

// isPod reports whether an address is in this cluster's pod ranges. All packets of the peering are sent unencrypted
// to a gateway's address, so no other address is acceptable.
func isPod(p v1alpha1.Peering, a netip.Addr) bool {
	return slices.ContainsFunc(p.Spec.Local.Pods, func(m v1alpha1.CIDRMapping) bool { return p.CarriesFamily(a) && m.Real.Contains(a) })
}

// tunnelTarget returns where a gateway on this node sends the tunnel's packets.
func tunnelTarget(l local, status *v1alpha1.PlaneStatus) netip.Addr {
	endpoint, err := netip.ParseAddrPort(status.Endpoint)
	if err != nil || status.NodeName != l.name {
		return netip.Addr{}
	}
	return endpoint.Addr().Unmap()
}
