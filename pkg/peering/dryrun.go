package peering

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/plan"
)

// dryRun makes a plan, and compares it with what is there.
func (p *run) dryRun(ctx context.Context) error {
	if err := p.both(ctx, func(ctx context.Context, s, _ *side) error { return s.checkVersion(ctx) }); err != nil {
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

// compared returns the plan with what is to be done with each object.
func (p *run) compared(ctx context.Context) (*plan.Plan, error) {
	out := &plan.Plan{Clusters: p.plan.Clusters}
	return out, p.both(ctx, func(ctx context.Context, s, _ *side) error {
		c := &out.Clusters[s.index]
		c.Objects = slices.Clone(c.Objects)
		return s.compare(ctx, c.Objects, func(context.Context, *unstructured.Unstructured, *unstructured.Unstructured) error { return nil })
	})
}

// compare says what is to be done with each object, and looks closer at those that are changed.
func (s *side) compare(ctx context.Context, objects []plan.ObjectPlan, closer func(ctx context.Context, want, live *unstructured.Unstructured) error) error {
	g, ctx := failure.NewGroup(ctx)
	g.SetLimit(8)
	for i := range objects {
		g.Go(func() (err error) {
			if o := &objects[i]; o.Action == "" {
				o.Action, err = s.action(ctx, o, closer)
			}
			return err
		})
	}
	return g.Wait()
}

// action compares an object with the one in the cluster. What is not known yet is another value.
func (s *side) action(ctx context.Context, o *plan.ObjectPlan, closer func(ctx context.Context, want, live *unstructured.Unstructured) error) (plan.Action, error) {
	if o.Kind == "Secret" {
		return s.actionOnSecret(ctx, o)
	}
	switch want, live, err := s.read(ctx, &unstructured.Unstructured{Object: o.Manifest}); {
	case apierrors.IsForbidden(err):
		o.Reason += unreadable
		return plan.Unclear, nil
	case err != nil:
		return "", err
	case live.GetResourceVersion() == "", live.GetDeletionTimestamp() != nil:
		return plan.Create, nil
	case contains(live.Object, want.Object):
		return plan.Keep, nil
	default:
		return plan.Change, closer(ctx, want, live)
	}
}

// actionOnSecret reads no key: what is in a Secret is never changed, but its owner.
func (s *side) actionOnSecret(ctx context.Context, o *plan.ObjectPlan) (plan.Action, error) {
	switch live, err := s.readSecret(ctx, o.Name); {
	case apierrors.IsForbidden(err):
		o.Reason += unreadable
		return plan.Unclear, nil
	case err != nil:
		return "", err
	case live == nil || live.DeletionTimestamp != nil:
		return plan.Create, nil
	case live.Labels[v1alpha1.LabelPlane] != "" && !owns(s.facts.Owner, live):
		return plan.Change, nil
	}
	return plan.Keep, nil
}

// unreadable is added to the reason of what is unclear.
const unreadable = "; it may not be read"

// isWhole says that whoever applies a field applies all of it, so that what is left out of it is gone.
func isWhole(field string) bool { return field == "nodeSelector" || field == "tolerations" }

// contains says whether an object is as wanted: fields that are not mentioned are
// the API server's or somebody else's. Lists have to be equally long, and what isWhole the same.
func contains(have, want any) bool {
	switch want := want.(type) {
	case nil:
		return true
	case map[string]any:
		got, _ := have.(map[string]any)
		for k, v := range want {
			if !contains(got[k], v) || isWhole(k) && !contains(v, got[k]) {
				return false
			}
		}
		return true
	case []any:
		got, _ := have.([]any)
		if len(got) != len(want) {
			return false
		}
		for i := range want {
			if !contains(got[i], want[i]) {
				return false
			}
		}
		return true
	case int64:
		return contains(have, float64(want))
	case float64:
		if n, ok := have.(int64); ok {
			have = float64(n) // large ones differ when they are printed
		}
		return reflect.DeepEqual(have, want)
	default:
		return reflect.DeepEqual(have, want)
	}
}
