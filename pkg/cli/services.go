package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/samber/lo"
	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/pkg/status"
)

func newServices(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "services CLUSTER…",
		Short: "Show exported and imported services, and exchange services with a peer",
		Long: `Show the services that clusters export and import.

A cluster exports a service with the command export, or with a ServiceExport of
the Multi-Cluster Services API. The peers that exchange services with it import
the service into the namespace of the same name, if that exists.`,
		Example: `  kubectl liqonet services enable cluster-a cluster-b
  kubectl liqonet export cluster-a default/web
  kubectl liqonet services cluster-a cluster-b`,
		Args: cobra.MinimumNArgs(1),
	}
	out := output.AddFlag(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		clusters, err := g.clusters(cmd.Context(), args...)
		if err != nil {
			return err
		}
		views, errs := failure.Map(clusters, func(c *kube.Cluster) ([]status.ServiceView, error) { return status.Services(cmd.Context(), c) })
		if err := cmp.Or(errs...); err != nil {
			return err
		}
		return printServices(out, g.streams.Out, lo.Flatten(views))
	}
	addTimeout(cmd, 15*time.Second)
	cmd.AddCommand(newServicesEnable(g), newServicesDisable(g))
	return cmd
}

// servicesDocument is the output of services for programs.
type servicesDocument struct {
	Services []status.ServiceView `json:"services"`
}

func printServices(o *output.Format, w io.Writer, all []status.ServiceView) error {
	if !o.HumanReadable() {
		names := lo.Map(all, func(s status.ServiceView, _ int) string { return "serviceimport.multicluster.x-k8s.io/" + s.Name })
		return o.Print(w, "Services", &servicesDocument{append([]status.ServiceView{}, all...)}, all, names)
	}
	if len(all) == 0 {
		output.To(w).Printf("No services are exported or imported.\n")
		return nil
	}
	join := func(all []string) string { return cmp.Or(strings.Join(all, ","), "-") }
	rows := lo.Map(all, func(s status.ServiceView, _ int) []any {
		return []any{
			s.Cluster, s.Namespace + "/" + s.Name, cmp.Or(s.Type, "-"), join(s.Clusters), fmt.Sprintf("%d/%d", s.Ready, s.Endpoints), join(s.Addresses), join(s.Ports),
		}
	})
	o.Table(w, []string{"cluster", "service", "type", "exported by", "ready", "address", "ports"}, rows)
	empty := "\n"
	for _, s := range all {
		for _, problem := range s.Problems {
			output.To(w).Printf("%s%s: %s/%s: %s\n", output.Lines(empty), s.Cluster, s.Namespace, s.Name, problem)
			empty = ""
		}
	}
	return nil
}

func newServicesEnable(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "enable CLUSTER CLUSTER",
		Short: "Exchange services between two peered clusters",
		Long: `Exchange services between two peered clusters: install the controller of
services where it is missing, and let the gateways exchange which services are
exported. The command peer with --services does the same for a new peering.

It can be repeated with other flags. What is not given stays as it was.`,
		Example: `  kubectl liqonet services enable cluster-a cluster-b
  kubectl liqonet services enable cluster-a cluster-b --import cluster-b=labeled
  kubectl liqonet services enable cluster-a cluster-b --standby`,
		Args: exactArgs(2, "two clusters"),
	}
	addServiceFlags(cmd.Flags())
	return g.changeServices(cmd, plan.ServicesOn)
}

func newServicesDisable(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "disable CLUSTER CLUSTER",
		Short: "Stop the exchange of services between two clusters",
		Long: `Stop the exchange of services between two clusters, and remove the services that
were imported. ServiceExports stay. If a cluster exchanges services with no other
one, the controller of services is removed, too.`,
		Example: `  kubectl liqonet services disable cluster-a cluster-b`,
		Args:    exactArgs(2, "two clusters"),
	}
	return g.changeServices(cmd, plan.ServicesOff)
}

// changeServices completes a command that starts or stops the exchange of services. The rest of the peering stays as it is.
func (g *globals) changeServices(cmd *cobra.Command, exchange plan.ServicesExchange) *cobra.Command {
	dryRun := cmd.Flags().Bool("dry-run", false, "print what would be done and why, and change nothing")
	out := output.AddFlag(cmd.Flags())
	cmd.ValidArgsFunction = g.completeContexts(2)
	return runPerNode(cmd, 2*time.Minute, func(cmd *cobra.Command, args []string, extend extendTimeout) error {
		clusters, err := g.clusters(cmd.Context(), args...)
		if err != nil {
			return err
		}
		o := engine.Options{Clusters: map[string]engine.ClusterOptions{}}
		var all override
		each := make([]override, len(clusters))
		if exchange == plan.ServicesOn {
			if all, each, err = readOptions(cmd.Flags(), serviceOptions(), args, clusters); err != nil {
				return commandLineError(cmd, err)
			}
		}
		for k, c := range clusters {
			each[k].setServices(all, exchange)
			o.Clusters[c.ID] = each[k].ClusterOptions
		}
		a, b := clusters[0], clusters[1]
		if o.Facts, err = peeredRanges(cmd.Context(), a, b); err != nil {
			return err
		}
		pairs := []peering.Pair{{a, b}}
		if *dryRun {
			plans, err := peering.PlanAll(cmd.Context(), pairs, o, newProgress(g))
			return cmp.Or(err, printPlans(out, g.streams.Out, plans))
		}
		ctx, cancel := extend(pairs)
		defer cancel()
		outcome := peering.PeerAll(ctx, pairs, o, g.progress(pairs))[0]
		if outcome.Err != nil {
			return outcome.Err
		}
		if !out.HumanReadable() {
			result := &peerResult{Changed: outcome.Result.Changed, Peerings: outcome.Result.Views[:], Identities: outcome.Result.Identities[:], Notes: outcome.Result.Notes}
			return out.Print(g.streams.Out, "PeerResult", result, result.Peerings, peeringNames(result.Peerings))
		}
		says := lo.Ternary(exchange == plan.ServicesOn, "%s and %s exchange services (%.1f s).\n", "%s and %s no longer exchange services (%.1f s).\n")
		if len(outcome.Result.Changed) == 0 {
			says = lo.Ternary(exchange == plan.ServicesOn, "%s and %s exchange services already; nothing was changed (%.1f s).\n", "%s and %s do not exchange services; nothing was changed (%.1f s).\n")
		}
		g.out().Printf(says, a.Name, b.Name, g.seconds())
		g.out().PrintEach("Note: %s\n", outcome.Result.Notes)
		return nil
	})
}

// peeredRanges returns the pod ranges of two peered clusters as their Peerings have them. They may have been given by flags.
func peeredRanges(ctx context.Context, a, b *kube.Cluster) (map[string]discovery.Overrides, error) {
	out := map[string]discovery.Overrides{}
	for _, pair := range [][2]*kube.Cluster{{a, b}, {b, a}} {
		p, _, err := status.PeeringWith(ctx, pair[0], pair[1])
		if err != nil {
			return nil, err
		}
		pods := lo.Map(p.Spec.Local.Pods, func(m v1alpha1.CIDRMapping, _ int) netip.Prefix { return m.Real.Prefix })
		out[pair[0].ID] = discovery.Overrides{PodCIDRs: pods}
	}
	return out, nil
}

// parseService parses NAMESPACE/NAME.
func parseService(what string) (services.Key, error) {
	k, isValid := services.ParseKey(strings.Replace(what, "/", ".", 1))
	if !isValid || !strings.Contains(what, "/") {
		return k, failure.Usagef("name the service as NAMESPACE/NAME", "%q is not a service", what)
	}
	return k, nil
}

func newExport(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export CLUSTER NAMESPACE/NAME",
		Short: "Export a service to the peers of a cluster",
		Long: `Export a service of a cluster to the peers with which it exchanges services: create
a ServiceExport, and wait until it is processed. The peers import the service into
the namespace of the same name.

With --to, only the named peers may use it. Without --to, an existing restriction
stays.`,
		Example: `  kubectl liqonet export cluster-a default/web
  kubectl liqonet export cluster-a default/web --to cluster-b`,
		Args: exactArgs(2, "a cluster and a service"),
	}
	to := cmd.Flags().StringSlice("to", nil, "only these `PEERS` may use the service; all for all of them")
	dryRun := cmd.Flags().Bool("dry-run", false, "print what would be done, and change nothing")
	return g.serviceCommand(cmd, func(ctx context.Context, c *kube.Cluster, k services.Key) error {
		result, err := engine.ExportService(ctx, c, k, *to, *dryRun)
		if err != nil {
			return err
		}
		switch {
		case *dryRun:
			g.out().Printf("%s: ServiceExport %s would be %s.\n", c.Name, k, lo.Ternary(result.Changed, "written", "kept"))
		case len(result.Problems) > 0:
			g.out().Printf("%s: ServiceExport %s is written.\n", c.Name, k)
			g.err().PrintEach("Warning: %s\n", result.Problems)
		case result.Changed:
			g.out().Printf("%s exports %s to %s (%.1f s).\n", c.Name, k, strings.Join(result.Peers, ", "), g.seconds())
		default:
			g.out().Printf("%s exports %s to %s already; nothing was changed.\n", c.Name, k, strings.Join(result.Peers, ", "))
		}
		return nil
	})
}

func newUnexport(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "unexport CLUSTER NAMESPACE/NAME",
		Short:   "Stop exporting a service",
		Long:    `Delete the ServiceExport of a service. The peers remove what they have imported.`,
		Example: `  kubectl liqonet unexport cluster-a default/web`,
		Args:    exactArgs(2, "a cluster and a service"),
	}
	return g.serviceCommand(cmd, func(ctx context.Context, c *kube.Cluster, k services.Key) error {
		was, err := engine.UnexportService(ctx, c, k)
		switch {
		case err != nil:
			return err
		case was:
			g.out().Printf("%s no longer exports %s.\n", c.Name, k)
		default:
			g.out().Printf("%s does not export %s; nothing was changed.\n", c.Name, k)
		}
		return nil
	})
}

// serviceCommand completes a command for one service of a cluster.
func (g *globals) serviceCommand(cmd *cobra.Command, run func(context.Context, *kube.Cluster, services.Key) error) *cobra.Command {
	cmd.ValidArgsFunction = g.completeServices
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		k, err := parseService(args[1])
		if err != nil {
			return err
		}
		clusters, err := g.clusters(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return run(cmd.Context(), clusters[0], k)
	}
	return addTimeout(cmd, 15*time.Second)
}

// completionTimeout limits how long the shell waits for names of services.
const completionTimeout = 2 * time.Second

// completeServices completes a cluster, and then its services: those that are exported for unexport, and all others for export.
func (g *globals) completeServices(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return g.completeContexts(1)(cmd, args, typed)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), completionTimeout)
	defer cancel()
	clusters, err := g.clusters(ctx, args[0])
	if err != nil || len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, _ := engine.ServiceNames(ctx, clusters[0], cmd.Name() == "unexport") // without an answer, there is nothing to complete
	return names, cobra.ShellCompDirectiveNoFileComp
}
