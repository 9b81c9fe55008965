package peering

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"sync"

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

// permissions are all of the verbs on each of the resources, and on all objects if none is named.
func permissions(group, namespace, verbs, resources string, names ...string) []permission {
	if len(names) == 0 {
		names = []string{""}
	}
	var out []permission
	for _, resource := range strings.Fields(resources) {
		for _, verb := range strings.Fields(verbs) {
			for _, name := range names {
				out = append(out, permission{group, resource, namespace, verb, name})
			}
		}
	}
	return out
}

const (
	rbac   = "rbac.authorization.k8s.io"
	leases = "coordination.k8s.io"
	// admission is the group of policies.
	admission         = "admissionregistration.k8s.io"
	admissionPolicies = "validatingadmissionpolicies validatingadmissionpolicybindings"
)

// toRemove are the permissions without which Unpeer cannot do its work. To
// finalize the namespace is not among them: without it Kubernetes does so, later.
func toRemove() []permission {
	ns := v1alpha1.Namespace
	return slices.Concat(
		permissions("", "", "list watch", "nodes"),
		permissions("", "", "get delete", "namespaces"),
		permissions("apiextensions.k8s.io", "", "get list delete", "customresourcedefinitions"),
		permissions(leases, metav1.NamespaceSystem, "get list create update patch delete", "leases"), // the locks
		permissions(rbac, "", "list delete", "clusterroles clusterrolebindings"),
		permissions(rbac, ns, "list delete", "roles rolebindings"),
		permissions(rbac, metav1.NamespaceDefault, "list delete", "roles rolebindings"),
		permissions("", metav1.NamespaceDefault, "list delete deletecollection", "events"),
		permissions(admission, "", "list delete", admissionPolicies),
		permissions(leases, ns, "get list watch delete", "leases"),
		permissions("apps", ns, "list delete", "deployments"),
		permissions("apps", ns, "list watch delete", "daemonsets replicasets"),
		// To retire keys of the overlay that only this peering used.
		permissions("apps", ns, "get patch", "daemonsets"),
		permissions("apps", ns, "list watch", "controllerrevisions"),
		permissions("policy", ns, "list delete", "poddisruptionbudgets"),
		permissions("", ns, "get create patch", "secrets"),
		permissions("", ns, "get", "configmaps"),
		permissions("", ns, "list delete", "configmaps resourcequotas secrets serviceaccounts services"),
		permissions("", ns, "list watch delete", "pods"),
		permissions("liqonet.io", "", "get create patch update delete", "clusternetworks"),
		permissions("liqonet.io", "", "list delete", "peerings"),
		permissions("liqonet.io", "", "list watch", "nodenetworks"),
	)
}

// toInstall are those that Peer needs, which removes what it did if it fails.
func toInstall() []permission {
	ns := v1alpha1.Namespace
	return slices.Concat(
		toRemove(),
		permissions("", "", "list", "pods services"),
		permissions("", "", "create patch", "namespaces"),
		permissions("apiextensions.k8s.io", "", "create patch", "customresourcedefinitions"),
		permissions(rbac, "", "get create patch", "clusterroles clusterrolebindings"),
		permissions(rbac, ns, "get create patch", "roles rolebindings"),
		permissions(rbac, metav1.NamespaceDefault, "get create patch", "roles rolebindings"),
		permissions(admission, "", "get create patch", admissionPolicies),
		permissions(leases, ns, "create patch", "leases"),
		permissions("apps", ns, "create", "daemonsets"),
		permissions("apps", ns, "get watch create patch", "deployments"),
		permissions("", ns, "create patch", "configmaps"),
		permissions("", ns, "get create patch", "resourcequotas serviceaccounts"),
		permissions("policy", ns, "get create patch", "poddisruptionbudgets"),
		permissions("", ns, "get watch create patch", "services"),
		permissions("liqonet.io", "", "get create patch", "peerings"),
		// Nobody may give to the agents what they do not have themselves.
		permissions("", metav1.NamespaceDefault, "create", "events"),
		permissions("apps", "", "get list watch", "daemonsets"),
		permissions("", "", "list watch", "namespaces"),
		permissions("", "", "get watch", "nodes pods"),
		permissions("liqonet.io", "", "list", "clusternetworks"),
		permissions("liqonet.io", "", "watch", "peerings"),
		permissions("liqonet.io", "", "patch", "peerings/status nodenetworks/status"),
		permissions("liqonet.io", "", "get watch create patch delete", "nodenetworks"),
	)
}

// toRotate are those with which Rotate replaces the keys of a Peering, while there is nothing to install or to remove. A job that does so again and
// again need not be an administrator. What may be written outside of our namespace is named.
func toRotate(peering string) []permission {
	ns := v1alpha1.Namespace
	out := slices.Concat(
		permissions("", "", "get", "namespaces", metav1.NamespaceSystem, ns),
		permissions("", "", "patch", "namespaces", ns),
		permissions("", "", "list watch", "nodes"),
		permissions("", "", "list", "pods services"),
		permissions("apps", "", "list", "daemonsets"),
		permissions("networking.k8s.io", "", "list", "servicecidrs"),
		permissions("discovery.k8s.io", metav1.NamespaceDefault, "list", "endpointslices"),
		permissions("apiextensions.k8s.io", "", "get list", "customresourcedefinitions"),
		permissions(rbac, "", "list", "clusterroles clusterrolebindings"),
		permissions(rbac, metav1.NamespaceDefault, "list", "roles rolebindings"),
		permissions(rbac, ns, "get list create patch delete", "roles rolebindings"),
		permissions(leases, metav1.NamespaceSystem, "get list create update delete", "leases"), // the locks
		permissions(leases, ns, "get list watch create patch delete", "leases"),
		permissions("apps", ns, "get watch patch", "daemonsets"),
		permissions("apps", ns, "get list watch create patch delete", "deployments"),
		permissions("apps", ns, "list watch", "replicasets controllerrevisions"),
		permissions("policy", ns, "get list patch", "poddisruptionbudgets"),
		permissions("", ns, "watch delete", "pods"),
		permissions("", ns, "get create patch delete", "configmaps"),
		permissions("", ns, "get list create patch delete", "secrets serviceaccounts"),
		permissions("", ns, "get list patch", "resourcequotas"),
		permissions("", ns, "get watch patch", "services"),
		permissions("liqonet.io", "", "get list update", "clusternetworks"),
		permissions("liqonet.io", "", "get list watch patch", "peerings"),
		permissions("liqonet.io", "", "list watch", "nodenetworks"),
		permissions("liqonet.io", "", "patch", "peerings/status"),
		// Only to be given to the gateway of a temporary plane.
		permissions("", metav1.NamespaceDefault, "create", "events"),
	)
	maps, kinds := discovery.OfPlugins()
	for _, name := range maps {
		out = append(out, permissions("", "", "get", "configmaps", path.Base(name))...)
	}
	for _, kind := range kinds {
		out = append(out, permissions(kind.Group, "", "list", resourceOf(kind))...)
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
	return resource.Resource
}

// outside are permissions on those of the objects that are not in our namespace.
func outside(objs []manifests.Object, verbs string) (out []permission) {
	for _, o := range objs {
		if o.GetNamespace() != v1alpha1.Namespace {
			kind := o.GetObjectKind().GroupVersionKind()
			out = append(out, permissions(kind.Group, o.GetNamespace(), verbs, resourceOf(kind), o.GetName())...)
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
	var mu sync.Mutex
	var missing []string
	g, ctx := failure.NewGroup(ctx)
	g.SetLimit(8)
	for _, p := range all {
		g.Go(func() error {
			ok, err := c.allowed(ctx, p)
			if err != nil || ok {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			missing = append(missing, strings.TrimSpace(strings.TrimSuffix(p.verb+" "+p.resource+"."+p.group, ".")+" "+p.name))
			return nil
		})
	}
	if err := g.Wait(); err != nil || len(missing) == 0 {
		return err
	}
	slices.Sort(missing)
	return &Error{
		Kind: Forbidden, Cluster: c.Name, Doing: "check permissions", Err: errors.New("the user may not " + strings.Join(slices.Compact(missing), ", ")),
		Hint: "use a kubeconfig whose user may (cluster-admin can), or have an administrator run the command; nothing was changed",
	}
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
