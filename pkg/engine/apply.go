package engine

import (
	"cmp"
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// Apply applies objects that do not depend on each other, after recording their former state in the journal. Only
// applied fields count as changes, not what agents write.
func (s *Side) Apply(ctx context.Context, objs ...manifests.Object) error {
	if len(objs) == 0 {
		return nil
	}
	defer kube.StartWait(ctx, s.Name, "apply "+kube.DescribeAll(objs), "")()
	wants, lives := make([]*unstructured.Unstructured, len(objs)), make([]*unstructured.Unstructured, len(objs))
	reading, rctx := failure.NewGroup(ctx)
	for i, obj := range objs {
		reading.Go(func() (err error) {
			wants[i], lives[i], err = s.Read(rctx, obj)
			return err
		})
	}
	if err := reading.Wait(); err != nil {
		return err
	}
	var changes []Change
	for i, want := range wants {
		if !kube.Contains(lives[i].Object, want.Object) {
			changes = append(changes, newChange(lives[i], want))
		}
	}
	if err := s.Journal.record(ctx, changes...); err != nil {
		return err
	}
	applying, actx := failure.NewGroup(ctx)
	for i, want := range wants {
		if kube.IsDefinition(want) && !slices.ContainsFunc(changes, func(ch Change) bool { return ch.object().GetName() == want.GetName() }) {
			continue // large, and as expensive for an API server as a change
		}
		applying.Go(func() error {
			if objs[i].GetResourceVersion() != "" { // the caller has read it, and handles conflicts
				return s.applyAs(actx, want, objs[i])
			}
			return kube.RetryOnConflict(func() error {
				err := s.applyAs(actx, want, lives[i])
				if apierrors.IsConflict(err) {
					_, now, readErr := s.Read(actx, want)
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
		s.RecordChange(kube.Describe(ch.object()))
	}
	return nil
}

// applyAs applies an object if it is still at the version that was read, or still absent. Otherwise it is a conflict:
// this command may have been suspended while another one changed the object.
func (s *Side) applyAs(ctx context.Context, want *unstructured.Unstructured, read client.Object) error {
	u := want.DeepCopy() // the journal keeps want
	u.SetUID(read.GetUID())
	u.SetResourceVersion(cmp.Or(read.GetResourceVersion(), kube.AbsentVersion))
	if err := s.Write(ctx, u); err != nil {
		return err
	}
	if u.GetDeletionTimestamp() != nil {
		return s.Fail("apply "+kube.Describe(u), kube.ErrUninstalling)
	}
	if read.GetResourceVersion() == "" {
		return s.Recheck(ctx, u)
	}
	return nil
}
