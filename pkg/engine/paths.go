package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

const (
	// lossTimeout is how long packets may fail with running agents before changes are rolled back.
	lossTimeout = 20 * time.Second
	// stepTimeout is how long a step may take: nodes may have to pull the image.
	stepTimeout = 5 * time.Minute
	// BaselineTimeout limits the wait for all paths before anything is changed.
	BaselineTimeout = 10 * time.Second
	// ProbeExpiry is how long a node trusts the last reply to its probes. Nodes may report a replaced gateway as
	// working for that long.
	ProbeExpiry = 7 * time.Second
	// tolerableLoss is the percentage of a gateway's probes that may be lost.
	tolerableLoss = 50
)

// nodePath is a path of a node's packets to a peer.
type nodePath struct {
	peering string
	plane   int32
	node    string
}

// paths are the paths that pass packets, as measured by the cluster's own agents.
type paths map[nodePath]bool

// pathsOf returns the current paths of all peerings.
func pathsOf(c *kube.Cluster, o kube.Objects, beats status.Heartbeats) paths {
	out := paths{}
	reports := plan.ReportsByNode(o.Reports())
	for _, p := range kube.OfKind[*v1alpha1.Peering](o) {
		v, _, err := status.ViewOf(c, p, o, beats)
		if err != nil {
			continue // it was not expected before either
		}
		for _, plane := range v.Planes {
			if !plane.Connected || plane.LossPercent > tolerableLoss {
				continue
			}
			for _, n := range v.Nodes {
				if slices.Contains(n.Planes, plane.Index) && leadsTo(reports[n.Name], p, plane.Index) {
					out[nodePath{p.Name, plane.Index, n.Name}] = true
				}
			}
		}
	}
	return out
}

// leadsTo reports whether a node's link leads to the current gateway, not to its predecessor.
func leadsTo(n *v1alpha1.NodeNetwork, p *v1alpha1.Peering, plane int32) bool {
	if n == nil {
		return false
	}
	link, s := n.Gateway(p.Name, plane), p.PlaneStatus(plane)
	return link == nil || s == nil || !link.GatewayIP.IsValid() || link.GatewayIP == s.PodIP
}

// BaselinePaths reads the paths before anything is changed. Agents may just have started, so it waits up to timeout for
// all paths, and returns which are missing.
func BaselinePaths(ctx context.Context, c *kube.Cluster, timeout time.Duration) (out paths, missing string, err error) {
	begun, beats := time.Now(), status.Heartbeats{}
	err = c.Await(ctx, "check the probes", "", status.ViewKinds(), func(_ context.Context, o kube.Objects) (string, error) {
		beats.Observe(kube.OfKind[*coordinationv1.Lease](o), c.Now())
		out = pathsOf(c, o, beats)
		all := paths{}
		ready, _ := kube.NodesByReadiness(kube.OfKind[*corev1.Node](o))
		for _, p := range kube.OfKind[*v1alpha1.Peering](o) {
			for _, plane := range p.Spec.Planes {
				for _, n := range ready {
					all[nodePath{p.Name, plane.Index, n}] = true
				}
			}
		}
		if missing = all.regressions(out, o); time.Since(begun) < timeout {
			return missing, nil
		}
		return "", nil
	})
	return out, missing, err
}

// Expect adds the paths through a gateway that an interrupted command left without a pod, from all nodes that have
// another path to the peer.
func (w paths) Expect(g plan.UpgradeGateway) {
	for x := range maps.Clone(w) {
		if x.peering == g.Peering {
			w[nodePath{g.Peering, g.Plane, x.node}] = true
		}
	}
}

// expectFrom adds the paths of other nodes for nodes whose agents a killed command has replaced, to detect what it broke.
func (w paths) expectFrom(nodes []string) {
	planes := lo.UniqMap(lo.Keys(w), func(x nodePath, _ int) nodePath { return nodePath{x.peering, x.plane, ""} })
	for _, x := range planes {
		for _, n := range nodes {
			w[nodePath{x.peering, x.plane, n}] = true
		}
	}
}

// regressions returns the paths that worked and no longer do, empty if there are none. It ignores nodes that are missing or
// not ready, and planes that were removed.
func (w paths) regressions(now paths, o kube.Objects) string {
	ready, _ := kube.NodesByReadiness(kube.OfKind[*corev1.Node](o))
	byPeering := map[string][]string{}
	for _, x := range slices.SortedFunc(maps.Keys(w), func(a, b nodePath) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	}) {
		p := kube.ByName[*v1alpha1.Peering](o, x.peering)
		if !now[x] && p != nil && p.Plane(x.plane) != nil && slices.Contains(ready, x.node) {
			plane := fmt.Sprintf("%s through plane %d", x.peering, x.plane)
			byPeering[plane] = append(byPeering[plane], x.node)
		}
	}
	return strings.Join(lo.Map(slices.Sorted(maps.Keys(byPeering)), func(plane string, _ int) string {
		return fmt.Sprintf("packets do not pass to %s from %s", plane, kube.FirstOf(3, byPeering[plane]))
	}), "; ")
}

// AwaitHealthy waits until agents were replaced and packets have passed through all former paths for the time soak. It
// fails if an agent cannot start, if packets fail for lossTimeout, or if it takes longer than stepTimeout.
func (s *Side) AwaitHealthy(ctx context.Context, a Agents, soak time.Duration) error {
	var loses, passes, stalls time.Time // since when
	last := ""
	begin := func(t *time.Time, is bool) time.Duration {
		if !is || t.IsZero() {
			*t = time.Now()
		}
		return time.Since(*t)
	}
	patience := cmp.Or(s.Health.LossTimeout, lossTimeout)
	a.PriorFailures = s.Health.PriorFailures
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("not done after %s: %w", stepTimeout, context.DeadlineExceeded))
	defer cancel()
	return AwaitAgents(ctx, s.Cluster, "wait until packets pass", s.PodsHint(), a, func(o kube.Objects, beats status.Heartbeats, missing string) (string, error) {
		now := pathsOf(s.Cluster, o, beats)
		lost := s.Health.Baseline.regressions(now, o)
		losing, passing := begin(&loses, missing == "" && lost != ""), begin(&passes, missing == "" && lost == "")
		stalling := begin(&stalls, missing == last)
		last = missing
		switch {
		case missing != "" && s.Health.StallTimeout > 0 && stalling > s.Health.StallTimeout:
			return "", s.Fail("replace node agents", fmt.Errorf("%s, for %s", missing, s.Health.StallTimeout))
		case missing == "" && losing > patience:
			return "", s.Errorf(kube.NotReady, "check the probes after a step", s.PodsHint(), "%s, for %s", lost, patience)
		case missing == "" && lost == "" && passing < soak:
			return "packets have passed for less than " + soak.String(), nil
		}
		return cmp.Or(missing, lost), nil
	})
}
