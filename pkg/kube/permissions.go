package kube

import (
	"context"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// Permission is a verb on a resource: in one namespace or in all, on one object or on all.
type Permission struct{ Group, Resource, Namespace, Verb, Name string }

// Permissions combines each verb with each resource (RESOURCE.GROUP). An empty namespace means all namespaces, no
// names mean all objects.
func Permissions(namespace, verbs, resources string, names ...string) []Permission {
	names = lo.CoalesceSliceOrEmpty(names, []string{""})
	return lo.CrossJoinBy3(strings.Fields(resources), strings.Fields(verbs), names, func(of, verb, name string) Permission {
		resource, group, _ := strings.Cut(of, ".")
		return Permission{group, resource, namespace, verb, name}
	})
}

// Resources that are used together, in API groups with long names.
const (
	ClusterRoles      = " clusterroles.rbac.authorization.k8s.io clusterrolebindings.rbac.authorization.k8s.io "
	Roles             = " roles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io "
	Leases            = " leases.coordination.k8s.io "
	CRDs              = " customresourcedefinitions.apiextensions.k8s.io "
	AdmissionPolicies = " validatingadmissionpolicies.admissionregistration.k8s.io validatingadmissionpolicybindings.admissionregistration.k8s.io "
)

// ResourceOf returns RESOURCE.GROUP of a kind.
func ResourceOf(kind schema.GroupVersionKind) string {
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	return resource.GroupResource().String()
}

// OutsideNamespace returns permissions on those objects that are not in our namespace.
func OutsideNamespace(objs []manifests.Object, verbs string) (out []Permission) {
	for _, o := range objs {
		if o.GetNamespace() != v1alpha1.Namespace {
			out = append(out, Permissions(o.GetNamespace(), verbs, ResourceOf(o.GetObjectKind().GroupVersionKind()), o.GetName())...)
		}
	}
	return out
}

// CheckPermissions asks the API server whether the user has the permissions. Its error lists the missing ones.
func (c *Cluster) CheckPermissions(ctx context.Context, all []Permission) error {
	if everything, err := isAllowed(ctx, c, Permission{Group: "*", Resource: "*", Verb: "*"}); err != nil || everything {
		return err
	}
	missing := make([]string, len(all))
	err := failure.ForEachLimit(ctx, 8, all, func(ctx context.Context, i int, p Permission) error {
		ok, err := isAllowed(ctx, c, p)
		if err == nil && !ok {
			missing[i] = strings.TrimSpace(strings.TrimSuffix(p.Verb+" "+p.Resource+"."+p.Group, ".") + " " + p.Name)
		}
		return err
	})
	missing = lo.Uniq(lo.Compact(missing))
	if err != nil || len(missing) == 0 {
		return err
	}
	slices.Sort(missing)
	const hint = "use a kubeconfig whose user may (cluster-admin can), or have an administrator run the command; nothing was changed"
	return c.Errorf(Forbidden, "check permissions", hint, "the user may not %s", strings.Join(missing, ", "))
}

// isAllowed asks the API server about one permission.
func isAllowed(ctx context.Context, c *Cluster, p Permission) (bool, error) {
	resource, subresource, _ := strings.Cut(p.Resource, "/")
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: p.Group, Resource: resource, Subresource: subresource, Namespace: p.Namespace, Verb: p.Verb, Name: p.Name,
		},
	}}
	if err := c.Client.Create(ctx, review); err != nil {
		return false, c.Wrap("ask which permissions the user has", err)
	}
	return review.Status.Allowed, nil
}
