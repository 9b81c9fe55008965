package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

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
