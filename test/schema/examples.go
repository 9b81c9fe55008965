package schema

import (
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
)

// Key is a public key, Fingerprint one of a pre-shared key.
const Key, Fingerprint = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "AAAAAAAAAAAAAAAAAAAAAA=="

func ip(s string) v1alpha1.IP { return v1alpha1.IP{Addr: netip.MustParseAddr(s)} }

// Examples are objects with something in every field, by their kinds.
func Examples() map[string]client.Object {
	pods := []v1alpha1.CIDRMapping{kit.Mapping("10.244.0.0/16", "10.20.0.0/16")}
	remote := []v1alpha1.CIDRMapping{kit.Mapping("10.244.0.0/16", "10.30.0.0/16")}
	external := kit.CIDR("10.70.0.0/18")
	now := metav1.NewTime(time.Now())
	condition := func(kind string) []metav1.Condition {
		return []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue, ObservedGeneration: 3, LastTransitionTime: now, Reason: "ProbesAnswered", Message: "m"}}
	}
	peering := manifests.Peering("b", v1alpha1.PeeringSpec{
		Index: 2, Overlay: "Geneve", Limits: v1alpha1.Limits{NewConnections: 1000, BitsPerSecond: 5e8}, PlanesMode: v1alpha1.PlanesSpread,
		Services: &v1alpha1.PeeringServices{RemoteID: "b", Import: v1alpha1.ImportLabeled, Precedence: v1alpha1.PrecedenceOwn, Endpoints: v1alpha1.EndpointsStandby},
		Local: v1alpha1.LocalNetwork{
			Pods: pods, InternalCIDR: kit.CIDR("10.80.0.0/19"), ExternalCIDR: kit.CIDR("10.60.0.0/18"), ServiceCIDRs: []v1alpha1.CIDR{kit.CIDR("10.96.0.0/16")},
			Hosts: []v1alpha1.AddressMapping{{Real: ip("192.168.1.50"), Mapped: ip("10.60.32.1")}},
		},
		Remote: v1alpha1.RemoteNetwork{
			ClusterID: "5d3f6b0e-8f0a-4f0e-9b7c-0d8c1c0e5a11", Name: "user@kind-b", Pods: remote, ExternalCIDR: external, NodeIPs: []v1alpha1.IP{ip("172.18.0.2"), ip("fd00::2")},
		},
		Planes: []v1alpha1.Plane{{
			Index: 1, Role: v1alpha1.Server, WireGuard: "Kernel", KeyGeneration: 2, ServiceName: "gateway-b-0", RemotePublicKey: Key, PresharedKey: v1alpha1.PresharedKey{Generation: 1, Fingerprint: Fingerprint}, RemoteAddress: ip("10.70.31.254"),
			Endpoints: []string{"192.0.2.1:30001", "[2001:db8::1]:30001", "gateway.example:51840"},
		}},
		Gateways: &v1alpha1.GatewayPlacement{
			NodeSelector: map[string]string{"node-role.kubernetes.io/gateway": "", "pool": "gateways"},
			Tolerations:  []corev1.Toleration{{Key: "example.com/dedicated", Operator: "Equal", Value: "gateways", Effect: "NoSchedule"}},
		},
	})
	peering.Status = v1alpha1.PeeringStatus{
		Conditions: condition(v1alpha1.ConditionConnected),
		Planes: []v1alpha1.PlaneStatus{{
			Index: 1, ObservedGeneration: 3, PodIP: ip("10.244.1.7"), NodeName: "node-1.example", PublicKey: Key, MTU: 1400, Connected: true, Message: "m",
			Endpoint: "192.0.2.1:30001", LastHandshake: &now, RTTMicroseconds: 900, LossPercent: 1,
			Remote: &v1alpha1.RemoteAnnouncement{Endpoints: []string{"192.0.2.1:30001", "[2001:db8::1]:30001"}, NodeIPs: []v1alpha1.IP{ip("172.18.0.2")}},
		}},
	}
	node := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "node-1.example"}}
	node.Status = v1alpha1.NodeNetworkStatus{
		Address: ip("10.80.0.7"), Kernel: &v1alpha1.KernelFacts{Release: "6.1.0-13-amd64", Geneve: true, VXLAN: true, WireGuard: true}, UnderlayMTU: 1500, NodeIPs: []v1alpha1.IP{ip("172.18.0.2")},
		PodCIDRs: []v1alpha1.CIDR{kit.CIDR("10.244.1.0/24"), kit.CIDR("fd00:10:244:1::/64")}, PodIPs: []v1alpha1.IP{ip("10.9.0.1")}, Routes: []v1alpha1.CIDR{kit.CIDR("10.0.0.0/24")}, Resolvers: []v1alpha1.IP{ip("192.168.1.1")},
		Gateways: []v1alpha1.NodeGateway{{
			PeeringName: "b", Plane: 1, ObservedGeneration: 3, GatewayIP: ip("10.244.1.7"), Source: ip("172.18.0.2"), MTU: 1400, Ready: true, RTTMicroseconds: 900, LossPercent: 1,
		}},
		Conditions: condition(v1alpha1.ConditionReady),
	}
	ledger := manifests.ClusterNetwork(v1alpha1.ClusterNetworkSpec{InternalCIDR: kit.CIDR("10.80.0.0/19"), OverlayKey: v1alpha1.OverlayKey{Generation: 2, Nodes: []string{"0a7c1f4e-1111-4222-8333-944445555666"}}, Services: &v1alpha1.ClusterServices{ID: "a"}, Peers: []v1alpha1.PeerAllocation{{
		ClusterID: "1", Name: "b", ServicesID: "b", Index: 3, Pods: remote, ExternalCIDR: external, Hosts: []v1alpha1.ExposedHost{{Address: ip("192.168.1.50"), Number: 5}},
		Phase: v1alpha1.PeerActive, Previous: &v1alpha1.PeerRanges{Pods: remote, ExternalCIDR: external, IdentityKey: Key, Hosts: []v1alpha1.ExposedHost{{Address: ip("192.168.1.51"), Number: 6}}},
	}}})
	record := v1alpha1.ServiceRecord{
		Created: now, Type: v1alpha1.ClusterSetIP, SessionAffinity: corev1.ServiceAffinityClientIP, SessionAffinitySeconds: 10800,
		InternalTrafficPolicy: corev1.ServiceInternalTrafficPolicyLocal, TrafficDistribution: corev1.ServiceTrafficDistributionPreferClose, Omitted: 7,
		Ports:  []v1alpha1.RecordPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, AppProtocol: "kubernetes.io/h2c"}},
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"example.com/team": "shop"},
		Slices: []v1alpha1.RecordSlice{{
			ID: "x7", Ports: []v1alpha1.SlicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}},
			Endpoints: []v1alpha1.RecordEndpoint{{Address: ip("10.30.1.5"), Hostname: "web-0", Zone: "eu-1a", Ready: true, Serving: true, Terminating: true}},
		}},
	}
	exported := &v1alpha1.ExportedService{
		ObjectMeta: metav1.ObjectMeta{Name: "shop.web"}, Spec: v1alpha1.ExportedServiceSpec{Peers: []string{"b"}, ServiceRecord: record},
	}
	received := &v1alpha1.ReceivedService{
		ObjectMeta: metav1.ObjectMeta{Name: "b.shop.web"}, Spec: v1alpha1.ReceivedServiceSpec{Hash: strings.Repeat("z7", 13), ServiceRecord: *record.DeepCopy()},
	}
	out := map[string]client.Object{
		"Peering": peering, "NodeNetwork": node, "ClusterNetwork": ledger, "ExportedService": exported, "ReceivedService": received,
	}
	for kind, obj := range out {
		obj.GetObjectKind().SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	}
	return out
}
