package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/peering"
)

func newPeer(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "peer CLUSTER CLUSTER",
		Short: "Make the pods of two clusters reach each other",
		Long: `Make the pods of two clusters reach each other: install the agents where they are
missing, find address ranges without conflict, make WireGuard keys, push the
configuration, and wait until packets pass.

It can be repeated at any time: what is as it should be is left alone. If it
fails, it takes back what it did.

With --mesh every two of the clusters given are peered, with --spokes the one
given with each of them. With --dry-run the plan is printed, and nothing is
changed.`,
		Example: `  kubectl liqonet peer cluster-a cluster-b
  kubectl liqonet peer a.conf b.conf --dry-run
  kubectl liqonet peer a.conf#admin@one cluster-b --service-type LoadBalancer
  kubectl liqonet peer cluster-a cluster-b --map cluster-a=10.60.0.0/16
  kubectl liqonet peer cluster-a cluster-b --service-type cluster-a=NodePort:31820 --endpoint cluster-a=203.0.113.5:31820
  kubectl liqonet peer cluster-a cluster-b cluster-c --mesh
  kubectl liqonet peer hub --spokes cluster-a,cluster-b`,
		Args:              pairArgs,
		ValidArgsFunction: g.completeContexts(math.MaxInt),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.peer(cmd.Context(), groupOf(cmd, args))
		},
	}
	addTimeout(cmd, 2*time.Minute)
	f := cmd.Flags()
	addPairs(f)
	addOverrides(f)
	f.Bool("dry-run", false, "print what would be done, and why, and change nothing")
	f.VarP(newEnum(formats...), "output", "o", "format of the plan or of the result: text, json or yaml")
	return cmd
}

// formats of what peer prints; table is what other commands call text.
var formats = []string{"text", "json", "yaml", "table"}

// resultDocument is what peer -o json and yaml print. Peerings are as status shows
// them.
type resultDocument struct {
	Changed  []string       `json:"changed"`
	Peerings []peering.View `json:"peerings"`
}

func (g *globals) peer(ctx context.Context, of group) error {
	format, err := oneOf("output", g.config.GetString("output"), formats...)
	if err != nil {
		return err
	}
	text := format == "text" || format == "table"
	ctx, cancel := g.withTimeout(ctx)
	defer cancel()
	start := time.Now()
	clusters, lost, err := g.groupClusters(ctx, of)
	if err != nil {
		return err
	}
	o, err := g.peerOptions(of.refs, clusters)
	if err != nil {
		return err
	}
	if g.config.GetBool("dry-run") {
		if err := errors.Join(lost...); err != nil {
			return err
		}
		plans, err := peering.PlanAll(ctx, of.pairs(clusters), o, newProgress(g.streams.Err))
		if err != nil {
			return err
		}
		if !text {
			return printDocument(g.streams.Out, format, planDocument{plans})
		}
		for _, p := range plans {
			if err := printPlan(g.streams.Out, p); err != nil {
				return err
			}
		}
		return nil
	}
	pairs, unreachable := of.reachable(clusters, lost)
	outcomes := append(peering.PeerAll(ctx, pairs, o, g.progress(pairs)), unreachable...)
	doc := resultDocument{Changed: []string{}, Peerings: []peering.View{}}
	for _, out := range outcomes {
		a, b := out.Result.Views[0], out.Result.Views[1]
		doc.Changed = append(doc.Changed, out.Result.Changed...)
		switch {
		case out.Err != nil:
			continue
		case text && len(out.Result.Changed) == 0:
			fmt.Fprintf(g.streams.Out, "%s and %s are peered already; nothing was changed.\n", a.Cluster, b.Cluster)
		case text:
			fmt.Fprintf(g.streams.Out, "%s and %s are peered, %.1f s after the command.\n", a.Cluster, b.Cluster, time.Since(start).Seconds())
		}
		doc.Peerings = append(doc.Peerings, a, b)
	}
	if !text {
		err = printDocument(g.streams.Out, format, doc)
	} else if len(doc.Peerings) > 0 {
		printRanges(g.streams.Out, doc.Peerings...)
	}
	return errors.Join(err, failures(outcomes))
}

// printRanges shows how each cluster is seen by the other.
func printRanges(w io.Writer, views ...peering.View) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "CLUSTER\tSEEN BY\tPODS\tAS\tNODES AS")
	for _, v := range views {
		var real, mapped []string
		for _, m := range v.LocalPods {
			real, mapped = append(real, m.Real.String()), append(mapped, m.Mapped.String())
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", v.Cluster, v.Peer, strings.Join(real, ","), strings.Join(mapped, ","), v.LocalNodes.Mapped)
	}
	t.Flush()
}
