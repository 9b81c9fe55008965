package cli

import (
	"cmp"
	"errors"
	"io"
	"math"
	"time"

	"github.com/samber/lo"
	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/connect"
	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
)

func newUpgrade(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "upgrade CLUSTER…",
		Short: "Upgrade the agents of clusters to this command's version",
		Long: `Upgrade the agents of clusters to this command's version: first the definitions,
then the agents of one node and of a quarter of the nodes at a time, then the
gateways of one plane after the other, while packets take another plane.

Probes are checked after each step. If packets are lost, the changes in that
cluster are rolled back, except the additions to the definitions.
If the command is interrupted, run it again: it continues.

Only the named clusters are changed. Their peers may have the previous version
or the next one. A peering with one plane gets a second, temporary one if both
of its clusters are named. If not, its packets stop while its gateway starts.`,
		Example: `  kubectl liqonet upgrade cluster-a cluster-b --dry-run
  kubectl liqonet upgrade cluster-a cluster-b
  kubectl liqonet upgrade cluster-a --agent-image registry.example/liqonet-agent:v0.2.0`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: g.completeContexts(math.MaxInt),
	}
	f := cmd.Flags()
	f.String("agent-image", "", "`IMAGE` of the agents of this command's version (default: the published one)")
	dryRun := f.Bool("dry-run", false, "print what would be done and why, and change nothing")
	out := output.AddFlag(f)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return g.upgrade(cmd, args, out, *dryRun) }
	return addTimeout(cmd, 15*time.Minute)
}

func (g *globals) upgrade(cmd *cobra.Command, args []string, out *output.Format, dryRun bool) error {
	ctx := cmd.Context()
	image, err := agentImage(cmd.Flags())
	if err != nil {
		return commandLineError(cmd, err)
	}
	o := peering.UpgradeOptions{Image: image}
	clusters, err := g.clusters(ctx, args...)
	if err = cmp.Or(err, connect.Distinct(clusters...)); err != nil {
		return err
	}
	if dryRun {
		plans, err := peering.PlanUpgrades(ctx, clusters, o, newProgress(g.streams.Err))
		if err != nil {
			return err
		}
		return printUpgrades(out, g.streams.Out, plans)
	}
	upgraded, err := peering.UpgradeAll(ctx, clusters, o, newProgress(g.streams.Err))
	if err != nil {
		return err
	}
	done := lo.Filter(upgraded, func(u peering.Upgraded, _ int) bool { return u.Err == nil })
	if out.HumanReadable() {
		for _, u := range done {
			g.printUpgraded(u)
		}
		for _, u := range done {
			g.out().PrintEach("Note: %s\n", u.Notes)
		}
	} else {
		names := lo.Map(done, func(u peering.Upgraded, _ int) string { return u.Cluster + " daemonset.apps/liqonet-node" })
		err = out.Print(g.streams.Out, "UpgradeResult", map[string]any{"clusters": done}, done, names)
	}
	return errors.Join(err, failuresOf("clusters", upgraded, func(u peering.Upgraded) (string, error) { return u.Cluster, u.Err }))
}

func (g *globals) printUpgraded(u peering.Upgraded) {
	if len(u.Changed) == 0 {
		g.out().Printf("%s already has agents of version %s; nothing was changed.\n", u.Cluster, u.To)
		return
	}
	g.out().Printf("%s has agents of version %s (%.1f s); before, they had %s.\n", u.Cluster, u.To, g.seconds(), u.From)
}

// printUpgrades prints the plans of upgrade --dry-run.
func printUpgrades(o *output.Format, w io.Writer, plans *plan.Upgrades) error {
	changes := lo.SumBy(plans.Clusters, (*plan.Upgrade).Changes)
	if !o.HumanReadable() {
		names := lo.FlatMap(plans.Clusters, func(u *plan.Upgrade, _ int) []string { return changedOf(u.Cluster, u.Objects) })
		return o.Print(w, "UpgradePlan", plans, plans.Clusters, names)
	}
	for _, u := range plans.Clusters {
		output.To(w).Printf("Plan to upgrade %s (%s) from %s to %s; nothing was changed.\n", u.Cluster, u.ClusterID, u.From, u.To)
		o.Section(w, []string{"chosen", "value", "because"}, statements(u.Choices))
		o.Section(w, []string{"step", "what", "how"}, statements(u.Steps))
		o.Section(w, []string{"action", "object", "what for"}, objectRows(u.Objects))
		output.To(w).PrintEach("Note: %s\n", u.Notes)
		output.To(w).Printf("\n")
	}
	if changes == 0 {
		output.To(w).Printf("All agents already have that version: nothing would be changed.\n")
		return nil
	}
	output.To(w).Printf("%d objects would be created or changed. To do so, run the command without --dry-run.\n", changes)
	return nil
}
