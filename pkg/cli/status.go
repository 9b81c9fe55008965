package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/peering"
)

func newStatus(g *globals) *cobra.Command {
	var out *output
	cmd := &cobra.Command{
		Use:   "status [CLUSTER…]",
		Short: "Show the peerings of clusters, measured by packets",
		Long: `Show the peerings of the clusters that are named, or else of the current context
and, where the kubeconfig has a context of the peer's name, the peer's side of it.

Latency and loss are those of probes that the gateways send through the tunnel,
and each node to the peer's gateway. The exit code is 7 if a peering is not
connected from every node.`,
		Example: `  kubectl liqonet status
  kubectl liqonet status cluster-a cluster-b -o json`,
		ValidArgsFunction: g.completeContexts(math.MaxInt),
		Args:              cobra.ArbitraryArgs,
		RunE:              func(cmd *cobra.Command, args []string) error { return g.status(cmd.Context(), args, out) },
	}
	out = addOutput(cmd.Flags())
	addTimeout(cmd, 15*time.Second)
	return cmd
}

// statusDocument is what status prints for programs.
type statusDocument struct {
	metav1.TypeMeta `json:",inline"`
	Peerings        []peering.View `json:"peerings"`
	// Errors say which other sides could not be read, and what can be done.
	Errors []string `json:"errors,omitempty"`
}

// DeepCopyObject returns the same document: nobody changes it.
func (d *statusDocument) DeepCopyObject() runtime.Object { return d }

func (d *statusDocument) names() []string { return peeringNames(d.Peerings) }

func peeringNames(views []peering.View) (out []string) {
	for _, v := range views {
		out = append(out, "peering."+v1alpha1.GroupVersion.Group+"/"+v.Name)
	}
	return out
}

func (g *globals) status(ctx context.Context, refs []string, out *output) error {
	ctx, cancel := g.withTimeout(ctx)
	defer cancel()
	implicit := len(refs) == 0
	if implicit {
		_, raw, err := g.kubeconfigs()
		if err != nil {
			return err
		}
		if raw.CurrentContext == "" {
			return usageError{errors.New("the kubeconfig has no current context\n  name a cluster (kubectl liqonet status CLUSTER), or set one (kubectl config use-context NAME)")}
		}
		refs = []string{raw.CurrentContext}
	}
	clusters, err := g.clusters(ctx, refs...)
	if err != nil {
		return err
	}
	views, err := allViews(ctx, clusters)
	if err != nil {
		return err
	}
	doc := &statusDocument{TypeMeta: documentType("Status"), Peerings: append([]peering.View{}, views...)}
	if implicit {
		if err := g.addOtherSides(ctx, doc, clusters[0]); err != nil {
			return err
		}
	}
	if err := out.printStatus(g.streams.Out, doc, clusters); err != nil {
		return err
	}
	for _, text := range doc.Errors {
		fmt.Fprintf(g.streams.Err, "Warning: a peer's side is not shown: %s\n", text)
	}
	for _, v := range doc.Peerings {
		if v.State != peering.Connected {
			return errUnhealthy
		}
	}
	return nil
}

func allViews(ctx context.Context, clusters []*peering.Cluster) ([]peering.View, error) {
	perCluster := make([][]peering.View, len(clusters))
	group, ctx := errgroup.WithContext(ctx)
	for i, c := range clusters {
		group.Go(func() (err error) {
			perCluster[i], err = c.Views(ctx)
			return err
		})
	}
	err := group.Wait()
	return slices.Concat(perCluster...), err
}

// addOtherSides adds the peers' views, of those peers that a context of the kubeconfig is
// named after. All are asked at the same time.
func (g *globals) addOtherSides(ctx context.Context, doc *statusDocument, own *peering.Cluster) error {
	_, raw, err := g.kubeconfigs()
	if err != nil {
		return err
	}
	views := make([][]peering.View, len(doc.Peerings))
	errs := make([]error, len(doc.Peerings))
	var wg sync.WaitGroup
	for i, v := range doc.Peerings {
		if raw.Contexts[v.Peer] != nil {
			wg.Go(func() { views[i], errs[i] = g.otherSide(ctx, v, own) })
		}
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			doc.Errors = append(doc.Errors, explain(err, "  "))
		}
	}
	doc.Peerings = append(doc.Peerings, slices.Concat(views...)...)
	return nil
}

// otherSide is the peer's view of a peering. It is empty where the context of the peer's
// name leads to another cluster.
func (g *globals) otherSide(ctx context.Context, v peering.View, own *peering.Cluster) ([]peering.View, error) {
	ctx, cancel := withIdentifyTimeout(ctx)
	defer cancel()
	peers, err := g.clusters(ctx, v.Peer)
	if err != nil || peers[0].ID != v.PeerID {
		return nil, err
	}
	views, err := peers[0].Views(ctx)
	return slices.DeleteFunc(views, func(t peering.View) bool { return t.PeerID != own.ID }), err
}

func (o *output) printStatus(w io.Writer, doc *statusDocument, clusters []*peering.Cluster) error {
	if !o.forPeople() {
		return o.print(w, doc)
	}
	if len(doc.Peerings) == 0 {
		var names []string
		for _, c := range clusters {
			names = append(names, c.Name)
		}
		_, err := fmt.Fprintf(w, "No peerings in %s.\n", strings.Join(names, ", "))
		return err
	}
	return o.printViews(w, doc.Peerings)
}

// printViews prints a row for each gateway, and below the table the messages.
func (o *output) printViews(w io.Writer, views []peering.View) error {
	var rows [][]any
	for _, v := range views {
		pods, as := listMappings(v.LocalPods)
		for _, p := range v.Planes {
			rtt, loss, handshake, mtu := "-", "-", "-", "-"
			if p.RTT != nil {
				rtt, loss = fmt.Sprintf("%.2f ms", *p.RTT), fmt.Sprintf("%d%%", p.LossPercent)
			}
			if p.HandshakeAge != nil {
				handshake = fmt.Sprintf("%s ago", time.Duration(*p.HandshakeAge)*time.Second)
			}
			if p.MTU > 0 {
				mtu = strconv.Itoa(p.MTU)
			}
			rows = append(rows, []any{
				v.Cluster, v.Peer, v.State, pods, as, rtt, loss, handshake, fmt.Sprintf("%d/%d", v.NodesReady, v.NodesTotal),
				mtu, v.Overlay + ", " + p.Backend + " wireguard", p.Index, p.Role, printable(cmp.Or(p.Node, "-")), printable(cmp.Or(p.Endpoint, "-")),
			})
		}
	}
	head := []string{
		"cluster", "peer", "state", "pods", "seen there as", "rtt", "loss", "handshake", "nodes", "mtu", "via",
		"+plane", "+role", "+gateway node", "+endpoint",
	}
	if err := o.printTable(w, head, rows); err != nil {
		return err
	}
	sorted := slices.SortedStableFunc(slices.Values(views), func(a, b peering.View) int { return cmp.Compare(a.Cluster, b.Cluster) })
	for _, v := range sorted {
		if v.Message != "" {
			fmt.Fprintf(w, "%s → %s: %s\n", v.Cluster, v.Peer, printable(v.Message))
		}
	}
	return nil
}
