package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

const (
	// lostTimeout is how long packets may not pass by agents that run, before what was changed goes back.
	lostTimeout = 20 * time.Second
	// stepTimeout is how long a step may take: nodes may have to pull the image.
	stepTimeout = 5 * time.Minute
	// BeginTimeout is how long all ways are waited for before anything is changed.
	BeginTimeout = 10 * time.Second
	// ProbeSilence is how long a node believes the last answer to its probes. After a gateway was replaced, what nodes
	// report says so much later that it works.
	ProbeSilence = 7 * time.Second
	// tolerableLoss is the part of a gateway's probes that may be lost, in percent.
	tolerableLoss = 50
)

// way is one by which a node's packets get to a peer.
type way struct {
	peering string
	plane   int32
	node    string
}

// ways are those by which packets pass, by what the cluster's own agents measure.
type ways map[way]bool

// waysOf are those of all peerings now.
func waysOf(c *kube.Cluster, o kube.Objects, beats status.Heartbeats) (ways, error) {
	out := ways{}
	reports := plan.ReportsByNode(o.Reports())
	for _, p := range kube.Of[*v1alpha1.Peering](o) {
		v, _, err := status.ViewOf(c, p, o, beats)
		if err != nil {
			continue // nobody has waited for it before either
		}
		for _, plane := range v.Planes {
			if !plane.Connected || plane.LossPercent > tolerableLoss {
				continue
			}
			for _, n := range v.Nodes {
				if slices.Contains(n.Planes, plane.Index) && leadsTo(reports[n.Name], p, plane.Index) {
					out[way{p.Name, plane.Index, n.Name}] = true
				}
			}
		}
	}
	return out, nil
}

// leadsTo says that a node's link leads to the gateway that reports now, and not to the one before it.
func leadsTo(n *v1alpha1.NodeNetwork, p *v1alpha1.Peering, plane int32) bool {
	if n == nil {
		return false
	}
	link, s := n.Gateway(p.Name, plane), p.PlaneStatus(plane)
	return link == nil || s == nil || !link.GatewayIP.IsValid() || link.GatewayIP == s.PodIP
}

// WaysBefore reads them before anything is changed. Agents may just have started, so it waits for all ways for so long, and says which
// are missing then.
func WaysBefore(ctx context.Context, c *kube.Cluster, patience time.Duration) (out ways, missing string, err error) {
	begun, beats := time.Now(), status.Heartbeats{}
	err = c.Await(ctx, "look at the probes", "", status.ViewKinds(), func(_ context.Context, o kube.Objects) (string, error) {
		beats.Note(kube.Of[*coordinationv1.Lease](o), c.Now())
		if out, err = waysOf(c, o, beats); err != nil {
			return "", err
		}
		all := ways{}
		ready, _ := kube.NodesByReadiness(kube.Of[*corev1.Node](o))
		for _, p := range kube.Of[*v1alpha1.Peering](o) {
			for _, plane := range p.Spec.Planes {
				for _, n := range ready {
					all[way{p.Name, plane.Index, n}] = true
				}
			}
		}
		if missing = all.lost(out, o); time.Since(begun) < patience {
			return missing, nil
		}
		return "", nil
	})
	return out, missing, err
}

// Expect adds the ways by a gateway that a command which was interrupted has left without a pod: from all nodes that have another way to
// the peer.
func (w ways) Expect(g plan.UpgradeGateway) {
	for x := range maps.Clone(w) {
		if x.peering == g.Peering {
			w[way{g.Peering, g.Plane, x.node}] = true
		}
	}
}

// expectFrom adds the ways from nodes whose agents a command has replaced that was killed: all that other nodes have. So what it has broken is seen.
func (w ways) expectFrom(nodes []string) {
	planes := ways{}
	for x := range w {
		planes[way{x.peering, x.plane, ""}] = true
	}
	for x := range planes {
		for _, n := range nodes {
			w[way{x.peering, x.plane, n}] = true
		}
	}
}

// lost names the ways that worked and do not any more; empty if there is none. A node that is gone or not ready lacks nothing, nor does
// one whose plane was removed.
func (w ways) lost(now ways, o kube.Objects) string {
	ready, _ := kube.NodesByReadiness(kube.Of[*corev1.Node](o))
	byPeering := map[string][]string{}
	for _, x := range slices.SortedFunc(maps.Keys(w), func(a, b way) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	}) {
		p := kube.ByName[*v1alpha1.Peering](o, x.peering)
		if !now[x] && p != nil && p.Plane(x.plane) != nil && slices.Contains(ready, x.node) {
			plane := fmt.Sprintf("%s by plane %d", x.peering, x.plane)
			byPeering[plane] = append(byPeering[plane], x.node)
		}
	}
	var out []string
	for _, plane := range slices.Sorted(maps.Keys(byPeering)) {
		out = append(out, fmt.Sprintf("packets do not pass to %s from %s", plane, kube.FirstOf(3, byPeering[plane])))
	}
	return strings.Join(out, "; ")
}

// Settle waits until agents have taken over. Packets have to pass by all ways by which they did before, and do so for the time that is given. It returns an
// error if an agent cannot start, or if they do not pass for lostTimeout, or if it takes longer than stepTimeout.
func (s *Side) Settle(ctx context.Context, a Agents, calm time.Duration) error {
	var loses, passes time.Time // since when
	begin := func(t *time.Time, is bool) time.Duration {
		if !is || t.IsZero() {
			*t = time.Now()
		}
		return time.Since(*t)
	}
	patience := cmp.Or(s.Patience, lostTimeout)
	a.Idle = s.Idle
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("not done after %s: %w", stepTimeout, context.DeadlineExceeded))
	defer cancel()
	return AwaitAgents(ctx, s.Cluster, "wait until packets pass", s.PodsHint(), a, func(o kube.Objects, beats status.Heartbeats, missing string) (string, error) {
		now, err := waysOf(s.Cluster, o, beats)
		if err != nil {
			return "", err
		}
		lost := s.Worked.lost(now, o)
		losing, passing := begin(&loses, missing == "" && lost != ""), begin(&passes, missing == "" && lost == "")
		switch {
		case missing == "" && losing > patience:
			return "", &kube.Error{Kind: kube.NotReady, Cluster: s.Name, Doing: "look at the probes after a step", Err: fmt.Errorf("%s, for %s", lost, patience), Hint: s.PodsHint()}
		case missing == "" && lost == "" && passing < calm:
			return "packets pass for less than " + calm.String(), nil
		}
		return cmp.Or(missing, lost), nil
	})
}
