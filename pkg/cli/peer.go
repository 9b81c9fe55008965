package cli

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

func newPeer(g *globals) *cobra.Command {
	var out *output
	var dryRun, exitCode, verbose bool
	var forNodes moreTime
	cmd := &cobra.Command{
		Use:   "peer CLUSTER CLUSTER",
		Short: "Make the pods of two clusters reach each other",
		Long: `Make the pods of two clusters reach each other: install the agents where they
are missing, find address ranges without conflict, make WireGuard keys, push the
configuration, and wait until packets pass.

It can be repeated at any time: what is as it should be is left alone. If it
fails, it takes back what it did.

With --mesh every two of the clusters given are peered, with --spokes the one
given with each of them. With --dry-run the plan is printed, and nothing is
changed; with --exit-code, too, the exit code is 12 if something would be.`,
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
			if exitCode && !dryRun {
				return commandLineError(cmd, errors.New("--exit-code goes with --dry-run"))
			}
			if verbose {
				timeline, start := &kube.Timeline{}, time.Now()
				cmd.SetContext(kube.WithTimeline(cmd.Context(), timeline))
				defer func() { g.printTimeline(start, timeline.Waits()) }()
			}
			return g.peer(cmd, args, forNodes, out, dryRun, exitCode)
		},
	}
	forNodes = addTimeoutByNodes(cmd, 2*time.Minute)
	f := cmd.Flags()
	addPairs(f)
	addOverrides(f)
	f.Bool("replace", false, "peer also with a cluster that has the ID of one that was peered, and none of its keys: one that has lost them, or was restored")
	f.Bool("adopt-namespace", false, "use a namespace liqonet-system that somebody else has made: all who have rights in it are trusted")
	f.BoolVar(&dryRun, "dry-run", false, "print what would be done, and why, and change nothing")
	f.BoolVar(&exitCode, "exit-code", false, "with --dry-run: end with exit code 12 if something would be changed")
	f.BoolVarP(&verbose, "verbose", "v", false, "show on stderr, in the end, how long each step took, and what it waited for")
	out = addOutput(f)
	return cmd
}

// peerResult is what peer prints for programs. Peerings are as status shows them.
type peerResult struct {
	Changed  []string      `json:"changed"`
	Peerings []status.View `json:"peerings"`
	// Notes are what was concluded and not read, and what was left out.
	Notes []string `json:"notes,omitempty"`
}

func (g *globals) peer(cmd *cobra.Command, args []string, forNodes moreTime, out *output, dryRun, exitCode bool) error {
	ctx, start := cmd.Context(), time.Now()
	refs, hub := members(cmd.Flags(), args)
	clusters, pairs, failed, err := g.connectPairs(ctx, refs, hub)
	if err != nil {
		return err
	}
	o, err := peerOptions(cmd.Flags(), refs, clusters)
	if err != nil {
		return commandLineError(cmd, err)
	}
	if len(pairs) == 0 || dryRun && len(failed) > 0 {
		return failures(failed)
	}
	if dryRun {
		plans, err := peering.PlanAll(ctx, pairs, o, newProgress(g.streams.Err))
		if err != nil {
			return err
		}
		err = out.printPlans(g.streams.Out, plans)
		if err == nil && exitCode && slices.ContainsFunc(plans, func(p *plan.Plan) bool { return p.Changes() > 0 }) {
			err = ending{ExitDiffers, "something would be changed"}
		}
		return err
	}
	ctx, cancel := forNodes(ctx, pairs)
	defer cancel()
	outcomes := append(peering.PeerAll(ctx, pairs, o, g.progress(pairs)), failed...)
	result := &peerResult{Changed: []string{}, Peerings: []status.View{}}
	for _, outcome := range outcomes {
		a, b := outcome.Result.Views[0], outcome.Result.Views[1]
		result.Changed = append(result.Changed, outcome.Result.Changed...)
		switch {
		case outcome.Err != nil:
			continue
		case out.forPeople() && len(outcome.Result.Changed) == 0:
			g.out().printf("%s and %s are peered already; nothing was changed.\n", a.Cluster, b.Cluster)
		case out.forPeople():
			g.out().printf("%s and %s are peered, %.1f s after the command.\n", a.Cluster, b.Cluster, time.Since(start).Seconds())
		}
		result.Peerings = append(result.Peerings, a, b)
		result.Notes = append(result.Notes, outcome.Result.Notes...)
	}
	if out.forPeople() {
		out.printRanges(g.streams.Out, result.Peerings...)
		g.out().printExchanges(clusters, result.Peerings)
		g.out().printNotes(result.Notes)
	} else {
		err = out.print(g.streams.Out, "PeerResult", result, result.Peerings, peeringNames(result.Peerings))
	}
	return errors.Join(err, failures(outcomes))
}

// printExchanges says how pre-shared keys reached the clusters of peerings.
func (t text) printExchanges(clusters []*kube.Cluster, views []status.View) {
	for _, by := range []struct {
		exchange kube.KeyExchange
		says     string
	}{
		{kube.Hybrid, "Pre-shared keys reached %s over TLS 1.3 with a hybrid (post-quantum) key exchange, as far as each address.\n"},
		{kube.Classical, "Pre-shared keys reached %s over a classical key exchange: a quantum computer may open what was recorded of it.\n"},
		{kube.UnknownKeyExchange, "It is not known over which key exchange pre-shared keys reached %s.\n"},
	} {
		var reached []string
		for _, c := range clusters {
			if slices.ContainsFunc(views, func(v status.View) bool { return v.ClusterID == c.ID && v.PresharedKeyExchange == by.exchange }) {
				reached = append(reached, fmt.Sprintf("%s (%s)", c.Name, c.URL))
			}
		}
		if len(reached) > 0 {
			t.printf(by.says, strings.Join(reached, ", "))
		}
	}
}

// printRanges shows how each cluster is seen by the other.
func (o *output) printRanges(w io.Writer, views ...status.View) {
	var rows [][]any
	for _, v := range views {
		for _, m := range v.LocalPods {
			rows = append(rows, []any{v.Cluster, v.Peer, m.Real, m.Mapped, v.LocalNodes.Mapped})
		}
	}
	o.printTable(w, []string{"cluster", "seen by", "pods", "as", "nodes as"}, rows)
}
