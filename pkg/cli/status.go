package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/liqonet/liqonet/pkg/peering"
)

func newStatus(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [CLUSTER…]",
		Short: "Show the peerings of clusters, measured by packets",
		Long: `Show the peerings of the clusters that are named, or else of the current context
and, where the kubeconfig has a context of the peer's name, the peer's side of it.

Latency and loss are those of probes that the gateways send through the tunnel,
and each node to the peer's gateway. The exit code is 7 if a peering is not
connected from every node.`,
		Example: `  kubectl liqonet status
  kubectl liqonet status cluster-a cluster-b -o json`,
		ValidArgsFunction: g.completeContexts(math.MaxInt),
		RunE:              func(cmd *cobra.Command, args []string) error { return g.status(cmd.Context(), args) },
	}
	cmd.Flags().VarP(newEnum("table", "json", "yaml"), "output", "o", "format: table, json or yaml")
	addTimeout(cmd, 15*time.Second)
	return cmd
}

// statusDocument is what -o json and -o yaml print.
type statusDocument struct {
	Peerings []peering.View `json:"peerings"`
}

func (g *globals) status(ctx context.Context, refs []string) error {
	format, err := oneOf("output", g.config.GetString("output"), "table", "json", "yaml")
	if err != nil {
		return err
	}
	ctx, cancel := g.withTimeout(ctx)
	defer cancel()
	implicit := len(refs) == 0
	if implicit {
		_, raw, err := g.kubeconfigs()
		if err != nil {
			return err
		}
		if raw.CurrentContext == "" {
			return usageError{fmt.Errorf("the kubeconfig has no current context: name a cluster")}
		}
		refs = []string{raw.CurrentContext}
	}
	clusters, err := g.clusters(ctx, refs...)
	if err != nil {
		return err
	}
	doc := statusDocument{Peerings: []peering.View{}}
	views, err := allViews(ctx, clusters)
	if err != nil {
		return err
	}
	doc.Peerings = append(doc.Peerings, views...)
	if implicit {
		doc.Peerings = append(doc.Peerings, g.otherSides(ctx, clusters[0], views)...)
	}
	if err := printStatus(g.streams.Out, format, doc, clusters); err != nil {
		return err
	}
	for _, v := range doc.Peerings {
		if v.State != peering.Connected {
			return errUnhealthy
		}
	}
	return nil
}

func allViews(ctx context.Context, clusters []*peering.Cluster) ([]peering.View, error) {
	perCluster := make([][]peering.View, len(clusters))
	group, ctx := errgroup.WithContext(ctx)
	for i, c := range clusters {
		group.Go(func() (err error) {
			perCluster[i], err = c.Views(ctx)
			return err
		})
	}
	err := group.Wait()
	return slices.Concat(perCluster...), err
}

// otherSides are the peers' views, as far as the kubeconfig leads to them.
func (g *globals) otherSides(ctx context.Context, own *peering.Cluster, views []peering.View) []peering.View {
	var out []peering.View
	for _, v := range views {
		peers, err := g.clusters(ctx, v.Peer)
		if err != nil || peers[0].ID != v.PeerID {
			continue
		}
		theirs, err := peers[0].Views(ctx)
		if err != nil {
			continue
		}
		for _, t := range theirs {
			if t.PeerID == own.ID {
				out = append(out, t)
			}
		}
	}
	return out
}

func printStatus(w io.Writer, format string, doc statusDocument, clusters []*peering.Cluster) error {
	if format != "table" {
		return printDocument(w, format, doc)
	}
	if len(doc.Peerings) == 0 {
		var names []string
		for _, c := range clusters {
			names = append(names, c.Name)
		}
		_, err := fmt.Fprintf(w, "No peerings in %s.\n", strings.Join(names, ", "))
		return err
	}
	return printTable(w, doc.Peerings, time.Now())
}

func printTable(w io.Writer, views []peering.View, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "CLUSTER\tPEER\tSTATE\tPODS\tSEEN THERE AS\tRTT\tLOSS\tHANDSHAKE\tNODES\tMTU\tVIA")
	for _, v := range views {
		var pods, as []string
		for _, m := range v.LocalPods {
			pods, as = append(pods, m.Real.String()), append(as, m.Mapped.String())
		}
		rtt, loss, handshake, mtu := "-", "-", "-", "-"
		if v.RTT != nil {
			rtt = fmt.Sprintf("%.2f ms", *v.RTT)
			loss = fmt.Sprintf("%d%%", v.LossPercent)
		}
		if v.LastHandshake != nil {
			handshake = fmt.Sprintf("%s ago", now.Sub(*v.LastHandshake).Round(time.Second))
		}
		if v.MTU > 0 {
			mtu = strconv.Itoa(v.MTU)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d/%d\t%s\t%s, %s wireguard\n",
			v.Cluster, v.Peer, v.State, strings.Join(pods, ","), strings.Join(as, ","), rtt, loss, handshake,
			v.NodesReady, v.NodesTotal, mtu, v.Overlay, v.WireGuard)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	sorted := slices.Clone(views)
	slices.SortStableFunc(sorted, func(a, b peering.View) int { return cmp.Compare(a.Cluster, b.Cluster) })
	for _, v := range sorted {
		if v.Message != "" {
			fmt.Fprintf(w, "%s → %s: %s\n", v.Cluster, v.Peer, printable(v.Message))
		}
	}
	return nil
}

// printable is a text for a terminal: agents wrote it, and whoever has the account of
// one of them shall not have the terminal of who looks.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}
