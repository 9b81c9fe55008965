package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func newMap(g *globals) *cobra.Command {
	var reverse bool
	cmd := &cobra.Command{
		Use:   "map A B NAMESPACE/POD|NAMESPACE/SERVICE|ADDRESS",
		Short: "Print the address by which something of cluster A is known in cluster B",
		Long: `Print the address by which a pod or an address of cluster A is known in cluster B.
A service's own address is not known there: those of its endpoints are printed,
with their ports, one in a line.

With --reverse it is the other way round: for an address by which cluster B
knows something of cluster A, the one that it has in cluster A.`,
		Example: `  kubectl liqonet map cluster-a cluster-b default/web-0
  kubectl liqonet map cluster-a cluster-b 10.244.1.7
  kubectl liqonet map cluster-a cluster-b default/web
  kubectl liqonet map cluster-a cluster-b 10.92.1.7 --reverse`,
		Args:              exactArgs(3),
		ValidArgsFunction: g.completeContexts(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.mapAddress(cmd.Context(), args[0], args[1], args[2], reverse)
		},
	}
	cmd.Flags().BoolVar(&reverse, "reverse", false, "print the address in A of what B knows by the address given")
	addTimeout(cmd, 15*time.Second)
	return cmd
}

func (g *globals) mapAddress(ctx context.Context, refA, refB, what string, reverse bool) error {
	ctx, cancel := g.withTimeout(ctx)
	defer cancel()
	clusters, err := g.clusters(ctx, refA, refB)
	if err != nil {
		return err
	}
	if reverse {
		addr, err := clusters[0].MapBack(ctx, clusters[1], what)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(g.streams.Out, addr)
		return err
	}
	addrs, err := clusters[0].MapFor(ctx, clusters[1], what)
	for _, a := range addrs {
		fmt.Fprintln(g.streams.Out, a)
	}
	return err
}
