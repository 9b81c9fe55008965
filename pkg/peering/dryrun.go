package peering

import (
	"context"
	"fmt"
	"reflect"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/plan"
)

// comparePlan says for each object what is to be done with it.
func (p *run) comparePlan(ctx context.Context) error {
	return p.both(ctx, func(ctx context.Context, s, peer *side) error {
		objs := p.planOf(s).Objects
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(8)
		for i := range objs {
			g.Go(func() (err error) {
				if objs[i].Action == "" {
					objs[i].Action, err = s.action(ctx, &objs[i], peer)
				}
				return err
			})
		}
		return g.Wait()
	})
}

// action compares an object with the one in the cluster.
func (s *side) action(ctx context.Context, o *plan.ObjectPlan, peer *side) (plan.Action, error) {
	want := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(o.Manifest)}
	var live client.Object = &unstructured.Unstructured{}
	if o.Kind == "Secret" {
		// What is in it is nobody's business.
		live = &metav1.PartialObjectMetadata{}
	}
	live.GetObjectKind().SetGroupVersionKind(want.GroupVersionKind())
	switch err := s.Client.Get(ctx, client.ObjectKeyFromObject(want), live); {
	case apierrors.IsForbidden(err):
		o.Reason += "; it may not be read"
		return plan.Unclear, nil
	case absent(err):
		return plan.Create, nil
	case err != nil:
		return "", s.fail(fmt.Sprintf("read %s", describe(want)), err)
	case !live.GetDeletionTimestamp().IsZero():
		return plan.Create, nil // when it is gone
	case o.Kind == "Secret":
		return plan.Keep, nil
	}
	if o.Kind == "Peering" {
		s.fillKeys(want, peer)
	}
	if contains(live.(*unstructured.Unstructured).Object, want.Object) {
		return plan.Keep, nil
	}
	return plan.Change, nil
}

// fillKeys puts the public keys of the peer's gateways into the places where the
// plan names them.
func (s *side) fillKeys(want *unstructured.Unstructured, peer *side) {
	planes, _, _ := unstructured.NestedSlice(want.Object, "spec", "planes")
	for _, item := range planes {
		plane := item.(map[string]any)
		index, _ := plane["index"].(int64)
		facts := peer.facts.Planes[int32(index)]
		key := facts.PublicKey
		if key == "" && facts.KeyUnreadable && s.facts.Existing != nil && s.facts.Existing.Plane(int32(index)) != nil {
			key = s.facts.Existing.Plane(int32(index)).RemotePublicKey
		}
		if key != "" {
			plane["remotePublicKey"] = key
		}
	}
	if len(planes) > 0 {
		_ = unstructured.SetNestedSlice(want.Object, planes, "spec", "planes")
	}
}

// contains says whether an object is as wanted: fields that are not mentioned are
// the API server's or somebody else's. Lists have to be equally long.
func contains(have, want any) bool {
	switch want := want.(type) {
	case nil:
		return true
	case map[string]any:
		got, ok := have.(map[string]any)
		if !ok {
			return len(want) == 0 && have == nil
		}
		for k, v := range want {
			if !contains(got[k], v) {
				return false
			}
		}
		return true
	case []any:
		got, ok := have.([]any)
		if !ok || len(got) != len(want) {
			return len(want) == 0 && have == nil
		}
		for i := range want {
			if !contains(got[i], want[i]) {
				return false
			}
		}
		return true
	case int64, float64:
		return fmt.Sprint(have) == fmt.Sprint(want)
	default:
		return reflect.DeepEqual(have, want)
	}
}
