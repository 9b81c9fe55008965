package services

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
)

// Refusal is why a ServiceExport is not valid: a reason for its condition Valid, and a message.
type Refusal struct{ Reason, Message string }

// CheckExport returns why a ServiceExport cannot be exported, nil if it can. svc is the Service of the same name, nil if there
// is none.
func CheckExport(k Key, svc *corev1.Service) *Refusal {
	switch {
	case IsReserved(k.Namespace) || k.Namespace == "default" && k.Name == "kubernetes":
		return &Refusal{"ReservedNamespace", "services of Kubernetes and of liqonet itself are not exported"}
	case svc == nil:
		return &Refusal{string(v1beta1.ServiceExportReasonNoService), fmt.Sprintf("there is no service %s", k)}
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return &Refusal{string(v1beta1.ServiceExportReasonInvalidServiceType), "a service of type ExternalName has no endpoints to export"}
	case len(svc.Spec.IPFamilies) > 0 && !slices.Contains(svc.Spec.IPFamilies, corev1.IPv4Protocol):
		return &Refusal{string(v1beta1.ServiceImportReasonIPFamilyNotSupported), "the service has no IPv4 address, and peers reach IPv4 endpoints only"}
	case isDerived(svc):
		return &Refusal{"DerivedService", "this service stands for an imported one: export it in the cluster that has its pods"}
	}
	return nil
}

// isDerived reports whether a Service stands for an imported one.
func isDerived(svc *corev1.Service) bool {
	return strings.HasPrefix(svc.Name, DerivedPrefix) && svc.Labels[v1beta1.LabelServiceName] != ""
}

// IsHeadless reports whether a Service has no address of its own.
func IsHeadless(svc *corev1.Service) bool { return svc.Spec.ClusterIP == corev1.ClusterIPNone }

// NewRecord describes a Service with its EndpointSlices. Endpoints have the addresses of this cluster. Only IPv4 addresses
// are included, as the data plane has no others.
func NewRecord(export *v1beta1.ServiceExport, svc *corev1.Service, endpointSlices []*discoveryv1.EndpointSlice) *v1alpha1.ServiceRecord {
	headless := IsHeadless(svc)
	r := &v1alpha1.ServiceRecord{
		Created:               export.CreationTimestamp,
		Type:                  lo.Ternary(headless, v1alpha1.HeadlessService, v1alpha1.ClusterSetIP),
		InternalTrafficPolicy: lo.FromPtr(svc.Spec.InternalTrafficPolicy), TrafficDistribution: lo.FromPtr(svc.Spec.TrafficDistribution),
		Labels:      exportedPairs(export.Spec.ExportedLabels, maxLabelValue),
		Annotations: exportedPairs(export.Spec.ExportedAnnotations, maxAnnotationValue),
	}
	if !headless && svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		r.SessionAffinity = svc.Spec.SessionAffinity
		if config := svc.Spec.SessionAffinityConfig; config != nil && config.ClientIP != nil {
			r.SessionAffinitySeconds = lo.FromPtr(config.ClientIP.TimeoutSeconds)
		}
	}
	for _, p := range svc.Spec.Ports[:min(len(svc.Spec.Ports), v1alpha1.MaxServicePorts)] {
		r.Ports = append(r.Ports, v1alpha1.RecordPort{
			Name: p.Name, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), Port: p.Port, AppProtocol: lo.FromPtr(p.AppProtocol),
		})
	}
	r.Slices, r.Omitted = recordSlices(endpointSlices, headless)
	return r
}

// The limits of labels and annotations, as in the definitions of the kinds.
const maxPairs, maxKey, maxLabelValue, maxAnnotationValue = 32, 317, 63, 1024

// exportedPairs returns the labels or annotations that may be exported, the first ones by name.
func exportedPairs(in map[string]string, maxValue int) map[string]string {
	var out map[string]string
	for _, k := range slices.Sorted(maps.Keys(in)) {
		if isForeignKey(k) && len(k) <= maxKey && len(in[k]) <= maxValue && len(out) < maxPairs {
			if out == nil {
				out = map[string]string{}
			}
			out[k] = in[k]
		}
	}
	return out
}

// recordSlices returns the endpoints of a service, and how many are left out because of the limits. Endpoints that serve
// stay before others.
func recordSlices(in []*discoveryv1.EndpointSlice, headless bool) (out []v1alpha1.RecordSlice, omitted int32) {
	for _, s := range in {
		if s.AddressType != discoveryv1.AddressTypeIPv4 {
			continue
		}
		endpoints := lo.FilterMap(s.Endpoints, func(e discoveryv1.Endpoint, _ int) (v1alpha1.RecordEndpoint, bool) {
			return recordEndpoint(&e, headless)
		})
		slices.SortFunc(endpoints, func(a, b v1alpha1.RecordEndpoint) int {
			return cmp.Or(a.Address.Compare(b.Address.Addr), strings.Compare(a.Hostname, b.Hostname))
		})
		ports := slicePorts(s.Ports)
		if len(endpoints) == 0 {
			out = append(out, v1alpha1.RecordSlice{ID: shortHash(s.Name), Ports: ports})
		}
		for i, part := range lo.Chunk(endpoints, v1alpha1.MaxSliceEndpoints) {
			name := s.Name + lo.Ternary(i > 0, fmt.Sprintf("/%d", i), "")
			out = append(out, v1alpha1.RecordSlice{ID: shortHash(name), Ports: ports, Endpoints: part})
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.RecordSlice) int { return strings.Compare(a.ID, b.ID) })
	if count(out) <= v1alpha1.MaxRecordEndpoints && len(out) <= v1alpha1.MaxRecordSlices {
		return out, 0
	}
	return limitSlices(out)
}

// limitSlices leaves out endpoints beyond the limits, at first those that do not serve.
func limitSlices(in []v1alpha1.RecordSlice) (out []v1alpha1.RecordSlice, omitted int32) {
	serving := lo.SumBy(in, func(s v1alpha1.RecordSlice) int { return lo.CountBy(s.Endpoints, isServing) })
	// Slices with endpoints that serve come first.
	slices.SortStableFunc(in, func(a, b v1alpha1.RecordSlice) int {
		return cmp.Compare(min(1, lo.CountBy(b.Endpoints, isServing)), min(1, lo.CountBy(a.Endpoints, isServing)))
	})
	left, others := v1alpha1.MaxRecordEndpoints, max(0, v1alpha1.MaxRecordEndpoints-serving)
	for i, s := range in {
		var kept []v1alpha1.RecordEndpoint
		for _, e := range s.Endpoints {
			switch {
			case i >= v1alpha1.MaxRecordSlices || left == 0 || !isServing(e) && others == 0:
				omitted++
				continue
			case !isServing(e):
				others--
			}
			left--
			kept = append(kept, e)
		}
		if s.Endpoints = kept; i < v1alpha1.MaxRecordSlices {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.RecordSlice) int { return strings.Compare(a.ID, b.ID) })
	return out, omitted
}

func isServing(e v1alpha1.RecordEndpoint) bool { return e.Ready || e.Serving }

func count(in []v1alpha1.RecordSlice) int {
	return lo.SumBy(in, func(s v1alpha1.RecordSlice) int { return len(s.Endpoints) })
}

// recordEndpoint returns false for an endpoint with an address that cannot be exported. The addresses of one endpoint are
// interchangeable, so only the first one counts.
func recordEndpoint(e *discoveryv1.Endpoint, headless bool) (v1alpha1.RecordEndpoint, bool) {
	addr, err := netip.ParseAddr(lo.FirstOrEmpty(e.Addresses))
	if err != nil || !addr.Is4() || !isUnicast(addr) {
		return v1alpha1.RecordEndpoint{}, false
	}
	// A condition that is not known counts as true, and serving as ready (KEP-1672).
	ready := lo.FromPtrOr(e.Conditions.Ready, true)
	out := v1alpha1.RecordEndpoint{
		Address: v1alpha1.IP{Addr: addr}, Hostname: lo.FromPtr(e.Hostname), Zone: lo.FromPtr(e.Zone), NodeName: lo.FromPtr(e.NodeName),
		Ready: ready, Serving: lo.FromPtrOr(e.Conditions.Serving, ready), Terminating: lo.FromPtr(e.Conditions.Terminating),
	}
	if headless && out.Hostname == "" {
		// The address differs from cluster to cluster. This name does not.
		out.Hostname = strings.ReplaceAll(addr.String(), ".", "-")
	}
	if !isZone(out.Zone) {
		out.Zone = ""
	}
	return out, true
}

// isUnicast reports whether an EndpointSlice may have an address.
func isUnicast(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && a.IsGlobalUnicast()
}

// slicePorts returns the ports of an EndpointSlice. A port without a number stands for all ports, which is for headless
// services without ports.
func slicePorts(in []discoveryv1.EndpointPort) (out []v1alpha1.SlicePort) {
	for _, p := range in[:min(len(in), v1alpha1.MaxServicePorts)] {
		if p.Port != nil {
			out = append(out, v1alpha1.SlicePort{Name: lo.FromPtr(p.Name), Protocol: lo.FromPtrOr(p.Protocol, corev1.ProtocolTCP), Port: *p.Port})
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.SlicePort) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(a.Protocol), string(b.Protocol)), cmp.Compare(a.Port, b.Port))
	})
	return out
}

// Unreachable counts the endpoints of a service that a peer does not learn.
type Unreachable struct {
	// HostNetwork are on nodes' own addresses, and NotExposed at other addresses that the peer does not reach.
	HostNetwork, NotExposed int
}

// ToPeer returns the record as a peer learns it: with the addresses by which it reaches the endpoints, and without those
// that it does not reach. nodes are the addresses of this cluster's nodes.
func ToPeer(r *v1alpha1.ServiceRecord, p *v1alpha1.Peering, nodes map[netip.Addr]bool) (*v1alpha1.ServiceRecord, Unreachable) {
	var left Unreachable
	out := r.DeepCopy()
	for i := range out.Slices {
		s := &out.Slices[i]
		s.Endpoints = lo.FilterMap(s.Endpoints, func(e v1alpha1.RecordEndpoint, _ int) (v1alpha1.RecordEndpoint, bool) {
			mapped, ok := mappedAddress(p, e.Address.Addr, nodes)
			switch {
			case ok:
				e.Address, e.NodeName = v1alpha1.IP{Addr: mapped}, ""
			case nodes[e.Address.Addr]:
				left.HostNetwork++
			default:
				left.NotExposed++
			}
			return e, ok
		})
	}
	return out, left
}

// mappedAddress returns the address by which the peer reaches one of this cluster. Hosts come first: one may be exposed
// although it is a node.
func mappedAddress(p *v1alpha1.Peering, a netip.Addr, nodes map[netip.Addr]bool) (netip.Addr, bool) {
	for _, h := range p.Spec.Local.Hosts {
		if h.Real.Addr == a {
			return h.Mapped.Addr, true
		}
	}
	if nodes[a] {
		return netip.Addr{}, false
	}
	for _, m := range p.Spec.Local.Pods {
		if m.Real.Contains(a) && p.CarriesFamily(a) {
			return ipam.Mapping{Real: m.Real.Prefix, Mapped: m.Mapped.Prefix}.Translate(a)
		}
	}
	return netip.Addr{}, false
}

// IsFor reports whether a peer may use an exported service.
func IsFor(e *v1alpha1.ExportedServiceSpec, peering string) bool {
	return len(e.Peers) == 0 || slices.Contains(e.Peers, peering)
}
