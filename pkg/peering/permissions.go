package peering

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
)

// permission is a verb on a resource, in our namespace or in all.
type permission struct{ group, resource, namespace, verb string }

// permissions are all of the verbs on each of the resources.
func permissions(group, namespace, verbs, resources string) []permission {
	var out []permission
	for _, resource := range strings.Fields(resources) {
		for _, verb := range strings.Fields(verbs) {
			out = append(out, permission{group, resource, namespace, verb})
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
		permissions("apiextensions.k8s.io", "", "get list patch delete", "customresourcedefinitions"),
		permissions(rbac, "", "list delete", "clusterroles clusterrolebindings"),
		permissions(rbac, ns, "list delete", "roles rolebindings"),
		permissions(rbac, metav1.NamespaceDefault, "list delete", "roles rolebindings"),
		permissions("", metav1.NamespaceDefault, "list delete deletecollection", "events"),
		permissions(admission, "", "list delete", admissionPolicies),
		permissions(leases, ns, "list watch delete", "leases"),
		permissions("apps", ns, "list delete", "deployments"),
		permissions("apps", ns, "list watch delete", "daemonsets replicasets"),
		// To retire keys of the overlay that only this peering used.
		permissions("apps", ns, "get patch", "daemonsets"),
		permissions("apps", ns, "list watch", "controllerrevisions"),
		permissions("policy", ns, "list delete", "poddisruptionbudgets"),
		permissions("", ns, "get create patch", "secrets"),
		permissions("", ns, "list delete", "configmaps resourcequotas secrets serviceaccounts services"),
		permissions("", ns, "list watch delete", "pods"),
		permissions("liqonet.io", "", "get create patch update delete", "clusternetworks"),
		permissions("liqonet.io", "", "list delete deletecollection", "peerings"),
		permissions("liqonet.io", "", "list watch deletecollection", "nodenetworks"),
	)
}

// toInstall are those that Peer needs, which removes what it did if it fails.
func toInstall() []permission {
	ns := v1alpha1.Namespace
	return slices.Concat(
		toRemove(),
		permissions("", "", "list", "pods services"),
		permissions("", "", "create patch", "namespaces"),
		permissions("apiextensions.k8s.io", "", "create", "customresourcedefinitions"),
		permissions(rbac, "", "get create patch", "clusterroles clusterrolebindings"),
		permissions(rbac, ns, "get create patch", "roles rolebindings"),
		permissions(rbac, metav1.NamespaceDefault, "get create patch", "roles rolebindings"),
		permissions(admission, "", "get create patch", admissionPolicies),
		permissions(leases, ns, "get create patch", "leases"),
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

// checkPermissions asks the API server for the permissions before anything is changed. It
// returns an error that lists what is missing.
func (c *Cluster) checkPermissions(ctx context.Context, all []permission) error {
	if everything, err := c.allowed(ctx, permission{"*", "*", "", "*"}); err != nil || everything {
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
