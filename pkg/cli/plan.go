package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/peering"
)

// planDocument is what peer --dry-run -o json and yaml print.
type planDocument struct {
	Plans []*peering.Plan `json:"plans"`
}

// printDocument prints JSON or YAML.
func printDocument(w io.Writer, format string, doc any) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(doc)
	}
	out, err := yaml.Marshal(doc)
	if err != nil {
		return err
	}
	_, err = w.Write(out)
	return err
}

// printPlan shows a plan to people.
func printPlan(w io.Writer, p *peering.Plan) error {
	a, b := &p.Clusters[0], &p.Clusters[1]
	fmt.Fprintf(w, "Plan to peer %s and %s; nothing was changed.\n", a.Cluster, b.Cluster)
	for _, c := range []*peering.ClusterPlan{a, b} {
		fmt.Fprintf(w, "\nCluster %s (%s)\n", c.Cluster, c.ClusterID)
		for _, table := range []struct {
			head []string
			rows []peering.Statement
		}{
			{[]string{"KNOWN", "VALUE", "FROM"}, c.Facts},
			{[]string{"CHOSEN", "VALUE", "BECAUSE"}, c.Choices},
			{[]string{"KEY", "VALUE", "BECAUSE"}, c.Keys},
			{[]string{"CALLED AT", "VALUE", "BECAUSE"}, c.Endpoints},
		} {
			var rows [][]string
			for _, s := range table.rows {
				rows = append(rows, []string{s.What, s.Value, remark(s.Reason, s.Assumed, s.DuringRun)})
			}
			if err := printRows(w, table.head, rows); err != nil {
				return err
			}
		}
		var rows [][]string
		for _, r := range c.Ranges {
			rows = append(rows, []string{r.What, r.Real.String(), r.Mapped.String(), remark(r.Reason, r.Assumed, false)})
		}
		if err := printRows(w, []string{"RANGE", "REAL", "HERE", "BECAUSE"}, rows); err != nil {
			return err
		}
		rows = nil
		for _, o := range c.Objects {
			object := o.Kind + " " + o.Name
			if o.Namespace != "" {
				object = o.Kind + " " + o.Namespace + "/" + o.Name
			}
			reason := o.Reason
			if o.MadeBy != "" {
				reason += "; made by " + o.MadeBy
			}
			rows = append(rows, []string{string(o.Action), object, reason})
		}
		if err := printRows(w, []string{"ACTION", "OBJECT", "WHAT FOR"}, rows); err != nil {
			return err
		}
		for _, warning := range c.Warnings {
			fmt.Fprintf(w, "  Note: %s\n", warning)
		}
	}
	if p.Changes() == 0 {
		fmt.Fprintf(w, "\n%s and %s are peered just so: nothing would be changed.\n", a.Cluster, b.Cluster)
		return nil
	}
	fmt.Fprintf(w, "\n%d objects would be made or changed: the same command without --dry-run does it.\n", p.Changes())
	return nil
}

func remark(reason string, assumed, duringRun bool) string {
	if assumed {
		reason = "assumed: " + reason
	}
	if duringRun {
		reason = "known during the run: " + reason
	}
	return reason
}

func printRows(w io.Writer, head []string, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		fmt.Fprintln(t, "  "+strings.Join(row, "\t"))
	}
	return t.Flush()
}
