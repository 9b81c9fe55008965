package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ClusterNetwork has the address ranges of the cluster that it is in, and those by which it knows each other cluster that it is
// connected with. `kubectl liqonet` writes it; do not edit it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=clusternetworks,singular=clusternetwork,shortName=lncluster,categories=liqonet
// +kubebuilder:printcolumn:name="Internal CIDR",type=string,JSONPath=`.spec.internalCIDR`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'cluster'",message="there is one ClusterNetwork and its name is cluster"
type ClusterNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterNetworkSpec `json:"spec"`
}

// ClusterNetworkSpec is written by the CLI only. It has what a status could have, too, such as which peers are established.
// So a command claims ranges and says so in one write, which fails if another command has written since.
type ClusterNetworkSpec struct {
	// InternalCIDR is the range from which this cluster's nodes and gateways have addresses for the links between them, a /19.
	// +kubebuilder:validation:XValidation:rule="self.endsWith(self.contains(':') ? '/115' : '/19')",message="must be a /19"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodes bear addresses of it: unpeer all, then peer again"
	InternalCIDR CIDR `json:"internalCIDR"`
	// OverlayKey says which key protects the links between nodes and gateways, and which nodes know it.
	// +optional
	OverlayKey OverlayKey `json:"overlayKey,omitzero"`

	// Peers has an entry for each other cluster, from before anything is installed for it until everything is removed. What an
	// entry has is given to no other one. The ranges are in its Peering too, which agents read; this is the claim to them.
	// +listType=map
	// +listMapKey=clusterID
	// +kubebuilder:validation:MaxItems=511
	// +optional
	Peers []PeerAllocation `json:"peers,omitempty"`
}

// OverlayKey tells a key of the overlay from others, without telling it.
type OverlayKey struct {
	// Generation says where it is: in the Secret liqonet-overlay-GENERATION.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Generation int32 `json:"generation"`
	// Nodes are the UIDs of the Nodes that were given it, as far as commands have seen them.
	// When one of them is gone, the next command makes another key.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16384
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[!-~]+$`
	// +optional
	Nodes []string `json:"nodes,omitempty"`
}

// PeerAllocation is what this cluster has given out for one peer.
type PeerAllocation struct {
	// ClusterID is the UID of the peer's kube-system namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[!-~]+$`
	ClusterID string `json:"clusterID"`
	// Name of the Peering, unique in this cluster; derived from what the user
	// called the peer.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// Index is a number that no other entry has. Names of network interfaces and gateways' addresses are made from it.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=510
	Index int32 `json:"index"`
	// Pods has the peer's pod ranges: the real ones, and those by which this cluster reaches them.
	// Empty while nothing was decided yet.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Pods []CIDRMapping `json:"pods,omitempty"`
	// ExternalCIDR is the range by which this cluster reaches the peer's nodes and exposed hosts, a /18.
	// +kubebuilder:validation:XValidation:rule="self.endsWith(self.contains(':') ? '/114' : '/18')",message="must be a /18"
	// +optional
	ExternalCIDR CIDR `json:"externalCIDR,omitzero"`
	// Hosts are addresses outside of this cluster that the peer may reach.
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Hosts []ExposedHost `json:"hosts,omitempty"`
	// Phase says whether the peering works: it is reserved before it does, and while it is removed. Then a
	// command that fails takes the entry back.
	Phase PeerPhase `json:"phase"`
	// IdentityKey is the public half of the peer's identity, base64, since the peering has worked. The private half is in the
	// peer's Secret liqonet-identity: a cluster without it is not taken for the peer.
	// +kubebuilder:validation:MinLength=44
	// +kubebuilder:validation:MaxLength=44
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z+/]{42}[AEIMQUYcgkosw048]=$`
	// +optional
	IdentityKey string `json:"identityKey,omitempty"`
	// Previous are the ranges that an active peering had before a command that has
	// not ended yet. They stay reserved, so that they can be put back.
	// +optional
	Previous *PeerRanges `json:"previous,omitempty"`
}

// PeerPhase is what has become of an entry of the ledger.
//
// +kubebuilder:validation:Enum=Reserved;Active
type PeerPhase string

// The phases of an entry.
const (
	PeerReserved PeerPhase = "Reserved"
	PeerActive   PeerPhase = "Active"
)

// Active says that the peering has worked, and is not being removed.
func (a *PeerAllocation) Active() bool { return a.Phase == PeerActive }

// Leaving says that the peering has worked, and is being removed.
func (a *PeerAllocation) Leaving() bool { return !a.Active() && a.IdentityKey != "" }

// PeerRanges are those by which a cluster knows a peer.
type PeerRanges struct {
	// Pods has the peer's pod ranges: the real ones, and those by which this cluster reaches them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Pods []CIDRMapping `json:"pods,omitempty"`
	// ExternalCIDR is the range by which this cluster reaches the peer's nodes and exposed hosts, a /18.
	// +kubebuilder:validation:XValidation:rule="self.endsWith(self.contains(':') ? '/114' : '/18')",message="must be a /18"
	// +optional
	ExternalCIDR CIDR `json:"externalCIDR,omitzero"`
}

// ExposedHost is an address outside of this cluster that a peer may reach.
type ExposedHost struct {
	// Address of the host, as this cluster's nodes reach it.
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).isGlobalUnicast()",message="must be no address of loopback, link-local or multicast"
	Address IP `json:"address"`
	// Number is its place in the upper half of the external CIDR by which the peer
	// knows this cluster.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8190
	Number int32 `json:"number"`
}

// CIDRMapping translates a prefix 1:1 into another one of the same length.
//
// +kubebuilder:validation:XValidation:rule="self.real.substring(self.real.indexOf('/')) == self.mapped.substring(self.mapped.indexOf('/')) && self.real.contains(':') == self.mapped.contains(':')",message="real and mapped must be of one length and one address family"
// +kubebuilder:validation:XValidation:rule="!self.mapped.endsWith('/0')",message="must not be all addresses"
type CIDRMapping struct {
	// Real is the prefix inside the cluster that it belongs to.
	Real CIDR `json:"real"`
	// Mapped is the prefix by which the other cluster knows it; equal to Real
	// where nothing conflicts.
	Mapped CIDR `json:"mapped"`
}

// ClusterNetworkList is a list.
//
// +kubebuilder:object:root=true
type ClusterNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterNetwork `json:"items"`
}
