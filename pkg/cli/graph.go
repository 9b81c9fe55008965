package cli

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/status"
)

// graphFormats maps the values of --output to functions that draw clusters and their peerings.
var graphFormats = map[string]func([]status.View) string{"text": drawTrees, "dot": drawGraph}

func newGraph(g *globals) *cobra.Command {
	format := &enumFlag{"text", "format", []string{"text", "dot"}}
	cmd := &cobra.Command{
		Use:   "graph [CLUSTER…]",
		Short: "Draw clusters and their peerings",
		Long: `Draw clusters and their peerings, as read by status: the named clusters or, by
default, the current context and its peers.

The exit code is the same as that of status.`,
		Example: `  kubectl liqonet graph cluster-a cluster-b
  kubectl liqonet graph cluster-a -o dot > peerings.dot`,
		ValidArgsFunction: g.completeContexts(math.MaxInt),
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := g.readStatus(cmd.Context(), args)
			if err != nil {
				return err
			}
			return g.showStatus(s, func() error {
				output.To(g.streams.Out).Printf("%s", output.Lines(graphFormats[cmp.Or(format.value, "text")](s.doc.Peerings)))
				return nil
			})
		},
	}
	cmd.Flags().VarP(format, "output", "o", "text or dot (of Graphviz)")
	addContext(cmd.Flags(), &g.source)
	return addTimeout(cmd, 15*time.Second)
}

// severity ranks states. The worst state has the highest rank.
func severity(s status.State) int {
	return slices.Index([]status.State{status.Connected, status.Degraded, status.Unknown, status.Disconnected, status.Orphaned}, s)
}

// edgeColor returns the color of an edge for a state.
func edgeColor(s status.State) string {
	return []string{"#2e7d32", "#ef6c00", "#757575", "#c62828", "#c62828"}[max(severity(s), 0)]
}

// labelOf returns the label of an edge.
func labelOf(v status.View) string {
	connected := lo.Filter(v.Planes, func(p status.PlaneView, _ int) bool { return p.Connected })
	out := fmt.Sprintf("%s, %d of %d planes", v.State, len(connected), len(v.Planes))
	if measured, is := lo.Find(connected, func(p status.PlaneView) bool { return p.RTT != nil }); is {
		out += ", " + inMilliseconds(measured.RTT)
	}
	return out
}

// drawTrees draws a tree for each cluster.
func drawTrees(views []status.View) string {
	if len(views) == 0 {
		return "No peerings.\n"
	}
	var out strings.Builder
	for _, seen := range lo.PartitionBy(sortedByCluster(views), func(v status.View) string { return v.Cluster }) {
		output.To(&out).Printf("%s\n", seen[0].Cluster)
		for i, v := range seen {
			branch := lo.Ternary(i+1 == len(seen), "└──", "├──")
			output.To(&out).Printf("%s %s: %s\n", branch, output.OneLine(v.Peer), labelOf(v))
		}
	}
	return out.String()
}

// drawGraph draws clusters as nodes and peerings as edges, for Graphviz. It identifies clusters by ID.
func drawGraph(views []status.View) string {
	names := map[string]string{}
	for _, v := range views {
		names[v.PeerID] = cmp.Or(names[v.PeerID], output.OneLine(v.Peer))
	}
	for _, v := range views { // the user's name for a cluster takes precedence
		names[v.ClusterID] = output.OneLine(v.Cluster)
	}
	ids := slices.SortedFunc(maps.Keys(names), func(a, b string) int { return cmp.Or(cmp.Compare(names[a], names[b]), cmp.Compare(a, b)) })
	edges := map[[2]int]status.View{} // the worse view of both sides
	for _, v := range views {
		a, b := slices.Index(ids, v.ClusterID), slices.Index(ids, v.PeerID)
		ends := [2]int{min(a, b), max(a, b)}
		if other, is := edges[ends]; !is || severity(v.State) > severity(other.State) {
			edges[ends] = v
		}
	}
	quote := func(s string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"` }
	var out strings.Builder
	out.WriteString("graph liqonet {\n  node [shape=box];\n")
	for i, id := range ids {
		output.To(&out).Printf("  c%d [label=%s];\n", i, quote(names[id]))
	}
	for _, ends := range slices.SortedFunc(maps.Keys(edges), func(a, b [2]int) int { return slices.Compare(a[:], b[:]) }) {
		v := edges[ends]
		output.To(&out).Printf("  c%d -- c%d [label=%s, color=%s];\n", ends[0], ends[1], quote(labelOf(v)), quote(edgeColor(v.State)))
	}
	return out.String() + "}\n"
}
