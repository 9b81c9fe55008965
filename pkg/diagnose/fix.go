package diagnose

import (
	"cmp"
	"context"
	"slices"

	"github.com/samber/lo"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
)

// fixedByPeer are the checks whose findings peer repairs.
var fixedByPeer = []string{
	"liqonet-definition-01", "liqonet-permission-02", "liqonet-secret-01", "liqonet-agent-01", "liqonet-key-01",
	"liqonet-range-01", "liqonet-range-02", "liqonet-drift-01",
}

// Fix removes our leftovers, and repeats peer for pairs of clusters whose objects need repair. It returns a list of changes.
func Fix(ctx context.Context, clusters []*kube.Cluster, facts *doctor.Facts, report *check.Report, r kube.Reporter) (fixed []string, err error) {
	for i, c := range clusters {
		f := facts.Clusters[i]
		if len(f.Ours.Leftovers) == 0 {
			continue
		}
		err := r.Step(ctx, "Removing leftovers in "+c.Name, func(ctx context.Context) error { return RemoveLeftovers(ctx, c, f, r) })
		if err != nil {
			return fixed, err
		}
		for _, what := range f.Ours.Leftovers {
			fixed = append(fixed, c.Name+": removed "+what)
		}
	}
	var pairs []peering.Pair
	for i, a := range clusters {
		for k := i + 1; k < len(clusters); k++ {
			b := clusters[k]
			if peered(facts.Clusters[i], b.ID) && peered(facts.Clusters[k], a.ID) && (broken(report, a.Name) || broken(report, b.Name)) {
				pairs = append(pairs, peering.Pair{a, b})
			}
		}
	}
	for _, out := range peering.PeerAll(ctx, pairs, engine.Options{}, func(peering.Pair) kube.Reporter { return r }) {
		if out.Err != nil {
			return fixed, out.Err
		}
		fixed = append(fixed, out.Result.Changed...)
	}
	for i, c := range clusters { // even if the command line does not name the peers
		if facts.Clusters[i].Ledger != nil {
			engine.CompleteIfPossible(ctx, c, r)
		}
	}
	return fixed, nil
}

// peered reports whether the ledger has an entry for the peer.
func peered(c *doctor.Cluster, peerID string) bool {
	return c.Ledger != nil && plan.Allocation(c.Ledger, peerID) != nil
}

// broken reports whether the cluster has a finding that peer repairs.
func broken(r *check.Report, cluster string) bool {
	return slices.ContainsFunc(r.Checks, func(c check.Check) bool {
		return slices.Contains(fixedByPeer, c.Name) && slices.ContainsFunc(c.Findings, func(f check.Finding) bool { return f.Cluster == cluster && f.Result.Bad() })
	})
}

// RemoveLeftovers removes objects that belong to no peering. If there is no peering, it removes everything.
func RemoveLeftovers(ctx context.Context, c *kube.Cluster, f *doctor.Cluster, r kube.Reporter) error {
	if err := engine.CheckVersion(ctx, c); err != nil {
		return err
	}
	if f.Ledger == nil || len(f.Ledger.Spec.Peers) == 0 {
		_, err := engine.RemoveUnused(ctx, c, r)
		return err
	}
	all := []lock.Cluster{engine.LockOf(c, "")}
	return engine.UnderLocks(ctx, "doctor --fix", r.Step, all, func(ctx context.Context) error { return removeLost(ctx, c) })
}

// removeLost removes objects that belong to no peering. The caller holds the cluster's lock.
func removeLost(ctx context.Context, c *kube.Cluster) error {
	cn, err := c.Ledger(ctx)
	if cn == nil || err != nil {
		return err
	}
	lost, err := lost(ctx, c, cn)
	for _, name := range lo.UniqMap(lost, func(o client.Object, _ int) string { return o.GetLabels()[v1alpha1.LabelPeering] }) {
		err = cmp.Or(err, engine.DeleteAll(ctx, c, kube.PeeringLabels(name)))
	}
	return err
}

// lost returns the objects of peerings that are not in the ledger. The garbage collector deletes objects whose owner is gone.
func lost(ctx context.Context, c *kube.Cluster, cn *v1alpha1.ClusterNetwork) (out []client.Object, err error) {
	for _, list := range append(engine.Workloads(), engine.Accounts()...) {
		objs, err := c.ListManaged(ctx, list, nil)
		if err != nil {
			return nil, err
		}
		out = append(out, lo.Filter(objs, func(o client.Object, _ int) bool {
			name := o.GetLabels()[v1alpha1.LabelPeering]
			return name != "" && !slices.ContainsFunc(cn.Spec.Peers, func(p v1alpha1.PeerAllocation) bool { return p.Name == name })
		})...)
	}
	return out, nil
}
