package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// ReportInterval is how often a gateway renews its Lease.
	ReportInterval = 5 * time.Second
	// NodeReportInterval is how often a node agent renews its Lease. It is longer, as there are many node agents.
	NodeReportInterval = 30 * time.Second
)

// NodeNetwork is a node's part of the overlay. It has the Node's name.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=nodenetworks,singular=nodenetwork,shortName=lnnode,categories=liqonet
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.status.address`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.conditions[?(@.type=="Ready")].lastTransitionTime`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Status NodeNetworkStatus `json:"status,omitempty"`
}

// MaxPodIPs is the maximum number of single pod addresses that a node reports: more pods than a node has.
const MaxPodIPs = 1024

// NodeNetworkStatus is what the node's agent found and did.
type NodeNetworkStatus struct {
	// Address is the node's address in the overlay. It is valid while the node holds the Lease named after it
	// (NodeLeaseName).
	// +optional
	Address IP `json:"address,omitzero"`
	// Kernel describes the features of the node's kernel.
	// +optional
	Kernel *KernelFacts `json:"kernel,omitempty"`
	// UnderlayMTU is the MTU, in bytes, of the interface with the node's own address.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	UnderlayMTU int32 `json:"underlayMTU,omitempty"`
	// NodeIPs are the Node's internal and external addresses.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	NodeIPs []IP `json:"nodeIPs,omitempty"`
	// PodCIDRs are the ranges of the pods on this node.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +optional
	PodCIDRs []CIDR `json:"podCIDRs,omitempty"`
	// PodIPs are the addresses of this node's pods on the pod network that are outside PodCIDRs.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	// +optional
	PodIPs []IP `json:"podIPs,omitempty"`
	// Routes are the ranges to which the node has routes, without those of liqonet. No range of a peer may overlap with
	// them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Routes []CIDR `json:"routes,omitempty"`
	// Resolvers are the node's name servers, as its kubelet passes them to pods. No range of a peer may contain one of
	// them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Resolvers []IP `json:"resolvers,omitempty"`
	// Gateways has an entry for each gateway of this cluster to which the node's kernel has a link. It is removed when
	// the kernel has nothing left of that gateway.
	// +listType=map
	// +listMapKey=peeringName
	// +listMapKey=plane
	// +kubebuilder:validation:MaxItems=2048
	// +optional
	Gateways []NodeGateway `json:"gateways,omitempty"`
	// Conditions has Ready. The node's agent writes it.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.message.size() <= 4096)",message="a message must have at most 4096 characters"
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime < timestamp('9999-01-01T00:00:00Z'))",message="a time must be before the year 9999"
	// +kubebuilder:validation:XValidation:rule="self.all(c, !has(c.observedGeneration) || c.observedGeneration <= 1000000000000)",message="must be a generation"
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KernelFacts are what only the node's kernel knows.
type KernelFacts struct {
	// Release is the kernel's version, as uname -r prints it.
	// +kubebuilder:validation:MaxLength=64
	Release string `json:"release"`
	// Geneve, VXLAN and WireGuard tell whether the kernel supports such a link.
	Geneve    bool `json:"geneve"`
	VXLAN     bool `json:"vxlan"`
	WireGuard bool `json:"wireguard"`
}

// NodeGateway is one gateway as the node sees it.
type NodeGateway struct {
	// PeeringName is the Peering's name.
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	PeeringName string `json:"peeringName"`
	// Plane is the plane's index.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3
	Plane int32 `json:"plane"`
	// ObservedGeneration is the generation of the Peering that is applied to the kernel.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000000
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// GatewayIP is the address of the gateway's pod, the remote end of the node's link.
	// +optional
	GatewayIP IP `json:"gatewayIP,omitzero"`
	// Source is the address from which this node's packets reach that gateway. The gateway accepts the overlay only from
	// this address, and answers to it.
	// +optional
	Source IP `json:"source,omitzero"`
	// MTU is the MTU, in bytes, of packets from this node to the gateway in the overlay. If the gateway runs on this
	// node, it also applies to packets in the tunnel.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	MTU int32 `json:"mtu,omitempty"`
	// Ready means that probes to the peer's gateway, through overlay and tunnel, are answered.
	Ready bool `json:"ready"`
	// Active means that this node sends packets to the peer through this gateway.
	// +optional
	Active bool `json:"active,omitempty"`
	// RTTMicroseconds is the median of these probes.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600000000
	// +optional
	RTTMicroseconds int64 `json:"rttMicroseconds,omitempty"`
	// LossPercent is the percentage of these probes without an answer.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	LossPercent int32 `json:"lossPercent,omitempty"`
}

// NodeNetworkList is a list of NodeNetworks.
//
// +kubebuilder:object:root=true
type NodeNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeNetwork `json:"items"`
}
