package cli

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strconv"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/status"
)

// historyDocument is what status --history prints for programs.
type historyDocument struct {
	// Entries are sorted by time, by the clock of the first cluster's API server.
	Entries []status.HistoryEntry `json:"entries"`
	// Errors say which other sides could not be read, and what can be done.
	Errors []string `json:"errors,omitempty"`
}

// printHistory prints what has changed in the clusters.
func (g *globals) printHistory(ctx context.Context, read *statusRead, out *output) error {
	all, errs := inParallel(read.sides, func(s *side) ([]status.HistoryEntry, error) {
		entries, err := status.History(ctx, s.Cluster, read.sides[0].Cluster)
		return slices.DeleteFunc(entries, func(e status.HistoryEntry) bool {
			return s.isPeer && !slices.ContainsFunc(s.views, func(v status.View) bool { return v.Name == e.Peering })
		}), err
	})
	if err := cmp.Or(errs...); err != nil {
		return err
	}
	doc := &historyDocument{Entries: append([]status.HistoryEntry{}, slices.Concat(all...)...), Errors: read.doc.Errors}
	status.SortHistory(doc.Entries)
	return out.printEntries(g.streams.Out, doc)
}

func (o *output) printEntries(w io.Writer, doc *historyDocument) error {
	if !o.forPeople() {
		var names []string
		for _, e := range doc.Entries {
			names = append(names, "peering."+v1alpha1.GroupVersion.Group+"/"+e.Peering)
		}
		slices.Sort(names)
		return o.print(w, "History", doc, doc.Entries, slices.Compact(names))
	}
	if len(doc.Entries) == 0 {
		text{w}.printf("Nothing has changed yet.\n")
		return nil
	}
	var rows [][]any
	for _, e := range doc.Entries {
		plane := orDash(e.Plane, func(plane int32) string { return strconv.Itoa(int(plane)) })
		const layout = "2006-01-02 15:04:05.000Z"
		rows = append(rows, []any{
			e.Time.Format(layout), e.Cluster, e.Agent, e.Peering, plane, e.What, cmp.Or(e.From, "-") + " → " + e.To, e.Reason, e.AgentTime.Format(layout),
		})
	}
	o.printTable(w, []string{"time", "cluster", "agent", "peering", "plane", "what", "change", "reason", "+by its own clock"}, rows)
	return nil
}
