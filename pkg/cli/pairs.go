package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liqonet/liqonet/pkg/peering"
)

// addPairs gives a command the flags for more than two clusters.
func addPairs(f *pflag.FlagSet) {
	f.Bool("mesh", false, "every two of all clusters given")
	f.StringSlice("spokes", nil, "CLUSTER[,CLUSTER]: the one cluster given with each of these")
}

// pairArgs checks the arguments together with these flags.
func pairArgs(cmd *cobra.Command, args []string) error {
	mesh, _ := cmd.Flags().GetBool("mesh")
	_, hub := members(cmd.Flags(), args)
	switch {
	case mesh && hub:
		return errors.New("--mesh and --spokes do not go together")
	case hub:
		return cobra.ExactArgs(1)(cmd, args)
	case mesh:
		return cobra.MinimumNArgs(2)(cmd, args)
	case len(args) > 2:
		return errors.New("more than 2 clusters need --mesh or --spokes")
	}
	return cobra.ExactArgs(2)(cmd, args)
}

// members are the clusters of a command line. With a hub, the first one makes a pair with
// each other one. Without, every two make a pair.
func members(f *pflag.FlagSet, args []string) (refs []string, hub bool) {
	spokes, _ := f.GetStringSlice("spokes")
	return append(slices.Clone(args), spokes...), len(spokes) > 0
}

// connectPairs connects to all clusters, and returns the pairs that they make. The pairs
// with a cluster that does not answer have failed already.
func (g *globals) connectPairs(ctx context.Context, refs []string, hub bool) (clusters []*peering.Cluster, pairs []peering.Pair, failed []peering.Outcome, err error) {
	clusters, errs, err := g.identify(ctx, refs)
	for i := range clusters {
		for k := i + 1; k < len(clusters); k++ {
			pair := peering.Pair{clusters[i], clusters[k]}
			if id := pair[0].ID; id != "" && id == pair[1].ID {
				return nil, nil, nil, usageError("name different clusters; see kubectl config get-contexts", "%q and %q are the same cluster", pair[0].Name, pair[1].Name)
			}
			if hub && i > 0 {
				continue
			}
			if err := cmp.Or(errs[i], errs[k]); err != nil {
				failed = append(failed, peering.Outcome{Pair: pair, Err: err})
			} else {
				pairs = append(pairs, pair)
			}
		}
	}
	return clusters, pairs, failed, err
}

// progress shows the steps of all pairs. Where there are several, each line begins with
// the pair's name.
func (g *globals) progress(pairs []peering.Pair) func(peering.Pair) peering.Reporter {
	return func(p peering.Pair) peering.Reporter {
		if len(pairs) == 1 {
			return timed{newProgress(g.streams.Err), p.String()}
		}
		return timed{plain{g.streams.Err, p.String() + ": "}, p.String()}
	}
}

// pairsError says which of several pairs failed, and why.
type pairsError struct {
	text lines
	// partial says that other pairs did not fail.
	partial bool
	// first is the first pair's reason.
	first error
}

func (e *pairsError) Error() string { return string(e.text) }

func (e *pairsError) Unwrap() error { return e.first }

// failures returns nil where no pair failed. Where there is one pair only, it returns that
// pair's error.
func failures(outcomes []peering.Outcome) error {
	if len(outcomes) == 1 {
		return outcomes[0].Err
	}
	var first error
	var failed []string
	for _, o := range outcomes {
		if o.Err != nil {
			first = cmp.Or(first, o.Err)
			failed = append(failed, fmt.Sprintf("  %s: %s", oneLine(o.Pair.String()), explain(o.Err, "    ")))
		}
	}
	if first == nil {
		return nil
	}
	all := fmt.Sprintf("%d of %d pairs failed\n%s", len(failed), len(outcomes), strings.Join(failed, "\n"))
	return &pairsError{lines(all), len(failed) < len(outcomes), first}
}
