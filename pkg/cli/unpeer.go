package cli

import (
	"context"
	"fmt"
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
peered succeeds.`,
		Example:           `  kubectl liqonet unpeer cluster-a cluster-b`,
		Args:              exactArgs(2),
		ValidArgsFunction: g.completeContexts(2),
		RunE:              func(cmd *cobra.Command, args []string) error { return g.unpeer(cmd.Context(), args[0], args[1]) },
	}
	addTimeout(cmd, 2*time.Minute)
	return cmd
}

func (g *globals) unpeer(ctx context.Context, refA, refB string) error {
	ctx, cancel := g.withTimeout(ctx)
	defer cancel()
	start := time.Now()
	clusters, err := g.clusters(ctx, refA, refB)
	if err != nil {
		return err
	}
	a, b := clusters[0], clusters[1]
	inA, inB, err := peering.Unpeer(ctx, a, b, newProgress(g.streams.Err))
	if err != nil {
		return err
	}
	done := false
	for i, r := range []peering.Removed{inA, inB} {
		if len(r.Skipped) > 0 {
			fmt.Fprintf(g.streams.Err, "Warning: cluster %q: nodes that are not ready could not be cleaned: %s. A reboot does, or there: liqonet-agent purge\n",
				clusters[i].Name, strings.Join(r.Skipped, ", "))
		}
		if r.Agents {
			fmt.Fprintf(g.streams.Out, "%s: the agents are removed too, it has no other peering.\n", clusters[i].Name)
		}
		done = done || r.Peering || r.Agents
	}
	if !done {
		fmt.Fprintf(g.streams.Out, "%s and %s are not peered; nothing was changed.\n", a.Name, b.Name)
		return nil
	}
	fmt.Fprintf(g.streams.Out, "%s and %s are not peered any more, %.1f s after the command.\n", a.Name, b.Name, time.Since(start).Seconds())
	return nil
}
