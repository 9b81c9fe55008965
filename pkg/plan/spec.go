package plan

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// planPeering adds the cluster's Peering, without what comes about during the run: keys that are not made yet, and endpoints that
// are not assigned.
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
			ClusterID: d.peer.ClusterID, Name: d.peer.Name, Pods: given.Pods, ExternalCIDR: given.ExternalCIDR, NodeIPs: ips[:min(len(ips), maxNodeIPs)],
		},
		// It is the same for all gateways.
		Gateways: d.placement,
		Overlay:  v1alpha1.OverlayKind(d.overlay.Value.String()), Limits: d.limits(), PlanesMode: d.mode,
	}
	if d.Existing != nil {
		spec.Remote.Name = d.Existing.Spec.Remote.Name
	}
	for _, g := range c.Gateways {
		address, err := GatewayAddress(d.peer.InternalCIDR, got.Index, g.Plane)
		if err != nil {
			return err
		}
		address, _ = nodes.Translate(address)
		plane := v1alpha1.Plane{
			Index: g.Plane, Temporary: g.Temporary, Role: g.Role, WireGuard: g.WireGuard, KeyGeneration: g.KeyGeneration,
			OverlayKeyGeneration: g.OverlayKey, RemoteAddress: v1alpha1.IP{Addr: address}, PresharedKey: g.Preshared,
		}
		if g.PresharedKey > 0 && g.Preshared.Fingerprint == "" {
			fingerprint := Later("of the key in " + secret(g.PresharedSecretName()))
			c.unknown = append(c.unknown, unknown{g.Plane, "fingerprint", []Value{fingerprint}})
		}
		if made := d.Planes[g.Plane].KeyTime; !made.IsZero() {
			plane.KeyTime = &made
		}
		if c.Service != nil {
			plane.ServiceName = c.Service.Name
		}
		remote, err := got.gateway(g.Plane)
		if err != nil {
			return d.fail("plan", err)
		}
		switch existing, exists := d.existingPlane(g.Plane); {
		case remote.PublicKey.IsKnown():
			plane.RemotePublicKey = remote.PublicKey.String()
		case remote.KeyUnreadable && exists:
			plane.RemotePublicKey = existing.RemotePublicKey // taken for unchanged
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
		spec.Planes = append(spec.Planes, plane)
	}
	c.Peering = manifests.Peering(given.Name, spec)
	return nil
}

// GatewayAddress is the overlay address of the gateway of a plane of a peering.
func GatewayAddress(internal netip.Prefix, index, plane int32) (netip.Addr, error) {
	number, err := ipam.GatewayNumber(int(index), int(plane))
	if err != nil {
		return netip.Addr{}, err
	}
	return ipam.GatewayAddr(internal, number)
}

// unknown is a field of a plane in a Peering that comes about during the run. As a list it may be known in part.
type unknown struct {
	plane  int32
	field  string
	values []Value
}

// showUnknown writes into the manifest of the Peering what will come about.
func (c *ClusterPlan) showUnknown(manifest map[string]any) {
	planes, _, _ := unstructured.NestedFieldNoCopy(manifest, "spec", "planes")
	for _, p := range planes.([]any) {
		plane := p.(map[string]any)
		for _, u := range c.unknown {
			switch {
			case plane["index"] != int64(u.plane):
			case u.field == "endpoints":
				plane[u.field] = lo.Map(u.values, func(e Value, _ int) any { return e.plain() })
			case u.field == "fingerprint":
				plane["presharedKey"].(map[string]any)[u.field] = u.values[0].plain()
			default:
				plane[u.field] = u.values[0].plain()
			}
		}
	}
}

// Unknown are fields of the Peering that come about during the run, as the plan calls them.
func (c *ClusterPlan) Unknown() []string {
	return lo.Map(c.unknown, func(u unknown, _ int) string { return fmt.Sprintf("%s of plane %d: %s", u.field, u.plane, u.values) })
}

// Resolve returns the plan with endpoints of the server's gateways, by their planes, that were assigned since it was made.
func (p *Plan) Resolve(endpoints map[int32][]string) *Plan {
	out := &Plan{p.Clusters}
	c := &out.Clusters[1-p.Server()]
	c.Peering = c.Peering.DeepCopy()
	for i := range c.Peering.Spec.Planes {
		plane := &c.Peering.Spec.Planes[i]
		plane.Endpoints = endpoints[plane.Index]
	}
	c.unknown = lo.Reject(c.unknown, func(u unknown, _ int) bool { return u.field == "endpoints" && len(endpoints[u.plane]) > 0 })
	return out
}
