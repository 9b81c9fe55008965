package discovery

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// plugin says how a network plugin is recognised and what to read of it.
type plugin struct {
	cni string
	// daemonSet says that the plugin runs as the DaemonSet.
	daemonSet func(name string) bool
	// configMaps and kinds are read where the plugin is found.
	configMaps []types.NamespacedName
	kinds      []schema.GroupVersionKind
}

var (
	kindIPPool       = schema.GroupVersionKind{Group: "crd.projectcalico.org", Version: "v1", Kind: "IPPool"}
	kindIPPoolV3     = schema.GroupVersionKind{Group: "projectcalico.org", Version: "v3", Kind: "IPPool"}
	kindCiliumPool   = schema.GroupVersionKind{Group: "cilium.io", Version: "v2alpha1", Kind: "CiliumPodIPPool"}
	kindCiliumNode   = schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNode"}
	kindENIConfig    = schema.GroupVersionKind{Group: "crd.k8s.amazonaws.com", Version: "v1alpha1", Kind: "ENIConfig"}
	kindNodeNetwork  = schema.GroupVersionKind{Group: "acn.azure.com", Version: "v1alpha", Kind: "NodeNetworkConfig"}
	kindGKEParams    = schema.GroupVersionKind{Group: "networking.gke.io", Version: "v1", Kind: "GKENetworkParamSet"}
	kindOpenShiftNet = schema.GroupVersionKind{Group: "config.openshift.io", Version: "v1", Kind: "Network"}
)

// plugins returns the network plugins, the more specific ones first: a cluster may
// run Calico for its policies only beside the plugin that gives out addresses.
func plugins() []plugin {
	is := func(names ...string) func(string) bool {
		return func(name string) bool { return slices.Contains(names, name) }
	}
	return []plugin{
		{cni: CNIAWS, daemonSet: is("aws-node"), kinds: []schema.GroupVersionKind{kindENIConfig}},
		{
			cni: CNIAzure, daemonSet: is("azure-cns", "azure-cns-win", "azure-cni-networkmonitor"),
			configMaps: masqConfigMaps(), kinds: []schema.GroupVersionKind{kindNodeNetwork},
		},
		{cni: CNIGKE, daemonSet: is("netd", "anetd"), kinds: []schema.GroupVersionKind{kindGKEParams}},
		{
			cni: CNICanal, daemonSet: is("canal", "rke2-canal"),
			configMaps: []types.NamespacedName{
				{Namespace: "kube-system", Name: "canal-config"},
				{Namespace: "kube-system", Name: "rke2-canal-config"},
			},
		},
		{
			cni: CNICilium, daemonSet: is("cilium"),
			configMaps: []types.NamespacedName{{Namespace: "kube-system", Name: "cilium-config"}},
			kinds:      []schema.GroupVersionKind{kindCiliumPool, kindCiliumNode},
		},
		{
			cni: CNIOVN, daemonSet: func(name string) bool { return strings.HasPrefix(name, "ovnkube-node") },
			configMaps: []types.NamespacedName{{Namespace: "ovn-kubernetes", Name: "ovn-config"}},
			kinds:      []schema.GroupVersionKind{kindOpenShiftNet},
		},
		{cni: CNIOpenShift, daemonSet: is("sdn"), kinds: []schema.GroupVersionKind{kindOpenShiftNet}},
		{cni: CNIKubeRouter, daemonSet: is("kube-router")},
		{cni: CNIWeave, daemonSet: is("weave-net")},
		{cni: CNIKindnet, daemonSet: is("kindnet")},
		{cni: CNIAntrea, daemonSet: is("antrea-agent")},
		{
			cni: CNICalico, daemonSet: is("calico-node"),
			configMaps: []types.NamespacedName{{Namespace: "kube-system", Name: "calico-config"}},
			kinds:      []schema.GroupVersionKind{kindIPPool, kindIPPoolV3},
		},
		{
			cni: CNIFlannel, daemonSet: func(name string) bool { return strings.HasPrefix(name, "kube-flannel") },
			configMaps: []types.NamespacedName{
				{Namespace: "kube-flannel", Name: "kube-flannel-cfg"},
				{Namespace: "kube-system", Name: "kube-flannel-cfg"},
			},
		},
	}
}

// masqConfigMaps are where AKS says what its ip-masq-agent leaves as it is.
func masqConfigMaps() []types.NamespacedName {
	return []types.NamespacedName{
		{Namespace: "kube-system", Name: "azure-ip-masq-agent-config-reconciled"},
		{Namespace: "kube-system", Name: "azure-ip-masq-agent-config"},
	}
}

// readPlugin reads what is specific to the plugin and the provider.
func (s *snapshot) readPlugin(g *group) {
	provider := s.provider().Value
	cni := s.cni(provider).Value
	for _, p := range plugins() {
		if p.cni == cni {
			for _, name := range p.configMaps {
				g.configMap(name)
			}
			for _, kind := range p.kinds {
				g.list(kind)
			}
		}
	}
	switch {
	case cni == CNIKubenet && provider == ProviderAKS:
		for _, name := range masqConfigMaps() {
			g.configMap(name)
		}
	case provider == ProviderOpenShift && cni != CNIOVN && cni != CNIOpenShift:
		g.list(kindOpenShiftNet)
	}
}

// cni recognises the network plugin.
func (s *snapshot) cni(provider string) Fact[string] {
	for _, p := range plugins() {
		ds := s.daemonSet(p.daemonSet)
		if ds == nil {
			continue
		}
		// GKE's and Azure's DaemonSets beside a plugin of the user's choice do not
		// give out addresses.
		if p.cni == CNIGKE && provider != ProviderGKE || p.cni == CNIAzure && provider != ProviderAKS {
			continue
		}
		return Fact[string]{Value: p.cni, Source: "from DaemonSet " + ds.Namespace + "/" + ds.Name}
	}
	for _, n := range s.nodes {
		if t, ok := n.Annotations["flannel.alpha.coreos.com/backend-type"]; ok {
			return Fact[string]{Value: CNIFlannel, Source: "from the annotation flannel.alpha.coreos.com/backend-type=" + t + " of node " + n.Name}
		}
	}
	switch provider {
	case ProviderGKE:
		return Fact[string]{Value: CNIGKE, Source: "from the provider GKE, no other plugin found", Assumed: true}
	case ProviderAKS:
		for _, n := range s.nodes {
			if n.Spec.PodCIDR != "" {
				return Fact[string]{Value: CNIKubenet, Source: "from the provider AKS and the podCIDR of node " + n.Name + ", no other plugin found", Assumed: true}
			}
		}
		return Fact[string]{Value: CNIAzure, Source: "from the provider AKS, nodes without podCIDR", Assumed: true}
	}
	return Fact[string]{Source: "no network plugin recognised"}
}

// daemonSet returns the first one that is named so and wanted on some node.
func (s *snapshot) daemonSet(named func(string) bool) *appsv1.DaemonSet {
	for i, ds := range s.daemonSets {
		// A plugin is often turned off by a node selector that matches no node.
		if named(ds.Name) && ds.Status.DesiredNumberScheduled > 0 {
			return &s.daemonSets[i]
		}
	}
	return nil
}
