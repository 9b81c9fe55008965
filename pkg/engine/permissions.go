package engine

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
)

// RemovePermissions returns the permissions that Unpeer needs. Finalizing the namespace is optional: otherwise Kubernetes does
// it later.
func RemovePermissions() []kube.Permission {
	ns := v1alpha1.Namespace
	return slices.Concat(
		kube.Permissions("", "list watch", "nodes nodenetworks.liqonet.io"),
		kube.Permissions("", "get delete", "namespaces"+kube.Definitions),
		kube.Permissions("", "list delete", "peerings.liqonet.io"+kube.Definitions+kube.ClusterRoles+kube.AdmissionPolicies),
		kube.Permissions("", "get create patch update delete", "clusternetworks.liqonet.io"),
		kube.Permissions(metav1.NamespaceSystem, "get list create update patch delete", kube.Leases), // the locks
		kube.Permissions(metav1.NamespaceDefault, "list delete", "events"+kube.Roles),
		kube.Permissions(metav1.NamespaceDefault, "deletecollection", "events"),
		kube.Permissions(ns, "list delete", "configmaps resourcequotas secrets serviceaccounts services"+kube.Roles),
		kube.Permissions(ns, "list delete", "deployments.apps poddisruptionbudgets.policy"),
		kube.Permissions(ns, "list watch delete", "pods daemonsets.apps replicasets.apps"+kube.Leases),
		// To retire overlay keys that only this peering used.
		kube.Permissions(ns, "get patch", "daemonsets.apps"),
		kube.Permissions(ns, "list watch", "controllerrevisions.apps"),
		kube.Permissions(ns, "get create patch", "secrets"),
		kube.Permissions(ns, "get", "configmaps"+kube.Leases),
	)
}

// InstallPermissions returns the permissions that Peer needs, including those to roll back.
func InstallPermissions() []kube.Permission {
	ns := v1alpha1.Namespace
	return slices.Concat(
		RemovePermissions(),
		kube.Permissions("", "list", "pods services"),
		kube.Permissions("", "create patch", "namespaces"+kube.Definitions),
		kube.Permissions("", "get create patch", "peerings.liqonet.io"+kube.ClusterRoles+kube.AdmissionPolicies),
		kube.Permissions(metav1.NamespaceDefault, "get create patch", kube.Roles),
		kube.Permissions(ns, "get create patch", "resourcequotas serviceaccounts poddisruptionbudgets.policy"+kube.Roles),
		kube.Permissions(ns, "get watch create patch", "services deployments.apps"),
		kube.Permissions(ns, "create patch", "configmaps"+kube.Leases),
		kube.Permissions(ns, "create", "daemonsets.apps"),
		// Users can only grant the agents permissions that they have themselves.
		kube.Permissions(metav1.NamespaceDefault, "create", "events"),
		kube.Permissions("", "get list watch", "daemonsets.apps"),
		kube.Permissions("", "list watch", "namespaces"),
		kube.Permissions("", "get watch", "nodes pods"),
		kube.Permissions("", "list", "clusternetworks.liqonet.io"),
		kube.Permissions("", "watch", "peerings.liqonet.io"),
		kube.Permissions("", "patch", "peerings/status.liqonet.io nodenetworks/status.liqonet.io"),
		kube.Permissions("", "get watch create patch delete", "nodenetworks.liqonet.io"),
	)
}
