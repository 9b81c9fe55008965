package cli

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
)

func newUpgrade(g *globals) *cobra.Command {
	var out *output
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "upgrade CLUSTER…",
		Short: "Bring the agents of clusters to this command's version",
		Long: `Bring the agents of clusters to this command's version: first the definitions,
then the agents of one node and of a quarter of the nodes at a time, then the
gateways of one plane after the other. Packets take another plane meanwhile.

Probes are looked at after each step. If packets are lost, what was changed in
that cluster goes back, but for the definitions, which are changed by addition
only. If the command is interrupted, run it again: it goes on.

Only the clusters that are named are touched. Their peers may have the version
before, or after. A peering with one plane gets a second one meanwhile if both
of its clusters are named. Otherwise its packets stop while its gateway starts.`,
		Example: `  kubectl liqonet upgrade cluster-a cluster-b --dry-run
  kubectl liqonet upgrade cluster-a cluster-b
  kubectl liqonet upgrade cluster-a --agent-image registry.example/liqonet-agent:v0.2.0`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: g.completeContexts(math.MaxInt),
		RunE:              func(cmd *cobra.Command, args []string) error { return g.upgrade(cmd, args, out, dryRun) },
	}
	addTimeout(cmd, 15*time.Minute)
	f := cmd.Flags()
	f.String("agent-image", "", "image of the agents of this command's version (default: the published one)")
	f.BoolVar(&dryRun, "dry-run", false, "print what would be done, and why, and change nothing")
	out = addOutput(f)
	return cmd
}

// upgradeResult is what upgrade prints for programs.
type upgradeResult struct {
	metav1.TypeMeta `json:",inline"`
	Clusters        []peering.Upgraded `json:"clusters"`
}

// DeepCopyObject returns the same document: nobody changes it.
func (d *upgradeResult) DeepCopyObject() runtime.Object { return d }

func (d *upgradeResult) items() any { return d.Clusters }

// upgradePlan is what upgrade --dry-run prints for programs.
type upgradePlan struct {
	metav1.TypeMeta `json:",inline"`
	*plan.Upgrades  `json:",inline"`
}

// DeepCopyObject returns the same document: nobody changes it.
func (d *upgradePlan) DeepCopyObject() runtime.Object { return d }

func (d *upgradePlan) items() any { return d.Clusters }

func (g *globals) upgrade(cmd *cobra.Command, args []string, out *output, dryRun bool) error {
	ctx, start := cmd.Context(), time.Now()
	var o peering.UpgradeOptions
	if o.Image, _ = cmd.Flags().GetString("agent-image"); o.Image != "" {
		if _, err := name.ParseReference(o.Image); err != nil {
			return commandLineError(cmd, fmt.Errorf("--agent-image: %w", err))
		}
	}
	clusters, err := g.clusters(ctx, args...)
	if err != nil {
		return err
	}
	for i, a := range clusters {
		for _, b := range clusters[i+1:] {
			if a.ID == b.ID {
				return usageError("name different clusters; see kubectl config get-contexts", "%q and %q are the same cluster", a.Name, b.Name)
			}
		}
	}
	if dryRun {
		plans, err := peering.PlanUpgrades(ctx, clusters, o, newProgress(g.streams.Err))
		if err != nil {
			return err
		}
		return out.printUpgrades(g.streams.Out, plans)
	}
	upgraded, err := peering.UpgradeAll(ctx, clusters, o, newProgress(g.streams.Err))
	if err != nil {
		return err
	}
	doc := &upgradeResult{TypeMeta: documentType("UpgradeResult"), Clusters: []peering.Upgraded{}}
	var names []string
	for _, u := range upgraded {
		if u.Err != nil {
			continue
		}
		doc.Clusters, names = append(doc.Clusters, u), append(names, "daemonset.apps/liqonet-node")
		switch {
		case !out.forPeople():
		case len(u.Changed) == 0:
			g.out().printf("%s has agents of %s already; nothing was changed.\n", u.Cluster, u.To)
		default:
			g.out().printf("%s has agents of %s, %.1f s after the command; before, they were of %s.\n", u.Cluster, u.To, time.Since(start).Seconds(), u.From)
		}
	}
	if out.forPeople() {
		for _, u := range doc.Clusters {
			for _, note := range u.Notes {
				g.out().printf("Note: %s\n", note)
			}
		}
	} else {
		err = out.print(g.streams.Out, doc, names)
	}
	return errors.Join(err, upgradeFailures(upgraded))
}

// upgradeFailures returns nil where no cluster failed. Where there is one cluster only, it returns that cluster's error.
func upgradeFailures(upgraded []peering.Upgraded) error {
	var failed []string
	var first error
	for _, u := range upgraded {
		if u.Err != nil {
			if first == nil {
				first = u.Err
			}
			failed = append(failed, fmt.Sprintf("  %s: %s", oneLine(u.Cluster), explain(u.Err, "    ")))
		}
	}
	if first == nil || len(upgraded) == 1 {
		return first
	}
	return &pairsError{lines(fmt.Sprintf("%d of %d clusters failed\n%s", len(failed), len(upgraded), strings.Join(failed, "\n"))), len(failed) < len(upgraded), first}
}

// printUpgrades prints what upgrade would do.
func (o *output) printUpgrades(w io.Writer, plans *plan.Upgrades) error {
	changes := 0
	var names []string
	for _, u := range plans.Clusters {
		changes += u.Changes()
		names = append(names, changedOf(u.Objects)...)
	}
	if !o.forPeople() {
		return o.print(w, &upgradePlan{documentType("UpgradePlan"), plans}, names)
	}
	for _, u := range plans.Clusters {
		text{w}.printf("Plan to upgrade %s (%s) from %s to %s; nothing was changed.\n", u.Cluster, u.ClusterID, u.From, u.To)
		o.printTables(w, []planTable{
			{[]string{"chosen", "value", "because"}, statements(u.Choices)},
			{[]string{"step", "what", "how"}, statements(u.Steps)},
			{[]string{"action", "object", "what for"}, objectRows(u.Objects)},
		})
		for _, note := range u.Notes {
			text{w}.printf("Note: %s\n", note)
		}
		text{w}.printf("\n")
	}
	if changes == 0 {
		text{w}.printf("All agents are of that version already: nothing would be changed.\n")
		return nil
	}
	text{w}.printf("%d objects would be made or changed: the same command without --dry-run does it.\n", changes)
	return nil
}
