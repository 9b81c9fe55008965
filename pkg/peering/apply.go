package peering

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// apply makes obj be as wanted, by server-side apply, and returns it as it was
// before, if that changed anything: an apply that changes nothing leaves the
// resourceVersion. What was not there has no resourceVersion.
func (c *Cluster) apply(ctx context.Context, obj client.Object) (before *unstructured.Unstructured, changed bool, err error) {
	u, err := manifests.ToApply(obj)
	if err != nil {
		return nil, false, err
	}
	doing := fmt.Sprintf("apply %s", describe(u))
	before = &unstructured.Unstructured{}
	before.SetGroupVersionKind(u.GroupVersionKind())
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(u), before); err != nil && !apierrors.IsNotFound(err) {
		return nil, false, c.fail(doing, err)
	}
	if err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership); err != nil {
		return before, false, c.fail(doing, err)
	}
	return before, u.GetResourceVersion() != before.GetResourceVersion(), nil
}

// applyAll applies objects that do not depend on each other, and returns those
// that changed.
func (c *Cluster) applyAll(ctx context.Context, objs ...client.Object) ([]string, error) {
	return c.applyNoting(ctx, nil, objs...)
}

// applyNoting is applyAll that notes how things were.
func (c *Cluster) applyNoting(ctx context.Context, j *journal, objs ...client.Object) ([]string, error) {
	changed := make([]bool, len(objs))
	g, ctx := errgroup.WithContext(ctx)
	for i, obj := range objs {
		g.Go(func() error {
			before, did, err := c.apply(ctx, obj)
			changed[i] = did
			if before != nil && (did || err != nil) {
				j.applied(c, obj, before)
			}
			return err
		})
	}
	err := g.Wait()
	var names []string
	for i, obj := range objs {
		if changed[i] {
			names = append(names, c.Name+": "+describe(obj))
		}
	}
	return names, err
}

// applyTranslation writes into a Peering's status by which addresses both
// clusters know each other.
func (c *Cluster) applyTranslation(ctx context.Context, p *v1alpha1.Peering, t *v1alpha1.Translation) error {
	u, err := manifests.TranslationToApply(p.Name, t)
	if err != nil {
		return err
	}
	err = c.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
	return c.fail("write the status of "+describe(p), err)
}

func describe(obj client.Object) string {
	kind := obj.GetObjectKind().GroupVersionKind().Kind
	if kind == "" {
		kind = strings.TrimPrefix(fmt.Sprintf("%T", obj), "*")
	}
	if ns := obj.GetNamespace(); ns != "" {
		return fmt.Sprintf("%s %s/%s", kind, ns, obj.GetName())
	}
	return fmt.Sprintf("%s %s", kind, obj.GetName())
}

// delete removes the very object that was read, not one of the same name that
// somebody else created since.
func (c *Cluster) delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	uid := obj.GetUID()
	opts = append(opts, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	err := c.Client.Delete(ctx, obj, opts...)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return c.fail("delete "+describe(obj), err)
}
