package cli

import (
	"cmp"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/peering"
)

func newRotateKeys(g *globals) *cobra.Command {
	var out *output
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
		RunE:              func(cmd *cobra.Command, args []string) error { return g.rotateKeys(cmd, args, out) },
	}
	addTimeout(cmd, 5*time.Minute)
	cmd.Flags().Bool("psk-only", false, "replace the pre-shared keys only")
	out = addOutput(cmd.Flags())
	return cmd
}

func (g *globals) rotateKeys(cmd *cobra.Command, args []string, out *output) error {
	ctx, start := cmd.Context(), time.Now()
	clusters, err := g.clusters(ctx, args...)
	if err = cmp.Or(err, checkDistinct(clusters)); err != nil {
		return err
	}
	a, b := clusters[0], clusters[1]
	var o peering.Rotation
	o.PresharedOnly, _ = cmd.Flags().GetBool("psk-only")
	result, err := peering.Rotate(ctx, a, b, o, newProgress(g.streams.Err))
	if err != nil {
		return err
	}
	if !out.forPeople() {
		doc := &peerResult{Changed: result.Changed, Peerings: result.Views[:], Notes: result.Notes}
		return out.print(g.streams.Out, "RotateKeysResult", doc, doc.Peerings, peeringNames(doc.Peerings))
	}
	g.out().printf("%s and %s have new keys, %.1f s after the command.\n", a.Name, b.Name, time.Since(start).Seconds())
	g.out().printExchanges(clusters, result.Views[:])
	g.out().printNotes(result.Notes)
	return nil
}
