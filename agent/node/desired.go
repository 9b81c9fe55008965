package node

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// routeMetric is that of routes to peers; lastMetric that of the unreachable
// ones behind them, so that nothing leaks in plain when a link is gone.
const (
	routeMetric = 100
	lastMetric  = 4096
)

// local is what the node itself contributes to what is wanted.
type local struct {
	// name is the Node's, address its overlay address.
	name    string
	address netip.Addr
	// key is the overlay's.
	key overlay.Key
	// pods are the ranges and single addresses of the node's own pods.
	pods []netip.Prefix
	// uplinks are the interfaces to other machines.
	uplinks []string
}

// gateway is one gateway that the node has a link to.
type gateway struct {
	peering string
	plane   int32
	// generation of the Peering.
	generation int64
	// pod is the gateway pod's address, mtu that of packets to the peer.
	pod netip.Addr
	mtu int
	// peer is where a gateway on this very node sends the tunnel's packets to,
	// invalid for others and while it does not know. connected is what it says.
	peer      netip.Addr
	connected bool
	// remote is the peer's gateway's address, which answers probes.
	remote netip.Addr
	link   string
}

// desired is all that the kernel of a node should hold.
type desired struct {
	overlay overlay.State
	// nat is nil where nothing of ours should be there.
	nat      *nat.Node
	gateways []gateway
}

// desire computes what the node's kernel should hold for these peerings. It is
// empty without any. The error says which peerings, or planes, cannot be had;
// what is returned holds for all others.
func desire(l local, peerings []v1alpha1.Peering) (desired, error) {
	var d desired
	if len(peerings) == 0 {
		return d, nil
	}
	slices.SortFunc(peerings, func(a, b v1alpha1.Peering) int {
		return cmp.Or(cmp.Compare(a.Spec.Index, b.Spec.Index), cmp.Compare(a.Name, b.Name))
	})
	var errs []error
	taken := map[string]string{}
	d.nat = &nat.Node{
		OverlayGroup: overlay.Group, Address: l.address, OverlayPort: overlay.Port, TunnelPort: tunnel.ListenPort, Uplinks: l.uplinks,
	}
	for _, own := range l.pods {
		// Nodes have ranges of both families in a cluster that has both.
		if sameFamily(own.Addr(), l.address) {
			d.nat.OwnPods = append(d.nat.OwnPods, own)
		}
	}
	d.overlay.Rules = []overlay.Rule{{Table: overlay.Table}}
	for _, p := range peerings {
		if err := p.Check(); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := admit(taken, p); err != nil {
			errs = append(errs, fmt.Errorf("peering %s: %w", p.Name, err))
			continue
		}
		for _, pods := range p.Spec.Local.Pods {
			if p.Carries(pods.Real.Addr()) && !slices.Contains(d.nat.Pods, pods.Real.Prefix) {
				d.nat.Pods = append(d.nat.Pods, pods.Real.Prefix)
			}
		}
		for _, h := range p.Spec.Local.Hosts {
			if p.Carries(h.Real.Addr) {
				d.nat.Hosts = append(d.nat.Hosts, h.Real.Addr)
			}
		}
		ranges := p.RemoteRanges()
		d.nat.Remote = append(d.nat.Remote, ranges...)
		for _, r := range ranges {
			d.overlay.Routes = append(d.overlay.Routes, overlay.Route{Table: overlay.Table, Dst: r, Unreachable: true, Metric: lastMetric})
		}
		for _, plane := range p.Spec.Planes {
			if err := d.addPlane(l, p, plane, ranges); err != nil {
				errs = append(errs, fmt.Errorf("peering %s, plane %d: %w", p.Name, plane.Index, err))
			}
		}
	}
	d.throwEndpoints(peerings)
	return d, errors.Join(errs...)
}

// firewallConfig is what the chains of others have to accept on a node with that table.
func firewallConfig(n nat.Node) firewall.Config {
	c := firewall.Config{OverlayPrefix: overlay.NamePrefix, OverlayPort: n.OverlayPort, TunnelPort: n.TunnelPort}
	for _, g := range n.Gateways {
		c.Gateways = append(c.Gateways, firewall.Gateway{Pod: g.Pod, Overlay: g.Overlay, Local: g.Local})
	}
	return c
}

func sameFamily(a, b netip.Addr) bool { return a.BitLen() == b.BitLen() }

// throwEndpoints keeps tunnels' own packets out of the tunnels. A range that one peer was
// given may have the address at which another one is called, or from which it calls. A gateway cannot tell the latter: kube-proxy shows it a node.
func (d *desired) throwEndpoints(peerings []v1alpha1.Peering) {
	for _, p := range peerings {
		for _, a := range p.Spec.Remote.NodeIPs {
			d.throw(a.Addr)
		}
		var called []string
		for _, plane := range p.Spec.Planes {
			called = append(called, plane.Endpoints...)
		}
		for _, s := range p.Status.Planes {
			// A gateway may write the status of planes that there are not, and so take
			// addresses out of the ranges of other peers.
			if p.Plane(s.Index) == nil {
				continue
			}
			called = append(called, s.Endpoint)
			if s.Remote == nil {
				continue
			}
			// What the peer says of its nodes may cost it its own addresses, and nobody else's.
			for _, ip := range s.Remote.NodeIPs {
				if slices.ContainsFunc(p.RemoteRanges(), func(r netip.Prefix) bool { return r.Contains(ip.Addr) }) {
					d.throw(ip.Addr)
				}
			}
		}
		for _, c := range called {
			endpoint, err := netip.ParseAddrPort(c)
			if err != nil {
				continue // a name, or none yet
			}
			d.throw(endpoint.Addr().Unmap())
		}
	}
}

// throw takes an address out of the ranges that lead into tunnels.
func (d *desired) throw(addr netip.Addr) {
	covered := slices.ContainsFunc(d.nat.Remote, func(r netip.Prefix) bool { return r.Contains(addr) })
	if !covered || slices.Contains(d.nat.Endpoints, addr) {
		return
	}
	d.nat.Endpoints = append(d.nat.Endpoints, addr)
	d.overlay.Routes = append(d.overlay.Routes, overlay.Route{Table: overlay.Table, Dst: netip.PrefixFrom(addr, addr.BitLen()), Throw: true})
}

// admit notes which peering has an index and ranges, unless another one has them: the
// kernel cannot hold one of them twice.
func admit(taken map[string]string, p v1alpha1.Peering) error {
	claims := []string{fmt.Sprintf("index %d", p.Spec.Index)}
	for _, r := range p.RemoteRanges() {
		claims = append(claims, fmt.Sprintf("range %s", r))
	}
	for i, claim := range claims {
		if other, ok := taken[claim]; ok {
			return fmt.Errorf("its %s is that of peering %s: unpeer one of them", claim, other)
		}
		if slices.Contains(claims[:i], claim) {
			return fmt.Errorf("its %s is there twice: peer again", claim)
		}
	}
	for _, claim := range claims {
		taken[claim] = p.Name
	}
	return nil
}

// addPlane adds the link to one gateway, and the routes by it.
func (d *desired) addPlane(l local, p v1alpha1.Peering, plane v1alpha1.Plane, ranges []netip.Prefix) error {
	internal := p.Spec.Local.InternalCIDR.Prefix
	number, err := ipam.GatewayNumber(int(p.Spec.Index), int(plane.Index))
	if err != nil {
		return err
	}
	gatewayAddr, err := ipam.GatewayAddr(internal, number)
	if err != nil {
		return err
	}
	node, err := ipam.NodeNumber(internal, l.address)
	if err != nil {
		return err
	}
	vni, err := ipam.VNI(number, node)
	if err != nil {
		return err
	}
	g := gateway{
		peering: p.Name, plane: plane.Index, generation: p.Generation,
		remote: plane.RemoteAddress.Addr, link: fmt.Sprintf("%s%d-%d", overlay.NamePrefix, p.Spec.Index, plane.Index),
	}
	status := p.PlaneStatus(plane.Index)
	if status != nil && status.PodIP.IsValid() && status.MTU > 0 {
		if !p.Carries(status.PodIP.Addr) {
			return fmt.Errorf("its gateway has the address %s, which is of another address family than the overlay", status.PodIP)
		}
		g.pod, g.mtu, g.peer, g.connected = status.PodIP.Addr, int(status.MTU), tunnelTarget(l, status), status.Connected
		d.overlay.Links = append(d.overlay.Links, overlay.Link{
			Name: g.link, Kind: overlay.Kind(p.Spec.Overlay), VNI: vni,
			Local: l.address, LocalMAC: l.key.MAC(vni, l.address), Peer: gatewayAddr, PeerMAC: l.key.MAC(vni, gatewayAddr),
			Remote: g.pod, Port: overlay.Port, MTU: g.mtu,
		})
		d.overlay.Routes = append(d.overlay.Routes, overlay.Route{
			Table: overlay.Table, Dst: netip.PrefixFrom(gatewayAddr, gatewayAddr.BitLen()), Dev: g.link, Src: l.address,
		})
		for _, r := range ranges {
			d.overlay.Routes = append(d.overlay.Routes, overlay.Route{
				Table: overlay.Table, Dst: r, Via: gatewayAddr, Dev: g.link, Src: l.address, MTU: g.mtu,
				Metric: routeMetric + int(plane.Index),
			})
		}
		d.nat.Gateways = append(d.nat.Gateways, nat.NodeGateway{
			Pod: g.pod, Overlay: gatewayAddr, Local: status.NodeName == l.name, Calls: plane.Role == v1alpha1.Client,
		})
	}
	d.gateways = append(d.gateways, g)
	return nil
}

// tunnelTarget is where a gateway on this very node sends the tunnel's packets to.
func tunnelTarget(l local, status *v1alpha1.PlaneStatus) netip.Addr {
	endpoint, err := netip.ParseAddrPort(status.Endpoint)
	if err != nil || status.NodeName != l.name {
		return netip.Addr{}
	}
	return endpoint.Addr().Unmap()
}
