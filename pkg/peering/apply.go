package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// read returns what is to be applied, and what there is of it. What is not there
// has no resourceVersion.
func (c *Cluster) read(ctx context.Context, obj client.Object) (want, live *unstructured.Unstructured, err error) {
	want, isReady := obj.(*unstructured.Unstructured)
	if !isReady {
		if want, err = manifests.ToApply(obj); err != nil {
			return nil, nil, err
		}
	}
	live = &unstructured.Unstructured{}
	live.SetGroupVersionKind(want.GroupVersionKind())
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(want), live); err != nil && !absent(err) {
		return nil, nil, c.fail("read "+describe(want), err)
	}
	return want, live, nil
}

// write applies an object. What others have set otherwise is overwritten, and named: the API server is asked without force first.
func (c *Cluster) write(ctx context.Context, u *unstructured.Unstructured) error {
	obj, owner := client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager)
	err := c.Client.Apply(ctx, obj, owner)
	if fields, are := conflicts(u, err); are {
		if err = c.Client.Apply(ctx, obj, owner, client.ForceOwnership); err == nil {
			c.notice(ctx, fields, "is overwritten")
		}
	}
	return c.fail("apply "+describe(u), uninstallingIfTerminating(err))
}

// apply applies objects that do not depend on each other, after it has written down how
// they were. What agents write meanwhile is no change: only fields that are applied count.
func (s *side) apply(ctx context.Context, objs ...manifests.Object) error {
	if len(objs) == 0 {
		return nil
	}
	defer Begin(ctx, s.Name, "apply "+describeAll(objs), "")()
	wants, lives := make([]*unstructured.Unstructured, len(objs)), make([]*unstructured.Unstructured, len(objs))
	reading, rctx := failure.NewGroup(ctx)
	for i, obj := range objs {
		reading.Go(func() (err error) {
			wants[i], lives[i], err = s.read(rctx, obj)
			return err
		})
	}
	if err := reading.Wait(); err != nil {
		return err
	}
	var changes []change
	for i, want := range wants {
		if !contains(lives[i].Object, want.Object) {
			changes = append(changes, newChange(lives[i], want))
		}
	}
	if err := s.journal.note(ctx, changes...); err != nil {
		return err
	}
	applying, actx := failure.NewGroup(ctx)
	for i, want := range wants {
		if isDefinition(want) && !slices.ContainsFunc(changes, func(ch change) bool { return ch.object().GetName() == want.GetName() }) {
			continue // they are large, and cost an API server as much as a change; one that is being removed is marked, and so changed
		}
		applying.Go(func() error {
			if objs[i].GetResourceVersion() != "" { // whoever has read it decides again after a conflict
				return s.applyAs(actx, want, objs[i])
			}
			return retryOnConflict(func() error {
				err := s.applyAs(actx, want, lives[i])
				if apierrors.IsConflict(err) {
					_, now, readErr := s.read(actx, want)
					if lives[i] = now; readErr != nil {
						return readErr
					}
				}
				return err
			})
		})
	}
	if err := applying.Wait(); err != nil {
		return err
	}
	for _, ch := range changes {
		s.hasChanged(describe(ch.object()))
	}
	return nil
}

// absentVersion is the resourceVersion of no object. What is applied with it is created, or is a conflict if it is there.
const absentVersion = "1"

// applyAs applies an object that is as it was read: all else is a conflict. A command may have slept since, and others have removed or made
// the object.
func (s *side) applyAs(ctx context.Context, want *unstructured.Unstructured, read client.Object) error {
	u := want.DeepCopy() // the journal keeps what is wanted
	u.SetUID(read.GetUID())
	u.SetResourceVersion(cmp.Or(read.GetResourceVersion(), absentVersion))
	if err := s.write(ctx, u); err != nil {
		return err
	}
	if u.GetDeletionTimestamp() != nil {
		return s.fail("apply "+describe(u), errUninstalling)
	}
	if read.GetResourceVersion() == "" {
		return s.recheck(ctx, u)
	}
	return nil
}

// create creates an object of a peering.
func (c *Cluster) create(ctx context.Context, obj client.Object) error {
	if err := c.Client.Create(ctx, obj, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return err
	}
	return c.recheck(ctx, obj)
}

// recheck deletes an object of a peering that was just created, if the command had been overtaken by then. Nobody else would know it. What
// several peerings share is used or removed by the next command.
func (c *Cluster) recheck(ctx context.Context, created client.Object) error {
	end, err := lock.Begin(ctx)
	if err == nil {
		end()
	}
	if lock.Lost(ctx) == nil || created.GetLabels()[v1alpha1.LabelPeering] == "" {
		return err
	}
	ctx, cancel := withTime(lock.Outside(ctx))
	defer cancel()
	return errors.Join(err, c.delete(ctx, created))
}

func isDefinition(u *unstructured.Unstructured) bool {
	return u.GetKind() == "CustomResourceDefinition"
}

func describe(obj client.Object) string {
	kind := kindName(obj)
	if ns := obj.GetNamespace(); ns != "" {
		return fmt.Sprintf("%s %s/%s", kind, ns, obj.GetName())
	}
	return fmt.Sprintf("%s %s", kind, obj.GetName())
}

// describeAll names the first one of several objects.
func describeAll(objs []manifests.Object) string {
	text := describe(objs[0])
	if others := len(objs) - 1; others > 0 {
		text += fmt.Sprintf(" and %d more", others)
	}
	return text
}

// delete removes the very object that was read, not one of the same name that
// somebody else created since. It does so as it was read first: another command that has overtaken this one may rely on it by now. If that is a
// conflict, the second request begins with a look at the lock.
func (c *Cluster) delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	uid, version := obj.GetUID(), obj.GetResourceVersion()
	opts = append(opts, client.PropagationPolicy(metav1.DeletePropagationBackground))
	err := retryOnConflict(func() error {
		err := c.Client.Delete(ctx, obj, append(slices.Clone(opts), client.Preconditions{UID: &uid, ResourceVersion: &version})...)
		if apierrors.IsConflict(err) {
			now := obj.DeepCopyObject().(client.Object)
			if readErr := c.Client.Get(ctx, client.ObjectKeyFromObject(obj), now); readErr != nil || now.GetUID() != uid {
				return readErr
			}
			version = now.GetResourceVersion()
		}
		return err
	})
	if absent(err) {
		return nil
	}
	return c.fail("delete "+describe(obj), err)
}
