package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/status"
)

func newMap(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "map A B NAMESPACE/POD|NAMESPACE/SERVICE|ADDRESS",
		Short: "Print by which address cluster B knows something of cluster A",
		Long: `Print the address by which cluster B knows a pod or an address of cluster A.
A service's own address is not known there: those of its endpoints are printed,
with their ports, one in a line.

With --reverse it is the other way round: for an address by which cluster B
knows something of cluster A, the one that it has in cluster A.`,
		Example: `  kubectl liqonet map cluster-a cluster-b default/web-0
  kubectl liqonet map cluster-a cluster-b 10.244.1.7
  kubectl liqonet map cluster-a cluster-b default/web
  kubectl liqonet map cluster-a cluster-b 10.92.1.7 --reverse`,
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: g.completeContexts(2),
		RunE:              g.mapAddress,
	}
	cmd.Flags().Bool("reverse", false, "print the address in A of what B knows by the address given")
	addTimeout(cmd, 15*time.Second)
	return cmd
}

func (g *globals) mapAddress(cmd *cobra.Command, args []string) error {
	ctx, what := cmd.Context(), args[2]
	clusters, err := g.clusters(ctx, args[:2]...)
	if err != nil {
		return err
	}
	if reverse, _ := cmd.Flags().GetBool("reverse"); reverse {
		addr, err := status.MapBack(ctx, clusters[0], clusters[1], what)
		if err == nil {
			g.out().printf("%s\n", addr)
		}
		return err
	}
	addrs, err := status.MapFor(ctx, clusters[0], clusters[1], what)
	for _, a := range addrs {
		g.out().printf("%s\n", a)
	}
	return err
}
