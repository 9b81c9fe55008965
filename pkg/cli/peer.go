package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/version"
)

func newPeer(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "peer CLUSTER CLUSTER",
		Short: "Make the pods of two clusters reach each other",
		Long: `Make the pods of two clusters reach each other: install the agents where they are
missing, find address ranges without conflict, make WireGuard keys, push the
configuration, and wait until packets pass.

It can be repeated at any time: what is as it should be is left alone. If it
fails, it takes back what it did.`,
		Example: `  kubectl liqonet peer cluster-a cluster-b
  kubectl liqonet peer a.conf b.conf
  kubectl liqonet peer a.conf#admin@one cluster-b --service-type LoadBalancer`,
		Args:              exactArgs(2),
		ValidArgsFunction: g.completeContexts(2),
		RunE:              func(cmd *cobra.Command, args []string) error { return g.peer(cmd.Context(), args[0], args[1]) },
	}
	addTimeout(cmd, 2*time.Minute)
	f := cmd.Flags()
	f.String("agent-image", "", "image of the agents (default: the one that is there already, or else "+version.AgentImage()+")")
	f.Var(newEnum(overlays...), "overlay", "encapsulation between nodes and gateways; auto takes the best that all kernels can do")
	f.Var(newEnum(wireguards...), "wireguard", "who does WireGuard's work; auto takes the kernel where all can")
	f.Var(newEnum(serviceTypes...), "service-type", "how the gateway that is the server is exposed")
	f.StringArray("pod-cidr", nil, "CLUSTER=CIDR[,CIDR]: the pod ranges of a cluster, if they cannot be found out")
	f.StringArray("service-cidr", nil, "CLUSTER=CIDR[,CIDR]: the same for the service ranges")
	f.StringArray("node-cidr", nil, "CLUSTER=CIDR[,CIDR]: the same for the subnets of the nodes")
	f.StringArray("reserve", nil, "CLUSTER=CIDR[,CIDR]: ranges that a cluster keeps free of its peers")
	return cmd
}

// What these flags may be; the first one is the default.
var (
	overlays     = []string{"auto", "geneve", "vxlan"}
	wireguards   = []string{"auto", "kernel", "userspace"}
	serviceTypes = []string{"auto", "NodePort", "LoadBalancer", "ClusterIP"}
)

// peerOptions reads the flags of peer for these clusters.
func (g *globals) peerOptions(refs []string, clusters []*peering.Cluster) (o peering.Options, err error) {
	if o.Image = g.config.GetString("agent-image"); o.Image != "" {
		if _, err := name.ParseReference(o.Image); err != nil {
			return o, usageError{fmt.Errorf("--agent-image: %w", err)}
		}
	}
	for _, e := range []struct {
		flag    string
		allowed []string
		value   *string
	}{
		{"overlay", overlays, &o.Overlay}, {"wireguard", wireguards, &o.WireGuard}, {"service-type", serviceTypes, &o.ServiceType},
	} {
		if *e.value, err = oneOf(e.flag, g.config.GetString(e.flag), e.allowed...); err != nil {
			return o, err
		}
	}
	o.Facts = map[string]discovery.Overrides{}
	for flag, field := range map[string]func(*discovery.Overrides) *[]netip.Prefix{
		"pod-cidr":     func(f *discovery.Overrides) *[]netip.Prefix { return &f.PodCIDRs },
		"service-cidr": func(f *discovery.Overrides) *[]netip.Prefix { return &f.ServiceCIDRs },
		"node-cidr":    func(f *discovery.Overrides) *[]netip.Prefix { return &f.NodeCIDRs },
		"reserve":      func(f *discovery.Overrides) *[]netip.Prefix { return &f.Reserved },
	} {
		for _, value := range g.config.GetStringSlice(flag) {
			id, prefixes, err := clusterPrefixes(value, refs, clusters)
			if err != nil {
				return o, usageError{fmt.Errorf("--%s %q: %w", flag, value, err)}
			}
			facts := o.Facts[id]
			list := field(&facts)
			*list = append(*list, prefixes...)
			o.Facts[id] = facts
		}
	}
	return o, nil
}

// clusterPrefixes parses CLUSTER=CIDR[,CIDR], where CLUSTER is as the user wrote
// it in this command line.
func clusterPrefixes(value string, refs []string, clusters []*peering.Cluster) (id string, out []netip.Prefix, err error) {
	i := strings.LastIndex(value, "=")
	if i < 0 {
		return "", nil, errors.New("must be CLUSTER=CIDR[,CIDR]")
	}
	for k, c := range clusters {
		if name := value[:i]; name == c.Name || name == refs[k] {
			id = c.ID
		}
	}
	if id == "" {
		return "", nil, fmt.Errorf("%q is none of the clusters %s", value[:i], strings.Join(refs, ", "))
	}
	for _, s := range strings.Split(value[i+1:], ",") {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return "", nil, err
		}
		if p != p.Masked() {
			return "", nil, fmt.Errorf("%s has host bits; did you mean %s?", p, p.Masked())
		}
		out = append(out, p)
	}
	return id, out, nil
}

func (g *globals) peer(ctx context.Context, refs ...string) error {
	ctx, cancel := g.withTimeout(ctx)
	defer cancel()
	start := time.Now()
	clusters, err := g.clusters(ctx, refs...)
	if err != nil {
		return err
	}
	o, err := g.peerOptions(refs, clusters)
	if err != nil {
		return err
	}
	progress := newProgress(g.streams.Err)
	result, err := peering.Peer(ctx, clusters[0], clusters[1], o, progress)
	if err != nil {
		return err
	}
	a, b := result.Views[0], result.Views[1]
	if len(result.Changed) == 0 {
		fmt.Fprintf(g.streams.Out, "%s and %s are peered already; nothing was changed.\n", a.Cluster, b.Cluster)
	} else {
		fmt.Fprintf(g.streams.Out, "%s and %s are peered, %.1f s after the command.\n", a.Cluster, b.Cluster, time.Since(start).Seconds())
	}
	printRanges(g.streams.Out, a, b)
	return nil
}

// printRanges shows how each cluster is seen by the other.
func printRanges(w io.Writer, views ...peering.View) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "CLUSTER\tSEEN BY\tPODS\tAS\tNODES AS")
	for _, v := range views {
		var real, mapped []string
		for _, m := range v.LocalPods {
			real, mapped = append(real, m.Real.String()), append(mapped, m.Mapped.String())
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", v.Cluster, v.Peer, strings.Join(real, ","), strings.Join(mapped, ","), v.LocalNodes.Mapped)
	}
	t.Flush()
}
