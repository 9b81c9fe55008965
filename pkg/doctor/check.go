// Package doctor says what is wrong with clusters and their peerings, where, and
// what to do. It is pure: Facts in, a Report out. What a fact is, is said here; who reads them are pkg/diagnose (objects) and
// agent/probe (kernels).
//
// A check has a stable name, as liqonet-mtu-01. It looks at facts and returns findings. The catalogue says on which others each
// depends, from which pkg/check tells the cause.
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

// Check is one of a cluster.
type Check struct {
	check.Check
	// needs are the parts of a cluster without which it says nothing.
	needs []Part
	look  func(x *look)
}

// look is one check of one cluster.
type look struct {
	*Facts
	*Cluster
	check Check
	found []check.Finding
}

// say adds a finding.
func (x *look) say(f check.Finding) *check.Finding {
	f.Check, f.Cluster = x.check.Name, x.Cluster.Name
	x.found = append(x.found, f)
	return &x.found[len(x.found)-1]
}

// failed adds one of a node, or of the whole cluster.
func (x *look) failed(node, what, evidence, hint string) *check.Finding {
	return x.say(check.Finding{Result: check.Failed, Node: node, What: what, Evidence: evidence, Hint: hint})
}

// failedAt is the same of a node that packets of the peerings with a gateway on it do not pass.
func (x *look) failedAt(node, what, evidence, hint string) {
	x.failed(node, what, evidence, hint).Pairs = x.pairs(func(p *v1alpha1.Peering) bool {
		return slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool { return x.gatewayNode(p, plane.Index) == node })
	})
}

// warned is the same of what does no harm yet.
func (x *look) warned(node, what, evidence, hint string) *check.Finding {
	return x.say(check.Finding{Result: check.Warning, Node: node, What: what, Evidence: evidence, Hint: hint})
}

// unseen says what could not be seen.
func (x *look) unseen(node, why string) {
	x.say(check.Finding{Result: check.Skipped, Node: node, What: why})
}

// kubectl is a command for the user, in our namespace.
func (x *look) kubectl(format string, args ...any) string {
	return x.Kubectl + " -n liqonet-system " + fmt.Sprintf(format, args...)
}

// liqonet is a command of ours about the cluster.
func (x *look) liqonet(verb string, args ...string) string {
	return strings.Join(slices.Concat([]string{"kubectl liqonet", verb, x.Cluster.Name}, args), " ")
}

// fix is the command that makes our objects again.
func (x *look) fix() string { return x.liqonet("doctor", "--fix") }

// again is the command that sets right what peer makes. Without a peering it is about the other cluster that was named.
func (x *look) again() string {
	others := lo.Map(x.Cluster.Peerings, func(p v1alpha1.Peering, _ int) string { return p.Spec.Remote.Name })
	if x.Ledger != nil {
		others = append(others, lo.Map(x.Ledger.Spec.Peers, func(p v1alpha1.PeerAllocation, _ int) string { return p.Name })...)
	}
	others = append(others, lo.FilterMap(x.Clusters, func(c *Cluster, _ int) (string, bool) { return c.Name, c != x.Cluster })...)
	if len(others) == 0 {
		return "kubectl liqonet peer --help"
	}
	return x.liqonet("peer", others[0])
}

// Examine looks at all facts.
func Examine(f *Facts) *check.Report {
	r := &check.Report{}
	for _, c := range Catalogue() {
		c.Result = check.Passed
		for _, cluster := range f.Clusters {
			x := &look{Facts: f, Cluster: cluster, check: c}
			if why := x.missing(); why != "" {
				x.unseen("", why)
			} else {
				c.look(x)
			}
			for _, f := range lo.ToSlicePtr(x.found) {
				f.Pairs = append(f.Pairs, x.pairs(func(p *v1alpha1.Peering) bool { return p.Name == f.Peering })...)
			}
			c.Findings = append(c.Findings, x.found...)
		}
		for _, result := range []check.Result{check.Skipped, check.Warning, check.Failed} {
			if c.Count(result) > 0 {
				c.Result = result
			}
		}
		if c.Result == check.Skipped {
			c.Message = c.Findings[0].What
		}
		r.Checks = append(r.Checks, c.Check)
	}
	r.Explain()
	return r
}

// missing says why a check of a cluster says nothing.
func (x *look) missing() string {
	if len(x.check.needs) > 0 && x.Unreachable+x.Refused != "" { // others are about the API server itself
		return "the API server does not answer"
	}
	why := lo.Map(x.check.needs, func(part Part, _ int) string { return x.Unseen[part] })
	return strings.Join(lo.Uniq(lo.Compact(why)), "; ")
}

// listed names the first three, and counts the others.
func listed(names []string) string {
	const most = 3
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// pairs name the peerings that are meant, alike in both clusters.
func (x *look) pairs(meant func(*v1alpha1.Peering) bool) []string {
	return lo.FilterMap(lo.ToSlicePtr(x.Cluster.Peerings), func(p *v1alpha1.Peering, _ int) (string, bool) {
		ids := []string{x.ID, p.Spec.Remote.ClusterID}
		slices.Sort(ids)
		return strings.Join(ids, " "), meant(p)
	})
}

// allPairs are those of all peerings of the cluster.
func (x *look) allPairs() []string { return x.pairs(func(*v1alpha1.Peering) bool { return true }) }

// gatewayNode is the node that a gateway runs on, as far as it is known.
func (x *look) gatewayNode(p *v1alpha1.Peering, plane int32) string {
	if pod := x.gatewayPod(p.Name, plane); pod != nil && pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	if s := p.PlaneStatus(plane); s != nil {
		return s.NodeName
	}
	return ""
}

func (x *look) gatewayPod(peering string, plane int32) *corev1.Pod {
	return x.pod(func(p *corev1.Pod) bool {
		return p.Labels[v1alpha1.LabelPeering] == peering && p.Labels[v1alpha1.LabelPlane] == strconv.Itoa(int(plane))
	})
}

func (x *look) nodePod(node string) *corev1.Pod {
	return x.pod(func(p *corev1.Pod) bool {
		return component(p) == "node" && nodeOfPod(p) == node
	})
}

// pod is one of those that are meant: one that runs, if there is any.
func (x *look) pod(meant func(*corev1.Pod) bool) (found *corev1.Pod) {
	for _, p := range lo.ToSlicePtr(x.Cluster.Pods) {
		if meant(p) && (found == nil || p.Status.Phase == corev1.PodRunning) {
			found = p
		}
	}
	return found
}

// nodeOfPod is where a pod runs, or has to: those of a DaemonSet are for one node.
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

// agent names the agent that has a Lease, and its node.
func (x *look) agent(lease string) (name, node string) {
	for _, n := range x.Cluster.Nodes {
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

// gateway is one of the cluster's.
type gateway struct {
	x       *look
	peering *v1alpha1.Peering
	*v1alpha1.Plane
	// status is nil where it has reported nothing.
	status *v1alpha1.PlaneStatus
}

// gateways are those of the cluster.
func (x *look) gateways() (out []gateway) {
	for _, p := range lo.ToSlicePtr(x.Cluster.Peerings) {
		for _, plane := range lo.ToSlicePtr(p.Spec.Planes) {
			out = append(out, gateway{x, p, plane, p.PlaneStatus(plane.Index)})
		}
	}
	return out
}

// lease is the name of its Lease, and of its other objects.
func (g gateway) lease() string { return v1alpha1.GatewayName(g.peering.Name, g.Index) }

// name is how it is called: by its plane where there are several.
func (g gateway) name() string {
	name := "the gateway to " + cmp.Or(g.peering.Spec.Remote.Name, g.peering.Name)
	if len(g.peering.Spec.Planes) > 1 {
		name += fmt.Sprintf(" of plane %d", g.Index)
	}
	return name
}

// peer is the name of the other cluster.
func (g gateway) peer() string { return g.peering.Spec.Remote.Name }

// node is the one that it runs on, as far as it is known.
func (g gateway) node() string { return g.x.gatewayNode(g.peering, g.Index) }

// silent says that it is taken for dead.
func (g gateway) silent() bool { return g.x.silent(g.lease()) }

// down says that it lives, and no packet passes.
func (g gateway) down() bool { return g.status != nil && !g.status.Connected && !g.silent() }

// about says that a finding is about it.
func (g gateway) about(f *check.Finding) {
	f.Peering, f.Plane = g.peering.Name, &g.Index
	f.Node = cmp.Or(f.Node, g.node())
}

// ofGateways looks at each gateway.
func ofGateways(check func(gateway)) func(*look) {
	return func(x *look) {
		for _, g := range x.gateways() {
			check(g)
		}
	}
}

// failed adds a finding about it.
func (g gateway) failed(what, evidence, hint string) { g.about(g.x.failed("", what, evidence, hint)) }

// peerOf is the peer's cluster and its side of the peering, nil where it was not read.
func (x *look) peerOf(p *v1alpha1.Peering) (*Cluster, *v1alpha1.Peering) {
	id := p.Spec.Remote.ClusterID
	peer, isRead := lo.Find(x.Clusters, func(c *Cluster) bool { return c.ID == id && id != "" })
	if !isRead {
		return nil, nil
	}
	side, _ := lo.Find(lo.ToSlicePtr(peer.Peerings), func(other *v1alpha1.Peering) bool { return other.Spec.Remote.ClusterID == x.ID })
	return peer, side
}

// silent says that an agent has not renewed its Lease for so long that it is taken for dead.
func (c *Cluster) silent(lease string) bool {
	most := nodeSilence
	if strings.HasPrefix(lease, "gateway-") {
		most = gatewaySilence
	}
	age := c.Beats[lease].Age
	return age == nil || *age > most
}
