package v1alpha1

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
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
	return find(n.Status.Gateways, func(g NodeGateway) bool { return g.PeeringName == peering && g.Plane == plane })
}

// Lease is the name of the Lease by which the node holds its address; empty where it has none.
func (n *NodeNetwork) Lease() string {
	if n == nil || !n.Status.Address.IsValid() {
		return ""
	}
	return NodeLease(n.Status.Address.Addr)
}

// Problem is what the node's agent cannot do, "" if nothing, or if it has just started.
func (n *NodeNetwork) Problem() string {
	c := meta.FindStatusCondition(n.Status.Conditions, ConditionReady)
	if c == nil || c.Reason == ReasonApplied || c.Reason == ReasonStarting {
		return ""
	}
	return c.Message
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

// SplitEndpoint takes host:port apart. The host is a DNS name, or an address without a zone: an
// endpoint is what somebody else says, and a zone may have any characters.
func SplitEndpoint(endpoint string) (host string, port uint16, err error) {
	host, service, err := net.SplitHostPort(endpoint)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not ADDRESS:PORT", endpoint)
	}
	n, err := strconv.ParseUint(service, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("endpoint %q: %q is not a port from 1 to 65535", endpoint, service)
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Zone() != "" {
			return "", 0, fmt.Errorf("endpoint %q: the address has a zone", endpoint)
		}
		return host, uint16(n), nil
	}
	lower := strings.ToLower(host)
	last := lower[strings.LastIndex(lower, ".")+1:] // it is a number in a mistyped address
	if len(validation.IsDNS1123Subdomain(lower))+len(validation.IsDNS1035Label(last)) > 0 {
		return "", 0, fmt.Errorf("endpoint %q: %q is neither an address nor a host name", endpoint, host)
	}
	return host, uint16(n), nil
}

// Carries says whether an address is of the overlay's family: what is not cannot
// be routed by it.
func (p *Peering) Carries(a netip.Addr) bool {
	return a.Is4() == p.Spec.Local.InternalCIDR.Addr().Is4()
}

// Incomplete says that no command has completed the Peering, or that its spec has something that could not be read, and
// so nothing at all is known of it.
func (p *Peering) Incomplete() bool { return len(p.Spec.Planes) == 0 }

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

// DeletedByHand are the entries of peerings that have worked, and whose Peering no command has deleted: it would have said so in
// the ledger before. The ledger may be nil.
func (cn *ClusterNetwork) DeletedByHand(peerings []Peering) (out []PeerAllocation) {
	if cn == nil || !cn.DeletionTimestamp.IsZero() {
		return nil
	}
	for _, entry := range cn.Spec.Peers {
		if entry.Active() && !slices.ContainsFunc(peerings, func(p Peering) bool { return p.Name == entry.Name }) {
			out = append(out, entry)
		}
	}
	return out
}

// PendingConditions are those of a Peering of which no gateway has written any yet.
func (p *Peering) PendingConditions() (out []metav1.Condition) {
	types := []string{ConditionReady, ConditionConnected, ConditionDegraded, ConditionKeysFresh, ConditionRedundant}
	if len(p.Spec.Planes) < 2 {
		types = types[:4]
	}
	for _, of := range types {
		out = append(out, metav1.Condition{Type: of, Status: metav1.ConditionUnknown, Reason: ReasonPending, Message: "no gateway of the peering has reported yet", LastTransitionTime: metav1.Now()})
	}
	return out
}

// ReadyCondition sums up the conditions of a Peering: it is Connected and not Degraded. The one that decides gives reason and message.
func ReadyCondition(conditions []metav1.Condition) (ready metav1.Condition) {
	for _, of := range []string{ConditionConnected, ConditionDegraded} {
		if c := meta.FindStatusCondition(conditions, of); c != nil {
			ready = metav1.Condition{Status: metav1.ConditionTrue, Reason: c.Reason, Message: c.Message, ObservedGeneration: c.ObservedGeneration}
			if c.Status == metav1.ConditionUnknown {
				ready.Status = metav1.ConditionUnknown
			} else if !Well(*c) {
				ready.Status = metav1.ConditionFalse
			}
		}
		if ready.Status != metav1.ConditionTrue {
			break
		}
	}
	ready.Type = ConditionReady
	return ready
}

// Well says that a condition of a Peering is as it should be.
func Well(c metav1.Condition) bool {
	if c.Type == ConditionDegraded {
		return c.Status == metav1.ConditionFalse
	}
	return c.Status == metav1.ConditionTrue
}
