package cli

import (
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/peering"
)

func newExposeHost(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "expose-host A B ADDRESS",
		Short: "Let cluster B reach one host beside cluster A",
		Long: `Let the pods and nodes of cluster B reach one host that cluster A's nodes reach
and that is in neither cluster. It prints the address by which B reaches it. The
host sees a node of A and needs to know nothing of all this; it cannot reach B.`,
		Example: `  kubectl liqonet expose-host cluster-a cluster-b 192.168.1.50
  kubectl liqonet expose-host cluster-a cluster-b 192.168.1.50 --remove`,
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: g.completeContexts(2),
		RunE:              g.exposeHost,
	}
	cmd.Flags().Bool("remove", false, "take it back")
	addTimeout(cmd, 30*time.Second)
	return cmd
}

func (g *globals) exposeHost(cmd *cobra.Command, args []string) error {
	host, err := netip.ParseAddr(args[2])
	if err != nil {
		return usageError("name the host by its IP address, such as 192.168.1.50", "%q is not an address", args[2])
	}
	ctx := cmd.Context()
	clusters, err := g.clusters(ctx, args[:2]...)
	if err != nil {
		return err
	}
	a, b := clusters[0], clusters[1]
	if remove, _ := cmd.Flags().GetBool("remove"); !remove {
		mapped, err := peering.ExposeHost(ctx, a, b, host, newProgress(g.streams.Err))
		if err == nil {
			g.out().printf("%s\n", mapped)
		}
		return err
	}
	was, err := peering.HideHost(ctx, a, b, host, newProgress(g.streams.Err))
	switch {
	case err != nil:
		return err
	case was:
		g.out().printf("%s cannot be reached from %s any more.\n", host, b.Name)
	default:
		g.out().printf("%s was not exposed to %s; nothing was changed.\n", host, b.Name)
	}
	return nil
}
