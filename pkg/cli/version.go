package cli

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/version"
)

func newVersion(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version and the image of the agents that belongs to it",
		Example: `  kubectl liqonet version`,
		Args:    cobra.ExactArgs(0),
		Run: func(*cobra.Command, []string) {
			g.out().printf("kubectl liqonet %s (%s, %s/%s)\nagents %s\n",
				version.String(), runtime.Version(), runtime.GOOS, runtime.GOARCH, version.AgentImage(version.String()))
		},
	}
}
