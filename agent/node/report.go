package node

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// maxRoutes limits the report of a node that is itself a router.
const maxRoutes = 256

// maxNodeIPs is the limit in the definition of NodeNetwork.
const maxNodeIPs = 16

// maxResolvers is the limit in the definition of NodeNetwork. A kubelet gives a pod only three, because resolvers use
// no more.
const maxResolvers = 8

// resolvConf lists the node's name servers, since the pod's DNS policy is Default. The kubelet writes it when it
// creates the pod.
const resolvConf = "/etc/resolv.conf"

// writeStatus applies the whole status: nothing else writes it.
func (a *agent) writeStatus(ctx context.Context, s v1alpha1.NodeNetworkStatus) error {
	n := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: a.objects.own.Name, UID: a.objects.own.UID}}
	err := loop.ApplyStatus(ctx, a.view.Client, "NodeNetwork", n, s, a.manager)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// The object is gone. The watch reports that later, or never if the definition is gone.
		return errAddressLost
	}
	if err != nil {
		return fmt.Errorf("write the status of NodeNetwork %s: %w", a.objects.own.Name, err)
	}
	return nil
}

// Status returns the status to report.
func (a *agent) Status(problem string) (v1alpha1.NodeNetworkStatus, bool) {
	s := v1alpha1.NodeNetworkStatus{
		Address: v1alpha1.IP{Addr: a.local.address}, Kernel: new(a.machine.facts), UnderlayMTU: int32(a.machine.underlayMTU),
		NodeIPs: nodeIPs(a.objects.node), PodCIDRs: podCIDRs(a.objects.node), Routes: a.machine.routes, Resolvers: a.machine.resolvers,
	}
	problems := append([]string{problem}, a.applied.want.leftOut...)
	if a.machine.omittedRoutes > 0 {
		problems = append(problems, fmt.Sprintf("%d of this node's routes are not reported, as it has more than %d: a range for a peer may overlap with them",
			a.machine.omittedRoutes, maxRoutes))
	}
	if s.PodIPs = podsOutsideCIDRs(a.objects.pods, s.PodCIDRs, a.local.address); a.view.Reader == nil {
		// The pods are not known yet: keep serving those that the previous agent reported.
		s.PodIPs = a.objects.own.Status.PodIPs
	}
	if n := len(s.PodIPs); n > v1alpha1.MaxPodIPs {
		s.PodIPs = s.PodIPs[:v1alpha1.MaxPodIPs]
		problems = append(problems, fmt.Sprintf("%d pods are not reported, as more than %d have an address outside of the node's ranges: the peer does not reach them", n-v1alpha1.MaxPodIPs, v1alpha1.MaxPodIPs))
	}
	for _, g := range a.applied.gateways {
		entry, err := a.gatewayStatus(g)
		if err != nil {
			problems = append(problems, err.Error())
		}
		s.Gateways = append(s.Gateways, entry)
		if p := a.probers[g.key()]; p != nil && p.ready && p.failedTCP.Load() >= maxTCPFailures {
			problems = append(problems, fmt.Sprintf("TCP does not pass between this node and gateway %s, although UDP does: is it redirected or dropped on either side?", g.pod))
		}
	}
	for _, entry := range a.applied.kept {
		entry.Ready, entry.Active = false, false // earlier measurements say nothing about the present
		s.Gateways = append(s.Gateways, entry)
	}
	a.publishMetrics(s.Gateways)
	ready := loop.Condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonApplied, "the kernel matches the Peerings")
	message := loop.Truncate(strings.Join(lo.Compact(problems), "; "))
	switch {
	case problem != "":
		ready = loop.Condition(ready.Type, metav1.ConditionFalse, "CannotApply", message)
	case !a.applied.reconciled:
		ready = loop.Condition(ready.Type, metav1.ConditionFalse, v1alpha1.ReasonStarting, "the agent has not read the kernel's state yet")
	case message != "":
		ready.Reason, ready.Message = "AppliedWithProblems", message
	}
	s.Conditions = slices.Clone(a.objects.own.Status.Conditions)
	meta.SetStatusCondition(&s.Conditions, ready)
	a.objects.own.Status = s
	return s, true
}

// gatewayStatus returns the entry of one gateway, and an error if the path to it is not known.
func (a *agent) gatewayStatus(g gateway) (entry v1alpha1.NodeGateway, err error) {
	entry = v1alpha1.NodeGateway{PeeringName: g.peering, Plane: g.plane, ObservedGeneration: g.generation}
	if g.pod.IsValid() {
		entry.GatewayIP = v1alpha1.IP{Addr: g.pod}
		path := a.pathTo(g)
		entry.Source, entry.MTU = v1alpha1.IP{Addr: path.source}, int32(path.mtu)
		if path.err != nil {
			err = fmt.Errorf("the path to gateway %s: %w", g.pod, path.err)
			// The path may come back: until then the gateway keeps its link.
			if last := a.objects.own.Gateway(g.peering, g.plane); last != nil && last.GatewayIP.Addr == g.pod {
				entry.Source, entry.MTU = last.Source, last.MTU
			}
		}
	}
	entry.Active = g.pod.IsValid() && (g.isOnlyPlane || a.local.usesPlane(g.peering, g.plane))
	if p := a.probers[g.key()]; p != nil {
		entry.Ready = p.ready
		entry.RTTMicroseconds, entry.LossPercent = p.stats.Median.Microseconds(), int32(p.stats.Loss*100+0.5)
	}
	return entry, err
}

// pathKey identifies a path: the gateway pod, and where it sends the tunnel's packets if it is on this node.
type pathKey struct{ pod, target netip.Addr }

// pathInfo is the address from which this node sends to a gateway, and the maximum packet size. The link may differ
// from the one with the node's own address. For a gateway on this node, the size also depends on the path of the
// tunnel to the peer.
type pathInfo struct {
	source netip.Addr
	mtu    int
	err    error
}

// pathTo returns the path to a gateway. It asks the kernel again after the kernel or probes report a change. The
// kernel does not report what it learns from ICMP errors: that is read once per resync (see Reconcile).
func (a *agent) pathTo(g gateway) pathInfo {
	key := pathKey{g.pod, g.tunnelTarget}
	p, known := a.machine.paths[key]
	if known {
		return p
	}
	var outer int
	if p.source, outer, p.err = a.kernel.SourceTo(g.pod); p.err == nil {
		p.mtu = outer - overlay.Overhead
		if g.tunnelTarget.IsValid() {
			// Without a route, packets do not arrive anyway.
			if _, outer, err := a.kernel.SourceTo(g.tunnelTarget); err == nil {
				p.mtu = min(p.mtu, outer-tunnel.Overhead(g.tunnelTarget))
			}
		}
	}
	a.machine.paths[key] = p
	return p
}

// readResolvers returns the name servers of a resolv.conf(5) that are not on this node. It returns none if the file
// cannot be read.
func readResolvers(file string) (out []v1alpha1.IP) {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(words[1]); err == nil && a.Zone() == "" && a.Unmap().IsGlobalUnicast() && len(out) < maxResolvers {
			out = append(out, v1alpha1.IP{Addr: a.Unmap()})
		}
	}
	return out
}

// nodeIPs returns the Node's internal and external addresses.
func nodeIPs(node *corev1.Node) []v1alpha1.IP {
	all := slices.Concat(nodes.Addresses(node, corev1.NodeInternalIP), nodes.Addresses(node, corev1.NodeExternalIP))
	out := lo.FilterMap(all, func(a netip.Addr, _ int) (v1alpha1.IP, bool) { return v1alpha1.IP{Addr: a}, a.Zone() == "" })
	return out[:min(len(out), maxNodeIPs)]
}

func podCIDRs(node *corev1.Node) []v1alpha1.CIDR {
	return lo.FilterMap(node.Spec.PodCIDRs, func(c string, _ int) (v1alpha1.CIDR, bool) {
		p, err := netip.ParsePrefix(c)
		return v1alpha1.CIDR{Prefix: p.Masked()}, err == nil
	})
}

// podsOutsideCIDRs returns the addresses of pods on the pod network that have the overlay's address family and are in
// none of the node's ranges. Those are all pods where nodes have no ranges (EKS), and those with an address that Calico
// borrows from another node's block. The result is sorted without duplicates: after a reboot, a pod that has not
// started yet still reports an address that another pod has got since.
func podsOutsideCIDRs(pods []corev1.Pod, ranges []v1alpha1.CIDR, overlay netip.Addr) []v1alpha1.IP {
	var out []v1alpha1.IP
	for _, p := range pods {
		if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			addr, err := netip.ParseAddr(ip.IP)
			if err == nil && sameFamily(addr, overlay) && !slices.ContainsFunc(ranges, func(r v1alpha1.CIDR) bool { return r.Contains(addr) }) {
				out = append(out, v1alpha1.IP{Addr: addr})
			}
		}
	}
	return slices.Compact(slices.SortedFunc(slices.Values(out), func(a, b v1alpha1.IP) int { return a.Compare(b.Addr) }))
}

// summarizeRoutes sorts prefixes and removes those inside others: with a CNI that routes each pod separately there are
// many. Very wide ones hide no others, because commands leave them out (plan.NodeRoutes). It keeps the largest, and
// returns how many it omitted.
func summarizeRoutes(prefixes []netip.Prefix) (kept []netip.Prefix, omitted int) {
	isWide := func(p netip.Prefix, _ int) bool { return p.Bits() < ipam.MinRouteBits }
	kept = append(lo.Uniq(lo.Filter(prefixes, isWide)), ipam.Outermost(lo.Reject(prefixes, isWide), netip.Prefix.Masked)...)
	slices.SortFunc(kept, func(a, b netip.Prefix) int { return cmp.Or(a.Bits()-b.Bits(), a.Addr().Compare(b.Addr())) })
	limit := min(len(kept), maxRoutes)
	return kept[:limit], len(kept) - limit
}

// compareStatus returns how urgently a status has to be written. Changed measurements can wait, except the first ones.
func compareStatus(now, written v1alpha1.NodeNetworkStatus) loop.Change {
	measured := false
	sameGateways := slices.EqualFunc(now.Gateways, written.Gateways, func(a, b v1alpha1.NodeGateway) bool {
		measured = measured || loop.ChangedByHalf(a.RTTMicroseconds, b.RTTMicroseconds) || a.LossPercent != b.LossPercent
		first := (a.RTTMicroseconds > 0) != (b.RTTMicroseconds > 0)
		a.RTTMicroseconds, a.LossPercent = b.RTTMicroseconds, b.LossPercent
		return a == b && !first
	})
	now.Gateways = written.Gateways
	switch {
	case !sameGateways || !reflect.DeepEqual(now, written):
		return loop.Changed
	case measured:
		return loop.Measured
	}
	return loop.Same
}

// publishMetrics publishes the last state for metrics.
func (a *agent) publishMetrics(entries []v1alpha1.NodeGateway) {
	a.metricsPlanes.Store(new(lo.Map(a.applied.gateways, func(g gateway, i int) metrics.Plane {
		plane := metrics.Plane{Peering: g.peering, Index: g.plane, Link: g.link, State: metrics.Down, MTU: g.mtu, Active: entries[i].Active}
		switch s := a.probers[g.key()].state(); {
		case s.Up && s.Leaving:
			plane.State = metrics.Leaving
		case s.Up:
			plane.State = metrics.Up
		}
		return plane
	})))
}

// readMetrics returns the last state, with the kernel's current counters.
func (a *agent) readMetrics() (s metrics.Snapshot, err error) {
	for _, p := range ptr.Deref(a.metricsPlanes.Load(), nil) {
		if t, err := a.kernel.Traffic(p.Link); err == nil { // otherwise there is no link now
			p.Traffic = (*metrics.Traffic)(&t)
		}
		s.Planes = append(s.Planes, p)
	}
	s.Drops, err = nat.Drops()
	return s, err
}
