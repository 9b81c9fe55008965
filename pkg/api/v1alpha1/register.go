package v1alpha1

import (
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
	// UninstallFinalizer keeps the ClusterNetwork until the rest is removed, so
	// that a CLI that comes meanwhile sees that the house is being torn down.
	UninstallFinalizer = "liqonet.io/uninstall"

	// NodeAgentName names the node agents' DaemonSet, ServiceAccount and
	// permissions.
	NodeAgentName = "liqonet-node"

	// KeyFilePrivate and KeyFilePublic are the keys of a gateway's Secret, and the
	// files' names where it is mounted.
	KeyFilePrivate = "privatekey"
	KeyFilePublic  = "publickey"

	// OverlaySecret names the Secret with what the overlay of a cluster is
	// protected by, OverlayKeyFile its key and the file where it is mounted.
	OverlaySecret  = "liqonet-overlay"
	OverlayKeyFile = "key"

	// LabelManagedBy with the value FieldManager is on every object of ours.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// LabelPeering has the Peering's name on what belongs to one.
	LabelPeering = "liqonet.io/peering"
	// LabelPlane has the plane's number on what belongs to one.
	LabelPlane = "liqonet.io/plane"
)

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
