package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/wire"
)

// startTime is how long an agent may take to report for the first time.
const startTime = 30 * time.Second

func nodesHaveAgents(x *examination) {
	if x.Ours.Installed && x.Ours.DaemonSet == nil && len(x.Peerings) > 0 {
		x.failed("", "the DaemonSet of the node agents is gone", "agents that stop are not replaced", x.fix())
	}
	for _, n := range lo.ToSlicePtr(x.Machines.Nodes) {
		if x.Ours.Installed && x.Ours.DaemonSet != nil && nodes.RunsAgents(n) && x.nodePod(n.Name) == nil {
			x.failedAt(n.Name, fmt.Sprintf("node %s has no agent", n.Name), "Kubernetes has created no pod for it",
				x.kubectl("describe daemonset liqonet-node"))
		}
	}
}

func nodeAgents(x *examination, n *corev1.Node) {
	pod := x.nodePod(n.Name)
	if x.Ours.DaemonSet == nil || pod == nil || !nodes.RunsAgents(n) {
		return
	}
	hint := x.kubectl("delete pod %s", pod.Name)
	what := fmt.Sprintf("the agent of node %s does not respond", n.Name)
	lease := x.Reports[n.Name].Lease()
	running := lo.FirstOrEmpty(pod.Status.ContainerStatuses).State.Running
	if k := x.Machines.Kernels[n.Name]; k != nil && k.Unhealthy != "" {
		x.failed(n.Name, what, "its health check is not answered: "+k.Unhealthy, hint)
	} else if x.silent(lease) && (running == nil || x.Now.Sub(running.StartedAt.Time) > startTime) {
		x.failed(n.Name, what, x.sinceBeat(lease), hint)
	}
}

// sinceBeat returns the evidence for an agent's silence.
func (x *examination) sinceBeat(lease string) string {
	if age := x.Beats[lease].Age; age != nil {
		return fmt.Sprintf("it has not renewed its Lease for %s", age.Round(time.Second))
	}
	return "it does not renew its Lease"
}

func gateways(g gateway) {
	if !g.silent() {
		return
	}
	what, hint := g.name()+" has no pod", g.x.kubectl("describe deployment %s", g.lease())
	if pod := g.x.gatewayPod(g.peering.Name, g.Index); pod != nil {
		what = fmt.Sprintf("%s does not respond, on node %s", g.name(), cmp.Or(pod.Spec.NodeName, "-"))
		hint = g.x.kubectl("delete pod %s", pod.Name)
	}
	g.failed(what, g.x.sinceBeat(g.lease()), hint)
}

func allGateways(x *examination) {
	for _, p := range lo.ToSlicePtr(x.Peerings) {
		lives := func(plane v1alpha1.Plane) bool { return !x.silent(v1alpha1.GatewayName(p.Name, plane.Index)) }
		if len(p.Spec.Planes) < 2 || slices.ContainsFunc(p.Spec.Planes, lives) {
			continue
		}
		what := fmt.Sprintf("all %d gateways to %s are dead", len(p.Spec.Planes), cmp.Or(p.Spec.Remote.Name, p.Name))
		x.failed("", what, "none renews its Lease", x.kubectl("get pods -o wide -l %s=%s", v1alpha1.LabelPeering, p.Name)).Peering = p.Name
	}
}

// agentProblems adds the problems that agents themselves report.
func agentProblems(x *examination) {
	for _, node := range slices.Sorted(maps.Keys(x.Reports)) {
		if m := x.Reports[node].Problem(); m != "" && !x.silent(x.Reports[node].Lease()) {
			x.failed(node, fmt.Sprintf("the agent of node %s reports a problem: %s", node, m),
				"condition Ready of its NodeNetwork", x.Kubectl+" describe nodenetwork "+node).Pairs = x.allPairs()
		}
	}
	for _, g := range x.gateways() {
		if s := g.status; s != nil && s.Connected && s.Message != "" && !g.silent() {
			what := g.name() + " reports a problem: " + s.Message
			g.failed(what, "message of its Peering", x.Kubectl+" describe peering "+g.peering.Name)
		}
	}
}

// forPods calls check for each agent pod, with the status of its container.
func forPods(check func(*examination, *corev1.Pod, corev1.ContainerStatus)) func(*examination) {
	return func(x *examination) {
		for _, p := range lo.ToSlicePtr(x.Ours.Pods) {
			if isAgent(p) && p.DeletionTimestamp == nil {
				check(x, p, lo.FirstOrEmpty(p.Status.ContainerStatuses))
			}
		}
	}
}

// failedPod adds a finding about a pod.
func (x *examination) failedPod(p *corev1.Pod, what, evidence string) *check.Finding {
	f := x.failed(nodeOfPod(p), what, evidence, x.kubectl("describe pod %s", p.Name))
	f.Peering = p.Labels[v1alpha1.LabelPeering]
	return f
}

func podImages(x *examination, p *corev1.Pod, s corev1.ContainerStatus) {
	failures := []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
	if w := s.State.Waiting; w != nil && slices.Contains(failures, w.Reason) {
		what := fmt.Sprintf("node %s cannot pull the agents' image %s", nodeOfPod(p), s.Image)
		x.failedPod(p, what, "pod "+p.Name+": "+w.Reason+": "+w.Message)
	}
}

// crashed reports whether a container has terminated repeatedly in the last minutes, and returns its last termination.
func (x *examination) crashed(s corev1.ContainerStatus) (*corev1.ContainerStateTerminated, bool) {
	const lately, often = 5 * time.Minute, 2
	t := cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated)
	if t == nil {
		return nil, false
	}
	waits := s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
	return t, waits || s.RestartCount >= often && x.Now.Sub(t.FinishedAt.Time) < lately
}

const killedForMemory = "OOMKilled"

func podCrashes(x *examination, p *corev1.Pod, s corev1.ContainerStatus) {
	if t, crashes := x.crashed(s); crashes && t.Reason != killedForMemory {
		said := cmp.Or(strings.TrimSpace(t.Message), fmt.Sprintf("exit code %d", t.ExitCode))
		what := fmt.Sprintf("%s crashes repeatedly on node %s: %s", podName(p), nodeOfPod(p), said)
		x.failedPod(p, what, fmt.Sprintf("pod %s was restarted %d times", p.Name, s.RestartCount))
	}
}

func podMemory(x *examination, p *corev1.Pod, s corev1.ContainerStatus) {
	if t, crashes := x.crashed(s); crashes && t.Reason == killedForMemory {
		limits := lo.FirstOrEmpty(p.Spec.Containers).Resources.Limits
		what := fmt.Sprintf("%s has too little memory on node %s: its limit is %s", podName(p), nodeOfPod(p), limits.Memory())
		x.failedPod(p, what, fmt.Sprintf("pod %s was restarted %d times", p.Name, s.RestartCount))
	}
}

// podName returns the agent that a pod runs, in words.
func podName(p *corev1.Pod) string {
	if peering := p.Labels[v1alpha1.LabelPeering]; peering != "" {
		return "the gateway to " + peering
	}
	return "the node agent"
}

func podsScheduled(x *examination, p *corev1.Pod, _ corev1.ContainerStatus) {
	for _, c := range p.Status.Conditions {
		if p.Status.Phase == corev1.PodPending && c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			x.failedPod(p, fmt.Sprintf("no node accepts %s: %s", podName(p), c.Message), "pod "+p.Name+" is pending")
		}
	}
}

func starved(x *examination) {
	const most = 50 // percent of a second by which it is late, each second
	for _, lease := range slices.Sorted(maps.Keys(x.Beats)) {
		percent := x.Beats[lease].Starved
		if percent < most {
			continue
		}
		agent, node := x.agent(lease)
		x.failedAt(node, fmt.Sprintf("%s gets too little CPU time: it is late by %d %% of each second", agent, percent),
			"the agent reports this delay in its Lease",
			x.kubectl("get daemonsets,deployments -o custom-columns=NAME:.metadata.name,CPU:.spec.template.spec.containers[0].resources.limits.cpu"))
	}
}

func policies(x *examination, p *corev1.Pod, _ corev1.ContainerStatus) {
	for _, port := range []int32{wire.OverlayPort, wire.TunnelPort} {
		for _, d := range []struct {
			direction networkingv1.PolicyType
			words     string
		}{{networkingv1.PolicyTypeIngress, "to"}, {networkingv1.PolicyTypeEgress, "from"}} {
			by := x.deniedBy(p, d.direction, port)
			if by != "" && component(p) == "gateway" && len(x.found) == 0 { // one finding is enough
				what := fmt.Sprintf("NetworkPolicy %s blocks UDP %s the gateways", by, d.words)
				x.failedPod(p, what, fmt.Sprintf("port %d, pod %s", port, p.Name)).Hint = x.kubectl("delete networkpolicy %s", by)
			}
		}
	}
}

// deniedBy returns a policy that denies UDP on a port between the pod and nodes, empty if it is allowed.
func (x *examination) deniedBy(pod *corev1.Pod, direction networkingv1.PolicyType, port int32) (by string) {
	for _, np := range lo.ToSlicePtr(x.Ours.Policies.Items) {
		selector, err := metav1.LabelSelectorAsSelector(&np.Spec.PodSelector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) || !slices.Contains(np.Spec.PolicyTypes, direction) {
			continue
		}
		if by = cmp.Or(by, np.Name); x.admits(np, direction, port) {
			return ""
		}
	}
	return by
}

// admits reports whether a policy allows UDP on a port between pods and every node. Selectors match no nodes.
func (x *examination) admits(np *networkingv1.NetworkPolicy, direction networkingv1.PolicyType, port int32) bool {
	rules := np.Spec.Ingress
	if direction == networkingv1.PolicyTypeEgress {
		rules = lo.Map(np.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule, _ int) networkingv1.NetworkPolicyIngressRule {
			return networkingv1.NetworkPolicyIngressRule{From: r.To, Ports: r.Ports}
		})
	}
	withNodes := func(p networkingv1.NetworkPolicyPeer) bool { return p.IPBlock != nil && x.hasNodes(p.IPBlock) }
	ofPort := func(p networkingv1.NetworkPolicyPort) bool { return admitsPort(p, port) }
	return slices.ContainsFunc(rules, func(r networkingv1.NetworkPolicyIngressRule) bool {
		return (len(r.From) == 0 || slices.ContainsFunc(r.From, withNodes)) && (len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, ofPort))
	})
}

// admitsPort reports whether an entry of a policy includes UDP on a port.
func admitsPort(p networkingv1.NetworkPolicyPort, port int32) bool {
	switch {
	case p.Protocol == nil || *p.Protocol != corev1.ProtocolUDP: // TCP is the default
		return false
	case p.Port == nil:
		return true
	case p.Port.Type == intstr.String:
		return strings.HasPrefix(p.Port.StrVal, "plane-") && port == wire.TunnelPort
	case p.EndPort != nil:
		return p.Port.IntVal <= port && port <= *p.EndPort
	}
	return p.Port.IntVal == port
}

// hasNodes reports whether an IP block contains the addresses of all nodes.
func (x *examination) hasNodes(b *networkingv1.IPBlock) bool {
	has := func(cidr string, a netip.Addr) bool {
		block, err := netip.ParsePrefix(cidr)
		return err == nil && block.Contains(a)
	}
	outside := func(a netip.Addr) bool {
		return !has(b.CIDR, a) || slices.ContainsFunc(b.Except, func(except string) bool { return has(except, a) })
	}
	return !slices.ContainsFunc(x.Machines.Nodes, func(n corev1.Node) bool {
		return slices.ContainsFunc(nodes.Addresses(&n, corev1.NodeInternalIP), outside)
	})
}
