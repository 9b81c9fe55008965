package peering

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// removeNamespace deletes the namespace with all that is in it, and waits until
// it is gone.
//
// Kubernetes' own namespace controller does the same, but lets five seconds pass before it
// begins, and a peer command that comes next would have to wait for it. So we do its work.
// Once the namespace is marked as being deleted, the API server lets nothing new in. We
// delete what every kind has in it, look that nothing is left, and take the namespace's
// finalizer away. Where something is left, or a permission is missing, we wait for the
// controller instead.
func (c *Cluster) removeNamespace(ctx context.Context, ns *corev1.Namespace) error {
	if err := c.delete(ctx, ns); err != nil {
		return err
	}
	if empty, err := c.emptyNamespace(ctx, ns.Name); err != nil {
		return err
	} else if empty {
		live := &corev1.Namespace{}
		err := c.Client.Get(ctx, client.ObjectKeyFromObject(ns), live)
		if err == nil && live.UID == ns.UID {
			live.Spec.Finalizers = nil
			err = c.Client.SubResource("finalize").Update(ctx, live)
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsForbidden(err) {
			return c.fail("finalize namespace "+ns.Name, err)
		}
	}
	return c.gone(ctx, ns)
}

// emptyNamespace deletes all that is in the namespace, and says whether nothing
// is left.
func (c *Cluster) emptyNamespace(ctx context.Context, namespace string) (bool, error) {
	kinds, err := c.namespacedKinds()
	if err != nil {
		// One broken API service is enough: then what is in the namespace cannot
		// be known.
		return false, nil
	}
	var left atomic.Bool
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for _, kind := range kinds {
		g.Go(func() error {
			n, err := c.count(gctx, kind, namespace)
			if n > 0 && err == nil {
				obj := &metav1.PartialObjectMetadata{}
				obj.SetGroupVersionKind(kind)
				if err = c.Client.DeleteAllOf(gctx, obj, client.InNamespace(namespace)); err == nil {
					n, err = c.count(gctx, kind, namespace)
				}
			}
			if n > 0 || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) {
				left.Store(true)
				return nil
			}
			if absent(err) {
				return nil
			}
			return c.fail(fmt.Sprintf("delete all %s in namespace %s", kind.Kind, namespace), err)
		})
	}
	err = g.Wait()
	return !left.Load(), err
}

func (c *Cluster) count(ctx context.Context, kind schema.GroupVersionKind, namespace string) (int, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	err := c.Client.List(ctx, list, client.InNamespace(namespace))
	return len(list.Items), err
}

// namespacedKinds returns every kind that can be in a namespace and be listed.
func (c *Cluster) namespacedKinds() ([]schema.GroupVersionKind, error) {
	lists, err := c.Discovery.ServerPreferredNamespacedResources()
	if err != nil {
		return nil, fmt.Errorf("discover the kinds of the API: %w", err)
	}
	var kinds []schema.GroupVersionKind
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range l.APIResources {
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "delete") {
				kinds = append(kinds, gv.WithKind(r.Kind))
			}
		}
	}
	return kinds, nil
}
