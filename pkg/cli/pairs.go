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

	"github.com/liqonet/liqonet/pkg/kube"
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
func (g *globals) connectPairs(ctx context.Context, refs []string, hub bool) (clusters []*kube.Cluster, pairs []peering.Pair, failed []peering.Outcome, err error) {
	clusters, errs, err := g.identify(ctx, refs)
	if err = cmp.Or(err, checkDistinct(clusters)); err != nil {
		return nil, nil, nil, err
	}
	for i := range clusters {
		for k := i + 1; k < len(clusters) && (i == 0 || !hub); k++ {
			pair := peering.Pair{clusters[i], clusters[k]}
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
func (g *globals) progress(pairs []peering.Pair) func(peering.Pair) kube.Reporter {
	return func(p peering.Pair) kube.Reporter {
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

// failures are the errors of pairs, nil where none failed.
func failures(outcomes []peering.Outcome) error {
	return failuresOf("pairs", outcomes, func(o peering.Outcome) (string, error) { return o.Pair.String(), o.Err })
}

// failuresOf are the errors of several things of a kind, by their names. Where there is one only, it is that one's error.
func failuresOf[T any](kind string, all []T, of func(T) (name string, err error)) error {
	var first error
	var failed []string
	for _, one := range all {
		if name, err := of(one); err != nil {
			first = cmp.Or(first, err)
			failed = append(failed, fmt.Sprintf("  %s: %s", oneLine(name), explain(err, "    ")))
		}
	}
	if first == nil || len(all) == 1 {
		return first
	}
	text := fmt.Sprintf("%d of %d %s failed\n%s", len(failed), len(all), kind, strings.Join(failed, "\n"))
	return &pairsError{lines(text), len(failed) < len(all), first}
}
