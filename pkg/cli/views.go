package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/status"
)

// printViews prints a row for each gateway, the ranges that are translated, and then what is not well.
func (o *output) printViews(w io.Writer, views []status.View) {
	var planes, tunnels, conditions [][]any
	var translated []status.View
	for _, v := range views {
		for _, p := range v.Planes {
			plane := strconv.Itoa(int(p.Index))
			if !p.Connected {
				plane += " down"
			}
			loss := orDash(p.RTT, func(float64) string { return fmt.Sprintf("%d%%", p.LossPercent) })
			planes = append(planes, []any{
				v.Cluster, v.Peer, v.State, fmt.Sprintf("%d/%d", v.NodesReady, v.NodesTotal), plane, inMilliseconds(p.RTT), loss,
				inMilliseconds(p.Jitter), age(p.HandshakeAge), inBytes(p.SentBytes), inBytes(p.ReceivedBytes), number(p.MTU),
			})
			tunnels = append(tunnels, []any{
				v.Cluster, v.Peer, p.Index, usedBy(v, p.Index), p.Role, cmp.Or(p.Node, "-"), cmp.Or(p.Endpoint, "-"), v.Overlay + "/" + p.Backend, age(p.KeyAge),
				cmp.Or(p.Version, "-"), cmp.Or(versionsOf(v.Nodes), "-"),
			})
		}
		if len(v.Planes) == 0 {
			planes = append(planes, []any{v.Cluster, v.Peer, v.State, "-", "-", "-", "-", "-", "-", "-", "-", "-"})
		}
		for _, c := range v.Conditions {
			conditions = append(conditions, []any{v.Cluster, v.Peer, c.Type, c.Status, c.Reason, c.Message})
		}
		if slices.ContainsFunc(v.LocalPods, func(m ipam.Mapping) bool { return m.Real != m.Mapped }) {
			translated = append(translated, v)
		}
	}
	o.printTable(w, []string{"cluster", "peer", "state", "nodes", "plane", "rtt", "loss", "+jitter", "+handshake", "+sent", "+received", "+mtu"}, planes)
	if o.wide() {
		text{w}.printf("\n")
		o.printTable(w, []string{"cluster", "peer", "plane", "used by", "role", "gateway node", "endpoint", "via", "key age", "gateway agent", "node agents"}, tunnels)
	}
	if o.wide() && len(conditions) > 0 {
		text{w}.printf("\n")
		o.printTable(w, []string{"cluster", "peer", "condition", "status", "reason", "message"}, conditions)
	}
	if len(translated) > 0 {
		text{w}.printf("\n")
		o.printRanges(w, translated...)
	}
	empty := "\n"
	for _, v := range sortedByCluster(views) {
		hinted := slices.DeleteFunc(slices.Clone(v.Conditions), func(c status.ConditionView) bool { return c.Hint == "" })
		message := v.Message
		if message == "" && len(hinted) > 0 {
			message = hinted[0].Message
		}
		if message == "" {
			continue
		}
		text{w}.printf("%s%s → %s: %s\n", lines(empty), v.Cluster, v.Peer, message)
		empty = ""
		for _, c := range hinted {
			text{w}.printf("  %s: %s\n", c.Reason, c.Hint)
		}
	}
}

// sortedByCluster keeps the order of views of one cluster.
func sortedByCluster(views []status.View) []status.View {
	return slices.SortedStableFunc(slices.Values(views), func(a, b status.View) int { return cmp.Compare(a.Cluster, b.Cluster) })
}

// usedBy is how many nodes send by a plane, and whether each does by one plane or by all.
func usedBy(v status.View, plane int32) string {
	nodes := 0
	for _, n := range v.Nodes {
		if slices.Contains(n.PlanesInUse, plane) {
			nodes++
		}
	}
	return fmt.Sprintf("%d/%d (%s)", nodes, len(v.Nodes), cmp.Or(v.PlanesMode, "-"))
}

// versionsOf are the versions of the nodes' agents.
func versionsOf(nodes []status.NodeView) string {
	versions := sets.New[string]()
	for _, n := range nodes {
		if n.Version != "" {
			versions.Insert(n.Version)
		}
	}
	return strings.Join(sets.List(versions), ",")
}

// orDash is a value in words, or a dash where it is not known.
func orDash[T any](value *T, inWords func(T) string) string {
	if value == nil {
		return "-"
	}
	return inWords(*value)
}

func inMilliseconds(ms *float64) string {
	return orDash(ms, func(ms float64) string { return fmt.Sprintf("%.2f ms", ms) })
}

func age(seconds *int64) string {
	return orDash(seconds, func(s int64) string { return duration.HumanDuration(time.Duration(s) * time.Second) })
}

func inBytes(n *int64) string {
	return orDash(n, func(n int64) string {
		value, unit := float64(n), 0
		units := []string{"B", "kB", "MB", "GB", "TB", "PB"}
		for ; value >= 999.5 && unit < len(units)-1; unit++ {
			value /= 1000
		}
		return fmt.Sprintf("%.3g %s", value, units[unit])
	})
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

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
