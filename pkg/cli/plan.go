package cli

import (
	"io"
	"path"
	"slices"
	"strings"

	"github.com/samber/lo"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liqonet/liqonet/pkg/plan"
)

// changedOf returns the names of the objects that would be created, changed or deleted.
func changedOf(objects []plan.ObjectPlan) []string {
	return lo.FilterMap(objects, func(o plan.ObjectPlan, _ int) (string, bool) {
		gk := schema.FromAPIVersionAndKind(o.APIVersion, o.Kind).GroupKind()
		return strings.ToLower(gk.Kind) + strings.TrimSuffix("."+gk.Group, ".") + "/" + o.Name, o.Action != plan.Keep
	})
}

// printPlans prints all plans.
func (o *output) printPlans(w io.Writer, plans []*plan.Plan) error {
	if !o.humanReadable() {
		objects := lo.FlatMap(plans, func(p *plan.Plan, _ int) []plan.ObjectPlan {
			return slices.Concat(p.Clusters[0].Objects, p.Clusters[1].Objects)
		})
		return o.print(w, "Plan", map[string]any{"plans": plans}, plans, changedOf(objects))
	}
	for _, p := range plans {
		o.printPlan(w, p)
	}
	return nil
}

// printPlan prints a plan as tables.
func (o *output) printPlan(w io.Writer, p *plan.Plan) {
	a, b := &p.Clusters[0], &p.Clusters[1]
	text{w}.printf("Plan to peer %s and %s; nothing was changed.\n", a.Cluster, b.Cluster)
	for _, c := range []*plan.ClusterPlan{a, b} {
		text{w}.printf("\nCluster %s (%s)\n", c.Cluster, c.ClusterID)
		o.printSection(w, []string{"known", "value", "from"}, statements(c.Facts))
		o.printSection(w, []string{"chosen", "value", "because"}, statements(c.Choices))
		o.printSection(w, []string{"key", "value", "because"}, statements(c.Keys))
		o.printSection(w, []string{"called at", "value", "because"}, statements(c.Endpoints))
		o.printSection(w, []string{"range", "real", "here", "because"}, lo.Map(c.Ranges, func(r plan.RangePlan, _ int) []any {
			real, mapped := r.Real.String(), r.Mapped.String()
			if r.DuringRun {
				real, mapped = "-", "-"
			}
			return []any{r.What, real, mapped, remark(r.Reason, r.Assumed, r.DuringRun)}
		}))
		o.printSection(w, []string{"action", "object", "what for"}, objectRows(c.Objects))
		text{w}.printEach("Note: %s\n", slices.Concat(c.Warnings, c.Notes))
	}
	if p.Changes() == 0 {
		text{w}.printf("\n%s and %s are peered as planned: nothing would be changed.\n", a.Cluster, b.Cluster)
		return
	}
	text{w}.printf("\n%d objects would be created or changed. To do so, run the command without --dry-run.\n", p.Changes())
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
