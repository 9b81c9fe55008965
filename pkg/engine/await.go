package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

// RolloutKinds returns the kinds that pendingRollout reads, besides Peerings.
func RolloutKinds() []client.ObjectList {
	return []client.ObjectList{&appsv1.DaemonSetList{}, &appsv1.DeploymentList{}, &appsv1.ControllerRevisionList{}, &corev1.PodList{}}
}

// AgentSet are the agents to wait for: gateways, and agents of the nodes in the sorted list, nil for all ready nodes, without
// PriorFailures.
type AgentSet struct {
	Nodes         []string
	Gateways      []manifests.Gateway
	PriorFailures PriorFailures
	// Since is the oldest acceptable revision of node agents while a command replaces them, 0 for any. Packets show
	// whether they work, and that command waits for the newest, or was killed.
	Since int64
}

// PriorFailures lists what did not work in a peering before a command: planes through which no packets passed, and nodes from
// which none did, sorted. They are not waited for while the cause is one that the command cannot fix.
type PriorFailures struct {
	Peering string
	Planes  []int32
	Nodes   []string
}

// NoNodes returns an empty list, as nil means all nodes.
func NoNodes() []string { return []string{} }

// AwaitAgents waits until newly applied agents have replaced their predecessors and packets pass. The function check
// gets what is missing for the former, and returns what is missing in all.
func AwaitAgents(ctx context.Context, c *kube.Cluster, op, hint string, a AgentSet, check func(o kube.Objects, beats status.Heartbeats, missing string) (string, error)) error {
	beats, refusals := status.Heartbeats{}, &kube.Refusals{}
	names := lo.Map(a.Gateways, func(g manifests.Gateway, _ int) string { return g.Name() })
	return c.Await(ctx, op, hint, append(RolloutKinds(), status.ViewKinds()...), func(o kube.Objects) (string, error) {
		beats.Observe(kube.OfKind[*coordinationv1.Lease](o), c.Now())
		missing, err := pendingRollout(c, o, a, beats)
		if err = cmp.Or(err, refusals.Check(ctx, c, o, names...)); err != nil {
			return "", err
		}
		return check(o, beats, missing)
	})
}

// pendingRollout returns what is missing until agents run and hold their Leases, which they take after their first report.
// It returns an error if an agent cannot start.
//
// It checks each node, as the DaemonSet's own count includes nodes that are not ready. Gateways of a removed peering
// do not count.
func pendingRollout(c *kube.Cluster, o kube.Objects, a AgentSet, beats status.Heartbeats) (missing string, err error) {
	nodes, _ := kube.NodesByReadiness(kube.OfKind[*corev1.Node](o))
	still := a.PriorFailures.Remaining(o, beats)
	nodes = slices.DeleteFunc(nodes, func(n string) bool {
		return a.Nodes != nil && !kube.ContainsSorted(a.Nodes, n) || kube.ContainsSorted(still.Nodes, n)
	})
	gateways := slices.DeleteFunc(slices.Clone(a.Gateways), func(g manifests.Gateway) bool {
		return kube.ByName[*v1alpha1.Peering](o, g.Peering) == nil || g.Peering == still.Peering && slices.Contains(still.Planes, g.Plane)
	})
	names := lo.Map(gateways, func(g manifests.Gateway, _ int) string { return g.Name() })
	if crash, err := PodProblem(c, o, nodes, names...); crash != "" || err != nil {
		return crash, err
	}
	for _, g := range gateways {
		deployment := kube.ByName[*appsv1.Deployment](o, g.Name())
		if deployment == nil || !isRolledOut(deployment) {
			return "the gateway is being replaced", nil
		}
		if runningPods(o)[beats.Pod(g.Name())] == nil {
			return "the gateway has not reported since it was replaced", nil
		}
	}
	if len(nodes) == 0 {
		return "", nil
	}
	revisions, least, missing := revisionsOf(o)
	if missing != "" {
		return missing, nil
	}
	if isOnDelete(kube.ByName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName)) {
		least = a.Since
	}
	return pendingNodes(o, revisions, least, nodes, beats), nil
}

// revisionsOf returns the revisions of the node agents' DaemonSet by hash, and the newest, once its controller has observed it.
func revisionsOf(o kube.Objects) (all map[string]int64, newest int64, missing string) {
	ds := kube.ByName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName)
	all = map[string]int64{}
	if ds != nil && ds.Status.ObservedGeneration >= ds.Generation {
		for _, r := range kube.OfKind[*appsv1.ControllerRevision](o) {
			if metav1.IsControlledBy(r, ds) {
				all[r.Labels[appsv1.ControllerRevisionHashLabelKey]], newest = r.Revision, max(newest, r.Revision)
			}
		}
	}
	if newest == 0 {
		return nil, 0, "the node agents are being replaced"
	}
	return all, newest, ""
}

// isOnDelete reports whether a command replaces the node agents, or failed or was killed while it did.
func isOnDelete(ds *appsv1.DaemonSet) bool {
	return ds.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType
}

// pendingNodes returns what is missing for node agents of a revision, or a later one.
func pendingNodes(o kube.Objects, revisions map[string]int64, minRevision int64, nodes []string, beats status.Heartbeats) string {
	ds, running, reports := kube.ByName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName), runningPods(o), plan.ReportsByNode(o.Reports())
	missing := lo.Filter(nodes, func(n string, _ int) bool {
		pod := running[beats.Pod(reports[n].LeaseName())]
		return pod == nil || !metav1.IsControlledBy(pod, ds) || revisions[pod.Labels[appsv1.ControllerRevisionHashLabelKey]] < minRevision
	})
	return lo.Ternary(len(missing) == 0, "", fmt.Sprintf("the node agent of %s is being replaced", kube.JoinFirst(3, missing)))
}

// runningPods returns the pods whose agents run and are not being stopped, by name.
func runningPods(o kube.Objects) map[string]*corev1.Pod {
	running := lo.Filter(kube.OfKind[*corev1.Pod](o), func(pod *corev1.Pod, _ int) bool {
		return pod.DeletionTimestamp.IsZero() && lo.FirstOrEmpty(pod.Status.ContainerStatuses).State.Running != nil
	})
	return lo.KeyBy(running, (*corev1.Pod).GetName)
}

func isRolledOut(d *appsv1.Deployment) bool {
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.Replicas == 1 && s.UpdatedReplicas == 1 && s.AvailableReplicas == 1
}

// AwaitTerminated waits until the previous gateway has exited, which it does once no node sends packets through it. If no
// new one is applied, that is the last gateway. Gateways on nodes that are not ready do not count.
func AwaitTerminated(ctx context.Context, c *kube.Cluster, g manifests.Gateway) error {
	of := []client.ObjectList{&appsv1.DeploymentList{}, &corev1.PodList{}, &corev1.NodeList{}}
	return c.Await(ctx, "wait until the former gateway has exited", c.PodsHint(), of, func(o kube.Objects) (string, error) {
		d := kube.ByName[*appsv1.Deployment](o, g.Name())
		if d != nil && d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
			d = nil // no gateway is wanted
		}
		if d != nil && (d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas < 1 || d.Status.Replicas > d.Status.UpdatedReplicas) {
			return "the gateway is being replaced", nil
		}
		_, notReady := kube.NodesByReadiness(kube.OfKind[*corev1.Node](o))
		former := kube.Find(o, func(pod *corev1.Pod) bool {
			is := gatewayIn(pod).Name() == g.Name() && !kube.ContainsSorted(notReady, pod.Spec.NodeName)
			return is && (d == nil || !pod.DeletionTimestamp.IsZero())
		})
		if former == nil {
			return "", nil
		}
		return fmt.Sprintf("pod %s runs until no node sends packets through it", former.Name), nil
	})
}

// Remaining returns what has such a cause now: gateways that cannot be scheduled, and nodes whose agents stopped reporting.
func (i PriorFailures) Remaining(o kube.Objects, beats status.Heartbeats) PriorFailures {
	out := PriorFailures{Peering: i.Peering}
	out.Planes = lo.FilterMap(kube.OfKind[*corev1.Pod](o), func(pod *corev1.Pod, _ int) (int32, bool) {
		g := gatewayIn(pod)
		isOurs := g.Peering == i.Peering && slices.Contains(i.Planes, g.Plane) && pod.DeletionTimestamp.IsZero()
		return g.Plane, isOurs && Unschedulable(pod) != nil
	})
	if len(i.Nodes) == 0 {
		return out
	}
	reports := plan.ReportsByNode(o.Reports())
	out.Nodes = lo.Filter(i.Nodes, func(n string, _ int) bool { return reports[n] != nil && !beats.Alive(reports[n].LeaseName()) })
	return out
}

// gatewayIn returns the gateway of a Deployment or pod.
func gatewayIn(d client.Object) manifests.Gateway {
	plane, _ := strconv.Atoi(d.GetLabels()[v1alpha1.LabelPlane]) // the label is ours
	return manifests.Gateway{Peering: d.GetLabels()[v1alpha1.LabelPeering], Plane: int32(plane)}
}

// MaxRestarts is how often an agent may exit before that is an error: it also exits when an API server is unavailable
// for long.
const MaxRestarts = 4

// PodProblem checks the pods of these gateways, and of the node agents on the nodes of these names, which are sorted. It returns
// an error if a pod cannot start and waiting does not help, and a reason if one crashes repeatedly.
func PodProblem(c *kube.Cluster, o kube.Objects, names []string, gateways ...string) (reason string, err error) {
	for _, p := range kube.OfKind[*corev1.Pod](o) {
		isGateway := slices.Contains(gateways, gatewayIn(p).Name())
		isAgent := p.Labels[v1alpha1.LabelPeering] == "" && p.Labels[v1alpha1.LabelProbe] == "" &&
			kube.ContainsSorted(names, nodes.OfPod(p))
		if !isGateway && !isAgent || !p.DeletionTimestamp.IsZero() {
			continue
		}
		if cond := Unschedulable(p); cond != nil && isAgent {
			reason = fmt.Sprintf("pod %s is not scheduled on node %s: %s", p.Name, nodes.OfPod(p), cond.Message)
		} else if cond != nil {
			reason = fmt.Sprintf("pod %s has no node (each gateway of a peering needs one of its own, see --planes): %s", p.Name, cond.Message)
		}
		for _, s := range p.Status.ContainerStatuses {
			if err := StartFailure(c, p, s); err != nil {
				return "", err
			}
			if s.State.Waiting == nil || s.State.Waiting.Reason != "CrashLoopBackOff" {
				continue
			}
			why := "the agent exits repeatedly"
			if t := s.LastTerminationState.Terminated; t != nil && t.Message != "" {
				why = strings.TrimSpace(t.Message)
			}
			if s.RestartCount >= MaxRestarts {
				e := StartError(c, p, errors.New(why))
				e.Hint = fmt.Sprintf("%s -n %s logs %s --previous", c.Kubectl, p.Namespace, failure.Quote(p.Name))
				return "", e
			}
			reason = fmt.Sprintf("pod %s on node %s: %s", p.Name, p.Spec.NodeName, why)
		}
	}
	return reason, nil
}

// Unschedulable returns the condition that says why a pod cannot be scheduled, or nil.
func Unschedulable(p *corev1.Pod) *corev1.PodCondition {
	cond, _ := lo.Find(kube.Pointers(p.Status.Conditions), func(cond *corev1.PodCondition) bool {
		return cond.Type == corev1.PodScheduled && cond.Reason == corev1.PodReasonUnschedulable
	})
	return cond
}

// StartError returns the error for one of our pods that does not start.
func StartError(c *kube.Cluster, p *corev1.Pod, why error) *kube.Error {
	doing := fmt.Sprintf("start pod %s/%s on node %s", p.Namespace, p.Name, p.Spec.NodeName)
	return c.Errorf(kube.NotReady, doing, c.PodsHint(), "%w", why)
}

// StartFailure returns why a container of ours cannot start if waiting does not help.
func StartFailure(c *kube.Cluster, p *corev1.Pod, s corev1.ContainerStatus) error {
	switch w := cmp.Or(s.State.Waiting, &corev1.ContainerStateWaiting{}); w.Reason {
	case "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
		e := StartError(c, p, fmt.Errorf("image %q cannot be pulled: %s", s.Image, strings.TrimSpace(w.Message)))
		e.Hint = "name an image that the nodes can pull with --agent-image, or load it into them (make image; kind load image-archive bin/liqonet-agent.tar)"
		return e
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
		return StartError(c, p, fmt.Errorf("%s: %s", w.Reason, w.Message))
	}
	return nil
}

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
		v, err := status.ViewOf(c, p, o, beats)
		if err != nil {
			continue // it was not expected before either
		}
		for _, plane := range v.Planes {
			if !plane.Connected || plane.LossPercent > tolerableLoss {
				continue
			}
			for _, n := range v.Nodes {
				if slices.Contains(n.Planes, plane.Index) && linksToCurrentGateway(reports[n.Name], p, plane.Index) {
					out[nodePath{p.Name, plane.Index, n.Name}] = true
				}
			}
		}
	}
	return out
}

// linksToCurrentGateway reports whether a node's link leads to the current gateway, not to its predecessor.
func linksToCurrentGateway(n *v1alpha1.NodeNetwork, p *v1alpha1.Peering, plane int32) bool {
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
	err = c.Await(ctx, "check the probes", "", status.ViewKinds(), func(o kube.Objects) (string, error) {
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

// ExpectGateway adds the paths through a gateway that an interrupted command left without a pod, from all nodes that have
// another path to the peer.
func (w paths) ExpectGateway(g plan.UpgradeGateway) {
	for x := range maps.Clone(w) {
		if x.peering == g.Peering {
			w[nodePath{g.Peering, g.Plane, x.node}] = true
		}
	}
}

// expectNodes adds the paths of other nodes for nodes whose agents a killed command has replaced, to detect what it broke.
func (w paths) expectNodes(nodes []string) {
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
	for x := range w {
		p := kube.ByName[*v1alpha1.Peering](o, x.peering)
		if !now[x] && p != nil && p.Plane(x.plane) != nil && slices.Contains(ready, x.node) {
			plane := fmt.Sprintf("%s through plane %d", x.peering, x.plane)
			byPeering[plane] = append(byPeering[plane], x.node)
		}
	}
	return strings.Join(lo.Map(slices.Sorted(maps.Keys(byPeering)), func(plane string, _ int) string {
		return fmt.Sprintf("packets do not pass to %s from %s", plane, kube.JoinFirst(3, slices.Sorted(slices.Values(byPeering[plane]))))
	}), "; ")
}

// AwaitHealthy waits until agents were replaced and packets have passed through all former paths for the time soak. It
// fails if an agent cannot start, if packets fail for lossTimeout, or if it takes longer than stepTimeout.
func (s *Side) AwaitHealthy(ctx context.Context, a AgentSet, soak time.Duration) error {
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
			return "", s.Wrap("replace node agents", fmt.Errorf("%s, for %s", missing, s.Health.StallTimeout))
		case missing == "" && losing > patience:
			return "", s.Errorf(kube.NotReady, "check the probes after a step", s.PodsHint(), "%s, for %s", lost, patience)
		case missing == "" && lost == "" && passing < soak:
			return "packets have passed for less than " + soak.String(), nil
		}
		return cmp.Or(missing, lost), nil
	})
}
