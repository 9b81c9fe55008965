package cli

import (
	"io"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liqonet/liqonet/pkg/plan"
)

// changedObjects are the names of those that would be made, changed or deleted.
func changedObjects(plans []*plan.Plan) (out []string) {
	for _, p := range plans {
		for _, c := range p.Clusters {
			out = append(out, changedOf(c.Objects)...)
		}
	}
	return out
}

func changedOf(objects []plan.ObjectPlan) (out []string) {
	for _, o := range objects {
		if o.Action != plan.Keep {
			gk := schema.FromAPIVersionAndKind(o.APIVersion, o.Kind).GroupKind()
			out = append(out, strings.ToLower(gk.Kind)+strings.TrimSuffix("."+gk.Group, ".")+"/"+o.Name)
		}
	}
	return out
}

// printPlans prints all plans.
func (o *output) printPlans(w io.Writer, plans []*plan.Plan) error {
	if !o.forPeople() {
		return o.print(w, "Plan", map[string]any{"plans": plans}, plans, changedObjects(plans))
	}
	for _, p := range plans {
		o.printPlan(w, p)
	}
	return nil
}

// printPlan shows a plan to people.
func (o *output) printPlan(w io.Writer, p *plan.Plan) {
	a, b := &p.Clusters[0], &p.Clusters[1]
	text{w}.printf("Plan to peer %s and %s; nothing was changed.\n", a.Cluster, b.Cluster)
	for _, c := range []*plan.ClusterPlan{a, b} {
		text{w}.printf("\nCluster %s (%s)\n", c.Cluster, c.ClusterID)
		var ranges [][]any
		for _, r := range c.Ranges {
			real, mapped := r.Real.String(), r.Mapped.String()
			if r.DuringRun {
				real, mapped = "-", "-"
			}
			ranges = append(ranges, []any{r.What, real, mapped, remark(r.Reason, r.Assumed, r.DuringRun)})
		}
		o.printTables(w, []planTable{
			{[]string{"known", "value", "from"}, statements(c.Facts)},
			{[]string{"chosen", "value", "because"}, statements(c.Choices)},
			{[]string{"key", "value", "because"}, statements(c.Keys)},
			{[]string{"called at", "value", "because"}, statements(c.Endpoints)},
			{[]string{"range", "real", "here", "because"}, ranges},
			{[]string{"action", "object", "what for"}, objectRows(c.Objects)},
		})
		text{w}.printNotes(slices.Concat(c.Warnings, c.Notes))
	}
	if p.Changes() == 0 {
		text{w}.printf("\n%s and %s are peered just so: nothing would be changed.\n", a.Cluster, b.Cluster)
		return
	}
	text{w}.printf("\n%d objects would be made or changed: the same command without --dry-run does it.\n", p.Changes())
}

// planTable is a part of a plan.
type planTable struct {
	head []string
	rows [][]any
}

// printTables prints those that have rows.
func (o *output) printTables(w io.Writer, tables []planTable) {
	for _, table := range tables {
		if len(table.rows) > 0 {
			text{w}.printf("\n")
			o.printTable(w, table.head, table.rows)
		}
	}
}

func statements(in []plan.Statement) (rows [][]any) {
	for _, s := range in {
		rows = append(rows, []any{s.What, s.Value.String(), remark(s.Reason, s.Assumed, s.DuringRun)})
	}
	return rows
}

func objectRows(objects []plan.ObjectPlan) (rows [][]any) {
	for _, obj := range objects {
		reason := obj.Reason
		if obj.MadeBy != "" {
			reason += "; made by " + obj.MadeBy
		}
		rows = append(rows, []any{obj.Action, obj.Kind + " " + path.Join(obj.Namespace, obj.Name), reason})
	}
	return rows
}

// remark is a reason, and how certain it is.
func remark(reason string, assumed, duringRun bool) string {
	if assumed {
		reason = "assumed: " + reason
	}
	if duringRun {
		reason = "known during the run: " + reason
	}
	return reason
}
