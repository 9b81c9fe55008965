package cli

import (
	"io"
	"path"
	"slices"
	"strings"

	"github.com/samber/lo"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
)

// changedOf returns the names of the objects of a cluster that would be created, changed or deleted, each after the cluster's name.
func changedOf(cluster string, objects []plan.ObjectPlan) []string {
	return lo.FilterMap(objects, func(o plan.ObjectPlan, _ int) (string, bool) {
		gk := schema.FromAPIVersionAndKind(o.APIVersion, o.Kind).GroupKind()
		return cluster + " " + strings.ToLower(gk.Kind) + strings.TrimSuffix("."+gk.Group, ".") + "/" + o.Name, o.Action != plan.Keep
	})
}

// printPlans prints all plans.
func printPlans(o *output.Format, w io.Writer, plans []*plan.Plan) error {
	if !o.HumanReadable() {
		names := lo.FlatMap(plans, func(p *plan.Plan, _ int) []string {
			return slices.Concat(changedOf(p.Clusters[0].Cluster, p.Clusters[0].Objects), changedOf(p.Clusters[1].Cluster, p.Clusters[1].Objects))
		})
		return o.Print(w, "Plan", map[string]any{"plans": plans}, plans, names)
	}
	for _, p := range plans {
		printPlan(o, w, p)
	}
	return nil
}

// printPlan prints a plan as tables.
func printPlan(o *output.Format, w io.Writer, p *plan.Plan) {
	a, b := &p.Clusters[0], &p.Clusters[1]
	output.To(w).Printf("Plan to peer %s and %s; nothing was changed.\n", a.Cluster, b.Cluster)
	for _, c := range []*plan.ClusterPlan{a, b} {
		output.To(w).Printf("\nCluster %s (%s)\n", c.Cluster, c.ClusterID)
		o.Section(w, []string{"known", "value", "from"}, statements(c.Facts))
		o.Section(w, []string{"chosen", "value", "because"}, statements(c.Choices))
		o.Section(w, []string{"key", "value", "because"}, statements(c.Keys))
		o.Section(w, []string{"called at", "value", "because"}, statements(c.Endpoints))
		o.Section(w, []string{"range", "real", "here", "because"}, lo.Map(c.Ranges, func(r plan.RangePlan, _ int) []any {
			real, mapped := r.Real.String(), r.Mapped.String()
			if r.DuringRun {
				real, mapped = "-", "-"
			}
			return []any{r.What, real, mapped, remark(r.Reason, r.Assumed, r.DuringRun)}
		}))
		o.Section(w, []string{"action", "object", "what for"}, objectRows(c.Objects))
		output.To(w).PrintEach("Note: %s\n", slices.Concat(c.Warnings, c.Notes))
	}
	if p.Changes() == 0 {
		output.To(w).Printf("\n%s and %s are peered as planned: nothing would be changed.\n", a.Cluster, b.Cluster)
		return
	}
	output.To(w).Printf("\n%d objects would be created or changed. To do so, run the command without --dry-run.\n", p.Changes())
}

// printRemovals prints what unpeer would delete.
func printRemovals(o *output.Format, w io.Writer, removals []peering.Removal) error {
	if !o.HumanReadable() {
		names := lo.FlatMap(removals, func(r peering.Removal, _ int) []string { return changedOf(r.Cluster, r.Objects) })
		return o.Print(w, "UnpeerPlan", map[string]any{"clusters": removals}, removals, names)
	}
	for _, r := range removals {
		if r.Refused != "" {
			output.To(w).Printf("Cluster %s: its objects are not listed: %s.\n\n", r.Cluster, r.Refused)
			continue
		}
		agents := lo.Ternary(r.Agents, "no peering remains, and so no agents", "the node agents stay, as other peerings need them")
		output.To(w).Printf("Cluster %s (%s): %s.\n", r.Cluster, r.ClusterID, agents)
		o.Section(w, []string{"action", "object", "what for"}, objectRows(r.Objects))
		output.To(w).Printf("\n")
	}
	count := lo.SumBy(removals, func(r peering.Removal) int { return len(r.Objects) })
	output.To(w).Printf("%d objects would be deleted; nothing was changed. To do so, run the command without --dry-run.\n", count)
	return nil
}

func statements(in []plan.Statement) [][]any {
	return lo.Map(in, func(s plan.Statement, _ int) []any {
		return []any{s.What, s.Value.String(), remark(s.Reason, s.Assumed, s.DuringRun)}
	})
}

func objectRows(objects []plan.ObjectPlan) [][]any {
	return lo.Map(objects, func(o plan.ObjectPlan, _ int) []any {
		reason := o.Reason
		if o.MadeBy != "" {
			reason += "; made by " + o.MadeBy
		}
		return []any{o.Action, o.Kind + " " + path.Join(o.Namespace, o.Name), reason}
	})
}

// remark returns the reason, prefixed with how certain it is.
func remark(reason string, assumed, duringRun bool) string {
	if assumed {
		reason = "assumed: " + reason
	}
	if duringRun {
		reason = "known during the run: " + reason
	}
	return reason
}
