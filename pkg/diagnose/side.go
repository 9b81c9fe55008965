package diagnose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/pkg/verify"
)

// verified is one of the two clusters with its probes.
type verified struct {
	verify.Side
	cluster *kube.Cluster
	// token authenticates the probes of both clusters to each other.
	token string
	// addresses are the addresses of all its nodes.
	addresses []netip.Addr
	// servers, hosts and callers are the probes by node, nil for nodes without one.
	servers, hosts, callers []*Probe
	probes                  *Probes
	questions               []verify.Question
}

// note adds a note about something that is left out.
func (s *verified) note(what string, args ...any) {
	s.Notes = append(s.Notes, s.cluster.Name+": "+fmt.Sprintf(what, args...))
}

// read reads the cluster's objects.
func (s *verified) read(ctx context.Context, peer *kube.Cluster) error {
	p, known, err := status.PeeringWith(ctx, s.cluster, peer)
	if err != nil {
		return err
	}
	if err := p.Check(); err != nil {
		return s.cluster.Errorf(kube.NotReady, "read the peering", "", "%w", err)
	}
	s.Side = verify.Side{
		Letter: s.Letter, Cluster: s.cluster.Name, Kubectl: s.cluster.Kubectl, Peering: p, Known: known, Remote: p.RemoteRanges(),
	}
	if s.APIServers, err = status.Endpoints(ctx, s.cluster, metav1.NamespaceDefault, "kubernetes"); err != nil {
		return err
	}
	var all v1alpha1.PeeringList
	var list corev1.NodeList
	var reports v1alpha1.NodeNetworkList
	if err := s.cluster.Lists(ctx, &all, &list, &reports); err != nil {
		return err
	}
	if s.Third, err = thirdClusters(all.Items, p); err != nil {
		return err
	}
	return s.chooseNodes(list.Items, plan.ReportsByNode(reports.Items))
}

// thirdClusters returns the other peers of a cluster, with the addresses of the gateways to them.
func thirdClusters(all []v1alpha1.Peering, p *v1alpha1.Peering) (out []verify.Third, err error) {
	for _, other := range all {
		if other.Name == p.Name || other.Check() != nil {
			continue
		}
		third := verify.Third{Name: other.Spec.Remote.Name}
		for _, plane := range other.Spec.Planes {
			addr, err := plan.GatewayAddress(p.Spec.Local.InternalCIDR.Prefix, other.Spec.Index, plane.Index)
			if err != nil {
				return nil, err
			}
			third.Gateways = append(third.Gateways, addr)
		}
		out = append(out, third)
	}
	return out, nil
}

// chooseNodes sets the nodes that get probes.
func (s *verified) chooseNodes(all []corev1.Node, reports map[string]*v1alpha1.NodeNetwork) error {
	var candidates []verify.Node
	for _, n := range kube.Pointers(all) {
		own := slices.DeleteFunc(nodes.Addresses(n, corev1.NodeInternalIP), func(a netip.Addr) bool { return !s.Peering.Carries(a) })
		s.addresses = append(s.addresses, own...)
		switch report := reports[n.Name]; {
		case !nodes.RunsAgents(n):
		case !nodes.Ready(n), report == nil:
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
	s.Nodes = verify.Choose(candidates)
	s.servers, s.hosts, s.callers = make([]*Probe, len(s.Nodes)), make([]*Probe, len(s.Nodes)), make([]*Probe, len(s.Nodes))
	for _, i := range []int{0, len(s.Nodes) - 1} {
		task := probe.Task{Token: s.token, Serve: &probe.Serve{Name: s.PodID(i), Port: verify.PodPort}}
		s.servers[i] = &Probe{Name: fmt.Sprintf("serve-%d", i), Node: s.Nodes[i].Name, Task: task}
	}
	return nil
}

// gatewaysOn returns the planes whose gateways run on a node.
func (s *verified) gatewaysOn(node string) []int32 {
	return lo.FilterMap(s.Peering.Spec.Planes, func(plane v1alpha1.Plane, _ int) (int32, bool) {
		status := s.Peering.PlaneStatus(plane.Index)
		return plane.Index, status != nil && status.NodeName == node
	})
}

// mtuOf returns the largest packet from a node to the peer, in bytes. It is the lowest MTU of the planes through which the node sends, or
// that of the first plane if it sends through none.
func (s *verified) mtuOf(report *v1alpha1.NodeNetwork) int {
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

// addressOf returns the address of a pod that the peering carries, invalid if it has none.
func (s *verified) addressOf(p *Probe) netip.Addr {
	if p.Pod == nil {
		return netip.Addr{}
	}
	return s.carried(lo.Map(p.Pod.Status.PodIPs, func(ip corev1.PodIP, _ int) string { return ip.IP })...)
}

// carried returns the first address that the peering carries, invalid if there is none.
func (s *verified) carried(ips ...string) netip.Addr {
	for _, ip := range ips {
		if addr, err := netip.ParseAddr(ip); err == nil && s.Peering.Carries(addr) {
			return addr
		}
	}
	return netip.Addr{}
}

// metrics returns the metrics addresses of the gateways in the order of the planes, invalid for a gateway that does not run.
func (s *verified) metrics() []netip.AddrPort {
	return lo.Map(s.Peering.Spec.Planes, func(plane v1alpha1.Plane, _ int) netip.AddrPort {
		return netip.AddrPortFrom(lo.FromPtr(s.Peering.PlaneStatus(plane.Index)).PodIP.Addr, v1alpha1.MetricsPort)
	})
}

// findings returns the results of this side's probes.
func (s *verified) findings() verify.Findings {
	f := verify.Findings{Questions: s.questions, Answers: map[string]probe.Answer{}, Askers: map[string]netip.Addr{}}
	for _, p := range lo.Compact(slices.Concat(s.hosts, s.callers)) {
		maps.Copy(f.Answers, lo.KeyBy(p.Result.Answers, func(a probe.Answer) string { return a.ID }))
	}
	for i, p := range s.hosts {
		w := verify.Watched{Node: &s.Nodes[i], Watched: lo.FromPtr(p.Result.Watched), Error: p.Err}
		if p.Result.Watched == nil && p.Err == nil {
			w.Error = errors.New("the probe has not reported its counters")
		}
		f.Watched = append(f.Watched, w)
	}
	for i, p := range s.callers {
		if p == nil {
			continue
		}
		f.Askers[s.PodID(i)] = s.addressOf(p)
		for i, g := range p.Result.Gateways {
			w := verify.Watched{Plane: s.Peering.Spec.Planes[i].Index, Watched: probe.Watched{Dropped: g.Dropped}}
			if g.Error != "" {
				w.Error = errors.New(g.Error)
			}
			f.Watched = append(f.Watched, w)
		}
	}
	return f
}
