package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/peering"
)

func newRotateKeys(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate-keys CLUSTER CLUSTER",
		Short: "Give the peering of two clusters new keys, without losing packets",
		Long: `Give the peering of two clusters new keys: those of WireGuard, the pre-shared
ones, and those of the overlay between nodes and gateways.

It replaces the gateways of one plane after the other. Packets take another
plane meanwhile. A peering with one plane gets a second one for that time,
unless --endpoint or NodePort:PORT named where its one gateway is called: then
packets are lost until that runs again.

A plane that does not work with its new keys gets those before back. If the
command is interrupted, run it again: it begins anew. Another one that replaces
keys or agents of one of the clusters is waited for.`,
		Example: `  kubectl liqonet rotate-keys cluster-a cluster-b
  kubectl liqonet rotate-keys cluster-a cluster-b --psk-only`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: g.completeContexts(2),
	}
	presharedOnly := cmd.Flags().Bool("psk-only", false, "replace the pre-shared keys only")
	out := addOutput(cmd.Flags())
	cmd.RunE = g.withTwo(func(ctx context.Context, a, b *kube.Cluster, _ []string) error {
		if err := checkDistinct(a, b); err != nil {
			return err
		}
		result, err := peering.Rotate(ctx, a, b, peering.Rotation{PresharedOnly: *presharedOnly}, newProgress(g.streams.Err))
		if err != nil {
			return err
		}
		if !out.forPeople() {
			doc := &peerResult{Changed: result.Changed, Peerings: result.Views[:], Notes: result.Notes}
			return out.print(g.streams.Out, "RotateKeysResult", doc, doc.Peerings, peeringNames(doc.Peerings))
		}
		g.out().printf("%s and %s have new keys, %.1f s after the command.\n", a.Name, b.Name, g.seconds())
		g.out().printExchanges([]*kube.Cluster{a, b}, result.Views[:])
		g.out().printEach("Note: %s\n", result.Notes)
		return nil
	})
	addTimeout(cmd, 5*time.Minute)
	return cmd
}
