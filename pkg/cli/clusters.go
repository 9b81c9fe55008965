package cli

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/samber/lo"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liqonet/liqonet/pkg/connect"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
)

// clusters connects to the named clusters and identifies them. It fails if any of them does not respond.
func (g *globals) clusters(ctx context.Context, refs ...string) ([]*kube.Cluster, error) {
	out, err := g.source.Identify(ctx, refs)
	return out, cmp.Or(interrupted(ctx, "identify the clusters"), err, unidentified(out...))
}

// unidentified returns an error that names all of the clusters that did not respond, or nil if all did.
func unidentified(clusters ...*kube.Cluster) error {
	skipped := lo.Filter(clusters, func(c *kube.Cluster, _ int) bool { return c.SkipReason != nil })
	return failuresOf("clusters", skipped, func(c *kube.Cluster) (string, error) { return c.Name, c.SkipReason })
}

// addContext adds the flag --context to a command that needs no CLUSTER argument.
func addContext(f *pflag.FlagSet, source *connect.Source) {
	f.StringVar(&source.Context, "context", "", "kubeconfig `CONTEXT` to use instead of the current one, without a CLUSTER argument")
}

// pairFunc runs a command on two clusters.
type pairFunc func(ctx context.Context, a, b *kube.Cluster, args []string) error

// pairCommand completes a command whose first two arguments are clusters, and adds the --timeout flag.
func (g *globals) pairCommand(cmd *cobra.Command, d time.Duration, run pairFunc) *cobra.Command {
	cmd.ValidArgsFunction = g.completeContexts(2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		clusters, err := g.clusters(cmd.Context(), args[:2]...)
		if err != nil {
			return err
		}
		return run(cmd.Context(), clusters[0], clusters[1], args)
	}
	return addTimeout(cmd, d)
}

// interrupted returns an error if the user has interrupted the command. It replaces the errors of the requests that this has canceled.
func interrupted(ctx context.Context, doing string) error {
	if !errors.Is(context.Cause(ctx), errInterrupted) {
		return nil
	}
	return &failure.Error{Kind: failure.NotReady, Doing: doing, Err: errInterrupted, Hint: "run the command again"}
}

// completeContexts completes the first n arguments with the contexts of the kubeconfig, and with files.
func (g *globals) completeContexts(n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_, raw, err := connect.Kubeconfig(g.source.Kubeconfig)
		if err != nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return lo.Without(slices.Sorted(maps.Keys(raw.Contexts)), args...), cobra.ShellCompDirectiveDefault
	}
}

// clusterFlags are the flags whose values are clusters.
var clusterFlags = []string{"context", "server", "spokes"}

// completeFlags completes the values of a command's flags, as far as they are known.
func (g *globals) completeFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		complete := cobra.CompletionFunc(nil)
		if known, is := f.Value.(completer); is {
			complete = cobra.FixedCompletions(known.Completions(), cobra.ShellCompDirectiveNoFileComp)
		} else if slices.Contains(clusterFlags, f.Name) {
			complete = g.completeContexts(math.MaxInt)
		}
		if complete != nil {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // it fails only for unknown flags
		}
	})
}

// completer is a flag with known values, or known prefixes of values.
type completer interface{ Completions() []cobra.Completion }
