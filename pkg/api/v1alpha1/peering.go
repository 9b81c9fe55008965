package v1alpha1

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Peering connects the pods of this cluster with those of another one. `kubectl liqonet peer` makes it in both clusters;
// edit it by that command only.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=peerings,singular=peering,shortName=lnpeer,categories=liqonet
// +kubebuilder:printcolumn:name="Peer",type=string,JSONPath=`.spec.remote.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.conditions[?(@.type=="Ready")].lastTransitionTime`
// +kubebuilder:printcolumn:name="Connected",type=string,JSONPath=`.status.conditions[?(@.type=="Connected")].status`
// +kubebuilder:printcolumn:name="Degraded",type=string,JSONPath=`.status.conditions[?(@.type=="Degraded")].status`
// +kubebuilder:printcolumn:name="Redundant",type=string,JSONPath=`.status.conditions[?(@.type=="Redundant")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 40 && !self.metadata.name.contains('.')",message="the name must be that of the entry in the ClusterNetwork's spec.peers"
type Peering struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PeeringSpec `json:"spec"`
	// +optional
	Status PeeringStatus `json:"status,omitempty"`
}

// PeeringSpec is written by the CLI only.
//
// +kubebuilder:validation:XValidation:rule="self.local.externalCIDR.contains(':') == self.local.internalCIDR.contains(':') && self.remote.externalCIDR.contains(':') == self.local.internalCIDR.contains(':')",message="internal and external ranges must be of one address family"
// +kubebuilder:validation:XValidation:rule="self.planes.size() == 0 || self.local.pods.exists(m, m.real.contains(':') == self.local.internalCIDR.contains(':')) && self.remote.pods.exists(m, m.real.contains(':') == self.local.internalCIDR.contains(':'))",message="both clusters must have a pod range of the overlay's address family"
// +kubebuilder:validation:XValidation:rule="self.planes.all(p, isIP(p.remoteAddress) && cidr(self.remote.externalCIDR).containsIP(p.remoteAddress))",message="the address of the peer's gateway must be in the peer's external range"
type PeeringSpec struct {
	// Index is the number of this peering in this cluster. It is the number of the entry in spec.peers of the ClusterNetwork, from which names of
	// network interfaces are made.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=510
	Index int32 `json:"index"`
	// Local has the addresses by which the peer's pods reach this cluster.
	Local LocalNetwork `json:"local"`
	// Remote has the name of the peer, and the addresses by which this cluster's pods reach it.
	Remote RemoteNetwork `json:"remote"`
	// Overlay is the encapsulation in which nodes of this cluster send packets to its gateways.
	Overlay OverlayKind `json:"overlay"`
	// Planes are the pairs of gateways, one in each cluster, with a WireGuard tunnel between the two. With several of them, one may fail.
	// There are none until all that the gateways need is there: agents wait for them, and the ranges may still change.
	// +listType=map
	// +listMapKey=index
	// +kubebuilder:validation:MaxItems=4
	Planes []Plane `json:"planes"`
	// Gateways says on which nodes this cluster's gateways run. Without it, nobody has chosen.
	// Agents do not read it: it keeps what the user chose for the next command.
	// +optional
	Gateways *GatewayPlacement `json:"gateways,omitempty"`
	// Limits are how much traffic this cluster accepts from the peer at most.
	// +optional
	Limits Limits `json:"limits"`
	// PlanesMode says whether a node sends packets to the peer by one plane (Single, also if empty) or by all that work (Spread).
	// +optional
	PlanesMode PlanesMode `json:"planesMode,omitempty"`
}

// PlanesMode says by how many planes a node sends its packets.
//
// +kubebuilder:validation:Enum=Single;Spread
type PlanesMode string

const (
	// PlanesSingle has each node send by one plane. If that does not work, it sends by another one.
	PlanesSingle PlanesMode = "Single"
	// PlanesSpread has each node send by all planes that work. The kernel chooses one for each pair of addresses.
	PlanesSpread PlanesMode = "Spread"
)

// Limits are what a cluster takes from a peer at most. What is beyond is dropped. 0 is no limit, and
// is written: a field that is left out would not be seen as taken back.
type Limits struct {
	// NewConnections is how many each node lets in per second. Connections that are there
	// go on.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	NewConnections int32 `json:"newConnectionsPerSecond"`
	// BitsPerSecond are those of IP packets with their headers, as they leave the tunnel.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000000000
	// +kubebuilder:validation:XValidation:rule="self == 0 || self >= 1000000",message="must be 0 or at least 1000000"
	// +optional
	BitsPerSecond int64 `json:"bitsPerSecond"`
}

// LocalNetwork is this cluster as the peer knows it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.hosts) || self.hosts.all(h, isIP(h.mapped) && cidr(self.externalCIDR).containsIP(h.mapped))",message="a host's mapped address must be in the external range"
type LocalNetwork struct {
	// Pods has this cluster's pod ranges: the real ones, and those by which the peer reaches them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Pods []CIDRMapping `json:"pods"`
	// InternalCIDR is the range from which this cluster's nodes and gateways have addresses for the links between them, a /19.
	// +kubebuilder:validation:XValidation:rule="self.endsWith(self.contains(':') ? '/115' : '/19')",message="must be a /19"
	InternalCIDR CIDR `json:"internalCIDR"`
	// ExternalCIDR is the range by which the peer reaches this cluster's nodes, in its lower half, and hosts, in its upper half. It is a /18.
	// +kubebuilder:validation:XValidation:rule="self.endsWith(self.contains(':') ? '/114' : '/18')",message="must be a /18"
	ExternalCIDR CIDR `json:"externalCIDR"`
	// Hosts are single addresses outside of this cluster that the peer may reach.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Hosts []AddressMapping `json:"hosts,omitempty"`
}

// AddressMapping is one address and the one by which the peer knows it.
//
// +kubebuilder:validation:XValidation:rule="self.real.contains(':') == self.mapped.contains(':')",message="real and mapped must be of one address family"
type AddressMapping struct {
	// Real is the address as this cluster's nodes reach it.
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).isGlobalUnicast()",message="must be no address of loopback, link-local or multicast"
	Real IP `json:"real"`
	// Mapped is the address by which the peer reaches it, in the upper half of the external range.
	Mapped IP `json:"mapped"`
}

// RemoteNetwork is the peer as this cluster knows it.
type RemoteNetwork struct {
	// ClusterID is the UID of the peer's kube-system namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[!-~]+$`
	ClusterID string `json:"clusterID"`
	// Name is what the user calls the peer: a context or a file. It has no control characters.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[^\pC\p{Zl}\p{Zp}]+$`
	Name string `json:"name"`
	// Pods has the peer's pod ranges: the real ones, and those by which this cluster reaches them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Pods []CIDRMapping `json:"pods"`
	// ExternalCIDR is the range by which this cluster reaches the peer's nodes and exposed hosts, a /18.
	// +kubebuilder:validation:XValidation:rule="self.endsWith(self.contains(':') ? '/114' : '/18')",message="must be a /18"
	ExternalCIDR CIDR `json:"externalCIDR"`
	// NodeIPs are the real addresses of the peer's nodes, as far as they were known
	// when it was peered. The peer's gateway calls from them, and answers go to them, also
	// where they are in a range of another peer.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	NodeIPs []IP `json:"nodeIPs,omitempty"`
}

// GatewayPlacement says on which nodes gateways run. What is empty is written too: to leave a
// field out would change nothing.
type GatewayPlacement struct {
	// NodeSelector are labels, all of which the node has.
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() > 0 && k.size() <= 317 && self[k].size() <= 63)",message="a label has a key of 1 to 317 characters, and a value of 63 at most"
	NodeSelector map[string]string `json:"nodeSelector"`
	// Tolerations are for taints of these nodes, beside those that gateways have anyway.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(t, has(t.key) && t.key.size() > 0 && t.key.size() <= 317 && (!has(t.value) || t.value.size() <= 63))",message="a toleration has a key of 1 to 317 characters, and a value of 63 at most"
	// +kubebuilder:validation:XValidation:rule="self.all(t, (!has(t.operator) || t.operator in ['', 'Equal', 'Exists']) && (!has(t.effect) || t.effect in ['', 'NoSchedule', 'PreferNoSchedule', 'NoExecute']) && !has(t.tolerationSeconds))",message="a toleration has the operator Equal or Exists, the effect NoSchedule, PreferNoSchedule, NoExecute or none, and no time"
	Tolerations []corev1.Toleration `json:"tolerations"`
}

// OverlayKind is the encapsulation between nodes and gateways.
//
// +kubebuilder:validation:Enum=Geneve;VXLAN
type OverlayKind string

const (
	// Geneve is that of RFC 8926.
	Geneve OverlayKind = "Geneve"
	// VXLAN is that of RFC 7348.
	VXLAN OverlayKind = "VXLAN"
)

// LinkKind is what the kernel calls the links of this overlay.
func (k OverlayKind) LinkKind() string { return strings.ToLower(string(k)) }

// Role of a gateway.
//
// +kubebuilder:validation:Enum=Server;Client
type Role string

const (
	// Server waits for the client's first packet.
	Server Role = "Server"
	// Client knows the server's endpoints and speaks first.
	Client Role = "Client"
)

// WireGuardBackend says who does WireGuard's work in a gateway.
//
// +kubebuilder:validation:Enum=Kernel;UserSpace
type WireGuardBackend string

const (
	// KernelWireGuard is the kernel's own implementation.
	KernelWireGuard WireGuardBackend = "Kernel"
	// UserSpaceWireGuard is wireguard-go in the gateway's process, over a TUN device.
	UserSpaceWireGuard WireGuardBackend = "UserSpace"
)

// Plane is one pair of gateways of the peering: this cluster's side of it.
type Plane struct {
	// Index of the plane, the same in both clusters.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3
	Index int32 `json:"index"`
	// Temporary is a plane that packets take while the gateways of another one are replaced. The next command
	// removes it.
	// +optional
	Temporary bool `json:"temporary,omitempty"`
	// Role of this cluster's gateway.
	Role Role `json:"role"`
	// WireGuard is the backend of this cluster's gateway.
	WireGuard WireGuardBackend `json:"wireguard"`
	// KeyGeneration says which WireGuard key this cluster's gateway has: that of the Secret
	// gateway-PEERING-PLANE-GENERATION.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +kubebuilder:default=1
	KeyGeneration int32 `json:"keyGeneration"`
	// PresharedKey is what both gateways have beside their key pairs. There is none if the
	// peering was made by a version without.
	// +optional
	PresharedKey PresharedKey `json:"presharedKey,omitzero"`
	// KeyTime is when this gateway's key was made, by the clock of its API server.
	// +kubebuilder:validation:XValidation:rule="self < timestamp('9999-01-01T00:00:00Z')",message="a time must be as in 2026-01-01T00:00:00Z"
	// +optional
	KeyTime *metav1.Time `json:"keyTime,omitempty"`
	// OverlayKeyGeneration says which key protects the links between this gateway and the nodes of its cluster: that of
	// the Secret liqonet-overlay-GENERATION. 0 is the oldest one that agents have.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	OverlayKeyGeneration int32 `json:"overlayKeyGeneration,omitempty"`
	// ServiceName is that of the Service that exposes this cluster's gateway. Empty
	// on a client.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	ServiceName string `json:"serviceName,omitempty"`
	// RemotePublicKey is the WireGuard key of the peer's gateway, base64.
	// +kubebuilder:validation:MinLength=44
	// +kubebuilder:validation:MaxLength=44
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z+/]{42}[AEIMQUYcgkosw048]=$`
	RemotePublicKey string `json:"remotePublicKey"`
	// RemoteAddress is the address by which this cluster reaches the peer's gateway itself, to ask whether it answers.
	RemoteAddress IP `json:"remoteAddress"`
	// Endpoints are where the peer's gateway can be reached from outside, as
	// host:port, tried in turn. Empty on a server.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=259
	// +kubebuilder:validation:items:Pattern=`^([0-9A-Za-z.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$`
	// +optional
	Endpoints []string `json:"endpoints,omitempty"`
}

// PresharedKey tells a pre-shared key of WireGuard from others, without telling it.
type PresharedKey struct {
	// Generation says where this cluster has it: in the Secret
	// gateway-PEERING-PLANE-psk-GENERATION.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Generation int32 `json:"generation"`
	// Fingerprint is the same in both clusters: the first 16 bytes of the key's SHA-256,
	// base64.
	// +kubebuilder:validation:MinLength=24
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z+/]{22}==$`
	Fingerprint string `json:"fingerprint"`
}

// PeeringStatus is what the gateways did and measured.
type PeeringStatus struct {
	// ObservedGeneration is the generation of the Peering that the conditions are about.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000000
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Ready, Connected, Degraded, KeysFresh, and with several planes Redundant. They are Unknown until a gateway reports. The gateway of the plane
	// with the lowest index by which packets pass writes them, and where there is none, every gateway that lives.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.message.size() <= 4096)",message="a message must have 4096 characters at most"
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime < timestamp('9999-01-01T00:00:00Z'))",message="a time must be as in 2026-01-01T00:00:00Z"
	// +kubebuilder:validation:XValidation:rule="self.all(c, !has(c.observedGeneration) || c.observedGeneration <= 1000000000000)",message="must be a generation"
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Planes has an entry for each gateway of this cluster, written by that gateway.
	// +listType=map
	// +listMapKey=index
	// +kubebuilder:validation:MaxItems=4
	// +optional
	Planes []PlaneStatus `json:"planes,omitempty"`
}

const (
	// ConditionConnected of a Peering is True while probes through the tunnel of at
	// least one plane are answered.
	ConditionConnected = "Connected"
	// ReasonPending is why all conditions are Unknown until a gateway has written them.
	ReasonPending = "Pending"
	// ReasonApplied is why a NodeNetwork is Ready if there is nothing else to say.
	ReasonApplied = "Applied"
	// ReasonStarting is why it is not while its agent has not looked at the kernel yet.
	ReasonStarting = "Starting"
	// ReasonGatewaysSilent is why it is Unknown: a node agent has found that all gateways of this cluster are dead.
	ReasonGatewaysSilent = "GatewaysSilent"
	// MessageGatewaysSilent goes with that reason. Node agents may write no other words.
	MessageGatewaysSilent = "no gateway of the peering renews its Lease, and a node does not reach the peer"
	// ConditionDegraded of a Peering is True while packets pass, but not all that should.
	// A node does not reach the peer, or a pod has an address outside of the ranges that
	// the peering carries.
	ConditionDegraded = "Degraded"
	// ConditionRedundant of a Peering with several planes is True while packets pass by more than
	// one. Where it is False, the next failure ends all connections.
	ConditionRedundant = "Redundant"
	// ConditionKeysFresh of a Peering is True while no gateway of this cluster has a key that is older than
	// MaxKeyAge.
	ConditionKeysFresh = "KeysFresh"
	// ConditionReady of a Peering is True while it is Connected and not Degraded. Of a NodeNetwork it is True while
	// the node's kernel holds all that the Peerings ask for.
	ConditionReady = "Ready"
)

// MaxKeyAge is how old gateways' keys may be until it is time for new ones.
const MaxKeyAge = 90 * 24 * time.Hour

// MaxMessage is how many characters a message in a status may have. It is part of what all
// nodes are sent.
const MaxMessage = 4096

// PlaneStatus is written by the gateway of the plane.
type PlaneStatus struct {
	// Index is the number of the plane in the spec.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3
	Index int32 `json:"index"`
	// ObservedGeneration is the generation of the Peering that the gateway has applied.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000000
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// PodIP and NodeName say where the gateway runs. Nodes build their overlay
	// links to PodIP.
	// +optional
	PodIP IP `json:"podIP,omitzero"`
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[0-9a-z.-]+$`
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// PublicKey is that of this gateway's WireGuard key, base64.
	// +kubebuilder:validation:MaxLength=44
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z+/]{42}[AEIMQUYcgkosw048]=$`
	// +optional
	PublicKey string `json:"publicKey,omitempty"`
	// MTU in bytes that packets to the peer may have, agreed by both gateways.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	// +optional
	MTU int32 `json:"mtu,omitempty"`
	// Connected says that probes through the tunnel are answered.
	Connected bool `json:"connected"`
	// Leaving says that this gateway is about to end, and waits for nodes to use another plane. The next one of this
	// plane has the same key, and waits for it.
	// +optional
	Leaving bool `json:"leaving,omitempty"`
	// Message says what is wrong where Connected is false.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
	// Endpoint of the peer's gateway as WireGuard sees it.
	// +kubebuilder:validation:MaxLength=47
	// +kubebuilder:validation:Pattern=`^([0-9.]+|\[[0-9a-f:.]+\]):[0-9]{1,5}$`
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// LastHandshake of WireGuard, by the clock of the gateway's node. Compare it only
	// with the renewTime of the gateway's Lease, which is of the same clock.
	// +kubebuilder:validation:XValidation:rule="self < timestamp('9999-01-01T00:00:00Z')",message="a time must be as in 2026-01-01T00:00:00Z"
	// +optional
	LastHandshake *metav1.Time `json:"lastHandshake,omitempty"`
	// RTTMicroseconds is the median of the last probes, gateway to gateway.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600000000
	// +optional
	RTTMicroseconds int64 `json:"rttMicroseconds,omitempty"`
	// LossPercent is how many of the last probes were not answered.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	LossPercent int32 `json:"lossPercent,omitempty"`
	// Remote is what the peer's gateway says of its cluster, through the tunnel.
	// +optional
	Remote *RemoteAnnouncement `json:"remote,omitempty"`
}

// RemoteAnnouncement is what the peer's gateway says of its cluster, through the
// tunnel. It replaces what the CLI wrote into the spec, as nodes of the peer come
// and go.
type RemoteAnnouncement struct {
	// Endpoints are where the peer's gateway can be reached, as address:port, tried
	// in turn before those of the spec.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=47
	// +kubebuilder:validation:items:Pattern=`^([0-9.]+|\[[0-9a-f:.]+\]):[0-9]{1,5}$`
	// +optional
	Endpoints []string `json:"endpoints,omitempty"`
	// NodeIPs are the real addresses of the peer's nodes.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +optional
	NodeIPs []IP `json:"nodeIPs,omitempty"`
}

// PeeringList is a list.
//
// +kubebuilder:object:root=true
type PeeringList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Peering `json:"items"`
}
