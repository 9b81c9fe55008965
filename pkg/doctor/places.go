package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// pair names a peering in both clusters.
func (x *look) pair(p *v1alpha1.Peering) string {
	ids := []string{x.ID, p.Spec.Remote.ClusterID}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

// allPairs are those of all peerings of the cluster.
func (x *look) allPairs() (out []string) {
	for i := range x.Cluster.Peerings {
		out = append(out, x.pair(&x.Cluster.Peerings[i]))
	}
	return out
}

// pairsAt are those of the peerings with a gateway on a node.
func (x *look) pairsAt(node string) (out []string) {
	for i := range x.Cluster.Peerings {
		p := &x.Cluster.Peerings[i]
		if slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool { return x.gatewayNode(p, plane.Index) == node }) {
			out = append(out, x.pair(p))
		}
	}
	return out
}

// of says which gateway a finding is about.
func (x *look) of(p *v1alpha1.Peering, plane int32, f *Finding) *Finding {
	f.Peering, f.Plane, f.pairs = p.Name, &plane, []string{x.pair(p)}
	f.Node = cmp.Or(f.Node, x.gatewayNode(p, plane))
	return f
}

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
		return p.Labels["app.kubernetes.io/component"] == "node" && nodeOfPod(p) == node
	})
}

// pod is one of those that are meant: one that runs, if there is any.
func (x *look) pod(meant func(*corev1.Pod) bool) (found *corev1.Pod) {
	for i := range x.Cluster.Pods {
		p := &x.Cluster.Pods[i]
		if meant(p) && (found == nil || p.Status.Phase == corev1.PodRunning) {
			found = p
		}
	}
	return found
}

// nodeOfPod is where a pod runs, or has to: those of a DaemonSet are for one node.
func nodeOfPod(p *corev1.Pod) string {
	if p.Spec.NodeName != "" || p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil || p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return p.Spec.NodeName
	}
	for _, term := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == "metadata.name" && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

// agent names the agent that has a Lease.
func (x *look) agent(lease string) string {
	for _, n := range x.Cluster.Nodes {
		if lease == x.Reports[n.Name].Lease() {
			return "the agent of node " + n.Name
		}
	}
	for i := range x.Cluster.Peerings {
		p := &x.Cluster.Peerings[i]
		for _, plane := range p.Spec.Planes {
			if lease == v1alpha1.GatewayName(p.Name, plane.Index) {
				return gatewayName(p, plane.Index)
			}
		}
	}
	return lease
}

// gatewayName is how a gateway is called: by its plane where there are several.
func gatewayName(p *v1alpha1.Peering, plane int32) string {
	name := "the gateway to " + cmp.Or(p.Spec.Remote.Name, p.Name)
	if len(p.Spec.Planes) > 1 {
		name += fmt.Sprintf(" of plane %d", plane)
	}
	return name
}

// nodeOf is the node of the agent that has a Lease.
func (x *look) nodeOf(lease string) string {
	for _, n := range x.Cluster.Nodes {
		if lease == x.Reports[n.Name].Lease() {
			return n.Name
		}
	}
	for i := range x.Cluster.Peerings {
		p := &x.Cluster.Peerings[i]
		for _, plane := range p.Spec.Planes {
			if lease == v1alpha1.GatewayName(p.Name, plane.Index) {
				return x.gatewayNode(p, plane.Index)
			}
		}
	}
	return ""
}

// forGateways calls do for each gateway of the cluster.
func (x *look) forGateways(do func(p *v1alpha1.Peering, plane *v1alpha1.Plane, s *v1alpha1.PlaneStatus)) {
	for i := range x.Cluster.Peerings {
		p := &x.Cluster.Peerings[i]
		for k := range p.Spec.Planes {
			do(p, &p.Spec.Planes[k], p.PlaneStatus(p.Spec.Planes[k].Index))
		}
	}
}

// peerOf is the peer's cluster and its side of the peering, nil where it was not read.
func (x *look) peerOf(p *v1alpha1.Peering) (*Cluster, *v1alpha1.Peering) {
	peer := x.Facts.of(p.Spec.Remote.ClusterID)
	if peer == nil {
		return nil, nil
	}
	for i := range peer.Peerings {
		if other := &peer.Peerings[i]; other.Spec.Remote.ClusterID == x.ID {
			return peer, other
		}
	}
	return nil, nil
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
