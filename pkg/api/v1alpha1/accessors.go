package v1alpha1

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"
	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/liqonet/liqonet/pkg/failure"
)

// Plane returns the plane with that index, nil if there is none.
func (p *Peering) Plane(index int32) *Plane {
	return find(p.Spec.Planes, func(p Plane) bool { return p.Index == index })
}

// PlaneStatus returns the report of the plane's gateway, nil if there is none.
func (p *Peering) PlaneStatus(index int32) *PlaneStatus {
	return find(p.Status.Planes, func(s PlaneStatus) bool { return s.Index == index })
}

// Gateway returns the node's report about a gateway, nil if there is none.
func (n *NodeNetwork) Gateway(peering string, plane int32) *NodeGateway {
	return find(n.Status.Gateways, func(g NodeGateway) bool { return g.PeeringName == peering && g.Plane == plane })
}

// LeaseName returns the name of the Lease by which the node holds its address, empty if it has none.
func (n *NodeNetwork) LeaseName() string {
	if n == nil || !n.Status.Address.IsValid() {
		return ""
	}
	return NodeLeaseName(n.Status.Address.Addr)
}

// Problem returns what the node's agent cannot do, empty if there is no problem or if it has just started.
func (n *NodeNetwork) Problem() string {
	c := meta.FindStatusCondition(n.Status.Conditions, ConditionReady)
	if c == nil || c.Reason == ReasonApplied || c.Reason == ReasonStarting {
		return ""
	}
	return c.Message
}

func find[T any](in []T, match func(T) bool) *T {
	if i := slices.IndexFunc(in, match); i >= 0 {
		return &in[i]
	}
	return nil
}

// RemoteRanges returns all ranges by which this cluster knows the peer, those of its pods and the external one, in the
// overlay's address family.
func (p *Peering) RemoteRanges() []netip.Prefix {
	pods := lo.FilterMap(p.Spec.Remote.Pods, func(m CIDRMapping, _ int) (netip.Prefix, bool) {
		return m.Mapped.Prefix, p.CarriesFamily(m.Mapped.Addr())
	})
	return append(pods, p.Spec.Remote.ExternalCIDR.Prefix)
}

// SplitEndpoint splits host:port. The host is a DNS name, or an address without a zone: others may supply endpoints, and
// a zone may contain any characters.
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
	last := lower[strings.LastIndex(lower, ".")+1:] // a number in a mistyped address
	if len(validation.IsDNS1123Subdomain(lower))+len(validation.IsDNS1035Label(last)) > 0 {
		return "", 0, fmt.Errorf("endpoint %q: %q is neither an address nor a host name", endpoint, host)
	}
	return host, uint16(n), nil
}

// CarriesFamily reports whether an address has the overlay's family: others cannot be routed through it.
func (p *Peering) CarriesFamily(a netip.Addr) bool {
	return a.Is4() == p.Spec.Local.InternalCIDR.Addr().Is4()
}

// Incomplete reports whether no command has completed the Peering. It is also true if the spec contains something
// unreadable, as then the whole spec is empty.
func (p *Peering) Incomplete() bool { return len(p.Spec.Planes) == 0 }

// ExchangesServices reports whether the clusters of a Peering use each other's services.
func (p *Peering) ExchangesServices() bool {
	return p.Spec.Services != nil && p.DeletionTimestamp.IsZero() && !p.Incomplete()
}

// Validate returns an error if the spec contains an unreadable address or range. The schema refuses such a Peering; one
// that was written before the schema, or bypassing it, must not be applied to a kernel.
func (p *Peering) Validate() error {
	s := &p.Spec
	maps := func(m CIDRMapping) bool {
		return m.Real.IsValid() && m.Mapped.IsValid() && m.Real.Bits() == m.Mapped.Bits()
	}
	if !s.Local.InternalCIDR.IsValid() || !s.Local.ExternalCIDR.IsValid() || !s.Remote.ExternalCIDR.IsValid() ||
		!lo.EveryBy(slices.Concat(s.Local.Pods, s.Remote.Pods), maps) ||
		!lo.EveryBy(s.Local.Hosts, func(h AddressMapping) bool { return h.Real.IsValid() && h.Mapped.IsValid() }) ||
		!lo.EveryBy(s.Planes, func(plane Plane) bool { return plane.RemoteAddress.IsValid() }) {
		return fmt.Errorf("peering %s: an address or a range of its spec is missing or not valid; run peer again to write it again", p.Name)
	}
	return nil
}

// DeletedByHand returns the entries of peerings that have worked, and whose Peering was deleted, but not by a command: a
// command would have recorded it in the ledger first. The ledger may be nil.
func (cn *ClusterNetwork) DeletedByHand(peerings []Peering) []PeerAllocation {
	if cn == nil || !cn.DeletionTimestamp.IsZero() {
		return nil
	}
	return lo.Filter(cn.Spec.Peers, func(entry PeerAllocation, _ int) bool {
		return entry.Active() && !slices.ContainsFunc(peerings, func(p Peering) bool { return p.Name == entry.Name })
	})
}

// PendingConditions returns the conditions of a Peering before any gateway has written them.
func (p *Peering) PendingConditions() []metav1.Condition {
	types := []string{ConditionReady, ConditionConnected, ConditionDegraded, ConditionKeysFresh, ConditionRedundant}
	if len(p.Spec.Planes) < 2 {
		types = types[:4]
	}
	return lo.Map(types, func(of string, _ int) metav1.Condition {
		return metav1.Condition{
			Type: of, Status: metav1.ConditionUnknown, Reason: ReasonPending, LastTransitionTime: metav1.Now(),
			Message: "no gateway of the peering has reported yet",
		}
	})
}

// ReadyCondition summarizes the conditions of a Peering: Ready means Connected and not Degraded. The condition that
// decides it provides the reason and message.
func ReadyCondition(conditions []metav1.Condition) (ready metav1.Condition) {
	for _, of := range []string{ConditionConnected, ConditionDegraded} {
		if c := meta.FindStatusCondition(conditions, of); c != nil {
			status := c.Status
			if status != metav1.ConditionUnknown {
				status = lo.Ternary(IsHealthy(*c), metav1.ConditionTrue, metav1.ConditionFalse)
			}
			ready = metav1.Condition{Status: status, Reason: c.Reason, Message: c.Message, ObservedGeneration: c.ObservedGeneration}
		}
		if ready.Status != metav1.ConditionTrue {
			break
		}
	}
	ready.Type = ConditionReady
	return ready
}

// IsHealthy reports whether a condition of a Peering is as it should be.
func IsHealthy(condition metav1.Condition) bool {
	return condition.Status == lo.Ternary(condition.Type == ConditionDegraded, metav1.ConditionFalse, metav1.ConditionTrue)
}

// OutsidePodMessage returns a message if the peer cannot reach a pod of this cluster, because the pod's address is
// outside the ranges by which the peer knows this cluster's pods. The message includes the command that fixes it. It is
// empty if there is no such pod. It is for the condition Degraded of the Peering.
func (p *Peering) OutsidePodMessage(nodes []NodeNetwork) string {
	var pods netipx.IPSetBuilder
	for _, m := range p.Spec.Local.Pods {
		pods.AddPrefix(m.Real.Prefix)
	}
	set, _ := pods.IPSet() // the schema admits valid ranges only
	inside := set.ContainsPrefix
	// Network plugins with their own IPAM leave the nodes' ranges unused. The nodes' ranges count if one of them is in
	// the ranges of the pods.
	used := slices.ContainsFunc(nodes, func(n NodeNetwork) bool {
		return slices.ContainsFunc(n.Status.PodCIDRs, func(c CIDR) bool { return inside(c.Prefix) })
	})
	outside := func(prefix netip.Prefix) bool {
		return prefix.IsValid() && p.CarriesFamily(prefix.Addr()) && !inside(prefix)
	}
	for _, n := range nodes {
		isOutside := func(ip IP) bool { return outside(netip.PrefixFrom(ip.Addr, ip.BitLen())) }
		if ip, found := lo.Find(n.Status.PodIPs, isOutside); found {
			return p.outsideMessage("pod", ip.String(), n.Name)
		}
		if c, found := lo.Find(n.Status.PodCIDRs, func(c CIDR) bool { return used && outside(c.Prefix) }); found {
			return p.outsideMessage("the range", c.String(), n.Name)
		}
	}
	return ""
}

func (p *Peering) outsideMessage(kind, where, node string) string {
	ranges := strings.Join(lo.Map(p.Spec.Local.Pods, func(m CIDRMapping, _ int) string { return m.Real.String() }), ",")
	return fmt.Sprintf("%s %s of node %s is outside of %s, by which %s knows the pods of this cluster: "+
		"run kubectl liqonet peer THIS-CLUSTER %s --pod-cidr THIS-CLUSTER=%s,RANGE-OF-%s",
		kind, where, node, ranges, p.Spec.Remote.Name, failure.Quote(p.Spec.Remote.Name), failure.Quote(ranges), where)
}

// ServicePort returns the port of a Service that targets the gateway of a plane, nil if there is none.
func ServicePort(svc *corev1.Service, plane int32) *corev1.ServicePort {
	return find(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == PlanePortName(plane) })
}

// LeaseTimeout returns how long an agent may not renew its Lease before it counts as dead.
func LeaseTimeout(lease string) time.Duration {
	return 3 * lo.Ternary[time.Duration](strings.HasPrefix(lease, "gateway-"), ReportInterval, NodeReportInterval)
}

// CIDR is a prefix with the JSON form of a string, e.g. "10.244.0.0/16".
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="must be a prefix without host bits, e.g. 10.244.0.0/16"
// +kubebuilder:object:generate=false
type CIDR struct{ netip.Prefix }

// NewCIDRs wraps prefixes.
func NewCIDRs(prefixes ...netip.Prefix) []CIDR {
	return lo.Map(prefixes, func(p netip.Prefix, _ int) CIDR { return CIDR{p} })
}

// Prefixes unwraps the valid ones.
func Prefixes(cidrs []CIDR) []netip.Prefix {
	return lo.FilterMap(cidrs, func(c CIDR, _ int) (netip.Prefix, bool) { return c.Prefix, c.IsValid() })
}

// DeepCopyInto copies the value.
func (c *CIDR) DeepCopyInto(out *CIDR) { *out = *c }

// MarshalJSON writes a string, which is empty for the zero value.
func (c CIDR) MarshalJSON() ([]byte, error) { return json.Marshal(c.Prefix) }

// UnmarshalJSON reads a string. An invalid prefix, or one with host bits, becomes the zero value, which is not valid. So
// one bad value does not make the rest of a list unreadable. The schema refuses such values when they are written.
func (c *CIDR) UnmarshalJSON(b []byte) error {
	var p netip.Prefix
	if json.Unmarshal(b, &p) != nil || p != p.Masked() {
		p = netip.Prefix{}
	}
	c.Prefix = p
	return nil
}

// IP is an address with the JSON form of a string. The schema's isIP refuses zones, and IPv4 addresses in IPv6 form.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:MaxLength=39
// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an address, without a zone, e.g. 10.244.0.7"
// +kubebuilder:object:generate=false
type IP struct{ netip.Addr }

// DeepCopyInto copies the value.
func (i *IP) DeepCopyInto(out *IP) { *out = *i }

// MarshalJSON writes a string, which is empty for the zero value.
func (i IP) MarshalJSON() ([]byte, error) { return json.Marshal(i.Addr) }

// UnmarshalJSON reads a string. An invalid address becomes the zero value, as with CIDR.
func (i *IP) UnmarshalJSON(b []byte) error {
	var a netip.Addr
	if json.Unmarshal(b, &a) != nil || a.Zone() != "" {
		a = netip.Addr{}
	}
	i.Addr = a
	return nil
}

// UnmarshalJSON reads the readable parts of a Peering (see decode).
func (p *Peering) UnmarshalJSON(b []byte) error {
	return decode(b, &p.TypeMeta, &p.ObjectMeta, &p.Spec, &p.Status)
}

// UnmarshalJSON reads the readable parts of a NodeNetwork (see decode).
func (n *NodeNetwork) UnmarshalJSON(b []byte) error {
	return decode(b, &n.TypeMeta, &n.ObjectMeta, &struct{}{}, &n.Status)
}

// decode reads an object that may contain a value, such as a time or a number, that does not fit its field. An unreadable
// object makes a whole list or watch fail, with all other objects in it. So decode keeps the readable part of such a
// status, and nothing of such a spec, which Validate refuses. The schema refuses both when they are written.
func decode[S, T any](b []byte, kind *metav1.TypeMeta, meta *metav1.ObjectMeta, spec *S, status *T) error {
	var o struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        json.RawMessage `json:"metadata"`
		Spec            json.RawMessage `json:"spec"`
		Status          json.RawMessage `json:"status"`
	}
	if err := kjson.Unmarshal(b, &o); err != nil {
		return err
	}
	*kind, *meta, *spec, *status = o.TypeMeta, metav1.ObjectMeta{}, *new(S), *new(T)
	if len(o.Metadata) > 0 && kjson.Unmarshal(o.Metadata, meta) != nil {
		// Agents can write who owns fields, and since when. Nobody needs that to read the object.
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(o.Metadata, &fields); err != nil {
			return err
		}
		delete(fields, "managedFields")
		readable, _ := json.Marshal(fields) // it was JSON
		if err := kjson.Unmarshal(readable, meta); err != nil {
			return err
		}
	}
	if kjson.Unmarshal(o.Spec, spec) != nil {
		*spec = *new(S)
	}
	_ = kjson.Unmarshal(o.Status, status) // what follows the unreadable value is left out
	return nil
}

// CopiedFrom returns the ID of the cluster for which objects were made, if that is not the cluster in which they are. It
// returns "" if they belong there, or were made by a version that did not record the ID.
func CopiedFrom(madeFor, cluster string) string {
	if madeFor == cluster {
		return ""
	}
	return madeFor
}

// CopyMessage describes a copy of objects of another cluster.
func CopyMessage(madeFor string) string {
	return "it was made for another cluster, with the ID " + madeFor + ", as in a restored backup: agents of this cluster do not apply it"
}
