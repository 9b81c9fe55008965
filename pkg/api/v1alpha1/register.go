package v1alpha1

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of all resources here.
var GroupVersion = schema.GroupVersion{Group: "liqonet.io", Version: "v1alpha1"}

const (
	// Namespace contains the agents and their Secrets.
	Namespace = "liqonet-system"
	// FieldManager is the field manager of everything that the CLI applies.
	FieldManager = "liqonet"
	// ClusterNetworkName is the name of the only ClusterNetwork of a cluster.
	ClusterNetworkName = "cluster"
	// UninstallFinalizer keeps the ClusterNetwork until everything else is removed. It tells other commands that liqonet
	// is being uninstalled.
	UninstallFinalizer = "liqonet.io/uninstall"

	// NodeAgentName is the name of the node agents' DaemonSet, ServiceAccount and permissions.
	NodeAgentName = "liqonet-node"

	// PrivateKeyFile is the private key's name in a gateway's Secret, and of the file where it is mounted.
	PrivateKeyFile = "privatekey"
	// PublicKeyFile is the public key's name in a gateway's Secret, and of the file where it is mounted.
	PublicKeyFile = "publickey"

	// PresharedKeyFile is the pre-shared key's name in its Secret, and of the file where it is mounted.
	PresharedKeyFile = "presharedkey"

	// OverlayKeyFile is the name of the overlay key in its Secret.
	OverlayKeyFile = "key"

	// LabelManagedBy with the value FieldManager is on all of our objects.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// LabelPeering has the Peering's name, on objects that belong to one.
	LabelPeering = "liqonet.io/peering"
	// LabelPlane has the plane's number, on objects that belong to one.
	LabelPlane = "liqonet.io/plane"
	// LabelProbe has the name of the run, on pods that a command runs for some seconds, and on the objects that belong to
	// them.
	LabelProbe = "liqonet.io/probe"
	// LabelTemporary is on the pods of gateways that exist only while others are replaced.
	LabelTemporary = "liqonet.io/temporary"
	// AnnotationMeasurements of a gateway's Lease is of type Measurements, as JSON.
	AnnotationMeasurements = "liqonet.io/measured"
	// AnnotationPod of a node agent's Lease is the pod of the agent that renews it. For a gateway's Lease, that is the
	// holder.
	AnnotationPod = "liqonet.io/pod"
	// AnnotationStarved of an agent's Lease is the agent's scheduling delay, in percent of a second. It is missing if
	// that is small.
	AnnotationStarved = "liqonet.io/starved"
	// AnnotationVersion is the version of the CLI that applied an object. On a Lease it is the version of the agent that
	// renews it, and on objects that run agents, the version of these agents.
	AnnotationVersion = "liqonet.io/version"

	// AnnotationLogLevel is the lowest level that agents log, one of LogLevels: on the Namespace for node agents, on a
	// Peering for its gateways.
	AnnotationLogLevel = "liqonet.io/log-level"

	// AnnotationFingerprint is the fingerprint of the pre-shared key in a Secret, as in Peerings, so that the key can be
	// compared without reading it.
	AnnotationFingerprint = "liqonet.io/fingerprint"
	// AnnotationKeyExchange is how the pre-shared key in a Secret reached the cluster: over a TLS connection with a
	// hybrid or a classical key exchange. It is missing if that is not known.
	AnnotationKeyExchange = "liqonet.io/key-exchange"

	// HealthPort is the TCP port on which an agent serves /healthz: node agents on 127.0.0.1, gateways on their pod's
	// address.
	HealthPort = 6097
	// MetricsPort is the TCP port on which an agent serves /metrics: gateways on their pod's address, node agents on
	// 127.0.0.1 by default.
	MetricsPort = 6099
)

// NodeLeasePrefix is the prefix of the names of node agents' Leases.
const NodeLeasePrefix = "node-"

// NodeLeaseName returns the name of the Lease by which a node holds its address in the overlay, and which its agent
// renews. As names are unique, no two nodes hold the same address.
func NodeLeaseName(address netip.Addr) string {
	return NodeLeasePrefix + strings.ReplaceAll(address.StringExpanded(), ":", "-")
}

// LogLevels returns the levels of agents' logs, the most verbose first.
func LogLevels() []string { return []string{"debug", "info", "warn", "error"} }

// HistoryPrefix is the prefix of the names of ConfigMaps in which agents record state changes.
const HistoryPrefix = "history-"

// NodeHistoryName returns the name of the ConfigMap in which the agent of a node records state changes. It contains the
// node's name, so that a policy can find its owner.
func NodeHistoryName(nodeName string) string { return HistoryPrefix + "node-" + nodeName }

// GatewayHistoryName returns the name of the ConfigMap in which the gateway of a plane records state changes.
func GatewayHistoryName(peering string, plane int32) string {
	return HistoryPrefix + GatewayName(peering, plane)
}

// GatewayServiceName returns the name of the Service that exposes the gateways of a peering.
func GatewayServiceName(peering string) string { return "gateway-" + peering }

// GatewayName returns the name of the Deployment, account and Lease of the gateway of a plane.
func GatewayName(peering string, plane int32) string {
	return fmt.Sprintf("%s-%d", GatewayServiceName(peering), plane)
}

// GatewayManager returns the field manager of the gateway of a plane.
func GatewayManager[T int | int32](plane T) string { return fmt.Sprintf("liqonet-gateway-%d", plane) }

// PlanePortName returns the name of a gateway's port in its pod, and of the Service's port that targets it.
func PlanePortName(plane int32) string { return fmt.Sprintf("plane-%d", plane) }

// AddToScheme registers the types of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &ClusterNetwork{}, &ClusterNetworkList{}, &Peering{}, &PeeringList{}, &NodeNetwork{}, &NodeNetworkList{},
		&ExportedService{}, &ExportedServiceList{}, &ReceivedService{}, &ReceivedServiceList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Measurements is what a gateway measures and what changes all the time. It is in an annotation of its Lease, which is
// written anyway. In a status, it would have to be written as often as the Lease, and be sent to all nodes.
//
// +kubebuilder:object:generate=false
type Measurements struct {
	// JitterMicroseconds is the mean difference between the round trip times of two consecutive probes.
	JitterMicroseconds int64 `json:"jitterMicroseconds,omitempty"`
	// SentBytes and ReceivedBytes are the encrypted bytes of the tunnel since the gateway's pod started.
	SentBytes     int64 `json:"sentBytes"`
	ReceivedBytes int64 `json:"receivedBytes"`
	// RTTMicroseconds, LossPercent and LastHandshake are newer than the fields of the same names in the Peering's status,
	// where a change in only the first two is not written. LossPercent is nil for gateways that write it there.
	// LastHandshake is by the gateway's clock.
	RTTMicroseconds int64        `json:"rttMicroseconds,omitempty"`
	LossPercent     *int32       `json:"lossPercent,omitempty"`
	LastHandshake   *metav1.Time `json:"lastHandshake,omitempty"`
}

// Merge returns the status with the newer measurements. m may be nil. If the Lease was renewed before the first probe
// had a result, the status is newer: a first result is written there immediately.
func (m *Measurements) Merge(s PlaneStatus) PlaneStatus {
	if m != nil && m.LossPercent != nil && (m.RTTMicroseconds > 0 || *m.LossPercent > 0) {
		s.RTTMicroseconds, s.LossPercent, s.LastHandshake = m.RTTMicroseconds, *m.LossPercent, m.LastHandshake
	}
	return s
}

// String returns the annotation's value.
func (m Measurements) String() string {
	raw, _ := json.Marshal(m) // numbers can always be written
	return string(raw)
}

// ParseMeasurements parses the annotation's value. It returns nil for invalid values: anyone with an agent's account
// may write one.
func ParseMeasurements(s string) *Measurements {
	var m Measurements
	if len(s) > 1024 || json.Unmarshal([]byte(s), &m) != nil || min(m.JitterMicroseconds, m.SentBytes, m.ReceivedBytes, m.RTTMicroseconds) < 0 ||
		max(m.JitterMicroseconds, m.RTTMicroseconds) > math.MaxInt32 || m.LossPercent != nil && (*m.LossPercent < 0 || *m.LossPercent > 100) {
		return nil
	}
	return &m
}
