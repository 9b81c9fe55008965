package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liqonet/liqonet/pkg/peering"
)

// group is the clusters of a command line, and which of them make pairs.
type group struct {
	refs []string
	// hub says that the first cluster makes a pair with each other one. Otherwise every
	// two make a pair.
	hub bool
}

// addPairs gives a command the flags for more than two clusters.
func addPairs(f *pflag.FlagSet) {
	f.Bool("mesh", false, "every two of all clusters given")
	f.StringSlice("spokes", nil, "CLUSTER[,CLUSTER]: the one cluster given with each of these")
}

// pairArgs checks the arguments together with these flags.
func pairArgs(cmd *cobra.Command, args []string) error {
	mesh, _ := cmd.Flags().GetBool("mesh")
	g := groupOf(cmd.Flags(), args)
	seen := map[string]bool{}
	for _, ref := range g.refs {
		if len(g.refs) > 2 && seen[ref] {
			return usageError{fmt.Errorf("%q is given twice", ref)}
		}
		seen[ref] = true
	}
	switch {
	case mesh && g.hub:
		return usageError{fmt.Errorf("--mesh and --spokes do not go together\nSee %s --help", cmd.CommandPath())}
	case g.hub && (len(args) != 1 || len(g.refs) < 2):
		return usageError{fmt.Errorf("%d arguments given, 1 expected with --spokes: %s HUB --spokes CLUSTER[,CLUSTER]\nSee %s --help",
			len(args), cmd.CommandPath(), cmd.CommandPath())}
	case mesh && len(args) < 2:
		return usageError{fmt.Errorf("%d arguments given, at least 2 expected with --mesh\nSee %s --help", len(args), cmd.CommandPath())}
	case !mesh && !g.hub && len(args) > 2:
		return usageError{fmt.Errorf("%d arguments given, 2 expected: %s; more with --mesh or --spokes\nSee %s --help", len(args), cmd.UseLine(), cmd.CommandPath())}
	case !mesh && !g.hub:
		return exactArgs(2)(cmd, args)
	}
	return nil
}

func groupOf(f *pflag.FlagSet, args []string) group {
	spokes, _ := f.GetStringSlice("spokes")
	return group{refs: append(slices.Clone(args), spokes...), hub: f.Changed("spokes")}
}

// pairs returns the pairs that the clusters make.
func (g group) pairs(clusters []*peering.Cluster) []peering.Pair {
	var out []peering.Pair
	for i := range clusters {
		for k := i + 1; k < len(clusters) && (i == 0 || !g.hub); k++ {
			out = append(out, peering.Pair{clusters[i], clusters[k]})
		}
	}
	return out
}

// groupClusters connects to all clusters. Both of a single pair have to be reached; of
// more, identifyErrs says which were not.
func (g *globals) groupClusters(ctx context.Context, members group) (clusters []*peering.Cluster, identifyErrs []error, err error) {
	clusters, identifyErrs, err = g.identify(ctx, members.refs)
	if len(members.refs) == 2 || err != nil {
		return clusters, identifyErrs, cmp.Or(append(identifyErrs, err)...)
	}
	for i, c := range clusters {
		for k := range i {
			if c.ID != "" && c.ID == clusters[k].ID {
				return nil, nil, usageError{fmt.Errorf("%q and %q are the same cluster", clusters[k].Name, c.Name)}
			}
		}
	}
	return clusters, identifyErrs, nil
}

// reachable returns the pairs of which both clusters have answered. The others have
// failed already.
func (g group) reachable(clusters []*peering.Cluster, identifyErrs []error) (pairs []peering.Pair, failed []peering.Outcome) {
	errOf := map[*peering.Cluster]error{}
	for i, c := range clusters {
		errOf[c] = identifyErrs[i]
	}
	for _, p := range g.pairs(clusters) {
		if err := cmp.Or(errOf[p[0]], errOf[p[1]]); err != nil {
			failed = append(failed, peering.Outcome{Pair: p, Err: err})
		} else {
			pairs = append(pairs, p)
		}
	}
	return pairs, failed
}

// progress shows the steps of all pairs. Where there are several, each line begins with
// the pair's name.
func (g *globals) progress(pairs []peering.Pair) func(peering.Pair) peering.Reporter {
	var mu sync.Mutex
	return func(p peering.Pair) peering.Reporter {
		if len(pairs) == 1 {
			return newProgress(g.streams.Err)
		}
		return plain{prefixed{g.streams.Err, p.String() + ": ", &mu}}
	}
}

// pairsError is what became of several pairs, some of which failed.
type pairsError struct {
	all, failed int
	text        string
	first       error
}

func (e *pairsError) Error() string { return e.text }

func (e *pairsError) Unwrap() error { return e.first }

// failures returns nil where no pair failed. Where there is one pair only, it returns that
// pair's error.
func failures(outcomes []peering.Outcome) error {
	if len(outcomes) == 1 {
		return outcomes[0].Err
	}
	e := &pairsError{all: len(outcomes)}
	var lines []string
	for _, o := range outcomes {
		if o.Err == nil {
			continue
		}
		e.failed++
		e.first = cmp.Or(e.first, o.Err)
		lines = append(lines, fmt.Sprintf("  %s: %s", o.Pair, explain(o.Err, "    ")))
	}
	if e.failed == 0 {
		return nil
	}
	e.text = fmt.Sprintf("%d of %d pairs failed\n%s", e.failed, e.all, strings.Join(lines, "\n"))
	return e
}
