// Package nodes determines which nodes of a cluster run agents, and reads readiness and addresses from Node objects. It
// is pure, and the only definition of these.
package nodes

import (
	"net/netip"
	"slices"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// requirements returns the label requirements of nodes that run agents: first Linux. The others exclude nodes without a
// kernel of their own, whose pods run elsewhere.
func requirements() []corev1.NodeSelectorRequirement {
	return []corev1.NodeSelectorRequirement{
		{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}},
		// virtual-kubelet and its providers, such as Azure's ACI; tensile-kube; kwok.
		{Key: "type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtual-kubelet", "virtual-node", "kwok"}},
		// Liqo.
		{Key: "liqo.io/type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtual-node"}},
		// AWS Fargate.
		{Key: "eks.amazonaws.com/compute-type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"fargate"}},
		// Azure's newer virtual nodes on ACI.
		{Key: "virtualization", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtualnode2"}},
	}
}

// matches reports whether the scheduler would accept the node.
func matches(n *corev1.Node, requirements []corev1.NodeSelectorRequirement) bool {
	return lo.EveryBy(requirements, func(r corev1.NodeSelectorRequirement) bool {
		value, has := n.Labels[r.Key]
		return (has && slices.Contains(r.Values, value)) == (r.Operator == corev1.NodeSelectorOpIn)
	})
}

// RunsAgents reports whether a node runs agents once it is ready: it runs Linux, with a kernel of its own.
func RunsAgents(n *corev1.Node) bool { return matches(n, requirements()) }

// IsVirtual reports whether a node has no kernel of its own. Its pods run elsewhere, with addresses from elsewhere.
func IsVirtual(n *corev1.Node) bool { return !matches(n, requirements()[1:]) }

// Affinity makes the scheduler place pods on exactly the nodes for which RunsAgents is true.
func Affinity() *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: requirements()}},
		},
	}}
}

// IsReady reports whether Kubernetes considers a node ready.
func IsReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Addresses returns a node's addresses of a type, in the order of the object.
func Addresses(n *corev1.Node, kind corev1.NodeAddressType) []netip.Addr {
	return lo.FilterMap(n.Status.Addresses, func(a corev1.NodeAddress, _ int) (netip.Addr, bool) {
		addr, err := netip.ParseAddr(a.Address)
		return addr.Unmap(), err == nil && a.Type == kind
	})
}

// HasAddress reports whether a node has the address, as one of any type.
func HasAddress(n *corev1.Node, addr netip.Addr) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Address == addr.String() })
}

// OfPod returns the node on which a pod runs, or must run: each pod of a DaemonSet is bound to a node.
func OfPod(p *corev1.Pod) string {
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
