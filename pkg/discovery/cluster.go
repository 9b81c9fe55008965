package discovery

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
)

var (
	kindIPPool       = schema.GroupVersionKind{Group: "crd.projectcalico.org", Version: "v1", Kind: "IPPool"}
	kindIPPoolV3     = schema.GroupVersionKind{Group: "projectcalico.org", Version: "v3", Kind: "IPPool"}
	kindCiliumPool   = schema.GroupVersionKind{Group: "cilium.io", Version: "v2alpha1", Kind: "CiliumPodIPPool"}
	kindCiliumNode   = schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNode"}
	kindNodeNetwork  = schema.GroupVersionKind{Group: "acn.azure.com", Version: "v1alpha", Kind: "NodeNetworkConfig"}
	kindOpenShiftNet = schema.GroupVersionKind{Group: "config.openshift.io", Version: "v1", Kind: "Network"}
)

// plugin describes how to recognise a network plugin and what to read for it.
type plugin struct {
	name string
	// daemonSets are patterns of DaemonSet names, one of which it uses.
	daemonSets []string
	// provider is the provider with which the plugin assigns addresses, empty for any. A cloud's own DaemonSets also run
	// next to a plugin that the user chose, but assign no addresses then.
	provider string
	// configMaps and kinds are read if the plugin is found.
	configMaps []string
	kinds      []schema.GroupVersionKind
	// pods returns the pod ranges from which the plugin assigns addresses. If it is nil or returns none, the plugin uses
	// the nodes' podCIDR.
	pods func(*inference) plan.Ranges
}

// plugins returns the network plugins, the more specific ones first: a cluster may run Calico only for its policies, next
// to the plugin that assigns addresses.
func plugins() []plugin {
	return []plugin{
		{name: "amazon-vpc-cni", daemonSets: []string{"aws-node"}, pods: (*inference).awsPods},
		{
			name: "azure-cni", daemonSets: []string{"azure-cns", "azure-cns-win", "azure-cni-networkmonitor"}, provider: ProviderAKS,
			configMaps: masqConfigMaps(), kinds: []schema.GroupVersionKind{kindNodeNetwork}, pods: (*inference).azurePods,
		},
		{name: "gke-vpc-native", daemonSets: []string{"netd", "anetd"}, provider: ProviderGKE},
		{
			name: "canal", daemonSets: []string{"canal", "rke2-canal"},
			configMaps: []string{"kube-system/canal-config", "kube-system/rke2-canal-config"}, pods: (*inference).flannelPods,
		},
		{
			name: "cilium", daemonSets: []string{"cilium"}, configMaps: []string{"kube-system/cilium-config"},
			kinds: []schema.GroupVersionKind{kindCiliumPool, kindCiliumNode}, pods: (*inference).ciliumPods,
		},
		{name: "ovn-kubernetes", daemonSets: []string{"ovnkube-node*"}, configMaps: []string{"ovn-kubernetes/ovn-config"}, pods: (*inference).ovnPods},
		{name: "kube-router", daemonSets: []string{"kube-router"}},
		{name: "kindnet", daemonSets: []string{"kindnet"}},
		{name: "antrea", daemonSets: []string{"antrea-agent"}},
		{
			name: "calico", daemonSets: []string{"calico-node"}, configMaps: []string{"kube-system/calico-config"},
			kinds: []schema.GroupVersionKind{kindIPPool, kindIPPoolV3}, pods: (*inference).calicoPods,
		},
		{
			name: "flannel", daemonSets: []string{"kube-flannel*"},
			configMaps: []string{"kube-flannel/kube-flannel-cfg", "kube-system/kube-flannel-cfg"}, pods: (*inference).flannelPods,
		},
	}
}

// plugin recognises the network plugin.
func (s *snapshot) plugin(provider string) (plugin, plan.Fact[string]) {
	for _, p := range plugins() {
		if ds := s.daemonSet(p.daemonSets...); ds != nil && (p.provider == "" || p.provider == provider) {
			return p, plan.Fact[string]{Value: p.name, Source: "from DaemonSet " + ds.Namespace + "/" + ds.Name}
		}
	}
	for _, n := range s.nodes.Items {
		// k3s includes Flannel, without a DaemonSet.
		if t, ok := n.Annotations["flannel.alpha.coreos.com/backend-type"]; ok {
			source := "from the annotation flannel.alpha.coreos.com/backend-type=" + t + " of node " + n.Name
			return plugin{}, plan.Fact[string]{Value: "flannel", Source: source}
		}
	}
	return plugin{}, plan.Fact[string]{Source: "no network plugin recognised"}
}

// podRanges returns the ranges of the pods: those of the network plugin, as it assigns the addresses, or else those of
// Kubernetes' configuration.
func (s *inference) podRanges() plan.Ranges {
	if p, _ := s.plugin(s.f.Provider.Value); p.pods != nil {
		if out := p.pods(s); len(out) > 0 {
			return distinct(out)
		}
	}
	return distinct(s.kubernetesPods())
}

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

// nodeRanges infers the nodes' subnets.
func (s *inference) nodeRanges() plan.Ranges {
	around := lo.Map(s.internalIPs(), func(a netip.Addr, _ int) netip.Prefix {
		bits := 24
		switch {
		case !a.IsPrivate():
			bits = a.BitLen() // the neighbors of a public address may belong to others
		case a.Is6():
			bits = 64
		}
		return netip.PrefixFrom(a, bits).Masked()
	})
	const source = "from nodes' InternalIPs, a /24 (IPv6: /64) around each; the nodes' agents report the real subnets"
	return inferred(ipam.Merge(around), source)
}

// The recognised providers: those about which more is known, or whose clusters have their own kind of configuration.
const (
	ProviderAKS       = "aks"
	ProviderEKS       = "eks"
	ProviderGKE       = "gke"
	ProviderK3s       = "k3s"
	ProviderOpenShift = "openshift"
	ProviderRKE2      = "rke2"
)

// provider recognises the cluster's provider, by a label of its nodes or by a part of the kubelets' version.
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
