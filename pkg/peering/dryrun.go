package peering

import (
	"context"
	"fmt"
	"maps"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/manifests"
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
	if unclear != nil {
		c := &p.plan.Clusters[0]
		c.Warnings = append(c.Warnings, fmt.Sprintf("whether both clusters are still those that were peered is not clear: %v", unclear))
	}
	return p.comparePlan(ctx)
}

// comparePlan says for each object what is to be done with it.
func (p *run) comparePlan(ctx context.Context) error {
	return p.both(ctx, func(ctx context.Context, s, peer *side) error {
		c := p.planOf(s)
		s.fillKeys(c.Peering, peer)
		g, ctx := failure.NewGroup(ctx)
		g.SetLimit(8)
		for i := range c.Objects {
			g.Go(func() (err error) {
				if o := &c.Objects[i]; o.Action == "" {
					o.Action, err = s.action(ctx, o, c.Peering)
				}
				return err
			})
		}
		return g.Wait()
	})
}

// action compares an object with the one in the cluster. The Peering is compared with
// the keys that are known, which the plan only names, or as it is in the plan if that one is nil.
func (s *side) action(ctx context.Context, o *plan.ObjectPlan, peering *v1alpha1.Peering) (plan.Action, error) {
	if o.Kind == "Secret" {
		return s.actionOnSecret(ctx, o)
	}
	manifest := maps.Clone(o.Manifest)
	if o.Kind == "Peering" && peering != nil {
		filled, err := manifests.ToApply(peering)
		if err != nil {
			return "", err
		}
		manifest["spec"] = filled.Object["spec"]
	}
	switch want, live, err := s.read(ctx, &unstructured.Unstructured{Object: manifest}); {
	case apierrors.IsForbidden(err):
		o.Reason += unreadable
		return plan.Unclear, nil
	case err != nil:
		return "", err
	case live.GetResourceVersion() == "", live.GetDeletionTimestamp() != nil:
		return plan.Create, nil
	case contains(live.Object, want.Object):
		return plan.Keep, nil
	}
	return plan.Change, nil
}

// actionOnSecret reads no key: what is in a Secret is never changed.
func (s *side) actionOnSecret(ctx context.Context, o *plan.ObjectPlan) (plan.Action, error) {
	switch live, err := s.readSecret(ctx, o.Name); {
	case apierrors.IsForbidden(err):
		o.Reason += unreadable
		return plan.Unclear, nil
	case err != nil:
		return "", err
	case live == nil || live.DeletionTimestamp != nil:
		return plan.Create, nil
	}
	return plan.Keep, nil
}

// unreadable is added to the reason of what is unclear.
const unreadable = "; it may not be read"

// fillKeys puts the public keys of the peer's gateways into the Peering, as far as they
// are known. If the user may not read them they are taken for unchanged.
func (s *side) fillKeys(p *v1alpha1.Peering, peer *side) {
	for i := range p.Spec.Planes {
		plane := &p.Spec.Planes[i]
		facts := peer.facts.Planes[plane.Index]
		if facts.PublicKey != "" {
			plane.RemotePublicKey = facts.PublicKey
		} else if facts.KeyUnreadable && s.facts.Existing != nil && s.facts.Existing.Plane(plane.Index) != nil {
			plane.RemotePublicKey = s.facts.Existing.Plane(plane.Index).RemotePublicKey
		}
	}
}

// contains says whether an object is as wanted: fields that are not mentioned are
// the API server's or somebody else's. Lists have to be equally long.
func contains(have, want any) bool {
	switch want := want.(type) {
	case nil:
		return true
	case map[string]any:
		got, _ := have.(map[string]any)
		for k, v := range want {
			if !contains(got[k], v) {
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
