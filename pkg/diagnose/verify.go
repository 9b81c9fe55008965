package diagnose

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/pkg/verify"
)

// verifyPermissions returns the permissions that Verify needs.
func verifyPermissions() []kube.Permission {
	return slices.Concat(
		probePermissions(),
		kube.Permissions("", "list", "nodes peerings.liqonet.io nodenetworks.liqonet.io"),
		kube.Permissions(metav1.NamespaceDefault, "list", "endpointslices.discovery.k8s.io"),
		kube.Permissions(v1alpha1.Namespace, "get create delete", "services endpointslices.discovery.k8s.io networkpolicies.networking.k8s.io"),
	)
}

// verifySide is one of the two clusters with its probes.
type verifySide struct {
	verify.Side
	cluster *kube.Cluster
	// token authenticates the probes of both clusters to each other.
	token string
	// addresses are the addresses of all its nodes.
	addresses []netip.Addr
	// servers, hosts and callers are the probes by node, nil for nodes without one.
	servers, hosts, callers []*Probe
	probes                  *Probes
	tests                   []verify.Test
}

// note adds a note about something that is left out.
func (s *verifySide) note(what string, args ...any) {
	s.Notes = append(s.Notes, s.cluster.Name+": "+fmt.Sprintf(what, args...))
}

// Verify tests with packets whether a peering works as documented. It leaves nothing behind in the clusters.
func Verify(ctx context.Context, a, b *kube.Cluster, bench bool, r kube.Reporter) (report *verify.Report, err error) {
	begin := time.Now()
	if err := kube.Distinct(a, b); err != nil {
		return nil, err
	}
	token := rand.Text()
	sides := [2]*verifySide{
		{cluster: a, token: token, Side: verify.Side{Letter: "a"}}, {cluster: b, token: token, Side: verify.Side{Letter: "b"}},
	}
	if err := r.Step(ctx, "Reading both clusters", func(ctx context.Context) error {
		for _, s := range sides {
			if err := s.cluster.CheckPermissions(ctx, verifyPermissions()); err != nil {
				return err
			}
		}
		for i, s := range sides { // one after the other: of two reasons the first one is told
			if err := s.read(ctx, sides[1-i].cluster); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	defer func() {
		removing := r.Step(context.WithoutCancel(ctx), "Removing the probes", onBothSides(sides, (*verifySide).removeProbes))
		if err = errors.Join(err, removing); err == nil {
			report.Seconds = time.Since(begin).Seconds()
		}
	}()
	report = &verify.Report{Clusters: []string{a.Name, b.Name}}
	step := func(name string, do func(context.Context) error) {
		if err == nil {
			err = r.Step(ctx, name, do)
		}
	}
	step("Starting probes in pods", func(ctx context.Context) error {
		return failure.RunSteps(ctx, onBothSides(sides, (*verifySide).startServers), onBothSides(sides, (*verifySide).createEndpoints))
	})
	step("Starting probes on nodes", onBothSides(sides, (*verifySide).startHosts))
	step("Sending packets", onBothSides(sides, (*verifySide).callAll))
	if bench {
		step("Measuring the speed", func(ctx context.Context) (err error) {
			report.Bench, err = speeds(ctx, sides[0], sides[1])
			return err
		})
	}
	step("Reading the counters of nodes", onBothSides(sides, (*verifySide).endHosts))
	if err != nil {
		return nil, err
	}
	report.Checks = verify.Evaluate(&sides[0].Side, &sides[1].Side, sides[0].findings(), sides[1].findings())
	report.Notes = slices.Concat(sides[0].Notes, sides[1].Notes)
	report.Conclude()
	return report, nil
}

// maxImported is how many imported services are tried.
const maxImported = 3

// readImported chooses imported services of the peer that have an address, a TCP port and a ready endpoint.
func (s *verifySide) readImported(ctx context.Context, p *v1alpha1.Peering) error {
	if p.Spec.Services == nil {
		return nil
	}
	all, err := status.Services(ctx, s.cluster)
	if apierrors.IsForbidden(err) {
		s.note("imported services are left out: %v", err)
		return nil
	}
	for _, v := range all {
		ip, ipErr := netip.ParseAddr(lo.FirstOrEmpty(v.Addresses))
		port, found := lo.Find(v.Ports, func(port string) bool { return !strings.Contains(port, "/") }) // others have the protocol
		number, portErr := strconv.ParseUint(port, 10, 16)
		if found && ipErr == nil && portErr == nil && v.Ready > 0 && slices.Contains(v.Clusters, p.Spec.Services.RemoteID) && len(s.Imported) < maxImported {
			s.Imported = append(s.Imported, verify.ImportedService{Name: v.Namespace + "/" + v.Name, At: netip.AddrPortFrom(ip, uint16(number))})
		}
	}
	return err
}

// onBothSides returns a step that runs a function in both clusters in parallel.
func onBothSides(sides [2]*verifySide, fn func(s *verifySide, ctx context.Context, peer *verifySide) error) func(context.Context) error {
	return func(ctx context.Context) error {
		inOne := func(ctx context.Context, i int, s *verifySide) error { return fn(s, ctx, sides[1-i]) }
		return failure.ForEachLimit(ctx, len(sides), sides[:], inOne)
	}
}

// read reads the cluster's objects.
func (s *verifySide) read(ctx context.Context, peer *kube.Cluster) error {
	p, known, err := status.PeeringWith(ctx, s.cluster, peer)
	if err != nil {
		return err
	}
	if err := p.Validate(); err != nil {
		return s.cluster.Errorf(kube.NotReady, "read the peering", "", "%w", err)
	}
	s.Side = verify.Side{
		Letter: s.Letter, Cluster: s.cluster.Name, Kubectl: s.cluster.Kubectl, Peering: p, Translation: known, Remote: p.RemoteRanges(),
	}
	if s.APIServers, err = status.Endpoints(ctx, s.cluster, metav1.NamespaceDefault, "kubernetes"); err != nil {
		return err
	}
	var all v1alpha1.PeeringList
	var list corev1.NodeList
	var reports v1alpha1.NodeNetworkList
	if err := s.cluster.ListAll(ctx, &all, &list, &reports); err != nil {
		return err
	}
	s.OtherPeers = otherPeers(all.Items, p)
	if err := s.readImported(ctx, p); err != nil {
		return err
	}
	return s.chooseNodes(list.Items, plan.ReportsByNode(reports.Items))
}

// otherPeers returns the other peers of a cluster, with the addresses of the gateways to them.
func otherPeers(all []v1alpha1.Peering, p *v1alpha1.Peering) []verify.OtherPeer {
	return lo.FilterMap(all, func(other v1alpha1.Peering, _ int) (verify.OtherPeer, bool) {
		gateways := lo.Map(other.Spec.Planes, func(plane v1alpha1.Plane, _ int) netip.Addr {
			addr, _ := plan.GatewayAddress(p.Spec.Local.InternalCIDR.Prefix, other.Spec.Index, plane.Index) // the schema limits both numbers
			return addr
		})
		return verify.OtherPeer{Name: other.Spec.Remote.Name, Gateways: gateways}, other.Name != p.Name && other.Validate() == nil
	})
}

// chooseNodes sets the nodes that get probes.
func (s *verifySide) chooseNodes(all []corev1.Node, reports map[string]*v1alpha1.NodeNetwork) error {
	var candidates []verify.Node
	for _, n := range kube.Pointers(all) {
		own := slices.DeleteFunc(nodes.Addresses(n, corev1.NodeInternalIP), func(a netip.Addr) bool { return !s.Peering.CarriesFamily(a) })
		s.addresses = append(s.addresses, own...)
		switch report := reports[n.Name]; {
		case !nodes.RunsAgents(n):
		case !nodes.IsReady(n), report == nil:
			s.note("node %s is left out, as it is not ready, or has no agent", n.Name)
		default:
			candidates = append(candidates, verify.Node{
				Name: n.Name, Addresses: own, Overlay: report.Status.Address.Addr, Gateways: s.gatewaysOn(n.Name), MTU: s.mtuOf(report),
			})
		}
	}
	if len(candidates) == 0 {
		hint := s.cluster.Kubectl + " get nodes,nodenetworks"
		return s.cluster.Errorf(kube.NotReady, "choose nodes for the probes", hint, "no node is ready and has an agent that has reported")
	}
	if len(candidates) == 1 {
		s.note("there is only one node, so no node without a gateway is tested")
	}
	s.Nodes = verify.ChooseNodes(candidates)
	s.servers, s.hosts, s.callers = make([]*Probe, len(s.Nodes)), make([]*Probe, len(s.Nodes)), make([]*Probe, len(s.Nodes))
	for _, i := range []int{0, len(s.Nodes) - 1} {
		task := probe.Task{Token: s.token, Serve: &probe.Serve{Name: s.PodID(i), Port: verify.PodPort}}
		s.servers[i] = &Probe{Name: fmt.Sprintf("serve-%d", i), Node: s.Nodes[i].Name, Task: task}
	}
	return nil
}

// gatewaysOn returns the planes whose gateways run on a node.
func (s *verifySide) gatewaysOn(node string) []int32 {
	return lo.FilterMap(s.Peering.Spec.Planes, func(plane v1alpha1.Plane, _ int) (int32, bool) {
		return plane.Index, lo.FromPtr(s.Peering.PlaneStatus(plane.Index)).NodeName == node
	})
}

// mtuOf returns the largest packet from a node to the peer, in bytes. It is the lowest MTU of the planes through which the node sends, or
// that of the first plane if it sends through none.
func (s *verifySide) mtuOf(report *v1alpha1.NodeNetwork) int {
	var known, used []int32
	for _, plane := range s.Peering.Spec.Planes {
		status, own := s.Peering.PlaneStatus(plane.Index), report.Gateway(s.Peering.Name, plane.Index)
		if status == nil || own == nil || status.MTU == 0 {
			continue
		}
		known = append(known, status.MTU)
		if own.Active {
			used = append(used, status.MTU)
		}
	}
	return int(cmp.Or(lo.Min(used), lo.FirstOrEmpty(known)))
}

// startServers starts the answering probes in pods, and creates Services.
func (s *verifySide) startServers(ctx context.Context, _ *verifySide) (err error) {
	if s.probes, err = NewProbes(ctx, s.cluster, "verify"); err != nil {
		return err
	}
	servers := lo.Compact(s.servers)
	if err = s.probes.Start(ctx, servers...); err == nil {
		s.LocalService, err = s.createService(ctx, s.service("own", true))
	}
	if err == nil {
		s.RemoteService, err = s.createService(ctx, s.service("abroad", false))
	}
	if err == nil {
		err = s.probes.await(ctx, ready, servers...)
	}
	if err != nil {
		return err
	}
	var failed error
	for i, p := range s.servers {
		if p == nil {
			continue
		}
		n := &s.Nodes[i]
		addr := s.addressOf(p)
		if _, isKnown := s.Translation.Translate(addr); p.Err == nil && isKnown {
			n.Pod = addr
			continue
		}
		failed = cmp.Or(p.Err, fmt.Errorf("its address %s is in none of the ranges that the peering carries", lo.FromPtr(p.Pod).Status.PodIP))
		n.PodError = failed
		s.note("no pod on %s is tested: %v", p.Node, failed)
	}
	if !slices.ContainsFunc(s.Nodes, func(n verify.Node) bool { return n.Pod.IsValid() }) {
		return s.cluster.Errorf(kube.NotReady, "start a pod for the tests", s.cluster.PodsHint(), "%w", failed)
	}
	return nil
}

// removeProbes removes all objects of the run.
func (s *verifySide) removeProbes(ctx context.Context, _ *verifySide) error {
	if s.probes == nil {
		return nil
	}
	return s.probes.Remove(ctx)
}

// endHosts terminates the probes that run in the nodes' own networks, which then report their counters, and waits for that.
func (s *verifySide) endHosts(ctx context.Context, _ *verifySide) error {
	running := lo.Filter(s.hosts, func(one *Probe, _ int) bool { return one.Pod != nil })
	objs := lo.FlatMap(running, func(one *Probe, _ int) []client.Object { return []client.Object{one.job, one.Pod} })
	if err := s.cluster.DeleteEach(ctx, objs); err != nil {
		return err
	}
	return s.probes.await(ctx, ended, running...)
}

// addressOf returns the address of a pod that the peering carries, invalid if it has none.
func (s *verifySide) addressOf(p *Probe) netip.Addr {
	return s.firstRoutable(lo.Map(lo.FromPtr(p.Pod).Status.PodIPs, func(ip corev1.PodIP, _ int) string { return ip.IP })...)
}

// firstRoutable returns the first address that the peering carries, invalid if there is none.
func (s *verifySide) firstRoutable(ips ...string) netip.Addr {
	for _, ip := range ips {
		if addr, err := netip.ParseAddr(ip); err == nil && s.Peering.CarriesFamily(addr) {
			return addr
		}
	}
	return netip.Addr{}
}

// service returns a Service for the probes of this cluster or, without a selector, one for those of the peer.
func (s *verifySide) service(name string, own bool) *corev1.Service {
	port := func(name string, protocol corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: protocol, Port: verify.PodPort, TargetPort: intstr.FromInt32(verify.PodPort)}
	}
	svc := &corev1.Service{ObjectMeta: manifests.ProbeMeta(s.probes.run, name), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{port("tcp", corev1.ProtocolTCP), port("udp", corev1.ProtocolUDP)},
	}}
	if own {
		// The pods see the caller's address.
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		svc.Spec.Selector = map[string]string{v1alpha1.LabelProbe: s.probes.run, manifests.LabelProbeServer: ""}
	}
	return svc
}

// createService creates a Service, without NodePorts if these are not allowed.
func (s *verifySide) createService(ctx context.Context, svc *corev1.Service) (out verify.Service, err error) {
	if err = s.probes.CreateOwned(ctx, svc); isRefused(err) {
		s.note("NodePorts are not tested: %v", err)
		svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeClusterIP, ""
		err = s.probes.CreateOwned(ctx, svc)
	}
	if isRefused(err) {
		return verify.Service{Error: err}, nil
	}
	if err != nil {
		return out, err
	}
	out.IP = s.firstRoutable(svc.Spec.ClusterIPs...)
	out.TCP, out.UDP = uint16(svc.Spec.Ports[0].NodePort), uint16(svc.Spec.Ports[1].NodePort)
	return out, nil
}

// isRefused reports whether an API server rejects this object: it may accept others.
func isRefused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }

// policy returns a NetworkPolicy that allows the probes' packets even if other policies deny everything.
func (s *verifySide) policy(peer *verifySide) client.Object {
	probes := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: manifests.ProbeLabels(s.probes.run)}}
	with := func(addrs ...netip.Addr) []networkingv1.NetworkPolicyPeer {
		single := lo.FilterMap(addrs, func(a netip.Addr, _ int) (netip.Prefix, bool) { return netip.PrefixFrom(a, a.BitLen()), a.IsValid() })
		ranges := slices.Concat(s.Remote, single)
		return append([]networkingv1.NetworkPolicyPeer{probes}, lo.Map(ranges, func(p netip.Prefix, _ int) networkingv1.NetworkPolicyPeer {
			return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: p.String()}}
		})...)
	}
	// Nodes send through a NodePort. This policy must not block the packets of the isolation checks.
	asked := slices.Concat(s.addresses, peer.addresses, []netip.Addr{s.LocalService.IP, s.RemoteService.IP, peer.LocalService.IP})
	return &networkingv1.NetworkPolicy{ObjectMeta: manifests.ProbeMeta(s.probes.run, "admits"), Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelProbe: s.probes.run}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: with(s.addresses...)}},
		Egress:      []networkingv1.NetworkPolicyEgressRule{{To: with(asked...)}},
	}}
}

// createEndpoints adds the peer's pods to a Service of this cluster as endpoints.
func (s *verifySide) createEndpoints(ctx context.Context, peer *verifySide) error {
	objs := []client.Object{s.policy(peer)}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: manifests.ProbeMeta(s.probes.run, "abroad"), AddressType: discoveryv1.AddressTypeIPv4}
	slice.Labels[discoveryv1.LabelServiceName] = s.probes.run + "-abroad"
	for _, p := range s.service("abroad", false).Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port})
	}
	for _, n := range peer.Nodes {
		if mapped, ok := peer.Translation.Translate(n.Pod); ok {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{mapped.String()}})
		}
	}
	if len(slice.Endpoints) > 0 && s.RemoteService.IP.IsValid() {
		objs = append(objs, slice)
	}
	return s.probes.CreateOwned(ctx, objs...)
}

// startHosts starts the probes in the nodes' own networks. If they are refused, the rest is tested.
func (s *verifySide) startHosts(ctx context.Context, peer *verifySide) error {
	s.tests = verify.Tests(&s.Side, &peer.Side)
	for i, n := range s.Nodes {
		w := probe.Watch{Run: s.probes.run, Remote: s.Remote, Addresses: n.Addresses}
		for _, plane := range n.Gateways {
			if pod := s.Peering.PlaneStatus(plane).PodIP; pod.IsValid() {
				w.Gateways = append(w.Gateways, pod.Addr)
			}
		}
		s.hosts[i] = &Probe{Name: fmt.Sprintf("node-%d", i), Node: n.Name, Host: true, Task: probe.Task{
			Token: s.token, Watch: &w, Serve: &probe.Serve{Name: s.HostID(i), Port: verify.NodePort}, Calls: verify.Calls(s.tests, s.HostID(i)),
		}}
	}
	if err := s.probes.startAndAwait(ctx, ready, s.hosts...); err != nil {
		return err
	}
	for i, p := range s.hosts {
		if p.Err != nil {
			s.Nodes[i].HostError = p.Err
			s.note("nothing is tested from node %s itself: %v", p.Node, p.Err)
		}
	}
	return nil
}

// callAll runs the calling probes in pods, and waits for them and for the calls of the nodes' own probes.
func (s *verifySide) callAll(ctx context.Context, _ *verifySide) error {
	// These are metrics addresses, invalid for a gateway that does not run. Only the first probe reads them.
	gateways := lo.Map(s.Peering.Spec.Planes, func(plane v1alpha1.Plane, _ int) netip.AddrPort {
		return netip.AddrPortFrom(lo.FromPtr(s.Peering.PlaneStatus(plane.Index)).PodIP.Addr, v1alpha1.MetricsPort)
	})
	for i, p := range s.servers {
		if s.Nodes[i].Pod.IsValid() {
			task := probe.Task{Token: s.token, Calls: verify.Calls(s.tests, s.PodID(i)), Gateways: gateways}
			s.callers[i] = &Probe{Name: fmt.Sprintf("call-%d", i), Node: p.Node, Task: task}
			gateways = nil
		}
	}
	callers := lo.Compact(s.callers)
	if err := s.probes.startAndAwait(ctx, ended, callers...); err != nil {
		return err
	}
	if err := s.probes.await(ctx, answered, s.hosts...); err != nil {
		return err
	}
	for _, p := range callers {
		if p.Err != nil {
			s.note("no pod on %s has sent packets: %v", p.Node, p.Err)
		}
	}
	return nil
}

// findings returns the results of this side's probes.
func (s *verifySide) findings() verify.Findings {
	f := verify.Findings{Tests: s.tests, Answers: map[string]probe.Answer{}, Sources: map[string]netip.Addr{}}
	for _, p := range lo.Compact(slices.Concat(s.hosts, s.callers)) {
		maps.Copy(f.Answers, lo.KeyBy(p.Result.Answers, func(a probe.Answer) string { return a.ID }))
	}
	for i, p := range s.hosts {
		w := verify.Counters{Node: &s.Nodes[i], Counters: lo.FromPtr(p.Result.Counters), Error: p.Err}
		if p.Result.Counters == nil && p.Err == nil {
			w.Error = errors.New("the probe has not reported its counters")
		}
		f.Counters = append(f.Counters, w)
	}
	for i, p := range s.callers {
		if p == nil {
			continue
		}
		f.Sources[s.PodID(i)] = s.addressOf(p)
		for i, g := range p.Result.Gateways {
			w := verify.Counters{Plane: s.Peering.Spec.Planes[i].Index, Counters: probe.Counters{Dropped: g.Dropped}}
			if g.Error != "" {
				w.Error = errors.New(g.Error)
			}
			f.Counters = append(f.Counters, w)
		}
	}
	return f
}

// benchTime is the duration of each measurement in milliseconds.
const benchTime = 1500

// speeds measures both directions one after the other, each from pod to pod, and from node to node without the tunnel.
func speeds(ctx context.Context, a, b *verifySide) (out []verify.Speed, err error) {
	for i, pair := range [][2]*verifySide{{a, b}, {b, a}} {
		from, to := pair[0], pair[1]
		source, target := from.benchNode(), to.benchNode()
		if source == nil || target == nil {
			from.Notes = append(from.Notes, "the speed is not measured, as a pod for it is missing")
			continue
		}
		known, _ := to.Translation.Translate(target.Pod)
		tunnel, err := from.measure(ctx, fmt.Sprintf("bench-pod-%d", i), source.Name, false, netip.AddrPortFrom(known, verify.PodPort))
		if err != nil {
			return nil, err
		}
		var bare *probe.Speed
		if at := to.directAddress(target, from); at.IsValid() {
			if bare, err = from.measure(ctx, fmt.Sprintf("bench-node-%d", i), source.Name, true, at); err != nil {
				return nil, err
			}
		}
		out = append(out, verify.Speeds(source.Name, target.Name, tunnel, bare)...)
	}
	return out, nil
}

// benchNode returns the last of a side's nodes with an answering pod, nil if there is none. It prefers a node without a gateway, as these
// are last.
func (s *verifySide) benchNode() *verify.Node {
	n, _, _ := lo.FindLastIndexOf(kube.Pointers(s.Nodes), func(n *verify.Node) bool { return n.Pod.IsValid() })
	return n
}

// directAddress returns the address at which a node answers without the tunnel, invalid if there is none.
func (s *verifySide) directAddress(n *verify.Node, from *verifySide) netip.AddrPort {
	addr, _ := lo.Find(n.Addresses, func(a netip.Addr) bool { return n.HostError == nil && !from.RoutesToPeer(a) })
	return netip.AddrPortFrom(addr, verify.NodePort)
}

// measure runs one probe that measures the speed, and returns nil if the probe fails.
func (s *verifySide) measure(ctx context.Context, name, node string, host bool, to netip.AddrPort) (*probe.Speed, error) {
	p := &Probe{Name: name, Node: node, Host: host, Task: probe.Task{Token: s.token, Bench: &probe.Bench{To: to, Milliseconds: benchTime}}}
	if err := s.probes.startAndAwait(ctx, ended, p); err != nil {
		return nil, err
	}
	if p.Err != nil {
		s.note("the speed from node %s to %s is not measured: %v", node, to, p.Err)
	}
	return p.Result.Speed, nil
}
