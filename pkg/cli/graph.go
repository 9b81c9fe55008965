package cli

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/peering"
)

// graphFormat is the flag --output of graph.
type graphFormat string

var graphFormats = map[graphFormat]func(*graph) string{"text": (*graph).text, "dot": (*graph).dot, "mermaid": (*graph).mermaid, "svg": (*graph).svg}

// String returns the value.
func (f *graphFormat) String() string { return string(*f) }

// Type is what --help shows.
func (f *graphFormat) Type() string { return "format" }

// Set refuses what graph does not print.
func (f *graphFormat) Set(s string) error {
	*f = graphFormat(s)
	if graphFormats[*f] == nil {
		return errors.New("it is none of text, dot, mermaid and svg")
	}
	return nil
}

func newGraph(g *globals) *cobra.Command {
	format := graphFormat("text")
	cmd := &cobra.Command{
		Use:   "graph [CLUSTER…]",
		Short: "Draw clusters and their peerings",
		Long: `Draw clusters and their peerings, as status reads them: of the clusters that are
named, or else of the current context and its peers.

The exit code is as that of status.`,
		Example: `  kubectl liqonet graph cluster-a cluster-b
  kubectl liqonet graph cluster-a -o svg > peerings.svg
  kubectl liqonet graph cluster-a -o dot > peerings.dot`,
		ValidArgsFunction: g.completeContexts(math.MaxInt),
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.read(cmd.Context(), args, func(s *statusRead) error {
				text{g.streams.Out}.printf("%s", lines(graphFormats[format](newGraphOf(s.doc.Peerings))))
				return nil
			})
		},
	}
	cmd.Flags().VarP(&format, "output", "o", "text, dot (of Graphviz), mermaid or svg")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"text", "dot", "mermaid", "svg"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	addTimeout(cmd, 15*time.Second)
	return cmd
}

// graph has clusters as nodes and peerings as edges.
type graph struct {
	clusters []string // by name
	views    []peering.View
	edges    []edge
}

// edge is a peering as both sides see it: the worse view counts.
type edge struct {
	a, b  int // of the clusters
	view  peering.View
	label string
}

// severity orders states: the worst is the highest.
func severity(s peering.State) int {
	return slices.Index([]peering.State{peering.Connected, peering.Degraded, peering.Unknown, peering.Disconnected, peering.Orphaned}, s)
}

// colour is that of an edge in a picture.
func colour(s peering.State) string {
	return []string{"#2e7d32", "#ef6c00", "#757575", "#c62828", "#c62828"}[max(severity(s), 0)]
}

// newGraphOf is pure. Clusters are told apart by their IDs.
func newGraphOf(views []peering.View) *graph {
	g := &graph{views: views}
	names := map[string]string{}
	for _, v := range views {
		names[v.PeerID] = cmp.Or(names[v.PeerID], oneLine(v.Peer))
	}
	for _, v := range views { // its own name is the one that the user knows
		names[v.ClusterID] = oneLine(v.Cluster)
	}
	var ids []string
	for id := range names {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(names[a], names[b]), cmp.Compare(a, b)) })
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
func labelOf(v peering.View) string {
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
	byCluster := map[string][]peering.View{}
	var order []string
	for _, v := range g.views {
		if byCluster[v.Cluster] == nil {
			order = append(order, v.Cluster)
		}
		byCluster[v.Cluster] = append(byCluster[v.Cluster], v)
	}
	slices.Sort(order)
	for _, c := range order {
		text{&out}.printf("%s\n", c)
		for i, v := range byCluster[c] {
			branch := "├──"
			if i == len(byCluster[c])-1 {
				branch = "└──"
			}
			text{&out}.printf("%s %s: %s\n", branch, oneLine(v.Peer), labelOf(v))
		}
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

// mermaid is for Markdown.
func (g *graph) mermaid() string {
	quote := func(s string) string { return `"` + strings.NewReplacer(`"`, "#quot;", "#", "#35;").Replace(s) + `"` }
	var out strings.Builder
	out.WriteString("graph LR\n")
	for i, c := range g.clusters {
		text{&out}.printf("  c%d[%s]\n", i, quote(c))
	}
	for i, e := range g.edges {
		text{&out}.printf("  c%d ---|%s| c%d\n  linkStyle %d stroke:%s\n", e.a, quote(e.label), e.b, i, colour(e.view.State))
	}
	return out.String()
}

// svg has the clusters on a circle.
func (g *graph) svg() string {
	escape := func(s string) string {
		var out strings.Builder
		_ = xml.EscapeText(&out, []byte(s)) // to memory
		return out.String()
	}
	radius := max(140, 45*float64(len(g.clusters)))
	width, height := 2*radius+320, 2*radius+80
	at := func(i int) (x, y float64) {
		angle := math.Pi + 2*math.Pi*float64(i)/float64(max(len(g.clusters), 1))
		return width/2 + radius*math.Cos(angle), height/2 + radius*math.Sin(angle)
	}
	var out strings.Builder
	text{&out}.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="13" text-anchor="middle">`+"\n", width, height)
	out.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	for _, e := range g.edges {
		x1, y1 := at(e.a)
		x2, y2 := at(e.b)
		text{&out}.printf(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="2"/>`+"\n", x1, y1, x2, y2, colour(e.view.State))
		// Not in the middle, where lines cross.
		x, y := x1+(x2-x1)*0.4, y1+(y2-y1)*0.4
		text{&out}.printf(`<text x="%.1f" y="%.1f" fill="%s" stroke="white" stroke-width="4" paint-order="stroke">%s</text>`+"\n", x, y-6, colour(e.view.State), escape(e.label))
	}
	for i, c := range g.clusters {
		x, y := at(i)
		half := 4.5*float64(len([]rune(c))) + 14
		text{&out}.printf(`<rect x="%.1f" y="%.1f" width="%.1f" height="30" rx="6" fill="#eceff1" stroke="#37474f"/>`+"\n", x-half, y-15, 2*half)
		text{&out}.printf(`<text x="%.1f" y="%.1f">%s</text>`+"\n", x, y+5, escape(c))
	}
	return out.String() + "</svg>\n"
}
