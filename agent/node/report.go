package node

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// maxRoutes bounds the report of a node that is a router itself.
const maxRoutes = 256

// maxPodIPs is more pods than a node has.
const maxPodIPs = 1024

// reporter remembers what was reported.
type reporter struct {
	*watch.Report
	writing *v1alpha1.NodeNetwork
	at      time.Time
}

// report begins to write the node's status where something changed that others
// wait for, and now and then.
func (a *agent) report(ctx context.Context, node *corev1.Node, pods []corev1.Pod) {
	if !a.reports.Free() {
		return
	}
	s := a.status(node, pods)
	if same(s, a.own.Status) && time.Since(a.reports.at) < v1alpha1.NodeReportInterval {
		return
	}
	s.Reported = new(metav1.Now())
	before, after := a.own, a.own.DeepCopy()
	after.Status = s
	a.reports.writing = after
	c := a.view.Client
	a.reports.Begin(ctx, func(ctx context.Context) error {
		// A merge patch of the whole difference: nobody else writes this status.
		if err := c.Status().Patch(ctx, after, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("write the status of NodeNetwork %s: %w", before.Name, err)
		}
		return nil
	})
}

// reported notes that a report was written, or why not.
func (a *agent) reported(err error) {
	a.reports.Note(err)
	if err == nil {
		a.own, a.reports.at = a.reports.writing, time.Now()
	}
}

func (a *agent) status(node *corev1.Node, pods []corev1.Pod) v1alpha1.NodeNetworkStatus {
	s := v1alpha1.NodeNetworkStatus{Kernel: &a.facts, Message: a.message}
	s.PodCIDRs = podCIDRs(node)
	if s.PodIPs = outside(pods, s.PodCIDRs, a.machine.address); a.view.Reader == nil {
		// The pods are not known yet: those of the agent before this one are served on.
		s.PodIPs = a.own.Status.PodIPs
	}
	s.UnderlayMTU = int32(a.underlayMTU)
	s.Routes = a.routes
	if !a.reconciled {
		// Of the agent before this one: the kernel still holds it. What that one has
		// measured says nothing of this one.
		s.Gateways = slices.Clone(a.own.Status.Gateways)
		for i := range s.Gateways {
			s.Gateways[i].Ready = false
		}
	}
	for _, g := range a.applied.gateways {
		entry := v1alpha1.NodeGateway{Peering: g.peering, Plane: g.plane, ObservedGeneration: g.generation}
		if g.failed {
			// What was true may still be, or be again: the gateway keeps its link until then.
			entry = v1alpha1.NodeGateway{Peering: g.peering, Plane: g.plane}
			if last := a.own.Gateway(g.peering, g.plane); last != nil {
				entry = *last
			}
			entry.Ready = false
		} else if g.pod.IsValid() {
			entry.GatewayIP = v1alpha1.IP{Addr: g.pod}
			if source, mtu, err := a.wayTo(g); err == nil {
				entry.Source, entry.MTU = v1alpha1.IP{Addr: source}, int32(mtu)
			} else {
				// It may come back: the gateway keeps its link until then.
				if last := lastEntry(a.own.Status, g); last != nil {
					entry.Source, entry.MTU = last.Source, last.MTU
				}
				s.Message = strings.TrimPrefix(fmt.Sprintf("%s; the way to gateway %s: %v", s.Message, g.pod, err), "; ")
			}
		}
		if p := a.probers[probeKey{g.remote, g.plane}]; p != nil {
			probes := p.Snapshot()
			entry.Ready = p.ready()
			entry.RTTMicroseconds, entry.LossPercent = probes.Median.Microseconds(), int32(probes.Loss*100+0.5)
		}
		s.Gateways = append(s.Gateways, entry)
	}
	return s
}

// lastEntry is what was reported of the same gateway pod, nil if nothing was.
func lastEntry(s v1alpha1.NodeNetworkStatus, g gateway) *v1alpha1.NodeGateway {
	for i := range s.Gateways {
		e := &s.Gateways[i]
		if e.Peering == g.peering && e.Plane == g.plane && e.GatewayIP.Addr == g.pod {
			return e
		}
	}
	return nil
}

func podCIDRs(node *corev1.Node) []v1alpha1.CIDR {
	var out []v1alpha1.CIDR
	for _, c := range node.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(c); err == nil {
			out = append(out, v1alpha1.CIDR{Prefix: p.Masked()})
		}
	}
	return out
}

// outside returns the addresses of pods on the pod network, of the overlay's
// address family, that no range of the node has: all of them where nodes have no
// ranges (EKS), and those that Calico borrows from another node's block. Sorted, each
// once: after a reboot, a pod that was not started yet still says an address that
// another one has been given.
func outside(pods []corev1.Pod, ranges []v1alpha1.CIDR, overlay netip.Addr) []v1alpha1.IP {
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
	slices.SortFunc(out, func(a, b v1alpha1.IP) int { return a.Compare(b.Addr) })
	out = slices.Compact(out)
	return out[:min(len(out), maxPodIPs)]
}

// summary sorts prefixes and leaves out those inside of others: with a CNI that
// routes each pod by itself there are many.
func summary(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(a.Bits()-b.Bits(), a.Addr().Compare(b.Addr()))
	})
	var out []netip.Prefix
	for _, p := range prefixes {
		if !slices.ContainsFunc(out, p.Overlaps) && len(out) < maxRoutes {
			out = append(out, p)
		}
	}
	return out
}

// same says that nobody needs to be told of the difference now.
func same(a, b v1alpha1.NodeNetworkStatus) bool {
	if a.Message != b.Message || a.UnderlayMTU != b.UnderlayMTU || !slices.Equal(a.PodCIDRs, b.PodCIDRs) || !slices.Equal(a.PodIPs, b.PodIPs) || !slices.Equal(a.Routes, b.Routes) || b.Kernel == nil {
		return false
	}
	return slices.EqualFunc(a.Gateways, b.Gateways, func(a, b v1alpha1.NodeGateway) bool {
		a.RTTMicroseconds, a.LossPercent, b.RTTMicroseconds, b.LossPercent = 0, 0, 0, 0
		return a == b
	})
}
