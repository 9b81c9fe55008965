package cli

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"time"

	"github.com/samber/lo"
	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/status"
)

func newMap(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "map A B NAMESPACE/POD|NAMESPACE/SERVICE|ADDRESS",
		Short: "Print the address by which cluster B reaches a pod of cluster A",
		Long: `Print the address by which cluster B reaches a pod or an address of cluster A.
The addresses of services themselves are not reachable: for a service, the
addresses and ports of its endpoints are printed, one per line.

With --reverse, print the address in cluster A for an address that cluster B
uses.`,
		Example: `  kubectl liqonet map cluster-a cluster-b default/web-0
  kubectl liqonet map cluster-a cluster-b 10.244.1.7
  kubectl liqonet map cluster-a cluster-b default/web
  kubectl liqonet map cluster-a cluster-b 10.92.1.7 --reverse`,
		Args: exactArgs(3, "two clusters, and a pod, a service or an address"),
	}
	reverse := cmd.Flags().Bool("reverse", false, "print the address in cluster A for an address that cluster B uses")
	return g.pairCommand(cmd, 15*time.Second, func(ctx context.Context, a, b *kube.Cluster, args []string) error {
		if err := compareIdentities(ctx, g.err(), a, b); err != nil {
			return err
		}
		addrs, err := lo.Ternary(*reverse, status.MapFromPeer, status.MapToPeer)(ctx, a, b, args[2])
		g.out().PrintEach("%s\n", addrs)
		return err
	})
}

func newExposeHost(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "expose-host A B ADDRESS",
		Short: "Let cluster B reach a host outside of cluster A",
		Long: `Let the pods and nodes of cluster B reach a host outside of both clusters that
the nodes of cluster A reach. Prints the address by which B reaches it. The host
sees connections from a node of A, needs no configuration, and cannot reach B.`,
		Example: `  kubectl liqonet expose-host cluster-a cluster-b 192.168.1.50
  kubectl liqonet expose-host cluster-a cluster-b 192.168.1.50 --remove
  kubectl liqonet expose-host cluster-a cluster-b --list`,
	}
	remove := cmd.Flags().Bool("remove", false, "stop exposing the host")
	list := cmd.Flags().Bool("list", false, "list the hosts of A that B reaches; status -o json lists them, too")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case *list && *remove:
			return errors.New("--list and --remove cannot be combined")
		case *list:
			return exactArgs(2, "two clusters")(cmd, args)
		}
		return exactArgs(3, "two clusters and the address of a host")(cmd, args)
	}
	var host netip.Addr
	cmd.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if *list {
			return nil
		}
		if host, err = netip.ParseAddr(args[2]); err != nil {
			return failure.Usagef("name the host by its IP address, such as 192.168.1.50", "%q is not an address", args[2])
		}
		return nil
	}
	return g.pairCommand(cmd, 30*time.Second, func(ctx context.Context, a, b *kube.Cluster, _ []string) error {
		if *list {
			if err := compareIdentities(ctx, g.err(), a, b); err != nil {
				return err
			}
			return listHosts(ctx, g.streams.Out, a, b)
		}
		if !*remove {
			mapped, err := peering.ExposeHost(ctx, a, b, host, newProgress(g))
			if err == nil {
				g.out().Printf("%s\n", mapped)
			}
			return err
		}
		was, err := peering.UnexposeHost(ctx, a, b, host, newProgress(g))
		switch {
		case err != nil:
			return err
		case was:
			g.out().Printf("%s is no longer reachable from %s.\n", host, b.Name)
		default:
			g.out().Printf("%s was not exposed to %s; nothing was changed.\n", host, b.Name)
		}
		return nil
	})
}

// listHosts prints the hosts of a cluster that its peer reaches.
func listHosts(ctx context.Context, w io.Writer, a, b *kube.Cluster) error {
	p, _, err := status.PeeringWith(ctx, a, b)
	if err != nil {
		return err
	}
	hosts := lo.Map(status.Hosts(p), func(h status.Host, _ int) []any { return []any{h.Address, h.Mapped} })
	(&output.Format{}).Table(w, []string{"host", "seen by " + b.Name + " as"}, hosts)
	return nil
}
