package v1alpha1

import (
	"fmt"
	"net/netip"
	"slices"
)

// Plane returns the plane of that index, nil if there is none.
func (p *Peering) Plane(index int32) *Plane {
	return find(p.Spec.Planes, func(p Plane) bool { return p.Index == index })
}

// PlaneStatus returns what the gateway of the plane reported, nil if nothing.
func (p *Peering) PlaneStatus(index int32) *PlaneStatus {
	return find(p.Status.Planes, func(s PlaneStatus) bool { return s.Index == index })
}

// Gateway returns what the node reported of a gateway, nil if nothing.
func (n *NodeNetwork) Gateway(peering string, plane int32) *NodeGateway {
	return find(n.Status.Gateways, func(g NodeGateway) bool { return g.Peering == peering && g.Plane == plane })
}

func find[T any](in []T, is func(T) bool) *T {
	if i := slices.IndexFunc(in, is); i >= 0 {
		return &in[i]
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

// Check returns an error if an address or a range of the spec could not be read.
// The schema refuses such a Peering; one that was written before the schema, or
// past it, must not be applied to a kernel.
func (p *Peering) Check() error {
	s := &p.Spec
	ok := s.Local.InternalCIDR.IsValid() && s.Local.ExternalCIDR.IsValid() && s.Remote.ExternalCIDR.IsValid()
	for _, m := range slices.Concat(s.Local.Pods, s.Remote.Pods) {
		ok = ok && m.Real.IsValid() && m.Mapped.IsValid() && m.Real.Bits() == m.Mapped.Bits()
	}
	for _, h := range s.Local.Hosts {
		ok = ok && h.Real.IsValid() && h.Mapped.IsValid()
	}
	for _, plane := range s.Planes {
		ok = ok && plane.RemoteAddress.IsValid()
	}
	if !ok {
		return fmt.Errorf("peering %s: an address or a range of its spec is missing or not valid; run peer again to write it anew", p.Name)
	}
	return nil
}
