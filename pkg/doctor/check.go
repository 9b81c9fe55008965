// Package doctor finds out what is wrong with clusters and their peerings, where, and what to do about it. It is pure: it turns Facts into
// a Report. It defines the facts; pkg/diagnose reads them from objects, and agent/probe from kernels.
//
// A check has a stable name, such as liqonet-mtu-01. It examines facts and adds findings. The catalogue defines on which others each
// check depends, from which pkg/check determines the cause.
//
// Out of scope: reading, repairing, printing.
package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
)

// Check is a check of one cluster.
type Check struct {
	check.Check
	// needs are the parts of a cluster without which the check is skipped.
	needs   []Part
	examine func(x *examination)
}

// examination is one check of one cluster.
type examination struct {
	*Cluster
	// all has the data of the other clusters too.
	all   *Facts
	check Check
	found []check.Finding
}

// add adds a finding.
func (x *examination) add(f check.Finding) *check.Finding {
	f.Check, f.Cluster = x.check.Name, x.Cluster.Name
	x.found = append(x.found, f)
	return &x.found[len(x.found)-1]
}

// failed adds a failure of a node or, without one, of the whole cluster.
func (x *examination) failed(node, what, evidence, hint string) *check.Finding {
	return x.add(check.Finding{Result: check.Failed, Node: node, What: what, Evidence: evidence, Hint: hint})
}

// failedAt adds a failure of a node that also affects the peerings whose gateways run on it.
func (x *examination) failedAt(node, what, evidence, hint string) {
	x.failed(node, what, evidence, hint).Pairs = x.pairs(func(p *v1alpha1.Peering) bool {
		return slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool { return x.gatewayNode(p, plane.Index) == node })
	})
}

// warned adds a warning: the problem does no harm yet.
func (x *examination) warned(node, what, evidence, hint string) *check.Finding {
	return x.add(check.Finding{Result: check.Warning, Node: node, What: what, Evidence: evidence, Hint: hint})
}

// skipped adds the reason why something could not be examined.
func (x *examination) skipped(node, why string) {
	x.add(check.Finding{Result: check.Skipped, Node: node, What: why})
}

// kubectl returns a kubectl command in our namespace.
func (x *examination) kubectl(format string, args ...any) string {
	return x.Kubectl + " -n liqonet-system " + fmt.Sprintf(format, args...)
}

// liqonet returns a liqonet command whose first argument is the cluster.
func (x *examination) liqonet(verb string, args ...string) string {
	return strings.Join(slices.Concat([]string{"kubectl liqonet", verb, x.Cluster.Name}, args), " ")
}

// fix returns the command that recreates our objects.
func (x *examination) fix() string { return x.liqonet("doctor", "--fix") }

// peerAgain returns the peer command that repairs our objects. Without a peering, it names the other cluster of the command line.
func (x *examination) peerAgain() string {
	others := lo.Map(x.Peerings, func(p v1alpha1.Peering, _ int) string { return p.Spec.Remote.Name })
	others = append(others, lo.Map(lo.FromPtr(x.Ledger).Spec.Peers, func(p v1alpha1.PeerAllocation, _ int) string { return p.Name })...)
	others = append(others, lo.FilterMap(x.all.Clusters, func(c *Cluster, _ int) (string, bool) { return c.Name, c != x.Cluster })...)
	if len(others) == 0 {
		return "kubectl liqonet peer --help"
	}
	return x.liqonet("peer", others[0])
}

// listed joins the first three names in sorted order, and counts the others.
func listed(names []string) string {
	const most = 3
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// pairs identifies the peerings for which meant returns true. Both clusters use the same identifier.
func (x *examination) pairs(meant func(*v1alpha1.Peering) bool) []string {
	return lo.FilterMap(lo.ToSlicePtr(x.Peerings), func(p *v1alpha1.Peering, _ int) (string, bool) {
		ids := []string{x.ID, p.Spec.Remote.ClusterID}
		slices.Sort(ids)
		return strings.Join(ids, " "), meant(p)
	})
}

// allPairs identifies all peerings of the cluster.
func (x *examination) allPairs() []string {
	return x.pairs(func(*v1alpha1.Peering) bool { return true })
}

// gatewayNode returns the node on which a gateway runs, empty if unknown.
func (x *examination) gatewayNode(p *v1alpha1.Peering, plane int32) string {
	if pod := x.gatewayPod(p.Name, plane); pod != nil && pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	return lo.FromPtr(p.PlaneStatus(plane)).NodeName
}

func (x *examination) gatewayPod(peering string, plane int32) *corev1.Pod {
	return x.pod(func(p *corev1.Pod) bool {
		return p.Labels[v1alpha1.LabelPeering] == peering && p.Labels[v1alpha1.LabelPlane] == strconv.Itoa(int(plane))
	})
}

// NodePod returns the pod of a node's agent, nil if there is none.
func (c *Cluster) NodePod(node string) *corev1.Pod {
	return c.pod(func(p *corev1.Pod) bool { return component(p) == "node" && nodeOfPod(p) == node })
}

// pod returns a pod for which meant returns true, preferably a running one.
func (c *Cluster) pod(meant func(*corev1.Pod) bool) (found *corev1.Pod) {
	for _, p := range lo.ToSlicePtr(c.Ours.Pods) {
		if meant(p) && (found == nil || p.Status.Phase == corev1.PodRunning) {
			found = p
		}
	}
	return found
}

// nodeOfPod returns the node on which a pod runs, or must run: each pod of a DaemonSet is bound to a node.
func nodeOfPod(p *corev1.Pod) string {
	affinity := lo.FromPtr(lo.FromPtr(p.Spec.Affinity).NodeAffinity)
	for _, term := range lo.FromPtr(affinity.RequiredDuringSchedulingIgnoredDuringExecution).NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if p.Spec.NodeName == "" && field.Key == metav1.ObjectNameField && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return p.Spec.NodeName
}

// agent describes the agent that renews a Lease, and returns its node.
func (x *examination) agent(lease string) (name, node string) {
	for _, n := range x.Machines.Nodes {
		if lease == x.Reports[n.Name].Lease() {
			return "the agent of node " + n.Name, n.Name
		}
	}
	for _, g := range x.gateways() {
		if lease == g.lease() {
			return g.name(), g.node()
		}
	}
	return lease, ""
}

// gateway is a gateway of the cluster.
type gateway struct {
	x       *examination
	peering *v1alpha1.Peering
	*v1alpha1.Plane
	// status is nil if the gateway has not reported.
	status *v1alpha1.PlaneStatus
}

// gateways returns the gateways of the cluster.
func (x *examination) gateways() (out []gateway) {
	for _, p := range lo.ToSlicePtr(x.Peerings) {
		for _, plane := range lo.ToSlicePtr(p.Spec.Planes) {
			out = append(out, gateway{x, p, plane, p.PlaneStatus(plane.Index)})
		}
	}
	return out
}

// lease returns the name of the gateway's Lease and of its other objects.
func (g gateway) lease() string { return v1alpha1.GatewayName(g.peering.Name, g.Index) }

// name describes the gateway, with its plane if there are several.
func (g gateway) name() string {
	name := "the gateway to " + cmp.Or(g.peering.Spec.Remote.Name, g.peering.Name)
	if len(g.peering.Spec.Planes) > 1 {
		name += fmt.Sprintf(" of plane %d", g.Index)
	}
	return name
}

// peer returns the name of the other cluster.
func (g gateway) peer() string { return g.peering.Spec.Remote.Name }

// node returns the node on which the gateway runs, empty if unknown.
func (g gateway) node() string { return g.x.gatewayNode(g.peering, g.Index) }

// silent reports whether the gateway counts as dead.
func (g gateway) silent() bool { return g.x.silent(g.lease()) }

// down reports whether the gateway is alive, but no packets pass.
func (g gateway) down() bool { return g.status != nil && !g.status.Connected && !g.silent() }

// about attributes a finding to the gateway.
func (g gateway) about(f *check.Finding) {
	f.Peering, f.Plane = g.peering.Name, &g.Index
	f.Node = cmp.Or(f.Node, g.node())
}

// forGateways calls check for each gateway.
func forGateways(check func(gateway)) func(*examination) {
	return func(x *examination) {
		for _, g := range x.gateways() {
			check(g)
		}
	}
}

// failed adds a failure of the gateway.
func (g gateway) failed(what, evidence, hint string) { g.about(g.x.failed("", what, evidence, hint)) }

// peerOf returns the peer's cluster and its side of the peering, each nil if it was not read.
func (x *examination) peerOf(p *v1alpha1.Peering) (*Cluster, *v1alpha1.Peering) {
	id := p.Spec.Remote.ClusterID
	peer, isRead := lo.Find(x.all.Clusters, func(c *Cluster) bool { return c.ID == id && id != "" })
	if !isRead {
		return nil, nil
	}
	side, _ := lo.Find(lo.ToSlicePtr(peer.Peerings), func(other *v1alpha1.Peering) bool { return other.Spec.Remote.ClusterID == x.ID })
	return peer, side
}

// isAgent reports whether a pod is a node agent or a gateway.
func isAgent(p *corev1.Pod) bool { return component(p) == "node" || component(p) == "gateway" }

// component returns the component to which a pod of ours belongs.
func component(p *corev1.Pod) string { return p.Labels["app.kubernetes.io/component"] }
