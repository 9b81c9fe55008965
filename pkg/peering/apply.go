package peering

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// read returns what is to be applied, and what there is of it. What is not there
// has no resourceVersion.
func (c *Cluster) read(ctx context.Context, obj client.Object) (want, live *unstructured.Unstructured, err error) {
	if want, err = manifests.ToApply(obj); err != nil {
		return nil, nil, err
	}
	live = &unstructured.Unstructured{}
	live.SetGroupVersionKind(want.GroupVersionKind())
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(want), live); apierrors.IsNotFound(err) {
		live.SetResourceVersion("")
	} else if err != nil {
		return nil, nil, c.fail("read "+describe(want), err)
	}
	return want, live, nil
}

// applyAll applies objects that do not depend on each other, and returns those
// that changed.
func (c *Cluster) applyAll(ctx context.Context, objs ...manifests.Object) ([]string, error) {
	return c.applyNoting(ctx, nil, objs...)
}

// applyNoting is applyAll that first writes down how things were.
func (c *Cluster) applyNoting(ctx context.Context, j *journal, objs ...manifests.Object) (changed []string, err error) {
	wants, lives := make([]*unstructured.Unstructured, len(objs)), make([]*unstructured.Unstructured, len(objs))
	reading, rctx := errgroup.WithContext(ctx)
	for i, obj := range objs {
		reading.Go(func() (err error) {
			wants[i], lives[i], err = c.read(rctx, obj)
			return err
		})
	}
	if err := reading.Wait(); err != nil {
		return nil, err
	}
	var changes []change
	for i, want := range wants {
		if ch, noted := j.changeOf(want, lives[i]); noted {
			changes = append(changes, ch)
		}
	}
	if err := j.note(ctx, changes...); err != nil {
		return nil, err
	}
	applying, actx := errgroup.WithContext(ctx)
	for i, want := range wants {
		applying.Go(func() error {
			u := want.DeepCopy()                               // what is noted stays as it is
			u.SetResourceVersion(objs[i].GetResourceVersion()) // a conflict if it is another one by now
			err := c.Client.Apply(actx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
			wants[i] = u
			return c.fail("apply "+describe(want), err)
		})
	}
	err = applying.Wait()
	for i, u := range wants {
		if u.GetResourceVersion() != "" && isChanged(lives[i], u) {
			changed = append(changed, c.Name+": "+describe(u))
		}
	}
	return changed, err
}

// apply is applyNoting in a run.
func (s *side) apply(ctx context.Context, objs ...manifests.Object) error {
	changed, err := s.applyNoting(ctx, s.journal, objs...)
	s.changed = append(s.changed, changed...)
	return err
}

// isChanged says that an apply has changed an object. The resourceVersion alone does not
// tell: meanwhile an agent may have written its status, or renewed its Lease.
func isChanged(before, after *unstructured.Unstructured) bool {
	if before.GetResourceVersion() == after.GetResourceVersion() {
		return false
	}
	ours := func(u *unstructured.Unstructured) map[string]any {
		o := u.DeepCopy().Object
		for _, field := range []string{"resourceVersion", "managedFields", "generation"} {
			unstructured.RemoveNestedField(o, "metadata", field)
		}
		delete(o, "status")
		if u.GetKind() == "Lease" {
			delete(o, "spec")
		}
		return o
	}
	return !equality.Semantic.DeepEqual(ours(before), ours(after))
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
