package services

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
)

// ErrRefused is for a peer's record that is not used at all.
var ErrRefused = errors.New("the record is refused")

// The reasons for which something of a peer is refused, in metrics and messages.
const (
	RefusedName      = "name"
	RefusedNamespace = "namespace"
	RefusedRecord    = "record"
	RefusedAddress   = "address"
	RefusedLimit     = "limit"
)

// CheckKey returns why a peer's service of that name is refused, empty if it is not.
func CheckKey(objectName string) (k Key, reason string) {
	k, isValid := ParseKey(objectName)
	switch {
	case !isValid:
		return k, RefusedName
	case IsReserved(k.Namespace) || k.Namespace == "default" && k.Name == "kubernetes":
		return k, RefusedNamespace
	}
	return k, ""
}

// FromPeer returns the part of a peer's record that may be used: endpoints with addresses by which this cluster reaches the
// peer's pods and exposed hosts. refused is how many endpoints are left out. The error is ErrRefused if the record has values
// that the definition of ReceivedService does not allow.
func FromPeer(r *v1alpha1.ServiceRecord, p *v1alpha1.Peering) (out *v1alpha1.ServiceRecord, refused int, err error) {
	if err := Validate(r); err != nil {
		return nil, 0, err
	}
	out = r.DeepCopy()
	out.Labels, out.Annotations = exportedPairs(r.Labels, maxLabelValue), exportedPairs(r.Annotations, maxAnnotationValue)
	usable := UsableRanges(p)
	for i := range out.Slices {
		s := &out.Slices[i]
		before := len(s.Endpoints)
		s.Endpoints = lo.Filter(s.Endpoints, func(e v1alpha1.RecordEndpoint, _ int) bool {
			return lo.ContainsBy(usable, func(of netip.Prefix) bool { return of.Contains(e.Address.Addr) })
		})
		refused += before - len(s.Endpoints)
	}
	return out, refused, nil
}

// UsableRanges returns the ranges in which a peer's endpoints may be: its pods, and its exposed hosts, which are in the upper
// half of its external range. Its nodes are in the lower half.
func UsableRanges(p *v1alpha1.Peering) []netip.Prefix {
	out := lo.FilterMap(p.Spec.Remote.Pods, func(m v1alpha1.CIDRMapping, _ int) (netip.Prefix, bool) {
		return m.Mapped.Prefix, p.CarriesFamily(m.Mapped.Addr())
	})
	if _, hosts, err := ipam.SplitExternal(p.Spec.Remote.ExternalCIDR.Prefix); err == nil {
		out = append(out, hosts)
	}
	return out
}

var (
	portName = regexp.MustCompile(`^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$`)
	zoneName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	sliceID  = regexp.MustCompile(`^[a-z0-9]{1,10}$`)
)

func isZone(s string) bool { return zoneName.MatchString(s) }

// Validate returns ErrRefused if a record has a value that the definition of ReceivedService does not allow. An unknown value
// of an enumeration is refused, because nobody knows what it means for the service.
func Validate(r *v1alpha1.ServiceRecord) error {
	var problem error
	require := func(ok bool, format string, args ...any) {
		if !ok && problem == nil {
			problem = fmt.Errorf("%w: "+format, append([]any{ErrRefused}, args...)...)
		}
	}
	oneOf := func(field, value string, known ...string) {
		require(lo.Contains(known, value), "%s has the unknown value %.40q", field, value)
	}
	oneOf("type", string(r.Type), string(v1alpha1.ClusterSetIP), string(v1alpha1.HeadlessService))
	oneOf("sessionAffinity", string(r.SessionAffinity), "", string(corev1.ServiceAffinityNone), string(corev1.ServiceAffinityClientIP))
	oneOf("internalTrafficPolicy", string(r.InternalTrafficPolicy), "", string(corev1.ServiceInternalTrafficPolicyCluster), string(corev1.ServiceInternalTrafficPolicyLocal))
	oneOf("trafficDistribution", r.TrafficDistribution, "", corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode)
	require(r.SessionAffinitySeconds >= 0 && r.SessionAffinitySeconds <= 86400, "sessionAffinitySeconds is %d", r.SessionAffinitySeconds)
	require(r.Omitted >= 0 && r.Omitted <= 1000000, "omitted is %d", r.Omitted)
	require(!r.Created.IsZero() && r.Created.UTC().Year() < 9999 && r.Created.UTC().Year() > 0, "it has no valid time of creation")
	require(len(r.Ports) <= v1alpha1.MaxServicePorts, "it has %d ports", len(r.Ports))
	require(len(r.Slices) <= v1alpha1.MaxRecordSlices && count(r.Slices) <= v1alpha1.MaxRecordEndpoints, "it has %d slices with %d endpoints", len(r.Slices), count(r.Slices))
	require(r.Type == v1alpha1.HeadlessService || len(r.Ports) > 0, "it has no port")
	for _, p := range r.Ports {
		require(portName.MatchString(p.Name), "port name %.70q", p.Name)
		oneOf("protocol", string(p.Protocol), "TCP", "UDP", "SCTP")
		require(p.Port > 0 && p.Port <= 65535, "port %d", p.Port)
		require(p.AppProtocol == "" || len(validation.IsQualifiedName(p.AppProtocol)) == 0, "appProtocol %.70q", p.AppProtocol)
	}
	require(len(lo.FindDuplicatesBy(r.Ports, func(p v1alpha1.RecordPort) string { return p.Name })) == 0, "two ports have the same name")
	require(len(lo.FindDuplicatesBy(r.Ports, func(p v1alpha1.RecordPort) string { return fmt.Sprint(p.Protocol, p.Port) })) == 0, "two ports have the same number")
	require(validPairs(r.Labels, maxLabelValue), "labels that exceed a limit")
	require(validPairs(r.Annotations, maxAnnotationValue), "annotations that exceed a limit")
	for _, s := range r.Slices {
		require(sliceID.MatchString(s.ID), "slice %.20q", s.ID)
		require(len(s.Ports) <= v1alpha1.MaxServicePorts && len(s.Endpoints) <= v1alpha1.MaxSliceEndpoints, "slice %.20q has %d ports and %d endpoints", s.ID, len(s.Ports), len(s.Endpoints))
		for _, p := range s.Ports {
			require(portName.MatchString(p.Name), "port name %.70q", p.Name)
			oneOf("protocol", string(p.Protocol), "TCP", "UDP", "SCTP")
			require(p.Port > 0 && p.Port <= 65535, "port %d", p.Port)
		}
		require(len(lo.FindDuplicatesBy(s.Ports, func(p v1alpha1.SlicePort) string { return p.Name })) == 0, "slice %.20q has two ports with the same name", s.ID)
		for _, e := range s.Endpoints {
			require(isUnicast(e.Address.Addr), "address %v", e.Address)
			require(e.Hostname == "" || len(validation.IsDNS1123Label(e.Hostname)) == 0, "host name %.70q", e.Hostname)
			require(e.Zone == "" || isZone(e.Zone), "zone %.70q", e.Zone)
		}
	}
	require(len(lo.FindDuplicatesBy(r.Slices, func(s v1alpha1.RecordSlice) string { return s.ID })) == 0, "two slices have the same ID")
	return problem
}

// validPairs reports whether labels or annotations are within their limits, and can be written to an object.
func validPairs(in map[string]string, maxValue int) bool {
	return len(in) <= maxPairs && lo.EveryBy(lo.Entries(in), func(e lo.Entry[string, string]) bool {
		return len(e.Key) <= maxKey && len(validation.IsQualifiedName(e.Key)) == 0 && len(e.Value) <= maxValue &&
			(maxValue > maxLabelValue || len(validation.IsValidLabelValue(e.Value)) == 0)
	})
}

// Imports reports whether a peer's services are imported into a namespace with these labels.
func Imports(policy v1alpha1.ImportPolicy, labels map[string]string) bool {
	label := labels[v1alpha1.LabelImport]
	return policy == v1alpha1.ImportAll && label != "false" || policy == v1alpha1.ImportLabeled && label == "true"
}
