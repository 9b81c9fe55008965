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

const (
	// gatewaySilence and nodeSilence are how long after its last heartbeat an agent is taken for dead.
	gatewaySilence, nodeSilence = 3 * v1alpha1.ReportInterval, 3 * v1alpha1.NodeReportInterval
	// newAgent is how long an agent may take to report for the first time.
	newAgent = 30 * time.Second
)

func nodesHaveAgents(x *look) {
	if x.Installed && x.DaemonSet == nil && len(x.Cluster.Peerings) > 0 {
		x.failed("", "the DaemonSet of the node agents is gone", "no node has an agent that would be started again", x.fix())
	}
	for _, n := range lo.ToSlicePtr(x.Cluster.Nodes) {
		if x.Installed && x.DaemonSet != nil && nodes.RunsAgents(n) && x.nodePod(n.Name) == nil {
			x.failedAt(n.Name, fmt.Sprintf("node %s has no agent", n.Name), "Kubernetes has made no pod for it",
				x.kubectl("describe daemonset liqonet-node"))
		}
	}
}

func nodeAgents(x *look, n *corev1.Node) {
	pod := x.nodePod(n.Name)
	if x.DaemonSet == nil || pod == nil || !nodes.RunsAgents(n) {
		return
	}
	hint := x.kubectl("delete pod %s", pod.Name)
	what := fmt.Sprintf("the agent of node %s does nothing", n.Name)
	lease := x.Reports[n.Name].Lease()
	running := lo.FirstOrEmpty(pod.Status.ContainerStatuses).State.Running
	if k := x.Kernels[n.Name]; k != nil && k.Unhealthy != "" {
		x.failed(n.Name, what, "its health check is not answered: "+k.Unhealthy, hint)
	} else if x.silent(lease) && (running == nil || x.Now.Sub(running.StartedAt.Time) > newAgent) {
		x.failed(n.Name, what, x.sinceBeat(lease), hint)
	}
}

// sinceBeat is evidence of silence.
func (x *look) sinceBeat(lease string) string {
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
		what = fmt.Sprintf("%s does nothing, on node %s", g.name(), cmp.Or(pod.Spec.NodeName, "-"))
		hint = g.x.kubectl("delete pod %s", pod.Name)
	}
	g.failed(what, g.x.sinceBeat(g.lease()), hint)
}

func allGateways(x *look) {
	for _, p := range lo.ToSlicePtr(x.Cluster.Peerings) {
		lives := func(plane v1alpha1.Plane) bool { return !x.silent(v1alpha1.GatewayName(p.Name, plane.Index)) }
		if len(p.Spec.Planes) < 2 || slices.ContainsFunc(p.Spec.Planes, lives) {
			continue
		}
		what := fmt.Sprintf("all %d gateways to %s are dead", len(p.Spec.Planes), cmp.Or(p.Spec.Remote.Name, p.Name))
		x.failed("", what, "none renews its Lease", x.kubectl("get pods -o wide -l %s=%s", v1alpha1.LabelPeering, p.Name)).Peering = p.Name
	}
}

// agentsSay has what agents themselves report as not done.
func agentsSay(x *look) {
	for _, node := range slices.Sorted(maps.Keys(x.Reports)) {
		if m := x.Reports[node].Problem(); m != "" && !x.silent(x.Reports[node].Lease()) {
			x.failed(node, fmt.Sprintf("the agent of node %s cannot do all that it should: %s", node, m),
				"condition Ready of its NodeNetwork", x.Kubectl+" describe nodenetwork "+node).Pairs = x.allPairs()
		}
	}
	for _, g := range x.gateways() {
		if s := g.status; s != nil && s.Connected && s.Message != "" && !g.silent() {
			what := g.name() + " cannot do all that it should: " + s.Message
			g.failed(what, "message of its Peering", x.Kubectl+" describe peering "+g.peering.Name)
		}
	}
}

// ofPods looks at each pod of an agent, and at the state of its container.
func ofPods(check func(*look, *corev1.Pod, corev1.ContainerStatus)) func(*look) {
	return func(x *look) {
		for _, p := range lo.ToSlicePtr(x.Cluster.Pods) {
			if isAgent(p) && p.DeletionTimestamp == nil {
				check(x, p, lo.FirstOrEmpty(p.Status.ContainerStatuses))
			}
		}
	}
}

// ofPod is a finding about a pod.
func (x *look) ofPod(p *corev1.Pod, what, evidence string) *check.Finding {
	f := x.failed(nodeOfPod(p), what, evidence, x.kubectl("describe pod %s", p.Name))
	f.Peering = p.Labels[v1alpha1.LabelPeering]
	return f
}

func podImages(x *look, p *corev1.Pod, s corev1.ContainerStatus) {
	failures := []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
	if w := s.State.Waiting; w != nil && slices.Contains(failures, w.Reason) {
		what := fmt.Sprintf("node %s cannot get the agents' image %s", nodeOfPod(p), s.Image)
		x.ofPod(p, what, "pod "+p.Name+": "+w.Reason+": "+w.Message)
	}
}

// crashed says that a container has ended by itself more than once lately.
func (x *look) crashed(s corev1.ContainerStatus) (*corev1.ContainerStateTerminated, bool) {
	const lately, often = 5 * time.Minute, 2
	t := cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated)
	if t == nil {
		return nil, false
	}
	waits := s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
	return t, waits || s.RestartCount >= often && x.Now.Sub(t.FinishedAt.Time) < lately
}

const killedForMemory = "OOMKilled"

func podCrashes(x *look, p *corev1.Pod, s corev1.ContainerStatus) {
	if t, crashes := x.crashed(s); crashes && t.Reason != killedForMemory {
		said := cmp.Or(strings.TrimSpace(t.Message), fmt.Sprintf("exit code %d", t.ExitCode))
		what := fmt.Sprintf("%s crashes again and again on node %s: %s", podName(p), nodeOfPod(p), said)
		x.ofPod(p, what, fmt.Sprintf("pod %s was restarted %d times", p.Name, s.RestartCount))
	}
}

func podMemory(x *look, p *corev1.Pod, s corev1.ContainerStatus) {
	if t, crashes := x.crashed(s); crashes && t.Reason == killedForMemory {
		limits := lo.FirstOrEmpty(p.Spec.Containers).Resources.Limits
		what := fmt.Sprintf("%s has too little memory on node %s: its limit is %s", podName(p), nodeOfPod(p), limits.Memory())
		x.ofPod(p, what, fmt.Sprintf("pod %s was ended %d times", p.Name, s.RestartCount))
	}
}

// podName is what a pod is.
func podName(p *corev1.Pod) string {
	if peering := p.Labels[v1alpha1.LabelPeering]; peering != "" {
		return "the gateway to " + peering
	}
	return "the node agent"
}

func podsScheduled(x *look, p *corev1.Pod, _ corev1.ContainerStatus) {
	for _, c := range p.Status.Conditions {
		if p.Status.Phase == corev1.PodPending && c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			x.ofPod(p, fmt.Sprintf("no node takes %s: %s", podName(p), c.Message), "pod "+p.Name+" is pending")
		}
	}
}

func starved(x *look) {
	const most = 50 // percent of a second that it is late, each second
	for _, lease := range slices.Sorted(maps.Keys(x.Beats)) {
		percent := x.Beats[lease].Starved
		if percent < most {
			continue
		}
		agent, node := x.agent(lease)
		x.failedAt(node, fmt.Sprintf("%s gets too little processor time: it is late by %d %% of each second", agent, percent),
			"it is so late when its time has come, as it tells with its Lease",
			x.kubectl("get daemonsets,deployments -o custom-columns=NAME:.metadata.name,CPU:.spec.template.spec.containers[0].resources.limits.cpu"))
	}
}

func policies(x *look, p *corev1.Pod, _ corev1.ContainerStatus) {
	for _, port := range []int32{wire.OverlayPort, wire.TunnelPort} {
		for _, d := range []struct {
			direction networkingv1.PolicyType
			words     string
		}{{networkingv1.PolicyTypeIngress, "to"}, {networkingv1.PolicyTypeEgress, "from"}} {
			by := x.deniedBy(p, d.direction, port)
			if by != "" && component(p) == "gateway" && len(x.found) == 0 { // once is enough
				what := fmt.Sprintf("NetworkPolicy %s does not let UDP %s the gateways pass", by, d.words)
				x.ofPod(p, what, fmt.Sprintf("port %d, pod %s", port, p.Name)).Hint = x.kubectl("delete networkpolicy %s", by)
			}
		}
	}
}

// deniedBy is the policy for which a pod may not have UDP of a port with nodes, empty if it may.
func (x *look) deniedBy(pod *corev1.Pod, direction networkingv1.PolicyType, port int32) (by string) {
	for _, np := range lo.ToSlicePtr(x.Cluster.Policies.Items) {
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

// admits says that a policy lets UDP of a port pass with every node. Selectors match no node.
func (x *look) admits(np *networkingv1.NetworkPolicy, direction networkingv1.PolicyType, port int32) bool {
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

// admitsPort says that an entry of a policy is about UDP of a port.
func admitsPort(p networkingv1.NetworkPolicyPort, port int32) bool {
	switch {
	case p.Protocol == nil || *p.Protocol != corev1.ProtocolUDP: // without one it is TCP
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

// hasNodes says that a block has the addresses of all nodes.
func (x *look) hasNodes(b *networkingv1.IPBlock) bool {
	has := func(cidr string, a netip.Addr) bool {
		block, err := netip.ParsePrefix(cidr)
		return err == nil && block.Contains(a)
	}
	outside := func(a netip.Addr) bool {
		return !has(b.CIDR, a) || slices.ContainsFunc(b.Except, func(except string) bool { return has(except, a) })
	}
	return !slices.ContainsFunc(x.Cluster.Nodes, func(n corev1.Node) bool {
		return slices.ContainsFunc(nodes.Addresses(&n, corev1.NodeInternalIP), outside)
	})
}
