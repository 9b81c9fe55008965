package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/peering"
)

func newStatus(g *globals) *cobra.Command {
	var out *output
	var history bool
	cmd := &cobra.Command{
		Use:   "status [CLUSTER…]",
		Short: "Show the peerings of clusters, measured by packets",
		Long: `Show the peerings of the clusters that are named, or else of the current context
and, where the kubeconfig has a context of the peer's name, the peer's side of it.

Latency and loss are those of probes that the gateways send through the tunnel,
and each node to the peer's gateway. The exit code is 7 if a peering is not
connected from every node.

With --history it shows instead what has changed, when and why, as the agents of
these clusters have noted it: on one time line, whatever their clocks say.`,
		Example: `  kubectl liqonet status
  kubectl liqonet status cluster-a cluster-b -o json
  kubectl liqonet status cluster-a cluster-b --history`,
		ValidArgsFunction: g.completeContexts(math.MaxInt),
		Args:              cobra.ArbitraryArgs,
		RunE:              func(cmd *cobra.Command, args []string) error { return g.status(cmd.Context(), args, history, out) },
	}
	out = addOutput(cmd.Flags())
	cmd.Flags().BoolVar(&history, "history", false, "show what has changed, when and why")
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

func peeringNames(views []peering.View) (out []string) {
	for _, v := range views {
		out = append(out, "peering."+v1alpha1.GroupVersion.Group+"/"+v.Name)
	}
	return out
}

func (g *globals) status(ctx context.Context, refs []string, history bool, out *output) error {
	_, raw, err := loadKubeconfig(g.kubeconfig)
	if err != nil {
		return err
	}
	implicit := len(refs) == 0
	if implicit {
		if raw.CurrentContext == "" {
			return usageError("name a cluster (kubectl liqonet status CLUSTER), or set one (kubectl config use-context NAME)", "the kubeconfig has no current context")
		}
		refs = []string{raw.CurrentContext}
	}
	clusters, err := g.clusters(ctx, refs...)
	if err != nil {
		return err
	}
	views, errs := inParallel(clusters, func(c *peering.Cluster) ([]peering.View, error) { return c.Views(ctx) })
	if err := cmp.Or(errs...); err != nil {
		return err
	}
	var asked []string
	for _, c := range clusters {
		asked = append(asked, c.ID)
	}
	var unshown []error
	sides := make([]historySide, len(clusters))
	for i, c := range clusters {
		sides[i].cluster = c
	}
	doc := &statusDocument{TypeMeta: documentType("Status"), Peerings: append([]peering.View{}, slices.Concat(views...)...)}
	if implicit {
		others, errs := inParallel(doc.Peerings, func(v peering.View) (otherSide, error) {
			if raw.Contexts[v.Peer] == nil {
				return otherSide{}, nil
			}
			return g.otherSide(ctx, v, clusters[0])
		})
		for i, o := range others {
			doc.Peerings, asked = append(doc.Peerings, o.views...), append(asked, o.asked...)
			if o.cluster != nil {
				sides = append(sides, historySide{o.cluster, peeringsOf(o.views)})
			}
			if errs[i] != nil {
				doc.Errors, unshown = append(doc.Errors, string(explain(errs[i], "  "))), append(unshown, errs[i])
			}
		}
	}
	if history {
		return g.printHistory(ctx, sides, unshown, out)
	}
	peering.MarkOrphans(doc.Peerings, asked)
	if err := out.printStatus(g.streams.Out, doc, clusters); err != nil {
		return err
	}
	g.warnUnshown(unshown)
	for _, v := range doc.Peerings {
		if v.State != peering.Connected {
			return errUnhealthy
		}
	}
	return nil
}

func (g *globals) warnUnshown(errs []error) {
	for _, err := range errs {
		g.err().printf("Warning: a peer's side is not shown: %s\n", explain(err, "  "))
	}
}

// otherSide is the peer's view of a peering, and the peer with its ID if it was asked.
type otherSide struct {
	views   []peering.View
	asked   []string
	cluster *peering.Cluster
}

// otherSide asks the cluster that a context of the peer's name leads to. Nothing is asked
// where that is another cluster.
func (g *globals) otherSide(ctx context.Context, v peering.View, own *peering.Cluster) (o otherSide, err error) {
	peers, err := g.clusters(ctx, v.Peer)
	if err != nil || peers[0].ID != v.PeerID {
		return o, err
	}
	if o.views, err = peers[0].Views(ctx); err != nil {
		return o, err
	}
	o.views = slices.DeleteFunc(o.views, func(t peering.View) bool { return t.PeerID != own.ID })
	o.asked, o.cluster = []string{v.PeerID}, peers[0]
	return o, nil
}

func (o *output) printStatus(w io.Writer, doc *statusDocument, clusters []*peering.Cluster) error {
	if !o.forPeople() {
		return o.print(w, doc, peeringNames(doc.Peerings))
	}
	if len(doc.Peerings) == 0 {
		var names []string
		for _, c := range clusters {
			names = append(names, c.Name)
		}
		text{w}.printf("No peerings in %s.\n", strings.Join(names, ", "))
		return nil
	}
	o.printViews(w, doc.Peerings)
	return nil
}

// printViews prints a row for each gateway, and below the table the messages.
func (o *output) printViews(w io.Writer, views []peering.View) {
	var rows [][]any
	for _, v := range views {
		pods, as := listMappings(v.LocalPods)
		for _, p := range v.Planes {
			rtt, loss, handshake, mtu, key, psk := "-", "-", "-", "-", "-", "-"
			if p.RTT != nil {
				rtt, loss = fmt.Sprintf("%.2f ms", *p.RTT), fmt.Sprintf("%d%%", p.LossPercent)
			}
			if p.HandshakeAge != nil {
				handshake = fmt.Sprintf("%s ago", time.Duration(*p.HandshakeAge)*time.Second)
			}
			if p.KeyAge != nil {
				key = duration.HumanDuration(time.Duration(*p.KeyAge) * time.Second)
			}
			if p.PresharedKeyAge != nil {
				psk = duration.HumanDuration(time.Duration(*p.PresharedKeyAge) * time.Second)
			}
			if p.MTU > 0 {
				mtu = strconv.Itoa(p.MTU)
			}
			rows = append(rows, []any{
				v.Cluster, v.Peer, v.State, pods, as, rtt, loss, handshake, fmt.Sprintf("%d/%d", v.NodesReady, v.NodesTotal),
				mtu, v.Overlay + ", " + p.Backend + " wireguard", p.Index, p.Role, cmp.Or(p.Node, "-"), cmp.Or(p.Endpoint, "-"), key, psk,
			})
		}
	}
	plane := "+plane"
	if slices.ContainsFunc(views, func(v peering.View) bool { return len(v.Planes) > 1 }) {
		plane = "plane"
	}
	head := []string{
		"cluster", "peer", "state", "pods", "seen there as", "rtt", "loss", "handshake", "nodes", "mtu", "via",
		plane, "+role", "+gateway node", "+endpoint", "+key age", "+psk age",
	}
	o.printTable(w, head, rows)
	sorted := slices.SortedStableFunc(slices.Values(views), func(a, b peering.View) int { return cmp.Compare(a.Cluster, b.Cluster) })
	for _, v := range sorted {
		if v.Message != "" {
			text{w}.printf("%s → %s: %s\n", v.Cluster, v.Peer, v.Message)
		}
	}
}
