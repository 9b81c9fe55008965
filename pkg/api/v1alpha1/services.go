package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// ServicesName is the name of the Deployment, account and Lease of the controller of exported and imported services.
	ServicesName = "liqonet-services"
	// ServicesManager is the field manager of the controller, and the value of EndpointSlices' label for who manages them.
	ServicesManager = "services.liqonet.io"
	// FeedManager is the field manager of ReceivedServices. It is the same for all gateways of a peering, so that the next one
	// removes fields that the previous one has written.
	FeedManager = "liqonet-feed"
	// LabelImport of a Namespace with the value "false" keeps peers' services out of it. With the value "true", it admits
	// them where a Peering imports into labeled namespaces only.
	LabelImport = "liqonet.io/import"
	// AnnotationPeers of a ServiceExport has the names of the peers that may use the service, separated by commas. Without
	// it, all may.
	AnnotationPeers = "liqonet.io/peers"
	// ConditionReachable of a ServiceExport is False if peers cannot reach some of the service's endpoints.
	ConditionReachable = "liqonet.io/Reachable"
)

// The limits of exported and imported services. The definitions of the kinds have the first four, too.
const (
	// MaxServicePorts, MaxRecordSlices, MaxSliceEndpoints and MaxRecordEndpoints limit one service.
	MaxServicePorts, MaxRecordSlices, MaxSliceEndpoints, MaxRecordEndpoints = 100, 40, 100, 1000
	// MaxPeerServices and MaxPeerEndpoints limit all services of one peer.
	MaxPeerServices, MaxPeerEndpoints = 2000, 20000
)

// ExportedService is a service that this cluster exports, as the controller of services has found it, with the addresses
// by which this cluster knows its endpoints. Gateways tell it to peers. Its name is NAMESPACE.NAME.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=exportedservices,singular=exportedservice,shortName=lnexported,categories=liqonet
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Peers",type=string,JSONPath=`.spec.peers`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ExportedService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ExportedServiceSpec `json:"spec"`
}

// ExportedServiceSpec is written by the controller of services.
type ExportedServiceSpec struct {
	// Peers are the names of the Peerings whose clusters may use the service. Without any, all may.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=511
	// +kubebuilder:validation:items:MaxLength=40
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	Peers []string `json:"peers,omitempty"`

	ServiceRecord `json:",inline"`
}

// ReceivedService is a service that a peer exports, as that peer tells it, with the addresses by which this cluster reaches
// its endpoints. The gateways of the Peering write it. Its name is PEERING.NAMESPACE.NAME.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=receivedservices,singular=receivedservice,shortName=lnreceived,categories=liqonet
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ReceivedService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ReceivedServiceSpec `json:"spec"`
}

// ReceivedServiceSpec is written by the gateways of the Peering.
type ReceivedServiceSpec struct {
	// Hash is the peer's hash of the record. Nothing but its equality has a meaning.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=26
	// +kubebuilder:validation:Pattern=`^[a-z2-7]+$`
	Hash string `json:"hash"`

	ServiceRecord `json:",inline"`
}

// ServiceType is the type of an exported service.
//
// +kubebuilder:validation:Enum=ClusterSetIP;Headless
type ServiceType string

// The types of exported services, as in the Multi-Cluster Services API.
const (
	ClusterSetIP    ServiceType = "ClusterSetIP"
	HeadlessService ServiceType = "Headless"
)

// ServiceRecord describes one exported service: its properties, and its endpoints.
//
// +kubebuilder:validation:XValidation:rule="!has(self.slices) || self.slices.map(s, has(s.endpoints) ? s.endpoints.size() : 0).sum() <= 1000",message="a service has at most 1000 endpoints"
type ServiceRecord struct {
	// Created is when the ServiceExport was created. In a conflict, the oldest one decides.
	// +kubebuilder:validation:XValidation:rule="self < timestamp('9999-01-01T00:00:00Z')",message="a time must be before the year 9999"
	Created metav1.Time `json:"created"`
	// Type says whether the service has an address of its own.
	Type ServiceType `json:"type"`
	// Ports are the service's ports.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +optional
	Ports []RecordPort `json:"ports,omitempty"`
	// SessionAffinity is ClientIP if a client stays with an endpoint, for SessionAffinitySeconds after its last connection.
	// +kubebuilder:validation:Enum=ClientIP;None
	// +optional
	SessionAffinity corev1.ServiceAffinity `json:"sessionAffinity,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	// +optional
	SessionAffinitySeconds int32 `json:"sessionAffinitySeconds,omitempty"`
	// InternalTrafficPolicy is Local if only endpoints on the client's node are used.
	// +kubebuilder:validation:Enum=Cluster;Local
	// +optional
	InternalTrafficPolicy corev1.ServiceInternalTrafficPolicy `json:"internalTrafficPolicy,omitempty"`
	// TrafficDistribution is which endpoints are preferred, empty for none.
	// +kubebuilder:validation:Enum=PreferClose;PreferSameZone;PreferSameNode
	// +optional
	TrafficDistribution string `json:"trafficDistribution,omitempty"`
	// Labels and Annotations are those that the ServiceExport exports.
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 63)",message="a label has a key of at most 317 characters, and a value of at most 63"
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 1024)",message="an annotation has a key of at most 317 characters, and a value of at most 1024"
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// Slices are the service's endpoints, as Kubernetes has divided them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=40
	// +optional
	Slices []RecordSlice `json:"slices,omitempty"`
	// Omitted is how many endpoints are left out because they exceed a limit.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	Omitted int32 `json:"omitted,omitempty"`
}

// RecordPort is a port of a service.
type RecordPort struct {
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$`
	// +optional
	Name string `json:"name,omitempty"`
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP
	Protocol corev1.Protocol `json:"protocol"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9.-]+/)?[A-Za-z0-9_.-]+$`
	// +optional
	AppProtocol string `json:"appProtocol,omitempty"`
}

// RecordSlice is a set of endpoints with the same ports.
type RecordSlice struct {
	// ID identifies the slice within the service, in the cluster that has it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:Pattern=`^[a-z0-9]+$`
	ID string `json:"id"`
	// Ports are the endpoints' ports. A name is that of a port of the service.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +optional
	Ports []SlicePort `json:"ports,omitempty"`
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +optional
	Endpoints []RecordEndpoint `json:"endpoints,omitempty"`
}

// SlicePort is a port at which endpoints listen.
type SlicePort struct {
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$`
	// +optional
	Name string `json:"name,omitempty"`
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP
	Protocol corev1.Protocol `json:"protocol"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// RecordEndpoint is one endpoint.
type RecordEndpoint struct {
	// Address is the endpoint's address.
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).isGlobalUnicast()",message="must not be a loopback, link-local or multicast address"
	Address IP `json:"address"`
	// Hostname is the host name of the endpoint within a headless service.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// Zone is the zone of the endpoint's node.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$`
	// +optional
	Zone string `json:"zone,omitempty"`
	// Ready, Serving and Terminating are the conditions of an endpoint, as in EndpointSlices.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// +optional
	Serving bool `json:"serving,omitempty"`
	// +optional
	Terminating bool `json:"terminating,omitempty"`

	// NodeName is the node of an endpoint of this cluster. No object contains it, and no peer learns it.
	NodeName string `json:"-"`
}

// ClusterServices is what a cluster is called by the clusters whose services it uses.
type ClusterServices struct {
	// ID is a DNS label, unique among the clusters that exchange services. It is the label
	// multicluster.kubernetes.io/source-cluster of EndpointSlices, and a part of the names of pods of headless services.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	ID string `json:"id"`
}

// PeeringServices is how services are exchanged with a peer.
type PeeringServices struct {
	// RemoteID is the peer's ID among the clusters that exchange services, a DNS label.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	RemoteID string `json:"remoteID"`
	// Import selects the namespaces into which the peer's services are imported: All except those with the label
	// liqonet.io/import=false, only those with liqonet.io/import=true (Labeled), or None.
	Import ImportPolicy `json:"import"`
	// Precedence is whose export decides in a conflict: the oldest one's (Age), or this cluster's (Own).
	Precedence Precedence `json:"precedence"`
	// Endpoints is how the peer's endpoints are used if this cluster has some of its own: like these (Equal), or only while
	// none of these is ready (Standby).
	Endpoints EndpointUse `json:"endpoints"`
}

// ImportPolicy selects namespaces.
//
// +kubebuilder:validation:Enum=All;Labeled;None
type ImportPolicy string

// The import policies.
const (
	ImportAll     ImportPolicy = "All"
	ImportLabeled ImportPolicy = "Labeled"
	ImportNone    ImportPolicy = "None"
)

// Precedence is whose export decides in a conflict.
//
// +kubebuilder:validation:Enum=Age;Own
type Precedence string

// The precedences.
const (
	PrecedenceAge Precedence = "Age"
	PrecedenceOwn Precedence = "Own"
)

// EndpointUse is how a peer's endpoints are used next to own ones.
//
// +kubebuilder:validation:Enum=Equal;Standby
type EndpointUse string

// The uses of a peer's endpoints.
const (
	EndpointsEqual   EndpointUse = "Equal"
	EndpointsStandby EndpointUse = "Standby"
)

// ExportedServiceList is a list of ExportedServices.
//
// +kubebuilder:object:root=true
type ExportedServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ExportedService `json:"items"`
}

// ReceivedServiceList is a list of ReceivedServices.
//
// +kubebuilder:object:root=true
type ReceivedServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ReceivedService `json:"items"`
}
