package diagnose

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/pkg/wire"
)

func (x *clusterReader) readNodes(ctx context.Context) error {
	var list corev1.NodeList
	if err := x.List(ctx, &list); err != nil {
		return err
	}
	x.facts.Machines.Nodes = list.Items
	var leases coordinationv1.LeaseList
	if err := x.List(ctx, &leases, client.InNamespace(corev1.NamespaceNodeLease)); err != nil {
		return lo.Ternary(ctx.Err() != nil, err, nil) // the Ready condition of nodes shows the same, but later
	}
	beats := status.Heartbeats{}
	beats.Observe(kube.Pointers(leases.Items), x.Now())
	x.facts.Machines.NodeSilence = lo.SliceToMap(leases.Items, func(l coordinationv1.Lease) (string, time.Duration) {
		return l.Name, lo.FromPtr(beats.Age(l.Name))
	})
	return nil
}

const (
	// kernelWatchTime is how long a pod watches a kernel for changes.
	kernelWatchTime = 3 * time.Second
	// maxRanges limits the ranges of peers for which rules of others are examined.
	maxRanges = 1000
	// kernelTimeout limits the time for a pod to start and to read the kernel.
	kernelTimeout = 25 * time.Second
	// smallPing is a packet size in bytes that any path supports.
	smallPing = 100
	// maxLosses limits the number of gateways to which a pod measures the loss. The pods of all nodes send lossPings to
	// each together. The number for one pod is limited, too.
	maxLosses                             = 8
	lossPings, minLossPings, maxLossPings = 4000, 100, 500
)

// planKernels plans a pod on each node, or on a sample of them, that reads its kernel. It omits nodes that are not ready or whose kubelet is
// silent.
func (x *clusterReader) planKernels(ctx context.Context) error {
	if x.objectsOnly {
		return errors.New("--objects-only runs no pods")
	}
	if err := x.CheckPermissions(ctx, probePermissions()); err != nil {
		return err
	}
	var ready []string
	x.facts.Machines.Kernels, x.facts.Machines.Unread = map[string]*probe.Kernel{}, map[string]string{}
	for _, n := range kube.Pointers(x.facts.Machines.Nodes) {
		switch {
		case !nodes.RunsAgents(n):
		case !nodes.IsReady(n), x.facts.Machines.NodeSilence[n.Name] > kernelTimeout:
			x.facts.Machines.Unread[n.Name] = "the node is not ready"
		default:
			ready = append(ready, n.Name)
			x.facts.Machines.Unread[n.Name] = "pods run on a sample of the nodes only"
		}
	}
	x.choice = x.facts.Choose(ready)
	x.probes = lo.Map(x.choice.Nodes, func(node string, i int) *Probe {
		delete(x.facts.Machines.Unread, node)
		return &Probe{Name: strconv.Itoa(i), Node: node, Host: true, Task: probe.Task{Kernel: x.kernelTask(node)}}
	})
	return nil
}

// announcements describes the pods that doctor is about to start: where, how many, and with which image.
func announcements(all []*clusterReader, tests []*udpTest) (out []string) {
	for _, x := range all {
		if len(x.probes) == 0 {
			continue
		}
		where := "one on each ready node"
		if x.choice.IsSample() {
			where = fmt.Sprintf("on a sample of its %d nodes", x.choice.Of)
		}
		if x.choice.IsSample() && x.choice.Unwell > 0 {
			where += fmt.Sprintf(" (without %d of the %d nodes whose agent is silent or reports a problem)", x.choice.LeftOut, x.choice.Unwell)
		}
		out = append(out, fmt.Sprintf("%s: starting %d temporary pods with image %s to read the kernels, %s", x.Name, len(x.probes), x.image(), where))
	}
	for _, t := range tests {
		if t.SkipReason == "" {
			images := strings.Join(lo.Uniq([]string{t.caller.image(), t.server.image()}), " and ")
			out = append(out, fmt.Sprintf("%s, %s: starting a temporary pod in each with image %s to test UDP between them", t.From, t.To, images))
		}
	}
	return out
}

// image returns the image of the pods.
func (x *clusterReader) image() string { return imageOfProbes(x.Cluster, x.facts.Own.DaemonSet) }

// readKernels runs the planned pods.
func (x *clusterReader) readKernels(ctx context.Context) error {
	probes := x.probes
	if len(probes) == 0 {
		return nil
	}
	reading, cancel := context.WithTimeoutCause(ctx, kernelTimeout, fmt.Errorf("not done after %s", kernelTimeout))
	defer cancel()
	run, err := NewProbes(reading, x.Cluster, "doctor")
	if err != nil {
		return err
	}
	if err = run.Start(reading, probes...); err != nil {
		probes = nil // their channels are not closed
	}
	for _, p := range probes {
		switch late := run.await(reading, ended, p); {
		case late != nil:
			why := strings.Join(lo.Compact([]string{"no pod has read it", run.pending(p)}), ": ")
			x.facts.Machines.Unread[p.Node] = lo.Ternary(ctx.Err() == nil, why, notRead)
		case p.Result.Kernel != nil:
			x.facts.Machines.Kernels[p.Node] = p.Result.Kernel
		case p.Err != nil:
			x.facts.Machines.Unread[p.Node] = p.Err.Error()
		}
	}
	// A silent kubelet does not report that its pods have terminated, so they are deleted without waiting for it. Leftovers are deleted with
	// their node.
	deleteNow := func() {
		ending, stop := context.WithTimeout(context.WithoutCancel(ctx), removalTimeout)
		defer stop()
		_ = errors.Join(run.deletePods(ending, client.GracePeriodSeconds(0)), deleteNamespace(ending, x.Cluster))
	}
	if reading.Err() != nil {
		deleteNow()
		err = cmp.Or(err, x.readNodes(ctx)) // by now, the API server may know that the node is not ready
	}
	if removed := run.Remove(ctx); removed != nil {
		deleteNow() // the facts are valid nevertheless
	}
	return err
}

// kernelTask returns the task of a node's pod. It pings no address that an agent reports: the gateways' are those of their Pods.
func (x *clusterReader) kernelTask(node string) *probe.KernelTask {
	t := &probe.KernelTask{Duration: kernelWatchTime}
	ping := func(to netip.Addr, sizes ...int) { t.Ping = append(t.Ping, probe.Ping{To: to, Sizes: sizes}) }
	for _, n := range kube.Pointers(x.facts.Machines.Nodes) {
		if n.Name != node && slices.Contains(x.choice.Nodes, n.Name) { // the others' addresses cannot be compared with their kernels
			t.Nodes = append(t.Nodes, nodes.Addresses(n, corev1.NodeInternalIP)...)
		}
	}
	for _, n := range t.Nodes {
		ping(n, smallPing)
	}
	for _, p := range kube.Pointers(x.facts.Peerings) {
		for _, r := range p.RemoteRanges() {
			if r.IsValid() && len(t.Remote) < maxRanges { // they are part of an argument
				t.Remote = append(t.Remote, r)
			}
		}
		for _, plane := range p.Spec.Planes {
			s := p.PlaneStatus(plane.Index)
			if s == nil || !plane.RemoteAddress.IsValid() || s.MTU == 0 {
				continue
			}
			ping(plane.RemoteAddress.Addr, smallPing, int(s.MTU))
			if len(t.Losses) < maxLosses {
				t.Losses = append(t.Losses, probe.Loss{To: plane.RemoteAddress.Addr, Sent: lo.Clamp(lossPings/max(len(x.choice.Nodes), 1), minLossPings, maxLossPings)})
			}
			for _, ip := range lo.FromPtr(x.facts.GatewayPod(p.Name, plane.Index)).Status.PodIPs {
				if addr, err := netip.ParseAddr(ip.IP); err == nil && addr.Is4() {
					ping(addr, smallPing)
				}
			}
		}
	}
	agent := lo.FromPtr(x.facts.NodePod(node)).Status.ContainerStatuses
	if x.facts.Own.DaemonSet != nil && lo.FirstOrEmpty(agent).State.Running != nil {
		t.Health = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), v1alpha1.HealthPort)
	}
	return t
}

// udpTimeout is how long a pod waits for an answer, including the time until kube-proxy has learned of the Service.
const udpTimeout = 12 * time.Second

// udpTest is a UDP test between two clusters that are not peered, to find out whether they could be.
type udpTest struct {
	doctor.UDPTest
	server, caller *clusterReader
}

// planTests plans a test for each pair of clusters that are not peered. SkipReason is why it cannot run.
func planTests(ctx context.Context, all []*clusterReader) (tests []*udpTest, err error) {
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.ID == "" || b.ID == "" || isPeered(a.facts, b.ID) || isPeered(b.facts, a.ID) {
				continue
			}
			tests = append(tests, planTest(ctx, a, b))
		}
	}
	return lo.Compact(tests), context.Cause(ctx)
}

// isPeered reports whether the ledger has an entry for the peer.
func isPeered(c *doctor.Cluster, peerID string) bool {
	return plan.Allocation(c.Ledger, peerID) != nil
}

// planTest plans a test, or returns nil if the clusters cannot be peered.
func planTest(ctx context.Context, a, b *clusterReader) *udpTest {
	plans, err := peering.PlanAll(ctx, []peering.Pair{{a.Cluster, b.Cluster}}, engine.Options{}, kube.Quiet{})
	if e := (*kube.Error)(nil); errors.As(err, &e) && e.Kind != kube.Forbidden && ctx.Err() == nil {
		a.facts.Plan = err.Error()
		return nil
	}
	t, balanced := &udpTest{server: a, caller: b}, false
	if err == nil {
		side := &plans[0].Clusters[0]
		if side.Role != v1alpha1.Server {
			side, t.server, t.caller = &plans[0].Clusters[1], b, a
		}
		balanced = side.Service != nil && side.Service.Spec.Type == corev1.ServiceTypeLoadBalancer
	}
	t.From, t.To = t.caller.Name, t.server.Name
	if err := t.check(ctx, balanced); err != nil {
		t.SkipReason = err.Error()
	}
	return t
}

var errNoKernel = errors.New("no pod could read a kernel")

// check returns why the test cannot run.
func (t *udpTest) check(ctx context.Context, balanced bool) error {
	switch {
	case t.server.objectsOnly:
		return errors.New("--objects-only runs no pods")
	case balanced:
		return errors.New(t.To + " has load balancers, and none is created for a test")
	case len(t.server.probes) == 0 || len(t.caller.probes) == 0:
		return errNoKernel
	}
	needed := slices.Concat(probePermissions(), kube.Permissions(v1alpha1.Namespace, "create delete", "services"))
	return cmp.Or(t.server.CheckPermissions(ctx, needed), t.caller.CheckPermissions(ctx, needed))
}

// runTests runs the tests that can run.
func runTests(ctx context.Context, tests []*udpTest) error {
	for _, t := range tests {
		if t.SkipReason != "" {
			continue
		}
		if err := t.run(ctx); err != nil {
			t.SkipReason = err.Error()
		}
	}
	return context.Cause(ctx)
}

// run runs a pod in the client's cluster that sends UDP to a pod in the server's cluster, through a NodePort, as a gateway would.
func (t *udpTest) run(ctx context.Context) error {
	if len(t.server.facts.Machines.Kernels) == 0 || len(t.caller.facts.Machines.Kernels) == 0 {
		return errNoKernel
	}
	ctx, cancel := context.WithTimeout(ctx, kernelTimeout)
	defer cancel()
	at, from := t.server.anyNode(), t.caller.anyNode()
	if at == nil || from == nil {
		return errors.New("no node is ready")
	}
	token := rand.Text()
	answering, err := NewProbes(ctx, t.server.Cluster, "doctor-udp")
	if err != nil {
		return err
	}
	defer func() { _ = answering.Remove(ctx) }() // Kubernetes deletes the rest
	port, err := answering.serveUDP(ctx, t.To, at.Name, token)
	if err != nil {
		return err
	}
	call := &Probe{Name: "client", Node: from.Name, Host: true, Task: probe.Task{Token: token}}
	addresses := slices.Concat(nodes.Addresses(at, corev1.NodeInternalIP), nodes.Addresses(at, corev1.NodeExternalIP))
	destinations := callable(addresses, uint16(port), t.caller.ownRanges())
	if len(destinations) == 0 {
		return fmt.Errorf("node %s of %s has no address that is not one of %s or a special one", at.Name, t.To, t.From)
	}
	for i, to := range destinations {
		one := probe.Call{ID: strconv.Itoa(i), Protocol: probe.UDP, To: to, Timeout: int(udpTimeout.Milliseconds())}
		call.Task.Calls = append(call.Task.Calls, one)
		t.Address = to.String()
	}
	if err := RunProbes(ctx, t.caller.Cluster, "doctor-udp", call); err != nil {
		return err
	}
	if call.Err != nil {
		return call.Err
	}
	for i, answer := range call.Result.Answers {
		if answer.Answered {
			t.Answered, t.Address = true, call.Task.Calls[i].To.String()
		}
	}
	return nil
}

// callable returns the destinations to which a node may send packets because another cluster names them. As for the endpoints that peers
// announce, these are addresses of other machines.
func callable(addresses []netip.Addr, port uint16, own []netip.Prefix) []netip.AddrPort {
	at := func(port uint16) []string {
		return lo.Map(addresses, func(a netip.Addr, _ int) string { return netip.AddrPortFrom(a, port).String() })
	}
	usable, _ := exchange.Filter{Own: own, Endpoints: at(0)}.Usable(exchange.Announcement{Endpoints: at(port)})
	return lo.Map(usable.Endpoints, func(e string, _ int) netip.AddrPort { return netip.MustParseAddrPort(e) })
}

// ownRanges are the addresses of the cluster's API server, nodes, pods and Services, and those by which it knows its
// peers' pods.
func (x *clusterReader) ownRanges() (out []netip.Prefix) {
	add := func(a netip.Addr) { out = append(out, netip.PrefixFrom(a, a.BitLen())) }
	if x.Server.IsValid() {
		add(x.Server)
	}
	for _, n := range kube.Pointers(x.facts.Machines.Nodes) {
		lo.ForEach(slices.Concat(nodes.Addresses(n, corev1.NodeInternalIP), nodes.Addresses(n, corev1.NodeExternalIP)), func(a netip.Addr, _ int) { add(a) })
		for _, cidr := range n.Spec.PodCIDRs {
			if p, err := netip.ParsePrefix(cidr); err == nil {
				out = append(out, p)
			}
		}
	}
	for _, p := range x.facts.Peerings {
		out = append(out, v1alpha1.Prefixes(p.Spec.Local.ServiceCIDRs)...)
		out = append(out, lo.Map(p.Spec.Local.Pods, func(m v1alpha1.CIDRMapping, _ int) netip.Prefix { return m.Real.Prefix })...)
	}
	for _, entry := range lo.FromPtr(x.facts.Ledger).Spec.Peers {
		out = append(out, lo.Map(entry.Pods, func(m v1alpha1.CIDRMapping, _ int) netip.Prefix { return m.Mapped.Prefix })...)
	}
	return out
}

// serveUDP starts a pod that answers UDP, and returns its NodePort.
func (p *Probes) serveUDP(ctx context.Context, name, node, token string) (port int32, err error) {
	echo := &Probe{Name: "server", Node: node, Task: probe.Task{Token: token, Serve: &probe.Serve{Name: name, Port: wire.TunnelPort}}}
	if err := p.Start(ctx, echo); err != nil {
		return 0, err
	}
	svc := &corev1.Service{ObjectMeta: manifests.ProbeMeta(p.run, "udp")}
	svc.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Selector: manifests.ProbeLabels(p.run), PublishNotReadyAddresses: true,
		Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolUDP, Port: wire.TunnelPort}},
	}
	if err := p.CreateOwned(ctx, svc); err != nil {
		return 0, err
	}
	if err := p.await(ctx, ready, echo); err != nil {
		return 0, err
	}
	return svc.Spec.Ports[0].NodePort, echo.Err
}

// anyNode returns a ready node that runs agents, or nil.
func (x *clusterReader) anyNode() *corev1.Node {
	n, _ := lo.Find(kube.Pointers(x.facts.Machines.Nodes), func(n *corev1.Node) bool { return nodes.RunsAgents(n) && nodes.IsReady(n) })
	return n
}
