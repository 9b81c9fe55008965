package cli

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/peering"
)

func newUnpeer(g *globals) *cobra.Command {
	var forNodes moreTime
	cmd := &cobra.Command{
		Use:   "unpeer CLUSTER CLUSTER",
		Short: "Remove the peering of two clusters and leave nothing behind",
		Long: `Remove the peering of two clusters from both, and the agents where it was the
last one. It waits until the nodes' kernels are clean. Unpeering what is not
peered succeeds.

The first cluster has to answer. It is cleaned also if the second one does not
answer within 10 s, or refuses; the exit code is 8 then. With --force the second
one is not asked. With --peer it needs no kubeconfig any more.

With --mesh the peerings of every two of the clusters given are removed, with
--spokes those of the one given with each of them.`,
		Example: `  kubectl liqonet unpeer cluster-a cluster-b
  kubectl liqonet unpeer cluster-a --peer cluster-b
  kubectl liqonet unpeer cluster-a cluster-b cluster-c --mesh
  kubectl liqonet unpeer hub --spokes cluster-a,cluster-b`,
		Args:              unpeerArgs,
		ValidArgsFunction: g.completeContexts(math.MaxInt),
		RunE:              func(cmd *cobra.Command, args []string) error { return g.unpeer(cmd, args, forNodes) },
	}
	forNodes = addTimeoutByNodes(cmd, 2*time.Minute)
	f := cmd.Flags()
	addPairs(f)
	f.Bool("force", false, "do not ask the second cluster: remove the first one's side only")
	f.String("peer", "", "NAME or ID of a peer that is not asked, as status or kubectl get peerings shows it, in the place of the second cluster")
	return cmd
}

// unpeerArgs checks the arguments together with the flags.
func unpeerArgs(cmd *cobra.Command, args []string) error {
	force, _ := cmd.Flags().GetBool("force")
	peer := cmd.Flag("peer").Value.String()
	mesh, _ := cmd.Flags().GetBool("mesh")
	_, hub := members(cmd.Flags(), args)
	switch {
	case !force && peer == "":
		return pairArgs(cmd, args)
	case mesh || hub:
		return errors.New("--force and --peer are for two clusters: not with --mesh or --spokes")
	case peer != "":
		return cobra.ExactArgs(1)(cmd, args)
	}
	return cobra.ExactArgs(2)(cmd, args)
}

func (g *globals) unpeer(cmd *cobra.Command, args []string, forNodes moreTime) error {
	start := time.Now()
	pairs, failed, err := g.pairsToRemove(cmd, args)
	if err != nil {
		return err
	}
	ctx, cancel := forNodes(cmd.Context(), pairs)
	defer cancel()
	outcomes := append(peering.UnpeerAll(ctx, pairs, g.progress(pairs)), failed...)
	for _, out := range outcomes {
		if out.Err == nil || isOneSided(out.Err) {
			g.printRemoved(out, start)
		}
	}
	return failures(outcomes)
}

func isOneSided(err error) bool {
	e := (*kube.Error)(nil)
	return errors.As(err, &e) && e.Kind == kube.OneSided
}

// pairsToRemove are the pairs of a command line. Of a pair of which the second cluster does
// not answer the first one is cleaned all the same.
func (g *globals) pairsToRemove(cmd *cobra.Command, args []string) (pairs []peering.Pair, failed []peering.Outcome, err error) {
	ctx := cmd.Context()
	unasked := cmd.Flag("peer").Value.String()
	if force, _ := cmd.Flags().GetBool("force"); force && unasked == "" {
		unasked = args[1]
		if c, err := g.resolve(unasked); err == nil {
			unasked = c.Name
		}
	}
	if unasked != "" {
		clusters, err := g.clusters(ctx, args[0])
		if err != nil {
			return nil, nil, err
		}
		return []peering.Pair{{clusters[0], &kube.Cluster{Name: unasked, SkipReason: kube.ErrSkipped}}}, nil, nil
	}
	refs, hub := members(cmd.Flags(), args)
	_, pairs, failed, err = g.connectPairs(ctx, refs, hub)
	failed = slices.DeleteFunc(failed, func(o peering.Outcome) bool {
		answers := o.Pair[0].SkipReason == nil
		if answers {
			pairs = append(pairs, o.Pair)
		}
		return answers
	})
	return pairs, failed, err
}

func (g *globals) printRemoved(out peering.Outcome, start time.Time) {
	a, b := out.Pair[0].Name, out.Pair[1].Name
	done := false
	for i, r := range out.Removed {
		if len(r.Skipped) > 0 {
			g.err().printf("Warning: cluster %q: nodes that are not ready could not be cleaned: %s. A reboot does, or there: liqonet-agent purge\n",
				out.Pair[i].Name, strings.Join(r.Skipped, ", "))
		}
		if r.Agents {
			g.out().printf("%s: the agents are removed too, it has no other peering.\n", out.Pair[i].Name)
		}
		done = done || r.Peering || r.Agents
	}
	seconds, others := time.Since(start).Seconds(), out.Removed[0].PeerNames
	switch {
	case done && (out.Err != nil || out.Pair[1].SkipReason != nil):
		g.out().printf("%s has no peering with %s any more, %.1f s after the command. %s may still have its side.\n", a, b, seconds, b)
	case done:
		g.out().printf("%s and %s are not peered any more, %.1f s after the command.\n", a, b, seconds)
	case len(others) > 0:
		g.out().printf("%s has no peer that is called %s; nothing was changed. If one of %s is meant: kubectl liqonet unpeer %s --peer NAME\n", a, b, strings.Join(others, ", "), a)
	default:
		g.out().printf("%s and %s are not peered; nothing was changed.\n", a, b)
	}
}
