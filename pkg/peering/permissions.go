package peering

import (
	"context"
	"path"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// permission is a verb on a resource, in our namespace or in all, on one object or on all.
type permission struct{ group, resource, namespace, verb, name string }

// permissions are all of the verbs on each of the resources (as RESOURCE.GROUP) in a namespace, or in all if it is empty; on all objects if
// none is named.
func permissions(namespace, verbs, resources string, names ...string) []permission {
	if len(names) == 0 {
		names = []string{""}
	}
	var out []permission
	for _, of := range strings.Fields(resources) {
		resource, group, _ := strings.Cut(of, ".")
		for _, verb := range strings.Fields(verbs) {
			for _, name := range names {
				out = append(out, permission{group, resource, namespace, verb, name})
			}
		}
	}
	return out
}

// What belongs together in the groups of Kubernetes that have long names.
const (
	clusterRoles      = " clusterroles.rbac.authorization.k8s.io clusterrolebindings.rbac.authorization.k8s.io "
	roles             = " roles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io "
	leases            = " leases.coordination.k8s.io "
	definitions       = " customresourcedefinitions.apiextensions.k8s.io "
	admissionPolicies = " validatingadmissionpolicies.admissionregistration.k8s.io validatingadmissionpolicybindings.admissionregistration.k8s.io "
)

// toRemove are the permissions without which Unpeer cannot do its work. To
// finalize the namespace is not among them: without it Kubernetes does so, later.
func toRemove() []permission {
	ns := v1alpha1.Namespace
	return slices.Concat(
		permissions("", "list watch", "nodes nodenetworks.liqonet.io"),
		permissions("", "get delete", "namespaces"+definitions),
		permissions("", "list delete", "peerings.liqonet.io"+definitions+clusterRoles+admissionPolicies),
		permissions("", "get create patch update delete", "clusternetworks.liqonet.io"),
		permissions(metav1.NamespaceSystem, "get list create update patch delete", leases), // the locks
		permissions(metav1.NamespaceDefault, "list delete", "events"+roles),
		permissions(metav1.NamespaceDefault, "deletecollection", "events"),
		permissions(ns, "list delete", "configmaps resourcequotas secrets serviceaccounts services"+roles),
		permissions(ns, "list delete", "deployments.apps poddisruptionbudgets.policy"),
		permissions(ns, "list watch delete", "pods daemonsets.apps replicasets.apps"+leases),
		// To retire keys of the overlay that only this peering used.
		permissions(ns, "get patch", "daemonsets.apps"),
		permissions(ns, "list watch", "controllerrevisions.apps"),
		permissions(ns, "get create patch", "secrets"),
		permissions(ns, "get", "configmaps"+leases),
	)
}

// toInstall are those that Peer needs, which removes what it did if it fails.
func toInstall() []permission {
	ns := v1alpha1.Namespace
	return slices.Concat(
		toRemove(),
		permissions("", "list", "pods services"),
		permissions("", "create patch", "namespaces"+definitions),
		permissions("", "get create patch", "peerings.liqonet.io"+clusterRoles+admissionPolicies),
		permissions(metav1.NamespaceDefault, "get create patch", roles),
		permissions(ns, "get create patch", "resourcequotas serviceaccounts poddisruptionbudgets.policy"+roles),
		permissions(ns, "get watch create patch", "services deployments.apps"),
		permissions(ns, "create patch", "configmaps"+leases),
		permissions(ns, "create", "daemonsets.apps"),
		// Nobody may give to the agents what they do not have themselves.
		permissions(metav1.NamespaceDefault, "create", "events"),
		permissions("", "get list watch", "daemonsets.apps"),
		permissions("", "list watch", "namespaces"),
		permissions("", "get watch", "nodes pods"),
		permissions("", "list", "clusternetworks.liqonet.io"),
		permissions("", "watch", "peerings.liqonet.io"),
		permissions("", "patch", "peerings/status.liqonet.io nodenetworks/status.liqonet.io"),
		permissions("", "get watch create patch delete", "nodenetworks.liqonet.io"),
	)
}

// toRotate are those with which Rotate replaces the keys of a Peering, while there is nothing to install or to remove. A job that does so again and
// again need not be an administrator. What may be written outside of our namespace is named.
func toRotate(peering string) []permission {
	ns := v1alpha1.Namespace
	out := slices.Concat(
		permissions("", "get", "namespaces", metav1.NamespaceSystem, ns),
		permissions("", "patch", "namespaces", ns),
		permissions("", "list watch", "nodes nodenetworks.liqonet.io"),
		permissions("", "list", "pods services daemonsets.apps servicecidrs.networking.k8s.io"+clusterRoles),
		permissions("", "get list", definitions),
		permissions("", "get list update", "clusternetworks.liqonet.io"),
		permissions("", "get list watch patch", "peerings.liqonet.io"),
		permissions("", "patch", "peerings/status.liqonet.io"),
		permissions(metav1.NamespaceDefault, "list", "endpointslices.discovery.k8s.io"+roles),
		permissions(metav1.NamespaceSystem, "get list create update delete", leases), // the locks
		permissions(ns, "get list watch create patch delete", "deployments.apps"+leases),
		permissions(ns, "get list create patch delete", "secrets serviceaccounts"+roles),
		permissions(ns, "get create patch delete", "configmaps"),
		permissions(ns, "get list patch", "resourcequotas poddisruptionbudgets.policy"),
		permissions(ns, "get watch patch", "services daemonsets.apps"),
		permissions(ns, "list watch", "replicasets.apps controllerrevisions.apps"),
		permissions(ns, "watch delete", "pods"),
		// Only to be given to the gateway of a temporary plane.
		permissions(metav1.NamespaceDefault, "create", "events"),
	)
	maps, kinds := discovery.OfPlugins()
	for _, name := range maps {
		out = append(out, permissions("", "get", "configmaps", path.Base(name))...)
	}
	for _, kind := range kinds {
		out = append(out, permissions("", "list", resourceOf(kind))...)
	}
	agents, _ := manifests.NodeAgent(manifests.Agents{}, []int32{1})
	out = append(out, outside(agents, "get patch")...)
	for plane := range int32(4) { // no Peering has more
		gateway, _ := manifests.Gateway{Peering: peering, Plane: plane}.Objects()
		out = append(out, outside(gateway, "get create patch delete")...)
	}
	return out
}

func resourceOf(kind schema.GroupVersionKind) string {
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	return resource.GroupResource().String()
}

// outside are permissions on those of the objects that are not in our namespace.
func outside(objs []manifests.Object, verbs string) (out []permission) {
	for _, o := range objs {
		if o.GetNamespace() != v1alpha1.Namespace {
			out = append(out, permissions(o.GetNamespace(), verbs, resourceOf(o.GetObjectKind().GroupVersionKind()), o.GetName())...)
		}
	}
	return out
}

// checkPermissions asks the API server for the permissions before anything is changed. It
// returns an error that lists what is missing.
func (c *Cluster) checkPermissions(ctx context.Context, all []permission) error {
	if everything, err := c.allowed(ctx, permission{group: "*", resource: "*", verb: "*"}); err != nil || everything {
		return err
	}
	missing := make([]string, len(all))
	g, ctx := failure.NewGroup(ctx)
	g.SetLimit(8)
	for i, p := range all {
		g.Go(func() error {
			ok, err := c.allowed(ctx, p)
			if err == nil && !ok {
				missing[i] = strings.TrimSpace(strings.TrimSuffix(p.verb+" "+p.resource+"."+p.group, ".") + " " + p.name)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	slices.Sort(missing)
	missing = slices.DeleteFunc(slices.Compact(missing), func(m string) bool { return m == "" })
	if len(missing) == 0 {
		return nil
	}
	const hint = "use a kubeconfig whose user may (cluster-admin can), or have an administrator run the command; nothing was changed"
	return c.errorf(Forbidden, "check permissions", hint, "the user may not %s", strings.Join(missing, ", "))
}

func (c *Cluster) allowed(ctx context.Context, p permission) (bool, error) {
	resource, subresource, _ := strings.Cut(p.resource, "/")
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: p.group, Resource: resource, Subresource: subresource, Namespace: p.namespace, Verb: p.verb, Name: p.name,
		},
	}}
	if err := c.Client.Create(ctx, review); err != nil {
		return false, c.fail("ask which permissions the user has", err)
	}
	return review.Status.Allowed, nil
}
