package peering

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

// Pair is two clusters to be peered.
type Pair [2]*kube.Cluster

func (p Pair) String() string { return p[0].Name + " - " + p[1].Name }

// Outcome is the outcome for one of several pairs.
type Outcome struct {
	Pair Pair
	// Result is the result of PeerAll.
	Result Result
	// Removed is the result of UnpeerAll, in the order of the pair.
	Removed [2]engine.Removed
	Err     error
}

// pairsAtOnce limits how many pairs are handled in parallel.
const pairsAtOnce = 8

// PeerAll peers all pairs. A pair that fails is rolled back, and does not stop the others. Ranges and indexes are
// allocated in the order of the pairs, as in a dry run. The gateways of all pairs start in parallel.
func PeerAll(ctx context.Context, pairs []Pair, o engine.Options, reporter func(Pair) kube.Reporter) []Outcome {
	tickets := newTickets(len(pairs))
	return forPairs(pairs, func(i int, out *Outcome) (err error) {
		p := newRun(out.Pair[0], out.Pair[1], o, reporter(out.Pair))
		p.ticket = tickets[i]
		defer p.ticket.release()
		out.Result, err = p.peer(ctx)
		return err
	})
}

// UnpeerAll removes the peerings of all pairs, as Unpeer does. A pair that fails does not stop the others.
func UnpeerAll(ctx context.Context, pairs []Pair, reporter func(Pair) kube.Reporter) []Outcome {
	return forPairs(pairs, func(_ int, out *Outcome) (err error) {
		out.Removed[0], out.Removed[1], err = Unpeer(ctx, out.Pair[0], out.Pair[1], reporter(out.Pair))
		return err
	})
}

// forPairs handles several pairs in parallel, and starts them in order.
func forPairs(pairs []Pair, do func(i int, out *Outcome) error) []Outcome {
	out := make([]Outcome, len(pairs))
	var g errgroup.Group
	g.SetLimit(pairsAtOnce)
	for i, pair := range pairs {
		out[i].Pair = pair
		g.Go(func() error {
			out[i].Err = failure.Caught(func() error { return do(i, &out[i]) })
			return nil
		})
	}
	_ = g.Wait() // errors are in the outcomes
	return out
}

// PlanAll returns what PeerAll would do, and changes nothing. It needs read permissions only, and marks as unclear
// what it may not read. Each plan builds on the outcome of the previous ones. An error is about the first pair that
// cannot be planned.
func PlanAll(ctx context.Context, pairs []Pair, o engine.Options, r kube.Reporter) ([]*plan.Plan, error) {
	plans := make([]*plan.Plan, 0, len(pairs))
	ledgers := map[string]*v1alpha1.ClusterNetwork{}
	made := map[string]bool{}
	step := "Reading both clusters"
	if len(pairs) > 1 {
		step = "Reading all clusters"
	}
	err := r.Step(ctx, step, func(ctx context.Context) error {
		for _, pair := range pairs {
			if pair[0].ID == pair[1].ID {
				return kube.SameCluster(pair[0], pair[1])
			}
			p := newRun(pair[0], pair[1], o, r)
			p.ledgers = ledgers
			err := failure.Caught(func() error { return p.dryRun(ctx) })
			if err != nil && len(pairs) > 1 {
				err = fmt.Errorf("%s: %w", pair, err)
			}
			if err != nil {
				return err
			}
			for _, c := range kube.Pointers(p.plan.Clusters[:]) {
				ledgers[c.ClusterID] = c.Ledger
				for _, object := range kube.Pointers(c.Objects) {
					key := fmt.Sprint(c.ClusterID, object.Kind, object.Namespace, object.Name)
					if made[key] && object.Kind != "ClusterNetwork" {
						object.Action, object.Reason = plan.Keep, object.Reason+"; by an earlier one of these plans"
					}
					made[key] = made[key] || object.Action != plan.Keep
				}
			}
			plans = append(plans, p.plan)
		}
		return nil
	})
	return plans, kube.ContextError(ctx, err)
}

// CountNodes returns the number of nodes in the clusters of all pairs. It serves to estimate timeouts, so it ignores
// clusters that do not respond.
func CountNodes(ctx context.Context, pairs []Pair) (nodes int64) {
	clusters := sets.New[*kube.Cluster]()
	for _, p := range pairs {
		clusters.Insert(p[:]...)
	}
	for c := range clusters {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
		if c.SkipReason == nil && c.Client.List(ctx, list, client.Limit(1)) == nil {
			nodes += int64(len(list.Items)) + ptr.Deref(list.RemainingItemCount, 0)
		}
	}
	return nodes
}

// dryRun makes a plan and compares it with the live objects.
func (p *run) dryRun(ctx context.Context) error {
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
	return failure.ForEach(ctx, kube.Pointers(objects), func(ctx context.Context, o *plan.ObjectPlan) (err error) {
		if o.Action == "" {
			o.Action, err = action(ctx, s, o, closer)
		}
		return err
	})
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
