package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pterm/pterm"
	"github.com/samber/lo"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/status"
)

// printViews prints a row for each gateway, then the ranges that are translated, then messages and hints.
func printViews(o *output.Format, w io.Writer, views []status.View) {
	var planes, tunnels, conditions [][]any
	for _, v := range views {
		for _, p := range v.Planes {
			plane := strconv.Itoa(int(p.Index))
			if !p.Connected {
				plane += " down"
			}
			loss := orDash(p.RTT, func(float64) string { return fmt.Sprintf("%d%%", p.LossPercent) })
			planes = append(planes, []any{
				v.Cluster, v.Peer, colored(v.State), fmt.Sprintf("%d/%d", v.NodesReady, v.NodesTotal), plane, inMilliseconds(p.RTT), loss,
				inMilliseconds(p.Jitter), age(p.HandshakeAge), inBytes(p.SentBytes), inBytes(p.ReceivedBytes), orDash(lo.EmptyableToPtr(p.MTU), strconv.Itoa),
			})
			tunnels = append(tunnels, []any{
				v.Cluster, v.Peer, p.Index, usedBy(v, p.Index), p.Role, cmp.Or(p.Node, "-"), cmp.Or(p.Endpoint, "-"), v.Overlay + "/" + p.Backend, age(p.KeyAge),
				cmp.Or(p.Version, "-"), cmp.Or(versionsOf(v.Nodes), "-"),
			})
		}
		if len(v.Planes) == 0 {
			planes = append(planes, []any{v.Cluster, v.Peer, colored(v.State), "-", "-", "-", "-", "-", "-", "-", "-", "-"})
		}
		for _, c := range v.Conditions {
			conditions = append(conditions, []any{v.Cluster, v.Peer, c.Type, c.Status, c.Reason, c.Message})
		}
	}
	o.Table(w, []string{"cluster", "peer", "state", "nodes", "plane", "rtt", "loss", "+jitter", "+handshake", "+sent", "+received", "+mtu"}, planes)
	if o.Wide() {
		o.Section(w, []string{"cluster", "peer", "plane", "used by", "role", "gateway node", "endpoint", "via", "key age", "gateway agent", "node agents"}, tunnels)
		o.Section(w, []string{"cluster", "peer", "condition", "status", "reason", "message"}, conditions)
	}
	translated := lo.Filter(views, func(v status.View, _ int) bool {
		return slices.ContainsFunc(v.LocalPods, func(m ipam.Mapping) bool { return m.Real != m.Mapped })
	})
	if len(translated) > 0 {
		output.To(w).Printf("\n")
		printRanges(o, w, translated...)
	}
	empty := "\n"
	for _, v := range sortedByCluster(views) {
		hinted := lo.Filter(v.Conditions, func(c status.ConditionView, _ int) bool { return c.Hint != "" })
		message := cmp.Or(v.Message, lo.FirstOrEmpty(hinted).Message)
		if message == "" {
			continue
		}
		output.To(w).Printf("%s%s → %s: %s\n", output.Lines(empty), v.Cluster, v.Peer, message)
		empty = ""
		for _, c := range hinted {
			output.To(w).Printf("  %s: %s\n", c.Reason, c.Hint)
		}
	}
}

// looks say how states are shown: the worst one has the highest severity. The colors are those of edges for Graphviz, and of text on
// terminals.
var looks = map[status.State]struct {
	severity int
	edge     string
	text     pterm.Color
}{
	status.Connected:    {0, "#2e7d32", pterm.FgGreen},
	status.Degraded:     {1, "#ef6c00", pterm.FgYellow},
	status.Unknown:      {2, "#757575", pterm.FgYellow},
	status.Disconnected: {3, "#c62828", pterm.FgRed},
	status.Orphaned:     {4, "#c62828", pterm.FgRed},
}

func colored(s status.State) output.Colored { return output.Colored{Value: s, Color: looks[s].text} }

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

// printRanges prints the ranges by which each cluster is known to the other.
func printRanges(o *output.Format, w io.Writer, views ...status.View) {
	var rows [][]any
	for _, v := range views {
		for _, m := range v.LocalPods {
			rows = append(rows, []any{v.Cluster, v.Peer, m.Real, m.Mapped, v.LocalNodes.Mapped})
		}
	}
	o.Table(w, []string{"cluster", "seen by", "pods", "as", "nodes as"}, rows)
}
