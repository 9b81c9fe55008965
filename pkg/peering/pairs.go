package peering

import (
	"context"
	"fmt"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
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
		defer tickets[i].release()
		out.Result, err = connect(ctx, out.Pair[0], out.Pair[1], o, reporter(out.Pair), tickets[i])
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
	_ = failure.ForEachAtMost(context.Background(), pairsAtOnce, pairs, func(_ context.Context, i int, pair Pair) error {
		out[i].Pair = pair
		out[i].Err = failure.Caught(func() error { return do(i, &out[i]) })
		return nil
	})
	return out
}

// PlanAll returns what PeerAll would do, and changes nothing. It needs read permissions only, and marks as unclear
// what it may not read. Each plan builds on the outcome of the previous ones. An error is about the first pair that
// cannot be planned.
func PlanAll(ctx context.Context, pairs []Pair, o engine.Options, r kube.Reporter) ([]*plan.Plan, error) {
	plans := make([]*plan.Plan, 0, len(pairs))
	ledgers := map[string]*v1alpha1.ClusterNetwork{}
	made := map[string]bool{}
	name := lo.Ternary(len(pairs) > 1, "Reading all clusters", "Reading both clusters")
	err := r.Step(ctx, name, func(ctx context.Context) error {
		for _, pair := range pairs {
			if pair[0].ID == pair[1].ID {
				return kube.SameCluster(pair[0], pair[1])
			}
			p := newRun(pair[0], pair[1], o, r)
			p.ledgers = ledgers
			if err := failure.InOrder(ctx, p.dryRun); err != nil && len(pairs) > 1 {
				return fmt.Errorf("%s: %w", pair, err)
			} else if err != nil {
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
	for _, c := range lo.Uniq(lo.FlatMap(pairs, func(p Pair, _ int) []*kube.Cluster { return p[:] })) {
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
	compare := func(ctx context.Context, s, _ *engine.Side) error {
		return compareObjects(ctx, s, p.planOf(s).Objects, false)
	}
	if err := failure.InOrder(ctx, p.observe, p.onBoth(compare)); err != nil {
		return err
	}
	if unclear != nil {
		c := &p.plan.Clusters[0]
		c.Warnings = append(c.Warnings, fmt.Sprintf("whether both clusters are still those that were peered is not clear: %v", unclear))
	}
	return nil
}
