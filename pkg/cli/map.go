package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func newMap(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "map A B NAMESPACE/POD|ADDRESS",
		Short: "Print the address by which a pod of cluster A is known in cluster B",
		Example: `  kubectl liqonet map cluster-a cluster-b default/web-0
  kubectl liqonet map cluster-a cluster-b 10.244.1.7`,
		Args:              exactArgs(3),
		ValidArgsFunction: g.completeContexts(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.mapAddress(cmd.Context(), args[0], args[1], args[2])
		},
	}
	addTimeout(cmd, 15*time.Second)
	return cmd
}

func (g *globals) mapAddress(ctx context.Context, refA, refB, what string) error {
	ctx, cancel := g.withTimeout(ctx)
	defer cancel()
	clusters, err := g.clusters(ctx, refA, refB)
	if err != nil {
		return err
	}
	addr, err := clusters[0].MapFor(ctx, clusters[1], what)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(g.streams.Out, addr)
	return err
}
