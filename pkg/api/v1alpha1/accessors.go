package v1alpha1

import (
	"fmt"
	"net/netip"
	"slices"
)

// Plane returns the plane of that index, nil if there is none.
func (p *Peering) Plane(index int32) *Plane {
	for i := range p.Spec.Planes {
		if p.Spec.Planes[i].Index == index {
			return &p.Spec.Planes[i]
		}
	}
	return nil
}

// PlaneStatus returns what the gateway of the plane reported, nil if nothing.
func (p *Peering) PlaneStatus(index int32) *PlaneStatus {
	for i := range p.Status.Planes {
		if p.Status.Planes[i].Index == index {
			return &p.Status.Planes[i]
		}
	}
	return nil
}

// RemoteRanges are all ranges by which this cluster knows the peer, its pods'
// and the external one, of the overlay's address family.
func (p *Peering) RemoteRanges() []netip.Prefix {
	var out []netip.Prefix
	for _, m := range p.Spec.Remote.Pods {
		if p.Carries(m.Mapped.Addr()) {
			out = append(out, m.Mapped.Prefix)
		}
	}
	return append(out, p.Spec.Remote.ExternalCIDR.Prefix)
}

// Carries says whether an address is of the overlay's family: what is not cannot
// be routed by it.
func (p *Peering) Carries(a netip.Addr) bool {
	return a.Is4() == p.Spec.Local.InternalCIDR.Addr().Is4()
}

// Gateway returns what the node reported of a gateway, nil if nothing.
func (n *NodeNetwork) Gateway(peering string, plane int32) *NodeGateway {
	for i := range n.Status.Gateways {
		if g := &n.Status.Gateways[i]; g.Peering == peering && g.Plane == plane {
			return g
		}
	}
	return nil
}

// Check returns an error if an address or a range of the spec could not be read.
// The schema refuses such a Peering; one that was written before the schema, or
// past it, must not be applied to a kernel.
func (p *Peering) Check() error {
	bad := func(field string) error {
		return fmt.Errorf("peering %s: %s is missing or is no valid address; run peer again to write it anew", p.Name, field)
	}
	for _, m := range append(slices.Clone(p.Spec.Local.Pods), p.Spec.Remote.Pods...) {
		if !m.Real.IsValid() || !m.Mapped.IsValid() || m.Real.Bits() != m.Mapped.Bits() {
			return bad("a range of pods")
		}
	}
	for _, h := range p.Spec.Local.Hosts {
		if !h.Real.IsValid() || !h.Mapped.IsValid() {
			return bad("spec.local.hosts")
		}
	}
	for _, plane := range p.Spec.Planes {
		if !plane.RemoteAddress.IsValid() {
			return bad("spec.planes[].remoteAddress")
		}
	}
	switch s := p.Spec; {
	case !s.Local.InternalCIDR.IsValid():
		return bad("spec.local.internalCIDR")
	case !s.Local.ExternalCIDR.IsValid():
		return bad("spec.local.externalCIDR")
	case !s.Remote.ExternalCIDR.IsValid():
		return bad("spec.remote.externalCIDR")
	}
	return nil
}
