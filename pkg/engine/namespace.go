package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
)

// checkNamespace fails if someone else created our namespace. They may have permissions in it, to read the keys or to
// run something in the agents' pods.
func (s *Side) checkNamespace(ctx context.Context) error {
	ns, err := kube.Get[corev1.Namespace](ctx, s.Cluster, "", v1alpha1.Namespace)
	if ns == nil || kube.IsManaged(ns) || s.AdoptNamespace {
		return err
	}
	hint := fmt.Sprintf("delete it if nobody needs it (%s delete namespace %s); if you trust all who have rights in it, give --adopt-namespace", s.Kubectl, ns.Name)
	return s.Errorf(kube.Usage, "install into namespace "+ns.Name, hint, "it exists and is not managed by liqonet: whoever created it may read the keys in it")
}

// RemoveNamespace deletes our namespace with everything in it, and waits until it is gone.
//
// Kubernetes' namespace controller does the same, but starts after five seconds, for which a following peer command
// would have to wait. Once the namespace is terminating, the API server accepts no new objects. So we delete those of
// every kind, check that nothing is left, and remove the namespace's finalizer. The controller does what we cannot
// do, for example due to a missing permission.
func RemoveNamespace(ctx context.Context, c *kube.Cluster) error {
	ns, err := kube.Get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	if ns == nil || !kube.IsManaged(ns) {
		return err
	}
	if err := c.Delete(ctx, ns); err != nil {
		return err
	}
	if emptyNamespace(ctx, c) == nil {
		ns.ResourceVersion, ns.Spec.Finalizers = "", nil // the UID has to be the same
		_ = c.Client.SubResource("finalize").Update(ctx, ns)
	}
	return c.AwaitDeleted(ctx, ns)
}

// emptyNamespace deletes everything in our namespace. Without an error nothing is left.
func emptyNamespace(ctx context.Context, c *kube.Cluster) error {
	kinds, err := c.Discovery.ServerPreferredNamespacedResources()
	if err != nil {
		return err
	}
	g, ctx := failure.NewGroup(ctx)
	g.SetLimit(16)
	for _, group := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, kinds) {
		for _, resource := range group.APIResources {
			kind := schema.FromAPIVersionAndKind(group.GroupVersion, resource.Kind)
			g.Go(func() error { return emptyKind(ctx, c, kind) })
		}
	}
	return g.Wait()
}

// emptyKind deletes the objects of one kind in our namespace.
func emptyKind(ctx context.Context, c *kube.Cluster, kind schema.GroupVersionKind) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	if err := c.List(ctx, list, client.InNamespace(v1alpha1.Namespace)); err != nil || len(list.Items) == 0 {
		return err
	}
	objs, err := kube.Items(list)
	if err := cmp.Or(err, c.DeleteEach(ctx, objs)); err != nil {
		return err
	}
	if err := c.List(ctx, list, client.InNamespace(v1alpha1.Namespace)); err != nil || len(list.Items) == 0 {
		return err
	}
	return errors.New("something is left")
}
