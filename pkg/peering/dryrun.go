package peering

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

// dryRun makes a plan and compares it with the live objects.
func (p *run) dryRun(ctx context.Context) error {
	if err := p.forEachSide(ctx, func(ctx context.Context, s, _ *engine.Side) error { return engine.CheckVersion(ctx, s.Cluster) }); err != nil {
		return err
	}
	unclear, err := p.recognise(ctx)
	if err != nil {
		return err
	}
	if err := p.observe(ctx); err != nil {
		return err
	}
	if p.plan, err = p.compared(ctx); err == nil && unclear != nil {
		c := &p.plan.Clusters[0]
		c.Warnings = append(slices.Clone(c.Warnings), fmt.Sprintf("whether both clusters are still those that were peered is not clear: %v", unclear))
	}
	return err
}

// compared returns the plan with an action for each object.
func (p *run) compared(ctx context.Context) (*plan.Plan, error) {
	out := &plan.Plan{Clusters: p.plan.Clusters}
	return out, p.forEachSide(ctx, func(ctx context.Context, s, _ *engine.Side) error {
		c := &out.Clusters[s.Index]
		c.Objects = slices.Clone(c.Objects)
		return compareObjects(ctx, s, c.Objects, func(context.Context, *unstructured.Unstructured, *unstructured.Unstructured) error { return nil })
	})
}

// compareObjects sets the action of each object, and calls closer for those that change.
func compareObjects(ctx context.Context, s *engine.Side, objects []plan.ObjectPlan, closer func(ctx context.Context, want, live *unstructured.Unstructured) error) error {
	g, ctx := failure.NewGroup(ctx)
	g.SetLimit(8)
	for i := range objects {
		g.Go(func() (err error) {
			if o := &objects[i]; o.Action == "" {
				o.Action, err = action(ctx, s, o, closer)
			}
			return err
		})
	}
	return g.Wait()
}

// action compares an object with the live one. Values that are not yet known count as changed.
func action(ctx context.Context, s *engine.Side, o *plan.ObjectPlan, closer func(ctx context.Context, want, live *unstructured.Unstructured) error) (plan.Action, error) {
	if o.Kind == "Secret" {
		return actionOnSecret(ctx, s, o)
	}
	switch want, live, err := s.Read(ctx, &unstructured.Unstructured{Object: o.Manifest}); {
	case apierrors.IsForbidden(err):
		o.Reason += unreadable
		return plan.Unclear, nil
	case err != nil:
		return "", err
	case live.GetResourceVersion() == "", live.GetDeletionTimestamp() != nil:
		return plan.Create, nil
	case kube.Contains(live.Object, want.Object):
		return plan.Keep, nil
	default:
		return plan.Change, closer(ctx, want, live)
	}
}

// actionOnSecret reads only metadata: the data of a Secret never changes, but its owner may.
func actionOnSecret(ctx context.Context, s *engine.Side, o *plan.ObjectPlan) (plan.Action, error) {
	switch live, err := s.ReadSecret(ctx, o.Name); {
	case apierrors.IsForbidden(err):
		o.Reason += unreadable
		return plan.Unclear, nil
	case err != nil:
		return "", err
	case live == nil || live.DeletionTimestamp != nil:
		return plan.Create, nil
	case live.Labels[v1alpha1.LabelPlane] != "" && !status.Owns(s.Facts.Owner, live):
		return plan.Change, nil
	}
	return plan.Keep, nil
}

// unreadable is appended to the reason of unclear objects.
const unreadable = "; it may not be read"
