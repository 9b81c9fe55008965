package cli

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/peering"
)

func newUnpeer(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "unpeer CLUSTER CLUSTER",
		Short: "Remove the peering of two clusters and leave nothing behind",
		Long: `Remove the peering of two clusters from both, and the agents where it was the
last one. It waits until the nodes' kernels are clean. Unpeering what is not
peered succeeds.

With --mesh the peerings of every two of the clusters given are removed, with
--spokes those of the one given with each of them.`,
		Example: `  kubectl liqonet unpeer cluster-a cluster-b
  kubectl liqonet unpeer cluster-a cluster-b cluster-c --mesh
  kubectl liqonet unpeer hub --spokes cluster-a,cluster-b`,
		Args:              pairArgs,
		ValidArgsFunction: g.completeContexts(math.MaxInt),
		RunE:              g.unpeer,
	}
	addTimeout(cmd, 2*time.Minute)
	addPairs(cmd.Flags())
	return cmd
}

func (g *globals) unpeer(cmd *cobra.Command, args []string) error {
	ctx, start := cmd.Context(), time.Now()
	refs, hub := members(cmd.Flags(), args)
	_, pairs, failed, err := g.connectPairs(ctx, refs, hub)
	if err != nil {
		return err
	}
	outcomes := append(peering.UnpeerAll(ctx, pairs, g.progress(pairs)), failed...)
	for _, out := range outcomes {
		if out.Err == nil {
			g.printRemoved(out, start)
		}
	}
	return failures(outcomes)
}

func (g *globals) printRemoved(out peering.Outcome, start time.Time) {
	a, b := out.Pair[0], out.Pair[1]
	done := false
	for i, r := range out.Removed {
		if len(r.Skipped) > 0 {
			fmt.Fprintf(g.streams.Err, "Warning: cluster %q: nodes that are not ready could not be cleaned: %s. A reboot does, or there: liqonet-agent purge\n",
				out.Pair[i].Name, strings.Join(r.Skipped, ", "))
		}
		if r.Agents {
			fmt.Fprintf(g.streams.Out, "%s: the agents are removed too, it has no other peering.\n", out.Pair[i].Name)
		}
		done = done || r.Peering || r.Agents
	}
	if !done {
		fmt.Fprintf(g.streams.Out, "%s and %s are not peered; nothing was changed.\n", a.Name, b.Name)
		return
	}
	fmt.Fprintf(g.streams.Out, "%s and %s are not peered any more, %.1f s after the command.\n", a.Name, b.Name, time.Since(start).Seconds())
}
