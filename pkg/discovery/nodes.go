package discovery

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
)

func (s *snapshot) nodeFacts() []plan.Node {
	return lo.Map(s.nodes.Items, func(n corev1.Node, _ int) plan.Node {
		return plan.Node{
			Name:        n.Name,
			UID:         string(n.UID),
			Labels:      n.Labels,
			Taints:      n.Spec.Taints,
			InternalIPs: nodes.Addresses(&n, corev1.NodeInternalIP),
			ExternalIPs: nodes.Addresses(&n, corev1.NodeExternalIP),
			Ready:       nodes.Ready(&n),
			RunsAgents:  nodes.RunsAgents(&n),
			Schedulable: !n.Spec.Unschedulable && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
				return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
			}),
		}
	})
}

// nodePods returns the ranges that the pods of each node get by Kubernetes' own IPAM,
// or by kube-router's annotations, which overrule it.
func (s *snapshot) nodePods() (out []netip.Prefix) {
	for _, n := range s.nodes.Items {
		list := strings.Join(n.Spec.PodCIDRs, ",")
		for _, key := range []string{"kube-router.io/pod-cidr", "kube-router.io/pod-cidrs"} {
			if v := n.Annotations[key]; v != "" {
				list = v
			}
		}
		out = append(out, stated(list, "").Prefixes()...)
	}
	return out
}

// nodeRanges concludes the nodes' subnets.
func (s *snapshot) nodeRanges() plan.Ranges {
	var around []netip.Prefix
	for _, n := range s.nodes.Items {
		for _, a := range nodes.Addresses(&n, corev1.NodeInternalIP) {
			bits := 24
			switch {
			case !a.IsPrivate():
				bits = a.BitLen() // who has the neighbours of a public address is not known
			case a.Is6():
				bits = 64
			}
			around = append(around, netip.PrefixFrom(a, bits).Masked())
		}
	}
	const source = "from nodes' InternalIPs, a /24 (IPv6: /64) around each; the nodes' agents report the real subnets"
	return concluded(ipam.Merge(around), source)
}

// The providers that are recognised: those of which something else is known, or whose
// clusters are configured in their own way.
const (
	ProviderAKS       = "aks"
	ProviderEKS       = "eks"
	ProviderGKE       = "gke"
	ProviderK3s       = "k3s"
	ProviderOpenShift = "openshift"
	ProviderRKE2      = "rke2"
)

// provider recognises who runs the cluster, by a label of its nodes or by a part of the
// kubelets' version.
func (s *snapshot) provider() plan.Fact[string] {
	for _, n := range s.nodes.Items {
		for _, by := range []struct{ provider, label, version string }{
			{ProviderAKS, "kubernetes.azure.com/cluster", ""},
			{ProviderEKS, "eks.amazonaws.com/nodegroup", "-eks-"},
			{ProviderEKS, "eks.amazonaws.com/compute-type", ""},
			{ProviderGKE, "cloud.google.com/gke-nodepool", "-gke."},
			{ProviderOpenShift, "node.openshift.io/os_id", ""},
			{ProviderK3s, "", "+k3s"},
			{ProviderRKE2, "", "+rke2"},
		} {
			if _, ok := n.Labels[by.label]; ok {
				return plan.Fact[string]{Value: by.provider, Source: "from the label " + by.label + " of node " + n.Name}
			}
			if version := n.Status.NodeInfo.KubeletVersion; by.version != "" && strings.Contains(version, by.version) {
				return plan.Fact[string]{Value: by.provider, Source: "from the kubelet's version " + version + " of node " + n.Name}
			}
		}
	}
	return plan.Fact[string]{Source: "neither a cloud's cluster nor k3s, RKE2 or OpenShift"}
}
