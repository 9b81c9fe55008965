package cli

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// asStarted is the level that takes a change back.
const asStarted = "default"

func newLogLevel(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log-level CLUSTER [LEVEL]",
		Short: "Show how much a cluster's agents log, or change it while they run",
		Long: `Show from which level on the agents of a cluster log, or change it. They follow
at once, and need not start anew. LEVEL is debug, info, warn or error. With
default they log as they were started again, which is info.

It is for the node agents and the gateways of all peerings that the cluster has.`,
		Example: `  kubectl liqonet log-level cluster-a
  kubectl liqonet log-level cluster-a debug
  kubectl liqonet log-level cluster-a default`,
		Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, complete string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return append(v1alpha1.LogLevels(), asStarted), cobra.ShellCompDirectiveNoFileComp
			}
			return g.completeContexts(1)(cmd, args, complete)
		},
		RunE: g.logLevel,
	}
	addTimeout(cmd, 15*time.Second)
	return cmd
}

func (g *globals) logLevel(cmd *cobra.Command, args []string) error {
	if levels := append(v1alpha1.LogLevels(), asStarted); len(args) > 1 && !slices.Contains(levels, args[1]) {
		return usageError("name one of "+strings.Join(levels, ", "), "%q is no level", args[1])
	}
	ctx := cmd.Context()
	clusters, err := g.clusters(ctx, args[0])
	if err != nil {
		return err
	}
	c := clusters[0]
	if len(args) > 1 {
		level := args[1]
		if level == asStarted {
			level = ""
		}
		if err := c.SetLogLevel(ctx, level); err != nil {
			return err
		}
	}
	now, err := c.LogLevels(ctx)
	for _, l := range now {
		g.out().printf("%s: %s\n", l.Agents, cmp.Or(l.Level, asStarted))
	}
	return err
}
