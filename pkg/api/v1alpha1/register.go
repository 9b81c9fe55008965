package v1alpha1

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of all resources here.
var GroupVersion = schema.GroupVersion{Group: "liqonet.io", Version: "v1alpha1"}

const (
	// Namespace holds the agents and their Secrets.
	Namespace = "liqonet-system"
	// FieldManager of everything that the CLI applies.
	FieldManager = "liqonet"
	// ClusterNetworkName is the name of the one ClusterNetwork of a cluster.
	ClusterNetworkName = "cluster"
	// UninstallFinalizer keeps the ClusterNetwork until the rest is removed. A command that
	// comes meanwhile sees by it that liqonet is being uninstalled.
	UninstallFinalizer = "liqonet.io/uninstall"

	// NodeAgentName names the node agents' DaemonSet, ServiceAccount and
	// permissions.
	NodeAgentName = "liqonet-node"

	// KeyFilePrivate is the private key's name in a gateway's Secret, and of the file where
	// it is mounted.
	KeyFilePrivate = "privatekey"
	// KeyFilePublic is the same for the public key.
	KeyFilePublic = "publickey"

	// KeyFilePreshared is the pre-shared key's name in the Secret that has it, and of the
	// file where it is mounted.
	KeyFilePreshared = "presharedkey"

	// OverlayKeyFile is the name of the overlay's key in its Secret.
	OverlayKeyFile = "key"

	// LabelManagedBy with the value FieldManager is on every object of ours.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// LabelPeering has the Peering's name on what belongs to one.
	LabelPeering = "liqonet.io/peering"
	// LabelPlane has the plane's number on what belongs to one.
	LabelPlane = "liqonet.io/plane"
	// LabelProbe has the name of the run on pods that a command runs for some seconds, and on what belongs to them.
	LabelProbe = "liqonet.io/probe"
	// LabelTemporary is on the pods of gateways that are there while others are replaced.
	LabelTemporary = "liqonet.io/temporary"
	// AnnotationMeasured of a gateway's Lease is a Measured, as JSON.
	AnnotationMeasured = "liqonet.io/measured"
	// AnnotationPod of a node agent's Lease is the pod of the agent that renews it. Of a gateway's Lease that is the holder.
	AnnotationPod = "liqonet.io/pod"
	// AnnotationStarved of an agent's Lease says how late it is when its time has come, in percent of a second. It is missing
	// where that is little.
	AnnotationStarved = "liqonet.io/starved"
	// AnnotationVersion has the version of the CLI that applied an object. On a Lease it is that of the agent that
	// renews it, and on what runs agents that of these.
	AnnotationVersion = "liqonet.io/version"

	// AnnotationLogLevel is from which level on agents log, one of LogLevels: on the Namespace for node
	// agents, on a Peering for its gateways.
	AnnotationLogLevel = "liqonet.io/log-level"

	// AnnotationFingerprint has the fingerprint of the pre-shared key in a Secret, as Peerings have it. So nobody has to read the key to compare it.
	AnnotationFingerprint = "liqonet.io/fingerprint"
	// AnnotationKeyExchange is how the pre-shared key in a Secret reached the cluster: by a TLS connection with a hybrid or a classical key
	// exchange. It is missing where that is not known.
	AnnotationKeyExchange = "liqonet.io/key-exchange"

	// HealthPort is the TCP port on which an agent answers /healthz: node
	// agents on 127.0.0.1, gateways on their pod's address.
	HealthPort = 6097
	// MetricsPort is the TCP port on which an agent answers /metrics: gateways on their pod's address,
	// node agents on 127.0.0.1 unless told otherwise.
	MetricsPort = 6099
)

// NodeLeasePrefix is what the names of the node agents' Leases begin with.
const NodeLeasePrefix = "node-"

// NodeLease is the name of the Lease by which a node holds its address in the overlay, and which its agent renews. As names are
// unique, no two nodes hold one address.
func NodeLease(address netip.Addr) string {
	return NodeLeasePrefix + strings.ReplaceAll(address.StringExpanded(), ":", "-")
}

// LogLevels are the levels of agents' logs, the most talkative first.
func LogLevels() []string { return []string{"debug", "info", "warn", "error"} }

// HistoryPrefix is what the names of ConfigMaps begin with in which agents note changes of state.
const HistoryPrefix = "history-"

// NodeHistory is the name of the ConfigMap in which the agent of a node notes changes of state.
// It has the node's name, so that a policy can tell whose it is.
func NodeHistory(nodeName string) string { return HistoryPrefix + "node-" + nodeName }

// GatewayHistory is the same for the gateway of a plane.
func GatewayHistory(peering string, plane int32) string {
	return HistoryPrefix + GatewayName(peering, plane)
}

// GatewayService names the Service that exposes the gateways of a peering.
func GatewayService(peering string) string { return "gateway-" + peering }

// GatewayName names the gateway of a plane: its Deployment, account and Lease.
func GatewayName(peering string, plane int32) string {
	return fmt.Sprintf("%s-%d", GatewayService(peering), plane)
}

// GatewayManager is the field manager of the gateway of a plane.
func GatewayManager[T int | int32](plane T) string {
	return fmt.Sprintf("liqonet-gateway-%d", plane)
}

// PlanePort names the port of a gateway in its pod, and the one of the Service that leads there.
func PlanePort(plane int32) string { return fmt.Sprintf("plane-%d", plane) }

// AddToScheme registers the types of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&ClusterNetwork{}, &ClusterNetworkList{},
		&Peering{}, &PeeringList{},
		&NodeNetwork{}, &NodeNetworkList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// ServicePort is the port of a Service that leads to the gateway of a plane, nil if it has none.
func ServicePort(svc *corev1.Service, plane int32) *corev1.ServicePort {
	return find(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == PlanePort(plane) })
}

// Measured is what a gateway measures that changes all the time. It is in an annotation of its Lease, which is written anyway: a status
// that holds it would be written as often as the Lease, and sent to all nodes.
//
// +kubebuilder:object:generate=false
type Measured struct {
	// JitterMicroseconds is the mean difference between the round trip times of two probes, one after the other.
	JitterMicroseconds int64 `json:"jitterMicroseconds,omitempty"`
	// SentBytes and ReceivedBytes are those of the tunnel, encrypted, since the gateway's pod has started.
	SentBytes     int64 `json:"sentBytes"`
	ReceivedBytes int64 `json:"receivedBytes"`
	// RTTMicroseconds, LossPercent and LastHandshake are newer than what the Peering's status has by the same names: a change of
	// the first two alone is not written there. LossPercent is nil of gateways that write it there. LastHandshake is by the gateway's clock.
	RTTMicroseconds int64        `json:"rttMicroseconds,omitempty"`
	LossPercent     *int32       `json:"lossPercent,omitempty"`
	LastHandshake   *metav1.Time `json:"lastHandshake,omitempty"`
}

// Newest is the status with what is newer here. m may be nil.
func (m *Measured) Newest(s PlaneStatus) PlaneStatus {
	if m != nil && m.LossPercent != nil {
		s.RTTMicroseconds, s.LossPercent, s.LastHandshake = m.RTTMicroseconds, *m.LossPercent, m.LastHandshake
	}
	return s
}

// String is the annotation's value.
func (m Measured) String() string {
	raw, _ := json.Marshal(m) // numbers can always be written
	return string(raw)
}

// ParseMeasured reads the annotation's value. It returns nil for anything else: whoever has an agent's account may write it.
func ParseMeasured(s string) *Measured {
	var m Measured
	if len(s) > 1024 || json.Unmarshal([]byte(s), &m) != nil || min(m.JitterMicroseconds, m.SentBytes, m.ReceivedBytes, m.RTTMicroseconds) < 0 ||
		max(m.JitterMicroseconds, m.RTTMicroseconds) > math.MaxInt32 || m.LossPercent != nil && (*m.LossPercent < 0 || *m.LossPercent > 100) {
		return nil
	}
	return &m
}
