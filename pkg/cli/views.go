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

	"github.com/samber/lo"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/status"
)

// printViews prints a row for each gateway, then the ranges that are translated, then messages and hints.
func (o *output) printViews(w io.Writer, views []status.View) {
	var planes, tunnels, conditions [][]any
	for _, v := range views {
		for _, p := range v.Planes {
			plane := strconv.Itoa(int(p.Index))
			if !p.Connected {
				plane += " down"
			}
			loss := orDash(p.RTT, func(float64) string { return fmt.Sprintf("%d%%", p.LossPercent) })
			planes = append(planes, []any{
				v.Cluster, v.Peer, v.State, fmt.Sprintf("%d/%d", v.NodesReady, v.NodesTotal), plane, inMilliseconds(p.RTT), loss,
				inMilliseconds(p.Jitter), age(p.HandshakeAge), inBytes(p.SentBytes), inBytes(p.ReceivedBytes), orDash(lo.EmptyableToPtr(p.MTU), strconv.Itoa),
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
	}
	o.printTable(w, []string{"cluster", "peer", "state", "nodes", "plane", "rtt", "loss", "+jitter", "+handshake", "+sent", "+received", "+mtu"}, planes)
	if o.wide() {
		o.printSection(w, []string{"cluster", "peer", "plane", "used by", "role", "gateway node", "endpoint", "via", "key age", "gateway agent", "node agents"}, tunnels)
		o.printSection(w, []string{"cluster", "peer", "condition", "status", "reason", "message"}, conditions)
	}
	translated := lo.Filter(views, func(v status.View, _ int) bool {
		return slices.ContainsFunc(v.LocalPods, func(m ipam.Mapping) bool { return m.Real != m.Mapped })
	})
	if len(translated) > 0 {
		text{w}.printf("\n")
		o.printRanges(w, translated...)
	}
	empty := "\n"
	for _, v := range sortedByCluster(views) {
		hinted := lo.Filter(v.Conditions, func(c status.ConditionView, _ int) bool { return c.Hint != "" })
		message := cmp.Or(v.Message, lo.FirstOrEmpty(hinted).Message)
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

// sortedByCluster returns the views sorted by cluster. It keeps the order of views of one cluster.
func sortedByCluster(views []status.View) []status.View {
	return slices.SortedStableFunc(slices.Values(views), func(a, b status.View) int { return cmp.Compare(a.Cluster, b.Cluster) })
}

// usedBy returns how many nodes send through a plane, and the mode of planes.
func usedBy(v status.View, plane int32) string {
	nodes := lo.CountBy(v.Nodes, func(n status.NodeView) bool { return slices.Contains(n.PlanesInUse, plane) })
	return fmt.Sprintf("%d/%d (%s)", nodes, len(v.Nodes), cmp.Or(v.PlanesMode, "-"))
}

// versionsOf returns the versions of the nodes' agents.
func versionsOf(nodes []status.NodeView) string {
	versions := lo.Compact(lo.UniqMap(nodes, func(n status.NodeView, _ int) string { return n.Version }))
	slices.Sort(versions)
	return strings.Join(versions, ",")
}

// orDash formats a value, or returns a dash if it is unknown.
func orDash[T any](value *T, format func(T) string) string {
	if value == nil {
		return "-"
	}
	return format(*value)
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
			return g.withStatus(cmd.Context(), args, func(s *statusResult) error {
				text{g.streams.Out}.printf("%s", lines(graphFormats[cmp.Or(format.value, "text")](s.doc.Peerings)))
				return nil
			})
		},
	}
	cmd.Flags().VarP(format, "output", "o", "text or dot (of Graphviz)")
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
		text{&out}.printf("%s\n", seen[0].Cluster)
		for i, v := range seen {
			branch := lo.Ternary(i+1 == len(seen), "└──", "├──")
			text{&out}.printf("%s %s: %s\n", branch, oneLine(v.Peer), labelOf(v))
		}
	}
	return out.String()
}

// drawGraph draws clusters as nodes and peerings as edges, for Graphviz. It identifies clusters by ID.
func drawGraph(views []status.View) string {
	names := map[string]string{}
	for _, v := range views {
		names[v.PeerID] = cmp.Or(names[v.PeerID], oneLine(v.Peer))
	}
	for _, v := range views { // the user's name for a cluster takes precedence
		names[v.ClusterID] = oneLine(v.Cluster)
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
		text{&out}.printf("  c%d [label=%s];\n", i, quote(names[id]))
	}
	for _, ends := range slices.SortedFunc(maps.Keys(edges), func(a, b [2]int) int { return slices.Compare(a[:], b[:]) }) {
		v := edges[ends]
		text{&out}.printf("  c%d -- c%d [label=%s, color=%s];\n", ends[0], ends[1], quote(labelOf(v)), quote(edgeColor(v.State)))
	}
	return out.String() + "}\n"
}
