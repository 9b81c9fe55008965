package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// planPeering adds the cluster's Peering, without keys that are not created yet and endpoints that are not assigned yet.
func (d *draft) planPeering(c *ClusterPlan) error {
	given, got := Allocation(c.Ledger, d.peer.ClusterID), d.peer.Reader
	external := v1alpha1.CIDR{Prefix: got.ExternalCIDR}
	hosts, err := HostMappings(given, got.ExternalCIDR)
	if err != nil {
		return err
	}
	nodes, err := ipam.ExternalMapping(d.peer.InternalCIDR, given.ExternalCIDR.Prefix)
	if err != nil {
		return err
	}
	ips := nodeIPs(d.peer.Nodes)
	spec := v1alpha1.PeeringSpec{
		Index: given.Index,
		Local: v1alpha1.LocalNetwork{Pods: got.Pods, InternalCIDR: c.Ledger.Spec.InternalCIDR, ExternalCIDR: external, Hosts: hosts},
		Remote: v1alpha1.RemoteNetwork{
			ClusterID: d.peer.ClusterID, Name: cmp.Or(lo.FromPtr(d.own.has.Existing).Spec.Remote.Name, d.peer.Name),
			Pods: given.Pods, ExternalCIDR: given.ExternalCIDR, NodeIPs: ips[:min(len(ips), maxNodeIPs)],
		},
		Gateways: d.placement,
		Overlay:  v1alpha1.OverlayKind(d.overlay.Value.String()), Limits: d.own.limits(), PlanesMode: d.mode,
	}
	for _, g := range c.Gateways {
		plane, err := d.planPlane(c, g, nodes)
		if err != nil {
			return err
		}
		spec.Planes = append(spec.Planes, plane)
	}
	c.Peering = manifests.Peering(given.Name, spec)
	return nil
}

// planPlane plans a plane of the Peering. nodes maps the overlay addresses of the peer.
func (d *draft) planPlane(c *ClusterPlan, g manifests.Gateway, nodes ipam.Mapping) (plane v1alpha1.Plane, err error) {
	address, err := GatewayAddress(d.peer.InternalCIDR, d.peer.Reader.Index, g.Plane)
	if err != nil {
		return plane, err
	}
	address, _ = nodes.Translate(address)
	plane = v1alpha1.Plane{
		Index: g.Plane, Temporary: g.Temporary, Role: g.Role, WireGuard: g.WireGuard, KeyGeneration: g.KeyGeneration,
		OverlayKeyGeneration: g.OverlayKey, RemoteAddress: v1alpha1.IP{Addr: address}, PresharedKey: d.presharedKey(g.Plane),
		ServiceName: lo.FromPtr(c.Service).Name,
	}
	if g.PresharedKey > 0 && plane.PresharedKey.Fingerprint == "" {
		fingerprint := Later("of the key in " + secret(g.PresharedSecretName()))
		c.unknown = append(c.unknown, unknown{g.Plane, "fingerprint", []Value{fingerprint}})
	}
	if made := d.own.has.Planes[g.Plane].KeyTime; !made.IsZero() {
		plane.KeyTime = &made
	}
	remote, err := d.peer.Reader.gateway(g.Plane)
	if err != nil {
		return plane, d.own.has.fail("plan", err)
	}
	switch existing, exists := d.own.has.existingPlane(g.Plane); {
	case remote.PublicKey.IsKnown():
		plane.RemotePublicKey = remote.PublicKey.String()
	case remote.KeyUnreadable && exists:
		plane.RemotePublicKey = existing.RemotePublicKey // counts as unchanged
	default:
		c.unknown = append(c.unknown, unknown{g.Plane, "remotePublicKey", []Value{remote.PublicKey}})
	}
	switch {
	case c.Service != nil:
	case lo.EveryBy(remote.Endpoints, Value.IsKnown):
		plane.Endpoints = lo.Map(remote.Endpoints, func(e Value, _ int) string { return e.String() })
	default:
		c.unknown = append(c.unknown, unknown{g.Plane, "endpoints", remote.Endpoints})
	}
	return plane, nil
}

// GatewayAddress returns the overlay address of the gateway of a plane of a peering.
func GatewayAddress(internal netip.Prefix, index, plane int32) (netip.Addr, error) {
	number, err := ipam.GatewayNumber(int(index), int(plane))
	if err != nil {
		return netip.Addr{}, err
	}
	return ipam.GatewayAddr(internal, number)
}

// nodeIPs returns the addresses of nodes, sorted. A Peering can hold maxNodeIPs of them.
func nodeIPs(nodes []NodeOffer) []v1alpha1.IP {
	addrs := lo.FlatMap(nodes, func(n NodeOffer, _ int) []netip.Addr { return n.Addresses })
	slices.SortFunc(addrs, netip.Addr.Compare)
	return lo.Map(slices.Compact(addrs), func(a netip.Addr, _ int) v1alpha1.IP { return v1alpha1.IP{Addr: a} })
}

// omitted returns notes about endpoints and node addresses that a peer does not get, because a Peering cannot hold them.
func (f *input) omitted(svc *corev1.Service) (notes []string) {
	internal, external := nodeHosts(f.has.Network.Nodes)
	n := len(internal) + len(external)
	if n > maxEndpoints && svc != nil && svc.Spec.Type == corev1.ServiceTypeNodePort && len(f.givenEndpoints()) == 0 {
		notes = append(notes, fmt.Sprintf("%d of %d endpoints of %s are left out, as a Peering can hold %d; "+
			"give the best ones with --endpoint %[3]s=ADDRESS:PORT,…", n-maxEndpoints, n, f.has.Network.Name, maxEndpoints))
	}
	if n := len(nodeIPs(f.has.Network.nodeOffers())); n > maxNodeIPs {
		notes = append(notes, fmt.Sprintf("%d of %d node addresses of %s are left out, as a Peering can hold %d: "+
			"peers may mistake them for pods", n-maxNodeIPs, n, f.has.Network.Name, maxNodeIPs))
	}
	return notes
}

// limits returns the planned limits on traffic from the peer.
func (f *input) limits() v1alpha1.Limits {
	l := lo.FromPtr(f.has.Existing).Spec.Limits
	if given := f.Overrides.LimitNew; given != nil {
		l.NewConnections = int32(*given)
	}
	if given := f.Overrides.LimitRate; given != nil {
		l.BitsPerSecond = *given
	}
	return l
}

// limitStatements describes the limits, and those that are removed.
func (f *input) limitStatements() (out []Statement) {
	add := func(what, unit string, limit int64, flag string, given bool) {
		if limit > 0 {
			out = append(out, known(what, fmt.Sprintf("%d %s", limit, unit), byFlag(given, flag)))
		} else if given {
			out = append(out, known(what, "none", byFlag(given, flag)))
		}
	}
	l := f.limits()
	add("limit of new connections of the peer", "per second and node", int64(l.NewConnections), "--limit-new", f.Overrides.LimitNew != nil)
	add("limit of the peer's rate", "bit/s", l.BitsPerSecond, "--limit-rate", f.Overrides.LimitRate != nil)
	return out
}

// unknown is a field of a plane in a Peering that becomes known during the run. A list may be known in part.
type unknown struct {
	plane  int32
	field  string
	values []Value
}

// showUnknown writes the unknown values into the manifest of the Peering.
func (c *ClusterPlan) showUnknown(manifest map[string]any) {
	planes, _, _ := unstructured.NestedFieldNoCopy(manifest, "spec", "planes")
	for _, p := range planes.([]any) {
		plane := p.(map[string]any)
		for _, u := range c.unknown {
			switch {
			case plane["index"] != int64(u.plane):
			case u.field == "endpoints":
				plane[u.field] = lo.Map(u.values, func(e Value, _ int) any { return e.forJSON() })
			case u.field == "fingerprint":
				plane["presharedKey"].(map[string]any)[u.field] = u.values[0].forJSON()
			default:
				plane[u.field] = u.values[0].forJSON()
			}
		}
	}
}

// Unknown returns the fields of the Peering that become known during the run, with their names in the plan.
func (c *ClusterPlan) Unknown() []string {
	return lo.Map(c.unknown, func(u unknown, _ int) string { return fmt.Sprintf("%s of plane %d: %s", u.field, u.plane, u.values) })
}

// Resolve returns the plan with the endpoints of the server's gateways, by plane, that were assigned since it was made.
func (p *Plan) Resolve(endpoints map[int32][]string) *Plan {
	out := &Plan{p.Clusters, p.next}
	c := &out.Clusters[1-p.Server()]
	c.Peering = c.Peering.DeepCopy()
	for i := range c.Peering.Spec.Planes {
		plane := &c.Peering.Spec.Planes[i]
		plane.Endpoints = endpoints[plane.Index]
	}
	c.unknown = lo.Reject(c.unknown, func(u unknown, _ int) bool { return u.field == "endpoints" && len(endpoints[u.plane]) > 0 })
	return out
}
