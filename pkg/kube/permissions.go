package kube

import (
	"context"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// Permission is a verb on a resource, in our namespace or in all, on one object or on all.
type Permission struct{ Group, Resource, Namespace, Verb, Name string }

// Permissions are all of the verbs on each of the resources (as RESOURCE.GROUP) in a namespace, or in all if it is empty; on all objects if
// none is named.
func Permissions(namespace, verbs, resources string, names ...string) []Permission {
	if len(names) == 0 {
		names = []string{""}
	}
	var out []Permission
	for _, of := range strings.Fields(resources) {
		resource, group, _ := strings.Cut(of, ".")
		for _, verb := range strings.Fields(verbs) {
			for _, name := range names {
				out = append(out, Permission{group, resource, namespace, verb, name})
			}
		}
	}
	return out
}

// What belongs together in the groups of Kubernetes that have long names.
const (
	ClusterRoles      = " clusterroles.rbac.authorization.k8s.io clusterrolebindings.rbac.authorization.k8s.io "
	Roles             = " roles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io "
	Leases            = " leases.coordination.k8s.io "
	Definitions       = " customresourcedefinitions.apiextensions.k8s.io "
	AdmissionPolicies = " validatingadmissionpolicies.admissionregistration.k8s.io validatingadmissionpolicybindings.admissionregistration.k8s.io "
)

// ResourceOf is RESOURCE.GROUP of a kind.
func ResourceOf(kind schema.GroupVersionKind) string {
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	return resource.GroupResource().String()
}

// Outside are permissions on those of the objects that are not in our namespace.
func Outside(objs []manifests.Object, verbs string) (out []Permission) {
	for _, o := range objs {
		if o.GetNamespace() != v1alpha1.Namespace {
			out = append(out, Permissions(o.GetNamespace(), verbs, ResourceOf(o.GetObjectKind().GroupVersionKind()), o.GetName())...)
		}
	}
	return out
}

// CheckPermissions asks the API server for the permissions before anything is changed. It
// returns an error that lists what is missing.
func (c *Cluster) CheckPermissions(ctx context.Context, all []Permission) error {
	if everything, err := c.allowed(ctx, Permission{Group: "*", Resource: "*", Verb: "*"}); err != nil || everything {
		return err
	}
	missing := make([]string, len(all))
	g, ctx := failure.NewGroup(ctx)
	g.SetLimit(8)
	for i, p := range all {
		g.Go(func() error {
			ok, err := c.allowed(ctx, p)
			if err == nil && !ok {
				missing[i] = strings.TrimSpace(strings.TrimSuffix(p.Verb+" "+p.Resource+"."+p.Group, ".") + " " + p.Name)
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
	return c.Errorf(Forbidden, "check permissions", hint, "the user may not %s", strings.Join(missing, ", "))
}

func (c *Cluster) allowed(ctx context.Context, p Permission) (bool, error) {
	resource, subresource, _ := strings.Cut(p.Resource, "/")
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: p.Group, Resource: resource, Subresource: subresource, Namespace: p.Namespace, Verb: p.Verb, Name: p.Name,
		},
	}}
	if err := c.Client.Create(ctx, review); err != nil {
		return false, c.Fail("ask which permissions the user has", err)
	}
	return review.Status.Allowed, nil
}
