package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pterm/pterm"
	"github.com/samber/lo"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/status"
)

func newStatus(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [CLUSTER…]",
		Short: "Show the peerings of clusters, as measured with packets",
		Long: `Show the peerings of the named clusters or, by default, of the current context
and, if the kubeconfig has a context of the peer's name, the peer's side.

There is a row for each plane. Latency and loss are those of probes that the
gateways send through the tunnel. -o wide shows more. The exit code is 7 if a
peering is not connected from every node.

With --watch, it continues: on a terminal, the table is redrawn every 2 s,
otherwise it is printed again when a state has changed. With --wait, it ends
when all peerings are connected.

With --history, it shows what has changed, when and why, as recorded by the
agents of these clusters, on one timeline that does not depend on their clocks.`,
		Example: `  kubectl liqonet status
  kubectl liqonet status cluster-a cluster-b -o json
  kubectl liqonet status cluster-a cluster-b --watch
  kubectl liqonet status cluster-a cluster-b --wait --timeout 5m
  kubectl liqonet status cluster-a cluster-b --history`,
		Args: cobra.ArbitraryArgs,
	}
	f := cmd.Flags()
	out := output.AddFlag(f)
	history := f.Bool("history", false, "show what has changed, when and why")
	watch := f.BoolP("watch", "w", false, "repeat until interrupted; --timeout applies to each read")
	wait := f.Bool("wait", false, fmt.Sprintf("wait until all peerings are connected, for at most --timeout, by default %s", waitTimeout))
	addContext(f, &g.source)
	timeout := timeoutFlag(cmd, 15*time.Second)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case lo.Count([]bool{*watch, *history, *wait}, true) > 1:
			return commandLineError(cmd, errors.New("--watch, --wait and --history cannot be combined"))
		case *wait && !f.Changed("timeout"):
			*timeout = waitTimeout
		case *watch:
			return g.watchStatus(cmd, args, *timeout, out)
		}
		return withTimeout(cmd, *timeout, func(ctx context.Context) error {
			read := lo.Ternary(*wait, g.waitForStatus, g.readStatus)
			s, err := read(ctx, args)
			if err != nil {
				return err
			}
			if !*history {
				return g.finishStatus(s, printStatus(out, g.streams.Out, s))
			}
			err = g.finishStatus(s, g.printHistory(ctx, s, out))
			return lo.Ternary(errors.Is(err, errUnhealthy), nil, err) // the history is about the past
		})
	}
	return cmd
}

// statusDocument is the output of status for programs.
type statusDocument struct {
	Peerings []status.View `json:"peerings"`
	// Locks describe the commands that are changing the clusters, or were killed while doing so.
	Locks []string `json:"locks,omitempty"`
	// Unverified tell which clusters could not prove to be a peer, as something may not be read.
	Unverified []string `json:"unverified,omitempty"`
	// Errors list the clusters and peers' sides that could not be read, and clusters that are not the peer, with hints.
	Errors []string `json:"errors,omitempty"`
}

// peeringName returns the name of a Peering for -o name.
func peeringName(name string) string { return "peering." + v1alpha1.GroupVersion.Group + "/" + name }

func peeringNames(views []status.View) []string {
	return lo.Map(views, func(v status.View, _ int) string { return peeringName(v.Name) })
}

// locksOf returns the locks that are held in a cluster, with its name.
func locksOf(cluster string, held []lock.Holder) []string {
	return lo.Map(held, func(h lock.Holder, _ int) string { return cluster + ": " + h.String() })
}

// side is the data of one cluster.
type side struct {
	*kube.Cluster
	views []status.View
	locks []lock.Holder
	// isPeer is true if the side contains only the peerings of these views.
	isPeer bool
}

// statusResult is the data of the clusters that were read, and the errors of the others.
type statusResult struct {
	doc   *statusDocument
	sides []*side
	// otherErrors are the errors of peers' sides, readErrors those of named clusters, identityErrors those of clusters that are not the peer.
	otherErrors, readErrors, identityErrors []error
}

// readStatus reads the named clusters or, by default, the current context's cluster and its peers. It fails only if none of the clusters
// responds.
func (g *globals) readStatus(ctx context.Context, refs []string) (*statusResult, error) {
	clusters, contexts, err := g.source.NamedOrCurrent(ctx, "status", refs)
	if err != nil {
		return nil, err
	}
	s := &statusResult{doc: &statusDocument{Peerings: []status.View{}}}
	s.readErrors = s.add(failure.Map(clusters, func(c *kube.Cluster) (_ *side, err error) {
		own := &side{Cluster: c}
		if err = c.SkipReason; err == nil {
			own.locks, err = engine.HeldLocks(ctx, c)
		}
		if err == nil {
			own.views, err = status.Views(ctx, c)
		}
		return own, err
	}))
	if len(s.sides) == 0 {
		return nil, cmp.Or(interrupted(ctx, "read the clusters"), s.readErrors[0])
	}
	found := lo.Filter(s.doc.Peerings, func(v status.View, _ int) bool { return slices.Contains(contexts, v.Peer) })
	s.otherErrors = s.add(failure.Map(found, func(v status.View) (*side, error) { return g.peerSide(ctx, v, clusters[0]) }))
	status.MarkOrphans(s.doc.Peerings, lo.Map(s.sides, func(side *side, _ int) string { return side.ID }))
	s.doc.Unverified, s.identityErrors = compareAll(ctx, lo.Map(s.sides, func(side *side, _ int) *kube.Cluster { return side.Cluster }), s.arePeers)
	s.doc.Errors = lo.Map(slices.Concat(s.readErrors, s.otherErrors, s.identityErrors), func(err error, _ int) string { return string(explain(err, "  ")) })
	return s, nil
}

// add adds the clusters that were read, and returns the errors of the others.
func (s *statusResult) add(sides []*side, errs []error) (unread []error) {
	for i, side := range sides {
		if errs[i] != nil {
			unread = append(unread, errs[i])
		} else if side != nil {
			s.sides, s.doc.Peerings = append(s.sides, side), append(s.doc.Peerings, side.views...)
			s.doc.Locks = append(s.doc.Locks, locksOf(side.Name, side.locks)...)
		}
	}
	return unread
}

// arePeers reports whether one of two clusters has a peering with the other, of which that has not lost its side.
func (s *statusResult) arePeers(a, b *kube.Cluster) bool {
	return slices.ContainsFunc(s.doc.Peerings, func(v status.View) bool {
		return v.State != status.Orphaned && (v.ClusterID == a.ID && v.PeerID == b.ID || v.ClusterID == b.ID && v.PeerID == a.ID)
	})
}

// errUnhealthy is returned by status after it has printed the peerings that are not connected.
var errUnhealthy = exitError(ExitUnhealthy)

// finishStatus warns of what is not shown, unless printing has failed, and returns the error for the exit code.
func (g *globals) finishStatus(s *statusResult, err error) error {
	if err != nil {
		return err
	}
	s.warn(g.err(), s.readErrors[min(1, len(s.readErrors)):])
	return s.problem()
}

// problem returns an error if a cluster was not read, or a peering is not connected.
func (s *statusResult) problem() error {
	if errs := slices.Concat(s.readErrors, s.identityErrors); len(errs) > 0 {
		return errs[0]
	}
	if slices.ContainsFunc(s.doc.Peerings, func(v status.View) bool { return v.State != status.Connected }) {
		return errUnhealthy
	}
	return nil
}

// waitTimeout is how long status --wait waits by default.
const waitTimeout = 2 * time.Minute

// waitForStatus reads the status until all is well, or the context ends. It then returns what it has read last.
func (g *globals) waitForStatus(ctx context.Context, refs []string) (last *statusResult, err error) {
	for {
		s, err := g.readStatus(ctx, refs)
		if err == nil {
			last = s
		}
		if ExitCode(ctx, err) == ExitUsage || err == nil && s.problem() == nil {
			return s, err
		}
		if !failure.Pause(ctx, watchInterval/2) {
			if last != nil {
				err = interrupted(ctx, "wait for the peerings")
			}
			return last, err
		}
	}
}

// warn prints the errors of the clusters and peers' sides that are not shown.
func (s *statusResult) warn(t output.Text, unread []error) {
	for _, err := range unread {
		t.Printf("Warning: not shown: %s\n", explain(err, "  "))
	}
	for _, err := range s.otherErrors {
		t.Printf("Warning: a peer's side is not shown: %s\n", explain(err, "  "))
	}
	for _, err := range s.identityErrors {
		t.Printf("Warning: %s\n", explain(err, "  "))
	}
	t.PrintEach("Warning: %s\n", s.doc.Unverified)
}

// peerSide returns the peer's view of a peering, from the context that has the peer's name. It returns nil if that context belongs to
// another cluster.
func (g *globals) peerSide(ctx context.Context, v status.View, own *kube.Cluster) (*side, error) {
	peers, err := g.clusters(ctx, v.Peer)
	if err != nil || peers[0].ID != v.PeerID {
		return nil, err
	}
	views, err := status.Views(ctx, peers[0])
	views = slices.DeleteFunc(views, func(t status.View) bool { return t.PeerID != own.ID })
	return &side{Cluster: peers[0], views: views, isPeer: true}, err
}

func printStatus(o *output.Format, w io.Writer, s *statusResult) error {
	doc := s.doc
	if !o.HumanReadable() {
		return o.Print(w, "Status", doc, doc.Peerings, peeringNames(doc.Peerings))
	}
	output.To(w).PrintEach("In progress in %s\n", doc.Locks)
	if len(doc.Peerings) == 0 {
		names := lo.Map(s.sides, func(side *side, _ int) string { return side.Name })
		output.To(w).Printf("No peerings in %s.\n", strings.Join(names, ", "))
		return nil
	}
	printViews(o, w, doc.Peerings)
	return nil
}

// historyDocument is the output of status --history for programs.
type historyDocument struct {
	// Entries are sorted by time, by the clock of the first cluster's API server.
	Entries []status.HistoryEntry `json:"entries"`
	// Errors list the clusters and peers' sides that could not be read, with hints.
	Errors []string `json:"errors,omitempty"`
}

// printHistory prints the state changes that the clusters' agents recorded.
func (g *globals) printHistory(ctx context.Context, read *statusResult, out *output.Format) error {
	all, errs := failure.Map(read.sides, func(s *side) ([]status.HistoryEntry, error) {
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
	return printEntries(out, g.streams.Out, doc)
}

func printEntries(o *output.Format, w io.Writer, doc *historyDocument) error {
	if !o.HumanReadable() {
		names := lo.Map(doc.Entries, func(e status.HistoryEntry, _ int) string { return peeringName(e.Peering) })
		slices.Sort(names)
		return o.Print(w, "History", doc, doc.Entries, slices.Compact(names))
	}
	if len(doc.Entries) == 0 {
		output.To(w).Printf("Nothing has changed yet.\n")
		return nil
	}
	rows := lo.Map(doc.Entries, func(e status.HistoryEntry, _ int) []any {
		plane := orDash(e.Plane, func(plane int32) string { return strconv.Itoa(int(plane)) })
		const layout = "2006-01-02 15:04:05.000Z"
		change := cmp.Or(e.From, "-") + " → " + e.To
		return []any{e.Time.Format(layout), e.Cluster, e.Agent, e.Peering, plane, e.Subject, change, e.Reason, e.AgentTime.Format(layout)}
	})
	o.Table(w, []string{"time", "cluster", "agent", "peering", "plane", "what", "change", "reason", "+by its own clock"}, rows)
	return nil
}

// watchInterval is the pause between two reads.
const watchInterval = 2 * time.Second

// watchStatus prints the status repeatedly until it is interrupted. It fails only if the first read fails: after that, a cluster that does
// not respond may recover. On a terminal, errors and warnings are drawn with the table. Otherwise they go to stderr.
func (g *globals) watchStatus(cmd *cobra.Command, refs []string, timeout time.Duration, out *output.Format) error {
	width, height := output.Size(g.streams.Out)
	drawn, before := width > 0 && out.HumanReadable(), ""
	for first := true; ; first = false {
		var shown, wrong bytes.Buffer
		state := ""
		err := withTimeout(cmd, timeout, func(ctx context.Context) error {
			s, err := g.readStatus(ctx, refs)
			if err != nil {
				return err
			}
			state = s.state()
			s.warn(output.To(&wrong), s.readErrors)
			w := output.NewPage(&shown, g.streams.Out)
			return cmp.Or(printStatus(out, w, s), w.Flush())
		})
		switch {
		case cmd.Context().Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			state = err.Error()
			output.To(&wrong).Printf("Error: %s\n", explain(err, "  "))
		}
		printed := ""
		if drawn && g.source.IsAuthenticating() {
			state = before // what a credential plugin has asked stays on the screen
		} else if drawn {
			printed = redraw(shown.String()+output.Wrap(wrong.String(), width), width, height)
		} else if first || state != before {
			g.err().Printf("%s", output.Lines(wrong.String()))
			printed = shown.String()
		}
		if err := g.write(printed); err != nil {
			return err
		}
		before = state
		switch {
		case !failure.Pause(cmd.Context(), watchInterval):
			return nil
		case !output.HasReader(g.streams.Out): // it would notice that only when something changes
			return exitError(ExitUnexpected)
		}
	}
}

// write writes to stdout and flushes it.
func (g *globals) write(s string) error {
	_, err := io.WriteString(g.streams.Out, s)
	if f, isBuffered := g.streams.Out.(interface{ Flush() error }); isBuffered {
		err = cmp.Or(err, f.Flush())
	}
	return err
}

// redraw returns the output that replaces the previous text on a terminal: it overwrites each line, and clears the rest. It omits lines
// that do not fit, as the terminal would scroll.
func redraw(s string, width, height int) string {
	const home, clearLine, clearBelow = "\x1b[H", "\x1b[K\n", "\x1b[J"
	var out strings.Builder
	out.WriteString(home)
	rows := 0
	for line := range strings.Lines(s) {
		line = strings.TrimSuffix(line, "\n")
		if rows += max(1, (output.DisplayWidth(line)+width-1)/width); rows > height-2 {
			out.WriteString("…" + clearLine)
			break
		}
		out.WriteString(line + clearLine)
	}
	return out.String() + clearBelow
}

// state returns a string that changes when a watch has to print the status again, if its output is not a terminal.
func (s *statusResult) state() string {
	var out []string
	for _, v := range s.doc.Peerings {
		planes := lo.Map(v.Planes, func(p status.PlaneView, _ int) string { return fmt.Sprint(p.Index, p.Connected) })
		out = append(out, v.Cluster, v.Peer, string(v.State), v.Message, fmt.Sprint(v.NodesReady, v.NodesTotal, planes))
	}
	return strings.Join(append(out, s.doc.Errors...), "\n")
}

// printViews prints a row for each gateway, then the ranges that are translated, then messages and hints.
func printViews(o *output.Format, w io.Writer, views []status.View) {
	var planes, tunnels, conditions, exchanged [][]any
	for _, v := range views {
		for _, p := range v.Planes {
			plane := strconv.Itoa(int(p.Index))
			if !p.Connected {
				plane += " down"
			}
			loss := orDash(p.RTT, func(float64) string { return fmt.Sprintf("%d%%", p.LossPercent) })
			planes = append(planes, []any{
				v.Cluster, v.Peer, colored(v.State), fmt.Sprintf("%d/%d", v.NodesReady, v.NodesTotal), plane, formatMilliseconds(p.RTT), loss,
				formatMilliseconds(p.Jitter), formatAge(p.HandshakeAge), formatBytes(p.SentBytes), formatBytes(p.ReceivedBytes),
				orDash(lo.EmptyableToPtr(p.MTU), strconv.Itoa),
			})
			tunnels = append(tunnels, []any{
				v.Cluster, v.Peer, p.Index, usedBy(v, p.Index), p.Role, cmp.Or(p.Node, "-"), cmp.Or(p.Endpoint, "-"),
				v.Overlay + "/" + p.Backend, formatAge(p.KeyAge), cmp.Or(p.Version, "-"), cmp.Or(versionsOf(v.Nodes), "-"),
			})
		}
		if len(v.Planes) == 0 {
			planes = append(planes, []any{v.Cluster, v.Peer, colored(v.State), "-", "-", "-", "-", "-", "-", "-", "-", "-"})
		}
		for _, c := range v.Conditions {
			conditions = append(conditions, []any{v.Cluster, v.Peer, c.Type, c.Status, c.Reason, c.Message})
		}
		if s := v.Services; s != nil {
			exchanged = append(exchanged, []any{v.Cluster, v.Peer, s.Exported, s.Received, s.Imported, s.Withdrawn, s.LocalID, s.RemoteID, s.Import, s.Precedence, s.Endpoints})
		}
	}
	o.Table(w, []string{"cluster", "peer", "state", "nodes", "plane", "rtt", "loss", "+jitter", "+handshake", "+sent", "+received", "+mtu"}, planes)
	if o.Wide() {
		o.Section(w, []string{"cluster", "peer", "plane", "used by", "role", "gateway node", "endpoint", "via", "key age", "gateway agent", "node agents"}, tunnels)
		o.Section(w, []string{"cluster", "peer", "condition", "status", "reason", "message"}, conditions)
	}
	if len(exchanged) > 0 {
		o.Section(w, []string{"cluster", "peer", "exported", "received", "imported", "withdrawn", "+id", "+peer's id", "+imports", "+precedence", "+endpoints"}, exchanged)
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

// stateStyles say how states are shown: the worst one has the highest severity. The colors are those of edges for Graphviz, and of text on
// terminals.
var stateStyles = map[status.State]struct {
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

func colored(s status.State) output.Colored {
	return output.Colored{Value: s, Color: stateStyles[s].text}
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

func formatMilliseconds(ms *float64) string {
	return orDash(ms, func(ms float64) string { return fmt.Sprintf("%.2f ms", ms) })
}

func formatAge(seconds *int64) string {
	return orDash(seconds, func(s int64) string { return duration.HumanDuration(time.Duration(s) * time.Second) })
}

func formatBytes(n *int64) string {
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
		Args: cobra.ArbitraryArgs,
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
		out += ", " + formatMilliseconds(measured.RTT)
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
		names[v.PeerID] = cmp.Or(names[v.PeerID], v.Peer)
	}
	for _, v := range views { // the user's name for a cluster takes precedence
		names[v.ClusterID] = v.Cluster
	}
	ids := slices.SortedFunc(maps.Keys(names), func(a, b string) int { return cmp.Or(cmp.Compare(names[a], names[b]), cmp.Compare(a, b)) })
	edges := map[[2]int]status.View{} // the worse view of both sides
	for _, v := range views {
		a, b := slices.Index(ids, v.ClusterID), slices.Index(ids, v.PeerID)
		ends := [2]int{min(a, b), max(a, b)}
		if other, is := edges[ends]; !is || stateStyles[v.State].severity > stateStyles[other.State].severity {
			edges[ends] = v
		}
	}
	quote := func(s string) output.Lines { // as such, nothing shortens it with its quotes
		return output.Lines(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(output.OneLine(s)) + `"`)
	}
	t.Printf("graph liqonet {\n  node [shape=box];\n")
	for i, id := range ids {
		t.Printf("  c%d [label=%s];\n", i, quote(names[id]))
	}
	for _, ends := range slices.SortedFunc(maps.Keys(edges), func(a, b [2]int) int { return slices.Compare(a[:], b[:]) }) {
		v := edges[ends]
		t.Printf("  c%d -- c%d [label=%s, color=%s];\n", ends[0], ends[1], quote(string(v.State)+labelOf(v)),
			quote(stateStyles[v.State].edge))
	}
	t.Printf("}\n")
}
