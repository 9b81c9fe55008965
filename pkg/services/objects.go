package services

import (
	"fmt"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

const (
	// AnnotationDerived of a ServiceImport has the name of the Service that stands for it. Other programs read it, such as
	// implementations of the Gateway API.
	AnnotationDerived = "multicluster.kubernetes.io/derived-service"
	// AnnotationWithdrawn is on EndpointSlices of a peer that has been unreachable for a while.
	AnnotationWithdrawn = "liqonet.io/withdrawn"
)

// labels are on all objects of an imported service.
func (m *Merged) labels() map[string]string {
	return map[string]string{
		v1alpha1.LabelManagedBy: v1alpha1.FieldManager, v1beta1.LabelServiceName: m.Key.Name,
	}
}

// PreferClose replaces preferences that API servers before Kubernetes 1.34 do not know. PreferClose means the same zone.
func (m *Merged) PreferClose() {
	if d := m.Record.TrafficDistribution; d == corev1.ServiceTrafficDistributionPreferSameZone || d == corev1.ServiceTrafficDistributionPreferSameNode {
		m.Record.TrafficDistribution = corev1.ServiceTrafficDistributionPreferClose
	}
}

// IsHeadless reports whether the service has no address of its own.
func (m *Merged) IsHeadless() bool { return m.Record.Type == v1alpha1.HeadlessService }

// portNameIn returns the name that a port has in a Service and its slices. The union of several exports may have a port without a
// name next to others, which a Service may not have.
func (m *Merged) portNameIn(p v1alpha1.RecordPort) string {
	if p.Name != "" || len(m.Ports) == 1 {
		return p.Name
	}
	name := fmt.Sprintf("%s-%d", strings.ToLower(string(p.Protocol)), p.Port)
	for lo.ContainsBy(m.Ports, func(q v1alpha1.RecordPort) bool { return q.Name == name }) {
		name += "x"
	}
	return name
}

// Import returns the ServiceImport. ips are the addresses of the derived Service, empty while it has none.
func (m *Merged) Import(ips []string) *v1beta1.ServiceImport {
	out := &v1beta1.ServiceImport{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: v1beta1.ServiceImportKindName},
		ObjectMeta: metav1.ObjectMeta{Namespace: m.Key.Namespace, Name: m.Key.Name, Labels: lo.Assign(m.Record.Labels, m.labels()), Annotations: m.Record.Annotations},
		Spec: v1beta1.ServiceImportSpec{
			Type: v1beta1.ServiceImportType(m.Record.Type), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			InternalTrafficPolicy: lo.EmptyableToPtr(m.Record.InternalTrafficPolicy), TrafficDistribution: lo.EmptyableToPtr(m.Record.TrafficDistribution),
			Ports: lo.Map(m.Ports, func(p v1alpha1.RecordPort, _ int) v1beta1.ServicePort {
				return v1beta1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port, AppProtocol: lo.EmptyableToPtr(p.AppProtocol)}
			}),
		},
	}
	if !m.IsHeadless() {
		out.Spec.IPs = ips
		out.Spec.SessionAffinity, out.Spec.SessionAffinityConfig = m.affinity()
		out.Annotations = lo.Assign(out.Annotations, map[string]string{AnnotationDerived: m.Key.DerivedName()})
	}
	return out
}

// ImportStatus returns the status of the ServiceImport. before is the present one, of which unchanged conditions keep their time.
func (m *Merged) ImportStatus(before v1beta1.ServiceImportStatus, ips []string) v1beta1.ServiceImportStatus {
	out := v1beta1.ServiceImportStatus{
		EndpointSliceObjects: v1beta1.EndpointSliceObjectsPresent,
		Clusters:             lo.Map(m.Clusters, func(id string, _ int) v1beta1.ClusterStatus { return v1beta1.ClusterStatus{Cluster: id} }),
	}
	if m.IsHeadless() || len(ips) > 0 {
		out.Conditions = SetConditions(before.Conditions, v1beta1.NewServiceImportCondition(v1beta1.ServiceImportConditionReady, metav1.ConditionTrue, v1beta1.ServiceImportReasonReady, "the service can be used"))
	} else {
		out.Conditions = SetConditions(before.Conditions, v1beta1.NewServiceImportCondition(v1beta1.ServiceImportConditionReady, metav1.ConditionFalse, v1beta1.ServiceImportReasonPending, "the service has no address yet"))
	}
	return out
}

func (m *Merged) affinity() (corev1.ServiceAffinity, *corev1.SessionAffinityConfig) {
	if m.Record.SessionAffinity != corev1.ServiceAffinityClientIP {
		return corev1.ServiceAffinityNone, nil
	}
	seconds := m.Record.SessionAffinitySeconds
	if seconds == 0 {
		seconds = corev1.DefaultClientIPServiceAffinitySeconds
	}
	return corev1.ServiceAffinityClientIP, &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
}

// DerivedService returns the Service that stands for the import, nil for a headless one. It has no selector: its endpoints are in
// the slices.
func (m *Merged) DerivedService() *corev1.Service {
	if m.IsHeadless() || len(m.Ports) == 0 {
		return nil
	}
	out := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: m.Key.Namespace, Name: m.Key.DerivedName(), Labels: m.labels()},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			IPFamilyPolicy:        ptr.To(corev1.IPFamilyPolicySingleStack),
			InternalTrafficPolicy: lo.EmptyableToPtr(m.Record.InternalTrafficPolicy), TrafficDistribution: lo.EmptyableToPtr(m.Record.TrafficDistribution),
			Ports: lo.Map(m.Ports, func(p v1alpha1.RecordPort, _ int) corev1.ServicePort {
				return corev1.ServicePort{Name: m.portNameIn(p), Protocol: p.Protocol, Port: p.Port, AppProtocol: lo.EmptyableToPtr(p.AppProtocol)}
			}),
		},
	}
	out.Spec.SessionAffinity, out.Spec.SessionAffinityConfig = m.affinity()
	return out
}

// EndpointSlices returns the slices of all clusters.
func (m *Merged) EndpointSlices() []*discoveryv1.EndpointSlice {
	names := lo.SliceToMap(m.Ports, func(p v1alpha1.RecordPort) (string, string) { return p.Name, m.portNameIn(p) })
	protocols := lo.SliceToMap(m.Ports, func(p v1alpha1.RecordPort) (string, *string) { return p.Name, lo.EmptyableToPtr(p.AppProtocol) })
	return lo.Map(m.Slices, func(s MergedSlice, _ int) *discoveryv1.EndpointSlice {
		out := &discoveryv1.EndpointSlice{
			TypeMeta: metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: m.Key.Namespace, Name: strings.Join([]string{m.Key.DerivedName(), s.Cluster, s.ID}, "-"),
				Labels: lo.Assign(m.labels(), map[string]string{
					v1beta1.LabelSourceCluster: s.Cluster, discoveryv1.LabelManagedBy: v1alpha1.ServicesManager,
				}),
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports: lo.Map(s.Ports, func(p v1alpha1.SlicePort, _ int) discoveryv1.EndpointPort {
				return discoveryv1.EndpointPort{Name: ptr.To(names[p.Name]), Protocol: ptr.To(p.Protocol), Port: ptr.To(p.Port), AppProtocol: protocols[p.Name]}
			}),
			Endpoints: lo.Map(s.Endpoints, func(e v1alpha1.RecordEndpoint, _ int) discoveryv1.Endpoint { return m.endpoint(s, e) }),
		}
		if m.IsHeadless() {
			out.Labels[corev1.IsHeadlessService] = "" // kube-proxy leaves these out
		} else {
			out.Labels[discoveryv1.LabelServiceName] = m.Key.DerivedName()
		}
		if s.Withdrawn {
			out.Annotations = map[string]string{AnnotationWithdrawn: "true"}
		}
		return out
	})
}

func (m *Merged) endpoint(s MergedSlice, e v1alpha1.RecordEndpoint) discoveryv1.Endpoint {
	out := discoveryv1.Endpoint{
		Addresses: []string{e.Address.String()}, Hostname: lo.EmptyableToPtr(e.Hostname), Zone: lo.EmptyableToPtr(e.Zone), NodeName: lo.EmptyableToPtr(e.NodeName),
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(e.Ready), Serving: ptr.To(e.Serving), Terminating: ptr.To(e.Terminating)},
	}
	if !m.IsHeadless() {
		out.Hostname = nil
	}
	if m.Record.TrafficDistribution == "" || m.IsHeadless() {
		return out
	}
	// kube-proxy ignores zones if one ready endpoint has no hint, so each gets one: a name that no node has, where the real one is not known.
	elsewhere := "remote." + shortHash(s.Cluster)
	out.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: lo.CoalesceOrEmpty(e.Zone, elsewhere)}}}
	if m.Record.TrafficDistribution == corev1.ServiceTrafficDistributionPreferSameNode {
		out.Hints.ForNodes = []discoveryv1.ForNode{{Name: lo.CoalesceOrEmpty(e.NodeName, elsewhere)}}
	}
	return out
}
