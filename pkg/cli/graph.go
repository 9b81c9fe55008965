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
var graphFormats = map[string]func(output.Text, []status.View){"text": drawTrees, "dot": drawGraph}

func newGraph(g *globals) *cobra.Command {
	format := &enumFlag{"text", "FORMAT", []string{"text", "dot"}}
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
			graphFormats[cmp.Or(format.value, "text")](g.out(), s.doc.Peerings)
			return g.finishStatus(s, nil)
		},
	}
	cmd.Flags().VarP(format, "output", "o", "text or dot (of Graphviz)")
	addContext(cmd.Flags(), &g.source)
	return addTimeout(cmd, 15*time.Second)
}

// labelOf returns the label of an edge, after the state.
func labelOf(v status.View) string {
	connected := lo.Filter(v.Planes, func(p status.PlaneView, _ int) bool { return p.Connected })
	out := fmt.Sprintf(", %d of %d planes", len(connected), len(v.Planes))
	if measured, is := lo.Find(connected, func(p status.PlaneView) bool { return p.RTT != nil }); is {
		out += ", " + inMilliseconds(measured.RTT)
	}
	return out
}

// drawTrees draws a tree for each cluster.
func drawTrees(t output.Text, views []status.View) {
	if len(views) == 0 {
		t.Printf("No peerings.\n")
	}
	for _, seen := range lo.PartitionBy(sortedByCluster(views), func(v status.View) string { return v.Cluster }) {
		t.Printf("%s\n", seen[0].Cluster)
		for i, v := range seen {
			branch := lo.Ternary(i+1 == len(seen), "└──", "├──")
			t.Printf("%s %s: %s%s\n", branch, v.Peer, colored(v.State), labelOf(v))
		}
	}
}

// drawGraph draws clusters as nodes and peerings as edges, for Graphviz. It identifies clusters by ID.
func drawGraph(t output.Text, views []status.View) {
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
		if other, is := edges[ends]; !is || looks[v.State].severity > looks[other.State].severity {
			edges[ends] = v
		}
	}
	quote := func(s string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"` }
	t.Printf("graph liqonet {\n  node [shape=box];\n")
	for i, id := range ids {
		t.Printf("  c%d [label=%s];\n", i, quote(names[id]))
	}
	for _, ends := range slices.SortedFunc(maps.Keys(edges), func(a, b [2]int) int { return slices.Compare(a[:], b[:]) }) {
		v := edges[ends]
		t.Printf("  c%d -- c%d [label=%s, color=%s];\n", ends[0], ends[1], quote(string(v.State)+labelOf(v)), quote(looks[v.State].edge))
	}
	t.Printf("}\n")
}
