package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

func newPeer(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "peer CLUSTER CLUSTER",
		Short: "Make the pods of two clusters reach each other",
		Long: `Make the pods of two clusters reach each other: install the agents if they are
missing, find address ranges without conflicts, generate WireGuard keys, push
the configuration, and wait until packets pass.

It can be repeated at any time, and changes only what needs to be changed. If it
fails, it rolls back.

With --mesh, every two of the given clusters are peered, with --spokes, the
given cluster with each of the spokes. With --dry-run, the plan is printed, and
nothing is changed. With --exit-code as well, the exit code is 12 if something
would be changed.

With -f, clusters and flags are read from a YAML file, which can be kept in Git:

  clusters: [cluster-a, cluster-b]
  planes: 2
  map: [cluster-a=10.60.0.0/16]`,
		Example: `  kubectl liqonet peer cluster-a cluster-b
  kubectl liqonet peer a.conf b.conf --dry-run
  kubectl liqonet peer a.conf#admin@one cluster-b --service-type LoadBalancer
  kubectl liqonet peer cluster-a cluster-b --map cluster-a=10.60.0.0/16
  kubectl liqonet peer cluster-a cluster-b --service-type cluster-a=NodePort:31820 --endpoint cluster-a=203.0.113.5:31820
  kubectl liqonet peer cluster-a cluster-b cluster-c --mesh
  kubectl liqonet peer hub --spokes cluster-a,cluster-b
  kubectl liqonet peer -f peering.yaml`,
		Args: pairArgs,
	}
	f := cmd.Flags()
	addPairFlags(f)
	addOverrideFlags(f)
	f.StringP(fileFlag, "f", "", "YAML `FILE` with clusters and values for flags, by their names")
	f.Bool("replace", false, "peer with a cluster that has the ID of a known peer but none of its keys, because it has lost them or was restored")
	f.Bool("adopt-namespace", false, "use an existing namespace liqonet-system that liqonet has not created: everyone with permissions in it is trusted")
	f.Bool("keep-failed", false, "if a new peering fails, keep its objects, without a data path, until the next peer or unpeer")
	groupFlags(f, "Flags for existing clusters and objects", "replace", "adopt-namespace", "fingerprint", "keep-failed")
	dryRun := f.Bool("dry-run", false, "print what would be done and why, and change nothing")
	exitCode := f.Bool("exit-code", false, "with --dry-run: exit with code 12 if something would be changed")
	out, timeline := output.AddFlag(f), &kube.Timeline{}
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		if g.verbosity > 0 {
			cmd.SetContext(kube.WithTimeline(cmd.Context(), timeline))
		}
	}
	return runPerNode(cmd, 2*time.Minute, func(cmd *cobra.Command, args []string, extend extendTimeout) error {
		if *exitCode && !*dryRun {
			return commandLineError(cmd, errors.New("--exit-code requires --dry-run"))
		}
		defer func() { g.printTimeline(timeline.Waits()) }()
		return g.peer(cmd, args, extend, out, *dryRun, *exitCode)
	})
}

// peerResult is the output of peer for programs. Peerings are as in the output of status.
type peerResult struct {
	Changed  []string      `json:"changed"`
	Peerings []status.View `json:"peerings"`
	// Identities are the keys by which peers recognize the clusters.
	Identities []peering.Identity `json:"identities"`
	// Notes list what was concluded without being read, and what was left out.
	Notes []string `json:"notes,omitempty"`
}

func (g *globals) peer(cmd *cobra.Command, args []string, extend extendTimeout, out *output.Format, dryRun, exitCode bool) error {
	ctx := cmd.Context()
	refs, hub := parseMembers(cmd.Flags(), args)
	clusters, pairs, err := g.connectPairs(ctx, refs, hub)
	if err != nil {
		return err
	}
	pairs, failed := splitFailed(pairs, func(p peering.Pair) error { return identifyErrors(p[:]...) })
	o, err := peerOptions(cmd.Flags(), refs, clusters)
	if err != nil {
		return commandLineError(cmd, err)
	}
	if len(pairs) == 0 || dryRun && len(failed) > 0 {
		return pairFailures(failed)
	}
	if dryRun {
		plans, err := peering.PlanAll(ctx, pairs, o, newProgress(g))
		if err != nil {
			return err
		}
		err = printPlans(out, g.streams.Out, plans)
		if err == nil && exitCode && slices.ContainsFunc(plans, func(p *plan.Plan) bool { return p.Changes() > 0 }) {
			err = exitError(ExitDiffers)
		}
		return err
	}
	ctx, cancel := extend(pairs)
	defer cancel()
	outcomes := append(peering.PeerAll(ctx, pairs, o, g.progress(pairs)), failed...)
	peered := lo.Filter(outcomes, func(o peering.Outcome, _ int) bool { return o.Err == nil })
	result := &peerResult{
		Changed:    lo.FlatMap(outcomes, func(o peering.Outcome, _ int) []string { return o.Result.Changed }),
		Peerings:   lo.FlatMap(peered, func(o peering.Outcome, _ int) []status.View { return o.Result.Views[:] }),
		Notes:      lo.FlatMap(peered, func(o peering.Outcome, _ int) []string { return o.Result.Notes }),
		Identities: lo.Uniq(lo.FlatMap(peered, func(o peering.Outcome, _ int) []peering.Identity { return o.Result.Identities[:] })),
	}
	if !out.HumanReadable() {
		err = out.Print(g.streams.Out, "PeerResult", result, result.Peerings, peeringNames(result.Peerings))
		return cmp.Or(pairFailures(outcomes), err)
	}
	for _, outcome := range peered {
		a, b := outcome.Result.Views[0].Cluster, outcome.Result.Views[1].Cluster
		if len(outcome.Result.Changed) == 0 {
			g.out().Printf("%s and %s are already peered; nothing was changed.\n", a, b)
		} else {
			g.out().Printf("%s and %s are peered (%.1f s).\n", a, b, g.seconds())
		}
	}
	printRanges(out, g.streams.Out, result.Peerings...)
	for _, i := range result.Identities {
		g.out().Printf("Identity of %s: %s\n", i.Cluster, i.Fingerprint)
	}
	printExchanges(g.out(), clusters, result.Peerings)
	g.out().PrintEach("Note: %s\n", result.Notes)
	return pairFailures(outcomes)
}

// printExchanges prints which key exchanges protected the pre-shared keys on their way to the clusters.
func printExchanges(t output.Text, clusters []*kube.Cluster, views []status.View) {
	says := map[kube.KeyExchange]string{
		kube.Hybrid:             "Pre-shared keys reached %s over TLS 1.3 with a hybrid (post-quantum) key exchange, up to each address.\n",
		kube.Classical:          "Pre-shared keys reached %s over a classical key exchange: a quantum computer may decrypt recordings of it.\n",
		kube.UnknownKeyExchange: "It is not known which key exchange protected pre-shared keys on their way to %s.\n",
	}
	for _, exchange := range []kube.KeyExchange{kube.Hybrid, kube.Classical, kube.UnknownKeyExchange} {
		reached := lo.FilterMap(clusters, func(c *kube.Cluster, _ int) (string, bool) {
			return fmt.Sprintf("%s (%s)", c.Name, c.URL), slices.ContainsFunc(views, func(v status.View) bool {
				return v.ClusterID == c.ID && v.PresharedKeyExchange == exchange
			})
		})
		if len(reached) > 0 {
			t.Printf(says[exchange], strings.Join(reached, ", "))
		}
	}
}

func newUnpeer(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "unpeer CLUSTER CLUSTER",
		Short: "Remove the peering of two clusters and leave nothing behind",
		Long: `Remove the peering of two clusters from both, and the agents if it was the last
one. It waits until the nodes' kernels are clean. If the clusters are not
peered, it succeeds.

The first cluster must respond. It is cleaned even if the second one does not
respond within 10 s, or refuses; the exit code is then 8. With --force, the
second one is not contacted. With --peer, it needs no kubeconfig either.

With --mesh, the peerings of every two of the given clusters are removed, with
--spokes, those of the given cluster with each of the spokes.

With --dry-run, the objects are printed that would be deleted, and nothing is
changed. If the second cluster does not respond or refuses, its objects are not
listed.`,
		Example: `  kubectl liqonet unpeer cluster-a cluster-b
  kubectl liqonet unpeer cluster-a cluster-b --dry-run
  kubectl liqonet unpeer cluster-a --peer cluster-b
  kubectl liqonet unpeer cluster-a cluster-b cluster-c --mesh
  kubectl liqonet unpeer hub --spokes cluster-a,cluster-b`,
	}
	f := cmd.Flags()
	addPairFlags(f)
	force := f.Bool("force", false, "do not contact the second cluster: remove only the first one's side")
	peer := f.String("peer", "", "`NAME` or ID of a peer that is not contacted, as shown by status or kubectl get peerings, instead of the second cluster")
	dryRun := f.Bool("dry-run", false, "print what would be deleted, and change nothing")
	format := output.AddFlag(f)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		mesh, _ := f.GetBool("mesh")
		_, hub := parseMembers(f, args)
		switch {
		case f.Changed("output") && f.Lookup("output").Annotations[loadedKey] == nil && !*dryRun:
			return errors.New("--output requires --dry-run")
		case !*force && *peer == "":
			return pairArgs(cmd, args)
		case mesh || hub:
			return errors.New("--force and --peer cannot be combined with --mesh or --spokes")
		case *peer != "":
			return exactArgs(1, "one cluster")(cmd, args)
		}
		return exactArgs(2, "two clusters")(cmd, args)
	}
	return runPerNode(cmd, 2*time.Minute, func(cmd *cobra.Command, args []string, extend extendTimeout) error {
		pairs, failed, err := g.pairsToRemove(cmd, args, *force, *peer)
		switch {
		case err != nil || len(pairs) == 0:
			return cmp.Or(err, pairFailures(failed))
		case !*dryRun:
			return unpeer(g, pairs, failed, extend)
		}
		removals, err := peering.PlanRemovals(cmd.Context(), pairs)
		if err == nil {
			err = printRemovals(format, g.streams.Out, removals)
		}
		return cmp.Or(err, pairFailures(failed))
	})
}

func unpeer(g *globals, pairs []peering.Pair, failed []peering.Outcome, extend extendTimeout) error {
	ctx, cancel := extend(pairs)
	defer cancel()
	outcomes := append(peering.UnpeerAll(ctx, pairs, g.progress(pairs)), failed...)
	for _, out := range outcomes {
		if e, is := errors.AsType[*kube.Error](out.Err); out.Err == nil || is && e.Kind == kube.OneSided {
			g.printRemoved(out)
		}
	}
	return pairFailures(outcomes)
}

// pairsToRemove returns the pairs of a command line, and those that fail because their first cluster does not respond. If the second one
// does not respond, or must not be contacted, the first one is cleaned all the same.
func (g *globals) pairsToRemove(cmd *cobra.Command, args []string, force bool, skipped string) ([]peering.Pair, []peering.Outcome, error) {
	ctx := cmd.Context()
	if force && skipped == "" {
		skipped = args[1]
		if c, err := g.source.Resolve(skipped); err == nil {
			skipped = c.Name
		}
	}
	if skipped != "" {
		clusters, err := g.clusters(ctx, args[0])
		if err != nil {
			return nil, nil, err
		}
		return []peering.Pair{{clusters[0], &kube.Cluster{Name: skipped, SkipReason: kube.ErrSkipped}}}, nil, nil
	}
	refs, hub := parseMembers(cmd.Flags(), args)
	_, pairs, err := g.connectPairs(ctx, refs, hub)
	pairs, failed := splitFailed(pairs, func(p peering.Pair) error { return p[0].SkipReason })
	return pairs, failed, err
}

func (g *globals) printRemoved(out peering.Outcome) {
	a, b := out.Pair[0].Name, out.Pair[1].Name
	done := false
	for i, r := range out.Removed {
		if len(r.Skipped) > 0 {
			nodes := lo.Map(r.Skipped, func(node string, _ int) string { return output.OneLine(node) })
			g.err().Printf("Warning: cluster %q: nodes that are not ready could not be cleaned: %s. "+
				"To clean them, reboot them or run there: liqonet-agent purge\n", out.Pair[i].Name, output.Lines(strings.Join(nodes, ", ")))
		}
		if r.Agents {
			g.out().Printf("%s: the agents are removed too, as it has no other peering.\n", out.Pair[i].Name)
		}
		done = done || r.Peering || r.Agents
	}
	seconds, others := g.seconds(), out.Removed[0].PeerNames
	switch {
	case done && (out.Err != nil || out.Pair[1].SkipReason != nil):
		g.out().Printf("%s no longer has a peering with %s (%.1f s). %s may still have its side.\n", a, b, seconds, b)
	case done:
		g.out().Printf("%s and %s are no longer peered (%.1f s).\n", a, b, seconds)
	case len(others) > 0:
		g.out().Printf("%s has no peer named %s; nothing was changed. If you mean one of %s: kubectl liqonet unpeer %s --peer NAME\n", a, b, strings.Join(others, ", "), failure.Quote(a))
	default:
		g.out().Printf("%s and %s are not peered; nothing was changed.\n", a, b)
	}
}

// addPairFlags adds the flags for more than two clusters.
func addPairFlags(f *pflag.FlagSet) {
	f.Bool("mesh", false, "every two of the given clusters")
	f.StringSlice("spokes", nil, "the given cluster with each of these `CLUSTERS`, separated by commas")
}

// pairArgs validates the arguments together with these flags.
func pairArgs(cmd *cobra.Command, args []string) error {
	mesh, _ := cmd.Flags().GetBool("mesh")
	_, hub := parseMembers(cmd.Flags(), args)
	args = slices.Concat(args, clustersOfFile(cmd.Flags()))
	switch {
	case mesh && hub:
		return errors.New("--mesh and --spokes cannot be combined")
	case hub:
		return exactArgs(1, "one cluster")(cmd, args)
	case mesh:
		return cobra.MinimumNArgs(2)(cmd, args)
	case len(args) > 2:
		return errors.New("more than 2 clusters need --mesh or --spokes")
	}
	return exactArgs(2, "two clusters")(cmd, args)
}

// parseMembers returns the clusters of a command line. If hub is true, the first one forms a pair with each of the others. If not, every
// two form a pair.
func parseMembers(f *pflag.FlagSet, args []string) (refs []string, hub bool) {
	spokes, _ := f.GetStringSlice("spokes")
	return slices.Concat(args, clustersOfFile(f), spokes), len(spokes) > 0
}

func clustersOfFile(f *pflag.FlagSet) []string {
	return lo.FromPtr(f.Lookup(fileFlag)).Annotations[clustersKey]
}

// connectPairs connects to all clusters, and returns the pairs that they form.
func (g *globals) connectPairs(ctx context.Context, refs []string, hub bool) (clusters []*kube.Cluster, pairs []peering.Pair, err error) {
	clusters, err = g.source.Identify(ctx, refs)
	if err = cmp.Or(interrupted(ctx, "identify the clusters"), err, kube.Distinct(identified(clusters)...)); err != nil {
		return nil, nil, err
	}
	for i, a := range clusters {
		for _, b := range clusters[i+1:] {
			if i == 0 || !hub {
				pairs = append(pairs, peering.Pair{a, b})
			}
		}
	}
	return clusters, pairs, nil
}

// splitFailed returns the pairs without a reason to fail, and the outcomes of the others.
func splitFailed(pairs []peering.Pair, reason func(peering.Pair) error) (can []peering.Pair, failed []peering.Outcome) {
	can, cannot := lo.FilterReject(pairs, func(p peering.Pair, _ int) bool { return reason(p) == nil })
	return can, lo.Map(cannot, func(p peering.Pair, _ int) peering.Outcome { return peering.Outcome{Pair: p, Err: reason(p)} })
}

// progress returns the reporters of pairs. If there are several, each line begins with the name of the pair.
func (g *globals) progress(pairs []peering.Pair) func(peering.Pair) kube.Reporter {
	return func(p peering.Pair) kube.Reporter {
		if len(pairs) == 1 {
			return kube.TimedReporter{Reporter: newProgress(g), Scope: p.String()}
		}
		return kube.TimedReporter{Reporter: output.PlainProgress{W: g.streams.Err, Prefix: p.String() + ": "}, Scope: p.String()}
	}
}

// pairFailures returns the error of the failed pairs, or nil if none failed.
func pairFailures(outcomes []peering.Outcome) error {
	return failuresOf("pairs", outcomes, func(o peering.Outcome) (string, error) { return o.Pair.String(), o.Err })
}

func newRotateKeys(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate-keys CLUSTER CLUSTER",
		Short: "Replace the keys of a peering without losing packets",
		Long: `Replace the keys of the peering of two clusters: the WireGuard keys, the
pre-shared keys, and those of the overlay between nodes and gateways.

It replaces the gateways of one plane after the other, while packets take
another plane. A peering with one plane gets a second, temporary one, unless
--endpoint or NodePort:PORT sets the address of its gateway: then packets are
lost until the gateway runs again.

If a plane does not work with its new keys, the previous ones are restored. If
the command is interrupted, run it again: it starts over. It waits for other
commands that replace keys or agents of one of the clusters.`,
		Example: `  kubectl liqonet rotate-keys cluster-a cluster-b
  kubectl liqonet rotate-keys cluster-a cluster-b --psk-only`,
		Args: exactArgs(2, "two clusters"),
	}
	presharedOnly := cmd.Flags().Bool("psk-only", false, "replace the pre-shared keys only")
	out := output.AddFlag(cmd.Flags())
	return g.pairCommand(cmd, 5*time.Minute, func(ctx context.Context, a, b *kube.Cluster, _ []string) error {
		if err := kube.Distinct(identified([]*kube.Cluster{a, b})...); err != nil {
			return err
		}
		result, err := peering.Rotate(ctx, a, b, peering.Rotation{PresharedOnly: *presharedOnly}, newProgress(g))
		if err != nil {
			return err
		}
		if !out.HumanReadable() {
			doc := &peerResult{Changed: result.Changed, Peerings: result.Views[:], Identities: result.Identities[:], Notes: result.Notes}
			return out.Print(g.streams.Out, "RotateKeysResult", doc, doc.Peerings, peeringNames(doc.Peerings))
		}
		g.out().Printf("%s and %s have new keys (%.1f s).\n", a.Name, b.Name, g.seconds())
		printExchanges(g.out(), []*kube.Cluster{a, b}, result.Views[:])
		g.out().PrintEach("Note: %s\n", result.Notes)
		return nil
	})
}

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
		Args: cobra.MinimumNArgs(1),
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
	if err = cmp.Or(err, kube.Distinct(identified(clusters)...)); err != nil {
		return err
	}
	if dryRun {
		plans, err := peering.PlanUpgrades(ctx, clusters, o, newProgress(g))
		if err != nil {
			return err
		}
		return printUpgrades(out, g.streams.Out, plans)
	}
	upgraded, err := peering.UpgradeAll(ctx, clusters, o, newProgress(g))
	if err != nil {
		return err
	}
	done := lo.Filter(upgraded, func(u peering.Upgraded, _ int) bool { return u.Err == nil })
	if out.HumanReadable() {
		for _, u := range done {
			if len(u.Changed) == 0 {
				g.out().Printf("%s already has agents of version %s; nothing was changed.\n", u.Cluster, u.To)
			} else {
				g.out().Printf("%s has agents of version %s (%.1f s); before, they had %s.\n", u.Cluster, u.To, g.seconds(), u.From)
			}
		}
		for _, u := range done {
			g.out().PrintEach("Note: %s\n", u.Notes)
		}
	} else {
		names := lo.Map(done, func(u peering.Upgraded, _ int) string { return u.Cluster + " daemonset.apps/liqonet-node" })
		err = out.Print(g.streams.Out, "UpgradeResult", map[string]any{"clusters": done}, done, names)
	}
	return cmp.Or(failuresOf("clusters", upgraded, func(u peering.Upgraded) (string, error) { return u.Cluster, u.Err }), err)
}

// printUpgrades prints the plans of upgrade --dry-run.
func printUpgrades(o *output.Format, w io.Writer, plans *plan.Upgrades) error {
	changes := lo.SumBy(plans.Clusters, (*plan.Upgrade).Changes)
	if !o.HumanReadable() {
		names := lo.FlatMap(plans.Clusters, func(u *plan.Upgrade, _ int) []string { return changedObjects(u.Cluster, u.Objects) })
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
	} else {
		output.To(w).Printf("%d objects would be created or changed. To do so, run the command without --dry-run.\n", changes)
	}
	return nil
}

// changedObjects returns the names of the objects of a cluster that would be created, changed or deleted, each after the cluster's name.
func changedObjects(cluster string, objects []plan.ObjectPlan) []string {
	return lo.FilterMap(objects, func(o plan.ObjectPlan, _ int) (string, bool) {
		gk := schema.FromAPIVersionAndKind(o.APIVersion, o.Kind).GroupKind()
		return cluster + " " + strings.ToLower(gk.Kind) + strings.TrimSuffix("."+gk.Group, ".") + "/" + o.Name, o.Action != plan.Keep
	})
}

// printPlans prints all plans.
func printPlans(o *output.Format, w io.Writer, plans []*plan.Plan) error {
	if !o.HumanReadable() {
		clusters := lo.FlatMap(plans, func(p *plan.Plan, _ int) []plan.ClusterPlan { return p.Clusters[:] })
		names := lo.FlatMap(clusters, func(c plan.ClusterPlan, _ int) []string { return changedObjects(c.Cluster, c.Objects) })
		return o.Print(w, "Plan", map[string]any{"plans": plans}, plans, names)
	}
	for _, p := range plans {
		printPlan(o, w, p)
	}
	return nil
}

// printPlan prints a plan as tables.
func printPlan(o *output.Format, w io.Writer, p *plan.Plan) {
	a, b := &p.Clusters[0], &p.Clusters[1]
	output.To(w).Printf("Plan to peer %s and %s; nothing was changed.\n", a.Cluster, b.Cluster)
	for _, c := range []*plan.ClusterPlan{a, b} {
		output.To(w).Printf("\nCluster %s (%s)\n", c.Cluster, c.ClusterID)
		o.Section(w, []string{"known", "value", "from"}, statements(c.Facts))
		o.Section(w, []string{"chosen", "value", "because"}, statements(c.Choices))
		o.Section(w, []string{"key", "value", "because"}, statements(c.Keys))
		o.Section(w, []string{"called at", "value", "because"}, statements(c.Endpoints))
		o.Section(w, []string{"range", "real", "here", "because"}, lo.Map(c.Ranges, func(r plan.RangePlan, _ int) []any {
			real, mapped := r.Real.String(), r.Mapped.String()
			if r.DuringRun {
				real, mapped = "-", "-"
			}
			return []any{r.Subject, real, mapped, remark(r.Reason, r.Assumed, r.DuringRun)}
		}))
		o.Section(w, []string{"action", "object", "what for"}, objectRows(c.Objects))
		output.To(w).PrintEach("Note: %s\n", slices.Concat(c.Warnings, c.Notes))
	}
	if p.Changes() == 0 {
		output.To(w).Printf("\n%s and %s are peered as planned: nothing would be changed.\n", a.Cluster, b.Cluster)
		return
	}
	output.To(w).Printf("\n%d objects would be created or changed. To do so, run the command without --dry-run.\n", p.Changes())
}

// printRemovals prints what unpeer would delete.
func printRemovals(o *output.Format, w io.Writer, removals []peering.Removal) error {
	if !o.HumanReadable() {
		names := lo.FlatMap(removals, func(r peering.Removal, _ int) []string { return changedObjects(r.Cluster, r.Objects) })
		return o.Print(w, "UnpeerPlan", map[string]any{"clusters": removals}, removals, names)
	}
	for _, r := range removals {
		if r.Refused != "" {
			output.To(w).Printf("Cluster %s: its objects are not listed: %s.\n\n", r.Cluster, r.Refused)
			continue
		}
		output.To(w).PrintEach("Note: %s\n", r.Notes)
		agents := lo.Ternary(r.Agents, "no peering remains, and so no agents", "the node agents stay, as other peerings need them")
		output.To(w).Printf("Cluster %s (%s): %s.\n", r.Cluster, r.ClusterID, agents)
		o.Section(w, []string{"action", "object", "what for"}, objectRows(r.Objects))
		output.To(w).Printf("\n")
	}
	count := lo.SumBy(removals, func(r peering.Removal) int { return len(r.Objects) })
	where := lo.Ternary(lo.ContainsBy(removals, func(r peering.Removal) bool { return r.Refused != "" }), " in the other clusters", "")
	output.To(w).Printf("%d objects would be deleted%s; nothing was changed. To do so, run the command without --dry-run.\n", count, where)
	return nil
}

func statements(in []plan.Statement) [][]any {
	return lo.Map(in, func(s plan.Statement, _ int) []any {
		return []any{s.Subject, s.Value.String(), remark(s.Reason, s.Assumed, s.DuringRun)}
	})
}

func objectRows(objects []plan.ObjectPlan) [][]any {
	return lo.Map(objects, func(o plan.ObjectPlan, _ int) []any {
		reason := o.Reason
		if o.Creator != "" {
			reason += "; created by " + o.Creator
		}
		return []any{o.Action, o.Kind + " " + path.Join(o.Namespace, o.Name), reason}
	})
}

// remark returns the reason, prefixed with how certain it is.
func remark(reason string, assumed, duringRun bool) string {
	if assumed {
		reason = "assumed: " + reason
	}
	if duringRun {
		reason = "known during the run: " + reason
	}
	return reason
}
