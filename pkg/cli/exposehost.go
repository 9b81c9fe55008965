package cli

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/peering"
)

func newExposeHost(g *globals) *cobra.Command {
	var remove bool
	cmd := &cobra.Command{
		Use:   "expose-host A B ADDRESS",
		Short: "Let cluster B reach one host outside of cluster A, and print its address there",
		Long: `Let the pods and nodes of cluster B reach one host that cluster A's nodes reach and
that is in neither cluster. It prints the address by which B reaches it. The host
sees a node of A and needs to know nothing of all this; it cannot reach B.`,
		Example: `  kubectl liqonet expose-host cluster-a cluster-b 192.168.1.50
  kubectl liqonet expose-host cluster-a cluster-b 192.168.1.50 --remove`,
		Args:              exactArgs(3),
		ValidArgsFunction: g.completeContexts(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.exposeHost(cmd.Context(), args[0], args[1], args[2], remove)
		},
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "take it back")
	addTimeout(cmd, 30*time.Second)
	return cmd
}

func (g *globals) exposeHost(ctx context.Context, refA, refB, address string, remove bool) error {
	host, err := netip.ParseAddr(address)
	if err != nil {
		return &peering.Error{Kind: peering.Usage, Doing: fmt.Sprintf("%q is not an address", address), Hint: "name the host by its IP address, such as 192.168.1.50"}
	}
	ctx, cancel := g.withTimeout(ctx)
	defer cancel()
	clusters, err := g.clusters(ctx, refA, refB)
	if err != nil {
		return err
	}
	a, b := clusters[0], clusters[1]
	if !remove {
		mapped, err := a.ExposeHost(ctx, b, host)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(g.streams.Out, mapped)
		return err
	}
	was, err := a.HideHost(ctx, b, host)
	if err != nil {
		return err
	}
	if was {
		fmt.Fprintf(g.streams.Out, "%s cannot be reached from %s any more.\n", host, b.Name)
	} else {
		fmt.Fprintf(g.streams.Out, "%s was not exposed to %s; nothing was changed.\n", host, b.Name)
	}
	return nil
}
