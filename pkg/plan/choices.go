package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// maxPlacement is how many labels, and how many tolerations, a Peering can hold.
const maxPlacement = 16

// choosePlacement decides on which nodes the cluster's gateways run. It returns nil if nobody has ever chosen. It keeps
// earlier choices, and refuses one that no node meets.
func choosePlacement(f *input) (p *v1alpha1.GatewayPlacement, out []Statement, err error) {
	p = &v1alpha1.GatewayPlacement{NodeSelector: map[string]string{}, Tolerations: []corev1.Toleration{}} // empty lists are written too
	whyNodes, whyTaints := "--gateway-node-selector chooses others", "as before"
	isKept := f.facts.Existing != nil && f.facts.Existing.Spec.Gateways != nil
	if isKept {
		p, whyNodes = f.facts.Existing.Spec.Gateways.DeepCopy(), "as before"
	}
	if given := f.Overrides.Gateways.NodeSelector; given != nil {
		p.NodeSelector, whyNodes = given, "given by --gateway-node-selector"
	}
	if given := f.Overrides.Gateways.Tolerations; given != nil {
		p.Tolerations, whyTaints = given, "given by --gateway-toleration"
	}
	out = append(out, statement("nodes of the gateway", cmp.Or(selector(p), "any"), whyNodes))
	for _, t := range p.Tolerations {
		out = append(out, statement("taint that the gateway tolerates", taint(t.Key, t.Value, t.Effect), whyTaints))
	}
	if len(p.NodeSelector)+len(p.Tolerations) == 0 && !isKept {
		return nil, out, nil
	}
	return p, out, f.checkPlacement(p)
}

// checkPlacement fails if no node that runs agents has the labels, or if all that have them have taints that gateways do
// not tolerate. It ignores Kubernetes' own taints, which come and go.
func (f *input) checkPlacement(p *v1alpha1.GatewayPlacement) error {
	const doing = "choose nodes for the gateway"
	switch {
	case max(len(p.NodeSelector), len(p.Tolerations)) > maxPlacement:
		return f.facts.usageError(doing, "give fewer",
			fmt.Errorf("a Peering can hold %d labels and %d tolerations", maxPlacement, maxPlacement))
	case len(p.NodeSelector) == 0:
		return nil
	}
	var kept *corev1.Taint
	tolerations := manifests.GatewayTolerations(p, 0)
	for _, n := range f.facts.Network.Nodes {
		if !n.RunsAgents || !n.matchesSelector(p) {
			continue
		}
		n.Taints = lo.Reject(n.Taints, func(t corev1.Taint, _ int) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") })
		if kept = n.untolerated(tolerations); kept == nil {
			return nil
		}
	}
	if kept == nil {
		wanted := lo.Map(strings.Split(selector(p), ","), func(label string, _ int) string { return failure.Quote(label) })
		hint := fmt.Sprintf("kubectl label node NODE %s; or choose others with --gateway-node-selector %s=KEY=VALUE, "+
			"or any with --gateway-node-selector %[2]s=", strings.Join(wanted, " "), failure.Quote(f.facts.Network.Name))
		return f.facts.usageError(doing, hint, fmt.Errorf("no node that runs agents has the labels %s", selector(p)))
	}
	text := taint(kept.Key, kept.Value, kept.Effect)
	return f.facts.usageError(doing, "--gateway-toleration "+failure.Quote(f.facts.Network.Name+"="+text),
		errors.New("all nodes with the labels "+selector(p)+" have taints that gateways do not tolerate, such as "+text))
}

// eligibleNodes returns the nodes that can run a gateway now, or those that could if they were ready.
func (f *Network) eligibleNodes(p *v1alpha1.GatewayPlacement, ready bool) []string {
	tolerations := manifests.GatewayTolerations(p, 0)
	// Kubernetes removes these taints shortly after the node is ready.
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		tolerations = append(tolerations, corev1.Toleration{Key: taint, Operator: corev1.TolerationOpExists})
	}
	return lo.FilterMap(f.Nodes, func(n Node, _ int) (string, bool) {
		return n.Name, n.Ready == ready && n.RunsAgents && n.matchesSelector(p) && n.untolerated(tolerations) == nil
	})
}

// matchesSelector reports whether the node has the labels that gateways need.
func (n *Node) matchesSelector(p *v1alpha1.GatewayPlacement) bool {
	return p == nil || labels.SelectorFromSet(p.NodeSelector).Matches(labels.Set(n.Labels))
}

// untolerated returns a taint that keeps gateways off the node, nil if there is none.
func (n *Node) untolerated(tolerations []corev1.Toleration) *corev1.Taint {
	for i, t := range n.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule &&
			!slices.ContainsFunc(tolerations, func(o corev1.Toleration) bool { return o.ToleratesTaint(klog.Logger{}, &t, false) }) {
			return &n.Taints[i]
		}
	}
	return nil
}

// selector returns the labels in the syntax of the flag.
func selector(p *v1alpha1.GatewayPlacement) string { return labels.Set(p.NodeSelector).String() }

// taint returns a taint in the syntax of the flag.
func taint(key, value string, effect corev1.TaintEffect) string {
	return strings.TrimSuffix((&corev1.Taint{Key: key, Value: value, Effect: effect}).ToString(), ":")
}

// AnnotationEndpoints is the annotation of the gateways' Service that stores the endpoints given by --endpoint.
const AnnotationEndpoints = "liqonet.io/endpoints"

const (
	// maxEndpoints is how many endpoints a plane of a Peering can hold.
	maxEndpoints = 16
	// maxServiceCIDRs is how many ranges of Services a Peering can hold.
	maxServiceCIDRs = 16
	// maxNodeIPs is how many node addresses a Peering can hold. It keeps the object small enough for the API server.
	maxNodeIPs = 4096
)

// givenEndpoints returns the endpoints that the user gave for the gateway, now or in an earlier command. They belong to
// one gateway, so there is only one plane.
func (f *input) givenEndpoints() []string {
	if len(f.Overrides.Endpoints) > 0 || f.Overrides.AutoEndpoints {
		return f.Overrides.Endpoints
	}
	return endpointsOf(f.facts.Service)
}

// GivenEndpoints returns the endpoints that the user gave for a server's gateway, nil if there are none.
func (c *ClusterPlan) GivenEndpoints() []string { return endpointsOf(c.Service) }

// endpointsOf returns the endpoints in the annotation of a Service, nil if there are none.
func endpointsOf(svc *corev1.Service) []string {
	if svc == nil || svc.Annotations[AnnotationEndpoints] == "" {
		return nil
	}
	return strings.Split(svc.Annotations[AnnotationEndpoints], ",")
}

// checkEndpoints validates the endpoints, as someone else may have changed the annotation of the Service.
func (f *input) checkEndpoints() error {
	given := f.givenEndpoints()
	wrong := lo.Map(given, func(e string, _ int) error { return checkEndpoint(e) })
	if len(given) > maxEndpoints {
		wrong = slices.Insert(wrong, 0, fmt.Errorf("there are %d, and a Peering can hold %d", len(given), maxEndpoints))
	}
	if err := errors.Join(wrong...); err != nil {
		return f.facts.usageError("read the endpoints of its gateways",
			fmt.Sprintf("give others with --endpoint %s=ADDRESS:PORT,…, or --endpoint %[1]s=auto", failure.Quote(f.facts.Network.Name)), err)
	}
	return nil
}

func checkEndpoint(endpoint string) error {
	_, _, err := v1alpha1.SplitEndpoint(endpoint)
	return err
}

// chooseServiceType keeps the type of an existing Service.
func chooseServiceType(f *input) Statement {
	const what = "exposed by a Service of type"
	balancers := f.facts.Network.LoadBalancers
	switch given := f.Overrides.ServiceType; {
	case !isAutomatic(given):
		return statement(what, given, "given by --service-type")
	case f.facts.Service != nil:
		return statement(what, string(f.facts.Service.Spec.Type), "as before")
	case balancers.Value == Yes && len(f.givenEndpoints()) == 0:
		return factStatement(what, Fact[string]{string(corev1.ServiceTypeLoadBalancer), balancers.Source, balancers.Assumed})
	}
	return statement(what, string(corev1.ServiceTypeNodePort), "it is not known to have load balancers: "+balancers.Source)
}

// service returns the Service that exposes the cluster's gateways.
func (f *input) service(peering string, planes []int32) *corev1.Service {
	kind := corev1.ServiceType(chooseServiceType(f).Value.String())
	s := manifests.SetOwner(manifests.GatewayService(peering, kind, planes), peering, f.facts.Owner)
	s.Spec.Ports[0].NodePort = f.Overrides.NodePort
	s.Annotations[AnnotationEndpoints] = strings.Join(f.givenEndpoints(), ",")
	return s
}

// singleGatewayReason returns why there can be only one gateway, because the user gave its endpoint or port. It is
// empty if there can be more.
func (f *input) singleGatewayReason() string {
	if len(f.givenEndpoints()) > 0 {
		return "--endpoint names the endpoint of one gateway of " + f.facts.Network.Name
	}
	if f.Overrides.NodePort > 0 {
		return "--service-type names the port of one gateway of " + f.facts.Network.Name
	}
	return ""
}

// ServiceEndpoints returns where the Service exposes the gateway of a plane, as host:port in the order to try them.
func ServiceEndpoints(svc *corev1.Service, plane int32, nodes []Node) []string {
	hosts, port := serviceHosts(svc, plane, nodes)
	if port == 0 {
		return nil
	}
	return lo.Map(hosts, func(host string, _ int) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) })
}

// serviceHosts returns the hosts at which a Service can be reached, up to maxEndpoints, and the port for the plane, 0
// while it is not known. If there are too many nodes, both internal and external addresses remain.
func serviceHosts(svc *corev1.Service, plane int32, nodes []Node) (hosts []string, port int32) {
	p := v1alpha1.ServicePort(svc, plane)
	if p == nil {
		return nil, 0 // someone has changed it, or another version with other names applied it
	}
	port = p.Port
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		hosts = lo.Map(svc.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress, _ int) string { return cmp.Or(in.IP, in.Hostname) })
	case corev1.ServiceTypeNodePort:
		port = p.NodePort
		internal, external := nodeHosts(nodes)
		if n := len(internal); n > 0 {
			// Each plane begins with another node, because the failure of one node must not stop two planes.
			first := int(plane) % n
			internal = slices.Concat(internal[first:], internal[:first])
		}
		room := maxEndpoints - min(len(external), maxEndpoints/2)
		addrs := slices.Concat(internal[:min(len(internal), room)], external)
		hosts = lo.Map(addrs, func(a netip.Addr, _ int) string { return a.String() })
	default:
		hosts = []string{svc.Spec.ClusterIP}
	}
	// Hosts that are not valid endpoints, such as an address with a zone, are dropped: the peer's Peering cannot hold
	// them.
	hosts = slices.DeleteFunc(hosts, func(h string) bool { return checkEndpoint(net.JoinHostPort(h, "1")) != nil })
	return hosts[:min(len(hosts), maxEndpoints)], port
}

// nodeHosts returns the addresses at which a node port can be reached.
func nodeHosts(nodes []Node) (internal, external []netip.Addr) {
	for _, n := range nodes {
		if n.Ready {
			internal, external = append(internal, n.InternalIPs...), append(external, n.ExternalIPs...)
		}
	}
	return internal, external
}

// plannedEndpoints returns where the gateway of a plane will be reachable.
func (f *input) plannedEndpoints(plane int32, svc *corev1.Service) (out []Statement) {
	if given := f.givenEndpoints(); len(given) > 0 {
		return lo.Map(given, func(e string, _ int) Statement { return statement("endpoint", e, "given by --endpoint") })
	}
	want := svc.DeepCopy()
	if live := f.facts.Service; live != nil && live.Spec.Type == svc.Spec.Type {
		want.Spec.ClusterIP, want.Status = live.Spec.ClusterIP, live.Status
		if has := v1alpha1.ServicePort(live, plane); has != nil {
			port := v1alpha1.ServicePort(want, plane)
			port.NodePort = cmp.Or(port.NodePort, has.NodePort)
		}
	}
	reason := map[corev1.ServiceType]string{
		corev1.ServiceTypeNodePort: "address of a ready node", corev1.ServiceTypeLoadBalancer: "address of the load balancer",
		corev1.ServiceTypeClusterIP: "cluster IP of the Service",
	}[svc.Spec.Type]
	hosts, port := serviceHosts(want, plane, f.facts.Network.Nodes)
	name := fmt.Sprintf("of Service %s/%s in %s", svc.Namespace, svc.Name, f.facts.Network.Name)
	for _, host := range hosts {
		s := statement("endpoint", net.JoinHostPort(host, strconv.Itoa(int(port))), reason)
		if port == 0 {
			s = pending("endpoint", fmt.Sprintf("%s, node port %s %s", host, v1alpha1.PlanePortName(plane), name), reason)
		}
		out = append(out, s)
	}
	if len(out) == 0 && svc.Spec.Type != corev1.ServiceTypeNodePort {
		out = append(out, pending("endpoint", "address "+name, reason))
	}
	return out
}

// chooseOverlay prefers the overlay in use, then Geneve. All peerings of a cluster have the same kind: both kinds would
// need the same UDP port of the nodes.
func chooseOverlay(f *input) (Statement, error) {
	given, reason, hint := f.Overrides.Overlay, "", "load the kernel module geneve or vxlan on these nodes"
	backends := []string{string(v1alpha1.Geneve), string(v1alpha1.VXLAN)}
	switch {
	case len(f.facts.OtherPeerings) > 0:
		other, kind := f.facts.OtherPeerings[0].Name, string(f.facts.OtherPeerings[0].Spec.Overlay)
		if !isAutomatic(given) && given != kind {
			hint = fmt.Sprintf("use --overlay auto or %s=%s, or first unpeer %[1]s from all others", f.facts.Network.Name, linkKind(kind))
			return Statement{}, f.facts.usageError("choose the overlay", hint, fmt.Errorf(
				"its nodes have links of kind %s for the peering with %q, and cannot have links of kind %s as well",
				linkKind(kind), other, linkKind(given)))
		}
		backends, reason = []string{kind}, fmt.Sprintf("as for the peering with %q", other)
		hint = fmt.Sprintf("load the kernel module %s on these nodes, as the peering with %q needs it too, "+
			"or first unpeer %s from all others", linkKind(kind), other, f.facts.Network.Name)
	case !isAutomatic(given):
		backends, reason, hint = []string{given}, "given by --overlay", "use --overlay auto"
	case f.facts.Existing != nil && len(f.nodesWithout(string(f.facts.Existing.Spec.Overlay))) == 0:
		backends, reason = []string{string(f.facts.Existing.Spec.Overlay)}, "as before"
	}
	return f.firstPossible("overlay", backends, reason, hint)
}

// chooseWireGuard keeps the backend in use, and otherwise prefers the kernel's.
func chooseWireGuard(f *input) (Statement, error) {
	backends, reason := []string{string(v1alpha1.KernelWireGuard), string(v1alpha1.UserSpaceWireGuard)}, ""
	existing := string(lo.FirstOrEmpty(f.facts.existingPlanes()).WireGuard)
	switch given := f.Overrides.WireGuard; {
	case !isAutomatic(given):
		backends, reason = []string{given}, "given by --wireguard"
	case existing != "" && len(f.nodesWithout(existing)) == 0:
		backends, reason = []string{existing}, "as before"
	}
	return f.firstPossible("WireGuard by", backends, reason, "use --wireguard auto or userspace")
}

// firstPossible returns the first backend that no kernel is known to lack. The reason is empty if it is what the kernels
// can do.
func (f *input) firstPossible(subject string, backends []string, reason, hint string) (Statement, error) {
	var lacking []string
	for _, backend := range backends {
		if nodes := f.nodesWithout(backend); len(nodes) > 0 {
			lacking = append(lacking, fmt.Sprintf("no links of kind %s on nodes %s", linkKind(backend), strings.Join(nodes, ", ")))
			continue
		}
		s := statement(subject, backend, cmp.Or(reason, strings.Join(lacking, "; "), "the kernels of all nodes have it"))
		if n := len(f.facts.Unreported()); n > 0 && linkKind(backend) != "" {
			s.Assumed = true
			s.Reason += fmt.Sprintf("; %d of %d node agents have not reported yet", n, len(f.facts.Network.agentNodes(true)))
		}
		return s, nil
	}
	return Statement{}, f.facts.usageError("choose what the kernels can do", hint, errors.New(strings.Join(lacking, "; ")))
}

// linkKind returns the kind of kernel link that a backend needs, empty if it needs none.
func linkKind(backend string) string {
	switch v1alpha1.WireGuardBackend(backend) {
	case v1alpha1.KernelWireGuard:
		return "wireguard"
	case v1alpha1.UserSpaceWireGuard:
		return ""
	}
	return v1alpha1.OverlayKind(backend).LinkKind()
}

// nodesWithout returns the nodes whose kernels are known to lack what a backend needs.
func (f *input) nodesWithout(backend string) []string {
	names := lo.FilterMap(f.facts.Reports, func(n v1alpha1.NodeNetwork, _ int) (string, bool) {
		k := lo.FromPtr(n.Status.Kernel)
		has := map[string]bool{"": true, "geneve": k.Geneve, "vxlan": k.VXLAN, "wireguard": k.WireGuard}
		return n.Name, n.Status.Kernel != nil && !has[linkKind(backend)]
	})
	return union(names)
}

// NodeAgents are the planned node agents of a cluster.
type NodeAgents struct {
	Agents manifests.Agents
	// NodeMetrics means that they serve their metrics at their nodes' own addresses.
	NodeMetrics bool
	// OverlayKeys are the generations of the overlay keys that they get.
	OverlayKeys []int32
	// Ready means that the agents of all ready nodes have reported. They stay unchanged until the gateways run.
	Ready bool
}

// agents returns the agents that will run, without their keys, and why. Existing agents stay unless another image is
// given: `upgrade` replaces them.
func (f *input) agents() (a NodeAgents, s Statement) {
	metrics := f.Overrides.NodeMetrics
	a.NodeMetrics = metrics == MetricsNode || metrics == "" && f.facts.NodeMetrics
	a.Agents = manifests.Agents{Image: f.DefaultImage, Version: f.Version}
	s = Statement{Subject: "image of the agents", Reason: "the default of this version of the command"}
	switch has := f.facts.Installed; {
	case f.Overrides.Image != "":
		a.Agents.Image, s.Reason = f.Overrides.Image, "given by --agent-image"
	case has.Image == "", f.Upgrade && has.Version != f.Version:
	case has.Version == "", has.Version == f.Version:
		a.Agents.Image, s.Reason = has.Image, "used by the existing node agents"
	default:
		a.Agents, s.Reason = has, fmt.Sprintf("used by the existing node agents, which have version %s; "+
			"upgrade brings them to %s", has.Version, f.Version)
	}
	s.Value = Known(a.Agents.Image)
	return a, s
}

// Objects returns the agents' account with its permissions, and their DaemonSet.
func (a *NodeAgents) Objects() (account []manifests.Object, daemonSet *appsv1.DaemonSet) {
	account, daemonSet = manifests.NodeAgent(a.Agents, a.OverlayKeys)
	if a.NodeMetrics {
		manifests.ExposeNodeMetrics(daemonSet)
	}
	return account, daemonSet
}

// WithCurrent returns the agents updated to newer facts. What the user has not chosen follows the cluster's current
// state. They get the planned overlay keys, and all that they have by now.
func (a NodeAgents) WithCurrent(own Facts, intent Intent) NodeAgents {
	f := &input{own, intent}
	now, _ := f.agents()
	a.Agents, a.NodeMetrics = now.Agents, now.NodeMetrics
	a.OverlayKeys = union(a.OverlayKeys, f.overlayKeys(own.Ledger))
	return a
}

// NodeGroups returns the ready nodes that have agents, in groups whose agents are replaced one after the other.
func (f *Facts) NodeGroups() [][]string { return groups(f.Network.agentNodes(true), true) }

// groups splits items into groups of a quarter each, to be processed one after the other. If nothing of the kind was
// processed before, a group with a single item comes first.
func groups[T any](all []T, first bool) (out [][]T) {
	quarter := (len(all) + 3) / 4
	if first && len(all) > 0 {
		out, all = append(out, all[:1]), all[1:]
	}
	return slices.AppendSeq(out, slices.Chunk(all, max(quarter, 1)))
}

// OverlayKey returns the lowest generation of the overlay key that links of a cluster may have, 1 without a ledger. Links
// may have later ones.
func OverlayKey(cn *v1alpha1.ClusterNetwork) int32 {
	return max(lo.FromPtr(cn).Spec.OverlayKey.Generation, 1)
}

// NextOverlayKey returns the generation of the next overlay key.
func (f *Facts) NextOverlayKey() int32 {
	return max(OverlayKey(f.ledger()), f.NewestOverlayKey, slices.Max(append([]int32{0}, f.OverlayKeys...))) + 1
}

// DepartedNodes returns the nodes that know the overlay key and are gone. nodes are the UIDs of all existing nodes.
func DepartedNodes(cn *v1alpha1.ClusterNetwork, nodes []string) []string {
	return difference(lo.FromPtr(cn).Spec.OverlayKey.Nodes, nodes)
}

// RecordOverlayKey adds the planned overlay key to the ledger, before any node gets it. It keeps departed nodes: if this
// command is killed, they tell the next one to create another key.
func RecordOverlayKey(cn *v1alpha1.ClusterNetwork, planned v1alpha1.OverlayKey) (changed bool) {
	key := &cn.Spec.OverlayKey
	nodes := union(key.Nodes, planned.Nodes)
	if key.Generation >= planned.Generation && slices.Equal(nodes, key.Nodes) {
		return false
	}
	key.Generation, key.Nodes = max(key.Generation, planned.Generation), nodes
	return true
}

// RemoveDepartedNodes removes departed nodes from the ledger, once all agents have a key that these nodes do not know.
func RemoveDepartedNodes(cn *v1alpha1.ClusterNetwork, departed []string) {
	cn.Spec.OverlayKey.Nodes = difference(cn.Spec.OverlayKey.Nodes, departed)
}

// overlayKey returns the overlay key that the ledger will name, and why. It is a new one if a node has left that knows
// the current one.
func (f *input) overlayKey() (key v1alpha1.OverlayKey, reason string) {
	cn, reason := f.facts.ledger(), "as before"
	key = lo.FromPtr(cn).Spec.OverlayKey
	key.Generation = OverlayKey(cn)
	if f.KeepOverlayKey {
		return key, reason
	}
	agents := lo.FilterMap(f.facts.Network.Nodes, func(n Node, _ int) (string, bool) { return n.UID, n.RunsAgents })
	gone := DepartedNodes(cn, f.facts.Network.NodeUIDs())
	next := f.facts.NextOverlayKey()
	switch {
	case len(gone) > 0:
		key.Generation = next
		reason = fmt.Sprintf("a new one: nodes that know the previous one have left (%d)", len(gone))
	case f.facts.LostOverlayKey >= key.Generation:
		key.Generation = next
		reason = "a new one: the Secret of the previous one is gone"
	case f.facts.Installed.Image == "":
		reason = "created during the run, and never shown"
	}
	key.Nodes = union(difference(key.Nodes, gone), agents)
	return key, reason
}

// installedOverlayKeys returns the keys that node agents have and keep, the oldest first. A new key in the ledger
// replaces all earlier ones.
func (f *Facts) installedOverlayKeys(minGeneration int32) []int32 {
	return lo.CoalesceSliceOrEmpty(lo.Filter(f.OverlayKeys, func(g int32, _ int) bool { return g >= minGeneration }),
		[]int32{minGeneration})
}

// linkKey returns the generation of the overlay key for the links of a plane's gateway. It is the current one unless the
// ledger demands a later one.
func (f *input) linkKey(plane, minGeneration int32) int32 {
	given := f.facts.installedOverlayKeys(minGeneration)
	if wanted := f.Renew[plane].OverlayKey; wanted > 0 {
		return max(wanted, minGeneration)
	}
	switch existing, exists := f.facts.ExistingPlane(plane); {
	case !exists:
		return given[len(given)-1]
	case slices.Contains(given, existing.OverlayKeyGeneration):
		return existing.OverlayKeyGeneration
	}
	return given[0] // as agents do
}

// overlayKeys returns the generations that node agents get: those that they have, and those of the links of this and
// other peerings.
func (f *input) overlayKeys(ledger *v1alpha1.ClusterNetwork, links ...int32) []int32 {
	least := OverlayKey(ledger)
	others := lo.Filter(LinkKeys(f.facts.OtherPeerings), func(g int32, _ int) bool { return g > least })
	return union(f.facts.installedOverlayKeys(least), links, others)
}

// LinkKeys returns the generations of the overlay keys for the links of peerings, 0 for the oldest that agents have.
func LinkKeys(peerings []v1alpha1.Peering) []int32 {
	return lo.FlatMap(peerings, func(p v1alpha1.Peering, _ int) []int32 {
		return lo.Map(p.Spec.Planes, func(plane v1alpha1.Plane, _ int) int32 { return plane.OverlayKeyGeneration })
	})
}

// union returns the elements of all lists, sorted and without duplicates.
func union[T cmp.Ordered](lists ...[]T) []T { return sets.List(sets.New(slices.Concat(lists...)...)) }

// difference returns the elements of all that are not in others, sorted.
func difference(all, others []string) []string { return sets.List(sets.New(all...).Delete(others...)) }

// PresharedKeys returns the keys that the two gateways of a plane will have: the same key, with a generation for each. A
// key without a fingerprint has to be created for both. Both are zero for a peering that works without a key, because a
// new one would restart both gateways.
func PresharedKeys(own, peer Offer, plane int32) (ofOwn, ofPeer v1alpha1.PresharedKey) {
	o, p := own.keys(plane), peer.keys(plane)
	renew := o.RenewPresharedKey || p.RenewPresharedKey
	if o.PresharedKey.Fingerprint == p.PresharedKey.Fingerprint && o.PresharedKey.Fingerprint != "" && !renew {
		return o.PresharedKey, p.PresharedKey
	}
	if !renew && o.IsNamed && p.IsNamed && o.Named.Generation == 0 && p.Named.Generation == 0 {
		return v1alpha1.PresharedKey{}, v1alpha1.PresharedKey{}
	}
	// A cluster that has lost its Peering may still have the Secret of an earlier key.
	next := v1alpha1.PresharedKey{Generation: max(o.Named.Generation, p.Named.Generation) + 1}
	return next, next
}

// keys returns the description of the pre-shared key of a plane.
func (o *Offer) keys(plane int32) KeyOffer {
	keys, _ := lo.Find(o.Keys, func(k KeyOffer) bool { return k.Plane == plane })
	return keys
}

// presharedKey returns the key for the gateway of a plane, without a fingerprint if there is no key yet.
func (d *draft) presharedKey(plane int32) v1alpha1.PresharedKey {
	key, _ := PresharedKeys(d.offer, *d.peer, plane)
	return key
}

// presharedStatement describes the pre-shared key of a gateway in a plan.
func presharedStatement(g manifests.Gateway, key v1alpha1.PresharedKey) Statement {
	s := statement("pre-shared key of the tunnel", secretRef(g.PresharedSecretName()), "as before")
	switch {
	case g.PresharedKey == 0:
		s.Value, s.Reason = Known("none"), "the peering works without one; rotate-keys gives it one"
	case key.Fingerprint == "":
		s.Reason, s.DuringRun = "created during the run for both clusters, and never shown", true
	}
	return s
}
