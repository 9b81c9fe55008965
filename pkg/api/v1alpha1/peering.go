package v1alpha1

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Peering connects the pods of this cluster with those of another one. `kubectl liqonet peer` creates it in both
// clusters; edit it only with that command.
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

// PeeringSpec is written only by the CLI.
//
// +kubebuilder:validation:XValidation:rule="self.local.externalCIDR.contains(':') == self.local.internalCIDR.contains(':') && self.remote.externalCIDR.contains(':') == self.local.internalCIDR.contains(':')",message="internal and external ranges must have the same address family"
// +kubebuilder:validation:XValidation:rule="!has(self.planes) || self.local.pods.exists(m, m.real.contains(':') == self.local.internalCIDR.contains(':')) && self.remote.pods.exists(m, m.real.contains(':') == self.local.internalCIDR.contains(':'))",message="both clusters must have a pod range of the overlay's address family"
// +kubebuilder:validation:XValidation:rule="!has(self.planes) || self.planes.all(p, isIP(p.remoteAddress) && cidr(self.remote.externalCIDR).containsIP(p.remoteAddress))",message="the address of the peer's gateway must be in the peer's external range"
type PeeringSpec struct {
	// Index is the number of this peering in this cluster. It is the index of the entry in spec.peers of the
	// ClusterNetwork, from which the names of network interfaces are derived.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=510
	Index int32 `json:"index"`
	// Local has the addresses by which the peer's pods reach this cluster.
	Local LocalNetwork `json:"local"`
	// Remote has the name of the peer, and the addresses by which this cluster's pods reach it.
	Remote RemoteNetwork `json:"remote"`
	// Overlay is the encapsulation of packets between this cluster's nodes and its gateways.
	Overlay OverlayKind `json:"overlay"`
	// Planes are the pairs of gateways, one in each cluster, with a WireGuard tunnel between the two. If there are
	// several, one may fail. There are none until everything that the gateways need exists: agents wait for them, and the
	// ranges may still change.
	// +listType=map
	// +listMapKey=index
	// +kubebuilder:validation:MaxItems=4
	// +optional
	Planes []Plane `json:"planes,omitempty"`
	// Gateways selects the nodes for this cluster's gateways. It is missing if nobody has chosen. Agents do not read it:
	// it keeps the user's choice for the next command.
	// +optional
	Gateways *GatewayPlacement `json:"gateways,omitempty"`
	// Limits restrict the traffic that this cluster accepts from the peer.
	// +optional
	Limits Limits `json:"limits"`
	// PlanesMode is how a node chooses planes to the peer: one (Single, also if empty) or all that work (Spread).
	// +optional
	PlanesMode PlanesMode `json:"planesMode,omitempty"`
	// Services is how services are exchanged with the peer. Without it, they are not.
	// +optional
	Services *PeeringServices `json:"services,omitempty"`
}

// PlanesMode is how many planes a node uses to send packets.
//
// +kubebuilder:validation:Enum=Single;Spread
type PlanesMode string

const (
	// PlanesSingle makes each node use one plane, and another one if that fails.
	PlanesSingle PlanesMode = "Single"
	// PlanesSpread makes each node use all planes that work. The kernel chooses one for each pair of addresses.
	PlanesSpread PlanesMode = "Spread"
)

// Limits restrict the traffic that a cluster accepts from a peer. Packets beyond them are dropped. 0 means no limit. It
// is always written, because omitting a field would not remove a limit.
type Limits struct {
	// NewConnections is how many new connections each node accepts per second. Existing connections continue.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	NewConnections int32 `json:"newConnectionsPerSecond"`
	// BitsPerSecond is the rate of IP packets with their headers, as they leave the tunnel.
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
	// ClusterID is the UID of this cluster's kube-system namespace. In another cluster, the object is a copy, as in a restored
	// backup: agents there apply nothing.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[!-~]+$`
	// +optional
	ClusterID string `json:"clusterID,omitempty"`
	// Pods has this cluster's pod ranges: the real ones, and those by which the peer reaches them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Pods []CIDRMapping `json:"pods"`
	// InternalCIDR is the range of the addresses of this cluster's nodes and gateways on the links between them, a /19.
	// +kubebuilder:validation:XValidation:rule="self.endsWith(self.contains(':') ? '/115' : '/19')",message="must be a /19"
	InternalCIDR CIDR `json:"internalCIDR"`
	// ExternalCIDR is the range by which the peer reaches this cluster's nodes, in its lower half, and hosts, in its
	// upper half. It is a /18.
	// +kubebuilder:validation:XValidation:rule="self.endsWith(self.contains(':') ? '/114' : '/18')",message="must be a /18"
	ExternalCIDR CIDR `json:"externalCIDR"`
	// Hosts are single addresses outside this cluster that the peer may reach.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Hosts []AddressMapping `json:"hosts,omitempty"`
	// ServiceCIDRs has the ranges of this cluster's Services. Gateways do not call endpoints in them that the peer announces.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	ServiceCIDRs []CIDR `json:"serviceCIDRs,omitempty"`
}

// AddressMapping is an address, and the one by which the peer knows it.
//
// +kubebuilder:validation:XValidation:rule="self.real.contains(':') == self.mapped.contains(':')",message="real and mapped must have the same address family"
type AddressMapping struct {
	// Real is the address as this cluster's nodes reach it.
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).isGlobalUnicast()",message="must not be a loopback, link-local or multicast address"
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
	// Name is the user's name of the peer: a context or a file. It has no control characters.
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
	// NodeIPs are the real addresses of the peer's nodes, as far as they were known when it was peered. The peer's
	// gateway connects from them, and answers go to them, even if they are in a range of another peer.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	NodeIPs []IP `json:"nodeIPs,omitempty"`
}

// GatewayPlacement selects the nodes on which gateways run. Empty fields are written too, because omitting them would
// change nothing.
type GatewayPlacement struct {
	// NodeSelector are labels that a node must have, all of them.
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() > 0 && k.size() <= 317 && self[k].size() <= 63)",message="a label has a key of 1 to 317 characters, and a value of at most 63"
	NodeSelector map[string]string `json:"nodeSelector"`
	// Tolerations are for taints of these nodes, in addition to those that gateways always tolerate.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(t, has(t.key) && t.key.size() > 0 && t.key.size() <= 317 && (!has(t.value) || t.value.size() <= 63))",message="a toleration has a key of 1 to 317 characters, and a value of at most 63"
	// +kubebuilder:validation:XValidation:rule="self.all(t, (!has(t.operator) || t.operator in ['', 'Equal', 'Exists']) && (!has(t.effect) || t.effect in ['', 'NoSchedule', 'PreferNoSchedule', 'NoExecute']) && !has(t.tolerationSeconds))",message="a toleration has the operator Equal or Exists, the effect NoSchedule, PreferNoSchedule, NoExecute or none, and no tolerationSeconds"
	Tolerations []corev1.Toleration `json:"tolerations"`
}

// OverlayKind is the encapsulation between nodes and gateways.
//
// +kubebuilder:validation:Enum=Geneve;VXLAN
type OverlayKind string

const (
	// Geneve is the encapsulation of RFC 8926.
	Geneve OverlayKind = "Geneve"
	// VXLAN is the encapsulation of RFC 7348.
	VXLAN OverlayKind = "VXLAN"
)

// LinkKind returns the kernel's name for the links of this overlay.
func (k OverlayKind) LinkKind() string { return strings.ToLower(string(k)) }

// Role is the role of a gateway.
//
// +kubebuilder:validation:Enum=Server;Client
type Role string

const (
	// Server waits for the client's first packet.
	Server Role = "Server"
	// Client knows the server's endpoints and sends the first packet.
	Client Role = "Client"
)

// WireGuardBackend is the implementation of WireGuard in a gateway.
//
// +kubebuilder:validation:Enum=Kernel;UserSpace
type WireGuardBackend string

const (
	// KernelWireGuard is the kernel's own implementation.
	KernelWireGuard WireGuardBackend = "Kernel"
	// UserSpaceWireGuard is wireguard-go in the gateway's process, over a TUN device.
	UserSpaceWireGuard WireGuardBackend = "UserSpace"
)

// Plane is one pair of gateways of the peering, as this cluster's side of it.
type Plane struct {
	// Index is the index of the plane, the same in both clusters.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3
	Index int32 `json:"index"`
	// Temporary marks a plane that carries packets while the gateways of another one are replaced. The next command
	// removes it.
	// +optional
	Temporary bool `json:"temporary,omitempty"`
	// Role is the role of this cluster's gateway.
	Role Role `json:"role"`
	// WireGuard is the backend of this cluster's gateway.
	WireGuard WireGuardBackend `json:"wireguard"`
	// KeyGeneration identifies the Secret with the WireGuard key of this cluster's gateway:
	// gateway-PEERING-PLANE-GENERATION.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +kubebuilder:default=1
	KeyGeneration int32 `json:"keyGeneration"`
	// PresharedKey is the key that both gateways have in addition to their key pairs. There is none if a version without
	// pre-shared keys created the peering.
	// +optional
	PresharedKey PresharedKey `json:"presharedKey,omitzero"`
	// KeyTime is when this gateway's key was created, by the clock of its API server.
	// +kubebuilder:validation:XValidation:rule="self < timestamp('9999-01-01T00:00:00Z')",message="a time must be before the year 9999"
	// +optional
	KeyTime *metav1.Time `json:"keyTime,omitempty"`
	// OverlayKeyGeneration identifies the Secret with the key that protects the links between this gateway and the nodes
	// of its cluster: liqonet-overlay-GENERATION. 0 means the oldest key that agents have.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	OverlayKeyGeneration int32 `json:"overlayKeyGeneration,omitempty"`
	// ServiceName is the name of the Service that exposes this cluster's gateway. Empty on a client.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	ServiceName string `json:"serviceName,omitempty"`
	// RemotePublicKey is the WireGuard public key of the peer's gateway, base64.
	// +kubebuilder:validation:MinLength=44
	// +kubebuilder:validation:MaxLength=44
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z+/]{42}[AEIMQUYcgkosw048]=$`
	RemotePublicKey string `json:"remotePublicKey"`
	// RemoteAddress is the address by which this cluster reaches the peer's gateway itself, for probes.
	RemoteAddress IP `json:"remoteAddress"`
	// Endpoints are where the peer's gateway can be reached from outside, as host:port, tried in order. Empty on a
	// server.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=259
	// +kubebuilder:validation:items:Pattern=`^([0-9A-Za-z.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$`
	// +optional
	Endpoints []string `json:"endpoints,omitempty"`
}

// PresharedKey identifies a pre-shared key of WireGuard, without revealing it.
type PresharedKey struct {
	// Generation identifies this cluster's Secret with the key: gateway-PEERING-PLANE-psk-GENERATION.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Generation int32 `json:"generation"`
	// Fingerprint is the same in both clusters: the first 16 bytes of the key's SHA-256, base64.
	// +kubebuilder:validation:MinLength=24
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z+/]{22}==$`
	Fingerprint string `json:"fingerprint"`
}

// PeeringStatus is what the gateways did and measured.
type PeeringStatus struct {
	// ObservedGeneration is the generation of the Peering that the conditions describe.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000000
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Ready, Connected, Degraded, KeysFresh, and with several planes Redundant. They are Unknown until a
	// gateway reports. The gateway of the working plane with the lowest index writes them. If no plane works, every live
	// gateway does.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.message.size() <= 4096)",message="a message must have at most 4096 characters"
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime < timestamp('9999-01-01T00:00:00Z'))",message="a time must be before the year 9999"
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
	// ConditionConnected of a Peering is True while packets pass through at least one plane.
	ConditionConnected = "Connected"
	// ReasonPending is why all conditions are Unknown until a gateway has written them.
	ReasonPending = "Pending"
	// ReasonApplied is why a NodeNetwork is Ready, if there is no other reason.
	ReasonApplied = "Applied"
	// ReasonStarting is why a NodeNetwork is not Ready while its agent has not read the kernel yet.
	ReasonStarting = "Starting"
	// ReasonGatewaysSilent is why a condition of a Peering is Unknown: a node agent has found that all gateways of this
	// cluster are dead.
	ReasonGatewaysSilent = "GatewaysSilent"
	// ReasonOtherCluster is why a Peering is not Connected: it was made for another cluster, and copied.
	ReasonOtherCluster = "OtherCluster"
	// MessageGatewaysSilent is the message for that reason. Node agents may write no other one.
	MessageGatewaysSilent = "no gateway of the peering renews its Lease, and a node does not reach the peer"
	// MessageNotRedundant is the message for that reason in the condition Redundant, which becomes False.
	MessageNotRedundant = "no gateway of the peering renews its Lease, and a node reaches the peer through at most one plane"
	// ConditionDegraded of a Peering is True while packets pass, but not all that should. Either a node does not reach
	// the peer through a plane, or a pod has an address outside the ranges of the peering.
	ConditionDegraded = "Degraded"
	// ConditionRedundant of a Peering with several planes is True while packets pass through more than one. While it is
	// False, the next failure ends all connections.
	ConditionRedundant = "Redundant"
	// ConditionKeysFresh of a Peering is True while no gateway of this cluster has a key older than MaxKeyAge.
	ConditionKeysFresh = "KeysFresh"
	// ConditionReady of a Peering is True while it is Connected and not Degraded. For a NodeNetwork, it is True while the
	// node's kernel holds everything that the Peerings require.
	ConditionReady = "Ready"
)

// MaxKeyAge is the age at which gateways' keys should be replaced.
const MaxKeyAge = 90 * 24 * time.Hour

// MaxMessageLength is the maximum number of characters of a message in a status. All nodes receive it.
const MaxMessageLength = 4096

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
	// PodIP and NodeName are where the gateway runs. Nodes create their overlay links to PodIP.
	// +optional
	PodIP IP `json:"podIP,omitzero"`
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[0-9a-z.-]+$`
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// PublicKey is the public key of this gateway's WireGuard key, base64.
	// +kubebuilder:validation:MaxLength=44
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z+/]{42}[AEIMQUYcgkosw048]=$`
	// +optional
	PublicKey string `json:"publicKey,omitempty"`
	// MTU is the MTU, in bytes, of packets to the peer, agreed by both gateways.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	// +optional
	MTU int32 `json:"mtu,omitempty"`
	// Connected means that probes through the tunnel are answered, that large packets and new connections pass, and that
	// a node reaches the peer through this gateway.
	Connected bool `json:"connected"`
	// Leaving means that this gateway is about to end, and waits for nodes to use another plane. The next gateway of this
	// plane has the same key, and waits for it.
	// +optional
	Leaving bool `json:"leaving,omitempty"`
	// Message is the problem if Connected is false.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
	// Endpoint is the endpoint of the peer's gateway as WireGuard sees it.
	// +kubebuilder:validation:MaxLength=47
	// +kubebuilder:validation:Pattern=`^([0-9.]+|\[[0-9a-f:.]+\]):[0-9]{1,5}$`
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// OtherCaller is the second endpoint from which a gateway with the peer's key calls, while there are two: packets alternate
	// between them.
	// +kubebuilder:validation:MaxLength=47
	// +kubebuilder:validation:Pattern=`^([0-9.]+|\[[0-9a-f:.]+\]):[0-9]{1,5}$`
	// +optional
	OtherCaller string `json:"otherCaller,omitempty"`
	// LastHandshake is the time of WireGuard's last handshake, by the clock of the gateway's node. Compare it only with
	// the renewTime of the gateway's Lease, which is from the same clock.
	// +kubebuilder:validation:XValidation:rule="self < timestamp('9999-01-01T00:00:00Z')",message="a time must be before the year 9999"
	// +optional
	LastHandshake *metav1.Time `json:"lastHandshake,omitempty"`
	// RTTMicroseconds is the median of the last probes, gateway to gateway.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600000000
	// +optional
	RTTMicroseconds int64 `json:"rttMicroseconds,omitempty"`
	// LossPercent is the percentage of the last probes without an answer.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	LossPercent int32 `json:"lossPercent,omitempty"`
	// Remote is what the peer's gateway announces about its cluster, through the tunnel.
	// +optional
	Remote *RemoteAnnouncement `json:"remote,omitempty"`
}

// RemoteAnnouncement is what the peer's gateway announces about its cluster, through the tunnel. It replaces what the CLI
// wrote into the spec, as nodes of the peer come and go.
type RemoteAnnouncement struct {
	// Endpoints are where the peer's gateway can be reached, as address:port, tried in order before those of the spec.
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

// PeeringList is a list of Peerings.
//
// +kubebuilder:object:root=true
type PeeringList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Peering `json:"items"`
}
