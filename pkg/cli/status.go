package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/status"
)

func newStatus(g *globals) *cobra.Command {
	var out *output
	var history, watch bool
	var timeout *time.Duration
	cmd := &cobra.Command{
		Use:   "status [CLUSTER…]",
		Short: "Show the peerings of clusters, measured by packets",
		Long: `Show the peerings of the clusters that are named, or else of the current context
and, where the kubeconfig has a context of the peer's name, the peer's side.

There is a row for each plane. Latency and loss are those of probes that the
gateways send through the tunnel. -o wide adds what else is known. The exit code
is 7 if a peering is not connected from every node.

With --watch it goes on: on a terminal the table is drawn again every 2 s,
elsewhere it is printed again when a state has changed.

With --history it shows instead what has changed, when and why, as the agents of
these clusters have noted it: on one time line, whatever their clocks say.`,
		Example: `  kubectl liqonet status
  kubectl liqonet status cluster-a cluster-b -o json
  kubectl liqonet status cluster-a cluster-b --watch
  kubectl liqonet status cluster-a cluster-b --history`,
		ValidArgsFunction: g.completeContexts(math.MaxInt),
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case watch && history:
				return commandLineError(cmd, errors.New("--watch and --history do not go together"))
			case watch:
				return g.watchStatus(cmd, args, *timeout, out)
			}
			return within(cmd, *timeout, func(ctx context.Context) error { return g.status(ctx, args, history, out) })
		},
	}
	out = addOutput(cmd.Flags())
	cmd.Flags().BoolVar(&history, "history", false, "show what has changed, when and why")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again and again, until the command is interrupted; --timeout is that of each time")
	timeout = timeoutFlag(cmd, 15*time.Second)
	return cmd
}

// statusDocument is what status prints for programs.
type statusDocument struct {
	Peerings []status.View `json:"peerings"`
	// Locks say which commands work on the clusters, or have been killed while they did.
	Locks []string `json:"locks,omitempty"`
	// Errors say which other sides could not be read, and what can be done.
	Errors []string `json:"errors,omitempty"`
}

func peeringNames(views []status.View) (out []string) {
	for _, v := range views {
		out = append(out, "peering."+v1alpha1.GroupVersion.Group+"/"+v.Name)
	}
	return out
}

// side is what was read of one cluster.
type side struct {
	*kube.Cluster
	views []status.View
	locks []string
	// isPeer says that it is about the peerings of these views only.
	isPeer bool
}

// statusRead is what was read of clusters, and why others are not in it.
type statusRead struct {
	doc   *statusDocument
	sides []*side
	// unshown are why peers' sides are not in it, unread why clusters are not that were named.
	unshown, unread []error
}

// readStatus reads the clusters that are named, or else the current context's and its peers. It fails if none of the clusters answers: one
// that does not hides nothing of the others.
func (g *globals) readStatus(ctx context.Context, refs []string) (*statusRead, error) {
	refs, contexts, implicit, err := g.named("status", refs)
	if err != nil {
		return nil, err
	}
	clusters, _, err := g.identify(ctx, refs)
	if err != nil {
		return nil, err
	}
	s := &statusRead{doc: &statusDocument{Peerings: []status.View{}}}
	s.unread = s.add(inParallel(clusters, func(c *kube.Cluster) (_ *side, err error) {
		own := &side{Cluster: c}
		if err = c.SkipReason; err == nil {
			own.locks, err = engine.HeldLocks(ctx, c)
		}
		if err == nil {
			own.views, err = status.Views(ctx, c)
		}
		return own, err
	}))
	if len(s.sides) == 0 {
		return nil, cmp.Or(interrupted(ctx, "read the clusters"), s.unread[0])
	}
	if implicit {
		s.unshown = s.add(inParallel(s.doc.Peerings, func(v status.View) (*side, error) {
			if contexts[v.Peer] == nil {
				return nil, nil
			}
			return g.otherSide(ctx, v, clusters[0])
		}))
	}
	for _, err := range slices.Concat(s.unread, s.unshown) {
		s.doc.Errors = append(s.doc.Errors, string(explain(err, "  ")))
	}
	status.MarkOrphans(s.doc.Peerings, lo.Map(s.sides, func(side *side, _ int) string { return side.ID }))
	return s, nil
}

// add adds clusters, but for those that could not be read, of which it returns the errors.
func (s *statusRead) add(sides []*side, errs []error) (unread []error) {
	for i, side := range sides {
		if errs[i] != nil {
			unread = append(unread, errs[i])
		} else if side != nil {
			s.sides, s.doc.Peerings = append(s.sides, side), append(s.doc.Peerings, side.views...)
			for _, held := range side.locks {
				s.doc.Locks = append(s.doc.Locks, side.Name+": "+held)
			}
		}
	}
	return unread
}

// errUnhealthy is returned by status after it has printed what is not well.
var errUnhealthy = ending{ExitUnhealthy, "not all peerings are connected"}

func (g *globals) status(ctx context.Context, refs []string, history bool, out *output) error {
	err := g.read(ctx, refs, func(s *statusRead) error {
		if history {
			return g.printHistory(ctx, s, out)
		}
		return out.printStatus(g.streams.Out, s)
	})
	if history && errors.Is(err, errUnhealthy) {
		return nil
	}
	return err
}

// read reads the clusters as status does, and ends as status does after what was read is printed.
func (g *globals) read(ctx context.Context, refs []string, printed func(*statusRead) error) error {
	s, err := g.readStatus(ctx, refs)
	if err != nil {
		return err
	}
	if err := printed(s); err != nil {
		return err
	}
	if len(s.unread) > 0 {
		s.warn(g.err(), s.unread[1:])
		return s.unread[0]
	}
	s.warn(g.err(), nil)
	if slices.ContainsFunc(s.doc.Peerings, func(v status.View) bool { return v.State != status.Connected }) {
		return errUnhealthy
	}
	return nil
}

// warn says which clusters are not shown, and which peers' sides.
func (s *statusRead) warn(t text, unread []error) {
	for _, err := range unread {
		t.printf("Warning: not shown: %s\n", explain(err, "  "))
	}
	for _, err := range s.unshown {
		t.printf("Warning: a peer's side is not shown: %s\n", explain(err, "  "))
	}
}

// otherSide is the peer's view of a peering, by the cluster that a context of the peer's name leads to. Nothing is asked
// where that is another cluster.
func (g *globals) otherSide(ctx context.Context, v status.View, own *kube.Cluster) (*side, error) {
	peers, err := g.clusters(ctx, v.Peer)
	if err != nil || peers[0].ID != v.PeerID {
		return nil, err
	}
	views, err := status.Views(ctx, peers[0])
	views = slices.DeleteFunc(views, func(t status.View) bool { return t.PeerID != own.ID })
	return &side{Cluster: peers[0], views: views, isPeer: true}, err
}

func (o *output) printStatus(w io.Writer, s *statusRead) error {
	doc := s.doc
	if !o.forPeople() {
		return o.print(w, "Status", doc, doc.Peerings, peeringNames(doc.Peerings))
	}
	for _, held := range doc.Locks {
		text{w}.printf("At work in %s\n", held)
	}
	if len(doc.Peerings) == 0 {
		names := lo.Map(s.sides, func(side *side, _ int) string { return side.Name })
		text{w}.printf("No peerings in %s.\n", strings.Join(names, ", "))
		return nil
	}
	o.printViews(w, doc.Peerings)
	return nil
}
