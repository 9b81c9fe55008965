package peering

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// permission is a verb on a resource, in our namespace or in all.
type permission struct{ group, resource, namespace, verb string }

func permissions(group, resource, namespace string, verbs ...string) []permission {
	var out []permission
	for _, v := range verbs {
		out = append(out, permission{group, resource, namespace, v})
	}
	return out
}

// toRemove are the permissions without which Unpeer cannot do its work. To
// finalize the namespace is not among them: without it Kubernetes does so, later.
func toRemove() []permission {
	const rbac = "rbac.authorization.k8s.io"
	ns := v1alpha1.Namespace
	return slices.Concat(
		permissions("", "nodes", "", "list", "watch"),
		permissions("", "namespaces", "", "get", "delete"),
		permissions("apiextensions.k8s.io", "customresourcedefinitions", "", "get", "list", "delete"),
		permissions(rbac, "clusterroles", "", "list", "delete"),
		permissions(rbac, "clusterrolebindings", "", "list", "delete"),
		permissions(rbac, "roles", ns, "list", "delete"),
		permissions(rbac, "rolebindings", ns, "list", "delete"),
		permissions("coordination.k8s.io", "leases", ns, "list", "delete"),
		permissions("", "resourcequotas", ns, "list", "delete"),
		permissions("apps", "daemonsets", ns, "list", "delete"),
		permissions("apps", "deployments", ns, "list", "delete"),
		permissions("apps", "replicasets", ns, "list", "watch", "delete"),
		permissions("", "pods", ns, "list", "watch", "delete"),
		permissions("", "secrets", ns, "list", "delete"),
		permissions("", "services", ns, "list", "delete"),
		permissions("", "configmaps", ns, "list", "delete"),
		permissions("", "serviceaccounts", ns, "list", "delete"),
		permissions("liqonet.io", "clusternetworks", "", "get", "create", "patch", "update", "delete"),
		permissions("liqonet.io", "peerings", "", "delete", "deletecollection"),
		permissions("liqonet.io", "nodenetworks", "", "list", "watch", "deletecollection"),
	)
}

// toInstall are those that Peer needs, which removes what it did if it fails.
func toInstall() []permission {
	const rbac = "rbac.authorization.k8s.io"
	ns := v1alpha1.Namespace
	return slices.Concat(
		toRemove(),
		permissions("", "pods", "", "list"),
		permissions("", "services", "", "list"),
		permissions("", "namespaces", "", "create", "patch"),
		permissions("apiextensions.k8s.io", "customresourcedefinitions", "", "create", "patch"),
		permissions(rbac, "clusterroles", "", "get", "create", "patch"),
		permissions(rbac, "clusterrolebindings", "", "get", "create", "patch"),
		permissions(rbac, "roles", ns, "get", "create", "patch"),
		permissions(rbac, "rolebindings", ns, "get", "create", "patch"),
		permissions("", "resourcequotas", ns, "get", "create", "patch"),
		permissions("coordination.k8s.io", "leases", ns, "get", "watch", "create", "update", "patch"),
		permissions("apps", "daemonsets", ns, "get", "create", "patch"),
		permissions("apps", "deployments", ns, "get", "watch", "create", "patch"),
		permissions("apps", "controllerrevisions", ns, "list", "watch"),
		permissions("", "secrets", ns, "get", "create"),
		permissions("", "services", ns, "get", "watch", "create", "patch"),
		permissions("", "configmaps", ns, "create", "patch"),
		permissions("", "serviceaccounts", ns, "get", "create", "patch"),
		permissions("liqonet.io", "peerings", "", "get", "create", "patch"),
		// Nobody may give to the agents what they do not have themselves.
		permissions("apps", "daemonsets", "", "get", "list", "watch"),
		permissions("", "namespaces", "", "list", "watch"),
		permissions("", "nodes", "", "get", "watch"),
		permissions("", "pods", "", "get", "watch"),
		permissions("liqonet.io", "clusternetworks", "", "list", "watch"),
		permissions("liqonet.io", "peerings", "", "list", "watch"),
		permissions("liqonet.io", "peerings/status", "", "patch"),
		permissions("liqonet.io", "nodenetworks", "", "get", "watch", "create", "patch", "delete"),
		permissions("liqonet.io", "nodenetworks/status", "", "patch"),
		permissions("", "services", ns, "watch"),
	)
}

// checkPermissions asks the API server for the permissions before anything is changed. It
// returns an error that lists what is missing.
func (c *Cluster) checkPermissions(ctx context.Context, all []permission) error {
	if everything, err := c.allowed(ctx, permission{"*", "*", "", "*"}); err != nil || everything {
		return err
	}
	var mu sync.Mutex
	var missing []string
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, p := range all {
		g.Go(func() error {
			ok, err := c.allowed(ctx, p)
			if err != nil || ok {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			missing = append(missing, strings.TrimSuffix(p.verb+" "+p.resource+"."+p.group, "."))
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
			Group: p.group, Resource: resource, Subresource: subresource, Namespace: p.namespace, Verb: p.verb,
		},
	}}
	if err := c.Client.Create(ctx, review); err != nil {
		return false, c.fail("ask which permissions the user has", err)
	}
	return review.Status.Allowed, nil
}
