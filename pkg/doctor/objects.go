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
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/wire"
)

// warnSkew is the difference of clocks that causes a warning, failSkew the one that causes a failure.
const warnSkew, failSkew = 30 * time.Second, 5 * time.Minute

func apiAnswers(x *examination) {
	if x.API.Unreachable != "" {
		x.fail("", "the API server does not answer", x.API.Unreachable, x.API.Hint)
	}
}

func apiAccepts(x *examination) {
	switch {
	case x.API.Refused != "":
		x.fail("", "the API server does not accept the credentials", x.API.Refused, x.API.Hint)
	case x.API.Unreachable != "":
		x.skip("the API server does not answer")
	}
}

// CopiedFrom returns the ID of the cluster for which the cluster's objects were made, if that is another one.
func (c *Cluster) CopiedFrom() string {
	return v1alpha1.CopiedFrom(lo.FromPtr(c.Ledger).Spec.ClusterID, c.ID)
}

func copies(x *examination) {
	if from := x.CopiedFrom(); from != "" {
		remove := lo.Map(x.Ledger.Spec.Peers, func(p v1alpha1.PeerAllocation, _ int) string {
			return x.liqonet("unpeer", "--peer", p.Name)
		})
		x.fail("", "the objects of liqonet were made for another cluster, as in a restored backup; its agents do nothing",
			fmt.Sprintf("ClusterNetwork %s names the cluster with the ID %s, this one has %s", v1alpha1.ClusterNetworkName, from, x.ID),
			"remove the copies, which does not affect the other cluster: "+strings.Join(remove, "; "))
	}
}

func definitions(x *examination) {
	if !x.Own.Installed {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(x.Own.CRDs)) {
		if why := x.Own.CRDs[name]; why != "" {
			x.fail("", fmt.Sprintf("the definition %s %s", name, why), "objects of this kind cannot be read or written", x.peerCommand())
		}
	}
}

func userPermissions(x *examination) {
	if len(x.API.MissingPermissions) > 0 {
		x.add(check.Finding{
			Result: check.Skipped, Problem: "you may not " + joinFirst(x.API.MissingPermissions),
			Evidence: strings.Join(x.API.MissingPermissions, ", "), Hint: "peer and unpeer need another user: " + x.Kubectl + " auth can-i --list",
		})
	}
}

// isAccess reports whether an object grants the agents permissions.
func isAccess(o plan.ObjectPlan) bool {
	return slices.Contains([]string{"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"}, o.Kind)
}

// state describes how an object differs from the one that peer creates.
func state(o plan.ObjectPlan) string {
	return o.Kind + " " + o.Name + lo.Ternary(o.Action == plan.Create, " is gone", " was changed")
}

func agentPermissions(x *examination) {
	for _, o := range x.Own.Drift {
		if isAccess(o) {
			what := "the agents lack permissions: " + state(o)
			x.fail("", what, cmp.Or(o.Reason, "it differs from the one that peer creates"), x.fixCommand()).Pairs = x.allPairs()
		}
	}
}

func drift(x *examination) {
	for _, entry := range x.Ledger.DeletedByHand(x.Peerings) {
		x.fail("", "Peering "+entry.Name+" was deleted by hand", "the ledger has its entry",
			fmt.Sprintf("%s recreates it, %s --peer %s removes the rest", x.liqonet("peer", entry.Name), x.liqonet("unpeer"), failure.Quote(entry.Name)))
	}
	if weak := x.Own.WeakPolicies; len(weak) > 0 {
		x.fail("", "agents' tokens can write more than agents do: the admission policies "+joinFirst(weak)+" are missing or do not deny all that they should",
			"`peer` keeps the fields that others have added to them", x.kubectl("delete validatingadmissionpolicies,validatingadmissionpolicybindings --ignore-not-found", weak...)+" && "+x.peerCommand())
	}
	for _, o := range x.Own.Drift {
		if isAccess(o) || o.Kind == "Secret" || o.Kind == "CustomResourceDefinition" {
			continue
		}
		f := x.fail("", state(o), o.Reason, x.fixCommand())
		if f.Pairs = x.allPairs(); o.Action != plan.Create {
			f.Result = check.Warning
		}
	}
}

// tokens finds pods that are older than their ServiceAccount: the API server does not accept tokens of a previous account.
func tokens(x *examination) {
	pods := lo.GroupBy(lo.ToSlicePtr(x.Own.Pods), func(p *corev1.Pod) string { return p.Spec.ServiceAccountName })
	for _, a := range x.Own.Accounts.Items {
		late := lo.FilterMap(pods[a.Name], func(p *corev1.Pod, _ int) (string, bool) {
			return p.Name, isAgent(p) && p.CreationTimestamp.Before(&a.CreationTimestamp)
		})
		if len(late) > 0 {
			created := a.CreationTimestamp.UTC().Format(time.RFC3339)
			x.fail("", "tokens of agents are not accepted: ServiceAccount "+a.Name+" was recreated",
				fmt.Sprintf("it was created at %s, after the pods %s", created, joinFirst(late)),
				x.kubectl("delete pods", late...))
		}
	}
}

// identities compares the cluster's identity key with the one that its peers have recorded, and those of its peers with each other.
func identities(x *examination) {
	peers := lo.Filter(lo.FromPtr(x.Ledger).Spec.Peers, func(e v1alpha1.PeerAllocation, _ int) bool { return e.Active() && e.IdentityKey != "" })
	replace := x.peerCommand() + " --replace"
	if len(peers) > 0 && x.Own.Identity == "" {
		x.fail("", "the identity key of the cluster is gone", "Secret "+manifests.IdentitySecretName+" is gone or damaged: peers recognize the cluster by it", replace)
	}
	for _, c := range x.facts.Clusters {
		entry, _ := lo.Find(lo.FromPtr(c.Ledger).Spec.Peers, func(e v1alpha1.PeerAllocation) bool { return e.ClusterID == x.ID && e.Active() })
		if entry.IdentityKey != "" && x.Own.Identity != "" && entry.IdentityKey != x.Own.Identity {
			x.fail("", "the cluster has another identity key than the one that "+c.Name+" knows",
				fmt.Sprintf("it has %s, not %s", manifests.IdentityFingerprint(x.Own.Identity), manifests.IdentityFingerprint(entry.IdentityKey)),
				"check which cluster the kubeconfig leads to; if it is the right one and has lost its keys: "+replace)
		}
	}
	for key, same := range lo.GroupBy(peers, func(e v1alpha1.PeerAllocation) string { return e.IdentityKey }) {
		if len(same) > 1 {
			names := lo.Map(same, func(e v1alpha1.PeerAllocation, _ int) string { return e.Name })
			x.fail("", "peers have one identity key: "+joinFirst(names), "it is "+manifests.IdentityFingerprint(key)+"; one of them is a copy of the other",
				x.liqonet("unpeer")+" --peer NAME, for the copy")
		}
	}
}

func secrets(x *examination) {
	wanted := func(name, what, hint string, about func(*check.Finding)) {
		if !x.Own.Secrets[name] {
			about(x.fail("", "the Secret "+name+" is gone, with "+what, "running pods are not affected, but new ones cannot mount it", hint))
		}
	}
	var overlayKeys []int32
	if x.Own.DaemonSet != nil {
		overlayKeys = manifests.OverlayKeys(&x.Own.DaemonSet.Spec.Template.Spec)
		for _, g := range overlayKeys {
			wanted(manifests.OverlaySecretName(g), "the overlay's key", x.peerCommand(), func(*check.Finding) {})
		}
	}
	for _, g := range x.gateways() {
		m := manifests.Gateway{Peering: g.peering.Name, Plane: g.Index, KeyGeneration: g.KeyGeneration, PresharedKey: g.PresharedKey.Generation}
		if m.OverlayKey = g.OverlayKeyGeneration; !slices.Contains(overlayKeys, m.OverlayKey) {
			m.OverlayKey = lo.FirstOrEmpty(overlayKeys) // as agents do
		}
		wanted(m.SecretName(), "the key of a gateway", x.liqonet("peer", g.peer()), g.attribute)
		if m.OverlayKey > 0 {
			wanted(m.OverlaySecretName(), "the key of a gateway's links to nodes", x.liqonet("peer", g.peer()), g.attribute)
		}
		if m.PresharedKey > 0 {
			wanted(m.PresharedSecretName(), "a pre-shared key", x.liqonet("peer", g.peer()), g.attribute)
		}
	}
}

func serverClock(x *examination) {
	if off := x.API.ClockAhead.Abs(); off > warnSkew && x.API.Unreachable == "" {
		x.warn("", fmt.Sprintf("the API server's clock is %s this machine's", describeSkew(x.API.ClockAhead)),
			"according to the Date header of its responses", "set the clock that is wrong: timedatectl")
	}
}

func agentClocks(x *examination) {
	for _, name := range slices.Sorted(maps.Keys(x.Heartbeats)) {
		b := x.Heartbeats[name]
		if b.ClockAhead.Abs() <= warnSkew {
			continue
		}
		agent, node := x.agent(name)
		f := x.warn(node, fmt.Sprintf("the clock of %s is %s its API server's", agent, describeSkew(b.ClockAhead)),
			"Lease "+name+" has both times", "set the node's clock: timedatectl")
		if b.ClockAhead.Abs() > failSkew {
			f.Result = check.Failed
		}
	}
}

// describeSkew describes a difference of clocks.
func describeSkew(d time.Duration) string {
	return d.Abs().Round(time.Second).String() + lo.Ternary(d < 0, " behind", " ahead of")
}

func versions(x *examination) {
	agents := map[string][]string{}
	for name, b := range x.Heartbeats {
		if b.Version != "" && b.Version != x.facts.Version && b.Age != nil && *b.Age < time.Hour {
			agent, _ := x.agent(name)
			agents[b.Version] = append(agents[b.Version], agent)
		}
	}
	for _, v := range slices.Sorted(maps.Keys(agents)) {
		x.warn("", fmt.Sprintf("agents have version %s, and this command has %s", v, x.facts.Version), joinFirst(agents[v]), x.liqonet("upgrade"))
	}
}

func leftovers(x *examination) {
	if len(x.Own.Leftovers) > 0 {
		x.warn("", "objects of liqonet are left over: "+joinFirst(x.Own.Leftovers), strings.Join(x.Own.Leftovers, ", "), x.fixCommand())
	}
}

func locks(x *examination) {
	for _, l := range x.Locks {
		if l.IsExpired {
			age := x.Now.Sub(l.Lease.CreationTimestamp.Time).Round(time.Second)
			x.warn("", l.Name+", does not renew its lock", fmt.Sprintf("Lease kube-system/%s was created %s ago", l.Lease.Name, age),
				fmt.Sprintf("the next command takes it over; to delete it: %s -n kube-system delete lease %s", x.Kubectl, failure.Quote(l.Lease.Name)))
		}
	}
}

func otherProjects(x *examination) {
	for _, o := range x.Others.Projects {
		x.warn("", o+" is installed", "it also connects clusters, and may route or masquerade the same ranges", x.Kubectl+" get crds,namespaces")
	}
}

// settings finds settings of plugins that break peerings. With all except IPVS, packets bypass netfilter, so our rules do not see them:
// https://docs.cilium.io/en/stable/operations/performance/tuning/#ebpf-host-routing, https://docs.tigera.io/calico/latest/operations/ebpf/.
func settings(x *examination) {
	const why = "packets of pods bypass netfilter, so our rules do not see them: the plugin itself has to masquerade the gateways' packets"
	const try = "test with packets before you rely on it: kubectl "
	p := x.Others
	found := func(is bool, what, why, hint string) {
		if is {
			x.warn("", what, why, hint)
		}
	}
	found(p.Cilium["enable-bpf-masquerade"] == "true" && p.Cilium["enable-host-legacy-routing"] != "true",
		"Cilium routes pods' packets by eBPF", "enable-host-legacy-routing is not true in ConfigMap kube-system/cilium-config: "+why,
		"set it, and restart Cilium: kubectl -n kube-system edit configmap cilium-config")
	found(p.ProxyMode == "ipvs", "kube-proxy uses IPVS",
		"mode is ipvs in ConfigMap kube-system/kube-proxy: services with endpoints of peers were not tested with it",
		try+"-n kube-system get configmap kube-proxy -o yaml")
	found(p.CalicoBPF, "Calico's data plane is eBPF",
		"bpfEnabled is true in FelixConfiguration default: "+why, try+"get felixconfigurations default -o yaml")
	found(p.DataplaneV2, "GKE Dataplane V2 carries pods' packets",
		"DaemonSet kube-system/anetd: "+why, try+"-n kube-system get daemonset anetd")
}

func plans(x *examination) {
	if x.Plan != "" {
		x.fail("", "a peering cannot be planned: "+x.Plan, "reported by peer --dry-run", x.peerCommand()+" --dry-run")
	}
}

func udpPaths(x *examination) {
	for _, w := range x.facts.UDPTests {
		switch {
		case w.From != x.Cluster.Name || w.Answered:
		case w.SkipReason != "":
			x.skip(w.SkipReason)
		default:
			evidence, hint := "no answer from "+w.Address, "allow UDP to "+failure.Quote(w.Address)
			server, _ := lo.Find(x.facts.Clusters, func(c *Cluster) bool { return c.Name == w.To })
			if suspects := server.suspectPolicies(); suspects != "" {
				evidence += "; cluster-wide policies of " + w.To + " may block it: " + suspects
				hint += "; " + exemptFromPolicies
			}
			x.fail("", fmt.Sprintf("UDP from its nodes does not reach %s", w.To), evidence, hint+"; then: "+x.liqonet("doctor", w.To))
		}
	}
}

func ranges(x *examination) {
	for _, node := range slices.Sorted(maps.Keys(x.Reports)) {
		for _, p := range lo.ToSlicePtr(x.Peerings) {
			for _, c := range plan.RouteConflicts(x.Reports[node], &p.Spec) {
				x.fail(node, c, "reported by the node's agent", x.peerCommand())
			}
		}
	}
}

func podsOutside(x *examination) {
	reports := lo.MapToSlice(x.Reports, func(_ string, r *v1alpha1.NodeNetwork) v1alpha1.NodeNetwork { return *r })
	for _, p := range lo.ToSlicePtr(x.Peerings) {
		if outside := p.OutsidePodMessage(reports); outside != "" {
			what := strings.ReplaceAll(outside, "THIS-CLUSTER", failure.Quote(x.Cluster.Name))
			x.fail("", what, "reported by the nodes' agents", x.liqonet("peer", p.Spec.Remote.Name)).Peering = p.Name
		}
	}
}

// capacity warns before limits are reached.
func capacity(x *examination) {
	const nearly = 90 // percent
	check := func(node, what string, count, most int) {
		if count*100 >= most*nearly {
			x.warn(node, fmt.Sprintf("there is room for only a few more %s", what), fmt.Sprintf("%d of %d", count, most), x.Kubectl+" get clusternetworks,nodenetworks")
		}
	}
	check("", "peerings", len(lo.FromPtr(x.Ledger).Spec.Peers), ipam.MaxPeering+1)
	check("", "nodes", len(x.Reports), ipam.MaxNode)
	for _, node := range slices.Sorted(maps.Keys(x.Reports)) {
		check(node, "pods outside of the ranges of node "+node, len(x.Reports[node].Status.PodIPs), v1alpha1.MaxPodIPs)
	}
}

// startTime is how long an agent may take to report for the first time.
const startTime = 30 * time.Second

func nodesHaveAgents(x *examination) {
	if x.Own.Installed && x.Own.DaemonSet == nil && len(x.Peerings) > 0 {
		x.fail("", "the DaemonSet of the node agents is gone", "agents that stop are not replaced", x.fixCommand())
	}
	for _, n := range lo.ToSlicePtr(x.Machines.Nodes) {
		if x.Own.Installed && x.Own.DaemonSet != nil && nodes.RunsAgents(n) && x.NodePod(n.Name) == nil {
			x.failNode(n.Name, fmt.Sprintf("node %s has no agent", n.Name), "Kubernetes has created no pod for it",
				x.kubectl("describe daemonset liqonet-node"))
		}
	}
}

func nodeAgents(x *examination, n *corev1.Node) {
	pod := x.NodePod(n.Name)
	if x.Own.DaemonSet == nil || pod == nil || !nodes.RunsAgents(n) {
		return
	}
	hint := x.kubectl("delete pod", pod.Name)
	what := fmt.Sprintf("the agent of node %s does not respond", n.Name)
	lease := x.Reports[n.Name].LeaseName()
	running := lo.FirstOrEmpty(pod.Status.ContainerStatuses).State.Running
	if k := x.Machines.Kernels[n.Name]; k != nil && k.Unhealthy != "" {
		x.fail(n.Name, what, "its health check is not answered: "+k.Unhealthy, hint)
	} else if x.isSilent(lease) && (running == nil || x.Now.Sub(running.StartedAt.Time) > startTime) {
		x.fail(n.Name, what, x.sinceBeat(lease), hint)
	}
}

// sinceBeat returns the evidence for an agent's silence.
func (x *examination) sinceBeat(lease string) string {
	if age := x.Heartbeats[lease].Age; age != nil {
		return fmt.Sprintf("it has not renewed its Lease for %s", age.Round(time.Second))
	}
	return "it does not renew its Lease"
}

func gateways(g gateway) {
	if !g.isSilent() {
		return
	}
	what, hint := g.name()+" has no pod", g.x.kubectl("describe deployment", g.lease())
	if pod := g.x.GatewayPod(g.peering.Name, g.Index); pod != nil {
		what = fmt.Sprintf("%s does not respond, on node %s", g.name(), cmp.Or(pod.Spec.NodeName, "-"))
		hint = g.x.kubectl("delete pod", pod.Name)
	}
	g.fail(what, g.x.sinceBeat(g.lease()), hint)
}

func allGateways(x *examination) {
	for _, p := range lo.ToSlicePtr(x.Peerings) {
		lives := func(plane v1alpha1.Plane) bool { return !x.isSilent(v1alpha1.GatewayName(p.Name, plane.Index)) }
		if len(p.Spec.Planes) < 2 || slices.ContainsFunc(p.Spec.Planes, lives) {
			continue
		}
		what := fmt.Sprintf("all %d gateways to %s are dead", len(p.Spec.Planes), cmp.Or(p.Spec.Remote.Name, p.Name))
		x.fail("", what, "none renews its Lease", x.kubectl("get pods -o wide -l", v1alpha1.LabelPeering+"="+p.Name)).Peering = p.Name
	}
}

// agentProblems adds the problems that agents themselves report.
func agentProblems(x *examination) {
	for _, node := range slices.Sorted(maps.Keys(x.Reports)) {
		if m := x.Reports[node].Problem(); m != "" && !x.isSilent(x.Reports[node].LeaseName()) {
			x.fail(node, fmt.Sprintf("the agent of node %s reports a problem: %s", node, m),
				"condition Ready of its NodeNetwork", x.Kubectl+" describe nodenetwork "+failure.Quote(node)).Pairs = x.allPairs()
		}
	}
	for _, g := range x.gateways() {
		if s := g.status; s != nil && s.Connected && s.Message != "" && !g.isSilent() {
			what := g.name() + " reports a problem: " + s.Message
			g.fail(what, "message of its Peering", x.Kubectl+" describe peering "+failure.Quote(g.peering.Name))
		}
	}
}

// forPods calls check for each agent pod, with the status of its container.
func forPods(check func(*examination, *corev1.Pod, corev1.ContainerStatus)) func(*examination) {
	return func(x *examination) {
		for _, p := range lo.ToSlicePtr(x.Own.Pods) {
			if isAgent(p) && p.DeletionTimestamp == nil {
				check(x, p, lo.FirstOrEmpty(p.Status.ContainerStatuses))
			}
		}
	}
}

// failedPod adds a finding about a pod.
func (x *examination) failedPod(p *corev1.Pod, what, evidence string) *check.Finding {
	f := x.fail(nodes.OfPod(p), what, evidence, x.kubectl("describe pod", p.Name))
	f.Peering = p.Labels[v1alpha1.LabelPeering]
	return f
}

func podImages(x *examination, p *corev1.Pod, s corev1.ContainerStatus) {
	failures := []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
	if w := s.State.Waiting; w != nil && slices.Contains(failures, w.Reason) {
		what := fmt.Sprintf("node %s cannot pull the agents' image %s", nodes.OfPod(p), s.Image)
		x.failedPod(p, what, "pod "+p.Name+": "+w.Reason+": "+w.Message)
	}
}

// lastCrash reports whether a container has terminated repeatedly in the last minutes, and returns its last termination.
func (x *examination) lastCrash(s corev1.ContainerStatus) (*corev1.ContainerStateTerminated, bool) {
	const lately, often = 5 * time.Minute, 2
	t := cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated)
	waits := s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
	return t, t != nil && (waits || s.RestartCount >= often && x.Now.Sub(t.FinishedAt.Time) < lately)
}

const killedForMemory = "OOMKilled"

func podCrashes(x *examination, p *corev1.Pod, s corev1.ContainerStatus) {
	if t, crashes := x.lastCrash(s); crashes && t.Reason != killedForMemory {
		said := cmp.Or(strings.TrimSpace(t.Message), fmt.Sprintf("exit code %d", t.ExitCode))
		what := fmt.Sprintf("%s crashes repeatedly on node %s: %s", podName(p), nodes.OfPod(p), said)
		x.failedPod(p, what, fmt.Sprintf("pod %s was restarted %d times", p.Name, s.RestartCount))
	}
}

func podMemory(x *examination, p *corev1.Pod, s corev1.ContainerStatus) {
	if t, crashes := x.lastCrash(s); crashes && t.Reason == killedForMemory {
		limits := lo.FirstOrEmpty(p.Spec.Containers).Resources.Limits
		what := fmt.Sprintf("%s has too little memory on node %s: its limit is %s", podName(p), nodes.OfPod(p), limits.Memory())
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
	for _, lease := range slices.Sorted(maps.Keys(x.Heartbeats)) {
		percent := x.Heartbeats[lease].Starved
		if percent < most {
			continue
		}
		agent, node := x.agent(lease)
		x.failNode(node, fmt.Sprintf("%s gets too little CPU time: it is late by %d %% of each second", agent, percent),
			"the agent reports this delay in its Lease",
			x.kubectl("get daemonsets,deployments -o custom-columns=NAME:.metadata.name,CPU:.spec.template.spec.containers[0].resources.limits.cpu"))
	}
}

func policies(x *examination, p *corev1.Pod, _ corev1.ContainerStatus) {
	for _, port := range []int32{wire.OverlayPort, wire.TunnelPort} {
		for _, direction := range []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress} {
			by := x.deniedBy(p, direction, port)
			if by != "" && component(p) == "gateway" && len(x.found) == 0 { // one finding is enough
				words := lo.Ternary(direction == networkingv1.PolicyTypeIngress, "to", "from")
				what := fmt.Sprintf("NetworkPolicy %s blocks UDP %s the gateways", by, words)
				x.failedPod(p, what, fmt.Sprintf("port %d, pod %s", port, p.Name)).Hint = x.kubectl("delete networkpolicy", by)
			}
		}
	}
}

// deniedBy returns a policy that denies UDP on a port between the pod and nodes, empty if it is allowed.
func (x *examination) deniedBy(pod *corev1.Pod, direction networkingv1.PolicyType, port int32) (by string) {
	for _, np := range lo.ToSlicePtr(x.Own.Policies.Items) {
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
