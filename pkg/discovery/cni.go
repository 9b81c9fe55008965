package discovery

import (
	"path"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

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

// plugin says how a network plugin is recognised and what to read of it.
type plugin struct {
	name string
	// daemonSets are patterns of the names of DaemonSets, one of which it runs as.
	daemonSets []string
	// provider is the one with which it gives out addresses. Beside a plugin of the user's
	// choice, clouds' DaemonSets do not. Empty for any.
	provider string
	// configMaps and kinds are read where the plugin is found.
	configMaps []string
	kinds      []schema.GroupVersionKind
	// pods returns the pods' ranges that the plugin gives out addresses of. Nil and none
	// mean that it uses the nodes' podCIDR.
	pods func(*snapshot, *plan.Network) plan.Ranges
}

// plugins returns the network plugins, the more specific ones first: a cluster may
// run Calico for its policies only beside the plugin that gives out addresses.
func plugins() []plugin {
	return []plugin{
		{name: "amazon-vpc-cni", daemonSets: []string{"aws-node"}, pods: (*snapshot).awsPods},
		{
			name: "azure-cni", daemonSets: []string{"azure-cns", "azure-cns-win", "azure-cni-networkmonitor"}, provider: ProviderAKS,
			configMaps: masqConfigMaps(), kinds: []schema.GroupVersionKind{kindNodeNetwork}, pods: (*snapshot).azurePods,
		},
		{name: "gke-vpc-native", daemonSets: []string{"netd", "anetd"}, provider: ProviderGKE},
		{
			name: "canal", daemonSets: []string{"canal", "rke2-canal"},
			configMaps: []string{"kube-system/canal-config", "kube-system/rke2-canal-config"}, pods: (*snapshot).flannelPods,
		},
		{
			name: "cilium", daemonSets: []string{"cilium"}, configMaps: []string{"kube-system/cilium-config"},
			kinds: []schema.GroupVersionKind{kindCiliumPool, kindCiliumNode}, pods: (*snapshot).ciliumPods,
		},
		{name: "ovn-kubernetes", daemonSets: []string{"ovnkube-node*"}, configMaps: []string{"ovn-kubernetes/ovn-config"}, pods: (*snapshot).ovnPods},
		{name: "kube-router", daemonSets: []string{"kube-router"}},
		{name: "kindnet", daemonSets: []string{"kindnet"}},
		{name: "antrea", daemonSets: []string{"antrea-agent"}},
		{
			name: "calico", daemonSets: []string{"calico-node"}, configMaps: []string{"kube-system/calico-config"},
			kinds: []schema.GroupVersionKind{kindIPPool, kindIPPoolV3}, pods: (*snapshot).calicoPods,
		},
		{
			name: "flannel", daemonSets: []string{"kube-flannel*"},
			configMaps: []string{"kube-flannel/kube-flannel-cfg", "kube-system/kube-flannel-cfg"}, pods: (*snapshot).flannelPods,
		},
	}
}

// masqConfigMaps are where AKS says what its ip-masq-agent leaves as it is.
func masqConfigMaps() []string {
	return []string{"kube-system/azure-ip-masq-agent-config-reconciled", "kube-system/azure-ip-masq-agent-config"}
}

// plugin recognises the network plugin.
func (s *snapshot) plugin(provider string) (plugin, plan.Fact[string]) {
	for _, p := range plugins() {
		if ds := s.daemonSet(p.daemonSets...); ds != nil && (p.provider == "" || p.provider == provider) {
			return p, plan.Fact[string]{Value: p.name, Source: "from DaemonSet " + ds.Namespace + "/" + ds.Name}
		}
	}
	for _, n := range s.nodes.Items {
		// k3s has Flannel inside, without a DaemonSet.
		if t, ok := n.Annotations["flannel.alpha.coreos.com/backend-type"]; ok {
			source := "from the annotation flannel.alpha.coreos.com/backend-type=" + t + " of node " + n.Name
			return plugin{}, plan.Fact[string]{Value: "flannel", Source: source}
		}
	}
	return plugin{}, plan.Fact[string]{Source: "no network plugin recognised"}
}

// daemonSet returns the first one that is named so and wanted on some node.
func (s *snapshot) daemonSet(patterns ...string) *appsv1.DaemonSet {
	for i, ds := range s.daemonSets.Items {
		named := slices.ContainsFunc(patterns, func(p string) bool {
			match, _ := path.Match(p, ds.Name)
			return match
		})
		// A plugin is often turned off by a node selector that matches no node.
		if named && ds.Status.DesiredNumberScheduled > 0 {
			return &s.daemonSets.Items[i]
		}
	}
	return nil
}
