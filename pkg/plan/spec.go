package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
		Index:  given.Index,
		Local:  v1alpha1.LocalNetwork{Pods: got.Pods, InternalCIDR: c.Ledger.Spec.InternalCIDR, ExternalCIDR: external, Hosts: hosts},
		Remote: v1alpha1.RemoteNetwork{ClusterID: d.peer.ClusterID, Name: d.peer.Name, Pods: given.Pods, ExternalCIDR: given.ExternalCIDR, NodeIPs: ips[:min(len(ips), maxNodeIPs)]},
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
			c.unknown = append(c.unknown, unknown{g.Plane, "fingerprint", []Value{Later("of the key in " + secret(g.PresharedSecretName()))}})
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
		switch existing := d.existingPlane(g.Plane); {
		case remote.PublicKey.IsKnown():
			plane.RemotePublicKey = remote.PublicKey.String()
		case remote.KeyUnreadable && existing != nil:
			plane.RemotePublicKey = existing.RemotePublicKey // taken for unchanged
		default:
			c.unknown = append(c.unknown, unknown{g.Plane, "remotePublicKey", []Value{remote.PublicKey}})
		}
		if c.Service == nil {
			if slices.ContainsFunc(remote.Endpoints, func(e Value) bool { return !e.IsKnown() }) {
				c.unknown = append(c.unknown, unknown{g.Plane, "endpoints", remote.Endpoints})
			} else {
				for _, e := range remote.Endpoints {
					plane.Endpoints = append(plane.Endpoints, e.String())
				}
			}
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
				var endpoints []any
				for _, e := range u.values {
					endpoints = append(endpoints, e.plain())
				}
				plane[u.field] = endpoints
			case u.field == "fingerprint":
				plane["presharedKey"].(map[string]any)[u.field] = u.values[0].plain()
			default:
				plane[u.field] = u.values[0].plain()
			}
		}
	}
}

// Unknown are fields of the Peering that come about during the run, as the plan calls them.
func (c *ClusterPlan) Unknown() (out []string) {
	for _, u := range c.unknown {
		out = append(out, fmt.Sprintf("%s of plane %d: %s", u.field, u.plane, u.values))
	}
	return out
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
	c.unknown = slices.DeleteFunc(slices.Clone(c.unknown), func(u unknown) bool { return u.field == "endpoints" && len(endpoints[u.plane]) > 0 })
	return out
}
