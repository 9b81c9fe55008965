package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ClusterNetwork holds the cluster's own address ranges, and those by which it knows each connected cluster. `kubectl
// liqonet` writes it; do not edit it.
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

// ClusterNetworkSpec is written only by the CLI. It includes what could be a status, such as which peers are established:
// a command claims ranges and records that in a single write. The write fails if another command has written in between.
type ClusterNetworkSpec struct {
	// ClusterID is the UID of this cluster's kube-system namespace. In another cluster, the object is a copy, as in a restored
	// backup: commands there only remove it.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[!-~]+$`
	// +optional
	ClusterID string `json:"clusterID,omitempty"`
	// InternalCIDR is the range of the addresses of this cluster's nodes and gateways on the links between them, a /19.
	// +kubebuilder:validation:XValidation:rule="self.endsWith(self.contains(':') ? '/115' : '/19')",message="must be a /19"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodes have addresses in it: unpeer all, then peer again"
	InternalCIDR CIDR `json:"internalCIDR"`
	// OverlayKey identifies the key that protects the links between nodes and gateways, and the nodes that know it.
	// +optional
	OverlayKey OverlayKey `json:"overlayKey,omitzero"`
	// Services is set while the cluster exchanges services with any peer.
	// +optional
	Services *ClusterServices `json:"services,omitempty"`

	// Peers has an entry for each other cluster, from before anything is installed for it until everything is removed.
	// Nothing in an entry is allocated to another one. The ranges are also in its Peering, which agents read; the entry
	// is the claim to them.
	// +listType=map
	// +listMapKey=clusterID
	// +kubebuilder:validation:MaxItems=511
	// +optional
	Peers []PeerAllocation `json:"peers,omitempty"`
}

// OverlayKey identifies a key of the overlay, without revealing it.
type OverlayKey struct {
	// Generation identifies the Secret with the key: liqonet-overlay-GENERATION.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Generation int32 `json:"generation"`
	// Nodes are the UIDs of the Nodes that have received the key, as far as commands know. When one of them is gone, the
	// next command creates another key.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16384
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[!-~]+$`
	// +optional
	Nodes []string `json:"nodes,omitempty"`
}

// PeerAllocation is what this cluster has allocated to one peer.
type PeerAllocation struct {
	// ClusterID is the UID of the peer's kube-system namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[!-~]+$`
	ClusterID string `json:"clusterID"`
	// Name is the name of the Peering, unique in this cluster; derived from the user's name of the peer.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// Index is unique among the entries. The names of network interfaces and the gateways' addresses are derived from it.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=510
	Index int32 `json:"index"`
	// Pods has the peer's pod ranges: the real ones, and those by which this cluster reaches them. Empty until they are
	// decided.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Pods []CIDRMapping `json:"pods,omitempty"`
	// ExternalCIDR is the range by which this cluster reaches the peer's nodes and exposed hosts, a /18.
	// +kubebuilder:validation:XValidation:rule="self.endsWith(self.contains(':') ? '/114' : '/18')",message="must be a /18"
	// +optional
	ExternalCIDR CIDR `json:"externalCIDR,omitzero"`
	// Hosts are addresses outside this cluster that the peer may reach.
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Hosts []ExposedHost `json:"hosts,omitempty"`
	// Phase is Reserved before the peering works and while it is removed, and Active in between. A peer command that fails
	// removes a reserved entry.
	Phase PeerPhase `json:"phase"`
	// IdentityKey is the public half of the peer's identity (Ed25519), base64, since the peering has worked. The private half is
	// in the peer's Secret liqonet-identity: a cluster without it is not accepted as the peer.
	// +kubebuilder:validation:MinLength=44
	// +kubebuilder:validation:MaxLength=44
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z+/]{42}[AEIMQUYcgkosw048]=$`
	// +optional
	IdentityKey string `json:"identityKey,omitempty"`
	// ServicesID is the peer's ID among the clusters that exchange services, as in its Peering. It is empty if services are
	// not exchanged with it. Admission policies read it here.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	ServicesID string `json:"servicesID,omitempty"`
	// Previous is what an active peering had before a command that has not completed yet. Ranges stay reserved, so
	// that a rollback can restore them.
	// +optional
	Previous *PeerRanges `json:"previous,omitempty"`
}

// PeerPhase is the state of an entry in the ledger.
//
// +kubebuilder:validation:Enum=Reserved;Active
type PeerPhase string

// The phases of an entry.
const (
	PeerReserved PeerPhase = "Reserved"
	PeerActive   PeerPhase = "Active"
)

// Active reports whether the peering has worked, and is not being removed.
func (a *PeerAllocation) Active() bool { return a.Phase == PeerActive }

// IsBeingRemoved reports whether the peering has worked, and is being removed.
func (a *PeerAllocation) IsBeingRemoved() bool { return !a.Active() && a.IdentityKey != "" }

// PeerRanges are the ranges by which a cluster knows a peer, and what it knew of one that is being replaced.
type PeerRanges struct {
	// IdentityKey is the public half of the identity of a peer that is being replaced, base64.
	// +kubebuilder:validation:MinLength=44
	// +kubebuilder:validation:MaxLength=44
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z+/]{42}[AEIMQUYcgkosw048]=$`
	// +optional
	IdentityKey string `json:"identityKey,omitempty"`
	// Hosts are the addresses outside this cluster that a peer which is being replaced could reach.
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Hosts []ExposedHost `json:"hosts,omitempty"`
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

// ExposedHost is an address outside this cluster that a peer may reach.
type ExposedHost struct {
	// Address is the address of the host, as this cluster's nodes reach it.
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).isGlobalUnicast()",message="must not be a loopback, link-local or multicast address"
	Address IP `json:"address"`
	// Number is the host's position in the upper half of the external CIDR by which the peer knows this cluster.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8190
	Number int32 `json:"number"`
}

// CIDRMapping translates a prefix 1:1 to another one of the same length.
//
// +kubebuilder:validation:XValidation:rule="self.real.substring(self.real.indexOf('/')) == self.mapped.substring(self.mapped.indexOf('/')) && self.real.contains(':') == self.mapped.contains(':')",message="real and mapped must have the same length and address family"
// +kubebuilder:validation:XValidation:rule="!self.mapped.endsWith('/0')",message="must not be all addresses"
type CIDRMapping struct {
	// Real is the prefix in its own cluster.
	Real CIDR `json:"real"`
	// Mapped is the prefix by which the other cluster knows it. It equals Real if nothing conflicts.
	Mapped CIDR `json:"mapped"`
}

// ClusterNetworkList is a list of ClusterNetworks.
//
// +kubebuilder:object:root=true
type ClusterNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterNetwork `json:"items"`
}
