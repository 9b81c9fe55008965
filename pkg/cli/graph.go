package cli

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/status"
)

// graphFormats draw a graph, by the values of --output.
var graphFormats = map[string]func(*graph) string{"text": (*graph).text, "dot": (*graph).dot}

func newGraph(g *globals) *cobra.Command {
	format := &oneOf{"text", "format", []string{"text", "dot"}}
	cmd := &cobra.Command{
		Use:   "graph [CLUSTER…]",
		Short: "Draw clusters and their peerings",
		Long: `Draw clusters and their peerings, as status reads them: of the clusters that are
named, or else of the current context and its peers.

The exit code is as that of status.`,
		Example: `  kubectl liqonet graph cluster-a cluster-b
  kubectl liqonet graph cluster-a -o dot > peerings.dot`,
		ValidArgsFunction: g.completeContexts(math.MaxInt),
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.read(cmd.Context(), args, func(s *statusRead) error {
				text{g.streams.Out}.printf("%s", lines(graphFormats[cmp.Or(format.value, "text")](newGraphOf(s.doc.Peerings))))
				return nil
			})
		},
	}
	cmd.Flags().VarP(format, "output", "o", "text or dot (of Graphviz)")
	addTimeout(cmd, 15*time.Second)
	return cmd
}

// graph has clusters as nodes and peerings as edges.
type graph struct {
	clusters []string // by name
	views    []status.View
	edges    []edge
}

// edge is a peering as both sides see it: the worse view counts.
type edge struct {
	a, b  int // of the clusters
	view  status.View
	label string
}

// severity orders states: the worst is the highest.
func severity(s status.State) int {
	return slices.Index([]status.State{status.Connected, status.Degraded, status.Unknown, status.Disconnected, status.Orphaned}, s)
}

// colour is that of an edge in a picture.
func colour(s status.State) string {
	return []string{"#2e7d32", "#ef6c00", "#757575", "#c62828", "#c62828"}[max(severity(s), 0)]
}

// newGraphOf is pure. Clusters are told apart by their IDs.
func newGraphOf(views []status.View) *graph {
	g := &graph{views: views}
	names := map[string]string{}
	for _, v := range views {
		names[v.PeerID] = cmp.Or(names[v.PeerID], oneLine(v.Peer))
	}
	for _, v := range views { // its own name is the one that the user knows
		names[v.ClusterID] = oneLine(v.Cluster)
	}
	ids := slices.SortedFunc(maps.Keys(names), func(a, b string) int { return cmp.Or(cmp.Compare(names[a], names[b]), cmp.Compare(a, b)) })
	for _, id := range ids {
		g.clusters = append(g.clusters, names[id])
	}
	for _, v := range views {
		a, b := slices.Index(ids, v.ClusterID), slices.Index(ids, v.PeerID)
		e := edge{a: min(a, b), b: max(a, b), view: v, label: labelOf(v)}
		if i := slices.IndexFunc(g.edges, func(o edge) bool { return o.a == e.a && o.b == e.b }); i < 0 {
			g.edges = append(g.edges, e)
		} else if severity(v.State) > severity(g.edges[i].view.State) {
			g.edges[i] = e
		}
	}
	slices.SortFunc(g.edges, func(x, y edge) int { return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b)) })
	return g
}

// labelOf is what is written at an edge.
func labelOf(v status.View) string {
	up, rtt := 0, (*float64)(nil)
	for _, p := range v.Planes {
		if p.Connected {
			up++
			rtt = cmp.Or(rtt, p.RTT)
		}
	}
	out := fmt.Sprintf("%s, %d of %d planes", v.State, up, len(v.Planes))
	if rtt != nil {
		out += ", " + inMilliseconds(rtt)
	}
	return out
}

// text is a tree for each cluster that was read.
func (g *graph) text() string {
	if len(g.views) == 0 {
		return "No peerings.\n"
	}
	var out strings.Builder
	views := sortedByCluster(g.views)
	for i, v := range views {
		if i == 0 || views[i-1].Cluster != v.Cluster {
			text{&out}.printf("%s\n", v.Cluster)
		}
		branch := "├──"
		if i+1 == len(views) || views[i+1].Cluster != v.Cluster {
			branch = "└──"
		}
		text{&out}.printf("%s %s: %s\n", branch, oneLine(v.Peer), labelOf(v))
	}
	return out.String()
}

// dot is for Graphviz.
func (g *graph) dot() string {
	quote := func(s string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"` }
	var out strings.Builder
	out.WriteString("graph liqonet {\n  node [shape=box];\n")
	for i, c := range g.clusters {
		text{&out}.printf("  c%d [label=%s];\n", i, quote(c))
	}
	for _, e := range g.edges {
		text{&out}.printf("  c%d -- c%d [label=%s, color=%s];\n", e.a, e.b, quote(e.label), quote(colour(e.view.State)))
	}
	return out.String() + "}\n"
}
